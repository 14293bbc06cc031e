//! Compiles the protocol files with protox, so that no `protoc` is needed on the machine.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/etcd.proto", "proto/store.proto"], ["proto"])?;
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(descriptors)?;
    Ok(())
}
