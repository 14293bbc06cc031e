//! Giving up a recovery that was begun: the old life goes on.
//!
//! # Invariants
//! - `REC-5` A stage is undone only after the journal says the stage before it: whatever ends this leaves a recovery
//!   that can be taken up again, or given up again.

use std::{fs, io, path::Path};

use palisade_raft::disk::DirLock;

use super::{CONFIGURATION, NEXT, RecoverError, io_error, remove_begun};
use crate::recovery::{
    files,
    stages::{Journal, MARKER, Stage},
};

/// Undoes what a recovery in a replica's directory has done and removes its journal; the backup stays. Answers the
/// journal, or `None` when no recovery is on its way. It blocks.
///
/// # Errors
/// The directory is in use, or a file cannot be moved or written; it can be done again then.
pub fn abandon(dir: &Path) -> Result<Option<Journal>, RecoverError> {
    back_to(dir, None)
}

/// Undoes stages, and stops once `until` is entered into the journal.
pub(super) fn back_to(dir: &Path, until: Option<Stage>) -> Result<Option<Journal>, RecoverError> {
    let _only = DirLock::acquire(dir)?;
    let Some(mut journal) = Journal::read(dir)? else { return Ok(None) };
    loop {
        undo_step_after(dir, &journal)?;
        let before = match journal.stage {
            Stage::Configured => Stage::Placed,
            Stage::Placed => Stage::SetAside,
            Stage::SetAside => Stage::Made,
            Stage::Made => Stage::BackedUp,
            Stage::BackedUp | Stage::Planned => break,
        };
        journal.enter(dir, before)?;
        if until == Some(before) {
            return Ok(Some(journal));
        }
    }
    let marker = dir.join(MARKER);
    fs::remove_file(&marker).map_err(io_error("remove", &marker))?;
    files::sync_dir(dir).map_err(io_error("remove", &marker))?;
    Ok(Some(journal))
}

/// Undoes what the step after the journal's stage did, as far as it did it.
fn undo_step_after(dir: &Path, journal: &Journal) -> Result<(), RecoverError> {
    let (data, next, aside) = (dir.join("data"), dir.join(NEXT), journal.aside(dir));
    match journal.stage {
        // The backup stays, and the end leaves no journal.
        Stage::Planned | Stage::Configured => Ok(()),
        Stage::BackedUp => remove_begun(&next),
        Stage::Made => {
            let set_aside = aside.join("data");
            if set_aside.exists() {
                files::rename_once(&set_aside, &data).map_err(io_error("rename", &set_aside))?;
            }
            files::sync_dir(dir).map_err(io_error("rename", &set_aside))?;
            for name in CONFIGURATION {
                gone(fs::remove_file(aside.join(name)), &aside.join(name))?;
            }
            gone(fs::remove_dir(&aside), &aside)
        }
        Stage::SetAside => files::rename_once(&data, &next).map_err(io_error("rename", &data)),
        Stage::Placed => {
            for name in CONFIGURATION {
                let put_back = |bytes: Vec<u8>| files::replace(&dir.join(name), &bytes, 0o644);
                let kept = aside.join(name);
                fs::read(&kept).and_then(put_back).map_err(io_error("put back", &kept))?;
            }
            Ok(())
        }
    }
}

fn gone(removed: io::Result<()>, path: &Path) -> Result<(), RecoverError> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io_error("remove", path)(error))
        }
        _ => Ok(()),
    }
}
