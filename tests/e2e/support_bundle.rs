//! `palisade support bundle`: every part of a cluster in one file, and no secret.

use std::{fs, os::unix::fs::PermissionsExt};

use serde_json::Value;

use crate::support::{Dev, list, text};

#[test]
fn a_bundle_has_every_part_and_no_secret() {
    let dev = Dev::start();
    let spec = fs::read_to_string(crate::support::example("hello.yaml")).unwrap();
    let spec = spec.replace(
        "command: [palisade, hello]",
        "command: [palisade, hello]\n  env: { DB: canary-env }",
    );
    let spec = dev.home.write("secretive.yaml", spec);
    dev.palisade(&["workload", "apply", "-f", spec.to_str().unwrap()]).ok();
    let made = dev.palisade(&["api-token", "create", "canary", "--role", "viewer"]).ok();
    let out = dev.home.path().join("bundle.json");
    let bundle = || dev.palisade(&["support", "bundle", "--out", out.to_str().unwrap()]);
    bundle().ok();
    assert_eq!(fs::metadata(&out).unwrap().permissions().mode() & 0o777, 0o600);
    let file = fs::read_to_string(&out).unwrap();
    let token = dev.api().token;
    for secret in ["canary-env", made.stdout.trim(), token.as_str()] {
        assert!(!file.contains(secret), "SUPPORT-1: {secret} is in the bundle");
    }
    let whole: Value = serde_json::from_str(&file).unwrap();
    assert_eq!(list(&whole, "/replicas").len(), 3);
    for replica in list(&whole, "/replicas") {
        assert!(text(replica, "/metrics").contains("palisade_"), "{replica}");
        assert!(replica.pointer("/cluster/term").is_some(), "{replica}");
    }
    assert_eq!(text(&whole, "/cluster/workloads/0/name"), "hello");
    for part in ["nodes", "instances", "events/items", "audit/items"] {
        assert!(!list(&whole, &format!("/cluster/{part}")).is_empty(), "{part}");
    }
    assert!(!file.contains("notRead"), "SUPPORT-2: all of it answers");
    bundle().ends(1).says(&["cannot write", "--out"]);
    assert_eq!(fs::read_to_string(&out).unwrap(), file, "what is there is not written over");
}
