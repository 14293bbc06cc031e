use palisade_contract::Code;
use serde_json::json;

use super::world::{World, hash, text};
use crate::records::{BindingRow, PrincipalRow, TokenRow};

const SCALE: &str = "compute:workloads:scale";

#[test]
fn a_principals_token_may_what_its_principal_may_at_that_moment() {
    let world = World::new();
    let token = world.principal(2, "ci", "acme", &[]);
    let ci = world.present(&token).unwrap();
    assert_eq!((ci.name.as_str(), ci.tenant.as_str()), ("user/ci", "acme"));
    assert!(!world.may(&ci, SCALE, "acme"), "it holds no role yet");
    let bound = json!({"principal": "ci", "role": "operator"});
    let made = world.call("roleBindings.create", bound).unwrap();
    assert_eq!((&made["id"], &made["tenant"]), (&json!("ci.operator.acme"), &json!("acme")));
    let ci = world.present(&token).unwrap();
    assert!(world.may(&ci, SCALE, "acme"));
    assert!(!world.may(&ci, SCALE, "other") && !world.may(&ci, SCALE, ""), "IAM-5");
    world.call("roleBindings.remove", json!({"binding": "ci.operator.acme"})).unwrap();
    let refused = world.call_as(&ci, "auth.whoami", json!({})).unwrap_err();
    assert_eq!(refused.code, Code::AccessDenied);
    assert_eq!(refused.detail, "user/ci (no role) may not compute:auth:read on principal/self");
    assert!(refused.hint.unwrap().contains("palisade binding create"));
}

#[test]
fn whoami_tells_what_a_principal_holds_and_where() {
    let world = World::new();
    let token = world.principal(2, "bot", "", &[("viewer", "acme"), ("operator", "other")]);
    let bot = world.present(&token).unwrap();
    assert_eq!(bot.tenant, "", "it holds roles in two tenants, so none is implied");
    let me = world.call_as(&bot, "auth.whoami", json!({})).unwrap();
    assert_eq!(me["roles"], json!(["operator", "viewer"]));
    assert_eq!(me["holds"][0], json!({"role": "operator", "tenant": "other"}));
    let refused = world.call_as(&bot, "principals.list", json!({})).unwrap_err();
    assert_eq!(refused.code, Code::AccessDenied);
    assert_eq!(
        refused.hint.unwrap(),
        "you hold roles in the tenants acme, other: name one of them"
    );
    world.call("roleBindings.remove", json!({"binding": "bot.operator.other"})).unwrap();
    assert_eq!(world.present(&token).unwrap().tenant, "acme", "where all its roles are");
}

#[test]
fn a_certificate_of_a_principal_is_accepted_for_its_enrolled_keys_alone() {
    let world = World::new();
    world.principal(2, "ci", "acme", &[("viewer", "acme")]);
    let present = |key: &str| world.certificate_of("palisade://memory/user/ci", key);
    assert_eq!(present(&hash(7)).unwrap_err().code, Code::Unauthenticated);
    let enrolled = json!({"principal": "ci", "keys": [hash(7), hash(8)]});
    world.call("principals.update", enrolled).unwrap();
    assert_eq!(present(&hash(7)).unwrap().name, "user/ci");
    assert!(present(&hash(9)).is_err() && present("").is_err());
    world.call("principals.update", json!({"principal": "ci", "keys": []})).unwrap();
    assert!(present(&hash(7)).is_err());
}

#[test]
fn nobody_comes_as_a_principal_that_is_disabled() {
    let world = World::new();
    let token = world.principal(2, "ci", "acme", &[("viewer", "acme")]);
    world.call("principals.update", json!({"principal": "ci", "keys": [hash(7)]})).unwrap();
    let uri = "palisade://memory/user/ci";
    let disable = |disabled: bool| {
        let input = json!({"principal": "ci", "disabled": disabled});
        world.call("principals.update", input).unwrap()["status"].clone()
    };
    assert_eq!(disable(true), "disabled");
    let refused = world.present(&token).unwrap_err();
    assert_eq!(refused.code, Code::Unauthenticated);
    assert_eq!(refused.detail, world.present("x").unwrap_err().detail, "IAM-1");
    assert!(world.certificate_of(uri, &hash(7)).is_err());
    let input = json!({"secretSha256": hash(3), "name": "more", "principal": "ci"});
    assert_eq!(world.call("apiTokens.create", input).unwrap_err().code, Code::InvalidState);
    assert_eq!(disable(false), "active");
    assert!(world.present(&token).is_ok() && world.certificate_of(uri, &hash(7)).is_ok());
}

#[test]
fn a_principal_that_is_removed_leaves_nothing_to_one_of_the_same_name() {
    let world = World::new();
    let token = world.principal(2, "ci", "acme", &[("operator", "acme")]);
    world.principal(3, "ci-2", "acme", &[("viewer", "acme")]);
    world.call("principals.remove", json!({"principal": "ci"})).unwrap();
    world.call("principals.create", json!({"name": "ci", "tenant": "other"})).unwrap();
    assert!(world.present(&token).is_err());
    let ci = world.call("principals.get", json!({"principal": "ci"})).unwrap();
    assert_eq!(ci["roles"], json!([]));
    let other = world.call("principals.get", json!({"principal": "ci-2"})).unwrap();
    assert_eq!(other["roles"], json!([{"role": "viewer", "tenant": "acme"}]));
    assert!(world.present(&text("boot", 1)).is_ok());
}

#[test]
fn names_of_principals_are_names_and_admin_is_taken() {
    let world = World::new();
    for name in ["", "Ci", "c.i", "c i", "ci\u{202e}", "cі", "-ci", "admin"] {
        let refused = world.call("principals.create", json!({"name": name})).unwrap_err();
        assert_eq!(refused.problems[0].pointer, "/name", "{name:?}");
    }
    world.call("principals.create", json!({"name": "ci"})).unwrap();
    let taken = world.call("principals.create", json!({"name": "ci", "tenant": "a"})).unwrap_err();
    assert_eq!((taken.code, taken.retryable), (Code::Conflict, false));
    let wrong = json!({"name": "x", "tenant": "A", "keys": ["z"], "description": "a\nb"});
    let refused = world.call("principals.create", wrong).unwrap_err();
    let pointers: Vec<&str> = refused.problems.iter().map(|p| p.pointer.as_str()).collect();
    assert_eq!(pointers, ["/tenant", "/description", "/keys/0"]);
}

#[test]
fn a_principal_is_changed_at_the_revision_that_was_read() {
    let world = World::new();
    world.principal(2, "ci", "acme", &[]);
    let read = || world.call("principals.get", json!({"principal": "ci"})).unwrap();
    let revision = read()["revision"].as_u64().unwrap();
    let change = |at: u64, text: &str| {
        let input = json!({"principal": "ci", "description": text});
        world.call_at(&super::world::admin(), Some(at), "principals.update", input)
    };
    change(revision, "builds").unwrap();
    let stale = change(revision, "tests").unwrap_err();
    assert_eq!(stale.code, Code::PreconditionFailed);
    assert_eq!(read()["description"], "builds");
    let nobody = json!({"principal": "nobody"});
    for method in ["principals.get", "principals.update", "principals.remove"] {
        let refused = world.call(method, nobody.clone()).unwrap_err();
        assert_eq!(refused.code, Code::NotFound, "{method}");
    }
}

#[test]
fn a_tenant_sees_its_own_principals_and_no_others() {
    let world = World::new();
    let token = world.principal(2, "ci", "acme", &[("viewer", "acme")]);
    world.principal(3, "vault", "other", &[("viewer", "other")]);
    world.principal(4, "bot", "", &[("viewer", "acme"), ("viewer", "other")]);
    let ci = world.present(&token).unwrap();
    let listed = world.call_as(&ci, "principals.list", json!({})).unwrap();
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ci"]);
    let unknown = |name: &str| {
        let refused = world.call_as(&ci, "principals.get", json!({"principal": name}));
        let refused = refused.unwrap_err();
        (refused.code, refused.detail.replace(name, "X"), refused.hint)
    };
    assert_eq!(unknown("vault"), unknown("nobody"));
    assert_eq!(unknown("bot"), unknown("nobody"));
    let all = world.call("principals.list", json!({})).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 4, "admin is one: {all}");
    assert_eq!(all[0]["name"], "admin");
}

#[test]
fn records_of_before_there_were_principals_are_read() {
    let token = r#"{"id":"boot","secretSha256":"00","name":"bootstrap","roles":["cluster-admin"],
        "tenant":"","createdBy":"init","createdAtMs":1,"ttlMs":null,"expiresMs":null,"revoked":null}"#;
    let token: TokenRow = serde_json::from_str(token).unwrap();
    assert!(token.is_valid(5) && token.is_cluster_admin() && token.principal.is_empty());
    let written = serde_json::to_string(&token).unwrap();
    assert!(!written.contains("principal"), "and it is written as it was: {written}");
    let row = r#"{"name":"ada","roles":["operator"],"tenant":"acme","disabled":false}"#;
    let row: PrincipalRow = serde_json::from_str(row).unwrap();
    assert_eq!((row.keys.clone(), row.roles.clone()), (None, vec!["operator".to_owned()]));
    assert!(row.accepts("any key that the CA certified"));
}

#[test]
fn a_bindings_id_tells_all_of_it() {
    let row = |principal: &str, role: &str, tenant: &str| BindingRow {
        principal: principal.into(),
        role: role.into(),
        tenant: tenant.into(),
        created_by: String::new(),
        created_at_ms: 0,
    };
    assert_eq!(row("ci", "viewer", "").id(), "ci.viewer");
    assert_eq!(row("ci", "viewer", "acme").id(), "ci.viewer.acme");
}
