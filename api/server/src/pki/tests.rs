use super::*;

const NOW: u64 = 1_790_000_000_000;

fn node() -> NodeId {
    NodeId::parse("nd_01arz3ndektsv4rrffq69g5fav").unwrap()
}

fn request(key: &KeyPair) -> Vec<u8> {
    let mut params = CertificateParams::default();
    params.subject_alt_names =
        vec![SanType::URI("palisade://other/replica/1".to_owned().try_into().unwrap())];
    params.serialize_request(key).unwrap().der().to_vec()
}

#[test]
fn the_pin_of_a_known_key_is_the_known_one() {
    let spki = hex::decode(
        "302a300506032b6570032100d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    )
    .unwrap();
    assert_eq!(pin_of_spki(&spki), "sha256/BuP9j9opu2CrWVV95h7bCuzbIxE0vjDnW0Vfjht5L6k=");
}

#[test]
fn a_ca_survives_pem() {
    let made = Authority::create("lin", NOW).unwrap();
    let read = Authority::from_pem(made.cert_pem(), &made.key_pem()).unwrap();
    assert_eq!(read.lineage(), "lin");
    assert_eq!(read.pin(), made.pin());
    assert_eq!(pin_of(made.cert_der()).unwrap(), made.pin());
}

#[test]
fn a_ca_with_another_key_is_refused() {
    let (one, other) = (Authority::create("a", NOW).unwrap(), Authority::create("a", NOW).unwrap());
    let refused = Authority::from_pem(one.cert_pem(), &other.key_pem()).unwrap_err();
    assert!(refused.to_string().contains("do not belong together"), "{refused}");
}

#[test]
fn a_node_certificate_names_the_node_and_nothing_from_the_request() {
    let ca = Authority::create("lin", NOW).unwrap();
    let key = new_key().unwrap();
    let der = ca.issue_node(&request(&key), &node(), NOW).unwrap();
    let peer = peer_of(&der).unwrap();
    assert_eq!(peer.role, PeerRole::Node(node()));
    assert_eq!(peer.uri, format!("palisade://lin/node/{}", node()));
    assert_eq!(peer.key, request_key(&request(&key)).unwrap());
    assert_eq!(not_after_ms(&der).unwrap(), NOW + 24 * 3_600_000);
}

#[test]
fn a_request_that_is_not_signed_with_its_key_is_refused() {
    let ca = Authority::create("lin", NOW).unwrap();
    let mut csr = request(&new_key().unwrap());
    let last = csr.len() - 1;
    csr[last] ^= 1;
    assert!(matches!(ca.issue_node(&csr, &node(), NOW), Err(PkiError::Request(_))));
    assert!(matches!(request_key(b"junk"), Err(PkiError::Request(_))));
}

#[test]
fn replicas_and_operators_are_told_apart() {
    let ca = Authority::create("lin", NOW).unwrap();
    let replica = ca.issue_replica(3, &["127.0.0.1:7000".to_owned()], NOW).unwrap();
    let identity = Identity::try_from(&replica).unwrap();
    assert_eq!(identity.chain.len(), 2, "the issuer follows");
    assert_eq!(peer_of(&identity.chain[0]).unwrap().role, PeerRole::Replica(3));
    let operator = ca.issue_operator("ada", DAY, NOW).unwrap();
    let identity = Identity::try_from(&operator).unwrap();
    assert_eq!(peer_of(&identity.chain[0]).unwrap().role, PeerRole::User("ada".to_owned()));
    assert!(ca.issue_operator("../x", DAY, NOW).is_err());
}

#[test]
fn hosts_are_found_in_addresses() {
    for (address, host) in [
        ("127.0.0.1:80", "127.0.0.1"),
        ("[::1]:80", "::1"),
        ("::1", "::1"),
        ("a.example:443", "a.example"),
        ("a.example", "a.example"),
    ] {
        assert_eq!(host_of(address), host);
    }
    assert_eq!(host_names(&["0.0.0.0:1".to_owned()]), ["localhost", "127.0.0.1", "::1"]);
}

#[test]
fn a_file_that_holds_no_certificate_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ca.pem");
    std::fs::write(&path, "junk").unwrap();
    let refused = load_certificates(&path).unwrap_err().to_string();
    assert!(refused.contains("ca.pem") && refused.contains("certificate"), "{refused}");
}
