//! `palisade dev`.

use std::path::PathBuf;

use clap::Subcommand;

use super::Global;
use crate::{
    dev::{
        self, Killed, Layout, Status, StopOptions, Stopped, UpOptions, detach, kill_leader, status,
        supervise,
    },
    output::{self, Exit, Failure, Format, Outcome, Table, human},
};

/// Flags of `dev`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Dev {
    #[command(flatten)]
    up: Up,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Start it, or resume it (the default)
    Up(Up),
    /// Stop it and the instances that it runs
    Stop {
        #[command(flatten)]
        place: Place,
        /// Leave instances running
        #[arg(long)]
        keep_instances: bool,
    },
    /// Kill the leading replica's process (SIGKILL) and measure the fail-over
    KillLeader(Place),
    /// Show its processes
    Status(Place),
}

#[derive(Clone, Debug, clap::Args)]
struct Place {
    /// Where everything is kept
    #[arg(long, value_name = "DIR", default_value = dev::DEFAULT_DIR)]
    dir: PathBuf,
}

#[derive(Clone, Debug, clap::Args)]
struct Up {
    #[command(flatten)]
    place: Place,
    /// Stop what runs there, forget it, and start over
    #[arg(long)]
    fresh: bool,
    /// Return once it is ready, and leave it running
    #[arg(long)]
    detach: bool,
    /// Leave instances running at the end
    #[arg(long)]
    keep_instances: bool,
    /// Point the context `dev` here though it leads to another cluster that runs
    #[arg(long)]
    replace_context: bool,
    /// Be what --detach left running
    #[arg(long, hide = true, conflicts_with = "detach")]
    supervise: bool,
}

impl Dev {
    pub(super) fn run(self, global: &Global) -> Outcome {
        let verb = self.verb.unwrap_or(Verb::Up(self.up));
        let runtime = super::small_runtime()?;
        let result = runtime.block_on(run(verb, global));
        runtime.shutdown_background();
        result
    }
}

async fn run(verb: Verb, global: &Global) -> Outcome {
    let format = global.output;
    match verb {
        Verb::Up(up) => {
            let options = UpOptions {
                layout: Layout::new(&up.place.dir),
                fresh: up.fresh,
                keep_instances: up.keep_instances,
                replace_context: up.replace_context,
                context_file: global.overrides().path()?,
                format,
            };
            if up.detach { detach(options).await } else { supervise(options, up.supervise).await }
        }
        Verb::Stop { place, keep_instances } => {
            let stopped =
                dev::stop(&Layout::new(&place.dir), StopOptions { keep_instances }).await?;
            output::say(match stopped {
                Stopped::Supervisor(pid) => format!("stopped (process {pid})"),
                Stopped::Orphans(count) => {
                    format!("stopped {} left behind", human::count(count, "process", "processes"))
                }
                Stopped::Nothing => "nothing runs there".to_owned(),
            });
            Ok(())
        }
        Verb::KillLeader(place) => {
            print_killed(format, &kill_leader(&Layout::new(&place.dir)).await?)
        }
        Verb::Status(place) => {
            let layout = Layout::new(&place.dir);
            dev::check_ours(&layout)?;
            print_status(format, &status(&layout), &layout.command(""))
        }
    }
}

fn print_killed(format: Format, killed: &Killed) -> Outcome {
    if matches!(format, Format::Json | Format::Yaml) {
        return output::data(output::render_value(format, &encode(killed)?)?.as_bytes());
    }
    output::data(
        format!(
            "killed replica {} (process {}), the leader of term {}\n\
             replica {} leads term {} after {:.0} ms\n\
             a write that was begun right after the kill succeeded after {:.0} ms\n",
            killed.replica,
            killed.pid,
            killed.term,
            killed.new_leader,
            killed.new_term,
            killed.leader_after_ms,
            killed.write_after_ms,
        )
        .as_bytes(),
    )
}

fn encode<T: serde::Serialize>(value: &T) -> Outcome<serde_json::Value> {
    serde_json::to_value(value).map_err(|error| Failure::caused("cannot encode the answer", &error))
}

fn print_status(format: Format, status: &Status, start: &str) -> Outcome {
    match format {
        Format::Json | Format::Yaml => {
            output::data(output::render_value(format, &encode(status)?)?.as_bytes())?;
        }
        Format::Name => {
            let names: String =
                status.parts.iter().map(|part| format!("process/{}\n", part.name)).collect();
            output::data(names.as_bytes())?;
        }
        Format::Table | Format::Wide => {
            let who = status.supervisor.map_or("nobody".to_owned(), |pid| format!("process {pid}"));
            output::say(format!("{}: {}, kept by {who}", status.dir, status.phase));
            let mut table = Table::new(&["NAME", "PROCESS", "LOG"]);
            for part in &status.parts {
                let pid = part.pid.map_or("-".to_owned(), |pid| pid.to_string());
                table.row(vec![part.name.clone(), pid, part.log.clone()]);
            }
            output::data(table.render().as_bytes())?;
        }
    }
    if status.phase == "stopped" {
        return Err(Failure::new(Exit::Unavailable, "it does not run")
            .hint(format!("start it with `{start}`")));
    }
    Ok(())
}
