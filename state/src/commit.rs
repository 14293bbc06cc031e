//! Running a transaction to its end: build on a fresh view, propose, try again on a conflict.

use std::time::Duration;

use crate::{
    command::{Conflict, Fenced, Outcome, Superseded, Verdict},
    port::{Runtime, Store, StoreError, jittered, timeout},
    tx::{Tx, TxError},
    view::View,
};

/// Tries on a conflict, the first among them.
pub const TRIES_MAX: u32 = 8;

const BACKOFF_FIRST: Duration = Duration::from_millis(2);

/// Why a transaction was not applied. `E` is the builder's own error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError<E> {
    /// The builder refused.
    #[error("refused")]
    Refused(E),
    /// The transaction could not be built.
    #[error(transparent)]
    Build(#[from] TxError),
    /// The store could not propose it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What it read kept changing.
    #[error("changed by somebody else, {TRIES_MAX} times over: table {}, key {}", .0.table, String::from_utf8_lossy(&.0.key))]
    Conflict(Conflict),
    /// The lease moved on.
    #[error("the lease {:?} is not held: {}", .0.lease, .0.why)]
    Fenced(Fenced),
    /// Another run of the same work was committed first.
    #[error("another run of {} for {:?} was committed first", .0.kind, .0.key)]
    Superseded(Superseded),
    /// The idempotency key was used for another request.
    #[error("this idempotency key was used for another request")]
    IdempotencyMismatch,
    /// The kernel found the command malformed.
    #[error("the kernel refused the command: {0}")]
    Invalid(String),
}

/// What a transaction left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The revision at which it was applied, now or by an earlier proposal under its key.
    pub revision: u64,
    /// The response kept with it.
    pub response: Vec<u8>,
    /// It was an earlier proposal that was applied.
    pub replayed: bool,
}

/// Builds and proposes until the transaction is applied or refused for good. `first` is the view
/// of the first try; later ones take a linearizable view.
///
/// # Errors
/// See [`CommitError`].
pub async fn run<E>(
    store: &dyn Store,
    rt: &dyn Runtime,
    first: View,
    build: impl FnMut(&mut Tx) -> Result<(), E> + Send,
) -> Result<Committed, CommitError<E>> {
    tries(store, rt, first, None, build).await
}

/// The same until `deadline` on the runtime's clock: then there is no quorum, or the outcome is unknown.
///
/// # Errors
/// See [`CommitError`].
pub async fn run_by<E>(
    store: &dyn Store,
    rt: &dyn Runtime,
    first: View,
    deadline: Duration,
    build: impl FnMut(&mut Tx) -> Result<(), E> + Send,
) -> Result<Committed, CommitError<E>> {
    tries(store, rt, first, Some(deadline), build).await
}

async fn tries<E>(
    store: &dyn Store,
    rt: &dyn Runtime,
    first: View,
    deadline: Option<Duration>,
    mut build: impl FnMut(&mut Tx) -> Result<(), E> + Send,
) -> Result<Committed, CommitError<E>> {
    let begun = rt.now();
    let left = || deadline.map(|deadline| deadline.saturating_sub(rt.now()));
    let no_quorum = || {
        let waited = rt.now().saturating_sub(begun).as_millis();
        StoreError::NoQuorum { waited_ms: u64::try_from(waited).unwrap_or(u64::MAX) }
    };
    let mut view = first;
    let mut backoff = BACKOFF_FIRST;
    for attempt in 1.. {
        let mut tx = Tx::new(view);
        build(&mut tx).map_err(CommitError::Refused)?;
        let command = tx.build()?.into();
        let outcome = match left() {
            None => store.propose(command).await?,
            Some(left) if left.is_zero() => return Err(no_quorum().into()),
            Some(left) => store.propose_within(command, left).await?,
        };
        match judge(outcome) {
            Err(CommitError::Conflict(conflict)) if attempt >= TRIES_MAX => {
                return Err(CommitError::Conflict(conflict));
            }
            Err(CommitError::Conflict(_)) => {
                rt.sleep(jittered(rt, backoff)).await;
                backoff = backoff.saturating_mul(2);
                view = match left() {
                    None => store.linearizable().await?,
                    // Nothing was applied: that is certain.
                    Some(left) => {
                        timeout(rt, left, store.linearizable()).await.ok_or_else(no_quorum)??
                    }
                };
            }
            ended => return ended,
        }
    }
    Err(CommitError::Invalid("no attempt was made".to_owned()))
}

fn judge<E>(outcome: Outcome) -> Result<Committed, CommitError<E>> {
    let revision = outcome.revision;
    match outcome.verdict {
        Some(Verdict::Applied(response)) => Ok(Committed { revision, response, replayed: false }),
        Some(Verdict::Replayed(response)) => Ok(Committed { revision, response, replayed: true }),
        Some(Verdict::Conflict(conflict)) => Err(CommitError::Conflict(conflict)),
        Some(Verdict::Fenced(fenced)) => Err(CommitError::Fenced(fenced)),
        Some(Verdict::Superseded(superseded)) => Err(CommitError::Superseded(superseded)),
        Some(Verdict::IdempotencyMismatch(_)) => Err(CommitError::IdempotencyMismatch),
        Some(Verdict::Invalid(why)) => Err(CommitError::Invalid(why)),
        Some(Verdict::TooLarge(large)) => Err(CommitError::Build(TxError::TooLarge(large.into()))),
        Some(Verdict::Dropped(_)) => {
            Err(CommitError::Invalid("a transaction is never dropped".to_owned()))
        }
        None => Err(CommitError::Invalid(
            "the outcome is of a kind that this build does not know".to_owned(),
        )),
    }
}
