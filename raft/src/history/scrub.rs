//! Reads all of a store once, in steps, for what was dropped in silence.

use super::{
    keys::Numbered,
    reading::Reader,
    rows::{Sheet, open},
    shelf::{ShelfError, Shelved},
};

const STEP: usize = 500;

/// Where a reading of everything is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scrub {
    Audit(u64),
    Events(u64),
    Sheets(u64),
    Done,
}

impl Scrub {
    pub(super) fn begin() -> Self {
        Self::Audit(0)
    }

    /// One step.
    pub(super) fn step(self, reader: &Reader) -> Shelved<Self> {
        match self {
            Self::Audit(from) => {
                let next = reader.audit(from, STEP)?.next;
                // A page begins with the last record of the one before: the link between them counts too.
                let next = next.map(|next| Self::Audit(next - u64::from(next > from + 1)));
                Ok(next.unwrap_or(Self::Events(0)))
            }
            Self::Events(from) => {
                let next = reader.events(from, STEP)?.next;
                Ok(next.map_or(Self::Sheets(0), Self::Events))
            }
            Self::Sheets(from) => Self::sheet(from, reader),
            Self::Done => Ok(Self::Done),
        }
    }

    fn sheet(from: u64, reader: &Reader) -> Shelved<Self> {
        let progress = &reader.progress;
        let number = from.max(progress.sheet_first);
        if number > progress.sheet_last || progress.sheet_last == 0 {
            return Ok(Self::Done);
        }
        let gone = |what: String| ShelfError::Broken(format!("{what} is gone"));
        let sealed = reader.shelf.get(&Numbered::Sheet.key(number))?;
        let sealed = sealed.ok_or_else(|| gone(format!("sheet {number}")))?;
        let sheet: Sheet = open(&sealed, &format!("sheet {number}"))?;
        for key in sheet.versions {
            if reader.shelf.get(&key)?.is_none() {
                return Err(gone(format!("a version of sheet {number}")));
            }
        }
        Ok(Self::Sheets(number + 1))
    }
}
