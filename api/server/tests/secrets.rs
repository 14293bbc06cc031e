//! Secrets over the sessions of agents.

use std::{collections::BTreeMap, sync::Arc};

use palisade_contract::{
    Error, Result, SecretBytes, SecretRef,
    node_spec::{NODE_SPECS, NodeSpecRecord},
    secrets::{KeptSecret, SecretFacts, Secrets},
};
use palisade_proto::agent::{Hello, Secret, SecretUse, SecretsWanted, down::Msg, up::Msg as UpMsg};
use palisade_state::{Store as _, Tx, View};
use serde_json::json;

use crate::support::{
    World,
    agent::{self, Node, Session},
    world,
};

/// Knows `db` of `acme` and of the cluster.
struct Vault;

impl Secrets for Vault {
    fn facts(&self, _: &View, _: &str, _: &SecretRef) -> Result<Option<SecretFacts>> {
        Ok(None)
    }

    fn open(&self, _: &View, tenant: &str, secret: &SecretRef) -> Result<SecretBytes> {
        match secret.secret.as_str() {
            "db" => Ok(SecretBytes::new(format!("canary of {tenant}").into_bytes())),
            other => Err(Error::not_found("secret", other)),
        }
    }

    fn blind(&self, _: &View, text: &str) -> Result<String> {
        Ok(text.to_owned())
    }

    fn require(&self, _: &mut Tx, _: &str, _: &SecretRef) -> Result<()> {
        Ok(())
    }

    fn keep(&self, _: &mut Tx, secret: &KeptSecret<'_>) -> Result<()> {
        Err(Error::internal(format!("nobody keeps {} here", secret.name)))
    }

    fn discard(&self, _: &mut Tx, _: &str, name: &str) -> Result<()> {
        Err(Error::internal(format!("nobody keeps {name} here")))
    }
}

/// A node whose spec names two secrets of `acme`.
async fn place() -> (World, Node) {
    let world = world().await;
    world.ports.secrets.fill(Arc::new(Vault)).unwrap();
    let node = agent::joined(&world).await;
    let named =
        |name: &str| json!({ "tenant": "acme", "secret": name, "version": 1, "revision": 7 });
    let instance = json!({
        "id": "in_01arz3ndektsv4rrffq69g5fav", "name": "a-1", "workload": "a", "specVersion": 1, "wanted": "up",
        "driver": "process.secrets", "command": ["a"], "stopSignal": "SIGTERM", "stopGraceMs": 1,
        "restart": { "mode": "always", "backoffInitialMs": 1, "backoffMaxMs": 1, "crashLoopThreshold": 1, "crashLoopWindowMs": 1 },
        "secretEnv": { "DB": named("db"), "OTHER": named("gone") },
    });
    let mut record = NodeSpecRecord { generation: 1, ..NodeSpecRecord::default() };
    let instance: palisade_contract::node::InstanceSpec = serde_json::from_value(instance).unwrap();
    record.spec.instances = BTreeMap::from([(instance.id.clone(), instance)]);
    let mut tx = Tx::new(world.store.memory.view());
    tx.put(&NODE_SPECS, &node.id.key(), &record).unwrap();
    assert!(world.store.memory.apply(tx.build().unwrap().into()).unwrap().is_applied());
    (world, node)
}

async fn ask(session: &mut Session, tenant: &str, name: &str) -> Secret {
    let asked = SecretUse { tenant: tenant.into(), name: name.into(), revision: 7 };
    let wanted = SecretsWanted { secrets: vec![asked.clone(), asked.clone()] };
    session.send(UpMsg::SecretsWanted(wanted)).await;
    match session.next().await {
        Some(Msg::Secret(secret)) => {
            assert_eq!(secret.asked, Some(asked));
            secret
        }
        other => panic!("no secret: {other:?}"),
    }
}

#[tokio::test]
async fn an_agent_gets_what_its_nodes_spec_names_and_nothing_else() {
    let (world, node) = place().await;
    let mut session = agent::open(&world, &node, Hello::default()).await.unwrap();
    let Some(Msg::NodeSpec(spec)) = session.next().await else { panic!("no spec") };
    let told = format!("{spec:?}");
    assert!(told.contains("db") && !told.contains("canary"), "SEC-12: {told}");
    let secret = ask(&mut session, "acme", "db").await;
    assert_eq!((secret.value.as_slice(), secret.code.as_str()), (&b"canary of acme"[..], ""));
    for (tenant, name) in [("", "db"), ("evil", "db"), ("acme", "other")] {
        let refused = ask(&mut session, tenant, name).await;
        assert_eq!(refused.code, "ACCESS_DENIED", "SEC-11: {tenant}/{name}");
        assert!(refused.value.is_empty(), "SEC-11");
    }
    let gone = ask(&mut session, "acme", "gone").await;
    assert_eq!((gone.code.as_str(), gone.value.is_empty()), ("NOT_FOUND", true));
    assert_eq!(session.beat(1).await, [], "each question is answered once");
}
