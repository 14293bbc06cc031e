//! Secrets in environments: named, never held.

use std::sync::Mutex;

use palisade_contract::{
    Code, SecretBytes, SecretRef,
    secrets::{KeptSecret, SecretFacts, SecretUse, Secrets},
};
use palisade_state::{Table, View};

use super::*;

/// A row for each secret, which the tests' vault reads.
const THERE: Table<String, u64> = Table::new("test_secrets", &[]);

/// Knows the secrets whose rows are there, and counts who opens one.
#[derive(Default)]
struct Vault(Mutex<u32>);

impl Secrets for Vault {
    fn facts(&self, view: &View, tenant: &str, secret: &SecretRef) -> Result<Option<SecretFacts>> {
        let found = THERE.get(view, &format!("{tenant}/{}", secret.secret))?;
        // As long as its version says.
        let facts = |version: u64| SecretFacts {
            version,
            revision: version * 100,
            bytes: usize::try_from(version).unwrap(),
        };
        Ok(found.map(|found| facts(found.value)))
    }

    fn open(&self, _: &View, _: &str, _: &SecretRef) -> Result<SecretBytes> {
        *self.0.lock().unwrap() += 1;
        Ok(SecretBytes::new(b"canary".to_vec()))
    }

    fn blind(&self, _: &View, text: &str) -> Result<String> {
        Ok(text.to_owned())
    }

    fn require(&self, tx: &mut Tx, tenant: &str, secret: &SecretRef) -> Result<()> {
        let found = tx.get(&THERE, &format!("{tenant}/{}", secret.secret))?;
        found.map(drop).ok_or_else(|| Error::not_found("secret", &secret.secret))
    }

    fn keep(&self, _: &mut Tx, secret: &KeptSecret<'_>) -> Result<()> {
        Err(Error::internal(format!("nobody keeps {} here", secret.name)))
    }

    fn discard(&self, _: &mut Tx, _: &str, name: &str) -> Result<()> {
        Err(Error::internal(format!("nobody keeps {name} here")))
    }
}

fn world() -> World {
    let world = World::new(&["a"]);
    world.bench.context.ports.secrets.fill(Arc::new(Vault::default())).unwrap();
    world
}

fn put(world: &World, key: &str, version: u64) {
    let mut tx = Tx::new(world.bench.view());
    tx.put(&THERE, &key.to_owned(), &version).unwrap();
    assert!(world.bench.store.apply(tx.build().unwrap().into()).unwrap().is_applied());
}

/// The node's agent is one that knows secrets.
fn teach(world: &World) {
    let kinds = [palisade_capacity::NODES_KIND];
    world.bench.change_node("a", &kinds, |node| node.facts.drivers.push("process.secrets".into()));
}

fn secretive(name: &str, tenant: &str, secret: &str) -> Value {
    let task = json!({
        "command": ["server"], "env": { "MODE": "fast", "DB/URL": { "secret": secret } },
    });
    with(web(1), &json!({ "name": name, "tenant": tenant, "task": task }))
}

fn users(world: &World, tenant: &str, secret: &str) -> (Vec<String>, usize) {
    let mut tx = Tx::new(world.bench.view());
    let secret = SecretRef { secret: secret.to_owned() };
    let users = world.module.secret_users(&mut tx, tenant, &secret).unwrap();
    (users.by.into_iter().collect(), users.nodes.len())
}

#[test]
fn secrets_that_fit_into_no_environment_together_are_refused() {
    let world = world();
    put(&world, "/half", 512 * 1024);
    put(&world, "/byte", 1);
    let env = |names: &[&str]| {
        let named = names.iter().map(|name| (format!("OF_{name}"), json!({"secret": name[..4]})));
        let env: serde_json::Map<String, Value> = named.collect();
        let mut input = with(web(1), &json!({"task": {"command": ["server"], "env": env}}));
        input["workload"] = json!("web");
        world.call("workloads.apply", input)
    };
    env(&["half-1", "half-2"]).unwrap();
    let refused = env(&["half-1", "half-2", "byte"]).unwrap_err();
    assert_eq!(refused.code, Code::InvalidInput);
    assert_eq!(refused.problems[0].pointer, "/task/env", "{refused:?}");
}

#[test]
fn a_secret_that_is_not_there_is_refused_where_it_is_named() {
    let world = world();
    put(&world, "/db", 1);
    put(&world, "evil/db", 1);
    let mut input = secretive("web", "acme", "db");
    input["workload"] = json!("web");
    let refused = world.call("workloads.apply", input.clone()).unwrap_err();
    assert_eq!(refused.code, Code::InvalidInput);
    let [problem] = refused.problems.as_slice() else { panic!("{refused:?}") };
    assert_eq!(problem.pointer, "/task/env/DB~1URL/secret");
    assert!(problem.message.contains("palisade secret set db --tenant acme"), "{problem:?}");
    input["task"]["env"]["DB/URL"] = json!({ "secret": "No Name" });
    let method = world.module.methods().into_iter().find(|m| m.full_name() == "workloads.apply");
    let refused = (method.unwrap().validate)(&input).unwrap_err();
    assert_eq!(refused.problems[0].pointer, "/task/env/DB~1URL/secret");
    input["task"]["env"]["DB/URL"] = json!(5);
    let method = world.module.methods().into_iter().find(|m| m.full_name() == "workloads.apply");
    let refused = (method.unwrap().validate)(&input).unwrap_err();
    assert_eq!(refused.problems[0].message, "must be of type string or object, is 5");
    put(&world, "acme/db", 1);
    world.apply(secretive("web", "acme", "db"));
}

#[test]
fn a_node_is_told_which_version_of_a_secret_and_needs_to_know_of_secrets() {
    let world = world();
    put(&world, "acme/db", 3);
    world.apply(secretive("web", "acme", "db"));
    world.settle(&["a"]);
    let why = world.workload("web")["status"]["misfits"].to_string();
    assert!(why.contains("process.secrets"), "a node that does not know secrets takes none: {why}");
    teach(&world);
    world.settle(&["a"]);
    assert_eq!(world.phase("web"), "running");
    let told = world.told("a");
    let instance = told.spec.instances.values().next().unwrap();
    assert_eq!(instance.driver, "process.secrets");
    assert_eq!(instance.env.get("MODE").unwrap(), "fast");
    let (tenant, secret) = ("acme".to_owned(), "db".to_owned());
    let use_of = SecretUse { tenant, secret, version: 3, revision: 300 };
    assert_eq!(instance.secret_env.get("DB/URL"), Some(&use_of));
    // A new version is told, and restarts nothing.
    let before = instance.spec_version;
    put(&world, "acme/db", 4);
    let id = world.node_id("a");
    world.bench.commit(|tx| palisade_contract::node_spec::invalidate(tx, &id));
    world.settle(&["a"]);
    let again = world.told("a");
    let instance = again.spec.instances.values().next().unwrap();
    assert_eq!((instance.secret_env["DB/URL"].revision, instance.spec_version), (400, before));
    assert!(again.generation > told.generation);
}

#[test]
fn who_uses_a_secret_is_known_until_the_last_instance_with_it_is_gone() {
    let world = world();
    teach(&world);
    put(&world, "acme/db", 1);
    put(&world, "acme/other", 1);
    assert_eq!(users(&world, "acme", "db").0, Vec::<String>::new());
    world.apply(secretive("web", "acme", "db"));
    assert_eq!(users(&world, "acme", "db"), (vec!["workload/web".to_owned()], 0));
    world.settle(&["a"]);
    assert_eq!(users(&world, "acme", "db"), (vec!["workload/web".to_owned()], 1));
    assert_eq!(users(&world, "", "db").0, Vec::<String>::new());
    // The new version's instance is not healthy: the old one goes on, with the old secret.
    world.answer(|name| match name {
        "web-1" => InstancePhase::Healthy,
        _ => InstancePhase::Starting,
    });
    world.apply(secretive("web", "acme", "other"));
    world.settle(&["a"]);
    assert_eq!(users(&world, "acme", "other").0, ["workload/web"]);
    assert_eq!(users(&world, "acme", "db").0, ["workload/web"], "SEC-6");
    world.answer(|_| InstancePhase::Healthy);
    world.settle(&["a"]);
    world.settle(&["a"]);
    assert_eq!(users(&world, "acme", "db").0, Vec::<String>::new());
}

#[test]
fn who_removes_a_secret_notices_who_begins_to_use_it() {
    let world = world();
    put(&world, "acme/db", 1);
    let mut removal = Tx::new(world.bench.view());
    let secret = SecretRef { secret: "db".to_owned() };
    let users = world.module.secret_users(&mut removal, "acme", &secret).unwrap();
    assert!(users.by.is_empty());
    removal.delete(&THERE, &"acme/db".to_owned()).unwrap();
    world.apply(secretive("web", "acme", "db"));
    let outcome = world.bench.store.apply(removal.build().unwrap().into()).unwrap();
    assert!(!outcome.is_applied(), "SEC-6: {outcome:?}");
}
