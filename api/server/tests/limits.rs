//! Limits: what is too large, too slow, too much, or of another cluster.

use std::time::Duration;

use palisade_api::{
    ApiServer, Limits,
    pki::{Authority, Identity},
};
use palisade_state::Runtime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{self, Options, client, world, world_with};

fn quick() -> Options {
    let limits = Limits {
        header_timeout: Duration::from_millis(500),
        body_timeout: Duration::from_millis(500),
        handshake_timeout: Duration::from_millis(500),
        ..Limits::default()
    };
    Options { limits, ..Options::default() }
}

#[test]
fn the_default_limits_close_a_slow_connection_within_ten_seconds() {
    let limits = Limits::default();
    let ten = Duration::from_secs(10);
    assert!(
        limits.header_timeout < ten && limits.body_timeout < ten && limits.handshake_timeout < ten
    );
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_naming_it() {
    let world = world().await;
    let body = format!("{{\"sizeLimit\":1,\"name\":\"{}\"}}", "x".repeat(2 * 1024 * 1024));
    let refused = world.api("PUT", "/widgets/a").text(body).send().await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (413, "TOO_LARGE"));
    assert!(refused.json()["detail"].as_str().unwrap().contains("1048576"), "{:?}", refused.body);
}

#[tokio::test]
async fn headers_over_the_limit_are_refused() {
    let world = world().await;
    let path = format!("/widgets?filter={}", "x".repeat(16 * 1024));
    let refused = world.api("GET", &path).send().await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (431, "TOO_LARGE"));
    assert_eq!(refused.json()["status"], 431);
    assert!(refused.json()["detail"].as_str().unwrap().contains("16384"), "{:?}", refused.body);
    let large = "x".repeat(64 * 1024);
    let refused = world.api("GET", "/widgets").header("x-large", &large).send().await;
    assert_eq!(refused.status, 431);
}

/// Sends `first`, then a byte at a time, until the server closes.
async fn trickle(world: &support::World, first: &[u8]) -> Vec<u8> {
    let config = client::tls(&world.authority, None);
    let mut stream = client::connect(world, config).await.unwrap();
    stream.write_all(first).await.unwrap();
    let mut answered = vec![];
    for _ in 0..100 {
        let mut buffer = [0; 4096];
        let read = palisade_state::port::timeout(
            &*world.rt,
            Duration::from_millis(50),
            stream.read(&mut buffer),
        );
        match read.await {
            None => {}
            Some(Ok(0) | Err(_)) => return answered,
            Some(Ok(size)) => answered.extend_from_slice(&buffer[..size]),
        }
        if stream.write_all(b"x").await.is_err() || stream.flush().await.is_err() {
            return answered;
        }
    }
    panic!("the connection stayed open: {:?}", String::from_utf8_lossy(&answered));
}

#[tokio::test]
async fn a_client_that_trickles_its_headers_is_cut_off() {
    let world = world_with(quick()).await;
    trickle(&world, b"GET /api/compute/widgets HTTP/1.1\r\nhost: x\r\nx-slow: ").await;
}

#[tokio::test]
async fn a_client_that_trickles_its_body_is_answered_and_cut_off() {
    let world = world_with(quick()).await;
    let head =
        b"PUT /api/compute/widgets/a HTTP/1.1\r\nhost: x\r\nauthorization: Bearer pal_admin\r\n\
        content-type: application/json\r\ncontent-length: 1000\r\n\r\n";
    let answered = trickle(&world, head).await;
    let text = String::from_utf8_lossy(&answered).into_owned();
    assert!(text.starts_with("HTTP/1.1 400") && text.contains("did not arrive"), "{text}");
}

#[tokio::test]
async fn a_client_that_never_shakes_hands_is_cut_off() {
    let world = world_with(quick()).await;
    let mut tcp = tokio::net::TcpStream::connect(world.server.local_addr()).await.unwrap();
    let mut buffer = [0; 16];
    let read =
        palisade_state::port::timeout(&*world.rt, Duration::from_secs(5), tcp.read(&mut buffer));
    assert_eq!(read.await.unwrap().unwrap_or(0), 0);
}

#[tokio::test]
async fn more_requests_than_fit_are_told_to_come_back() {
    let limits = Limits { in_flight_max: 0, ..Limits::default() };
    let world = world_with(Options { limits, ..Options::default() }).await;
    let refused = world.api("GET", "/widgets").send().await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "UNAVAILABLE"));
    assert_eq!(refused.header("retry-after"), "1");
    assert_eq!(world.call("GET", "/healthz").send().await.status, 200);
}

#[tokio::test]
async fn more_connections_than_fit_are_closed() {
    let limits = Limits { connections_max: 0, ..Limits::default() };
    let world = world_with(Options { limits, ..Options::default() }).await;
    let config = client::tls(&world.authority, None);
    assert!(client::connect(&world, config).await.is_err());
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused() {
    let world = world().await;
    let now = world.rt.wall_ms();
    let other = Authority::create("lin", now).unwrap();
    let ada = other.issue_operator("ada", Duration::from_secs(60), now).unwrap();
    let config = client::tls(&world.authority, Some(&Identity::try_from(&ada).unwrap()));
    // In TLS 1.3 the client learns of the refusal with the first bytes that it reads.
    let refused = match client::connect(&world, config).await {
        Err(_) => true,
        Ok(stream) => {
            let request = http::Request::get("/healthz").body(Default::default()).unwrap();
            client::send(stream, &*world.rt, request).await.is_err()
        }
    };
    assert!(refused);
    let config = client::tls(&other, None);
    assert!(client::connect(&world, config).await.is_err(), "and a client refuses this server");
}

#[tokio::test]
async fn plaintext_is_not_answered() {
    let world = world_with(quick()).await;
    let mut tcp = tokio::net::TcpStream::connect(world.server.local_addr()).await.unwrap();
    tcp.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answered = vec![];
    let _ = tcp.read_to_end(&mut answered).await;
    assert!(!answered.starts_with(b"HTTP"), "{answered:?}");
}

#[tokio::test]
async fn a_port_in_use_is_named_with_what_to_do() {
    let world = world().await;
    let store = support::TestStore::new();
    let mut options = support::api_options(store, world.authority.clone(), Options::default());
    options.listen = world.server.local_addr().to_string();
    let Err(error) = ApiServer::start(options).await else { panic!("two on one port") };
    let text = error.to_string();
    assert!(text.contains(&world.server.local_addr().to_string()), "{text}");
    assert!(text.contains("in use") && text.contains("ss -ltnp"), "{text}");
}

#[tokio::test]
async fn a_shutdown_ends_in_its_grace_although_a_connection_is_idle() {
    let world = world().await;
    let config = client::tls(&world.authority, None);
    let _idle = client::connect(&world, config).await.unwrap();
    let address = world.server.local_addr();
    let grace = Duration::from_secs(5);
    let ended = palisade_state::port::timeout(&*world.rt, grace * 2, world.server.shutdown(grace));
    assert!(ended.await.is_some());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn before_its_tables_are_ready_a_replica_answers_health_alone() {
    let world = world().await;
    world.open.store(false, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(world.call("GET", "/healthz").send().await.status, 200);
    assert_eq!(world.call("GET", "/readyz").send().await.status, 503);
    let refused = world.api("GET", "/widgets").send().await;
    assert_eq!((refused.status.as_u16(), refused.code().as_str()), (503, "UNAVAILABLE"));
    let token = support::nodes::TOKEN;
    let refused =
        support::agent::join(&world, token, &support::agent::new_key()).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable, "not a word about the token");
}
