//! Keeping a replica's certificate good for where it is reached.

use palisade_api::pki::{Authority, Identity as Certificate, covers};
use palisade_raft::{Neighbours, PeerTls, Replica};
use palisade_state::Store;

use crate::{
    edge,
    join::write_secret,
    output::{Failure, Outcome},
    replica_dir::ReplicaDir,
};

/// Makes a new certificate for the same key when the replica is reached under a name that the old one does not have:
/// whoever comes by that name would refuse it.
pub(super) fn keep_current(
    dir: &ReplicaDir,
    authority: &Authority,
    certificate: &mut Certificate,
    replica: &Replica,
    neighbours: &Neighbours,
) -> Outcome {
    let failed =
        |what: &str, error: &(dyn std::error::Error + 'static)| Failure::caused(what, error);
    let own = replica.status().members.into_iter().find(|member| member.id == replica.replica());
    let mut addresses = vec![];
    if let Some(own) = own {
        addresses.extend([own.peer_addr, own.api_addr]);
    }
    if let Some((peer, api)) = neighbours.advertise.clone() {
        addresses.extend([peer, api]);
    }
    addresses.retain(|address| !address.is_empty());
    let leaf = certificate.chain.first();
    if leaf.is_none_or(|leaf| covers(leaf, &addresses)) {
        return Ok(());
    }
    let key_path = dir.pki("replica.key");
    let key_pem = std::fs::read_to_string(&key_path)
        .map_err(|error| failed(&format!("cannot read {}", key_path.display()), &error))?;
    let id = dir.identity.replica.0;
    let cert_pem = authority
        .reissue_replica(&key_pem, id, &addresses, edge::wall_ms())
        .map_err(|error| failed("cannot renew the replica's certificate", &error))?;
    write_secret(&dir.pki("replica.pem"), cert_pem.as_bytes())
        .map_err(|error| failed("cannot write the replica's certificate", &error))?;
    *certificate = Certificate::load(&dir.pki("replica.pem"), &key_path)
        .map_err(|error| failed("cannot use the replica's new certificate", &error))?;
    let tls = PeerTls {
        ca_der: vec![authority.cert_der().clone()],
        chain_der: certificate.chain.clone(),
        key_der: certificate.key.clone_key(),
    };
    replica
        .replace_tls(tls)
        .map_err(|error| failed("cannot use the replica's new certificate", &error))?;
    tracing::info!(?addresses, "this replica's certificate was renewed for its addresses");
    Ok(())
}
