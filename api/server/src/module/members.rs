//! The methods that change the control plane's members.

use std::sync::{Arc, OnceLock};

use palisade_contract::{
    Check, Error, Method, MethodContext, Resource, Result, Verb,
    host::is_host,
    input::Problems,
    ports::{MemberChange, MemberChanged},
};
use rustls_pki_types::{CertificateSigningRequestDer, pem::PemObject};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Attached;
use crate::pki;

pub(super) const CLUSTER_WRITE: &str = "compute:cluster:write";

/// Input of `cluster.addReplica`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AddReplica {
    /// A certificate signing request in PEM, made where the key stays. The same key gets the same id.
    csr: String,
    /// Where its peers will reach it, `host:port`.
    peer_addr: String,
    /// Where operators and agents will reach it, `host:port`.
    api_addr: String,
    /// The member whose place it takes once it votes.
    #[serde(default)]
    replace: Option<u64>,
}

/// Whether this is `host:port`.
fn check_address(address: &str, at: String, problems: &mut Problems) {
    let is_one = address.rsplit_once(':').is_some_and(|(host, port)| {
        is_host(host) && port.parse::<u16>().is_ok_and(|port| port != 0)
    });
    if !is_one {
        problems.add(at, "must be host:port, such as 10.0.0.4:7411");
    }
}

impl Check for AddReplica {
    fn check(&self, at: &str, problems: &mut Problems) {
        check_address(&self.peer_addr, format!("{at}/peerAddr"), problems);
        check_address(&self.api_addr, format!("{at}/apiAddr"), problems);
        check_id(self.replace, format!("{at}/replace"), problems);
    }
}

/// A member as a replica that joins must know it.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Neighbour {
    id: u64,
    peer_addr: String,
    api_addr: String,
}

/// What a replica that joins needs; no secret is among it.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Added {
    /// Its id: it never had one before, and nobody will have this one again.
    id: u64,
    cluster: String,
    lineage: String,
    epoch: u64,
    /// Its certificate, followed by the CA's. Empty on a dry run.
    cert_pem: String,
    ca_pem: String,
    members: Vec<Neighbour>,
    note: String,
}

/// No replica has the id 0, and absent is another thing.
fn check_id(id: Option<u64>, at: String, problems: &mut Problems) {
    if id == Some(0) {
        problems.add(at, "must be a replica's id, which is at least 1");
    }
}

/// Input of `cluster.removeReplica`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RemoveReplica {
    /// Its id.
    replica: u64,
    /// Also when that puts the quorum at risk.
    #[serde(default)]
    force: bool,
}

impl Check for RemoveReplica {}

/// Input of `cluster.setAddress`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SetAddress {
    /// Its id.
    replica: u64,
    /// Where its peers reach it, `host:port`; absent: as it is.
    #[serde(default)]
    peer_addr: Option<String>,
    /// Where operators and agents reach it, `host:port`; absent: as it is.
    #[serde(default)]
    api_addr: Option<String>,
}

impl Check for SetAddress {
    fn check(&self, at: &str, problems: &mut Problems) {
        if let Some(address) = &self.peer_addr {
            check_address(address, format!("{at}/peerAddr"), problems);
        }
        if let Some(address) = &self.api_addr {
            check_address(address, format!("{at}/apiAddr"), problems);
        }
        if self.peer_addr.is_none() && self.api_addr.is_none() {
            problems.add(at, "peerAddr or apiAddr must be given");
        }
    }
}

/// Input of `cluster.transferLeader`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TransferLeader {
    /// The voter that is to lead; absent: whoever answers and is least behind.
    #[serde(default)]
    to: Option<u64>,
}

impl Check for TransferLeader {
    fn check(&self, at: &str, problems: &mut Problems) {
        check_id(self.to, format!("{at}/to"), problems);
    }
}

/// Input of `cluster.drain`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Drain {
    /// Its id.
    replica: u64,
    /// Lets it have leadership, leases and agents again.
    #[serde(default)]
    undo: bool,
}

impl Check for Drain {}

/// What was done.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Done {
    /// The replica that it was about; of a transfer, the new leader.
    replica: u64,
    /// What was done, or what it means, in a sentence.
    note: String,
}

impl From<MemberChanged> for Done {
    fn from(changed: MemberChanged) -> Self {
        Self { replica: changed.replica, note: changed.note }
    }
}

async fn change(cx: MethodContext, change: MemberChange) -> Result<MemberChanged> {
    cx.context.ports.members.get()?.change(change, cx.dry_run).await
}

async fn add(
    cx: MethodContext,
    attached: Arc<OnceLock<Attached>>,
    input: AddReplica,
) -> Result<Added> {
    let malformed = |reason: String| {
        let message = format!("must be a certificate signing request in PEM: {reason}");
        Error::invalid(vec![palisade_contract::error::Problem { pointer: "/csr".into(), message }])
    };
    let csr = CertificateSigningRequestDer::from_pem_slice(input.csr.as_bytes())
        .map_err(|error| malformed(error.to_string()))?;
    let key = pki::request_key(&csr).map_err(|error| malformed(error.to_string()))?;
    let attached = attached.get().ok_or_else(|| Error::internal("not attached"))?;
    let live = attached.live.as_ref();
    let live = live.ok_or_else(|| Error::internal("no authority is attached"))?.clone();
    let authority = live.authority();
    let AddReplica { peer_addr, api_addr, replace, .. } = input;
    let addresses = [peer_addr.clone(), api_addr.clone()];
    let enrol = MemberChange::Enrol { key, peer_addr, api_addr, replaces: replace };
    let MemberChanged { replica, note } = change(cx.clone(), enrol).await?;
    let cert_pem = if cx.dry_run {
        String::new()
    } else {
        let now_ms = cx.context.rt.wall_ms();
        let issued = authority.issue_joining_replica(&csr, replica, &addresses, now_ms);
        issued.map_err(Error::internal)?
    };
    let status = cx.context.store.status();
    let neighbour = |member: palisade_state::port::MemberStatus| Neighbour {
        id: member.id.0,
        peer_addr: member.peer_addr,
        api_addr: member.api_addr,
    };
    Ok(Added {
        id: replica,
        cluster: status.cluster,
        lineage: status.lineage,
        epoch: status.epoch,
        cert_pem,
        ca_pem: authority.cert_pem().to_owned(),
        members: status.members.into_iter().map(neighbour).collect(),
        note,
    })
}

fn on_replica(input: &Value) -> Resource {
    let id = input.get("replica").map(ToString::to_string).unwrap_or_default();
    Resource::cluster("replica", &id)
}

/// The methods.
pub(super) fn methods(attached: &Arc<OnceLock<Attached>>) -> Vec<Method> {
    let attached = attached.clone();
    let done = |changed: Result<MemberChanged>| changed.map(Done::from);
    vec![
        Method::action("cluster", "addReplica", CLUSTER_WRITE, move |cx, input: AddReplica| {
            Box::pin(add(cx, attached.clone(), input))
        })
        .summary("Enrols a replica: it gets an id and a certificate, and may join with them.")
        .rest(Verb::Post, "/cluster/replicas")
        .on(|_| Resource::cluster("replica", "")),
        Method::action(
            "cluster",
            "removeReplica",
            CLUSTER_WRITE,
            move |cx, input: RemoveReplica| {
                let RemoveReplica { replica, force } = input;
                Box::pin(
                    async move { done(change(cx, MemberChange::Remove { replica, force }).await) },
                )
            },
        )
        .summary("Takes a replica out of the cluster for good.")
        .rest(Verb::Delete, "/cluster/replicas/{replica}")
        .destructive()
        .on(on_replica),
        Method::action("cluster", "setAddress", CLUSTER_WRITE, move |cx, input: SetAddress| {
            let SetAddress { replica, peer_addr, api_addr } = input;
            let peer_addr = peer_addr.unwrap_or_default();
            let api_addr = api_addr.unwrap_or_default();
            let to = MemberChange::SetAddress { replica, peer_addr, api_addr };
            Box::pin(async move { done(change(cx, to).await) })
        })
        .summary("Notes where a replica is reached now.")
        .rest(Verb::Put, "/cluster/replicas/{replica}/address")
        .on(on_replica),
        Method::action(
            "cluster",
            "transferLeader",
            CLUSTER_WRITE,
            move |cx, input: TransferLeader| {
                let to = input.to;
                Box::pin(async move { done(change(cx, MemberChange::TransferLeader { to }).await) })
            },
        )
        .summary("Lets another replica lead.")
        .rest(Verb::Post, "/cluster/transfer-leader")
        .on(|_| Resource::cluster("cluster", "")),
        Method::action("cluster", "drain", CLUSTER_WRITE, move |cx, input: Drain| {
            let Drain { replica, undo } = input;
            Box::pin(async move { done(change(cx, MemberChange::Drain { replica, undo }).await) })
        })
        .summary("Takes leadership, leases and agents from a replica, or lets it have them again.")
        .rest(Verb::Post, "/cluster/replicas/{replica}/drain")
        .on(on_replica),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        for (address, fits) in [
            ("10.0.0.4:7411", true),
            ("[::1]:7411", true),
            ("replica-4.example:7411", true),
            ("10.0.0.4", false),
            ("10.0.0.4:0", false),
            (":7411", false),
            ("a b:1", false),
            ("", false),
        ] {
            let mut problems = Problems::default();
            check_address(address, "/a".into(), &mut problems);
            assert_eq!(problems.into_result().is_ok(), fits, "{address}");
        }
    }
}
