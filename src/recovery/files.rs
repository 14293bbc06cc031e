//! Files that are replaced whole or not at all.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

/// Returns once the names in `dir` survive a power cut.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

/// Puts a file in the place of another, durably: whoever looks finds the old or the new one.
pub(super) fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let fresh = PathBuf::from(name);
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(mode).open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    sync_dir(path.parent().unwrap_or(Path::new(".")))
}

/// Renames within one directory tree, unless that was done already: the old name is gone then.
pub(super) fn rename_once(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && to.exists() => {}
        other => other?,
    }
    for path in [from, to] {
        sync_dir(path.parent().unwrap_or(Path::new(".")))?;
    }
    Ok(())
}
