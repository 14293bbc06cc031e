//! Audit records on their way to the sinks of this binary's modules.
//!
//! # Invariants
//! - `SINK-1` A sink is given each record of the chain at least once, in the order of the numbers. What the replica that sends does not
//!   know any more is named as missing, never passed over.
//! - `SINK-2` How far a sink is moves only past what it has taken, in a transaction that carries the fence of whoever gave it.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use palisade_contract::{
    Catalog, Context, Finding, Module, Periodic, ReconcileContext, Reconciler, Result, Run,
    Severity, ShardBy,
    audit::{AuditBatch, RegisteredAuditSink},
    time::rfc3339,
    waking::{Waker, Watching},
};
use palisade_state::{Declared, Table, View, audit::AuditRecord, port::timeout};
use serde::{Deserialize, Serialize};

use crate::checkpoint::formation;

/// The reconciler, and the kind of its work; its keys are the sinks' names.
const KIND: &str = "audit.sinks";
/// How often a sink is looked at when nobody wakes it.
const EVERY: Duration = Duration::from_secs(60);
/// How long a sink may take for what it is given.
const LIMIT: Duration = Duration::from_secs(30);
/// Records of one batch.
const BATCH_MAX: usize = 500;
/// Batches of one run.
const BATCHES_MAX: usize = 20;
/// How soon a sink that failed is tried again: twice as long each time, up to the last of these.
const BACKOFF_MS: [u64; 2] = [1_000, 60_000];
/// A sink that has failed for so long is worth a finding.
const PATIENCE_MS: u64 = 60_000;

/// How far a sink is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProgressRow {
    /// The life of the cluster in which it took something last.
    cluster: String,
    /// The last number that it was told of.
    done: u64,
    /// Records that nobody could give it.
    #[serde(default)]
    missing: u64,
    /// Why it takes nothing at the moment.
    #[serde(default)]
    failing: Option<Failing>,
}

/// A sink that does not take what it is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Failing {
    /// Logical milliseconds at which that began.
    since_ms: u64,
    /// The same by the wall clock.
    since_wall_ms: u64,
    tries: u32,
    why: String,
}

static PROGRESS: Table<String, ProgressRow> = Table::new("audit_sinks", &[]);

/// The module `audit-sinks`: there when another one has a sink.
pub struct AuditSinks {
    sinks: Arc<[RegisteredAuditSink]>,
    watching: Watching,
}

impl AuditSinks {
    /// Of these sinks.
    #[must_use]
    pub fn new(sinks: Vec<RegisteredAuditSink>) -> Self {
        Self { sinks: sinks.into(), watching: Watching::default() }
    }
}

fn progress(view: &View, name: &String) -> Result<ProgressRow> {
    Ok(PROGRESS.get(view, name)?.map(|found| found.value).unwrap_or_default())
}

/// Whether there is something that a sink was not told of.
fn wants(view: &View, name: &String) -> Result<bool> {
    Ok(progress(view, name)?.done < view.last_audit())
}

/// The next records of a sink, from `from` on, by what this replica knows.
async fn next(cx: &Context, view: &View, from: u64) -> Result<AuditBatch> {
    let mut records: Vec<AuditRecord> = vec![];
    let in_memory = view.first_audit().unwrap_or(u64::MAX);
    if from < in_memory
        && let Ok(history) = cx.ports.history.get()
    {
        records = history.audit(from, BATCH_MAX).await?;
    }
    if records.is_empty() {
        records = view.audit(from).take(BATCH_MAX).cloned().collect();
    }
    // One gap of numbers at most in a batch, and that one before its first record.
    let whole = records.windows(2).take_while(|two| two[1].seq == two[0].seq + 1).count();
    records.truncate(whole + 1);
    let first = records.first().map_or(view.last_audit() + 1, |record| record.seq);
    let missing = (first > from).then(|| (from, first - 1));
    Ok(AuditBatch { cluster: formation(view)?.cluster, missing, records })
}

/// Gives a sink what it was not told of, as long as it takes it.
async fn fill(cx: &ReconcileContext, sink: &RegisteredAuditSink) -> Result<Run> {
    let name = sink.name();
    for _ in 0..BATCHES_MAX {
        let view = cx.view();
        let row = progress(&view, &name)?;
        if row.done >= view.last_audit() || cx.cancelled.is_cancelled() {
            return Ok(Run::Done);
        }
        let batch = match next(&cx.context, &view, row.done + 1).await {
            Ok(batch) => batch,
            Err(error) => {
                let why = format!("what it is to be given cannot be read: {}", error.detail);
                return failed(cx, &name, &why).await;
            }
        };
        let given = sink.sink.deliver(&cx.context, &batch);
        let taken = match timeout(&*cx.context.rt, LIMIT, given).await {
            Some(taken) => taken.map_err(|error| error.detail),
            None => Err(format!("it did not take it within {} seconds", LIMIT.as_secs())),
        };
        if let Err(why) = taken {
            return failed(cx, &name, &why).await;
        }
        let missing = batch.missing.map_or(0, |(first, last)| last + 1 - first);
        let after = ProgressRow {
            cluster: batch.cluster.clone(),
            done: batch.last(),
            missing: row.missing + missing,
            failing: None,
        };
        // SINK-2: nobody else has moved it meanwhile.
        cx.commit(|tx| {
            let now = tx.get(&PROGRESS, &name)?.unwrap_or_default();
            if now.done == row.done {
                tx.put(&PROGRESS, &name, &after)?
            }
            Ok(())
        })
        .await?;
    }
    Ok(Run::Again)
}

async fn failed(cx: &ReconcileContext, name: &String, why: &str) -> Result<Run> {
    let mut tries = 0;
    cx.commit(|tx| {
        let clock = tx.view().clock();
        let mut row = tx.get(&PROGRESS, name)?.unwrap_or_default();
        let failing = row.failing.get_or_insert_with(|| Failing {
            since_ms: clock.now_ms,
            since_wall_ms: clock.wall_ms,
            tries: 0,
            why: String::new(),
        });
        failing.tries = failing.tries.saturating_add(1);
        failing.why = why.chars().take(300).collect();
        tries = failing.tries;
        Ok(tx.put(&PROGRESS, name, &row)?)
    })
    .await?;
    tracing::warn!(sink = %name, tries, why, "an audit sink does not take what it is given");
    let [least, most] = BACKOFF_MS;
    let delay = least.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(most);
    Ok(Run::After(Duration::from_millis(delay)))
}

/// One key for each sink, all with whoever holds the one lease.
struct Filling(Arc<[RegisteredAuditSink]>);

impl Reconciler for Filling {
    fn name(&self) -> &'static str {
        KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::None
    }

    fn periodic(&self) -> Vec<Periodic> {
        self.0.iter().map(|sink| Periodic { key: sink.name(), every: EVERY }).collect()
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            match self.0.iter().find(|sink| sink.name() == key) {
                Some(sink) => fill(cx, sink).await,
                // Of another binary's, in the middle of an upgrade.
                None => Ok(Run::Done),
            }
        })
    }
}

/// The sinks that have something to be told of, by their names.
struct Waiting(Vec<String>);

impl Waker for Waiting {
    fn by(&self) -> &'static str {
        KIND
    }

    fn whom(&self) -> &'static str {
        KIND
    }

    fn last(&self, view: &View) -> u64 {
        view.last_audit()
    }

    fn wanting(&self, view: &View, _: bool) -> Result<Vec<String>> {
        let mut waiting = vec![];
        for name in &self.0 {
            // One that failed is woken by its time.
            if progress(view, name)?.failing.is_none() && wants(view, name)? {
                waiting.push(name.clone());
            }
        }
        Ok(waiting)
    }
}

fn failing(view: &View, name: &str, row: &ProgressRow) -> Option<Finding> {
    let failing = row.failing.as_ref()?;
    let now = view.clock().now_ms;
    let behind = view.last_audit().saturating_sub(row.done);
    (now >= failing.since_ms + PATIENCE_MS).then(|| Finding {
        check: "audit.sink-failing".to_owned(),
        severity: Severity::Warning,
        message: format!(
            "audit sink {name} has taken nothing since {} ({} tries, {behind} records behind): {}",
            rfc3339(failing.since_wall_ms),
            failing.tries,
            failing.why
        ),
        fix: "mend what it sends to; what waits is sent in order once it takes it".to_owned(),
        count: Some(behind),
    })
}

fn lacking(name: &str, row: &ProgressRow) -> Option<Finding> {
    (row.missing > 0).then(|| Finding {
        check: "audit.sink-missing".to_owned(),
        severity: Severity::Warning,
        message: format!(
            "audit sink {name} was not given {} records, which the replica that sent did not know",
            row.missing
        ),
        fix: "look for a replica that has them: `palisade audit export`, docs/audit.md".to_owned(),
        count: Some(row.missing),
    })
}

impl Module for AuditSinks {
    fn name(&self) -> &'static str {
        "audit-sinks"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![PROGRESS.declared()]
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(Filling(self.sinks.clone()))]
    }

    fn catalog(&self) -> Catalog {
        Catalog::default()
    }

    fn self_check(&self, _: &Context, view: &View) -> Result<Vec<Finding>> {
        let mut findings = vec![];
        let known: BTreeSet<String> = self.sinks.iter().map(RegisteredAuditSink::name).collect();
        for (name, row) in PROGRESS.all(view)? {
            if known.contains(&name) {
                findings.extend(failing(view, &name, &row.value));
                findings.extend(lacking(&name, &row.value));
            }
        }
        Ok(findings)
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let names = self.sinks.iter().map(RegisteredAuditSink::name).collect();
            self.watching.begin(cx, "audit sinks", Waiting(names));
            Ok(())
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        self.watching.end();
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests;
