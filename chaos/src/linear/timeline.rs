//! A counterexample as a timeline for people.

use std::fmt::{self, Display, Formatter};

use super::{Counterexample, Expected, Op, Outcome, What};

/// Columns between the first call and the last return.
const WIDTH: usize = 64;

impl Op {
    /// What was asked for, in a few words.
    #[must_use]
    pub fn asked(&self) -> String {
        match self.what {
            What::Read => "read".into(),
            What::Write { value } => format!("write {value}"),
            What::Delete => "delete".into(),
            What::Swap { expected: Expected::Value(Some(old)), value } => {
                format!("swap {old} for {value}")
            }
            What::Swap { expected: Expected::Version(version), value } if version > 0 => {
                format!("swap version {version} for {value}")
            }
            What::Swap { value, .. } => format!("swap nothing for {value}"),
        }
    }

    /// What was answered, in a few words.
    #[must_use]
    pub fn answered(&self) -> String {
        let version = |version: Option<u64>| match version {
            Some(version) => format!(" (version {version})"),
            None => String::new(),
        };
        match (self.outcome, self.what) {
            (Outcome::Ok { value: Some(value), version: seen }, What::Read) => {
                format!("saw {value}{}", version(seen))
            }
            (Outcome::Ok { .. }, What::Read) => "saw nothing".into(),
            (Outcome::Ok { version: given, .. }, _) => format!("ok{}", version(given)),
            (Outcome::Mismatch, _) => "found something else".into(),
            (Outcome::Failed, _) => "failed".into(),
            (Outcome::Unknown, _) => "no answer".into(),
        }
    }

    fn end(&self) -> Option<u64> {
        if self.outcome == Outcome::Unknown { None } else { self.ret }
    }
}

impl Counterexample {
    /// In one sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let stuck = self.ops.get(self.stuck);
        format!(
            "{}: no order of {} (of {}) operations explains their answers{}",
            self.key,
            self.ops.len(),
            self.of,
            stuck.map_or(String::new(), |op| {
                format!(
                    "; {} by client {} that {} finds no place",
                    op.asked(),
                    op.client,
                    op.answered()
                )
            })
        )
    }
}

impl Display for Counterexample {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        writeln!(out, "{}", self.sentence())?;
        let columns = Columns::of(&self.ops);
        let clients: Vec<String> = self.ops.iter().map(|op| op.client.to_string()).collect();
        let width = clients.iter().map(String::len).max().unwrap_or(1);
        for (index, (op, client)) in self.ops.iter().zip(&clients).enumerate() {
            let bar = columns.bar(op);
            let mark = if index == self.stuck { "  <-- no place" } else { "" };
            let until = op.end().map_or("?".to_owned(), |ret| ret.to_string());
            writeln!(
                out,
                "client {client:>width$} {bar} {}: {}  [{}..{until}]{mark}",
                op.asked(),
                op.answered(),
                op.call
            )?;
        }
        Ok(())
    }
}

/// Where each moment is drawn: all moments are as far from each other, since it is their order
/// that counts.
struct Columns(Vec<u64>);

impl Columns {
    fn of(ops: &[Op]) -> Self {
        let mut moments: Vec<u64> =
            ops.iter().flat_map(|op| [Some(op.call), op.end()]).flatten().collect();
        moments.sort_unstable();
        moments.dedup();
        Self(moments)
    }

    fn at(&self, moment: u64) -> usize {
        self.0.partition_point(|other| *other < moment) * self.step()
    }

    fn step(&self) -> usize {
        (WIDTH / self.0.len().max(1)).clamp(1, 6)
    }

    fn bar(&self, op: &Op) -> String {
        let total = self.0.len() * self.step();
        let from = self.at(op.call);
        let (until, end) = match op.end() {
            Some(ret) => (self.at(ret).max(from + 1), '|'),
            None => (total, '?'),
        };
        let mut bar = " ".repeat(from);
        bar.push('|');
        bar.push_str(&"-".repeat(until - from - 1));
        bar.push(end);
        format!("{bar:<width$}", width = total - self.step() + 1)
    }
}
