//! The keeper of a replica's certificates: while it serves, it renews its own, follows the replacement of the CA, and
//! tells the others what it has.
//!
//! # Invariants
//! - `KEEP-2` What is told is what is on the disk and in use. What is taken into use is on the disk.
//! - `KEEP-1` is in `pki_files.rs`.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use futures::{
    StreamExt,
    future::{BoxFuture, Either, select},
};
use palisade_api::pki::{
    self, Authority, Live, Material, REPLICA_LIFE, certificates_of, covers, peer_of,
};
use palisade_audit::key::ClusterSeal;
use palisade_contract::{
    Context,
    past::Seal,
    pki::{Authorities, Ca, Certificates, Phase, ReplicaPki},
};
use palisade_raft::{Neighbours, PeerTls, Replica};
use palisade_state::{View, Watch, WatchEvent};
use rustls::pki_types::CertificateDer;

use super::certificate::addresses;
use crate::{
    output::{Exit, Failure, Outcome},
    pki_files as files,
    recovery::Source,
    replica_dir::ReplicaDir,
};

/// How often it looks although nothing was changed.
const LOOK: Duration = Duration::from_secs(5);
/// How soon it looks again after something went wrong.
const AGAIN: Duration = Duration::from_secs(1);
const TABLES: [&str; 2] = ["pki_authorities", "pki_revocations"];

/// The audit chain's key, which is another one under another CA.
pub(super) struct LiveSeal(RwLock<Arc<ClusterSeal>>);

impl LiveSeal {
    pub(super) fn new(seal: ClusterSeal) -> Self {
        Self(RwLock::new(Arc::new(seal)))
    }

    fn present(&self) -> Arc<ClusterSeal> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, seal: ClusterSeal) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(seal);
    }
}

impl Seal for LiveSeal {
    fn public(&self) -> [u8; 32] {
        self.present().public()
    }

    fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.present().sign(message)
    }
}

/// TLS between replicas by these certificates.
pub(super) fn peer_tls(material: &Material) -> PeerTls {
    PeerTls {
        ca_der: material.roots(),
        chain_der: material.chain(),
        key_der: material.identity.key.clone_key(),
    }
}

/// See the module.
pub(super) struct Keeper<'a> {
    pub(super) dir: &'a ReplicaDir,
    pub(super) context: Context,
    pub(super) replica: Arc<Replica>,
    pub(super) neighbours: Neighbours,
    pub(super) live: Arc<Live>,
    pub(super) seal: Arc<LiveSeal>,
    pub(super) source: Source,
    /// At which part of its life, in thousandths, the certificate is renewed.
    permille: u64,
    refused: BTreeSet<String>,
}

fn failed(what: &str, error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::caused(what, error)
}

fn read(error: palisade_contract::Error) -> Failure {
    failed("the state of certificates cannot be read", &error)
}

impl<'a> Keeper<'a> {
    pub(super) fn new(
        dir: &'a ReplicaDir,
        context: &Context,
        replica: &Arc<Replica>,
        (neighbours, live): (Neighbours, Arc<Live>),
        (seal, source): (Arc<LiveSeal>, Source),
    ) -> Self {
        let permille = 500 + context.rt.random() % 170;
        let (context, replica) = (context.clone(), replica.clone());
        let refused = replica.revoked_at_start().clone();
        Self { dir, context, replica, neighbours, live, seal, source, permille, refused }
    }

    /// Keeps until it is dropped.
    pub(super) async fn run(mut self) -> std::convert::Infallible {
        // It has had a quorum: its view says all that its log ended with and that was committed.
        if let Some(certificates) = self.context.ports.certificates.filled() {
            certificates.presume(BTreeSet::new());
        }
        let mut watch = self.context.store.watch();
        let mut told = String::new();
        loop {
            match self.step().await {
                Ok(()) => told.clear(),
                Err(failure) if failure.detail != told => {
                    tracing::warn!(
                        reason = failure.detail,
                        "the replica's certificates are not as they should be; tried again"
                    );
                    told = failure.detail;
                }
                Err(_) => {}
            }
            let look = if told.is_empty() { LOOK } else { AGAIN };
            changed(&mut watch, self.context.rt.sleep(look)).await;
        }
    }

    async fn step(&mut self) -> Outcome {
        let view = self.context.store.view();
        let certificates = self.context.ports.certificates.get().map_err(read)?.clone();
        let refused = certificates.refused(&view).map_err(read)?;
        if refused != self.refused {
            self.replica.refuse_keys(refused.clone());
            self.refused = refused;
        }
        if let Some(of) = certificates.authorities(&view).map_err(read)? {
            self.follow(&*certificates, &of).await?;
        }
        self.keep_own(&*certificates, &view)?;
        self.report(&*certificates).await
    }

    fn me(&self) -> u64 {
        self.dir.identity.replica.0
    }

    /// Does what the replacement of the CA asks of this replica.
    async fn follow(&mut self, certificates: &dyn Certificates, of: &Authorities) -> Outcome {
        let own = self.public()?;
        match of.phase {
            Phase::Adding if self.replica.is_leader() => self.offer(certificates, of).await?,
            Phase::Trusting => {
                if let Some(new) = &of.other {
                    self.have_next(of.rotation, new).await?;
                }
            }
            // What was taken back.
            Phase::Idle if own.key == of.issuing.key && files::next(self.dir)?.is_some() => {
                files::remove_next(self.dir)?;
            }
            _ => {}
        }
        let mut material = self.live.material();
        let before = (own.key.clone(), material.others.clone(), material.along.clone());
        [material.others, material.along] = beside(of, self.context.rt.wall_ms())?;
        let installs = own.key != of.issuing.key;
        if installs {
            self.have_next(of.rotation, &of.issuing).await?;
            let (_, next) = files::next(self.dir)?.ok_or_else(lacking)?;
            material.authority = Arc::new(next);
        }
        let after = (of.issuing.key.clone(), material.others.clone(), material.along.clone());
        if before == after {
            return Ok(());
        }
        // KEEP-1, KEEP-2
        files::put_beside(self.dir, &material)?;
        if installs {
            files::install_next(self.dir)?;
        }
        self.take(material)?;
        tracing::info!(phase = ?of.phase, issuing = of.issuing.key, "the CAs of this replica were changed");
        Ok(())
    }

    /// Makes a new CA and offers it.
    async fn offer(&self, certificates: &dyn Certificates, of: &Authorities) -> Outcome {
        let present = self.live.authority();
        let made = files::next(self.dir)?.filter(|(number, _)| *number == of.rotation);
        let now_ms = self.context.rt.wall_ms();
        let next = match made {
            Some((_, next)) => next,
            None => {
                let next = Authority::create(present.lineage(), now_ms)
                    .map_err(|error| failed("cannot make a new CA", &error))?;
                files::put_next(self.dir, of.rotation, next.cert_pem(), &next.key_pem())?;
                next
            }
        };
        let described = next
            .public()
            .and_then(|ca| Ok(Ca { cross_pem: present.introduce(&next, now_ms)?, ..ca }));
        let ca = described.map_err(|error| failed("cannot describe the new CA", &error))?;
        let offered = self.context.commit(|tx| certificates.offer(tx, of.rotation, &ca)).await;
        offered.map(drop).map_err(|error| failed("cannot offer the new CA", &error))
    }

    /// Has the key of a CA, from another replica where it is not here.
    async fn have_next(&self, rotation: u64, wanted: &Ca) -> Outcome {
        let has = |authority: &Authority| authority.public().is_ok_and(|ca| ca.key == wanted.key);
        if files::next(self.dir)?.is_some_and(|(_, next)| has(&next)) {
            return Ok(());
        }
        for secrets in self.replica.secrets_of_others().await {
            for name in ["next.key", "ca.key"] {
                let found = secrets.iter().find(|(found, _)| found == name);
                let Some(key) = found.and_then(|(_, key)| std::str::from_utf8(key).ok()) else {
                    continue;
                };
                if Authority::from_pem(&wanted.pem, key).is_ok() {
                    tracing::info!("the key of the new CA was got from another replica");
                    return files::put_next(self.dir, rotation, &wanted.pem, key);
                }
            }
        }
        Err(lacking())
    }

    fn public(&self) -> Outcome<Ca> {
        let public = self.live.authority().public();
        public.map_err(|error| failed("cannot read the CA's certificate", &error))
    }

    /// From now on, connections are made with these.
    fn take(&self, material: Material) -> Outcome {
        let unusable =
            |error: &(dyn std::error::Error + 'static)| failed("cannot use certificates", error);
        self.replica.replace_tls(peer_tls(&material)).map_err(|error| unusable(&error))?;
        let authority = material.authority.clone();
        self.live.replace(material).map_err(|error| unusable(&error))?;
        self.source.replace(&authority);
        let seal = ClusterSeal::derive(&authority.key_der(), authority.lineage());
        self.seal.replace(seal.map_err(|error| unusable(&error))?);
        Ok(())
    }

    /// Renews this replica's certificate where that is due, with a new key where that is asked for.
    fn keep_own(&self, certificates: &dyn Certificates, view: &View) -> Outcome {
        let material = self.live.material();
        let Some(leaf) = material.identity.chain.first() else { return Ok(()) };
        let own = peer_of(leaf).map_err(|error| failed("cannot read the certificate", &error))?;
        let issuer = self.public()?;
        let now_ms = self.context.rt.wall_ms();
        let is_due = is_due(own.not_after_ms, now_ms, self.permille);
        let addresses = addresses(&self.replica, &self.neighbours);
        let rekeys = certificates.must_rekey(view, self.me(), &own.key).map_err(read)?;
        if !is_due && !rekeys && own.issuer == issuer.key_id && covers(leaf, &addresses) {
            return Ok(());
        }
        let authority = &material.authority;
        let unmade = |error: &pki::PkiError| failed("cannot renew the certificate", error);
        if rekeys {
            let issued = authority.issue_replica(self.me(), &addresses, now_ms);
            let issued = issued.map_err(|error| unmade(&error))?;
            files::rekey(self.dir, &issued.key_pem, &issued.cert_pem)?;
        } else {
            let path = self.dir.pki("replica.key");
            let key_pem = std::fs::read_to_string(&path)
                .map_err(|error| failed(&format!("cannot read {}", path.display()), &error))?;
            let cert_pem = authority.reissue_replica(&key_pem, self.me(), &addresses, now_ms);
            files::put(self.dir, "replica.pem", &cert_pem.map_err(|error| unmade(&error))?)?;
        }
        let identity = files::own(self.dir)?;
        self.take(Material { identity, ..material })?;
        tracing::info!(?addresses, new_key = rekeys, "this replica's certificate was renewed");
        Ok(())
    }

    /// Tells what this replica has.
    async fn report(&self, certificates: &dyn Certificates) -> Outcome {
        let (material, own) = (self.live.material(), self.public()?);
        let leaf = material.identity.chain.first().map(|leaf| peer_of(leaf));
        let leaf = leaf.and_then(Result::ok).map(|peer| peer.leaf()).unwrap_or_default();
        let keys =
            material.roots().iter().filter_map(|ca| Some(pki::ca_of(ca).ok()?.key)).collect();
        let next = files::next(self.dir)?.and_then(|(_, next)| next.public().ok());
        let holds = std::iter::once(own.key.clone()).chain(next.map(|ca| ca.key)).collect();
        let report = ReplicaPki { leaf, trusts: keys, holds };
        let view = self.context.store.view();
        let known = certificates.reported(&view, self.me()).map_err(read)?;
        if known.as_ref() == Some(&report)
            && certificates.authorities(&view).map_err(read)?.is_some()
        {
            return Ok(());
        }
        let told =
            self.context.commit(|tx| certificates.report(tx, self.me(), &own, &report)).await;
        told.map(drop).map_err(|error| failed("cannot tell of this replica's certificates", &error))
    }
}

/// Who is trusted beside the CA that issues (`PKI-5`), and what is sent along.
fn beside(of: &Authorities, now_ms: u64) -> Outcome<[Vec<CertificateDer<'static>>; 2]> {
    let others = match (of.phase, &of.other) {
        (Phase::Trusting | Phase::Issuing, Some(other)) => parse(&other.pem)?,
        _ => vec![],
    };
    let old = if of.phase == Phase::Trusting { None } else { of.other.as_ref() };
    let old = old.or(of.former.as_ref()).filter(|ca| ca.not_after_ms > now_ms);
    let mut along = parse_some(&of.issuing.cross_pem)?;
    if let (Some(old), false) = (old, of.issuing.cross_pem.is_empty()) {
        along.extend(parse(&old.pem)?);
    }
    Ok([others, along])
}

/// Whether of a certificate's life so many thousandths are over.
fn is_due(not_after_ms: u64, now_ms: u64, permille: u64) -> bool {
    let life_ms = u64::try_from(REPLICA_LIFE.as_millis()).unwrap_or(u64::MAX);
    not_after_ms.saturating_sub(now_ms) < life_ms / 1000 * (1000 - permille)
}

/// Waits until one of the tables may have changed, and for no longer than `sleep`, however much else changes.
async fn changed(watch: &mut Watch, mut sleep: BoxFuture<'static, ()>) {
    loop {
        match select(watch.next(), &mut sleep).await {
            Either::Left((Some(WatchEvent::Changed(changes)), _)) => {
                let is_changed = |table: &&str| changes.keys_of(table).next().is_some();
                if changes.everything || TABLES.iter().any(is_changed) {
                    return;
                }
            }
            Either::Left((Some(_), _)) => return,
            Either::Left((None, sleep)) => return sleep.await,
            Either::Right(_) => return,
        }
    }
}

fn lacking() -> Failure {
    Failure::new(Exit::Unavailable, "no replica that is reached has the key of the cluster's CA")
}

fn parse(pem: &str) -> Outcome<Vec<CertificateDer<'static>>> {
    certificates_of(pem).map_err(|error| failed("a CA in state cannot be read", &error))
}

fn parse_some(pem: &str) -> Outcome<Vec<CertificateDer<'static>>> {
    if pem.is_empty() { Ok(vec![]) } else { parse(pem) }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, StreamExt as _, channel::oneshot};
    use palisade_state::{Store as _, command::Kind, memory::MemoryStore};

    use super::*;

    #[test]
    fn a_certificate_is_renewed_long_before_it_ends_and_not_at_once() {
        let (from, life) = (1_790_000_000_000, u64::try_from(REPLICA_LIFE.as_millis()).unwrap());
        let due = |at: u64, permille| is_due(from + life, from + life / 1000 * at, permille);
        assert!(!due(0, 500) && !due(499, 500) && due(501, 500));
        assert!(!due(500, 669) && due(670, 669) && due(1000, 669) && due(1001, 669));
    }

    #[test]
    fn who_is_trusted_and_introduced_follows_from_the_phase() {
        let now_ms = 1_790_000_000_000;
        let made = || Authority::create("lin", now_ms).unwrap();
        let (old, new) = (made(), made());
        let cross_pem = old.introduce(&new, now_ms).unwrap();
        let (before, after) = (old.public().unwrap(), Ca { cross_pem, ..new.public().unwrap() });
        let cross = || certificates_of(&after.cross_pem).unwrap();
        let introduced = [cross(), vec![old.cert_der().clone()]].concat();
        let of = |phase, (issuing, other, former): (&Ca, Option<&Ca>, Option<&Ca>)| Authorities {
            phase,
            issuing: issuing.clone(),
            other: other.cloned(),
            former: former.cloned(),
            ..Authorities::default()
        };
        for (row, others, along) in [
            (of(Phase::Idle, (&before, None, None)), vec![], vec![]),
            (of(Phase::Adding, (&before, None, None)), vec![], vec![]),
            (
                of(Phase::Trusting, (&before, Some(&after), None)),
                vec![new.cert_der().clone()],
                vec![],
            ),
            (
                of(Phase::Issuing, (&after, Some(&before), None)),
                vec![old.cert_der().clone()],
                introduced.clone(),
            ),
            (of(Phase::Dropping, (&after, Some(&before), None)), vec![], introduced.clone()),
            (of(Phase::Idle, (&after, None, Some(&before))), vec![], introduced.clone()),
        ] {
            let phase = row.phase;
            assert_eq!(beside(&row, now_ms).unwrap(), [others, along], "PKI-5: {phase:?}");
        }
        // A CA whose time is over introduces nobody.
        let row = of(Phase::Idle, (&after, None, Some(&before)));
        assert_eq!(beside(&row, before.not_after_ms).unwrap(), [vec![], cross()]);
    }

    #[test]
    fn a_cluster_that_is_busy_does_not_keep_it_from_looking() {
        let store = MemoryStore::default();
        let mut watch = store.watch();
        let (wake, woken) = oneshot::channel::<()>();
        let mut waits = Box::pin(changed(&mut watch, woken.map(drop).boxed()));
        let something = || {
            let tick = Kind::Tick(palisade_state::command::Tick {});
            store.apply(tick.into()).unwrap();
        };
        for _ in 0..10 {
            something();
            assert_eq!(waits.as_mut().now_or_never(), None);
        }
        wake.send(()).unwrap();
        something();
        assert_eq!(waits.now_or_never(), Some(()));
        assert!(store.watch().next().now_or_never().is_none());
    }
}
