//! The module on the kernel in memory, with three voters of which the tests say what they have.

use futures::{FutureExt as _, executor::block_on};
use palisade_contract::{
    Code, Finding, MethodContext, MethodKind, Module, Principal, Result,
    method::Handler,
    node::NodePhase,
    pki::{Authorities, Ca, Leaf, Phase, ReplicaPki},
};
use palisade_state::Tx;
use palisade_testing::Bench;
use serde_json::{Value, json};

use crate::{
    PkiModule,
    records::{AUTHORITIES, CLUSTER, REPLICAS, REVOCATIONS},
    rotation,
};

const HOUR_MS: u64 = 3600 * 1000;
const YEAR_MS: u64 = 365 * 24 * HOUR_MS;

struct Place {
    bench: Bench,
    module: PkiModule,
}

/// A CA of which `n` is known.
fn ca(n: u8) -> Ca {
    Ca {
        key: format!("{n:02x}").repeat(32),
        key_id: format!("id{n}"),
        pem: format!("pem {n}"),
        ..Ca::default()
    }
}

/// A key of a leaf.
fn key(n: u8) -> String {
    format!("{n:02x}").repeat(32)
}

impl Place {
    fn new() -> Self {
        let module = PkiModule::default();
        let place = Self { bench: Bench::new(&[&module]), module };
        place.bench.store.set_voters(&[1, 2, 3]);
        for replica in 1..=3 {
            place.says(replica, 1, &[1], &[1]);
        }
        place.bench.settle();
        place
    }

    /// A replica says that CA `issuer` issued its certificate, and which CAs it trusts and holds.
    fn says(&self, replica: u64, issuer: u8, trusts: &[u8], holds: &[u8]) {
        self.says_with(replica, 0xa0 + u8::try_from(replica).unwrap(), issuer, (trusts, holds));
    }

    fn says_with(&self, replica: u64, own: u8, issuer: u8, (trusts, holds): (&[u8], &[u8])) {
        let keys = |all: &[u8]| all.iter().map(|n| ca(*n).key).collect();
        let not_after_ms = self.bench.view().clock().wall_ms + 5 * YEAR_MS;
        let leaf = Leaf { key: key(own), issuer: ca(issuer).key_id, not_after_ms };
        let report = ReplicaPki { leaf, trusts: keys(trusts), holds: keys(holds) };
        let port = self.bench.context.ports.certificates.get().unwrap();
        self.bench.commit(|tx| port.report(tx, replica, &ca(1), &report));
    }

    fn node_shows(&self, name: &str, own: u8, issuer: u8) {
        let id = self.bench.nodes.change(name, |node| node.keys = vec![key(own)]);
        let not_after_ms = self.bench.view().clock().wall_ms + 24 * HOUR_MS;
        let leaf = Leaf { key: key(own), issuer: ca(issuer).key_id, not_after_ms };
        let port = self.bench.context.ports.certificates.get().unwrap();
        self.bench.commit(|tx| port.node_seen(tx, &id, &leaf));
    }

    fn offers(&self, rotation: u64, new: u8) {
        let port = self.bench.context.ports.certificates.get().unwrap();
        self.bench.commit(|tx| port.offer(tx, rotation, &ca(new)));
    }

    fn row(&self) -> Authorities {
        AUTHORITIES.get(&self.bench.view(), &CLUSTER.to_owned()).unwrap().unwrap().value
    }

    /// The phase once the reconciler has done what it can.
    fn phase(&self) -> Phase {
        self.bench.settle();
        self.row().phase
    }

    /// Goes on without those that are waited for.
    fn force(&self) -> Result<Value> {
        let row = self.row();
        let input = json!({"force": true, "phase": row.phase, "rotation": row.rotation});
        self.call("pki.advance", &input)
    }

    fn waits_for(&self) -> Vec<String> {
        let status = self.call("pki.status", &json!({})).unwrap();
        let waits_for = status["rotation"]["waitsFor"].as_array().unwrap();
        waits_for.iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
    }

    fn is_refused(&self, key: &str) -> bool {
        let port = self.bench.context.ports.certificates.get().unwrap();
        let view = self.bench.view();
        let is_revoked = port.is_revoked(&view, key).unwrap();
        assert_eq!(is_revoked, port.refused(&view).unwrap().contains(key));
        is_revoked
    }

    fn findings(&self) -> Vec<Finding> {
        self.module.self_check(&self.bench.context, &self.bench.view()).unwrap()
    }

    /// Calls a method as the envelope does once it has let somebody through.
    fn call(&self, method: &str, input: &Value) -> Result<Value> {
        let methods = self.module.methods();
        let method = methods.iter().find(|one| one.full_name() == method).unwrap();
        (method.validate)(input)?;
        let principal =
            Principal { name: "token/test".into(), roles: vec![], tenant: String::new() };
        let context = self.bench.context.clone();
        let cx = MethodContext {
            context,
            principal,
            request_id: String::new(),
            dry_run: false,
            if_match: None,
        };
        match &method.handler {
            Handler::Query(run) => run(&cx, &self.bench.view(), input.clone()),
            Handler::Mutation(run) => {
                let mut answer = Value::Null;
                let built = block_on(cx.context.commit(|tx: &mut Tx| {
                    answer = run(&cx, tx, input.clone())?;
                    Ok(())
                }));
                built.map(|_| answer)
            }
            _ => panic!("no such handler here"),
        }
    }

    fn events(&self) -> Vec<String> {
        self.bench.view().events(0).map(|(_, event)| event.kind.to_string()).collect()
    }
}

#[test]
fn a_key_that_was_revoked_stays_so_and_nothing_takes_that_back() {
    let place = Place::new();
    let stolen = key(0x77);
    assert!(!place.is_refused(&stolen));
    let input = json!({"key": stolen, "reason": "laptop lost"});
    let answer = place.call("pki.revoke", &input).unwrap();
    assert_eq!(answer["revocations"][0]["status"], "refused");
    assert!(place.is_refused(&stolen), "PKI-3");
    assert_eq!(place.events().last().unwrap(), "pki.revoked");
    // Again, by somebody with another reason: it is as it was.
    place.call("pki.revoke", &json!({"key": stolen, "reason": "again"})).unwrap();
    let shown = place.call("pki.revocation", &json!({"key": stolen})).unwrap();
    assert_eq!(shown["reason"], "laptop lost");
    let told = place.events().into_iter().filter(|kind| kind == "pki.revoked").count();
    assert_eq!(told, 1, "PKI-3");
    place.bench.advance(60_000);
    place.bench.settle();
    assert!(place.is_refused(&stolen), "PKI-3");
    let names: Vec<_> = place.module.methods().iter().map(|method| method.full_name()).collect();
    assert!(!names.iter().any(|name| name.contains("unrevoke")), "{names:?}");
}

#[test]
fn what_the_logs_end_revokes_is_refused_before_the_view_says_so() {
    let place = Place::new();
    let port = place.bench.context.ports.certificates.get().unwrap();
    port.presume([key(0x77)].into());
    assert!(place.is_refused(&key(0x77)), "PKI-3");
    assert!(!place.is_refused(&key(0x78)));
    assert!(crate::refused(&place.bench.view()).unwrap().is_empty());
    // It was not committed after all.
    port.presume([].into());
    assert!(!place.is_refused(&key(0x77)));
}

#[test]
fn what_is_no_key_or_the_cas_is_not_revoked() {
    let place = Place::new();
    for input in [
        json!({}),
        json!({"key": "AB".repeat(32)}),
        json!({"key": "ab"}),
        json!({"key": key(1), "replica": 2}),
        json!({"key": key(9), "reason": "two\nlines"}),
    ] {
        assert_eq!(place.call("pki.revoke", &input).unwrap_err().code, Code::InvalidInput);
    }
    let refused = place.call("pki.revoke", &json!({"key": ca(1).key, "force": true})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    let unknown = place.call("pki.revoke", &json!({"node": "nobody"})).unwrap_err();
    assert_eq!(unknown.code, Code::NotFound);
}

#[test]
fn a_node_is_revoked_with_all_its_keys() {
    let place = Place::new();
    place.bench.node("n1", 1000, 1);
    place.bench.nodes.change("n1", |node| node.keys = vec![key(0x11), key(0x10)]);
    let answer = place.call("pki.revoke", &json!({"node": "n1", "reason": "stolen"})).unwrap();
    assert_eq!(answer["revocations"].as_array().unwrap().len(), 2);
    assert!(place.is_refused(&key(0x11)) && place.is_refused(&key(0x10)), "PKI-3");
    assert!(answer["revocations"][0]["holder"].as_str().unwrap().starts_with("node/"));
}

#[test]
fn the_key_of_a_member_is_refused_once_it_has_another_one_or_at_once_by_force() {
    let place = Place::new();
    let answer = place.call("pki.revoke", &json!({"replica": 2})).unwrap();
    assert_eq!(answer["revocations"][0]["status"], "waiting");
    let port = place.bench.context.ports.certificates.get().unwrap();
    let (two, three) = (key(0xa2), key(0xa3));
    assert!(!place.is_refused(&two));
    assert!(port.must_rekey(&place.bench.view(), 2, &two).unwrap());
    assert!(!port.must_rekey(&place.bench.view(), 3, &three).unwrap());
    assert_eq!(place.findings()[0].check, "pki.revoking");
    // It says the same key again, then another one.
    place.says(2, 1, &[1], &[1]);
    assert!(!place.is_refused(&two));
    place.says_with(2, 0xb2, 1, (&[1], &[1]));
    assert!(place.is_refused(&two), "PKI-3");
    assert_eq!(place.findings(), []);
    let forced = place.call("pki.revoke", &json!({"key": three, "force": true})).unwrap();
    assert_eq!(forced["revocations"][0]["status"], "refused");
    assert!(place.is_refused(&three));
}

#[test]
fn so_many_members_are_not_cut_off_that_no_quorum_is_left() {
    let place = Place::new();
    let by_force = |replica: u64| json!({"replica": replica, "force": true});
    place.call("pki.revoke", &by_force(1)).unwrap();
    for input in [by_force(2), json!({"key": key(0xa3), "force": true})] {
        let refused = place.call("pki.revoke", &input).unwrap_err();
        assert_eq!(refused.code, Code::InvalidState);
        assert!(refused.detail.contains("replica/1, replica/"), "{}", refused.detail);
        assert!(refused.hint.unwrap().contains("without --force"));
    }
    assert!(!place.is_refused(&key(0xa2)) && !place.is_refused(&key(0xa3)));
    // One that waits is not cut off; by force it would be.
    let waits = place.call("pki.revoke", &json!({"replica": 2})).unwrap();
    assert_eq!(waits["revocations"][0]["status"], "waiting");
    assert_eq!(place.call("pki.revoke", &by_force(2)).unwrap_err().code, Code::InvalidState);
    place.says_with(2, 0xb2, 1, (&[1], &[1]));
    assert!(place.is_refused(&key(0xa2)));
    // What is nobody's present key is refused whatever else is, and the rest once the one that is cut off is out.
    place.call("pki.revoke", &json!({"key": key(0x77), "force": true})).unwrap();
    place.bench.store.set_voters(&[2, 3, 4]);
    place.call("pki.revoke", &by_force(3)).unwrap();
    place.bench.store.set_voters(&[2]);
    assert_eq!(place.call("pki.revoke", &by_force(2)).unwrap_err().code, Code::InvalidState);
}

#[test]
fn a_revocation_is_for_ever_and_may_be_held_for_approval() {
    let methods = Place::new().module.methods();
    let revoke = methods.iter().find(|method| method.full_name() == "pki.revoke").unwrap();
    assert_eq!(revoke.kind, MethodKind::Destructive);
}

#[test]
fn the_key_of_a_member_that_left_before_it_made_another_one_is_refused() {
    let place = Place::new();
    place.call("pki.revoke", &json!({"replica": 3})).unwrap();
    place.bench.jobs(rotation::KIND).tick();
    assert!(!place.is_refused(&key(0xa3)));
    place.bench.store.set_voters(&[1, 2]);
    place.bench.advance(12 * HOUR_MS);
    place.bench.jobs(rotation::KIND).tick();
    assert!(place.is_refused(&key(0xa3)), "PKI-3");
    assert_eq!(place.findings(), []);
}

#[test]
fn a_replacement_goes_on_only_when_everybody_has_confirmed() {
    let place = Place::new();
    place.bench.node("n1", 1000, 1);
    place.node_shows("n1", 0x11, 1);
    place.call("pki.rotate", &json!({})).unwrap();
    assert_eq!(place.phase(), Phase::Adding);
    place.offers(1, 2);
    assert_eq!(place.phase(), Phase::Trusting);
    assert_eq!(place.row().issuing.key, ca(1).key);
    for replica in [1, 2] {
        place.says(replica, 1, &[1, 2], &[1, 2]);
    }
    // It trusts the new one, and does not hold its key; then the other way round.
    place.says(3, 1, &[1, 2], &[1]);
    assert_eq!(place.phase(), Phase::Trusting, "PKI-5");
    place.says(3, 1, &[1], &[1, 2]);
    assert_eq!(place.phase(), Phase::Trusting, "PKI-5");
    assert_eq!(place.waits_for(), ["replica/3"]);
    place.says(3, 1, &[1, 2], &[1, 2]);
    assert_eq!(place.phase(), Phase::Issuing);
    assert_eq!(place.row().issuing.key, ca(2).key);
    for replica in 1..=3 {
        place.says(replica, 2, &[2, 1], &[2]);
    }
    assert_eq!(place.phase(), Phase::Issuing, "PKI-5: a node has a certificate of the old CA");
    assert!(place.waits_for()[0].starts_with("node/"));
    place.node_shows("n1", 0x12, 2);
    assert_eq!(place.phase(), Phase::Dropping);
    assert_eq!(place.row().trusted(), [ca(2).key]);
    for replica in [1, 3] {
        place.says(replica, 2, &[2], &[2]);
    }
    assert_eq!(place.phase(), Phase::Dropping, "PKI-5");
    place.says(2, 2, &[2], &[2]);
    assert_eq!(place.phase(), Phase::Idle);
    let row = place.row();
    assert_eq!((row.issuing.key, row.other, row.rotation), (ca(2).key, None, 1));
    assert_eq!(place.events().iter().filter(|kind| kind.as_str() == "pki.rotation").count(), 5);
    assert_eq!(place.findings(), []);
}

#[test]
fn a_node_that_is_away_holds_a_replacement_up_until_its_certificate_ends() {
    let place = Place::new();
    place.bench.node("seen", 1000, 1);
    place.node_shows("seen", 0x11, 1);
    place.bench.node("gone", 1000, 1);
    place.bench.nodes.change("gone", |node| node.phase = NodePhase::Retired);
    place.bench.advance(12 * HOUR_MS);
    place.bench.node("never", 1000, 1);
    place.call("pki.rotate", &json!({})).unwrap();
    place.offers(1, 2);
    for replica in 1..=3 {
        place.says(replica, 1, &[1, 2], &[1, 2]);
    }
    assert_eq!(place.phase(), Phase::Issuing);
    for replica in 1..=3 {
        place.says(replica, 2, &[2, 1], &[2]);
    }
    assert_eq!(place.waits_for().len(), 2);
    place.bench.advance(12 * HOUR_MS + 1000);
    // What was never seen may have been issued just before.
    assert_eq!(place.waits_for().len(), 1);
    assert_eq!(place.phase(), Phase::Issuing);
    let found = place.findings();
    assert_eq!(found.iter().map(|one| &*one.check).collect::<Vec<_>>(), ["pki.rotation"]);
    assert!(found[0].message.contains("issuing") && found[0].message.contains("node/"));
    place.bench.advance(12 * HOUR_MS);
    assert_eq!(place.phase(), Phase::Dropping);
}

#[test]
fn what_was_allowed_of_one_phase_forces_no_other() {
    let place = Place::new();
    place.call("pki.rotate", &json!({})).unwrap();
    place.offers(1, 2);
    assert_eq!(place.phase(), Phase::Trusting);
    let seen = json!({"force": true, "phase": "trusting", "rotation": 1});
    for replica in [1, 2, 3] {
        place.says(replica, 1, &[1, 2], &[1, 2]);
    }
    assert_eq!(place.phase(), Phase::Issuing, "it went on by itself");
    let refused = place.call("pki.advance", &seen).unwrap_err();
    assert_eq!(refused.code, Code::PreconditionFailed);
    let other = json!({"force": true, "phase": "issuing", "rotation": 2});
    assert_eq!(place.call("pki.advance", &other).unwrap_err().code, Code::PreconditionFailed);
    assert_eq!(place.phase(), Phase::Issuing);
    place.force().unwrap();
}

#[test]
fn a_voter_that_is_away_holds_it_up_and_is_named_and_an_operator_may_go_on_without() {
    let place = Place::new();
    place.call("pki.rotate", &json!({})).unwrap();
    let early = place.force().unwrap_err();
    assert_eq!(early.code, Code::InvalidState);
    place.offers(1, 2);
    for replica in [1, 2] {
        place.says(replica, 1, &[1, 2], &[1, 2]);
    }
    assert_eq!(place.phase(), Phase::Trusting);
    assert_eq!(place.findings(), []);
    place.bench.advance(11 * 60_000);
    assert_eq!(place.phase(), Phase::Trusting, "PKI-5");
    let found = place.findings();
    assert!(found[0].check == "pki.rotation" && found[0].message.contains("replica/3"));
    let refused = place.call("pki.advance", &json!({})).unwrap_err();
    assert!(refused.code == Code::InvalidState && refused.detail.contains("replica/3"));
    place.force().unwrap();
    assert_eq!(place.row().phase, Phase::Issuing);
    for replica in [1, 2] {
        place.says(replica, 2, &[2, 1], &[2]);
    }
    place.force().unwrap();
    for replica in [1, 2] {
        place.says(replica, 2, &[2], &[2]);
    }
    place.force().unwrap();
    assert_eq!(place.phase(), Phase::Idle);
    let found = place.findings();
    assert!(found[0].check == "pki.old-files" && found[0].message.contains("replica/3"));
}

#[test]
fn a_phase_is_left_once_and_the_first_offer_is_taken() {
    let place = Place::new();
    place.call("pki.rotate", &json!({})).unwrap();
    assert_eq!(place.call("pki.rotate", &json!({})).unwrap_err().code, Code::InvalidState);
    place.offers(7, 9);
    assert_eq!(place.row().phase, Phase::Adding, "PKI-6: an offer for another replacement");
    place.offers(1, 2);
    place.offers(1, 3);
    assert_eq!(place.row().other.unwrap().key, ca(2).key, "PKI-6");
    // Taken back, and begun again: what was offered before is not it.
    place.call("pki.abort", &json!({})).unwrap();
    assert_eq!((place.row().phase, place.row().other), (Phase::Idle, None));
    assert_eq!(place.call("pki.abort", &json!({})).unwrap_err().code, Code::InvalidState);
    place.call("pki.rotate", &json!({})).unwrap();
    place.offers(1, 2);
    assert_eq!((place.row().phase, place.row().rotation), (Phase::Adding, 2), "PKI-6");
    place.offers(2, 4);
    place.force().unwrap();
    let refused = place.call("pki.abort", &json!({})).unwrap_err();
    assert!(refused.code == Code::InvalidState && refused.detail.contains("issues already"));
}

#[test]
fn a_phase_is_left_for_what_is_so_when_it_is_left() {
    let place = Place::new();
    place.bench.node("n1", 1000, 1);
    place.node_shows("n1", 0x11, 1);
    place.call("pki.rotate", &json!({})).unwrap();
    place.offers(1, 2);
    for replica in 1..=3 {
        place.says(replica, 1, &[1, 2], &[1, 2]);
    }
    assert_eq!(place.phase(), Phase::Issuing);
    for replica in 1..=3 {
        place.says(replica, 2, &[2, 1], &[2]);
    }
    assert_eq!(place.phase(), Phase::Issuing);
    place.node_shows("n1", 0x12, 2);
    // While that is looked at, the node shows its old certificate once more.
    let cx = place.bench.context.clone();
    let id = place.bench.nodes.change("n1", |_| {});
    let not_after_ms = place.bench.view().clock().wall_ms + HOUR_MS;
    let leaf = Leaf { key: key(0x11), issuer: ca(1).key_id, not_after_ms };
    place.bench.nodes.meanwhile(move || {
        let port = cx.ports.certificates.get().unwrap();
        let shows = cx.commit(|tx| port.node_seen(tx, &id, &leaf));
        shows.now_or_never().unwrap().unwrap();
    });
    assert_eq!(place.phase(), Phase::Issuing, "PKI-6");
    place.node_shows("n1", 0x12, 2);
    assert_eq!(place.phase(), Phase::Dropping);
}

#[test]
fn authorities_of_another_lineage_are_not_this_clusters() {
    let place = Place::new();
    let foreign = Authorities { lineage: "another".into(), phase: Phase::Issuing, ..place.row() };
    place.bench.commit(|tx| Ok(tx.put(&AUTHORITIES, &CLUSTER.to_owned(), &foreign)?));
    let port = place.bench.context.ports.certificates.get().unwrap();
    assert_eq!(port.authorities(&place.bench.view()).unwrap(), None);
    assert_eq!(crate::issuing(&place.bench.view()).unwrap(), None);
    place.says_with(1, 0xd1, 1, (&[1], &[1]));
    assert_eq!((place.row().lineage, place.row().phase), ("memory".to_owned(), Phase::Idle));
}

#[test]
fn a_restored_cluster_believes_nothing_that_replicas_said_before() {
    let place = Place::new();
    place.call("pki.rotate", &json!({})).unwrap();
    place.offers(1, 2);
    for replica in 1..=3 {
        place.says(replica, 1, &[1, 2], &[1, 2]);
    }
    place.bench.commit(crate::forget_replicas);
    assert_eq!(REPLICAS.all(&place.bench.view()).unwrap().len(), 0);
    assert_eq!(place.phase(), Phase::Trusting, "PKI-5");
    assert_eq!(place.waits_for().len(), 3);
}

#[test]
fn what_ends_soon_and_who_is_gone_is_known() {
    let place = Place::new();
    place.bench.node("n1", 1000, 1);
    place.node_shows("n1", 0x11, 1);
    assert_eq!(place.findings(), []);
    let all = place.call("pki.certificates", &json!({})).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 4);
    place.call("pki.revoke", &json!({"node": "n1"})).unwrap();
    let all = place.call("pki.certificates", &json!({})).unwrap();
    let revoked = all.as_array().unwrap().iter().filter(|one| one["revoked"] == true).count();
    assert_eq!(revoked, 1);
    place.bench.advance(21 * HOUR_MS);
    let found = place.findings();
    assert!(found[0].check == "pki.expires" && found[0].message.contains("node/"));
    place.bench.nodes.change("n1", |node| node.phase = NodePhase::Retired);
    place.bench.store.set_voters(&[1, 2]);
    place.bench.commit(|tx| Ok(tx.enqueue(rotation::KIND, rotation::KEY)?));
    place.bench.settle();
    let all = place.call("pki.certificates", &json!({})).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 2);
    assert_eq!(REVOCATIONS.all(&place.bench.view()).unwrap().len(), 1, "PKI-3");
}
