//! Joining over real TLS.

use std::os::unix::fs::PermissionsExt;

use palisade_agent::{
    Identity, TokioRuntime,
    config::Config,
    join::{JoinError, JoinOptions, Joined, join},
};
use tonic::Status;

use crate::support::gateway::{Ca, Fake, Script, token_file};

fn options(dir: &std::path::Path, servers: &[&str], pin: String) -> JoinOptions {
    let mut config = Config::new(dir.join("data"));
    config.servers = servers.iter().map(|server| (*server).to_owned()).collect();
    JoinOptions { config, token_file: token_file(dir), pins: vec![pin], agent_version: "1".into() }
}

async fn join_with(options: JoinOptions) -> Result<Joined, JoinError> {
    join(&TokioRuntime::shared(), options).await
}

#[tokio::test]
async fn a_node_joins_once_and_again_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let gateway = Fake::start(&ca, Script::default()).await;
    let options = options(dir.path(), &[&gateway.address], ca.pin());
    let joined = join_with(options.clone()).await.unwrap();
    assert_eq!((joined.node_id.as_str(), joined.already), ("n1", false));
    let path = dir.path().join("data/identity.json");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let identity = Identity::load(&dir.path().join("data")).unwrap().unwrap();
    assert_eq!(identity.servers, [gateway.address.as_str()]);
    std::fs::remove_file(&options.token_file).unwrap();
    assert!(join_with(options).await.unwrap().already);
    assert_eq!(gateway.seen(|seen| seen.joins.len()), 1);
}

#[tokio::test]
async fn a_server_with_another_key_never_gets_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, other) = (Ca::new(), Ca::new());
    let gateway = Fake::start(&other, Script::default()).await;
    let error = join_with(options(dir.path(), &[&gateway.address], ca.pin())).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&other.pin()) && text.contains("was not sent"), "{text}");
    assert_eq!(gateway.seen(|seen| seen.joins.len()), 0);
}

#[tokio::test]
async fn a_server_that_only_shows_the_pinned_authority_never_gets_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, evil) = (Ca::new(), Ca::new());
    let gateway = Fake::impostor(&evil, &ca, Script::default()).await;
    let options = options(dir.path(), &[&gateway.address], ca.pin());
    let error = join_with(options).await.unwrap_err();
    assert!(matches!(error, JoinError::Connect(_)), "{error}");
    assert_eq!(gateway.seen(|seen| seen.joins.len()), 0);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_the_same_key() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let refusals = vec![Status::unavailable("no quorum")];
    let script = Script { join_refusals: refusals, ..Script::default() };
    let gateway = Fake::start(&ca, script).await;
    join_with(options(dir.path(), &[&gateway.address], ca.pin())).await.unwrap();
    let keys =
        gateway.seen(|seen| seen.joins.iter().map(|join| join.1.clone()).collect::<Vec<_>>());
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], keys[1]);
}

#[tokio::test]
async fn a_killed_join_goes_on_with_the_same_key() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let refusals = vec![Status::permission_denied("it is being looked at")];
    let script = Script { join_refusals: refusals, ..Script::default() };
    let gateway = Fake::start(&ca, script).await;
    let options = options(dir.path(), &[&gateway.address], ca.pin());
    join_with(options.clone()).await.unwrap_err();
    join_with(options).await.unwrap();
    let keys =
        gateway.seen(|seen| seen.joins.iter().map(|join| join.1.clone()).collect::<Vec<_>>());
    assert_eq!(keys[0], keys[1]);
}

#[tokio::test]
async fn a_refusal_tells_the_servers_words_and_what_to_do_but_not_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let refusals = vec![Status::permission_denied("the token expired 3 min ago")];
    let script = Script { join_refusals: refusals, ..Script::default() };
    let gateway = Fake::start(&ca, script).await;
    let error = join_with(options(dir.path(), &[&gateway.address], ca.pin())).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains("expired 3 min ago") && text.contains("token create"), "{text}");
    assert!(text.contains("abcdefghijklmnop") && !text.contains("AAAA"), "{text}");
}

#[tokio::test]
async fn another_server_is_asked_when_one_is_down() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let gateway = Fake::start(&ca, Script::default()).await;
    let down = "127.0.0.1:1";
    join_with(options(dir.path(), &[down, &gateway.address], ca.pin())).await.unwrap();
}

#[tokio::test]
async fn without_a_pin_nothing_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let ca = Ca::new();
    let gateway = Fake::start(&ca, Script::default()).await;
    let mut options = options(dir.path(), &[&gateway.address], ca.pin());
    options.pins.clear();
    assert!(matches!(join_with(options).await, Err(JoinError::NoPin)));
    assert_eq!(gateway.seen(|seen| seen.joins.len()), 0);
}
