//! Destructive calls of all modules, held by the envelope where their tenant asks for approvals (`QUO-6`).

use palisade_api::envelope::{CallOptions, Caller};
use palisade_contract::{Handler, MethodKind};
use serde_json::{Value, json};

use super::{
    Place, place,
    world::{Things, VICTIM, World, admin},
};

/// All rows but those of what is held.
fn rows(world: &World) -> Vec<String> {
    world.rows().into_iter().filter(|row| !row.starts_with("approvals")).collect()
}

/// A place whose victim asks for approvals of everything.
fn asking() -> Place {
    let place = place();
    place.world.done(&admin(), "approvalPolicies.set", &json!({"tenant": VICTIM, "mode": "on"}));
    place
}

/// An input with which a destructive method changes something of the victim's, in the words of whoever is bound to none.
fn input(method: &str, victim: &Things) -> Value {
    match method {
        "workloads.remove" => json!({"workload": victim.workload}),
        "secrets.remove" => json!({"secret": "ledger-password", "tenant": VICTIM}),
        "subscriptions.remove" => json!({"subscription": "ledger-pager", "tenant": VICTIM}),
        "deadLetters.drop" => {
            json!({"subscription": "ledger-pager", "tenant": VICTIM, "lost": 1})
        }
        "nodes.remove" => json!({"node": victim.node, "force": true}),
        "tenants.remove" => json!({"tenant": VICTIM, "force": true}),
        other => panic!("{other} is destructive: write an input with which it changes something"),
    }
}

fn held(world: &World, caller: &Caller, method: &str, input: &Value) -> String {
    let answer = world.answer(caller, method, input, CallOptions::default()).unwrap();
    assert!(answer.1, "QUO-6: {method} was made: {}", answer.0);
    answer.0["id"].as_str().unwrap().to_owned()
}

#[test]
fn every_destructive_transaction_is_held_whoever_calls_it() {
    let Place { world, victim, .. } = asking();
    let mut tried = 0;
    for (method, _) in world.registry.methods() {
        let name = method.full_name();
        let waits = method.kind == MethodKind::Destructive
            && matches!(method.handler, Handler::Mutation(_));
        // Of a policy it depends on what it says: below. The others are the cluster's, and no tenant's to ask about.
        let elsewhere = ["approvalPolicies.set", "pki.advance", "pki.revoke"];
        if !waits || elsewhere.contains(&name.as_str()) {
            continue;
        }
        let (before, input) = (rows(&world), input(&name, &victim));
        let id = held(&world, &admin(), &name, &input);
        assert_eq!(rows(&world), before, "QUO-6: {name} has changed something");
        assert_eq!(held(&world, &admin(), &name, &input), id, "{name} is held once");
        let record = world.done(&admin(), "approvals.get", &json!({ "approval": id }));
        assert_eq!(record["tenant"], VICTIM, "{name} is about the victim's");
        assert_eq!(record["scope"][0]["kind"], name.as_str());
        // What bears its name by then, and is another tenant's, is not meant.
        assert_eq!(record["calls"][0]["input"]["tenant"], VICTIM, "{name}");
        tried += 1;
    }
    assert_eq!(tried, 6);
}

#[test]
fn a_key_is_revoked_once_others_agree_where_the_cluster_asks_for_that() {
    let Place { world, .. } = asking();
    let revoke = json!({"key": "7a".repeat(32), "reason": "laptop lost"});
    let made = world.answer(&admin(), "pki.revoke", &revoke, CallOptions::default()).unwrap();
    assert!(!made.1, "nobody asked for it of the cluster");
    world.done(&admin(), "approvalPolicies.set", &json!({"tenant": "_", "mode": "on"}));
    let revoke = json!({"key": "7b".repeat(32), "reason": "laptop lost"});
    let before = rows(&world);
    let id = held(&world, &admin(), "pki.revoke", &revoke);
    assert_eq!(rows(&world), before, "QUO-6");
    let record = world.done(&admin(), "approvals.get", &json!({ "approval": id }));
    assert_eq!(
        (&record["tenant"], &record["scope"][0]["kind"]),
        (&json!(""), &json!("pki.revoke"))
    );
    assert_eq!(record["calls"][0]["input"]["key"], revoke["key"]);
}

/// Somebody who may everything, and comes with a token of his.
fn operator(world: &mut World, name: &str) -> Caller {
    world.done(&admin(), "principals.create", &json!({ "name": name }));
    let bound = json!({"principal": name, "role": "cluster-admin"});
    world.done(&admin(), "roleBindings.create", &bound);
    world.principals_token(name).0
}

#[test]
fn nobody_lifts_the_clusters_own_policy_alone() {
    let Place { mut world, .. } = place();
    let [root, eve] = ["root", "eve"].map(|name| operator(&mut world, name));
    let set = |mode: &str| json!({"tenant": "_", "mode": mode});
    let mode = |world: &World| {
        let shown = world.done(&admin(), "approvalPolicies.get", &json!({"tenant": "_"}));
        shown["mode"].as_str().unwrap().to_owned()
    };
    world.done(&root, "approvalPolicies.set", &set("on"));
    // With the same key as before it is the same answer, whatever was done since.
    let off = |world: &World| {
        let idempotency_key = Some("once".to_owned());
        let options = CallOptions { idempotency_key, ..CallOptions::default() };
        world.answer(&root, "approvalPolicies.set", &set("off"), options).unwrap()
    };
    let (held, is_held) = off(&world);
    assert!(is_held && mode(&world) == "on", "QUO-6: {held}");
    world.call(&root, "approvalPolicies.set", &set("off"), true).unwrap();
    assert_eq!(mode(&world), "on", "a dry run does nothing");
    let approve = json!({"approval": held["id"], "digest": held["digest"]});
    world.call(&root, "approvals.approve", &approve, false).unwrap_err();
    assert_eq!(world.done(&eve, "approvals.approve", &approve)["state"], "released");
    assert_eq!(mode(&world), "off");
    world.done(&eve, "approvalPolicies.set", &set("on"));
    assert_eq!(off(&world), (held, true), "it is not done by a retry");
    assert_eq!(mode(&world), "on");
}

#[test]
fn what_was_held_is_done_when_it_is_approved() {
    let Place { world, victim, .. } = asking();
    let [ada, bob] = ["operator", "tenant-admin"].map(|role| &victim.credentials[role]);
    let remove = json!({"workload": "ledger"});
    let id = held(&world, ada, "workloads.remove", &remove);
    let record = world.done(bob, "approvals.get", &json!({ "approval": id }));
    let approve = json!({"approval": id, "digest": record["digest"]});
    world.call(ada, "approvals.approve", &approve, false).unwrap_err();
    assert_eq!(world.done(bob, "approvals.approve", &approve)["state"], "released");
    let removing =
        |row: &String| row.starts_with("workloads ") && row.contains("\"removing\":true");
    assert!(world.rows().iter().any(removing));
}

#[test]
fn an_answer_under_a_key_stays_that_it_was_held() {
    let Place { world, victim, .. } = asking();
    let ada = &victim.credentials["operator"];
    let call = || {
        let options =
            CallOptions { idempotency_key: Some("once".to_owned()), ..CallOptions::default() };
        world.answer(ada, "workloads.remove", &json!({"workload": "ledger"}), options).unwrap()
    };
    let first = call();
    assert!(first.1);
    assert_eq!(call(), first);
    assert_ne!(first.0["revision"], 0);
    let audit = world.done(&victim.credentials["viewer"], "audit.list", &json!({"from": 0}));
    let of_it = |one: &&Value| one["method"] == "workloads.remove";
    let all: Vec<&Value> = audit["items"].as_array().unwrap().iter().filter(of_it).collect();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0]["outcome"], "held");
}

#[test]
fn what_is_refused_or_only_looked_at_is_not_held() {
    let Place { world, victim, .. } = asking();
    let ada = &victim.credentials["operator"];
    let remove = json!({"workload": "ledger"});
    let before = world.state();
    let dry = world.call(ada, "workloads.remove", &remove, true).unwrap();
    assert_eq!(dry["name"], "ledger");
    world.call(ada, "workloads.remove", &json!({"workload": "none"}), false).unwrap_err();
    world.call(&victim.credentials["viewer"], "workloads.remove", &remove, false).unwrap_err();
    assert_eq!(world.state(), before);
}

#[test]
fn what_another_tenant_asks_for_is_its_own_matter() {
    let Place { world, intruder, .. } = asking();
    let operator = &intruder.credentials["operator"];
    let remove = json!({"workload": "web"});
    let answer = world.answer(operator, "workloads.remove", &remove, CallOptions::default());
    assert!(!answer.unwrap().1, "nobody there asked for it");
}

#[test]
fn a_tenants_own_admin_does_not_let_himself_off() {
    let Place { world, victim, .. } = asking();
    let tess = &victim.credentials["tenant-admin"];
    let set = |caller: &Caller, policy: &Value| {
        let mut policy = policy.clone();
        policy["tenant"] = json!(VICTIM);
        world.answer(caller, "approvalPolicies.set", &policy, CallOptions::default()).unwrap().1
    };
    let more = json!([{"size": 1, "required": 2}, {"size": 20, "required": 3}]);
    let stricter = json!({"mode": "on", "thresholds": more});
    assert!(!set(tess, &stricter), "more may be asked for by whoever may ask");
    let fewer = json!({"mode": "on", "thresholds": [{"size": 1, "required": 1}]});
    let narrower = json!({"mode": "on", "thresholds": more, "kinds": ["nodes.remove"]});
    for weaker in [&json!({"mode": "off"}), &fewer, &narrower] {
        assert!(set(tess, weaker), "QUO-6: {weaker}");
    }
    assert!(!set(&admin(), &json!({"mode": "off"})), "the cluster's admin is the way out");
}
