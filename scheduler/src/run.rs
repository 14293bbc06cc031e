//! One run of a reconciler: what it is given, how it ended, and what becomes of its work row.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
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
    pub fn into_task(self, context: Context) -> (Cancelled, BoxFuture<'static, Result<Run>>) {
        let every_ms = self
            .reconciler
            .periodic()
            .iter()
            .find(|periodic| periodic.key == self.work.key)
            .map(|periodic| u64::try_from(periodic.every.as_millis()).unwrap_or(u64::MAX));
        let shard = shard_of(&self.work.key);
        let cx = ReconcileContext::new(context, self.check, shard, self.work, every_ms);
        let cancelled = cx.cancelled.clone();
        (cancelled, Box::pin(run(self.reconciler, cx, self.attempts)))
    }
}

async fn run(reconciler: Arc<dyn Reconciler>, cx: ReconcileContext, attempts: u32) -> Result<Run> {
    let key = cx.work.key.clone();
    let outcome = reconciler.run(&cx, &key).await;
    match &outcome {
        _ if cx.is_finished() => {}
        Ok(Run::Done) => drop(cx.finish(|_| Ok(())).await?),
        Ok(Run::Again) => drop(cx.put_off(millis(AGAIN), "").await?),
        Ok(Run::After(delay)) => drop(cx.put_off(millis(*delay), "").await?),
        // The lease is another's by now, or will be confirmed again: the row stays as it is.
        Err(error) if error.code == Code::Fenced => {}
        Err(error) => {
            let delay = jittered(&*cx.context.rt, backoff(attempts));
            drop(cx.put_off(millis(delay), &chain(error)).await?);
        }
    }
    outcome
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
