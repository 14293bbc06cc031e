//! History over one shelf: opened and checked, appended to in batches, shortened by age.
//!
//! # Invariants
//! - `HIST-3` Numbers are dense: a record that is not there is in a known gap, or the store is damaged.
//! - `HIST-4` An audit record follows, by its hash, the one before it; what is written was checked against that.
//! - `HIST-5` What a batch writes, and how far it reaches, is written together and synced before it is reported.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use palisade_state::{Clock, audit::AuditRecord, outbox::Event};

use super::{
    gaps,
    keys::{self, Numbered},
    rows::{Part, Progress, Sheet, StoredEvent, StoredVersion, open, seal},
    shelf::{Changes, Shelf, ShelfError, Shelved},
};

/// Versions on one sheet.
const SHEET_MAX: usize = 500;
/// Rows that one step of retention looks at in each part.
const TRIM_MAX: usize = 500;
/// Sheets that one step of retention removes.
const TRIM_SHEETS_MAX: usize = 4;

/// How long things are kept, on the leader's wall clock as it is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Audit records.
    pub audit: Duration,
    /// Events.
    pub events: Duration,
    /// Versions that records had, from when they were replaced; zero: none are kept.
    pub versions: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 60 * 60);
        Self { audit: days(400), events: days(30), versions: days(7) }
    }
}

/// The beginning of what is younger than `kept`.
fn horizon(now_ms: u64, kept: Duration) -> u64 {
    now_ms.saturating_sub(u64::try_from(kept.as_millis()).unwrap_or(u64::MAX))
}

/// A version that has ended, before it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) table: Arc<str>,
    pub(super) key: Vec<u8>,
    pub(super) stamp: palisade_state::Stamp,
    pub(super) value: Vec<u8>,
    pub(super) ended_rev: u64,
    pub(super) ended_ms: u64,
}

impl Ended {
    pub(super) fn bytes(&self) -> usize {
        self.key.len() + self.value.len() + 96
    }
}

/// What one range of the log did to the rows.
#[derive(Debug, Default)]
pub(super) struct Range {
    /// The first and the last log entry.
    pub(super) first: u64,
    pub(super) last: u64,
    /// The cluster's clock after each entry that may have changed rows, and at the end.
    pub(super) moments: Vec<Moment>,
    pub(super) versions: Vec<Ended>,
}

/// What the cluster's clock was at a revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The last log entry that was applied by then, as far as it changed rows.
    pub revision: u64,
    /// The clock.
    pub clock: Clock,
}

impl Moment {
    /// Its row: under the wall clock, the revision and the logical time.
    fn row(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let value = [self.revision.to_be_bytes(), self.clock.now_ms.to_be_bytes()].concat();
        (Numbered::Time.key(self.clock.wall_ms), Some(value))
    }

    /// From its row; `None` for one of a release that kept no logical time.
    pub(super) fn read(key: &[u8], value: &[u8]) -> Option<Self> {
        let (revision, now_ms) = value.split_at_checked(8)?;
        let number = |bytes: &[u8]| bytes.try_into().ok().map(u64::from_be_bytes);
        let clock = Clock { now_ms: number(now_ms)?, wall_ms: keys::number_of(key)? };
        Some(Self { revision: number(revision)?, clock })
    }
}

impl Range {
    pub(super) fn bytes(&self) -> usize {
        self.versions.iter().map(Ended::bytes).sum::<usize>() + 32 * self.moments.len()
    }
}

/// One batch.
#[derive(Debug, Default)]
pub(super) struct More {
    pub(super) audit: Vec<AuditRecord>,
    pub(super) events: Vec<(u64, Event)>,
    pub(super) ranges: Vec<Range>,
}

impl More {
    pub(super) fn is_empty(&self) -> bool {
        self.audit.is_empty() && self.events.is_empty() && self.ranges.is_empty()
    }
}

/// See the module.
pub(super) struct Book {
    pub(super) shelf: Arc<dyn Shelf>,
    pub(super) progress: Progress,
}

fn broken(what: String) -> ShelfError {
    ShelfError::Broken(what)
}

pub(super) fn read_audit(seq: u64, sealed: &[u8]) -> Shelved<AuditRecord> {
    let record: AuditRecord = open(sealed, &format!("audit record {seq}"))?;
    if record.seq != seq || !record.is_sound() {
        return Err(broken(format!("audit record {seq} is not what its hash says")));
    }
    Ok(record)
}

/// Puts what is added behind what is there, or says what is between.
fn follow(progress: &mut Progress, part: Part, number: u64) -> Shelved<bool> {
    let (first, last) = match part {
        Part::Audit => (&mut progress.audit_first, &mut progress.audit_last),
        Part::Events => (&mut progress.event_first, &mut progress.event_last),
        Part::Versions => return Ok(true),
    };
    if *last == 0 {
        *first = number;
        *last = number;
        return Ok(false);
    }
    let expected = *last + 1;
    if number < expected {
        return Err(broken(format!("number {number} of the {part} came after {}", expected - 1)));
    }
    *last = number;
    if number > expected {
        tracing::warn!(part = %part, from = expected, to = number - 1, "history has a gap");
        gaps::add(&mut progress.gaps, part, expected, number - 1);
    }
    Ok(number == expected)
}

fn add_audit(progress: &mut Progress, record: &AuditRecord, changes: &mut Changes) -> Shelved<()> {
    let seq = record.seq;
    let adjoins = follow(progress, Part::Audit, seq)?;
    if adjoins && record.prev_hash != progress.audit_hash {
        return Err(broken(format!("audit record {seq} does not follow the one that is kept")));
    }
    if !record.is_sound() {
        return Err(broken(format!("audit record {seq} is not what its hash says")));
    }
    progress.audit_hash.clone_from(&record.hash);
    changes.push((Numbered::Audit.key(seq), Some(seal(record))));
    Ok(())
}

fn add_range(progress: &mut Progress, range: &Range, changes: &mut Changes) {
    if range.last <= progress.through {
        return;
    }
    if progress.through == 0 {
        progress.versions_from = range.first.saturating_sub(1);
        progress.sheet_first = 1;
    } else if range.first > progress.through + 1 {
        let (from, to) = (progress.through + 1, range.first - 1);
        tracing::warn!(part = %Part::Versions, from, to, "history has a gap");
        gaps::add(&mut progress.gaps, Part::Versions, from, to);
    }
    let known = progress.through;
    let fresh: Vec<&Ended> =
        range.versions.iter().filter(|version| version.ended_rev > known).collect();
    for sheet in fresh.chunks(SHEET_MAX) {
        let mut keys = Vec::with_capacity(sheet.len());
        for ended in sheet {
            let key = keys::version(&ended.table, &ended.key, ended.stamp.modified_rev);
            let stored = StoredVersion {
                value: ended.value.clone(),
                created_rev: ended.stamp.created_rev,
                version: ended.stamp.version,
                ended_rev: ended.ended_rev,
                ended_ms: ended.ended_ms,
            };
            changes.push((key.clone(), Some(seal(&stored))));
            keys.push(key);
        }
        progress.sheet_last += 1;
        let sheet = Sheet {
            through: sheet.last().map_or(range.last, |last| last.ended_rev),
            ended_ms: sheet.last().map_or(0, |last| last.ended_ms),
            versions: keys,
        };
        changes.push((Numbered::Sheet.key(progress.sheet_last), Some(seal(&sheet))));
    }
    progress.through = range.last;
    // In order: of several at one time the last one stays.
    changes.extend(range.moments.iter().map(Moment::row));
}

impl Book {
    /// Opens what is on a shelf and checks its edges.
    pub(super) fn open(shelf: Arc<dyn Shelf>) -> Shelved<Self> {
        let progress = match shelf.get(keys::PROGRESS)? {
            Some(sealed) => open(&sealed, "the record of its progress")?,
            None => {
                let first = shelf.scan(&[0], &[0xff], 1)?;
                if !first.is_empty() {
                    return Err(broken("the record of its progress is gone".to_owned()));
                }
                Progress::default()
            }
        };
        let book = Self { shelf, progress };
        book.check_edges()?;
        Ok(book)
    }

    fn check_edges(&self) -> Shelved<()> {
        let Progress { audit_first, audit_last, event_first, event_last, .. } = self.progress;
        let Progress { sheet_first, sheet_last, .. } = self.progress;
        self.check_ends(Numbered::Audit, audit_first, audit_last)?;
        self.check_ends(Numbered::Event, event_first, event_last)?;
        self.check_ends(Numbered::Sheet, sheet_first, sheet_last)?;
        if audit_first > audit_last || audit_last == 0 {
            return Ok(());
        }
        let (from, to) = Numbered::Audit.from(audit_last);
        let last = self.shelf.last(&from, &to)?;
        let last = last.ok_or_else(|| broken(format!("audit record {audit_last} is gone")))?;
        if read_audit(audit_last, &last.1)?.hash != self.progress.audit_hash {
            return Err(broken(format!("audit record {audit_last} is another one than was kept")));
        }
        Ok(())
    }

    /// The first and the last one must be there, and nothing outside of them.
    fn check_ends(&self, kind: Numbered, first: u64, last: u64) -> Shelved<()> {
        let (from, to) = kind.all();
        let number =
            |pair: Option<&super::shelf::Pair>| pair.and_then(|(key, _)| keys::number_of(key));
        let found_first = number(self.shelf.scan(&from, &to, 1)?.first());
        let found_last = number(self.shelf.last(&from, &to)?.as_ref());
        let is_empty = last == 0 || first > last;
        let expected = if is_empty { (None, None) } else { (Some(first), Some(last)) };
        if (found_first, found_last) == expected {
            return Ok(());
        }
        Err(broken(format!(
            "its {kind:?} rows should reach from {:?} to {:?} and reach from {found_first:?} to {found_last:?}",
            expected.0, expected.1
        )))
    }

    /// Writes a batch durably. After an error nothing of it counts.
    pub(super) fn append(&mut self, more: &More) -> Shelved<()> {
        let mut progress = self.progress.clone();
        let mut changes = Changes::new();
        for record in &more.audit {
            add_audit(&mut progress, record, &mut changes)?;
        }
        for (seq, event) in &more.events {
            follow(&mut progress, Part::Events, *seq)?;
            changes.push((Numbered::Event.key(*seq), Some(seal(&StoredEvent::from(event)))));
        }
        for range in &more.ranges {
            add_range(&mut progress, range, &mut changes);
        }
        self.commit(progress, changes)
    }

    fn commit(&mut self, progress: Progress, mut changes: Changes) -> Shelved<()> {
        if changes.is_empty() && progress == self.progress {
            return Ok(());
        }
        changes.push((keys::PROGRESS.to_vec(), Some(seal(&progress))));
        self.shelf.write(changes)?;
        self.shelf.sync()?;
        self.progress = progress;
        Ok(())
    }

    /// Removes one step of what is too old; whether there may be more.
    pub(super) fn trim(&mut self, now_ms: u64, retention: &Retention) -> Shelved<bool> {
        let mut progress = self.progress.clone();
        let mut changes = Changes::new();
        let (first, last) = (&mut progress.audit_first, progress.audit_last);
        let audit = horizon(now_ms, retention.audit);
        self.trim_numbered(Numbered::Audit, first, last, &mut changes, |seq, sealed| {
            Ok(read_audit(seq, sealed)?.at_ms < audit)
        })?;
        let (first, last) = (&mut progress.event_first, progress.event_last);
        let events = horizon(now_ms, retention.events);
        self.trim_numbered(Numbered::Event, first, last, &mut changes, |seq, sealed| {
            let event: StoredEvent = open(sealed, &format!("event {seq}"))?;
            Ok(event.at_ms < events)
        })?;
        self.trim_versions(horizon(now_ms, retention.versions), &mut progress, &mut changes)?;
        self.skip_gaps(&mut progress);
        let is_more = !changes.is_empty();
        self.commit(progress, changes)?;
        Ok(is_more)
    }

    /// Removes what is old from `first` on; the last one stays, for what comes next to follow.
    fn trim_numbered(
        &self,
        kind: Numbered,
        first: &mut u64,
        last: u64,
        changes: &mut Changes,
        is_old: impl Fn(u64, &[u8]) -> Shelved<bool>,
    ) -> Shelved<()> {
        let mut limit = 1;
        loop {
            let (from, to) = kind.from(*first);
            let found = self.shelf.scan(&from, &to, limit)?;
            let mut removed = 0;
            for (key, sealed) in &found {
                let seq = keys::number_of(key).unwrap_or_default();
                if seq >= last || !is_old(seq, sealed)? {
                    break;
                }
                *first = seq + 1;
                changes.push((key.clone(), None));
                removed += 1;
            }
            // Nearly always the first one is young, and that is all there is to do.
            if limit > 1 || removed == 0 {
                return Ok(());
            }
            limit = TRIM_MAX;
        }
    }

    fn trim_versions(
        &self,
        horizon: u64,
        progress: &mut Progress,
        changes: &mut Changes,
    ) -> Shelved<()> {
        let (from, to) = Numbered::Sheet.from(progress.sheet_first);
        for (key, sealed) in self.shelf.scan(&from, &to, TRIM_SHEETS_MAX)? {
            let number = keys::number_of(&key).unwrap_or_default();
            let sheet: Sheet = open(&sealed, &format!("sheet {number}"))?;
            if sheet.ended_ms >= horizon {
                break;
            }
            progress.sheet_first = number + 1;
            progress.versions_from = progress.versions_from.max(sheet.through);
            changes.extend(sheet.versions.into_iter().map(|key| (key, None)));
            changes.push((key, None));
        }
        let (from, _) = Numbered::Time.all();
        let until = Numbered::Time.key(horizon);
        for (key, _) in self.shelf.scan(&from, &until, TRIM_MAX)? {
            changes.push((key, None));
        }
        Ok(())
    }

    /// The first one that is kept is one that is there.
    fn skip_gaps(&self, progress: &mut Progress) {
        let mut firsts = BTreeMap::from([
            (Part::Audit, progress.audit_first),
            (Part::Events, progress.event_first),
        ]);
        for (part, first) in &mut firsts {
            while let Some(gap) = gaps::within(&progress.gaps, *part, *first, *first).next() {
                *first = gap.to + 1;
            }
        }
        progress.audit_first = firsts.get(&Part::Audit).copied().unwrap_or_default();
        progress.event_first = firsts.get(&Part::Events).copied().unwrap_or_default();
        gaps::forget(&mut progress.gaps, Part::Audit, progress.audit_first);
        gaps::forget(&mut progress.gaps, Part::Events, progress.event_first);
        gaps::forget(&mut progress.gaps, Part::Versions, progress.versions_from);
    }
}
