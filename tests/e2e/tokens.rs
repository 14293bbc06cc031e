//! Join tokens and files of secrets that must not be accepted.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::support::{Out, Replicas, list, text, until};

/// A join token that was made.
pub struct Token {
    pub file: String,
    pub id: String,
    pub pin: String,
}

/// Makes one into a file of that name.
pub fn create(cluster: &Replicas, name: &str, flags: &[&str]) -> Token {
    let file = cluster.home.path().join(name).to_str().unwrap().to_owned();
    let mut args = vec!["-o", "json", "token", "create", "--out", &file];
    args.extend_from_slice(flags);
    let record = cluster.home.palisade(&args).json();
    let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    Token { id: text(&record, "/id").to_owned(), pin: text(&record, "/pins/0").to_owned(), file }
}

/// Joins the first replica of `server` as a new node.
pub fn join(server: &Replicas, data: &str, token_file: &str, pin: &str) -> Out {
    let args = [
        "agent",
        "join",
        "--server",
        &server.api.addrs[0],
        "--pin",
        pin,
        "--token-file",
        token_file,
        "--data-dir",
        data,
        "--name",
        data,
        "--ports",
        "30000-30009",
        "--address",
        "127.0.0.1",
    ];
    server.home.palisade(&args)
}

fn status(cluster: &Replicas, id: &str) -> String {
    let tokens = cluster.home.palisade(&["-o", "json", "token", "ls"]).json();
    let token = list(&tokens, "").iter().find(|token| text(token, "/id") == id);
    text(token.expect("the token is listed"), "/status").to_owned()
}

fn nodes(cluster: &Replicas) -> usize {
    list(&cluster.home.palisade(&["-o", "json", "node", "ls"]).json(), "").len()
}

fn has_no_identity(cluster: &Replicas, data: &str) {
    assert!(!cluster.home.path().join(data).join("identity.json").exists(), "{data}");
}

#[test]
fn a_join_token_that_is_wrong_used_expired_or_exposed_joins_nobody() {
    let cluster = Replicas::start(1);
    let good = create(&cluster, "good", &[]);
    let text = fs::read_to_string(&good.file).unwrap();
    let (head, secret) = text.trim().rsplit_once('.').unwrap();
    let wrong_secret: String = secret.chars().rev().collect();
    let write = |name: &str, text: &str| {
        let path = cluster.home.write(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let wrong = write("wrong", &format!("{head}.{wrong_secret}\n"));
    let refused = join(&cluster, "n-wrong", &wrong, &good.pin).ends(5);
    assert!(!refused.stderr.contains(secret) && !refused.stderr.contains(&wrong_secret));
    has_no_identity(&cluster, "n-wrong");
    for (name, text) in [("garbage", "hello"), ("empty", ""), ("api", "pal_abc_def")] {
        let file = write(name, text);
        let refused = join(&cluster, "n-garbage", &file, &good.pin);
        assert!(refused.code != 0 && refused.stderr.contains("token"), "{refused:#?}");
    }
    join(&cluster, "n-garbage", "nowhere", &good.pin).ends(2).says(&["nowhere"]);
    exposed(&cluster, &good);
    // None of that used it up.
    assert_eq!(status(&cluster, &good.id), "active");
    join(&cluster, "n-good", &good.file, &good.pin).ok();
    assert_eq!(status(&cluster, &good.id), "used");
    join(&cluster, "n-good", &good.file, &good.pin).ok().says(&[]);
    let used = join(&cluster, "n-second", &good.file, &good.pin).ends(5);
    assert!(used.stderr.contains("used"), "{used:#?}");
    has_no_identity(&cluster, "n-second");
    let short = create(&cluster, "short", &["--ttl", "1s"]);
    until("the end of a token", || (status(&cluster, &short.id) == "expired").then_some(()));
    let late = join(&cluster, "n-late", &short.file, &short.pin).ends(5);
    assert!(late.stderr.contains("expired"), "{late:#?}");
    let revoked = create(&cluster, "revoked", &[]);
    cluster.home.palisade(&["token", "rm", &revoked.id]).ok();
    join(&cluster, "n-revoked", &revoked.file, &revoked.pin).ends(5).says(&["revoked"]);
    assert_eq!(nodes(&cluster), 1, "only the good one joined");
}

fn exposed(cluster: &Replicas, good: &Token) {
    for mode in [0o640, 0o604, 0o620] {
        fs::set_permissions(&good.file, fs::Permissions::from_mode(mode)).unwrap();
        let refused = join(cluster, "n-exposed", &good.file, &good.pin).ends(2);
        assert!(
            refused.stderr.contains("chmod") || refused.stderr.contains("mode"),
            "{refused:#?}"
        );
    }
    fs::set_permissions(&good.file, fs::Permissions::from_mode(0o600)).unwrap();
    has_no_identity(cluster, "n-exposed");
}

#[test]
fn a_join_token_of_another_cluster_is_not_even_sent() {
    let (here, there) = (Replicas::start(1), Replicas::beside());
    let token = create(&here, "token", &[]);
    // With its own cluster's pin the agent stops before it says anything.
    let refused = join(&there, "n-1", &token.file, &token.pin);
    assert!(refused.code != 0, "{refused:#?}");
    refused.says(&["has not proven a pinned key", "the token was not sent"]);
    // And with the other's pin, that cluster does not know the token.
    let other = create(&there, "other", &[]);
    join(&there, "n-1", &token.file, &other.pin).ends(5);
    has_no_identity(&there, "n-1");
    assert_eq!((nodes(&here), nodes(&there)), (0, 0));
    assert_eq!(status(&here, &token.id), "active");
    join(&here, "n-1", &token.file, &token.pin).ok();
}

#[test]
fn a_context_file_that_others_can_read_is_refused() {
    let cluster = Replicas::start(1);
    let path = cluster.home.context_file();
    let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    for exposed in [0o640, 0o604, 0o660] {
        mode(exposed);
        cluster.home.palisade(&["node", "ls"]).ends(2).says(&["contexts.toml", "chmod 600"]);
    }
    mode(0o600);
    cluster.home.palisade(&["node", "ls"]).ok();
    secrets_are_nowhere(&cluster);
}

/// The admin's token is in the context file and nowhere else.
fn secrets_are_nowhere(cluster: &Replicas) {
    let secret = cluster.api.token.rsplit_once('_').unwrap().1.as_bytes();
    let mut dirs = vec![cluster.home.path().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path != cluster.home.context_file() {
                assert!(!holds(&path, secret), "a secret is in {}", path.display());
            }
        }
    }
}

fn holds(path: &Path, secret: &[u8]) -> bool {
    let bytes = fs::read(path).unwrap();
    bytes.windows(secret.len()).any(|part| part == secret)
}
