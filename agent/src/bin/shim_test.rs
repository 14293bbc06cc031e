//! The shim by itself, for the integration tests.

fn main() -> std::process::ExitCode {
    palisade_agent::shim::main(std::env::args_os().skip(1))
}
