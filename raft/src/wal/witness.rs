//! The witness file `tail`: how far the log is known to be durable.
//!
//! Without it, decay in the very last record looks like a torn write, and a lost newest segment like one
//! that never was. It has two slots, one page each, written in turn after each sync of the log and before its
//! callbacks. It is synced only when the log is idle, rotates or closes: it can be late, but never claims too much.

use std::path::{Path, PathBuf};

use super::error::WalError;
use super::record::Reader;
use crate::disk::{self, File, Files};

const MAGIC: &[u8; 7] = b"PALTAIL";
/// The newest format known, a digit behind the magic.
const FORMAT: u32 = 1;
const PAGE: u64 = 4096;
const SLOT: usize = 36;

/// How far the log is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Mark {
    /// In this segment, and all before it; 0 before there is one.
    pub segment: u64,
    /// Up to this offset.
    pub offset: u64,
}

/// The open witness file.
pub(super) struct Witness {
    file: Box<dyn File>,
    path: PathBuf,
    sequence: u64,
    /// Whether something was written since the last sync.
    pub unsynced: bool,
}

pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join("tail")
}

fn encode(sequence: u64, mark: Mark) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[0..7].copy_from_slice(MAGIC);
    slot[7] = b'0' + FORMAT as u8;
    slot[8..16].copy_from_slice(&sequence.to_le_bytes());
    slot[16..24].copy_from_slice(&mark.segment.to_le_bytes());
    slot[24..32].copy_from_slice(&mark.offset.to_le_bytes());
    let crc = crc32fast::hash(&slot[..32]);
    slot[32..36].copy_from_slice(&crc.to_le_bytes());
    slot
}

/// What a sound slot holds.
struct Slot {
    format: u32,
    sequence: u64,
    mark: Mark,
}

/// Reads a slot; `None` when it is damaged. Its first 36 bytes are laid out like this in every format.
fn decode(bytes: &[u8]) -> Option<Slot> {
    let slot = bytes.get(..SLOT)?;
    let mut reader = Reader(slot);
    let magic = reader.take(7)? == MAGIC;
    let format = u32::from(reader.u8()?).checked_sub(u32::from(b'0'))?;
    let (sequence, segment, offset) = (reader.u64()?, reader.u64()?, reader.u64()?);
    let sound = magic && reader.u32()? == crc32fast::hash(&slot[..32]);
    sound.then_some(Slot { format, sequence, mark: Mark { segment, offset } })
}

impl Witness {
    /// Makes the file, durably, with a mark that claims nothing.
    pub fn create(files: &dyn Files, dir: &Path) -> Result<Self, WalError> {
        let path = path(dir);
        let tmp = dir.join("tail.tmp");
        let make = || {
            let file = disk::create_zeroed(files, &tmp, 2 * PAGE, &|| false)?;
            file.write_all_at(0, &encode(0, Mark::default()))?;
            file.write_all_at(PAGE, &encode(1, Mark::default()))?;
            file.sync_data()?;
            files.rename(&tmp, &path)?;
            files.sync_dir(dir)?;
            Ok(file)
        };
        let file = make().map_err(WalError::io("create", &path))?;
        Ok(Self { file, path, sequence: 1, unsynced: false })
    }

    /// Opens the file and reads the newest mark.
    pub fn open(files: &dyn Files, dir: &Path) -> Result<(Self, Mark), WalError> {
        let path = path(dir);
        let file = files.open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => WalError::corrupt(&path, 0, "the file is missing"),
            _ => WalError::io("open", &path)(error),
        })?;
        let bytes = file.read_all().map_err(WalError::io("read", &path))?;
        let slots = [decode(&bytes), decode(bytes.get(PAGE as usize..).unwrap_or_default())];
        let newest = slots.into_iter().flatten().max_by_key(|slot| slot.sequence);
        let Some(Slot { format, sequence, mark }) = newest else {
            return Err(WalError::corrupt(&path, 0, "both of its marks are damaged"));
        };
        if format > FORMAT {
            return Err(WalError::NewerFormat { file: path, found: format, supported: FORMAT });
        }
        Ok((Self { file, path, sequence, unsynced: false }, mark))
    }

    /// Notes that the log is durable up to `mark`.
    pub fn note(&mut self, mark: Mark) -> Result<(), WalError> {
        let sequence = self.sequence + 1;
        self.file
            .write_all_at(sequence % 2 * PAGE, &encode(sequence, mark))
            .map_err(WalError::io("write", &self.path))?;
        self.sequence = sequence;
        self.unsynced = true;
        Ok(())
    }

    /// Makes the newest mark durable.
    pub fn sync(&mut self) -> Result<(), WalError> {
        self.file.sync_data().map_err(WalError::io("sync", &self.path))?;
        self.unsynced = false;
        Ok(())
    }
}
