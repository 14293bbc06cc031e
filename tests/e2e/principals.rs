//! Principals, roles and bindings: who may do what, from the command line, over the processes that people run.

use std::{
    fs,
    process::{Child, Command, Stdio},
};

use serde_json::Value;

use crate::support::{Home, Out, Replicas, finish, http::tls, list, text, until};

/// Runs the command line with a token from a file.
fn with_token(home: &Home, file: &str, args: &[&str]) -> Out {
    finish(&mut command(home, file, args))
}

fn command(home: &Home, file: &str, args: &[&str]) -> Command {
    let mut all = vec!["--api-token-file", file];
    all.extend_from_slice(args);
    home.command(&all)
}

fn find(records: &Value, pointer: &str, wanted: &str) -> Value {
    let all = list(records, "");
    let found = all.iter().find(|one| text(one, pointer) == wanted);
    found.unwrap_or_else(|| panic!("no {wanted} in {records}")).clone()
}

/// The file of a new token of a principal.
fn token(cluster: &Replicas, name: &str, principal: &str) -> String {
    let file = cluster.home.path().join(name).to_str().unwrap().to_owned();
    let args = ["api-token", "create", name, "--principal", principal, "--out", &file];
    cluster.home.palisade(&args).ok();
    file
}

/// A watch of the roles, and the file that it writes to.
fn watching(cluster: &Replicas, file: &str) -> (Child, std::path::PathBuf) {
    let path = cluster.home.path().join("watched");
    let out = fs::File::create(&path).unwrap();
    let mut watch = command(&cluster.home, file, &["role", "ls", "--watch"]);
    watch.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
    (watch.spawn().unwrap(), path)
}

#[test]
fn a_principal_may_what_it_is_bound_to_until_it_is_not() {
    let cluster = Replicas::start(3);
    let palisade = |args: &[&str]| cluster.home.palisade(args);
    palisade(&["tenant", "create", "acme"]).ok();
    palisade(&["principal", "create", "ci", "--tenant", "acme", "--dry-run"]).ok();
    palisade(&["principal", "show", "ci"]).ends(3);
    palisade(&["principal", "create", "ci", "--tenant", "acme"]).ok();
    let file = token(&cluster, "ci-token", "ci");
    let ci = |args: &[&str]| with_token(&cluster.home, &file, args);
    ci(&["workload", "ls"]).ends(5).says(&["no role", "palisade binding create"]);
    palisade(&["binding", "create", "ci", "oprator"]).ends(2).says(&["did you mean"]);
    palisade(&["binding", "create", "ci", "operator"]).ok();
    ci(&["workload", "ls"]).ok();
    assert!(ci(&["auth", "whoami"]).ok().stdout.contains("operator@acme"));
    ci(&["auth", "can-i", "create", "binding"]).ends(5);
    // Only scaling.
    palisade(&["role", "create", "scaler", "--action", "compute:workloads:scael"])
        .ends(2)
        .says(&["compute:workloads:scale"]);
    palisade(&["role", "create", "scaler", "--action", "compute:workloads:scale"]).ok();
    palisade(&["binding", "create", "ci", "scaler"]).ok();
    palisade(&["binding", "rm", "ci.operator.acme"]).ok();
    ci(&["workload", "ls"]).ends(5);
    ci(&["workload", "scale", "nothing", "2"]).ends(3);
    palisade(&["role", "rm", "scaler"]).ends(4).says(&["ci.scaler.acme"]);
    let bindings = palisade(&["-o", "json", "binding", "ls", "--tenant", "acme"]).json();
    assert_eq!(list(&bindings, "").len(), 1, "{bindings}");
    // Each replica remembers whom it has let in itself, and any of them answers.
    until("the last use", || {
        let tokens = palisade(&["-o", "json", "api-token", "ls"]).json();
        let used = find(&tokens, "/name", "ci-token");
        text(&used, "/lastUsedAt").starts_with("20").then_some(())
    });
    // What it watches ends with it.
    let (mut watch, path) = watching(&cluster, &file);
    let said = || fs::read_to_string(&path).unwrap_or_default();
    until("the list", || said().contains("scaler").then_some(()));
    palisade(&["principal", "disable", "ci"]).ok();
    let ended = until("the end of the watch", || watch.try_wait().unwrap());
    assert_eq!(ended.code(), Some(5), "{}", said());
    ci(&["role", "ls"]).ends(5).says(&["revoked"]);
    palisade(&["principal", "enable", "ci"]).ok();
    ci(&["role", "ls"]).ok();
    palisade(&["principal", "rm", "ci"]).ok();
    ci(&["role", "ls"]).ends(5).says(&["revoked"]);
    palisade(&["role", "rm", "scaler"]).ok();
}

#[test]
fn a_certificate_lets_in_as_its_principal_while_its_key_is_enrolled() {
    let cluster = Replicas::start(1);
    let palisade = |args: &[&str]| cluster.home.palisade(args);
    palisade(&["principal", "create", "ops"]).ok();
    palisade(&["binding", "create", "ops", "viewer"]).ok();
    let dir = cluster.dir(0);
    let file = |name: &str| cluster.home.path().join(name).to_str().unwrap().to_owned();
    let certify = |principal: &str, out: &str| {
        let out = file(out);
        palisade(&[
            "principal",
            "certify",
            principal,
            "--dir",
            dir.to_str().unwrap(),
            "--out",
            &out,
        ])
    };
    certify("nobody", "nobody.crt").ends(3);
    certify("ops", "ops.crt").ok();
    certify("ops", "ops.crt").ends(2).says(&["exists already"]);
    let ca = fs::read_to_string(dir.join("pki/ca.pem")).unwrap();
    let whoami = |name: &str| {
        let read = |ending: &str| fs::read_to_string(file(&format!("{name}.{ending}"))).unwrap();
        let mut api = cluster.api.clone();
        api.tls = tls(&ca, Some((&read("crt"), &read("key"))));
        let path = "/api/compute/auth/whoami";
        let answer = api.get_by_certificate(0, path).unwrap();
        (answer.status, text(&answer.json(), "/name").to_owned())
    };
    assert_eq!(whoami("ops"), (200, "user/ops".to_owned()));
    certify("ops", "second.crt").ok();
    assert_eq!((whoami("ops").0, whoami("second").0), (200, 200));
    palisade(&["principal", "enrol", "ops", "--cert", &file("second.crt"), "--only"]).ok();
    assert_eq!((whoami("ops").0, whoami("second").0), (401, 200));
    // Also by whoever has no token any more.
    let args = ["--dir", dir.to_str().unwrap(), "--out", &file("admin.crt"), "--no-enrol"];
    let mut rescue = vec!["--context-file", "no-such-file", "principal", "certify", "admin"];
    rescue.extend(args);
    palisade(&rescue).ok();
    assert_eq!(whoami("admin"), (200, "user/admin".to_owned()));
    palisade(&["principal", "disable", "admin"]).ok();
    assert_eq!(whoami("admin").0, 401);
}
