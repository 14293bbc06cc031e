//! Reading history, checking what is read: numbers, hashes, checksums.

use std::{collections::BTreeMap, sync::Arc};

use palisade_state::{Record, Stamp, View, audit::AuditRecord, outbox::Event};

use super::{
    book::{Moment, read_audit},
    gaps,
    keys::{self, Numbered, Span},
    rows::{Gap, Part, Progress, StoredEvent, StoredVersion, open},
    shelf::{Pair, Shelf, ShelfError, Shelved},
};

/// Rows that one read hands out at most.
const PAGE_MAX: usize = 1000;
/// Versions that a read of a table looks at in one step.
const STEP: usize = 1000;

/// A page of what is numbered.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// What is kept, in order.
    pub items: Vec<T>,
    /// Where the next page begins; `None`: there is no more.
    pub next: Option<u64>,
    /// What is known to be missing among them.
    pub gaps: Vec<Gap>,
}

/// A version that a record had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Past {
    /// Its stamp; `modified_rev` is where it began.
    pub stamp: Stamp,
    /// Its bytes.
    pub value: Vec<u8>,
    /// The revision that replaced or deleted it.
    pub ended_rev: u64,
    /// The leader's wall clock then, Unix milliseconds.
    pub ended_ms: u64,
}

/// The versions of one record that history still has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Oldest first; the one that the record has now is in state and not here.
    pub versions: Vec<Past>,
    /// Everything that ended from here on is here, but for the gaps.
    pub from_revision: u64,
    /// What is known to be missing.
    pub gaps: Vec<Gap>,
}

/// A row as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OldRow {
    /// Its key.
    pub key: Vec<u8>,
    /// Its stamp then.
    pub stamp: Stamp,
    /// Its bytes.
    pub value: Vec<u8>,
}

/// Rows of a table.
#[derive(Clone, Debug, Default)]
pub struct RangeOf<'a> {
    /// The table.
    pub table: &'a str,
    /// The first key.
    pub start: &'a [u8],
    /// The first key behind the range; absent: to the table's end.
    pub end: Option<&'a [u8]>,
    /// Rows to answer at most.
    pub limit: usize,
}

/// One state of the shelf and of what is known of it.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) shelf: Arc<dyn Shelf>,
    pub(super) progress: Progress,
}

/// Checks that what is read is dense.
struct Dense<'a> {
    gaps: &'a [Gap],
    part: Part,
    next: u64,
}

impl Dense<'_> {
    /// Whether it follows the one before directly.
    fn take(&mut self, number: u64) -> Shelved<bool> {
        let expected = self.next;
        self.next = number.saturating_add(1);
        if number == expected {
            return Ok(true);
        }
        if number > expected && gaps::cover(self.gaps, self.part, expected, number - 1) {
            return Ok(false);
        }
        let part = self.part;
        Err(ShelfError::Broken(format!("number {expected} of the {part} is gone")))
    }
}

impl Reader {
    fn page(&self, kind: Numbered, from: u64, last: u64, limit: usize) -> Shelved<Vec<Pair>> {
        let (start, _) = kind.from(from);
        self.shelf.scan(&start, &kind.key(last.saturating_add(1)), limit.clamp(1, PAGE_MAX))
    }

    fn next_page(from: u64, last: u64) -> Option<u64> {
        (from <= last && last > 0).then_some(from)
    }

    /// The first number from `from` on that may be kept.
    fn begin(&self, part: Part, from: u64, first: u64) -> u64 {
        let mut at = from.max(first);
        while let Some(gap) = gaps::within(&self.progress.gaps, part, at, at).next() {
            at = gap.to.saturating_add(1);
        }
        at
    }

    pub(super) fn gaps(&self, part: Part, from: u64, to: u64) -> Vec<Gap> {
        gaps::within(&self.progress.gaps, part, from, to).copied().collect()
    }

    /// Audit records from a number on.
    pub(super) fn audit(&self, from: u64, limit: usize) -> Shelved<Page<AuditRecord>> {
        let Progress { audit_first, audit_last, gaps, .. } = &self.progress;
        let begin = self.begin(Part::Audit, from, *audit_first);
        let mut dense = Dense { gaps, part: Part::Audit, next: begin };
        let mut items: Vec<AuditRecord> = vec![];
        for (key, sealed) in self.page(Numbered::Audit, begin, *audit_last, limit)? {
            let seq = keys::number_of(&key).unwrap_or_default();
            let record = read_audit(seq, &sealed)?;
            let adjoins = dense.take(seq)?;
            if let Some(before) = items.last().filter(|_| adjoins)
                && before.hash != record.prev_hash
            {
                let what = format!("audit record {seq} does not follow the one before it");
                return Err(ShelfError::Broken(what));
            }
            items.push(record);
        }
        self.check_reached(&dense, items.is_empty(), *audit_last)?;
        let next = Self::next_page(dense.next, *audit_last);
        let gaps = self.gaps(Part::Audit, from, dense.next.saturating_sub(1));
        Ok(Page { items, next, gaps })
    }

    /// Events from a number on.
    pub(super) fn events(&self, from: u64, limit: usize) -> Shelved<Page<(u64, Event)>> {
        let Progress { event_first, event_last, gaps, .. } = &self.progress;
        let begin = self.begin(Part::Events, from, *event_first);
        let mut dense = Dense { gaps, part: Part::Events, next: begin };
        let mut items = vec![];
        for (key, sealed) in self.page(Numbered::Event, begin, *event_last, limit)? {
            let seq = keys::number_of(&key).unwrap_or_default();
            let event: StoredEvent = open(&sealed, &format!("event {seq}"))?;
            dense.take(seq)?;
            items.push((seq, event.into()));
        }
        self.check_reached(&dense, items.is_empty(), *event_last)?;
        let next = Self::next_page(dense.next, *event_last);
        let gaps = self.gaps(Part::Events, from, dense.next.saturating_sub(1));
        Ok(Page { items, next, gaps })
    }

    /// A page that is empty although there should be more.
    fn check_reached(&self, dense: &Dense<'_>, is_empty: bool, last: u64) -> Shelved<()> {
        if !is_empty || dense.next > last || last == 0 {
            return Ok(());
        }
        let (next, part) = (dense.next, dense.part);
        Err(ShelfError::Broken(format!("number {next} of the {part} is gone")))
    }

    fn span(&self, (mut from, to): Span) -> impl Iterator<Item = Shelved<Pair>> + '_ {
        let mut waiting = vec![].into_iter();
        let mut is_over = false;
        std::iter::from_fn(move || {
            loop {
                if let Some(pair) = waiting.next() {
                    return Some(Ok(pair));
                }
                if is_over {
                    return None;
                }
                match self.shelf.scan(&from, &to, STEP) {
                    Err(error) => {
                        is_over = true;
                        return Some(Err(error));
                    }
                    Ok(found) => {
                        is_over = found.len() < STEP;
                        if let Some((last, _)) = found.last() {
                            from.clone_from(last);
                            from.push(0);
                        }
                        waiting = found.into_iter();
                    }
                }
            }
        })
    }

    fn past(key: &[u8], sealed: &[u8]) -> Shelved<(Vec<u8>, Past)> {
        let (row, modified_rev) = keys::split_version(key)
            .ok_or_else(|| ShelfError::Broken("the key of a version is damaged".to_owned()))?;
        let stored: StoredVersion = open(sealed, "a version of a record")?;
        let StoredVersion { value, created_rev, version, ended_rev, ended_ms } = stored;
        let stamp = Stamp { created_rev, modified_rev, version };
        Ok((row, Past { stamp, value, ended_rev, ended_ms }))
    }

    /// The versions that one record had.
    pub(super) fn versions(&self, table: &str, key: &[u8]) -> Shelved<Versions> {
        let mut versions = vec![];
        for pair in self.span(keys::versions_of(table, key)) {
            let (key, sealed) = pair?;
            versions.push(Self::past(&key, &sealed)?.1);
        }
        let from_revision = self.progress.versions_from;
        let gaps = self.gaps(Part::Versions, from_revision, u64::MAX);
        Ok(Versions { versions, from_revision, gaps })
    }

    /// The rows of a table as they were at `revision`, seen from `view`, whose revision is not before it.
    pub(super) fn at(
        &self,
        range: &RangeOf<'_>,
        revision: u64,
        view: &View,
    ) -> Shelved<Vec<OldRow>> {
        let mut rows = BTreeMap::new();
        let RangeOf { table, start, end, limit } = *range;
        for (key, record) in view.rows(table, start, end) {
            if record.stamp().modified_rev <= revision {
                rows.insert(key.to_vec(), old_row(key, record));
            }
        }
        for pair in self.span(keys::versions_in(table, start, end)) {
            let (key, sealed) = pair?;
            let (key, past) = Self::past(&key, &sealed)?;
            if past.stamp.modified_rev <= revision && revision < past.ended_rev {
                let Past { stamp, value, .. } = past;
                rows.insert(key.clone(), OldRow { key, stamp, value });
            }
        }
        Ok(rows.into_values().take(limit.max(1)).collect())
    }

    /// The first reason why the state at `revision` is not known, seen from `view`.
    pub(super) fn unknown_at(&self, revision: u64, view: &View) -> Option<Unknown> {
        let Progress { versions_from, through, .. } = self.progress;
        // Nothing is written yet: where it begins is not known either.
        if through == 0 || (through < view.revision() && revision >= versions_from) {
            return Some(Unknown::Behind);
        }
        if revision < versions_from {
            return Some(Unknown::TooOld { from: versions_from });
        }
        let gap = gaps::within(&self.progress.gaps, Part::Versions, revision + 1, view.revision());
        gap.copied().next().map(Unknown::Gap)
    }

    /// The versions of a table's rows that were there at `revision` and have ended since.
    pub(super) fn ended(&self, table: &str, revision: u64) -> Shelved<Vec<OldRow>> {
        let mut rows = vec![];
        for pair in self.span(keys::versions_in(table, &[], None)) {
            let (key, sealed) = pair?;
            let (key, past) = Self::past(&key, &sealed)?;
            if past.stamp.modified_rev <= revision && revision < past.ended_rev {
                rows.push(OldRow { key, stamp: past.stamp, value: past.value });
            }
        }
        Ok(rows)
    }

    /// The versions of a table's rows that are wanted, by key and age.
    pub(super) fn lives(
        &self,
        table: &str,
        is_wanted: impl Fn(&[u8], &[u8]) -> bool,
    ) -> Shelved<Vec<(Vec<u8>, Past)>> {
        let mut found = vec![];
        for pair in self.span(keys::versions_in(table, &[], None)) {
            let (key, sealed) = pair?;
            let (key, past) = Self::past(&key, &sealed)?;
            if is_wanted(&key, &past.value) {
                found.push((key, past));
            }
        }
        Ok(found)
    }

    /// The last moment that is noted at a time or before it.
    pub(super) fn moment_at(&self, at_ms: u64) -> Shelved<Option<Moment>> {
        let (from, _) = Numbered::Time.all();
        let until = Numbered::Time.key(at_ms.saturating_add(1));
        let found = self.shelf.last(&from, &until)?;
        Ok(found.and_then(|(key, value)| Moment::read(&key, &value)))
    }

    /// The time of the first moment that is noted.
    pub(super) fn first_ms(&self) -> Shelved<Option<u64>> {
        let (from, to) = Numbered::Time.all();
        let found = self.shelf.scan(&from, &to, 1)?;
        Ok(found.first().and_then(|(key, _)| keys::number_of(key)))
    }

    /// The first moment at which `revision` was there: times and revisions rise together.
    pub(super) fn moment_of(&self, revision: u64) -> Shelved<Option<Moment>> {
        let last = self.moment_at(u64::MAX - 1)?.filter(|last| last.revision >= revision);
        let (Some(mut found), Some(mut low)) = (last, self.first_ms()?) else { return Ok(None) };
        let mut high = found.clock.wall_ms;
        // Everything below `low` is before `revision`, and `found` is not and begins at `high`.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.moment_at(middle)? {
                Some(moment) if moment.revision >= revision => {
                    high = moment.clock.wall_ms;
                    found = moment;
                }
                _ => low = middle + 1,
            }
        }
        Ok(Some(found))
    }
}

/// Why the state at a revision is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unknown {
    TooOld {
        from: u64,
    },
    Gap(Gap),
    /// Not yet: what is in state is not all in history.
    Behind,
}

fn old_row(key: &[u8], record: &Record) -> OldRow {
    OldRow { key: key.to_vec(), stamp: record.stamp(), value: record.value().to_vec() }
}
