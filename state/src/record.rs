//! Records: versioned rows.

use smallvec::SmallVec;
use triomphe::ThinArc;

/// When a row was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stamp {
    /// Revision of its first version.
    pub created_rev: u64,
    /// Revision of this version.
    pub modified_rev: u64,
    /// 1, 2, 3 …; a row that is deleted and made again begins at 1.
    pub version: u64,
}

/// A record in the making; most are made without an allocation of their own.
type RecordBuf = SmallVec<[u8; 512]>;

/// A row: its stamp and its bytes in one counted allocation. The stamp takes 5 to 12 bytes instead
/// of 24: the revision that made it, how much later it was changed, its version.
#[derive(Clone, PartialEq, Eq)]
pub struct Record(ThinArc<(), u8>);

fn write_number(out: &mut RecordBuf, mut number: u64) {
    loop {
        let [low, ..] = number.to_le_bytes();
        number >>= 7;
        if number == 0 {
            out.push(low & 0x7f);
            return;
        }
        out.push(low | 0x80);
    }
}

/// The number at the head of `bytes`, and what is behind it.
fn read_number(bytes: &[u8]) -> (u64, &[u8]) {
    let (mut number, mut shift) = (0_u64, 0_u32);
    for (at, byte) in bytes.iter().enumerate() {
        number |= u64::from(byte & 0x7f).wrapping_shl(shift);
        if *byte < 0x80 {
            return (number, bytes.get(at + 1..).unwrap_or_default());
        }
        shift += 7;
    }
    (number, &[])
}

impl Record {
    /// A row.
    #[must_use]
    pub fn new(stamp: Stamp, value: &[u8]) -> Self {
        debug_assert!(stamp.modified_rev >= stamp.created_rev, "a row is changed after it is made");
        let mut bytes = RecordBuf::new();
        write_number(&mut bytes, stamp.created_rev);
        write_number(&mut bytes, stamp.modified_rev.saturating_sub(stamp.created_rev));
        write_number(&mut bytes, stamp.version);
        bytes.extend_from_slice(value);
        Self(ThinArc::from_header_and_slice((), &bytes))
    }

    fn parts(&self) -> (Stamp, &[u8]) {
        let (created_rev, rest) = read_number(&self.0.slice);
        let (later, rest) = read_number(rest);
        let (version, value) = read_number(rest);
        (Stamp { created_rev, modified_rev: created_rev.saturating_add(later), version }, value)
    }

    /// When it was written.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.parts().0
    }

    /// Its bytes.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        self.parts().1
    }
}

impl std::fmt::Debug for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (stamp, value) = self.parts();
        f.debug_struct("Record")
            .field("stamp", &stamp)
            .field("value", &value.escape_ascii().to_string())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_and_values_come_back() {
        for created_rev in [0, 1, 127, 128, 1 << 40, u64::MAX] {
            for version in [1, 128, u64::MAX] {
                for value in [&b""[..], b"\xff\x80\x00", &[0x80; 300]] {
                    let modified_rev = created_rev.saturating_add(300);
                    let stamp = Stamp { created_rev, modified_rev, version };
                    let record = Record::new(stamp, value);
                    assert_eq!((record.stamp(), record.value()), (stamp, value));
                }
            }
        }
    }
}
