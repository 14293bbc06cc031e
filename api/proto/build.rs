//! Compiles the protocol files with protox, so that no `protoc` is needed on the machine.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let descriptors = protox::compile(["proto/agent.proto"], ["proto"])?;
    // What holds a secret does not show it: its Debug is in lib.rs.
    tonic_prost_build::configure()
        .skip_debug(["palisade.agent.v1.Secret"])
        .compile_fds(descriptors)?;
    Ok(())
}
