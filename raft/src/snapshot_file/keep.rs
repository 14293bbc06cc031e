//! Which snapshot files there are, which is the newest good one, and which may go.

use std::path::Path;

use super::{SnapshotError, SnapshotReader, position_of};
use crate::disk::Files;
use crate::wal::Position;

/// The newest good snapshot, and the newer ones that are bad.
pub struct Newest {
    /// The newest good one, checked.
    pub good: Option<SnapshotReader>,
    /// What is wrong with each newer one, newest first.
    pub bad: Vec<SnapshotError>,
}

/// The snapshot files in `dir`, newest first.
fn names(files: &dyn Files, dir: &Path) -> Result<Vec<(Position, String)>, SnapshotError> {
    let listed = match files.list(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(SnapshotError::io("list", dir))?,
    };
    let mut names: Vec<_> =
        listed.into_iter().filter_map(|name| Some((position_of(&name)?, name))).collect();
    names.sort_by_key(|(position, _)| std::cmp::Reverse((position.index, position.term)));
    Ok(names)
}

/// Finds the newest snapshot of `cluster` in `dir` that is good from end to end.
///
/// Bad ones are passed over, reported and left where they are. When a good one is older than the log's beginning, or
/// there is none, the caller must get one from a peer.
pub fn newest_good(
    files: &dyn Files,
    dir: &Path,
    cluster: [u8; 16],
) -> Result<Newest, SnapshotError> {
    let mut bad = Vec::new();
    for (_, name) in names(files, dir)? {
        let path = dir.join(name);
        match SnapshotReader::open(files, &path) {
            Ok(reader) if reader.info().head.cluster == cluster => {
                return Ok(Newest { good: Some(reader), bad });
            }
            Ok(_) => bad.push(SnapshotError::Foreign { file: path }),
            Err(error) => bad.push(error),
        }
    }
    Ok(Newest { good: None, bad })
}

/// Removes all but the newest `keep` snapshots.
///
/// It goes by names. Damaged files count, so call it right after a snapshot was written, which is good.
pub fn keep_newest(files: &dyn Files, dir: &Path, keep: usize) -> Result<(), SnapshotError> {
    let mut removed = false;
    for (_, name) in names(files, dir)?.into_iter().skip(keep) {
        let path = dir.join(name);
        files.remove(&path).map_err(SnapshotError::io("remove", &path))?;
        removed = true;
    }
    if removed {
        files.sync_dir(dir).map_err(SnapshotError::io("sync the directory of", dir))
    } else {
        Ok(())
    }
}

/// Removes what an interrupted writer or receiver left. Only before any of them begins.
pub fn clean(files: &dyn Files, dir: &Path) -> Result<(), SnapshotError> {
    let names = match files.list(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(SnapshotError::io("list", dir))?,
    };
    for name in names.iter().filter(|name| name.ends_with(".tmp")) {
        let path = dir.join(name);
        files.remove(&path).map_err(SnapshotError::io("remove", &path))?;
    }
    Ok(())
}
