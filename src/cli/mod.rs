//! The command line: parse, call, print. Nouns first, then verbs.

mod access;
mod agent;
mod apply;
mod approval;
mod audit;
mod binding;
mod can_i;
pub(crate) mod chain;
pub(crate) mod cluster;
mod command;
mod complete;
mod context;
mod dev;
mod diff;
mod doctor;
mod event;
mod hello;
mod history;
mod init;
mod instance;
mod logs;
mod node;
mod pki;
mod principal;
mod role;
mod secret;
mod serve;
mod session;
mod spec_file;
mod strict;
mod subscription;
mod support;
pub(crate) mod survey;
mod tenant;
pub(crate) mod token;
mod version;
mod wait;
mod watch;
mod workload;

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::{Parser, Subcommand};

use crate::{
    builder::Builder,
    context_file::Overrides,
    output::{self, Exit, Format, Outcome},
};
pub use session::Session;

/// A compute control plane in one binary.
#[derive(Debug, Parser)]
#[command(
    name = "palisade",
    version,
    propagate_version = false,
    disable_help_subcommand = true,
    arg_required_else_help = true,
    subcommand_required = true,
    max_term_width = 100,
    after_help = "Start a cluster on this machine with `palisade dev`, then `palisade node ls`.\n\
        Exit codes: 0 ok, 1 error, 2 usage or invalid input, 3 not found, 4 conflict, 5 denied,\n\
        6 unavailable, 7 timed out, 8 no room."
)]
pub struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    noun: Noun,
}

/// What every verb understands.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// How data is printed
    #[arg(short, long, global = true, value_enum, default_value_t, hide_default_value = true)]
    pub output: Format,
    /// The context to use
    #[arg(
        long,
        global = true,
        env = "PALISADE_CONTEXT",
        value_name = "NAME",
        hide_env_values = true
    )]
    pub context: Option<String>,
    /// The file with the contexts
    #[arg(long, global = true, env = crate::context_file::FILE_VARIABLE, value_name = "FILE", hide_env_values = true)]
    pub context_file: Option<PathBuf>,
    /// Replicas to ask, with commas between them
    #[arg(
        long,
        global = true,
        env = "PALISADE_ADDR",
        value_name = "HOST:PORT,…",
        hide_env_values = true
    )]
    pub addr: Option<String>,
    /// The cluster's CA certificate (PEM)
    #[arg(
        long,
        global = true,
        env = "PALISADE_CACERT",
        value_name = "FILE",
        hide_env_values = true
    )]
    pub cacert: Option<PathBuf>,
    /// A file with the API token; PALISADE_TOKEN holds the token itself
    #[arg(long, global = true, value_name = "FILE")]
    pub api_token_file: Option<PathBuf>,
    /// How long a request is tried [default: 30s], and a verb waits [default: 5m]
    #[arg(long, global = true, value_name = "DURATION", value_parser = some_time)]
    pub timeout: Option<Duration>,
}

impl Global {
    fn overrides(&self) -> Overrides {
        let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        Overrides {
            file: self.context_file.clone().filter(|path| !path.as_os_str().is_empty()),
            context: given(&self.context),
            addr: given(&self.addr),
            token: std::env::var("PALISADE_TOKEN").ok().filter(|token| !token.trim().is_empty()),
            token_file: self.api_token_file.clone(),
            cacert: self.cacert.clone().filter(|path| !path.as_os_str().is_empty()),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Noun {
    /// A whole cluster on this machine, to try and to develop
    Dev(dev::Dev),
    /// Machines with an agent
    #[command(visible_alias = "nodes")]
    Node(node::Node),
    /// What is to run
    #[command(visible_aliases = ["workloads", "wl"])]
    Workload(workload::Workload),
    /// Running copies of workloads
    #[command(visible_alias = "instances")]
    Instance(instance::Instance),
    /// What agents are told to do once, and what became of it
    #[command(visible_alias = "commands")]
    Command(command::Command),
    /// Tokens with which machines join
    #[command(visible_alias = "tokens")]
    Token(token::Token),
    /// Tokens with which people and programs use the API
    #[command(visible_alias = "api-tokens")]
    ApiToken(access::ApiToken),
    /// Who there is beside tokens that stand for themselves
    #[command(visible_alias = "principals")]
    Principal(principal::Principal),
    /// What can be held: sets of actions
    #[command(visible_alias = "roles")]
    Role(role::Role),
    /// Who holds which role where
    #[command(visible_alias = "bindings")]
    Binding(binding::Binding),
    /// Who shares the cluster, and what each may have
    #[command(visible_alias = "tenants")]
    Tenant(tenant::Tenant),
    /// Destructive work that waits until others approve it
    #[command(visible_alias = "approvals")]
    Approval(approval::Approval),
    /// What workloads may know, and nobody reads back
    #[command(visible_alias = "secrets")]
    Secret(secret::Secret),
    /// The control plane itself
    Cluster(cluster::Cluster),
    /// Its certificates: the CA, who has what, and what is refused
    Pki(pki::Pki),
    /// What happened
    #[command(visible_alias = "events")]
    Event(event::Event),
    /// Who is sent which events, and what could not be delivered
    #[command(visible_aliases = ["subscriptions", "sub"])]
    Subscription(subscription::Subscription),
    /// Who did what
    Audit(event::Audit),
    /// What became of one thing, and who asked for it
    History(history::History),
    /// Clusters that this machine knows
    #[command(visible_alias = "contexts")]
    Context(context::Context),
    /// Who is asking
    Auth(access::Auth),
    /// Look for what is wrong
    Doctor(doctor::Doctor),
    /// Gather what somebody who helps needs to see
    Support(support::Support),
    /// Versions of this program and of the server
    Version(version::Version),
    /// A completion script for a shell
    Completion(complete::Completion),
    /// Make the directories of a new cluster's replicas
    Init(init::Init),
    /// Run a replica
    Serve(serve::Serve),
    /// The node agent
    Agent(agent::Agent),
    /// A small HTTP server that says who it is, for examples
    Hello(hello::Hello),
    /// Keeps one instance alive; run by the agent
    #[command(hide = true, disable_help_flag = true)]
    Shim(agent::Shim),
}

/// Runs the program with these arguments (the first is its name).
#[must_use]
pub fn main(args: impl IntoIterator<Item = OsString>, builder: Builder) -> std::process::ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    // The shim outlives its agent and is many; it takes the shortest way, with no runtime.
    if args.get(1).is_some_and(|arg| arg == "shim") {
        return palisade_agent::shim::main(args.into_iter().skip(2));
    }
    let asked = args.clone();
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            let error = plain(near(error));
            if error.use_stderr() && asks_for_json(&asked) {
                let text = error.to_string();
                let failure = output::Failure::usage(text.trim_start_matches("error: ").trim_end());
                output::complain(Format::Json, &failure);
            } else {
                let _ = error.print();
            }
            return if error.use_stderr() { Exit::Usage.into() } else { Exit::Ok.into() };
        }
    };
    let format = cli.global.output;
    match run(cli, builder) {
        Ok(()) => Exit::Ok.into(),
        Err(failure) => {
            output::complain(format, &failure);
            failure.exit.into()
        }
    }
}

/// Whether JSON is asked for on a line that cannot be read as a whole.
fn asks_for_json(args: &[OsString]) -> bool {
    let is = |words: &[OsString]| {
        let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
        matches!(
            words.as_slice(),
            ["-o" | "--output", "json"] | ["-ojson" | "-o=json" | "--output=json", _]
        )
    };
    let is_last = args.last().is_some_and(|last| is(&[last.clone(), OsString::new()]));
    is_last || args.windows(2).any(is)
}

/// The error in words for people, where the standard library's are for programmers.
fn plain(error: clap::Error) -> clap::Error {
    use std::{error::Error as _, num::IntErrorKind};
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::num::ParseIntError>());
    let Some(cause) = cause else { return error };
    let is_number = matches!(cause.kind(), IntErrorKind::PosOverflow | IntErrorKind::NegOverflow);
    let plain = if is_number { "the number is out of range" } else { "it must be a whole number" };
    let text = error.to_string().replace(&cause.to_string(), plain);
    clap::Error::raw(error.kind(), text.trim_start_matches("error: "))
}

/// The error with no suggestion that is far from what was written.
fn near(mut error: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let word = word.clone();
    let is_near = |one: &String| {
        palisade_contract::input::nearest(&word, std::iter::once(one.as_str())).is_some()
    };
    let Some(ContextValue::Strings(mut all)) = error.remove(ContextKind::SuggestedSubcommand)
    else {
        return error;
    };
    all.retain(is_near);
    if !all.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(all));
    }
    error
}

fn run(cli: Cli, builder: Builder) -> Outcome {
    let Cli { global, noun } = cli;
    match noun {
        Noun::Serve(serve) => serve.run(builder),
        Noun::Agent(agent) => agent.run(&global, builder.executors()),
        Noun::Shim(_) => Ok(()),
        Noun::Hello(hello) => hello.run(),
        Noun::Completion(completion) => completion.run(),
        Noun::Context(context) => context.run(&global),
        Noun::Init(init) => init.run(&global),
        Noun::Dev(dev) => dev.run(&global),
        noun => {
            let session = Session::new(global);
            small_runtime()?.block_on(ask(noun, &session))
        }
    }
}

async fn ask(noun: Noun, session: &Session) -> Outcome {
    match noun {
        Noun::Node(node) => node.run(session).await,
        Noun::Workload(workload) => workload.run(session).await,
        Noun::Instance(instance) => instance.run(session).await,
        Noun::Command(command) => command.run(session).await,
        Noun::Token(token) => token.run(session).await,
        Noun::ApiToken(token) => token.run(session).await,
        Noun::Principal(principal) => principal.run(session).await,
        Noun::Role(role) => role.run(session).await,
        Noun::Binding(binding) => binding.run(session).await,
        Noun::Tenant(tenant) => tenant.run(session).await,
        Noun::Approval(approval) => approval.run(session).await,
        Noun::Secret(secret) => secret.run(session).await,
        Noun::Cluster(cluster) => cluster.run(session).await,
        Noun::Pki(pki) => pki.run(session).await,
        Noun::Event(event) => event.run(session).await,
        Noun::Subscription(subscription) => subscription.run(session).await,
        Noun::Audit(audit) => audit.run(session).await,
        Noun::History(history) => history.run(session).await,
        Noun::Auth(auth) => auth.run(session).await,
        Noun::Doctor(doctor) => doctor.run(session).await,
        Noun::Support(support) => support.run(session).await,
        Noun::Version(version) => version.run(session).await,
        _ => Ok(()),
    }
}

/// A runtime for verbs that ask and print: one thread is enough.
pub(crate) fn small_runtime() -> Outcome<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| output::Failure::caused("cannot start the runtime", &error))
}

/// A runtime for what serves: as many threads as there are cores.
pub(crate) fn large_runtime() -> Outcome<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| output::Failure::caused("cannot start the runtime", &error))
}

/// Parses `500ms`, `30s`, `5m`, `2h`, `1d`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("{text:?} is no duration: write 500ms, 30s, 5m, 2h or 1d");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let milliseconds = match unit {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(wrong)
}

/// A duration in which something can happen.
fn some_time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() { Err("it must be more than 0".to_owned()) } else { Ok(time) }
}

/// Parses a number of bytes: `512MiB`, `4GiB`, `4GB`, or a bare number.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("{text:?} is no size: write 512MiB, 4GiB or a number of bytes");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let factor: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(factor).ok_or_else(wrong)
}

/// Parses `key=value`.
pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// The command as clap knows it.
pub(crate) fn command() -> clap::Command {
    use clap::CommandFactory;
    Cli::command()
}

#[cfg(test)]
mod tests;
