use futures::executor::block_on;
use palisade_contract::{Code, Module, Severity};
use palisade_state::Tx;
use serde_json::json;

use super::world::{World, hash, secret, text};
use crate::{PRINCIPALS, PrincipalRow};

#[test]
fn the_first_token_is_a_cluster_admin() {
    let world = World::new();
    let principal = world.present(&text("boot", 1)).unwrap();
    assert_eq!(principal.name, "token/boot");
    assert_eq!((principal.roles, principal.tenant.as_str()), (vec!["cluster-admin".into()], ""));
}

#[test]
fn the_bootstrap_does_not_bring_a_revoked_first_token_back() {
    let world = World::new();
    world.token(2, "second", "cluster-admin", json!({}));
    world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap();
    world.migrate().unwrap();
    assert!(world.present(&text("boot", 1)).is_err());
}

#[test]
fn whatever_is_wrong_with_a_token_the_answer_is_the_same() {
    let world = World::new();
    let revoked = world.token(2, "revoked", "viewer", json!({}));
    world.call("apiTokens.revoke", json!({"token": revoked})).unwrap();
    let expired = world.token(3, "expired", "viewer", json!({"ttlSeconds": 60}));
    world.store.advance(60_000);
    let said: Vec<(Code, String, Option<String>)> = [
        text("boot", 9),
        text("nobody", 1),
        text(&revoked, 2),
        text(&expired, 3),
        String::new(),
        "pal_".to_owned(),
        "pal_boot".to_owned(),
        "ü".repeat(60),
        text("boot", 1).replace("pal_", "palj1."),
        format!("{} ", text("boot", 1)),
        format!("pal_boot_{}", "ü".repeat(43)),
    ]
    .iter()
    .map(|token| {
        let refused = world.present(token).unwrap_err();
        (refused.code, refused.detail, refused.hint)
    })
    .collect();
    assert_eq!(said[0].0, Code::Unauthenticated);
    assert!(said.iter().all(|one| *one == said[0]), "{said:?}");
}

#[test]
fn a_token_expires_by_the_logical_clock() {
    let world = World::new();
    let id = world.token(2, "short", "viewer", json!({"ttlSeconds": 60}));
    world.store.advance(59_999);
    assert!(world.present(&text(&id, 2)).is_ok());
    world.store.advance(1);
    assert!(world.present(&text(&id, 2)).is_err());
}

#[test]
fn a_secret_with_underscores_is_read() {
    let world = World::new();
    let id = world.token(0xff, "all-ones", "viewer", json!({}));
    assert!(text(&id, 0xff).contains("___"));
    assert_eq!(secret(0xff).len(), 32);
    assert!(world.present(&text(&id, 0xff)).is_ok());
}

#[test]
fn a_token_that_is_not_there_is_not_found() {
    let world = World::new();
    for token in ["nobody", "", "a\0b"] {
        let refused = world.call("apiTokens.revoke", json!({"token": token})).unwrap_err();
        assert_eq!(refused.code, Code::NotFound, "{token:?}");
    }
}

#[test]
fn a_revoked_token_is_refused_at_once() {
    let world = World::new();
    let id = world.token(2, "ci", "operator", json!({}));
    assert!(world.present(&text(&id, 2)).is_ok());
    let revoked = world.call("apiTokens.revoke", json!({"token": "ci"})).unwrap();
    assert_eq!(revoked["status"], "revoked");
    assert!(world.present(&text(&id, 2)).is_err());
}

#[test]
fn the_last_cluster_admin_token_cannot_be_revoked() {
    let world = World::new();
    world.token(2, "viewer", "viewer", json!({}));
    world.token(3, "short", "cluster-admin", json!({"ttlSeconds": 60}));
    world.store.advance(60_000);
    let refused = world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    assert!(refused.detail.contains("nobody could make another"));
    let second = world.token(4, "second", "cluster-admin", json!({}));
    world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap();
    let refused = world.call("apiTokens.revoke", json!({"token": second})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
}

#[test]
fn a_token_that_ends_within_an_hour_is_no_way_in() {
    let world = World::new();
    let hour = 60 * 60;
    world.token(2, "short", "cluster-admin", json!({"ttlSeconds": hour}));
    let refused = world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState, "IAM-3");
    assert!(refused.hint.unwrap().contains("within an hour"));
    // It is not the last one while another is left.
    world.token(3, "long", "cluster-admin", json!({"ttlSeconds": hour + 1}));
    world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap();
    // And not to be taken when it alone is left, however short its life is.
    world.store.advance(1_000 * 2);
    for token in ["short", "long"] {
        let refused = world.call("apiTokens.revoke", json!({"token": token})).unwrap_err();
        assert_eq!(refused.code, Code::InvalidState, "IAM-3: {token}");
    }
}

#[test]
fn two_admins_that_revoke_each_other_at_once_leave_one() {
    let world = World::new();
    let second = world.token(2, "second", "cluster-admin", json!({}));
    let view = world.view();
    let revoke = world
        .module
        .methods()
        .into_iter()
        .find(|method| method.full_name() == "apiTokens.revoke")
        .unwrap();
    let palisade_contract::Handler::Mutation(run) = revoke.handler else { unreachable!() };
    let txn = |id: &str| {
        let mut tx = Tx::new(view.clone());
        run(&world.method_cx(), &mut tx, json!({"token": id})).unwrap();
        tx.build().unwrap()
    };
    let (one, other) = (txn("boot"), txn(&second));
    assert!(world.store.apply(one.into()).unwrap().is_applied());
    assert!(!world.store.apply(other.into()).unwrap().is_applied());
}

#[test]
fn a_name_is_unique_until_its_token_is_revoked() {
    let world = World::new();
    let first = world.token(2, "ci", "viewer", json!({}));
    let input = json!({"secretSha256": hash(3), "name": "ci", "roles": ["viewer"]});
    let refused = world.call("apiTokens.create", input.clone()).unwrap_err();
    assert_eq!((refused.code, refused.retryable), (Code::Conflict, false));
    world.call("apiTokens.revoke", json!({"token": first})).unwrap();
    assert!(world.call("apiTokens.create", input).is_ok());
}

#[test]
fn malformed_tokens_are_refused_with_every_problem() {
    let world = World::new();
    let refused = world
        .call(
            "apiTokens.create",
            json!({
                "secretSha256": "x", "name": "Not a name", "ttlSeconds": 0,
                "roles": ["veiwer", "tenant-admin"],
            }),
        )
        .unwrap_err();
    let pointers: Vec<&str> = refused.problems.iter().map(|p| p.pointer.as_str()).collect();
    assert_eq!(pointers, ["/secretSha256", "/name", "/ttlSeconds", "/roles/0", "/roles/1"]);
    assert!(refused.problems[3].message.contains("did you mean \"viewer\"?"));
    let bound = json!({
        "secretSha256": hash(2), "name": "x", "roles": ["cluster-admin"], "tenant": "acme",
    });
    let refused = world.call("apiTokens.create", bound).unwrap_err();
    assert_eq!(refused.problems[0].pointer, "/roles/0");
}

#[test]
fn no_record_shows_the_hash_of_a_secret() {
    let world = World::new();
    world.token(2, "ci", "viewer", json!({"ttlSeconds": 60}));
    let listed = world.call("apiTokens.list", json!({})).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert!(!listed.to_string().contains(&hash(2)));
    let ci = listed.as_array().unwrap().iter().find(|token| token["name"] == "ci").unwrap();
    assert_eq!(ci["expiresAt"], "2023-11-14T22:14:20.000Z");
    assert_eq!(ci["createdBy"], "user/ada");
}

#[test]
fn the_certificate_of_init_is_a_cluster_admin() {
    let world = World::new();
    let admin = world.certificate("palisade://memory/user/admin").unwrap();
    assert_eq!((admin.name.as_str(), admin.roles), ("user/admin", vec!["cluster-admin".into()]));
}

#[test]
fn certificates_of_others_are_refused_in_the_same_words() {
    let world = World::new();
    let words = world.present("x").unwrap_err().detail;
    for uri in [
        "palisade://memory/user/nobody",
        "palisade://other/user/admin",
        "palisade://memory/node/nd_01arz3ndektsv4rrffq69g5fav",
        "palisade://memory/replica/1",
        "palisade://memory/user/",
        "palisade://memory/user/admin/x",
        "palisade://memoryx/user/admin",
        "",
    ] {
        let refused = world.certificate(uri).unwrap_err();
        assert_eq!((refused.code, refused.detail), (Code::Unauthenticated, words.clone()), "{uri}");
    }
}

#[test]
fn a_certificates_roles_come_from_the_table() {
    let world = World::new();
    let mut row = PrincipalRow {
        name: "ada".into(),
        roles: vec!["operator".into()],
        tenant: "acme".into(),
        ..PrincipalRow::default()
    };
    world.commit(|tx| Ok(tx.put(&PRINCIPALS, &row.name, &row)?)).unwrap();
    let ada = world.certificate("palisade://memory/user/ada").unwrap();
    assert_eq!((ada.roles, ada.tenant.as_str()), (vec!["operator".into()], "acme"));
    row.disabled = true;
    world.commit(|tx| Ok(tx.put(&PRINCIPALS, &row.name, &row)?)).unwrap();
    assert!(world.certificate("palisade://memory/user/ada").is_err());
    row.name = "admin".into();
    world.commit(|tx| Ok(tx.put(&PRINCIPALS, &row.name, &row)?)).unwrap();
    assert!(world.certificate("palisade://memory/user/admin").is_err());
}

#[test]
fn whoami_answers_the_principal() {
    let world = World::new();
    let answer = world.call("auth.whoami", json!({})).unwrap();
    let holds = json!([{"role": "cluster-admin", "tenant": ""}]);
    let expected =
        json!({"name": "user/ada", "roles": ["cluster-admin"], "tenant": "", "holds": holds});
    assert_eq!(answer, expected);
}

#[test]
fn admin_tokens_that_all_end_soon_are_a_finding() {
    let world = World::new();
    let findings = || world.module.self_check(&world.cx, &world.view()).unwrap();
    assert!(findings().is_empty());
    world.token(2, "short", "cluster-admin", json!({"ttlSeconds": 7200}));
    world.call("apiTokens.revoke", json!({"token": "boot"})).unwrap();
    assert_eq!(findings()[0].check, "api-tokens.admin-expiring");
    world.store.advance(7_200_000);
    assert_eq!(findings()[0].check, "api-tokens.no-admin");
    assert_eq!(findings()[0].severity, Severity::Warning);
}

#[test]
fn a_start_may_be_repeated_and_the_port_is_filled_once() {
    let world = World::new();
    assert!(block_on(world.module.start(&world.cx)).is_ok());
    let other = crate::Iam::new(None);
    assert!(block_on(other.start(&world.cx)).is_err());
    assert!(palisade_contract::Registry::new(vec![std::sync::Arc::new(other)]).is_ok());
}

#[test]
fn a_malformed_bootstrap_is_refused() {
    let world = World::new();
    let broken =
        crate::Iam::new(crate::Bootstrap { token_id: "b2".into(), secret_sha256: "x".into() });
    let migration = broken.migrations().remove(0);
    assert_eq!(migration.name, "iam/0001_bootstrap");
    let refused = world.commit(|tx| (migration.run)(tx)).unwrap_err();
    assert_eq!(refused.code, Code::InvalidConfig);
}
