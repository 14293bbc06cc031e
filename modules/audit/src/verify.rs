//! Verifying an export, without a network: the chain record by record, and every signature.
//!
//! # Invariants
//! - `AUDIT-3` An export of which a byte was changed, or a line was taken out, put in or moved, is not verified, and the
//!   first line that does not fit is named. But for checkpoints, which only add to what an export's own signature says.

use std::{
    collections::BTreeMap,
    io::{BufRead, Read as _},
};

use palisade_contract::time::rfc3339;

use crate::{
    line::{Entry, Line},
    note::{self, Verifier},
    statement::{Checkpoint, Extent},
};

/// Of one line.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// What an export was found to be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its records.
    pub records: u64,
    /// The first one.
    pub first: u64,
    /// The last one.
    pub last: u64,
    /// The hash of the last one, hex.
    pub head: String,
    /// When the first and the last record were.
    pub between: Option<(String, String)>,
    /// Signed checkpoints that the chain goes through.
    pub checkpoints: u64,
    /// When the newest of its parts was asked for.
    pub exported_at: String,
}

/// What is wrong with an export.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}{}: {what}", seq.map_or_else(String::new, |seq| format!(", record {seq}")))]
pub struct Flaw {
    /// The line, from 1.
    pub line: u64,
    /// The record that it is, or behind which it stands.
    pub seq: Option<u64>,
    /// What does not fit.
    pub what: String,
}

/// How far it was verified.
struct Chain<'a> {
    keys: &'a [Verifier],
    line: u64,
    report: Report,
    /// The last record.
    last: Option<Entry>,
    /// What the next record must follow, when a part begins.
    begins: Option<Extent>,
    /// Which hash the chain must have where.
    promised: BTreeMap<u64, Vec<u8>>,
}

/// Verifies an export.
///
/// # Errors
/// The first thing that does not fit.
pub fn verify(mut export: impl BufRead, keys: &[Verifier]) -> Result<Report, Flaw> {
    let mut chain = Chain {
        keys,
        line: 0,
        report: Report::default(),
        last: None,
        begins: None,
        promised: BTreeMap::new(),
    };
    let mut text = String::new();
    loop {
        text.clear();
        chain.line += 1;
        let read = export.by_ref().take(LINE_BYTES_MAX).read_line(&mut text);
        match read {
            Ok(0) => break,
            Ok(_) => chain.take(&text)?,
            Err(error) => return Err(chain.flaw(format!("it cannot be read: {error}"))),
        }
    }
    chain.end()
}

impl Chain<'_> {
    fn flaw(&self, what: impl Into<String>) -> Flaw {
        let seq = self.last.as_ref().map(|entry| entry.seq);
        Flaw { line: self.line, seq, what: what.into() }
    }

    fn take(&mut self, text: &str) -> Result<(), Flaw> {
        let Some(json) = text.strip_suffix('\n') else {
            return Err(self.flaw("the line is cut short, or too long: the export broke off here"));
        };
        let line: Line = serde_json::from_str(json)
            .map_err(|error| self.flaw(format!("it is no line of an export: {error}")))?;
        if line.text().ok().as_deref() != Some(text) {
            return Err(
                self.flaw("it is not written as an export writes it: something was changed")
            );
        }
        match line {
            Line::Export { note } => self.part(&note),
            Line::Record(entry) => self.record(*entry),
            Line::Checkpoint { note } => self.checkpoint(&note),
        }
    }

    fn open<T>(&self, note: &str, read: impl Fn(&str) -> Option<T>) -> Result<T, Flaw> {
        let text = note::open(note, self.keys)
            .map_err(|error| self.flaw(format!("the signed note is not good: {error}")))?;
        read(text).ok_or_else(|| self.flaw("the signed note says something else than belongs here"))
    }

    /// A part of an export begins.
    fn part(&mut self, note: &str) -> Result<(), Flaw> {
        let extent = self.open(note, Extent::read)?;
        if self.begins.is_some() {
            return Err(self.flaw("a part of the export has no records"));
        }
        if let Some(last) = &self.last
            && (last.seq + 1 != extent.from || last.hash != hex::encode(&extent.prev))
        {
            let (last, from) = (last.seq, extent.from);
            return Err(self.flaw(format!(
                "a part that begins at record {from} does not follow record {last}"
            )));
        }
        let known = self.promised.insert(extent.to, extent.head.clone());
        if extent.to < extent.from || known.is_some_and(|head| head != extent.head) {
            return Err(self.flaw("two signed statements contradict each other"));
        }
        self.report.exported_at = rfc3339(extent.at_ms).max(self.report.exported_at.clone());
        self.begins = Some(extent);
        Ok(())
    }

    fn record(&mut self, entry: Entry) -> Result<(), Flaw> {
        let seq = entry.seq;
        let flaw = |what: String| Flaw { line: self.line, seq: Some(seq), what };
        match (&self.begins, &self.last) {
            (None, None) => {
                return Err(flaw(
                    "no signed statement says where the export begins: its first line is gone"
                        .to_owned(),
                ));
            }
            (Some(begins), _) if begins.from != seq => {
                return Err(flaw(format!(
                    "the export begins at record {}: records are gone",
                    begins.from
                )));
            }
            (Some(begins), _) if hex::encode(&begins.prev) != entry.prev_hash => {
                return Err(flaw(
                    "it does not name the hash that the export begins with".to_owned(),
                ));
            }
            (None, Some(last)) if last.seq + 1 != seq => {
                return Err(flaw(format!(
                    "it follows record {}: records are gone, or were moved",
                    last.seq
                )));
            }
            (None, Some(last)) if last.hash != entry.prev_hash => {
                return Err(flaw("it does not name the hash of the record before".to_owned()));
            }
            _ => {}
        }
        let Some(record) = entry.record() else {
            return Err(flaw("a field of it is not what it should be".to_owned()));
        };
        if Entry::from(&record) != entry {
            return Err(flaw(
                "a field of it is written otherwise than an export writes it".to_owned(),
            ));
        }
        if !record.is_sound() {
            return Err(flaw(
                "its hash is not the hash of what it says: a field was changed".to_owned(),
            ));
        }
        if self.promised.remove(&seq).is_some_and(|head| head != record.hash) {
            return Err(flaw("it is another record than the one that was signed".to_owned()));
        }
        let report = &mut self.report;
        report.records += 1;
        if report.first == 0 {
            report.first = seq;
        }
        let (first, _) = report.between.take().unwrap_or_else(|| (entry.at.clone(), String::new()));
        report.between = Some((first, entry.at.clone()));
        self.begins = None;
        self.last = Some(entry);
        Ok(())
    }

    fn checkpoint(&mut self, note: &str) -> Result<(), Flaw> {
        let Checkpoint { size, head, .. } = self.open(note, Checkpoint::read)?;
        let fits = self.begins.is_none()
            && self
                .last
                .as_ref()
                .is_some_and(|last| last.seq == size && last.hash == hex::encode(&head));
        if !fits {
            return Err(self.flaw(format!(
                "the signed checkpoint of record {size} does not fit the record before it"
            )));
        }
        self.report.checkpoints += 1;
        Ok(())
    }

    fn end(mut self) -> Result<Report, Flaw> {
        let Some(last) = self.last.take() else {
            self.line = self.line.saturating_sub(1).max(1);
            return Err(self.flaw("there is no record in it: it is empty, or cut"));
        };
        if let Some((promised, _)) = self.promised.last_key_value() {
            let what = format!(
                "the export ends here, and is signed to go to record {promised}: its end is gone, or it was not finished"
            );
            return Err(Flaw { line: self.line.saturating_sub(1), seq: Some(last.seq), what });
        }
        if self.begins.is_some() {
            return Err(self.flaw("the last part has no records: its end is gone"));
        }
        Ok(Report { last: last.seq, head: last.hash, ..self.report })
    }
}
