//! What the cluster signs: that its chain has a head at a size, and that an export goes from one record to another.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use palisade_contract::time::rfc3339;
use palisade_state::Formation;

const CHECKPOINT: &str = "audit";
const EXPORT: &str = "audit-export";

/// The chain's head after so many records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The last record.
    pub size: u64,
    /// Its hash.
    pub head: Vec<u8>,
    /// When it was noted, Unix milliseconds.
    pub at_ms: u64,
}

/// What an export has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first record.
    pub from: u64,
    /// The last record.
    pub to: u64,
    /// The hash of the record before the first one.
    pub prev: Vec<u8>,
    /// The hash of the last one.
    pub head: Vec<u8>,
    /// When it was asked for, Unix milliseconds.
    pub at_ms: u64,
}

/// The name of a lineage's key.
#[must_use]
pub fn key_name(lineage: &str) -> String {
    format!("palisade-audit/{lineage}")
}

/// One life of the cluster has one log: what is signed in another is not its.
fn origin(formation: &Formation, what: &str) -> String {
    format!("palisade/{}/{}/{what}", formation.lineage, formation.cluster)
}

fn lines<const N: usize>(text: &str, what: &str) -> Option<[String; N]> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    let origin = lines.next()?;
    let is_ours = origin.starts_with("palisade/") && origin.rsplit('/').next() == Some(what);
    let rest: Vec<String> = lines.map(str::to_owned).collect();
    if is_ours { rest.try_into().ok() } else { None }
}

fn time(line: &str) -> Option<u64> {
    match line.strip_prefix("time ")?.parse() {
        Ok(palisade_contract::When::Time(ms)) => Some(ms),
        _ => None,
    }
}

impl Checkpoint {
    /// What is signed: origin, size and head as C2SP tlog-checkpoint has them, and the time.
    #[must_use]
    pub fn text(&self, formation: &Formation) -> String {
        let Self { size, head, at_ms } = self;
        let (origin, head) = (origin(formation, CHECKPOINT), STANDARD.encode(head));
        format!("{origin}\n{size}\n{head}\ntime {}\n", rfc3339(*at_ms))
    }

    /// Reads it.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let [size, head, at] = lines(text, CHECKPOINT)?;
        let head = STANDARD.decode(head).ok()?;
        Some(Self { size: size.parse().ok()?, head, at_ms: time(&at)? })
    }
}

impl Extent {
    /// What is signed.
    #[must_use]
    pub fn text(&self, formation: &Formation) -> String {
        let Self { from, to, prev, head, at_ms } = self;
        let origin = origin(formation, EXPORT);
        let (prev, head) = (STANDARD.encode(prev), STANDARD.encode(head));
        format!("{origin}\n{from} {to}\n{prev}\n{head}\ntime {}\n", rfc3339(*at_ms))
    }

    /// Reads it.
    #[must_use]
    pub fn read(text: &str) -> Option<Self> {
        let [range, prev, head, at] = lines(text, EXPORT)?;
        let (from, to) = range.split_once(' ')?;
        Some(Self {
            from: from.parse().ok()?,
            to: to.parse().ok()?,
            prev: STANDARD.decode(prev).ok()?,
            head: STANDARD.decode(head).ok()?,
            at_ms: time(&at)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_read_as_they_were_written_and_not_taken_for_each_other() {
        let formation = Formation { cluster: "cl_1".into(), lineage: "ln_1".into(), epoch: 0 };
        let checkpoint = Checkpoint { size: 7, head: vec![7; 32], at_ms: 1_700_000_000_123 };
        let text = checkpoint.text(&formation);
        assert_eq!(
            text,
            "palisade/ln_1/cl_1/audit\n7\nBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=\ntime 2023-11-14T22:13:20.123Z\n"
        );
        assert_eq!(Checkpoint::read(&text), Some(checkpoint));
        let extent = Extent { from: 3, to: 9, prev: vec![1; 32], head: vec![2; 32], at_ms: 5 };
        let written = extent.text(&formation);
        assert_eq!(Extent::read(&written), Some(extent));
        assert_eq!((Extent::read(&text), Checkpoint::read(&written)), (None, None));
    }
}
