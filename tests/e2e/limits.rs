//! Requests that are too large or too slow, and ports that are taken.

use std::{
    io::{ErrorKind, Read, Write},
    net::TcpListener,
    time::{Duration, Instant},
};

use crate::support::{Replicas, Slot, http::BASE};

/// Bytes of a body.
const LIMIT: usize = 1024 * 1024;

#[test]
fn a_body_over_the_limit_is_refused_and_one_at_the_limit_is_read() {
    let cluster = Replicas::start(1);
    let put = |bytes: usize| {
        let body = format!("{{\"name\": \"{}\"}}", "x".repeat(bytes - 12));
        cluster.api.send(0, "PUT", &format!("{BASE}/workloads/big"), &[], body.as_bytes()).unwrap()
    };
    for over in [LIMIT + 1, 8 * LIMIT] {
        let answer = put(over);
        assert_eq!((answer.status, answer.code().as_str()), (413, "TOO_LARGE"), "{answer:#?}");
        assert!(answer.body.contains(&LIMIT.to_string()), "the limit is named: {answer:#?}");
    }
    assert_eq!(put(LIMIT).code(), "INVALID_INPUT", "a body of just the limit is read");
    assert!(cluster.api.is_ready(0), "it serves others all the same");
}

#[test]
fn a_client_that_trickles_is_cut_off() {
    let cluster = Replicas::start(1);
    let mut stream = cluster.api.connect(0).unwrap();
    stream.sock.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ").unwrap();
    let begin = Instant::now();
    let mut buffer = [0; 1024];
    loop {
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "it was let in for {:?}",
            begin.elapsed()
        );
        if stream.write_all(b"x").and_then(|()| stream.flush()).is_err() {
            break;
        }
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                break;
            }
            _ => {}
        }
    }
    assert!(cluster.api.is_ready(0), "it serves others all the same");
}

#[test]
fn a_taken_port_is_named_at_the_start() {
    let mut cluster = Replicas::prepare(1, Some(Slot::take()));
    for addr in [cluster.api.addrs[0].clone(), cluster.peer_addr(0)] {
        let taken = TcpListener::bind(&addr).unwrap();
        let port = addr.rsplit_once(':').unwrap().1;
        cluster.refuses(0).ends(1).says(&[port, "in use"]);
        drop(taken);
    }
    cluster.start_all();
    // The directory itself is taken as well, and by whom is said.
    let holder = cluster.pid(0).to_string();
    cluster.refuses(0).ends(4).says(&["in use", &holder]);
}
