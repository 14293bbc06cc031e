//! The first steps of a replica that joins: it says hello, and is given what only replicas may hold.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use palisade_state::{ReplicaId, Rt, port::timeout};

use super::{
    ManageError, Why,
    ask::{Heard, heard},
};
use crate::{
    Identity,
    addresses::Addresses,
    options::Member,
    peer::{PeerError, PeerTls, Purpose, TlsError, TlsState, TonicTransport, Transport, wire},
};

const CALL_LIMIT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(500);

/// A replica that wants in.
pub struct Joining {
    /// Time and tasks.
    pub rt: Rt,
    /// Who it is.
    pub identity: Identity,
    /// The certificate that it was issued.
    pub tls: PeerTls,
    /// Where members may be.
    pub members: Vec<Member>,
    /// Where it is reached, for peers and for operators; empty: as it was enrolled.
    pub advertise: (String, String),
}

/// Why a replica cannot join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// Its certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Its cluster's id cannot be sent.
    #[error("its cluster's id cannot be sent: {0}")]
    Cluster(String),
    /// The cluster does not want it.
    #[error("replica {replica} cannot join: {reason}")]
    Refused {
        /// Which.
        replica: ReplicaId,
        /// In the cluster's words.
        reason: String,
    },
}

struct Knock {
    me: u64,
    rt: Rt,
    transport: TonicTransport,
    addresses: Arc<Addresses>,
    hello: wire::Hello,
}

/// Why one attempt failed: for good, or for now.
enum Failed {
    ForGood(String),
    ForNow(String),
}

impl Knock {
    /// Says hello to one member; its secrets when it made this replica a learner, or who leads.
    async fn at(&self, id: u64) -> Result<Result<Secrets, Option<(u64, String)>>, Failed> {
        let peer = self.transport.peer_at(id, &self.addresses, Purpose::Store);
        let change = Some(wire::manage_request::Change::Hello(self.hello.clone()));
        let request = wire::ManageRequest { from: self.me, dry_run: false, change };
        let silent = || Failed::ForNow(format!("replica {id} did not answer in time"));
        let failed = |error: PeerError| match error {
            PeerError::Removed(why) => Failed::ForGood(format!("it was removed ({why})")),
            other => Failed::ForNow(format!("replica {id}: {other}")),
        };
        let said = timeout(self.rt.as_ref(), CALL_LIMIT, peer.manage(request)).await;
        match heard(said.ok_or_else(silent)?.map_err(failed)?) {
            Heard::Leader(leader) => return Ok(Err(leader)),
            Heard::Answer(Ok(_)) => {}
            Heard::Answer(Err(ManageError { why, detail })) => {
                let for_good =
                    matches!(why, Why::UnknownReplica | Why::Removed | Why::Invalid | Why::Address);
                return Err(if for_good {
                    Failed::ForGood(detail)
                } else {
                    Failed::ForNow(detail)
                });
            }
        }
        let given = timeout(self.rt.as_ref(), CALL_LIMIT, peer.trust(self.me)).await;
        let given = given.ok_or_else(silent)?.map_err(failed)?;
        Ok(Ok(given.secrets.into_iter().map(|s| (s.name, s.content.to_vec())).collect()))
    }

    /// One round over all members, and whoever they say leads.
    async fn round(&self) -> Result<Secrets, Failed> {
        let mut queue: VecDeque<u64> = self.addresses.peers().into();
        let mut last = Failed::ForNow("no member is known".to_owned());
        let mut left = 2 * queue.len();
        while left > 0
            && let Some(id) = queue.pop_front()
        {
            left -= 1;
            match self.at(id).await {
                Ok(Ok(secrets)) => return Ok(secrets),
                Ok(Err(Some((leader, addr)))) => {
                    self.addresses.hint(leader, &addr);
                    queue.retain(|id| *id != leader);
                    queue.push_front(leader);
                }
                Ok(Err(None)) => last = Failed::ForNow("no replica leads".to_owned()),
                Err(Failed::ForGood(why)) => return Err(Failed::ForGood(why)),
                Err(why) => last = why,
            }
        }
        Err(last)
    }
}

/// What only replicas may hold, by name. Never logged.
pub type Secrets = Vec<(String, Vec<u8>)>;

/// Makes an enrolled replica a learner, and answers the secrets that it was given. Tries until it succeeds or the
/// cluster refuses for good; whoever waits no longer drops it.
///
/// # Errors
/// See [`JoinError`].
pub async fn join(joining: Joining) -> Result<Secrets, JoinError> {
    let Joining { rt, identity, tls, members, advertise } = joining;
    let me = identity.replica.0;
    let tls = Arc::new(TlsState::new(&identity.lineage, me, tls)?);
    let transport = TonicTransport::new(rt.clone(), tls, &identity)
        .map_err(|error| JoinError::Cluster(error.to_string()))?;
    let addresses = Arc::<Addresses>::default();
    for member in members.iter().filter(|member| member.id.0 != me) {
        addresses.hint(member.id.0, &member.peer_addr);
    }
    let (peer_addr, api_addr) = advertise;
    let hello = wire::Hello { peer_addr, api_addr };
    let knock = Knock { me, rt, transport, addresses, hello };
    let mut told = String::new();
    loop {
        match knock.round().await {
            Ok(secrets) => return Ok(secrets),
            Err(Failed::ForGood(reason)) => {
                return Err(JoinError::Refused { replica: identity.replica, reason });
            }
            Err(Failed::ForNow(why)) => {
                if why != told {
                    tracing::info!(why, "waiting for the cluster to let this replica in");
                    told = why;
                }
            }
        }
        knock.rt.sleep(PAUSE).await;
    }
}
