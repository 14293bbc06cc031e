//! Keeping a replica's certificate good for where it is reached, when it starts.

use palisade_api::pki::{Identity as Certificate, Material, covers};
use palisade_raft::{Neighbours, Replica};
use palisade_state::Store;

use super::keeper::peer_tls;
use crate::{
    edge,
    output::{Failure, Outcome},
    pki_files,
    replica_dir::ReplicaDir,
};

/// Where a replica is reached, by its record and by what it is started with.
pub(super) fn addresses(replica: &Replica, neighbours: &Neighbours) -> Vec<String> {
    let own = replica.status().members.into_iter().find(|member| member.id == replica.replica());
    let mut addresses = vec![];
    if let Some(own) = own {
        addresses.extend([own.peer_addr, own.api_addr]);
    }
    if let Some((peer, api)) = neighbours.advertise.clone() {
        addresses.extend([peer, api]);
    }
    addresses.retain(|address| !address.is_empty());
    addresses
}

/// Makes a new certificate for the same key when the replica is reached under a name that the old one does not have:
/// whoever comes by that name would refuse it. Also when the old one's time is over.
pub(super) fn keep_current(
    dir: &ReplicaDir,
    material: &mut Material,
    replica: &Replica,
    neighbours: &Neighbours,
) -> Outcome {
    let failed =
        |what: &str, error: &(dyn std::error::Error + 'static)| Failure::caused(what, error);
    let addresses = addresses(replica, neighbours);
    let now_ms = edge::wall_ms();
    let is_good = |leaf: &rustls::pki_types::CertificateDer<'_>| {
        let ends_ms = palisade_api::pki::not_after_ms(leaf).unwrap_or(0);
        ends_ms > now_ms && covers(leaf, &addresses)
    };
    if material.identity.chain.first().is_none_or(is_good) {
        return Ok(());
    }
    let key_path = dir.pki("replica.key");
    let key_pem = std::fs::read_to_string(&key_path)
        .map_err(|error| failed(&format!("cannot read {}", key_path.display()), &error))?;
    let cert_pem = material
        .authority
        .reissue_replica(&key_pem, dir.identity.replica.0, &addresses, now_ms)
        .map_err(|error| failed("cannot renew the replica's certificate", &error))?;
    pki_files::put(dir, "replica.pem", &cert_pem)?;
    material.identity = Certificate::load(&dir.pki("replica.pem"), &key_path)
        .map_err(|error| failed("cannot use the replica's new certificate", &error))?;
    replica
        .replace_tls(peer_tls(material))
        .map_err(|error| failed("cannot use the replica's new certificate", &error))?;
    tracing::info!(?addresses, "this replica's certificate was renewed for its addresses");
    Ok(())
}
