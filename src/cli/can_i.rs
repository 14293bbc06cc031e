//! `palisade auth can-i`: whether one may do something, without doing it.

use serde_json::{Value, json};

use super::Session;
use crate::{
    client::{BASE, Call},
    output::{self, Exit, Failure, Format, Outcome, cell, text},
};

/// What is asked.
#[derive(Debug, clap::Args)]
pub(super) struct CanI {
    /// What to do, such as read, write, remove or logs; also a method, such as nodes.cordon
    verb: String,
    /// On what: a kind, such as nodes, or one of them, such as node/web-1
    resource: String,
    /// Whose it is [default: the tenant that you are bound to]
    #[arg(long)]
    tenant: Option<String>,
}

/// Areas that have no plural.
const SINGULAR: [&str; 7] = ["audit", "auth", "cluster", "pki", "system", "trust", "version"];

/// Areas whose things are removed by whoever may write them.
const WRITTEN: [&str; 8] = [
    "api-tokens",
    "cluster",
    "join-tokens",
    "pki",
    "principals",
    "role-bindings",
    "roles",
    "tenants",
];

/// What authorization calls the things that the command line calls otherwise.
fn area(kind: &str) -> String {
    match kind {
        "token" | "tokens" => "join-tokens".to_owned(),
        "wl" => "workloads".to_owned(),
        "binding" | "bindings" => "role-bindings".to_owned(),
        kind if kind.ends_with('s') || SINGULAR.contains(&kind) => kind.to_owned(),
        kind => format!("{kind}s"),
    }
}

/// What authorization calls a verb of the command line.
fn action(verb: &str, area: &str) -> String {
    if verb.contains([':', '.']) {
        return verb.to_owned();
    }
    let word = match verb {
        "get" | "list" | "ls" | "show" | "watch" | "tail" | "verify" | "status" => "read",
        "rm" | "delete" | "remove" | "revoke" if WRITTEN.contains(&area) => "write",
        "rm" | "delete" => "remove",
        "apply" | "create" | "update" | "start" | "stop" | "restart" | "cordon" | "uncordon"
        | "drain" | "add" | "transfer-leader" | "set-address" | "disable" | "enable"
        | "set-quota" | "suspend" | "resume" | "rotate" | "advance" | "abort" => "write",
        other => other,
    };
    format!("compute:{area}:{word}")
}

fn input(asked: &CanI) -> Value {
    let (kind, id) = asked.resource.split_once('/').unwrap_or((&asked.resource, ""));
    let area = area(kind);
    let kind = if SINGULAR.contains(&area.as_str()) { &area } else { area.trim_end_matches('s') };
    let mut resource = json!({ "kind": kind, "id": id });
    if let Some(tenant) = &asked.tenant {
        resource["tenant"] = json!(tenant);
    }
    json!({ "action": action(&asked.verb, &area), "resource": resource })
}

impl CanI {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let call = Call::post(format!("{BASE}/auth/can-i")).json(input(&self));
        let answer = session.client()?.call(call).await?.body;
        let is_allowed = answer.pointer("/allowed") == Some(&Value::Bool(true));
        match session.format() {
            Format::Json | Format::Yaml => {
                output::data(output::render_value(session.format(), &answer)?.as_bytes())?;
            }
            _ => output::data(if is_allowed { b"yes\n" } else { b"no\n" })?,
        }
        if is_allowed {
            return Ok(());
        }
        let refused = Failure::new(Exit::Denied, cell(&answer, "/why"));
        Err(match text(&answer, "/hint") {
            Some(hint) => refused.hint(hint),
            None => refused,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(verb: &str, resource: &str, tenant: Option<&str>) -> Value {
        let tenant = tenant.map(str::to_owned);
        input(&CanI { verb: verb.to_owned(), resource: resource.to_owned(), tenant })
    }

    #[test]
    fn what_people_write_is_what_authorization_calls_it() {
        for (verb, resource, action) in [
            ("read", "nodes", "compute:nodes:read"),
            ("ls", "node", "compute:nodes:read"),
            ("cordon", "node/web-1", "compute:nodes:write"),
            ("rm", "workload/web", "compute:workloads:remove"),
            ("apply", "wl", "compute:workloads:write"),
            ("logs", "instances", "compute:instances:logs"),
            ("create", "token", "compute:join-tokens:write"),
            ("rm", "api-token", "compute:api-tokens:write"),
            ("backup", "cluster", "compute:cluster:backup"),
            ("scale", "wl/web", "compute:workloads:scale"),
            ("rm", "binding/ci.viewer", "compute:role-bindings:write"),
            ("disable", "principal", "compute:principals:write"),
            ("rm", "role", "compute:roles:write"),
            ("verify", "audit", "compute:audit:read"),
            ("nodes.cordon", "node", "nodes.cordon"),
            ("compute:acme:feed", "pets", "compute:acme:feed"),
        ] {
            assert_eq!(asked(verb, resource, None)["action"], action, "{verb} {resource}");
        }
    }

    #[test]
    fn a_thing_and_a_tenant_are_passed_on() {
        let one = asked("rm", "workload/web", Some("acme"));
        assert_eq!(one["resource"], json!({"kind": "workload", "id": "web", "tenant": "acme"}));
        let all = asked("read", "audit", None);
        assert_eq!(all["resource"], json!({"kind": "audit", "id": ""}));
    }
}
