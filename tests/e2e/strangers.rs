//! Who does not belong to the cluster is told nothing by it.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use rustls::ClientConfig;

use crate::{
    support::{
        Replicas,
        http::{connect, read_all, tls},
        list, text,
    },
    tokens::{create, join},
};

/// Whether a request over such a connection is answered at all.
fn answered(addr: &str, tls: &Arc<ClientConfig>) -> bool {
    let Ok(mut stream) = connect(addr, tls) else { return false };
    // In TLS 1.3 a client learns that its certificate is refused with the first bytes it reads.
    let asked = stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    asked.is_ok() && read_all(&mut stream).is_ok_and(|bytes| !bytes.is_empty())
}

fn pki(cluster: &Replicas, file: &str) -> String {
    fs::read_to_string(cluster.dir(0).join("pki").join(file)).unwrap()
}

#[test]
fn a_client_of_another_cluster_is_refused_and_refuses() {
    let (here, there) = (Replicas::start(1), Replicas::beside());
    let addr = &here.api.addrs[0];
    let (our_ca, their_ca) = (pki(&here, "ca.pem"), pki(&there, "ca.pem"));
    let ours = (pki(&here, "replica.pem"), pki(&here, "replica.key"));
    let theirs = (pki(&there, "replica.pem"), pki(&there, "replica.key"));
    assert!(answered(addr, &tls(&our_ca, None)));
    assert!(answered(addr, &tls(&our_ca, Some((&ours.0, &ours.1)))));
    assert!(
        !answered(addr, &tls(&our_ca, Some((&theirs.0, &theirs.1)))),
        "a certificate of another CA"
    );
    assert!(!answered(addr, &tls(&their_ca, None)), "the client does not know this CA");
    // The same from the command line: a wrong CA, and another cluster's token.
    let ca = there.dir(0).join("pki/ca.pem");
    let args = ["--cacert", ca.to_str().unwrap(), "node", "ls"];
    here.home.palisade(&args).ends(5).says(&["certificate"]);
    let token = here.home.write("token", &there.api.token);
    let args = ["--api-token-file", token.to_str().unwrap(), "node", "ls"];
    here.home.palisade(&args).ends(5).says(&["token"]);
    let mut stranger = here.api.clone();
    for bad in ["", "pal_", "pal_x_y", "Bearer", &there.api.token] {
        stranger.token = bad.to_owned();
        let answer = stranger.get(0, "/api/compute/nodes").unwrap();
        assert_eq!((answer.status, answer.code().as_str()), (401, "UNAUTHENTICATED"), "{bad:?}");
    }
}

#[test]
fn an_agent_of_another_cluster_is_not_served() {
    let (here, there) = (Replicas::start(1), Replicas::beside());
    let identity = |cluster: &Replicas| {
        let token = create(cluster, "token", &[]);
        join(cluster, "node", &token.file, &token.pin).ok();
        let path = cluster.home.path().join("node/identity.json");
        let identity: serde_json::Value =
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let chain = list(&identity, "/chain").iter().map(|der| {
            let der = der.as_str().unwrap();
            format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n")
        });
        (chain.collect::<String>(), text(&identity, "/keyPem").to_owned())
    };
    let (ours, theirs) = (identity(&here), identity(&there));
    let (addr, our_ca) = (&here.api.addrs[0], pki(&here, "ca.pem"));
    assert!(answered(addr, &tls(&our_ca, Some((&ours.0, &ours.1)))));
    assert!(!answered(addr, &tls(&our_ca, Some((&theirs.0, &theirs.1)))));
}

#[test]
fn the_port_of_the_replicas_takes_replicas_of_this_cluster_alone() {
    let (here, there) = (Replicas::start(1), Replicas::beside());
    let (addr, our_ca) = (here.peer_addr(0), pki(&here, "ca.pem"));
    let refused = |identity: Option<(&str, &str)>| {
        let Ok(mut stream) = connect(&addr, &tls(&our_ca, identity)) else { return true };
        // An HTTP/2 server that took us would send its settings.
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        let mut buffer = [0; 9];
        stream.read_exact(&mut buffer).is_err()
    };
    let theirs = (pki(&there, "replica.pem"), pki(&there, "replica.key"));
    assert!(refused(None), "no certificate");
    assert!(refused(Some((&theirs.0, &theirs.1))), "a replica of another cluster");
}

#[test]
fn plaintext_is_not_answered_on_any_port() {
    let here = Replicas::start(1);
    for addr in [here.api.addrs[0].clone(), here.peer_addr(0)] {
        let mut tcp = TcpStream::connect(&addr).unwrap();
        tcp.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        tcp.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut bytes = Vec::new();
        let _ = tcp.read_to_end(&mut bytes);
        assert!(!bytes.starts_with(b"HTTP"), "{addr}: {bytes:?}");
    }
}
