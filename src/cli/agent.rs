//! `palisade agent`: the node's side.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use palisade_agent::{
    TokioRuntime,
    commands::Executors,
    config::Config,
    daemon::{self, RunError, RunOptions},
    driver::ShimCommand,
    join::{self, JoinError, JoinOptions},
};
use serde_json::json;

use super::{Global, version::VERSION};
use crate::{
    edge,
    output::{self, Exit, Failure, Format, Outcome, failure::chain, human},
};

const DATA_DIR: &str = "/var/lib/palisade-agent";

/// Flags of `agent`.
#[derive(Debug, clap::Args)]
pub struct Agent {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Join a cluster, with the command that `palisade token create` prints
    Join(Join),
    /// Run the agent
    Run(Run),
    /// Show what the agent would do now
    Plan(Place),
}

#[derive(Debug, clap::Args)]
struct Place {
    /// Where the agent keeps everything
    #[arg(long, alias = "dir", value_name = "DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
}

#[derive(Debug, clap::Args)]
struct Join {
    #[command(flatten)]
    place: Place,
    /// A replica, host:port; give it once for each
    #[arg(long = "server", required = true, value_name = "HOST:PORT")]
    servers: Vec<String>,
    /// The key by which the cluster is recognised, sha256/…
    #[arg(long = "pin", required = true, value_name = "PIN")]
    pins: Vec<String>,
    /// The file with the join token, mode 0600
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, clap::Args)]
struct Run {
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    settings: Settings,
    /// End when standard input does; for whoever runs it as a child
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

/// What may be said at the join and changed at each start.
#[derive(Debug, clap::Args)]
struct Settings {
    /// The node's name [default: the host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A label, KEY=VALUE
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = super::key_value)]
    labels: Vec<(String, String)>,
    /// Ports that instances may be given, FIRST-LAST
    #[arg(long, value_name = "FIRST-LAST", value_parser = ports)]
    ports: Option<(u16, u16)>,
    /// The address under which instances are reached [default: the one towards the replicas]
    #[arg(long, value_name = "IP")]
    address: Option<String>,
    /// CPUs that workloads may have, such as 1.5 [default: all]
    #[arg(long, value_name = "CPUS", value_parser = milli)]
    offer_cpu: Option<u64>,
    /// Memory that workloads may have, such as 4GiB [default: all]
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    offer_memory: Option<u64>,
}

/// Placeholder of the shim's arguments; the shim is started before they are parsed.
#[derive(Debug, clap::Args)]
pub struct Shim {
    /// What the agent says
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    rest: Vec<OsString>,
}

fn ports(text: &str) -> Result<(u16, u16), String> {
    let wrong = || format!("{text:?} is no range of ports: write FIRST-LAST, such as 20000-20999");
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first > 0 && first <= last => Ok((first, last)),
        _ => Err(wrong()),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the range is checked before"
)]
fn milli(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(cpus) if cpus > 0.0 && cpus <= 100_000.0 => Ok((cpus * 1000.0).round() as u64),
        _ => Err(format!("{text:?} is no number of CPUs: write 2 or 0.5")),
    }
}

impl Settings {
    fn apply(self, config: &mut Config) {
        if let Some(name) = self.name {
            config.node_name = name;
        }
        config.labels.extend(self.labels);
        if let Some((first, last)) = self.ports {
            (config.port_first, config.port_last) = (first, last);
        }
        if let Some(address) = self.address {
            config.address = address;
        }
        if let Some(milli) = self.offer_cpu {
            config.offered_cpu_milli = milli;
        }
        if let Some(bytes) = self.offer_memory {
            config.offered_memory_bytes = bytes;
        }
    }
}

impl Agent {
    pub(super) fn run(self, global: &Global, executors: Executors) -> Outcome {
        match self.verb {
            Verb::Join(join) => join.run(global),
            Verb::Run(run) => run.run(executors),
            Verb::Plan(place) => {
                let text = palisade_agent::plan::describe(&place.data_dir)
                    .map_err(|error| Failure::new(Exit::Error, chain(&error)))?;
                output::data(text.as_bytes())
            }
        }
    }
}

impl Join {
    fn run(self, global: &Global) -> Outcome {
        crate::log::start();
        let failed =
            |error: &(dyn std::error::Error + 'static)| Failure::new(Exit::Error, chain(error));
        let data_dir = self.place.data_dir;
        let mut config = Config::load(&data_dir).map_err(|error| failed(&error))?;
        config.servers = self.servers;
        self.settings.apply(&mut config);
        let options = JoinOptions {
            config,
            token_file: self.token_file,
            pins: self.pins,
            agent_version: VERSION.to_owned(),
        };
        let runtime = super::small_runtime()?;
        let joined = runtime
            .block_on(join::join(&TokioRuntime::shared(), options))
            .map_err(|error| Failure { exit: exit_of(&error), ..failed(&error) })?;
        if matches!(global.output, Format::Json | Format::Yaml) {
            let value =
                json!({"id": joined.node_id, "name": joined.node_name, "already": joined.already});
            return output::data(output::render_value(global.output, &value)?.as_bytes());
        }
        let word = if joined.already { "has joined before" } else { "joined" };
        output::data(format!("node/{} {word}\n", joined.node_name).as_bytes())?;
        output::say(format!("now run: {}", run_command(&data_dir)));
        Ok(())
    }
}

/// The command that runs the agent of this directory, ready to be pasted.
fn run_command(data_dir: &Path) -> String {
    if data_dir == Path::new(DATA_DIR) {
        return "palisade agent run".to_owned();
    }
    format!("palisade agent run --data-dir {}", human::shell(data_dir))
}

fn exit_of(error: &JoinError) -> Exit {
    match error {
        JoinError::Refused { .. } => Exit::Denied,
        JoinError::Connect(_) | JoinError::Unavailable { .. } => Exit::Unavailable,
        JoinError::Lock(_) => Exit::Conflict,
        JoinError::Identity(_) => Exit::Error,
        _ => Exit::Usage,
    }
}

impl Run {
    fn run(self, executors: Executors) -> Outcome {
        crate::log::start();
        let data_dir = self.place.data_dir;
        let mut config = Config::load(&data_dir).map_err(|error| Failure::usage(chain(&error)))?;
        self.settings.apply(&mut config);
        let options = RunOptions {
            config,
            shim: ShimCommand::current(),
            agent_version: VERSION.to_owned(),
            executors,
        };
        let runtime = super::large_runtime()?;
        let result = runtime.block_on(async {
            let stop = edge::stop(self.stop_with_stdin);
            daemon::run(&TokioRuntime::shared(), options, stop).await
        });
        // What still blocks a thread must not hold the process.
        runtime.shutdown_background();
        result.map_err(|error| {
            let exit = match &error {
                RunError::Lock(_) => Exit::Conflict,
                RunError::Config(_) | RunError::NotJoined { .. } => Exit::Usage,
                _ => Exit::Error,
            };
            Failure::new(exit, chain(&error))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_to_run_names_its_directory() {
        assert_eq!(run_command(Path::new(DATA_DIR)), "palisade agent run");
        let other = run_command(Path::new("/a b"));
        assert_eq!(other, "palisade agent run --data-dir '/a b'");
    }

    #[test]
    fn offers_and_ranges_are_read() {
        assert_eq!(ports("20000-20499"), Ok((20000, 20499)));
        assert!(ports("5-1").is_err() && ports("0-9").is_err() && ports("9").is_err());
        assert_eq!(milli("0.5"), Ok(500));
        assert!(milli("-1").is_err() && milli("NaN").is_err());
    }
}
