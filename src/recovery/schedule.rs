//! Scheduled backups: one replica at a time writes one when it is due, and keeps the newest few.
//!
//! # Invariants
//! - `SCHED-1` An older backup is removed only after a newer one was written and checked; only files of this lineage
//!   that a schedule named are ever removed.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Error, Finding, Periodic, ReconcileContext, Reconciler, Result, Run, Severity, ShardBy,
    time::rfc3339,
};
use palisade_raft::backup::{BackupHead, Info, write_backup};
use palisade_state::{Table, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Source, s3};
use crate::{edge, output::failure::chain, replica_dir::BackupConfig};

/// How often it is looked whether one is due.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long after a failure it is tried again, logical milliseconds.
const RETRY_MS: u64 = 5 * 60 * 1000;
const KEY: &str = "scheduled";
/// What the names of backups end with.
pub(super) const END: &str = ".backup";

/// What became of scheduled backups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Scheduled {
    /// Logical milliseconds of the last good one.
    pub good_ms: Option<u64>,
    /// When it was made, for people.
    #[serde(default)]
    pub good_at_ms: u64,
    /// The file, as the replica that wrote it names it.
    #[serde(default)]
    pub file: String,
    /// Its length.
    #[serde(default)]
    pub bytes: u64,
    /// The replica.
    #[serde(default)]
    pub replica: u64,
    /// Logical milliseconds of the last failure, when no good one followed.
    pub failed_ms: Option<u64>,
    /// When that was, for people.
    #[serde(default)]
    pub failed_at_ms: u64,
    /// Why it failed.
    #[serde(default)]
    pub error: String,
}

pub(super) static SCHEDULED: Table<String, Scheduled> = Table::new("backups", &[]);

fn every_ms(config: &BackupConfig) -> u64 {
    u64::from(config.every_hours) * 3_600_000
}

/// Whether one is due. A failure is not repeated at once.
fn is_due(row: &Scheduled, now_ms: u64, config: &BackupConfig) -> bool {
    let is_old = row.good_ms.is_none_or(|good| now_ms.saturating_sub(good) >= every_ms(config));
    is_old && row.failed_ms.is_none_or(|failed| now_ms.saturating_sub(failed) >= RETRY_MS)
}

/// `<lineage>-<time>.backup`: by name is by time.
pub(super) fn file_name(lineage: &str, created_ms: u64) -> String {
    let created = i64::try_from(created_ms).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_millisecond(created).unwrap_or_default();
    format!("{lineage}-{}{END}", time.strftime("%Y%m%dT%H%M%S%3fZ"))
}

/// Whether a schedule of this lineage gave that name.
pub(super) fn is_scheduled(name: &str, lineage: &str, end: &str) -> bool {
    let time = name.strip_prefix(lineage).and_then(|rest| rest.strip_suffix(end));
    time.and_then(|time| time.strip_prefix('-')).is_some_and(|time| {
        time.ends_with('Z') && time.chars().all(|c| c.is_ascii_digit() || "TZ".contains(c))
    })
}

/// The backups of a lineage in a directory, oldest first.
fn listed(directory: &Path, lineage: &str, end: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![];
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        if is_scheduled(&name, lineage, end) {
            found.push(directory.join(name.as_ref()));
        }
    }
    found.sort();
    Ok(found)
}

/// What operators are told: an internal error would hide it.
fn failed_with(text: impl Into<String>) -> Error {
    Error::new(Code::ProviderError, text)
}

/// Writes one, then removes those that are too many.
fn write_one(
    directory: &Path,
    keep: u32,
    head: BackupHead,
    view: &View,
) -> Result<(PathBuf, Info)> {
    let failed = |what: &str, error: &io::Error| {
        failed_with(format!("cannot {what} {}: {}", directory.display(), chain(error)))
    };
    let lineage = head.lineage.clone();
    fs::create_dir_all(directory).map_err(|error| failed("make", &error))?;
    let left = listed(directory, &lineage, &format!("{END}.part"));
    for part in left.map_err(|error| failed("list", &error))? {
        // What a replica that ended in the middle left.
        let _ = fs::remove_file(part);
    }
    let path = directory.join(file_name(&lineage, head.created_ms));
    let info = write_backup(&path, head, view).map_err(|error| failed_with(chain(&error)))?;
    let all = listed(directory, &lineage, END).map_err(|error| failed("list", &error))?;
    let surplus = all.len().saturating_sub(usize::try_from(keep).unwrap_or(usize::MAX));
    for old in all.iter().take(surplus).filter(|old| **old != path) {
        fs::remove_file(old).map_err(|error| failed("remove an old backup in", &error))?;
    }
    Ok((path, info))
}

/// Writes a backup when one is due. One key; whoever holds its lease does it.
pub(super) struct Schedule {
    pub source: Source,
    pub config: BackupConfig,
}

impl Schedule {
    /// Writes one to where they go; what it is called there.
    async fn put(&self, head: BackupHead, view: View) -> Result<(String, Info)> {
        let keep = self.config.keep;
        if let Some(config) = &self.config.s3 {
            let scratch = self.source.scratch();
            let written = s3::write_one(config, keep, scratch, head, view).await;
            return written.map_err(|error| failed_with(chain(&error)));
        }
        let directory = self.config.directory.clone().unwrap_or_default();
        let work = edge::blocking(move || write_one(&directory, keep, head, &view)).await;
        let panicked = || failed_with("the thread that writes it panicked");
        let (path, info) = work.ok_or_else(panicked)??;
        Ok((path.display().to_string(), info))
    }

    async fn write(&self, cx: &ReconcileContext) -> Result<Scheduled> {
        let store = &cx.context.store;
        let view = store.linearizable().await?;
        let (now_ms, created_ms) = (view.clock().now_ms, cx.context.rt.wall_ms());
        let head = self.source.head(&store.status(), &view, created_ms);
        let head = head.map_err(|error| failed_with(chain(&error)))?;
        let (file, info) = self.put(head, view).await?;
        tracing::info!(file, bytes = info.file_bytes, "a scheduled backup was written");
        Ok(Scheduled {
            good_ms: Some(now_ms),
            good_at_ms: created_ms,
            file,
            bytes: info.file_bytes,
            replica: store.replica().0,
            failed_ms: None,
            failed_at_ms: 0,
            error: String::new(),
        })
    }
}

impl Reconciler for Schedule {
    fn name(&self) -> &'static str {
        "backup.scheduled"
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::None
    }

    fn periodic(&self) -> Vec<Periodic> {
        vec![Periodic { key: KEY.to_owned(), every: LOOK_EVERY }]
    }

    fn keys(&self, _view: &View) -> Result<Vec<String>> {
        Ok(vec![KEY.to_owned()])
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, _key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let view = cx.view();
            let before = read(&view)?;
            if !is_due(&before, view.clock().now_ms, &self.config) {
                return Ok(Run::Done);
            }
            let after = match self.write(cx).await {
                Ok(written) => written,
                Err(error) => {
                    tracing::warn!(%error, "a scheduled backup failed");
                    let failed_ms = Some(cx.view().clock().now_ms);
                    let failed_at_ms = cx.context.rt.wall_ms();
                    Scheduled { failed_ms, failed_at_ms, error: error.to_string(), ..before }
                }
            };
            cx.finish(|tx| Ok(tx.put(&SCHEDULED, &KEY.to_owned(), &after)?)).await?;
            Ok(Run::Done)
        })
    }
}

fn read(view: &View) -> Result<Scheduled> {
    Ok(SCHEDULED.get(view, &KEY.to_owned())?.map(|row| row.value).unwrap_or_default())
}

/// A good backup.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Good {
    /// When it was made.
    at: String,
    /// The file, as the replica that wrote it names it.
    file: String,
    bytes: u64,
    /// The replica that wrote it.
    replica: u64,
}

/// A failure that no good backup followed.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Failed {
    at: String,
    error: String,
}

/// What became of the schedule.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Backed {
    /// Hours between two, on the replica that answers; null: it has no schedule.
    every_hours: Option<u32>,
    /// Where they are written.
    target: Option<String>,
    /// The last good one.
    last: Option<Good>,
    /// What went wrong since then.
    failure: Option<Failed>,
    /// The last good one is older than twice the time, or there is none for so long.
    overdue: bool,
}

/// What became of the schedule, for people who ask.
pub(super) fn backed(view: &View, config: Option<&BackupConfig>) -> Result<Backed> {
    let (row, now_ms) = (read(view)?, view.clock().now_ms);
    Ok(Backed {
        every_hours: config.map(|config| config.every_hours),
        target: config.map(target),
        overdue: config.is_some_and(|config| is_overdue(&row, now_ms, config)),
        last: row.good_ms.map(|_| Good {
            at: rfc3339(row.good_at_ms),
            file: row.file.clone(),
            bytes: row.bytes,
            replica: row.replica,
        }),
        failure: row.failed_ms.map(|_| Failed { at: rfc3339(row.failed_at_ms), error: row.error }),
    })
}

fn target(config: &BackupConfig) -> String {
    match &config.s3 {
        Some(config) => s3::target(config),
        None => config.directory.as_deref().unwrap_or(Path::new("")).display().to_string(),
    }
}

fn is_overdue(row: &Scheduled, now_ms: u64, config: &BackupConfig) -> bool {
    let age_ms = row.good_ms.map_or(now_ms, |good| now_ms.saturating_sub(good));
    age_ms > every_ms(config) * 2
}

/// What an operator should know of the schedule.
pub(super) fn findings(view: &View, config: &BackupConfig) -> Result<Vec<Finding>> {
    Ok(judged(&read(view)?, view.clock().now_ms, config).into_iter().collect())
}

fn judged(row: &Scheduled, now_ms: u64, config: &BackupConfig) -> Option<Finding> {
    let age_ms = row.good_ms.map(|good| now_ms.saturating_sub(good));
    let finding = |severity, message: String, fix: &str| Finding {
        check: "backup.scheduled".to_owned(),
        severity,
        message,
        fix: fix.to_owned(),
        count: None,
    };
    let fix = "see that the directory or bucket of [backup] in replica.toml can be written and has room; its replica's log says \
               more; `palisade cluster backup FILE` makes one meanwhile";
    let last = match age_ms {
        Some(age) => format!("the last good backup is {} h old ({})", age / 3_600_000, row.file),
        None => "there is no good backup yet".to_owned(),
    };
    if is_overdue(row, now_ms, config) {
        let why = if row.error.is_empty() { String::new() } else { format!(": {}", row.error) };
        let message = format!("{last}, and one is due every {} h{why}", config.every_hours);
        return Some(finding(Severity::Error, message, fix));
    }
    if row.failed_ms.is_some() {
        let message = format!("the last scheduled backup failed: {}; {last}", row.error);
        return Some(finding(Severity::Warning, message, fix));
    }
    row.good_ms.map(|_| finding(Severity::Info, last, "nothing"))
}

#[cfg(test)]
mod tests {
    use palisade_state::Store as _;

    use super::*;

    const HOUR: u64 = 3_600_000;

    fn config(directory: &Path) -> BackupConfig {
        let directory = Some(directory.to_owned());
        BackupConfig { directory, s3: None, every_hours: 24, keep: 2 }
    }

    #[test]
    fn one_is_due_after_its_time_and_a_failure_is_not_repeated_at_once() {
        let config = config(Path::new("/x"));
        let good = |ms| Scheduled { good_ms: Some(ms), ..Scheduled::default() };
        assert!(is_due(&Scheduled::default(), 0, &config), "the first one is");
        assert!(!is_due(&good(HOUR), 24 * HOUR, &config));
        assert!(is_due(&good(HOUR), 25 * HOUR, &config));
        let failed = Scheduled { failed_ms: Some(25 * HOUR), ..good(HOUR) };
        assert!(!is_due(&failed, 25 * HOUR + 1, &config));
        assert!(is_due(&failed, 25 * HOUR + RETRY_MS, &config));
    }

    #[test]
    fn the_doctor_tells_of_failures_and_of_a_last_good_one_that_is_old() {
        let config = config(Path::new("/x"));
        let severity = |row: &Scheduled, now| judged(row, now, &config).map(|found| found.severity);
        let good = Scheduled { good_ms: Some(HOUR), ..Scheduled::default() };
        assert_eq!(severity(&Scheduled::default(), HOUR), None);
        assert_eq!(severity(&Scheduled::default(), 49 * HOUR), Some(Severity::Error));
        assert_eq!(severity(&good, 49 * HOUR), Some(Severity::Info));
        assert_eq!(severity(&good, 50 * HOUR), Some(Severity::Error));
        let failed = Scheduled { failed_ms: Some(3 * HOUR), error: "no room".into(), ..good };
        assert_eq!(severity(&failed, 4 * HOUR), Some(Severity::Warning));
        let said = judged(&failed, 60 * HOUR, &config).unwrap().message;
        assert!(said.contains("no room") && said.contains("59 h"), "{said}");
    }

    #[test]
    fn whoever_asks_is_told_of_the_last_good_one_and_of_what_went_wrong_since() {
        let store = palisade_state::memory::MemoryStore::default();
        let config = config(Path::new("/x"));
        let nothing = backed(&store.view(), None).unwrap();
        assert_eq!((nothing.every_hours, nothing.last, nothing.failure), (None, None, None));
        let row = Scheduled {
            good_ms: Some(HOUR),
            good_at_ms: 1_700_000_000_000,
            file: "/x/a.backup".into(),
            failed_ms: Some(2 * HOUR),
            failed_at_ms: 1_700_000_100_000,
            error: "no room".into(),
            ..Scheduled::default()
        };
        let mut tx = palisade_state::Tx::new(store.view());
        tx.put(&SCHEDULED, &KEY.to_owned(), &row).unwrap();
        let proposed = store.propose(tx.build().unwrap().into());
        futures::executor::block_on(proposed).unwrap();
        let told = backed(&store.view(), Some(&config)).unwrap();
        assert_eq!(told.last.unwrap().at, "2023-11-14T22:13:20.000Z");
        assert_eq!(told.failure.unwrap().error, "no room");
        assert!(!told.overdue && is_overdue(&row, 50 * HOUR, &config));
    }

    #[test]
    fn only_what_a_schedule_of_this_lineage_named_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) =
            (file_name("ln_a", 1_700_000_000_000), file_name("ln_a", 1_700_000_001_000));
        let others = ["ln_a.backup", "ln_a-mine.backup", "precious", &file_name("ln_b", 1)];
        for name in others.into_iter().chain([new.as_str(), old.as_str()]) {
            fs::write(dir.path().join(name), b"x").unwrap();
        }
        let found = listed(dir.path(), "ln_a", END).unwrap();
        assert_eq!(found, [dir.path().join(old), dir.path().join(new)], "SCHED-1");
    }
}
