//! Who is not let in any more although its certificate is the CA's: its key was revoked, its CA is trusted no more, or its
//! time is over.

use std::time::Duration;

use palisade_contract::{Code, Context, Error};

use crate::pki::{Live, Peer, PeerRole};

/// How often a connection's certificate is looked at: what is revoked is refused within a second.
const LOOK: Duration = Duration::from_millis(400);
/// How long whoever is refused gets to be told why.
const LAST_WORDS: Duration = Duration::from_millis(400);

/// The refusal of whoever came with a certificate that is out of its time. `PKI-7`
pub(crate) fn out_of_time(peer: &Peer) -> Option<Error> {
    let words = peer.out_of_time.as_ref()?;
    Some(Error::new(Code::Unauthenticated, words.clone()).hint(match &peer.role {
        PeerRole::Node(_) => {
            "if the clocks are right, let the machine join again: `palisade node rm`, then `palisade agent join` from an \
             empty directory with a new token"
        }
        PeerRole::Replica(_) => "if the clocks are right, start the replica again: it renews its certificate then",
        _ => "if the clocks are right, get another one: `palisade principal certify`, on the machine of a replica",
    }))
}

/// Whether the holder of a certificate is refused now. What cannot be read lets nobody in.
pub(crate) fn is(context: &Context, live: &Live, peer: &Peer) -> bool {
    let is_over = peer.out_of_time.is_some() || peer.not_after_ms <= context.rt.wall_ms();
    if is_over || !live.trusts(&peer.issuer) {
        return true;
    }
    let Some(certificates) = context.ports.certificates.filled() else { return false };
    certificates.is_revoked(&context.store.view(), &peer.key).unwrap_or(true)
}

/// Ends once the holder of a connection is refused; never where there is no holder.
pub(crate) async fn comes(context: &Context, live: &Live, peer: Option<&Peer>) {
    let Some(peer) = peer else { return std::future::pending().await };
    while !is(context, live, peer) {
        context.rt.sleep(LOOK).await;
    }
    tracing::warn!(name = peer.uri, "a connection ends: its certificate is accepted no more");
    context.rt.sleep(LAST_WORDS).await;
}
