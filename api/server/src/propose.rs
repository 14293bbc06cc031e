//! Proposing under an idempotency key until the fate of the write is known.
//!
//! # Invariants
//! - `L2` (its half) One key is applied at most once, however often the proposal is repeated here,
//!   by the caller, or through another replica.

use std::time::Duration;

use palisade_contract::{Context, Error, Result};
use palisade_state::{
    StoreError, Tx, Txn, Verdict, View,
    command::{Idempotency, PointCheck},
    commit::{self, CommitError, Committed},
    port::{jittered, timeout},
};

/// How long a write may take: the read before it, the commit, and repetitions. What the caller takes to send its request is
/// not in it.
pub(crate) const WRITE_BUDGET: Duration = Duration::from_secs(5);

/// By so much may a store be late with saying that there is no quorum before it is not waited for.
const GRACE: Duration = Duration::from_millis(100);

const RETRY_FIRST: Duration = Duration::from_millis(20);

/// A write under a key.
pub(crate) struct Once {
    /// The key.
    pub(crate) key: Idempotency,
    /// Whether an earlier call may have been made under the key, so that a refusal must be checked
    /// against what that call answered.
    pub(crate) may_be_known: bool,
}

/// Builds and proposes until `deadline`; what an earlier proposal under the key answered is answered again.
pub(crate) async fn commit_once(
    cx: &Context,
    first: View,
    once: Once,
    deadline: Duration,
    mut build: impl FnMut(&mut Tx) -> Result<()> + Send,
) -> Result<Committed, CommitError<Error>> {
    let Once { key, mut may_be_known } = once;
    let mut view = first;
    let mut was_unknown = false;
    let mut backoff = RETRY_FIRST;
    loop {
        let left = deadline.saturating_sub(cx.rt.now());
        let attempt = commit::run_by(&*cx.store, &*cx.rt, view, deadline, |tx| {
            build(tx)?;
            cx.check_tables(tx)?;
            tx.idempotent(key.clone());
            Ok(())
        });
        let ended = timeout(&*cx.rt, left + GRACE, attempt).await;
        match ended.unwrap_or(Err(CommitError::Store(StoreError::Unknown))) {
            Err(CommitError::Store(StoreError::Unknown)) => {
                (was_unknown, may_be_known) = (true, true);
                if cx.rt.now() + backoff >= deadline {
                    return Err(CommitError::Store(StoreError::Unknown));
                }
                cx.rt.sleep(jittered(&*cx.rt, backoff)).await;
                backoff = backoff.saturating_mul(2);
                view = cx.store.view();
            }
            // The first proposal may yet be applied.
            Err(CommitError::Store(_)) if was_unknown => {
                return Err(CommitError::Store(StoreError::Unknown));
            }
            Err(CommitError::Refused(refused)) if may_be_known => {
                return known_or(cx, key, refused, deadline).await;
            }
            ended => return ended,
        }
    }
}

/// What was answered under the key, or else the refusal.
async fn known_or(
    cx: &Context,
    key: Idempotency,
    refused: Error,
    deadline: Duration,
) -> Result<Committed, CommitError<Error>> {
    match known(cx, key, deadline).await? {
        Some(committed) => Ok(committed),
        None => Err(CommitError::Refused(refused)),
    }
}

/// What was answered under the key. The probe holds a check that never holds, so the kernel either finds the key, which it
/// looks at first, or changes nothing.
pub(crate) async fn known(
    cx: &Context,
    key: Idempotency,
    deadline: Duration,
) -> Result<Option<Committed>, CommitError<Error>> {
    let never = PointCheck {
        table: "palisade.probe".to_owned(),
        key: vec![],
        version: u64::MAX,
        created_rev: u64::MAX,
    };
    let probe = Txn { idempotency: Some(key), points: vec![never], ..Txn::default() };
    let mut backoff = RETRY_FIRST;
    let outcome = loop {
        let left = deadline.saturating_sub(cx.rt.now());
        let asked = cx.store.propose_within(probe.clone().into(), left);
        let asked = timeout(&*cx.rt, left + GRACE, asked).await;
        match asked.unwrap_or(Err(StoreError::Unknown)) {
            Err(StoreError::Unknown) if cx.rt.now() + backoff < deadline => {
                cx.rt.sleep(jittered(&*cx.rt, backoff)).await;
                backoff = backoff.saturating_mul(2);
            }
            ended => break ended?,
        }
    };
    match outcome.verdict {
        Some(Verdict::Replayed(response)) => {
            Ok(Some(Committed { revision: outcome.revision, response, replayed: true }))
        }
        Some(Verdict::IdempotencyMismatch(_)) => Err(CommitError::IdempotencyMismatch),
        _ => Ok(None),
    }
}
