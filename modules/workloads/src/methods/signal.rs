//! Signals to instances, as commands to their nodes' agents.

use std::time::Duration;

use palisade_contract::{
    Check, Code, CommandKind, CommandRequest, Error, MethodContext, Problems, Result,
    command::CommandRecord, id,
};
use palisade_state::Tx;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Signal;
use crate::lookup;

/// The signals that an agent sends, without their prefix.
const SIGNALS: [&str; 8] = ["TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "KILL", "WINCH"];
const KIND: &str = "instance.signal";
const TIMEOUT: Duration = Duration::from_secs(10);
/// For how long a signal may be sent: later it would surprise.
const LIFE: Duration = Duration::from_secs(30);

/// What the agent is told.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Payload {
    /// The instance's id.
    instance: String,
    /// Without its prefix.
    signal: String,
}

impl Check for Payload {
    fn check(&self, at: &str, problems: &mut Problems) {
        check(&self.signal, at, problems);
    }
}

/// Not retry-safe: a program may count its signals.
pub(crate) fn kind() -> CommandKind {
    CommandKind::new::<Payload>(KIND, "instances", TIMEOUT)
}

fn bare(signal: &str) -> String {
    let upper = signal.to_ascii_uppercase();
    upper.strip_prefix("SIG").map(str::to_owned).unwrap_or(upper)
}

pub(super) fn check(signal: &str, at: &str, problems: &mut Problems) {
    if !SIGNALS.contains(&bare(signal).as_str()) {
        problems.add(format!("{at}/signal"), format!("must be one of {}", SIGNALS.join(", ")));
    }
}

pub(super) fn signal(cx: &MethodContext, tx: &mut Tx, input: Signal) -> Result<CommandRecord> {
    let found = lookup::instance(tx.view(), &input.instance, input.tenant.as_ref())?;
    cx.check_if_match(found.stamp.modified_rev)?;
    let row = found.value;
    let Some(node) = row.node() else {
        return Err(Error::new(
            Code::InvalidState,
            format!("{} does not run: it waits for a node", row.name),
        )
        .hint(format!("`palisade instance show {}` says why", row.name)));
    };
    let payload = json!({ "instance": row.id, "signal": bare(&input.signal) });
    let key = format!("instances.signal:{}", id::mint(&*cx.context.rt, "once"));
    let request = CommandRequest::new(node, KIND, payload, key)
        .of_tenant(&row.tenant)
        .by(&cx.principal)
        .not_after(LIFE);
    let sent = cx.context.ports.commands.get()?.enqueue(&cx.context, tx, &request)?;
    CommandRecord::new(&cx.context, tx.view(), &sent, 0)
}
