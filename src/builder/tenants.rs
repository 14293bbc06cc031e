//! No method lets anybody at what is of another tenant: each is called through the envelope, with the real iam module, by
//! whoever is bound to one, for things of another.

mod approvals;
mod approved;
mod fixtures;
mod lives;
mod past;
mod world;

use palisade_api::envelope::Caller;
use palisade_contract::{Code, MethodKind};
use serde_json::{Value, json};

pub(super) use self::world::{World, admin};
use self::{
    fixtures::{Case, Expect, fixtures},
    world::{INTRUDER, Things, VICTIM, somebody},
};

/// What nobody of another tenant may be told, if he did not say it himself.
fn canaries(victim: &Things) -> Vec<String> {
    // The first is in the name, the command and the password of its workload; the second in its node's.
    let mut all: Vec<String> =
        ["ledger", "vault-1", VICTIM].into_iter().map(str::to_owned).collect();
    all.extend(
        [
            &victim.workload,
            &victim.node,
            &victim.command,
            &victim.join_token,
            &victim.api_token,
            &victim.approval,
        ]
        .map(Clone::clone),
    );
    all.extend(victim.instances.iter().map(|one| one["id"].as_str().unwrap().to_owned()));
    all
}

struct Place {
    world: World,
    victim: Things,
    intruder: Things,
}

/// A world with two tenants' things in it.
pub(super) fn furnished() -> World {
    place().world
}

fn place() -> Place {
    let mut world = World::new();
    world.node("shared-1", "");
    let victim = world.tenant(VICTIM, "vault-1", "ledger");
    let intruder = world.tenant(INTRUDER, "attic-1", "web");
    Place { world, victim, intruder }
}

/// Everybody who can be bound to a tenant, and a cluster-admin whom a record of its own binds to one.
fn intruders(place: &Place) -> Vec<(&'static str, Caller)> {
    let mut all: Vec<(&str, Caller)> =
        place.intruder.credentials.iter().map(|(role, caller)| (*role, caller.clone())).collect();
    all.push(("cluster-admin", somebody("cluster-admin", INTRUDER)));
    all
}

fn text_of(answered: &palisade_contract::Result<Value>) -> String {
    match answered {
        Ok(value) => value.to_string(),
        Err(error) => format!("{} {:?} {:?}", error.detail, error.hint, error.problems),
    }
}

/// Why an answer is not the one that is due; `None`: it is.
fn wrong(case: &Case, answered: &palisade_contract::Result<Value>) -> Option<String> {
    let is_refused = answered
        .as_ref()
        .is_err_and(|error| matches!(error.code, Code::AccessDenied | Code::NotFound));
    let fits = match (&case.expect, answered) {
        (Expect::Refused, _) => is_refused,
        (Expect::Invalid, answered) => {
            is_refused || answered.as_ref().is_err_and(|error| error.code == Code::InvalidInput)
        }
        (Expect::Own, Ok(_)) => true,
        (Expect::Own, Err(_)) => false,
    };
    (!fits).then(|| format!("expected {:?}", case.expect))
}

#[test]
fn no_method_lets_anybody_at_what_is_of_another_tenant() {
    let place = place();
    let (world, canaries) = (&place.world, canaries(&place.victim));
    let (methods, mut found) = (world.registry.methods(), vec![]);
    let mut fixtures = fixtures(&place.victim);
    for (method, _) in methods {
        let name = method.full_name();
        let cases = fixtures.remove(name.as_str()).unwrap_or_default();
        assert!(!cases.is_empty(), "{name} has no fixture: write one, so that it is tried");
        let writes = matches!(method.kind, MethodKind::Mutation | MethodKind::Destructive);
        for (case, dry_run) in cases.iter().flat_map(|case| [(case, true), (case, false)]) {
            for (role, caller) in intruders(&place) {
                if dry_run && !writes {
                    continue;
                }
                let before = world.state();
                let answered = world.call(&caller, &name, &case.input, dry_run);
                let (asked, told) = (case.input.to_string(), text_of(&answered));
                let mut amiss: Vec<String> = wrong(case, &answered).into_iter().collect();
                let leaked =
                    canaries.iter().filter(|one| told.contains(*one) && !asked.contains(*one));
                amiss.extend(leaked.map(|one| format!("tells {one}")));
                if before != world.state() {
                    amiss.push("has changed something".to_owned());
                }
                found.extend(amiss.into_iter().map(|amiss| {
                    format!("{role}: {name} {asked} (dry run: {dry_run}): {amiss}: {told}")
                }));
            }
        }
    }
    assert!(fixtures.is_empty(), "fixtures of methods that are not: {:?}", fixtures.keys());
    assert!(found.is_empty(), "{} answers are wrong:\n{}", found.len(), found.join("\n"));
}

#[test]
fn of_the_past_nobody_learns_what_is_of_another_tenant() {
    let place = place();
    let (world, canaries) = (&place.world, canaries(&place.victim));
    let (mut fixtures, mut tried) = (fixtures(&place.victim), 0);
    for (method, _) in world.registry.methods().iter().filter(|(method, _)| method.past) {
        let name = method.full_name();
        for case in fixtures.remove(name.as_str()).unwrap() {
            for (role, caller) in intruders(&place) {
                let answered = world.call_past(&caller, &name, &case.input);
                let (asked, told) = (case.input.to_string(), text_of(&answered));
                assert_eq!(wrong(&case, &answered), None, "{role}: {name} {asked}: {told}");
                let leaked =
                    canaries.iter().find(|one| told.contains(*one) && !asked.contains(*one));
                assert_eq!(leaked, None, "{role}: {name} {asked}: {told}");
                tried += 1;
            }
        }
        // What there is to see of the own things is there.
        let own = &place.intruder.credentials["viewer"];
        let (now, then) = (world.done(own, &name, &own_of(&place, &name)), own_of(&place, &name));
        assert_eq!(world.call_past(own, &name, &then).unwrap(), now, "{name}");
    }
    assert!(tried > 100, "{tried}");
    for method in ["workloads.scale", "events.list", "system.version"] {
        let refused = world.call_past(&admin(), method, &json!({"workload": "web", "count": 9}));
        assert_eq!(refused.unwrap_err().code, Code::InvalidInput, "{method} has no past");
    }
}

/// An input that leads to what is the intruder's own.
fn own_of(place: &Place, method: &str) -> Value {
    match method {
        "workloads.get" => json!({"workload": "web"}),
        "instances.get" => json!({"instance": place.intruder.instances[0]["id"]}),
        "nodes.get" => json!({"node": place.intruder.node}),
        _ => json!({}),
    }
}

#[test]
fn what_an_intruder_is_refused_is_in_its_own_tenants_audit_and_in_no_others() {
    let place = place();
    let world = &place.world;
    let operator = &place.intruder.credentials["operator"];
    let input = json!({"workload": "ledger", "tenant": VICTIM});
    world.call(operator, "workloads.remove", &input, false).unwrap_err();
    let audit = |of: &Things| {
        let read = world.done(&of.credentials["viewer"], "audit.list", &json!({"from": 0}));
        read["items"].as_array().unwrap().clone()
    };
    let refused = |one: &&Value| one["outcome"] == "ACCESS_DENIED";
    assert_eq!(audit(&place.victim).iter().filter(refused).count(), 0);
    let own = audit(&place.intruder);
    let own: Vec<&Value> = own.iter().filter(refused).collect();
    let [record] = own.as_slice() else { panic!("{own:?}") };
    assert_eq!(record["resource"], format!("workload/ledger of tenant {VICTIM}"));
    assert_eq!(record["tenant"], INTRUDER);
}

#[test]
fn a_tenants_viewer_sees_the_version_and_what_is_its_tenants() {
    let place = place();
    let (world, viewer) = (&place.world, &place.victim.credentials["viewer"]);
    // Somebody who is bound to none changes it by its id, and does not say whose it is.
    let scale = json!({"workload": place.victim.workload, "count": 1});
    world.done(&admin(), "workloads.scale", &scale);
    let names = |method: &str, field: &str| -> Vec<String> {
        let read = world.done(viewer, method, &json!({}));
        let items = read["items"].as_array().unwrap().iter();
        items.map(|one| one[field].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("workloads.list", "name"), ["ledger"]);
    assert_eq!(names("instances.list", "workload"), ["ledger", "ledger"]);
    assert_eq!(names("nodes.list", "name"), ["vault-1"]);
    assert_eq!(names("commands.list", "id"), [place.victim.command.as_str()]);
    assert_eq!(names("joinTokens.list", "id"), [place.victim.join_token.as_str()]);
    for kind in ["node.joined", "workload.applied", "api-token.created"] {
        assert!(names("events.list", "kind").contains(&kind.to_owned()), "no {kind}");
    }
    assert!(names("events.list", "tenant").iter().all(|tenant| tenant == VICTIM));
    for method in ["workloads.apply", "workloads.scale"] {
        assert!(names("audit.list", "method").contains(&method.to_owned()), "no {method}");
    }
    assert!(names("audit.list", "tenant").iter().all(|tenant| tenant == VICTIM));
    for method in ["system.version", "cluster.trust", "auth.whoami"] {
        world.done(viewer, method, &json!({}));
    }
    for method in ["system.selfCheck", "cluster.status", "cluster.shards", "audit.verify"] {
        let refused = world.call(viewer, method, &json!({}), false).unwrap_err();
        assert_eq!(refused.code, Code::AccessDenied, "{method}");
        assert!(refused.hint.unwrap().contains("the cluster's"), "{method}");
    }
}

#[test]
fn why_a_workload_waits_is_not_told_with_nodes_of_other_tenants() {
    let place = place();
    let (world, canaries) = (&place.world, canaries(&place.victim));
    let operator = &place.intruder.credentials["operator"];
    for includes in [json!([]), json!(["vault-1"])] {
        let spec = json!({
            "workload": "big", "name": "big", "count": 1, "task": {"command": ["/bin/true"]},
            "resources": {"cpumem": {"cpu-request": 64}}, "placement": {"includes": includes},
        });
        let planned = world.done(operator, "workloads.apply", &spec);
        world.settle();
        let shown = world.done(operator, "workloads.get", &json!({"workload": "big"}));
        let events = world.done(operator, "events.list", &json!({}));
        for told in [&planned, &shown, &events] {
            let told = told.to_string();
            let misfits = told.contains("attic-1") || told.contains("no such node");
            let leaked = canaries.iter().find(|one| {
                // Of the node that was asked for, no more is said than that it is not there.
                told.contains(*one) && !(includes != json!([]) && *one == "vault-1")
            });
            assert_eq!(leaked, None, "{told}");
            assert!(misfits, "{told}");
            assert!(!told.contains("another tenant"), "{told}");
        }
        world.done(operator, "workloads.remove", &json!({"workload": "big"}));
        world.settle();
    }
}

#[test]
fn can_i_answers_as_the_call_itself_would() {
    let place = place();
    let world = &place.world;
    let mut callers = intruders(&place);
    for role in ["viewer", "operator", "cluster-admin"] {
        callers.push((role, somebody(role, "")));
    }
    let allowed = |caller: &Caller, method: &str, tenant: Option<&str>| {
        let mut asked = json!({"action": method, "resource": {}});
        if let Some(tenant) = tenant {
            asked["resource"]["tenant"] = json!(tenant);
        }
        let answer = world.done(caller, "auth.canI", &asked);
        assert!(answer["why"].as_str().unwrap().contains("compute:"), "{answer}");
        answer["allowed"].as_bool().unwrap()
    };
    for (method, _) in world.registry.methods() {
        let name = method.full_name();
        let takes_tenant = palisade_contract::fields::names(&method).contains("tenant");
        for (role, caller) in &callers {
            for tenant in [None, Some(INTRUDER), Some(VICTIM), Some("")] {
                let input = match tenant {
                    Some(tenant) if takes_tenant => json!({ "tenant": tenant }),
                    _ => json!({}),
                };
                // What is missing in the input is found before anybody is asked, so the wrong ones tell nothing.
                let called = world.call(caller, &name, &input, true);
                let Err(error) = &called else {
                    assert!(allowed(caller, &name, tenant), "{role} {name} {tenant:?}");
                    continue;
                };
                if error.code == Code::AccessDenied {
                    assert!(!allowed(caller, &name, tenant), "{role} {name} {tenant:?}");
                }
            }
        }
    }
    let asked = json!({"action": "compute:nodes:wirte"});
    let refused = world.call(&admin(), "auth.canI", &asked, false).unwrap_err();
    assert_eq!(refused.problems[0].pointer, "/action");
    assert!(refused.problems[0].message.contains("compute:nodes:write"), "{refused:?}");
    // A thing to which it is never done is refused, and no method's own kind is.
    let asked = json!({"action": "nodes.cordon", "resource": {"kind": "workload", "id": "web"}});
    let refused = world.call(&admin(), "auth.canI", &asked, false).unwrap_err();
    assert_eq!(refused.problems[0].pointer, "/resource/kind");
    assert_eq!(refused.problems[0].message, "nodes.cordon is done to node, not to workload");
    for (method, _) in world.registry.methods() {
        let kind = (method.resource)(&json!({})).kind;
        for action in [method.full_name(), method.action.clone()] {
            world.done(
                &admin(),
                "auth.canI",
                &json!({"action": action, "resource": {"kind": kind}}),
            );
        }
    }
}
