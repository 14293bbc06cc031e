//! Compiles the protocol files with protox, so that no `protoc` is needed on the machine.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/peer.proto"], ["proto"])?;
    let codec = "crate::peer::codec::SmallCodec";
    tonic_prost_build::configure().bytes(".").codec_path(codec).compile_fds(descriptors)?;
    Ok(())
}
