//! Which snapshot files there are, which is the newest good one, and which may go.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{SnapshotError, SnapshotReader, position_of};
use crate::disk::Files;
use crate::wal::Position;

/// What a damaged snapshot's name ends with, once it is set aside.
const ASIDE: &str = ".bad";
const ASIDE_KEEP: usize = 2;

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
/// Bad ones are passed over, reported and left where they are, until [`set_aside`]; one of a newer format is an error:
/// a newer release has been here; and so is one that cannot be read just now (no file handles, no permission): it is
/// not damaged, and an older one must not take its place. When a good one is older than the log's beginning, or there is none, the caller
/// must get one from a peer.
pub fn newest_good(
    files: &dyn Files,
    dir: &Path,
    cluster: [u8; 16],
) -> Result<Newest, SnapshotError> {
    let (newest, ()) = newest_good_with(files, dir, cluster, &mut |_: &mut (), _| {})?;
    Ok(newest)
}

/// As [`newest_good`]; makes something of the chunks on the way, anew for each file, so that the good one is read once.
pub fn newest_good_with<T: Default>(
    files: &dyn Files,
    dir: &Path,
    cluster: [u8; 16],
    take: &mut dyn FnMut(&mut T, Bytes),
) -> Result<(Newest, T), SnapshotError> {
    let mut bad = Vec::new();
    // The log will be purged up to what is found: its name must not go with the next power cut, and whoever gave it
    // may have been killed before he had synced it.
    match files.sync_dir(dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        synced => synced.map_err(SnapshotError::io("sync the directory of", dir))?,
    }
    for (_, name) in names(files, dir)? {
        let path = dir.join(name);
        let mut made = T::default();
        match SnapshotReader::open_with(files, &path, &mut |chunk| take(&mut made, chunk)) {
            Ok(reader) if reader.info().head.cluster == cluster => {
                return Ok((Newest { good: Some(reader), bad }, made));
            }
            Ok(_) => bad.push(SnapshotError::Foreign { file: path }),
            Err(error @ SnapshotError::NewerFormat { .. }) => return Err(error),
            Err(error) if error.is_passing() => return Err(error),
            Err(error) => bad.push(error),
        }
    }
    Ok((Newest { good: None, bad }, T::default()))
}

/// Removes all but the newest `keep` snapshots.
///
/// It goes by names, and damaged files count: those that are known must have been [`set_aside`], or a good one would
/// go in their place. Call it right after a snapshot was written, which is good.
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

/// The files that were set aside in `dir`, newest first.
fn aside(files: &dyn Files, dir: &Path) -> Result<Vec<(Position, PathBuf)>, SnapshotError> {
    let listed = files.list(dir).map_err(SnapshotError::io("list", dir))?;
    let position = |name: &str| position_of(name.strip_suffix(ASIDE)?);
    let mut found: Vec<_> =
        listed.iter().filter_map(|name| Some((position(name)?, dir.join(name)))).collect();
    found.sort_by_key(|(position, _)| std::cmp::Reverse((position.index, position.term)));
    Ok(found)
}

/// Gives the `bad` snapshots names under which they are no snapshots any more, durably; only the newest two stay.
///
/// Only when the replica can start without them: until then they are evidence, or the newer release's.
pub fn set_aside(
    files: &dyn Files,
    dir: &Path,
    bad: &[SnapshotError],
) -> Result<(), SnapshotError> {
    let bad: Vec<&Path> = bad.iter().filter_map(SnapshotError::file).collect();
    if bad.is_empty() {
        return Ok(());
    }
    let before = aside(files, dir)?;
    for file in bad {
        let mut name = file.as_os_str().to_owned();
        name.push(ASIDE);
        let to = PathBuf::from(name);
        if before.iter().any(|(_, path)| *path == to) {
            tracing::warn!(file = %to.display(), "an older damaged snapshot is replaced");
        }
        files.rename(file, &to).map_err(SnapshotError::io("rename", file))?;
        tracing::warn!(file = %to.display(), "a damaged snapshot was set aside under this name");
    }
    files.sync_dir(dir).map_err(SnapshotError::io("sync the directory of", dir))?;
    for (_, path) in aside(files, dir)?.into_iter().skip(ASIDE_KEEP) {
        tracing::warn!(file = %path.display(), "an old damaged snapshot is removed");
        files.remove(&path).map_err(SnapshotError::io("remove", &path))?;
    }
    Ok(())
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
