//! The shim by itself, and a daemon that can be killed, for the integration tests.

use std::process::ExitCode;

use palisade_agent::{
    TokioRuntime,
    commands::Executors,
    config::Config,
    daemon::{RunOptions, run},
    driver::ShimCommand,
};

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    if std::env::args_os().nth(1).is_some_and(|arg| arg == "daemon") {
        return daemon(args.nth(1).unwrap_or_default().as_ref());
    }
    palisade_agent::shim::main(args)
}

fn daemon(data_dir: &std::path::Path) -> ExitCode {
    let run = async {
        let options = RunOptions {
            config: Config::load(data_dir)?,
            shim: ShimCommand { program: "/proc/self/exe".into(), args: Vec::new() },
            agent_version: "test".to_owned(),
            executors: Executors::default(),
        };
        run(&TokioRuntime::shared(), options, std::future::pending()).await?;
        Ok::<(), Box<dyn std::error::Error>>(())
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
