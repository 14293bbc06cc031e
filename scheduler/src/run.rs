//! One run of a reconciler: what it is given, how it ended, and what becomes of its work row.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use palisade_contract::{
    Cancelled, Code, Context, Error, ReconcileContext, Reconciler, Result, module::Run,
};
use palisade_state::{
    Name,
    command::{FenceCheck, Finish},
    port::jittered,
    shard::shard_of,
};

/// A kind and a key.
pub type WorkId = (Name, Name);

/// First delay after a failed run.
const BACKOFF_FIRST: Duration = Duration::from_millis(200);
/// Longest delay after failed runs.
const BACKOFF_MAX: Duration = Duration::from_secs(60);
/// Delay of a run that only asked to run again.
const AGAIN: Duration = Duration::from_millis(50);

/// A run before it begins.
pub struct Job {
    /// Whose.
    pub reconciler: Arc<dyn Reconciler>,
    /// The lease it holds.
    pub check: FenceCheck,
    /// The work row that it is for.
    pub work: Finish,
    /// Failed runs before it.
    pub attempts: u32,
}

/// A run that ended.
pub struct Ended {
    /// Which.
    pub id: WorkId,
    /// How.
    pub outcome: Result<Run>,
    /// The highest revision that it committed: the key is not run again from a view before it.
    pub committed_rev: u64,
}

impl Ended {
    /// Tells of an end that was not a good one.
    pub fn log(&self, lease: &Name) {
        let (kind, key) = (&self.id.0, &self.id.1);
        match &self.outcome {
            Ok(_) => {}
            Err(error) if error.code == Code::Fenced => {
                tracing::info!(%kind, %key, %lease, "a run was fenced; the lease's holder runs the key again");
            }
            Err(error) => {
                let error = chain(error);
                tracing::warn!(%kind, %key, %lease, error, "a run failed and will be tried again");
            }
        }
    }
}

/// An error and its causes in one line.
fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(source) = cause {
        text.push_str(": ");
        text.push_str(&source.to_string());
        cause = source.source();
    }
    text
}

impl Job {
    /// The run as a task, and what asks it to end early.
    #[must_use]
    pub fn into_task(
        self,
        context: Context,
    ) -> (Cancelled, BoxFuture<'static, (Result<Run>, u64)>) {
        let every_ms = self
            .reconciler
            .periodic()
            .iter()
            .find(|periodic| periodic.key == self.work.key)
            .map(|periodic| u64::try_from(periodic.every.as_millis()).unwrap_or(u64::MAX));
        let shard = shard_of(&self.work.key);
        let cx = ReconcileContext::new(context, self.check, shard, self.work, every_ms);
        let cancelled = cx.cancelled.clone();
        let task = async move {
            let ran = AssertUnwindSafe(run(self.reconciler, &cx, self.attempts)).catch_unwind();
            let outcome = match ran.await {
                Ok(outcome) => outcome,
                // The key must come back, later: whatever made it panic is still there.
                Err(_) => {
                    put_off(&cx, self.attempts, Error::internal("the reconciler panicked")).await
                }
            };
            (outcome, cx.committed_rev())
        };
        (cancelled, Box::pin(task))
    }
}

async fn run(reconciler: Arc<dyn Reconciler>, cx: &ReconcileContext, attempts: u32) -> Result<Run> {
    let key = cx.work.key.clone();
    let outcome = reconciler.run(cx, &key).await;
    match outcome {
        outcome if cx.is_finished() => outcome,
        Ok(Run::Done) => cx.finish(|_| Ok(())).await.map(|_| Run::Done),
        Ok(Run::Again) => cx.put_off(millis(AGAIN), "").await.map(|_| Run::Again),
        Ok(Run::After(delay)) => cx.put_off(millis(delay), "").await.map(|_| Run::After(delay)),
        // The lease is another's by now, or will be confirmed again, or another run was first: the
        // row stays as it is.
        Err(error) if error.code == Code::Fenced => Err(error),
        Err(error) => put_off(cx, attempts, error).await,
    }
}

/// Puts a failed run off and keeps its error with the row.
async fn put_off(cx: &ReconcileContext, attempts: u32, error: Error) -> Result<Run> {
    let delay = jittered(&*cx.context.rt, backoff(attempts));
    if let Err(second) = cx.put_off(millis(delay), &chain(&error)).await {
        tracing::debug!(error = %second, "a failed run could not be put off");
    }
    Err(error)
}

fn backoff(attempts: u32) -> Duration {
    BACKOFF_FIRST.saturating_mul(2_u32.saturating_pow(attempts.min(16))).min(BACKOFF_MAX)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_grows_to_its_cap() {
        assert_eq!(backoff(0), Duration::from_millis(200));
        assert_eq!(backoff(1), Duration::from_millis(400));
        assert_eq!(backoff(40), BACKOFF_MAX);
    }
}
