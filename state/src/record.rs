//! Records: versioned rows.

use triomphe::ThinArc;

/// When a row was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stamp {
    /// Revision of its first version.
    pub created_rev: u64,
    /// Revision of this version.
    pub modified_rev: u64,
    /// 1, 2, 3 …; a row that is deleted and made again begins at 1.
    pub version: u64,
}

/// A row: its stamp and its bytes in one counted allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record(ThinArc<Stamp, u8>);

impl Record {
    /// A row.
    #[must_use]
    pub fn new(stamp: Stamp, value: &[u8]) -> Self {
        Self(ThinArc::from_header_and_slice(stamp, value))
    }

    /// When it was written.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.0.header.header
    }

    /// Its bytes.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.0.slice
    }
}
