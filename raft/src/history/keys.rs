//! The layout of the one tree.
//!
//! | key | value |
//! |---|---|
//! | `p` | [`Progress`](super::rows::Progress): how far it reaches, and what is known to be missing |
//! | `a` seq | an audit record |
//! | `e` seq | an event |
//! | `s` number | a [`Sheet`](super::rows::Sheet): which versions ended in a range of the log, and when |
//! | `t` wall-clock ms | the log index that was applied then |
//! | `v` table key revision | a version that a record had, under the revision that made it |
//!
//! Numbers are eight bytes, big-endian. Tables and keys are escaped so that they sort as they are: a zero byte becomes
//! `00 ff`, and `00 01` ends the text. Every value ends in the CRC-32 of what is before it.

use palisade_state::key::after_prefix;

pub(super) const PROGRESS: &[u8] = b"p";

/// A range of keys: its beginning and the first key behind it.
pub(super) type Span = (Vec<u8>, Vec<u8>);

/// The kinds of numbered rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbered {
    Audit,
    Event,
    Sheet,
    Time,
}

impl Numbered {
    fn prefix(self) -> u8 {
        match self {
            Self::Audit => b'a',
            Self::Event => b'e',
            Self::Sheet => b's',
            Self::Time => b't',
        }
    }

    pub(super) fn key(self, number: u64) -> Vec<u8> {
        let mut key = vec![self.prefix()];
        key.extend_from_slice(&number.to_be_bytes());
        key
    }

    /// From `number` on.
    pub(super) fn from(self, number: u64) -> Span {
        (self.key(number), vec![self.prefix() + 1])
    }

    /// All of them.
    pub(super) fn all(self) -> Span {
        (vec![self.prefix()], vec![self.prefix() + 1])
    }
}

/// The number at the end of a key.
pub(super) fn number_of(key: &[u8]) -> Option<u64> {
    let tail = key.len().checked_sub(8).and_then(|start| key.get(start..))?;
    tail.try_into().ok().map(u64::from_be_bytes)
}

fn escape(text: &[u8], out: &mut Vec<u8>) {
    for byte in text {
        out.push(*byte);
        if *byte == 0 {
            out.push(0xff);
        }
    }
}

fn unescape(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        match rest {
            [0, 0xff, tail @ ..] => {
                out.push(0);
                rest = tail;
            }
            [0, 1, tail @ ..] => return Some((out, tail)),
            [0, ..] | [] => return None,
            [byte, tail @ ..] => {
                out.push(*byte);
                rest = tail;
            }
        }
    }
}

fn row(table: &str, key: &[u8]) -> Vec<u8> {
    let mut out = vec![b'v'];
    escape(table.as_bytes(), &mut out);
    out.extend_from_slice(&[0, 1]);
    escape(key, &mut out);
    out
}

/// The key of a version.
pub(super) fn version(table: &str, key: &[u8], revision: u64) -> Vec<u8> {
    let mut out = row(table, key);
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(&revision.to_be_bytes());
    out
}

fn end_of(start: &[u8]) -> Vec<u8> {
    // Every key of ours begins with a letter, so there is one after it.
    after_prefix(start).map_or_else(|| vec![0xff], |end| end.to_vec())
}

/// The versions of one row.
pub(super) fn versions_of(table: &str, key: &[u8]) -> Span {
    let mut start = row(table, key);
    start.extend_from_slice(&[0, 1]);
    let end = end_of(&start);
    (start, end)
}

/// The versions of the rows of a table from `start` to before `end`.
pub(super) fn versions_in(table: &str, start: &[u8], end: Option<&[u8]>) -> Span {
    let upper = match end {
        Some(end) => row(table, end),
        None => end_of(&row(table, &[])),
    };
    (row(table, start), upper)
}

/// The row's key and the revision in the key of a version.
pub(super) fn split_version(key: &[u8]) -> Option<(Vec<u8>, u64)> {
    let (_, rest) = unescape(key.strip_prefix(b"v")?)?;
    let (row, rest) = unescape(rest)?;
    Some((row, rest.try_into().ok().map(u64::from_be_bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_sort_by_table_key_and_revision() {
        let keys = [
            version("nodes", b"", 9),
            version("nodes", b"a", 1),
            version("nodes", b"a", 256),
            version("nodes", b"a\0", 1),
            version("nodes", b"a\0b", 1),
            version("nodes", b"a\x01", 1),
            version("nodes", b"b", 1),
            version("nodes2", b"a", 1),
        ];
        assert!(keys.is_sorted());
        assert_eq!(split_version(&keys[4]), Some((b"a\0b".to_vec(), 1)));
        let (start, end) = versions_of("nodes", b"a");
        let within: Vec<_> = keys.iter().filter(|key| (&start..&end).contains(key)).collect();
        assert_eq!(within, [&keys[1], &keys[2]]);
        let (start, end) = versions_in("nodes", b"a", None);
        assert_eq!(keys.iter().filter(|key| (&start..&end).contains(key)).count(), 6);
        let (start, end) = versions_in("nodes", b"a", Some(b"a\0b"));
        assert_eq!(keys.iter().filter(|key| (&start..&end).contains(key)).count(), 3);
    }

    #[test]
    fn a_key_that_is_cut_short_is_not_a_version() {
        let key = version("nodes", b"a", 7);
        assert!((0..key.len()).all(|len| split_version(&key[..len]).is_none()));
    }
}
