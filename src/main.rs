//! The binary.

fn main() -> std::process::ExitCode {
    palisade::Builder::new().run()
}
