//! What a verb works with: the flags, and a client of the cluster that is meant.

use std::time::Duration;

use serde_json::Value;

use super::Global;
use crate::{
    client::{Answer, Call, Client, Options},
    context_file::Resolved,
    output::{self, Format, Outcome},
};

const BUDGET_DEFAULT: Duration = Duration::from_secs(30);
const WAIT_DEFAULT: Duration = Duration::from_mins(5);

/// How a list or a record is read.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Read {
    /// As the replica that answers knows it, also without a quorum
    #[arg(long)]
    local: bool,
    /// As it was, at a revision or a time such as 2026-11-30T02:10:00Z
    #[arg(long, value_name = "MOMENT")]
    at: Option<String>,
}

impl Read {
    /// A read of this path.
    pub fn get(&self, path: impl Into<String>) -> Call {
        let call = Call::get(path).query_some("at", self.at.as_ref());
        if self.local { call.local() } else { call }
    }

    /// Says which revision was read, where it was not the newest.
    pub fn tell(&self, answer: &Answer) {
        if let (Some(at), Some(revision)) = (&self.at, answer.revision) {
            output::say(format!("as it was at {at}: revision {revision}"));
        }
    }
}

/// Whose things are meant.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Whose {
    /// Of this tenant [default: the one that you are bound to, or any]
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

impl Whose {
    /// Says so in the call.
    pub fn say(&self, call: Call) -> Call {
        call.query_some("tenant", self.tenant.as_ref())
    }
}

/// Which records of a list, and in which order.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Narrow {
    /// Only records that match, such as 'name ~ web and not name in (web-1, web-2)'; fields as in -o json
    #[arg(long, value_name = "EXPRESSION", value_parser = short)]
    filter: Option<String>,
    /// By which fields, separated by commas; a - before what descends
    #[arg(long, value_name = "FIELDS", allow_hyphen_values = true, value_parser = short)]
    sort: Option<String>,
}

/// What fits into a request; what is right is for the server to say.
pub(super) fn short(text: &str) -> Result<String, String> {
    match text.chars().count() {
        0..=1_000 => Ok(text.to_owned()),
        count => Err(format!("it has {count} characters, the limit is 1000")),
    }
}

impl Narrow {
    /// Says so in the call.
    pub fn say(&self, call: Call) -> Call {
        call.query_some("filter", self.filter.as_deref()).query_some("sort", self.sort.as_deref())
    }

    /// The records as they are shown: by name, unless another order was asked for.
    pub fn ordered(&self, records: Vec<Value>) -> Vec<Value> {
        if self.sort.is_some() { records } else { output::by_name(records) }
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Session {
    global: Global,
}

impl Session {
    /// A session with these flags.
    #[must_use]
    pub fn new(global: Global) -> Self {
        Self { global }
    }

    /// How data is printed.
    #[must_use]
    pub fn format(&self) -> Format {
        self.global.output
    }

    /// How long a verb waits for what it started.
    #[must_use]
    pub fn wait_limit(&self) -> Duration {
        self.global.timeout.unwrap_or(WAIT_DEFAULT)
    }

    /// How long a request is tried, if that was said.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.global.timeout
    }

    /// Where the contexts are.
    ///
    /// # Errors
    /// There is no home directory to look in.
    pub fn context_path(&self) -> Outcome<std::path::PathBuf> {
        Ok(self.global.overrides().path()?)
    }

    /// Which cluster is meant.
    ///
    /// # Errors
    /// Nothing says so, or what says so cannot be used.
    pub fn resolve(&self) -> Outcome<Resolved> {
        Ok(self.global.overrides().resolve()?)
    }

    /// A client of it.
    ///
    /// # Errors
    /// See [`Self::resolve`].
    pub fn client(&self) -> Outcome<Client> {
        self.client_within(self.global.timeout.unwrap_or(BUDGET_DEFAULT))
    }

    /// A client of it that gives up earlier.
    ///
    /// # Errors
    /// See [`Self::resolve`].
    pub fn client_within(&self, budget: Duration) -> Outcome<Client> {
        client(self.resolve()?, budget)
    }
}

/// A client of a cluster.
///
/// # Errors
/// The CA cannot be used.
pub(crate) fn client(resolved: Resolved, budget: Duration) -> Outcome<Client> {
    Ok(Client::new(Options {
        addresses: resolved.addresses,
        ca_pem: resolved.ca_pem,
        token: resolved.token.map(|token| token.reveal().to_owned()),
        budget,
    })?)
}
