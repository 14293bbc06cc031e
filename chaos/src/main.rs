//! The fault rig's program.

fn main() -> std::process::ExitCode {
    palisade_chaos::main(std::env::args_os())
}
