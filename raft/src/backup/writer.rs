//! Writing a backup: from a view, chunk by chunk, to wherever its bytes go.

use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use palisade_state::{View, snapshot::encode};

use super::{BackupError, BackupHead, BackupReader, Info, format::Sums};

/// How much is written between two syncs: one sync of all of it would stall the log's own.
const SYNC_EVERY: u64 = 16 << 20;

/// Makes a backup's bytes from its pieces.
#[derive(Default)]
pub struct Encoder {
    sums: Sums,
}

impl Encoder {
    /// Encodes a whole view and gives each piece to `sink`.
    ///
    /// # Errors
    /// It does not fit the format, or what the sink answered.
    pub fn encode<E>(
        head: BackupHead,
        view: &View,
        mut sink: impl FnMut(Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E>
    where
        E: From<BackupError> + From<serde_json::Error>,
    {
        let mut this = Self::default();
        sink(this.sums.head(&head.of_view(view))?)?;
        encode::<E>(view, |chunk| sink(this.sums.chunk(chunk)?))?;
        sink(this.sums.trailer())
    }
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    PathBuf::from(name)
}

/// Writes a backup of `view` to `path`: to `<path>.part` first, checked as it is on the disk, and only then under its
/// name, durably. It blocks. What is there under that name is replaced.
///
/// # Errors
/// It cannot be written; nothing is left then.
pub fn write_backup(path: &Path, head: BackupHead, view: &View) -> Result<Info, BackupError> {
    let part = part_of(path);
    let written = write_part(&part, head, view).and_then(|()| {
        let info = BackupReader::open(&part)?.info().clone();
        fs::rename(&part, path).map_err(BackupError::io("rename", &part))?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let dir = dir.unwrap_or(Path::new("."));
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(BackupError::io("sync", dir))?;
        Ok(info)
    });
    if written.is_err() {
        // Best effort: what stays is replaced by the next one.
        let _ = fs::remove_file(&part);
    }
    written
}

fn write_part(part: &Path, head: BackupHead, view: &View) -> Result<(), BackupError> {
    let mut options = fs::OpenOptions::new();
    let opened = options.write(true).create(true).truncate(true).mode(0o600).open(part);
    let mut file = opened.map_err(BackupError::io("create", part))?;
    let mut unsynced = 0;
    Encoder::encode::<BackupError>(head, view, |bytes| {
        file.write_all(&bytes).map_err(BackupError::io("write", part))?;
        unsynced += bytes.len() as u64;
        if unsynced >= SYNC_EVERY {
            unsynced = 0;
            file.sync_data().map_err(BackupError::io("sync", part))?;
        }
        Ok(())
    })?;
    file.sync_all().map_err(BackupError::io("sync", part))
}
