use palisade_contract::{Code, Severity, node::NodePhase};
use serde_json::json;

use super::world::{World, detail, key, secret, token_text};
use palisade_state::Tx;

const UNIFORM: &str = "the join token is wrong, used, expired or revoked";

fn id_of(token: &str) -> String {
    token.split('.').nth(1).unwrap().to_owned()
}

#[test]
fn a_token_makes_a_node_in_its_pool() {
    let world = World::new();
    let token = world.token(1, json!({"pool": "gpu", "tenant": "acme"}));
    let node = world.try_join(&world.request(&token, "k", "Web-1.example.org")).unwrap();
    assert_eq!((node.name.as_str(), node.pool.as_str()), ("web-1", "gpu"));
    assert_eq!((node.tenant.as_str(), node.phase), ("acme", NodePhase::Joining));
    assert_eq!(node.keys, [key("k")]);
    assert_eq!(world.nodes.find(&world.view(), "web-1").unwrap(), Some(node));
    assert_eq!(world.events(), ["node.joined"]);
    assert_eq!(world.work(), ["node-controllers"]);
}

#[test]
fn a_wrong_secret_and_an_unknown_id_are_refused_in_the_same_words() {
    let world = World::new();
    let token = world.token(1, json!({}));
    let wrong = token_text(&id_of(&token), secret(2));
    let unknown = token_text("aaaaaaaaaaaaaaaa", secret(1));
    for text in [wrong, unknown] {
        let refused = world.try_join(&world.request(&text, "k", "a")).unwrap_err();
        assert_eq!((refused.code, refused.detail.as_str()), (Code::Unauthenticated, UNIFORM));
    }
    assert!(world.nodes.list(&world.view()).unwrap().is_empty());
}

#[test]
fn whoever_lacks_the_secret_does_not_learn_that_a_token_expired() {
    let world = World::new();
    let token = world.token(1, json!({"ttlSeconds": 1}));
    world.store.advance(60_000);
    let wrong = token_text(&id_of(&token), secret(2));
    assert_eq!(detail(world.try_join(&world.request(&wrong, "k", "a"))), UNIFORM);
}

#[test]
fn what_is_no_token_is_refused_as_that() {
    let world = World::new();
    for text in ["", "palj1", "palj1.x.y", "palj2.aaaaaaaaaaaaaaaa.AAAA", "pal_x_y"] {
        let refused = world.try_join(&world.request(text, "k", "a")).unwrap_err();
        assert_eq!(refused.code, Code::InvalidInput, "{text}");
        assert!(!refused.detail.contains(text) || text.is_empty() || text == "palj1", "{text}");
    }
}

#[test]
fn the_holder_of_the_secret_learns_that_the_token_expired() {
    let world = World::new();
    let token = world.token(1, json!({"ttlSeconds": 60}));
    world.store.advance(59_000);
    assert!(world.try_join(&world.request(&token, "k", "a")).is_ok());
    let token = world.token(2, json!({"ttlSeconds": 60}));
    world.store.advance(60_000);
    let refused = world.try_join(&world.request(&token, "k2", "b")).unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
    assert!(refused.detail.contains("expired: it was valid for 60 s"), "{}", refused.detail);
}

#[test]
fn the_holder_of_the_secret_learns_that_the_token_was_revoked() {
    let world = World::new();
    let token = world.token(1, json!({}));
    world.call("joinTokens.revoke", json!({"token": id_of(&token)})).unwrap();
    let refused = world.try_join(&world.request(&token, "k", "a"));
    assert!(detail(refused).contains("was revoked (user/ada)"));
}

#[test]
fn the_same_key_gets_the_same_node_again_and_nothing_is_written() {
    let world = World::new();
    let token = world.token(1, json!({}));
    let request = world.request(&token, "k", "a");
    let first = world.try_join(&request).unwrap();
    assert_eq!(world.try_join(&request).unwrap(), first);
    assert!(world.is_silent(|tx| world.nodes.join(&world.cx, tx, &request).map(drop)));
    world.commit(|tx| world.nodes.note_replay(tx, &request)).unwrap();
    assert_eq!(world.count_events("join.token.replayed"), 0);
}

#[test]
fn another_key_is_refused_and_its_replay_revokes_the_token_once() {
    let world = World::new();
    let token = world.token(1, json!({}));
    world.try_join(&world.request(&token, "k", "a")).unwrap();
    let thief = world.request(&token, "thief", "b");
    assert!(detail(world.try_join(&thief)).contains("used by another agent"));
    world.commit(|tx| world.nodes.note_replay(tx, &thief)).unwrap();
    assert!(world.is_silent(|tx| world.nodes.note_replay(tx, &thief)));
    assert_eq!(world.count_events("join.token.replayed"), 1);
    assert_eq!(world.nodes.list(&world.view()).unwrap().len(), 1);
    let listed = world.call("joinTokens.list", json!({})).unwrap();
    assert_eq!(listed[0]["status"], "revoked");
    let owner = world.try_join(&world.request(&token, "k", "a"));
    assert!(detail(owner).contains("was revoked (presented again with another key)"));
    let finding = world.finding("join-tokens.replayed").unwrap();
    assert_eq!(finding.severity, Severity::Error);
    assert!(finding.message.contains("\"b\"") && finding.message.contains("made a:"));
}

#[test]
fn a_replay_without_the_secret_is_noted_nowhere() {
    let world = World::new();
    let token = world.token(1, json!({}));
    world.try_join(&world.request(&token, "k", "a")).unwrap();
    let guess = world.request(&token_text(&id_of(&token), secret(9)), "thief", "b");
    assert!(world.is_silent(|tx| world.nodes.note_replay(tx, &guess)));
}

#[test]
fn a_fresh_token_is_not_revoked_by_a_note_of_replay() {
    let world = World::new();
    let token = world.token(1, json!({}));
    let request = world.request(&token, "k", "a");
    assert!(world.is_silent(|tx| world.nodes.note_replay(tx, &request)));
}

#[test]
fn two_agents_that_redeem_one_use_at_once_get_one_node() {
    let world = World::new();
    let token = world.token(1, json!({}));
    let view = world.view();
    let txn = |key_name: &str, hostname: &str| {
        let mut tx = Tx::new(view.clone());
        world.nodes.join(&world.cx, &mut tx, &world.request(&token, key_name, hostname)).unwrap();
        tx.build().unwrap()
    };
    let (one, other) = (txn("k1", "a"), txn("k2", "b"));
    assert!(world.store.apply(one.into()).unwrap().is_applied());
    assert!(!world.store.apply(other.into()).unwrap().is_applied());
    assert_eq!(world.nodes.list(&world.view()).unwrap().len(), 1);
}

#[test]
fn a_token_of_two_uses_makes_two_nodes() {
    let world = World::new();
    let token = world.token(1, json!({"uses": 2}));
    world.try_join(&world.request(&token, "k1", "a")).unwrap();
    world.try_join(&world.request(&token, "k2", "b")).unwrap();
    assert!(detail(world.try_join(&world.request(&token, "k3", "c"))).contains("used"));
}

#[test]
fn a_taken_name_is_refused_and_the_error_says_how_to_choose_another() {
    let world = World::new();
    world.join("a");
    let token = world.token(2, json!({}));
    let mut request = world.request(&token, "k2", "a");
    let refused = world.try_join(&request).unwrap_err();
    assert_eq!(refused.code, Code::Conflict);
    assert!(refused.detail.contains("\"a\" is taken"));
    assert!(refused.hint.unwrap().contains("--name"));
    request.name = "b".to_owned();
    assert_eq!(world.try_join(&request).unwrap().name, "b");
}

#[test]
fn two_agents_that_take_one_name_at_once_get_it_once() {
    let world = World::new();
    let tokens = [world.token(1, json!({})), world.token(2, json!({}))];
    let view = world.view();
    let txns: Vec<_> = tokens
        .iter()
        .zip(["k1", "k2"])
        .map(|(token, key_name)| {
            let mut tx = Tx::new(view.clone());
            world.nodes.join(&world.cx, &mut tx, &world.request(token, key_name, "a")).unwrap();
            tx.build().unwrap()
        })
        .collect();
    let applied: Vec<bool> =
        txns.into_iter().map(|txn| world.store.apply(txn.into()).unwrap().is_applied()).collect();
    assert_eq!(applied, [true, false]);
}

#[test]
fn a_malformed_name_is_refused_with_its_pointer() {
    let world = World::new();
    let token = world.token(1, json!({}));
    let mut request = world.request(&token, "k", "a");
    request.name = "Not A Name".to_owned();
    let refused = world.try_join(&request).unwrap_err();
    assert_eq!(refused.problems[0].pointer, "/name");
}

#[test]
fn a_key_belongs_to_one_node() {
    let world = World::new();
    world.join("a");
    let token = world.token(2, json!({}));
    let refused = world.try_join(&world.request(&token, "a", "b")).unwrap_err();
    assert_eq!(refused.code, Code::Conflict);
    assert!(refused.detail.contains("joined already, as node a"));
}

#[test]
fn an_expected_machine_is_recognised_in_either_byte_order() {
    let world = World::new();
    let expect = json!({"expect": {"productUuid": "33221100-5544-7766-8899-AABBCCDDEEFF"}});
    let token = world.token(1, expect);
    assert!(world.try_join(&world.request(&token, "k", "a")).is_ok());
}

#[test]
fn another_machine_than_the_expected_one_is_refused() {
    let world = World::new();
    let other = json!({"expect": {"productUuid": "99112233-4455-6677-8899-aabbccddeeff"}});
    let token = world.token(1, other);
    let refused = world.try_join(&world.request(&token, "k", "a"));
    assert!(detail(refused).contains("is for the machine with product UUID 99112233"));
    let token = world.token(2, json!({"expect": {"address": "10.0.0.8"}}));
    let refused = world.try_join(&world.request(&token, "k", "a"));
    assert!(detail(refused).contains("address 10.0.0.8; this one has 10.0.0.7"));
    let token = world.token(3, json!({"expect": {"address": "10.0.0.7"}}));
    assert!(world.try_join(&world.request(&token, "k", "a")).is_ok());
}

#[test]
fn an_expected_product_uuid_must_be_unique_among_live_nodes() {
    let world = World::new();
    world.join("a");
    let expect = json!({"expect": {"productUuid": "00112233-4455-6677-8899-aabbccddeeff"}});
    let token = world.token(2, expect);
    let refused = world.try_join(&world.request(&token, "k2", "b")).unwrap_err();
    assert_eq!(refused.code, Code::Conflict);
    world.call("nodes.remove", json!({"node": "a"})).unwrap();
    assert!(world.try_join(&world.request(&token, "k2", "b")).is_ok());
}

#[test]
fn a_constant_cannot_be_expected() {
    let world = World::new();
    for constant in ["00000000-0000-0000-0000-000000000000", "03000200-0400-0500-0006-000700080009"]
    {
        let refused = world
            .call(
                "joinTokens.create",
                json!({"secretSha256": key("s"), "expect": {"productUuid": constant}}),
            )
            .unwrap_err();
        assert_eq!(refused.problems[0].pointer, "/expect/productUuid");
    }
}

#[test]
fn two_agents_on_one_machine_join_and_are_a_finding() {
    let world = World::new();
    world.join("a");
    assert_eq!(world.finding("nodes.duplicate-uuid"), None);
    world.join("b");
    let finding = world.finding("nodes.duplicate-uuid").unwrap();
    assert_eq!((finding.severity, finding.count), (Severity::Warning, Some(2)));
}
