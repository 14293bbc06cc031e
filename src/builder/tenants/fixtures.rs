//! How each method is tried: with inputs that lead to what is of another tenant.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::world::{INTRUDER, Things, VICTIM};

/// What is to be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// It is denied, or there is no such thing.
    Refused,
    /// It is refused, or the input is not one.
    Invalid,
    /// What is the caller's own, or everybody's.
    Own,
}

/// A way to try a method.
#[derive(Clone, Debug)]
pub struct Case {
    pub input: Value,
    pub expect: Expect,
}

const NO_SECRET: &str = "0000000000000000000000000000000000000000000000000000000000000000";

fn refused(inputs: impl IntoIterator<Item = Value>) -> Vec<Case> {
    inputs.into_iter().map(|input| Case { input, expect: Expect::Refused }).collect()
}

fn one(expect: Expect, input: Value) -> Vec<Case> {
    vec![Case { input, expect }]
}

/// A thing by each of its names, without a tenant, with its own, and with none.
fn of(field: &str, names: &[&str], extra: &Value) -> Vec<Case> {
    let tenants = [None, Some(VICTIM), Some("")];
    let with = |name: &str, tenant: Option<&str>| {
        let mut input = extra.clone();
        input[field] = json!(name);
        if let Some(tenant) = tenant {
            input["tenant"] = json!(tenant);
        }
        input
    };
    refused(names.iter().flat_map(|name| tenants.map(|tenant| with(name, tenant))))
}

/// A list: the own part of it, and that of others.
fn list(own: Expect, extra: impl IntoIterator<Item = Value>) -> Vec<Case> {
    let mut cases = refused([json!({"tenant": VICTIM}), json!({"tenant": ""})]);
    cases.extend(refused(extra));
    cases.push(Case { input: json!({}), expect: own });
    cases.push(Case { input: json!({"tenant": null}), expect: own });
    cases
}

fn workloads(victim: &Things, all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let names = ["ledger", victim.workload.as_str()];
    for method in ["get", "start", "stop", "restart", "remove"] {
        let name: &'static str = match method {
            "get" => "workloads.get",
            "start" => "workloads.start",
            "stop" => "workloads.stop",
            "restart" => "workloads.restart",
            _ => "workloads.remove",
        };
        all.insert(name, of("workload", &names, &json!({})));
    }
    all.insert("workloads.history", of("workload", &names, &json!({})));
    all.insert("workloads.scale", of("workload", &names, &json!({"count": 7})));
    let task = json!({"command": ["/bin/true"]});
    let mut apply = of("workload", &["ledger"], &json!({"name": "ledger", "task": task}));
    // Without a tenant it would be one of the caller's own, which has that name too.
    apply.retain(|case| case.input.get("tenant").is_some());
    let strange = json!({"workload": victim.workload, "name": "mine", "task": task});
    apply.extend(one(Expect::Invalid, strange));
    all.insert("workloads.apply", apply);
    all.insert("workloads.list", list(Expect::Own, [json!({"pool": "default", "tenant": VICTIM})]));

    let first = &victim.instances[0];
    let names = [first["id"].as_str().unwrap(), first["name"].as_str().unwrap()];
    all.insert("instances.history", of("instance", &names, &json!({})));
    all.insert("instances.get", of("instance", &names, &json!({})));
    all.insert("instances.signal", of("instance", &names, &json!({"signal": "HUP"})));
    all.insert("instances.logs", of("instance", &names, &json!({"tail": 5})));
    let by = [
        json!({"workload": "ledger"}),
        json!({"workload": victim.workload}),
        json!({"node": "vault-1"}),
        json!({"node": victim.node}),
        json!({"node": "no-such-node"}),
    ];
    all.insert("instances.list", list(Expect::Own, by));
}

fn nodes(victim: &Things, all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let names = ["vault-1", victim.node.as_str(), "shared-1"];
    for name in ["nodes.get", "nodes.history", "nodes.cordon", "nodes.uncordon"] {
        all.insert(name, of("node", &names, &json!({})));
    }
    all.insert("nodes.ping", of("node", &names, &json!({})));
    all.insert("nodes.remove", of("node", &names, &json!({"force": true})));
    all.insert("nodes.list", list(Expect::Own, [json!({"tenant": VICTIM, "phase": "ready"})]));
    let made = json!({"secretSha256": NO_SECRET, "tenant": VICTIM});
    all.insert("joinTokens.create", refused([made]));
    all.insert("joinTokens.list", list(Expect::Own, []));
    let revoke = of("token", &[victim.join_token.as_str()], &json!({}));
    all.insert("joinTokens.revoke", revoke);
}

fn commands(victim: &Things, all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let ids = [victim.command.as_str()];
    all.insert("commands.get", of("command", &ids, &json!({})));
    all.insert("commands.cancel", of("command", &ids, &json!({})));
    let by = [
        json!({"node": "vault-1"}),
        json!({"node": victim.node}),
        json!({"node": "shared-1"}),
        json!({"node": "no-such-node"}),
        json!({"kind": "agent.ping", "tenant": VICTIM}),
    ];
    all.insert("commands.list", list(Expect::Own, by));
}

fn cluster(all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let address = "10.0.0.4:7411";
    for (name, input) in [
        ("cluster.addReplica", json!({"csr": "x", "peerAddr": address, "apiAddr": address})),
        ("cluster.backup", json!({})),
        ("cluster.backups", json!({})),
        ("cluster.drain", json!({"replica": 1})),
        ("cluster.removeReplica", json!({"replica": 1})),
        ("cluster.setAddress", json!({"replica": 1, "apiAddr": address})),
        ("cluster.shards", json!({})),
        ("cluster.status", json!({})),
        ("cluster.transferLeader", json!({})),
        ("system.selfCheck", json!({})),
    ] {
        all.insert(name, refused([input]));
    }
    let key = NO_SECRET;
    for (name, input) in [
        ("pki.status", json!({})),
        ("pki.certificates", json!({})),
        ("pki.rotate", json!({})),
        ("pki.advance", json!({"force": true, "phase": "adding", "rotation": 1})),
        ("pki.abort", json!({})),
        ("pki.revoke", json!({"key": key})),
        ("pki.revocations", json!({})),
        ("pki.revocation", json!({"key": key})),
    ] {
        all.insert(name, refused([input]));
    }
    all.insert("cluster.trust", one(Expect::Own, json!({})));
    all.insert("system.version", one(Expect::Own, json!({})));
}

/// Who may do what in another tenant.
fn access(all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let bot = "ledger-bot";
    all.insert("principals.create", refused([json!({"name": "mine", "tenant": VICTIM})]));
    all.insert("principals.list", list(Expect::Own, []));
    all.insert("principals.get", of("principal", &[bot, "admin"], &json!({})));
    all.insert("principals.update", refused([json!({"principal": bot, "disabled": true})]));
    all.insert("principals.remove", refused([json!({"principal": bot})]));
    all.insert(
        "roleBindings.create",
        of("principal", &[bot, "nobody"], &json!({"role": "viewer"})),
    );
    let by = [json!({"principal": bot, "tenant": VICTIM})];
    let mut listed = list(Expect::Own, by);
    listed.extend(one(Expect::Own, json!({"principal": bot})));
    all.insert("roleBindings.list", listed);
    let bound = format!("{bot}.operator.{VICTIM}");
    for name in ["roleBindings.get", "roleBindings.remove"] {
        all.insert(name, of("binding", &[bound.as_str()], &json!({})));
    }
    let actions = json!(["compute:workloads:scale"]);
    all.insert("roles.create", refused([json!({"name": "mine", "actions": actions})]));
    all.insert("roles.list", one(Expect::Own, json!({})));
    all.insert("roles.get", one(Expect::Own, json!({"role": "operator"})));
    all.insert("roles.update", refused([json!({"role": "viewer", "actions": actions})]));
    all.insert("roles.remove", refused([json!({"role": "viewer"})]));
}

fn tenants(all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let own = || one(Expect::Own, json!({"tenant": INTRUDER}));
    all.insert("tenants.list", list(Expect::Own, []));
    for name in ["tenants.get", "tenants.usage"] {
        let mut cases = refused([VICTIM, ""].map(|tenant| json!({"tenant": tenant})));
        cases.extend(own());
        all.insert(name, cases);
    }
    // Nobody grants his own tenant anything either.
    let both = |extra: &Value| {
        refused([VICTIM, INTRUDER, ""].map(|tenant| {
            let mut input = extra.clone();
            input["tenant"] = json!(tenant);
            input
        }))
    };
    all.insert("tenants.create", refused(["mine", VICTIM].map(|name| json!({"name": name}))));
    all.insert("tenants.update", both(&json!({"quotas": {"instances": 1000}})));
    all.insert("tenants.suspend", both(&json!({"reason": "mine"})));
    all.insert("tenants.resume", both(&json!({})));
    all.insert("tenants.remove", both(&json!({"force": true})));
}

/// Of a secret of another tenant, of the cluster's keys, and of values that are not the caller's to set.
fn secrets(all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let names = ["ledger-password"];
    let mut set = of("secret", &names, &json!({"value": "mine"}));
    // Without a tenant it would be one of the caller's own.
    set.retain(|case| case.input.get("tenant").is_some());
    all.insert("secrets.set", set);
    all.insert("secrets.get", of("secret", &names, &json!({})));
    all.insert("secrets.remove", of("secret", &names, &json!({})));
    all.insert("secrets.list", list(Expect::Own, []));
    all.insert("secretKeys.list", refused([json!({})]));
    all.insert("secretKeys.rotate", refused([json!({})]));
}

/// Of what waits for approval in another tenant, and of what that one asks to be approved.
fn approvals(victim: &Things, all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let ids = [victim.approval.as_str()];
    all.insert("approvals.get", of("approval", &ids, &json!({})));
    all.insert("approvals.approve", of("approval", &ids, &json!({"digest": NO_SECRET})));
    for name in ["approvals.reject", "approvals.withdraw"] {
        all.insert(name, of("approval", &ids, &json!({"reason": "mine"})));
    }
    all.insert("approvals.list", list(Expect::Own, [json!({"state": "held", "tenant": VICTIM})]));
    let call = |input: Value| json!([{"method": "workloads.remove", "input": input}]);
    let strange = call(json!({"workload": "ledger", "tenant": VICTIM}));
    let own = call(json!({"workload": victim.workload}));
    all.insert(
        "approvals.create",
        refused([
            json!({"tenant": VICTIM, "calls": call(json!({"workload": "ledger"}))}),
            json!({"tenant": "", "calls": call(json!({"workload": "ledger"}))}),
            json!({"calls": strange}),
            json!({"calls": own}),
        ]),
    );
    all.insert("approvalPolicies.list", list(Expect::Own, []));
    let mut shown = refused([VICTIM, "_", ""].map(|tenant| json!({"tenant": tenant})));
    shown.extend(one(Expect::Own, json!({"tenant": INTRUDER})));
    all.insert("approvalPolicies.get", shown);
    let set = ["_", VICTIM].map(|tenant| json!({"tenant": tenant, "mode": "off"}));
    all.insert("approvalPolicies.set", refused(set));
}

/// Of a subscription of another tenant, and of one that would be sent its events.
fn subscriptions(all: &mut BTreeMap<&'static str, Vec<Case>>) {
    let names = ["ledger-pager"];
    let secret = format!("whsec_{}", "A".repeat(32));
    let made = json!({"url": "https://mine.test/", "secret": secret});
    let mut create = of("name", &["mine"], &made);
    create.extend(of("name", &names, &json!({"sink": "mine@1"})));
    create.extend(refused([json!({
        "name": "spy", "url": "https://mine.test/", "secret": secret, "ofTenant": VICTIM, "tenant": "",
    })]));
    // Without a tenant it would be one of the caller's own.
    create.retain(|case| case.input.get("tenant").is_some());
    create.extend(one(
        Expect::Invalid,
        json!({
            "name": "spy", "url": "https://mine.test/", "secret": secret, "ofTenant": VICTIM,
        }),
    ));
    all.insert("subscriptions.create", create);
    all.insert("subscriptions.list", list(Expect::Own, []));
    for name in [
        "subscriptions.get",
        "subscriptions.deliveries",
        "subscriptions.remove",
        "subscriptions.pause",
        "subscriptions.resume",
        "subscriptions.test",
        "deadLetters.list",
        "deadLetters.replay",
    ] {
        all.insert(name, of("subscription", &names, &json!({})));
    }
    all.insert("deadLetters.drop", of("subscription", &names, &json!({"lost": 1})));
    let url = json!({"url": "https://mine.test/"});
    all.insert("subscriptions.update", of("subscription", &names, &url));
    all.insert("subscriptions.rotate", of("subscription", &names, &json!({"secret": secret})));
}

/// The ways to try each method, by its name.
pub fn fixtures(victim: &Things) -> BTreeMap<&'static str, Vec<Case>> {
    let mut all = BTreeMap::new();
    workloads(victim, &mut all);
    nodes(victim, &mut all);
    commands(victim, &mut all);
    cluster(&mut all);
    access(&mut all);
    tenants(&mut all);
    secrets(&mut all);
    approvals(victim, &mut all);
    subscriptions(&mut all);
    let numbered = || {
        let mut cases = list(Expect::Own, [json!({"tenant": VICTIM, "from": 0})]);
        cases.extend(one(Expect::Own, json!({"from": 0, "limit": 1000})));
        cases.extend(one(Expect::Own, json!({"cursor": "0@memory"})));
        cases
    };
    all.insert("events.list", numbered());
    all.insert("audit.list", numbered());
    for name in ["audit.verify", "audit.key", "audit.checkpoints"] {
        all.insert(name, refused([json!({})]));
    }
    all.insert("audit.export", refused([json!({}), json!({"from": 1, "to": 1})]));
    let token = json!({"secretSha256": NO_SECRET, "name": "mine", "roles": ["operator"]});
    let of_tenant = |tenant: &str| {
        let mut token = token.clone();
        token["tenant"] = json!(tenant);
        token
    };
    let of_bot = json!({"secretSha256": NO_SECRET, "name": "mine", "principal": "ledger-bot"});
    all.insert("apiTokens.create", refused([token.clone(), of_tenant(VICTIM), of_bot]));
    all.insert("apiTokens.list", refused([json!({})]));
    let revoke = ["ledger-operator", victim.api_token.as_str()];
    all.insert("apiTokens.revoke", refused(revoke.map(|name| json!({"token": name}))));
    all.insert("auth.whoami", one(Expect::Own, json!({})));
    let asked = json!({"action": "workloads.get", "resource": {"id": "ledger", "tenant": VICTIM}});
    all.insert("auth.canI", one(Expect::Own, asked));
    all
}
