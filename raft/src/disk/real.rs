//! The real disk.

use std::fs;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::FallocateFlags;

use super::{File, Files};

/// With a MiB between two of them, a long work takes some 300 MiB/s of the disk at most.
const BREATH: Duration = Duration::from_millis(3);

/// The machine's file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct StdFiles;

struct StdFile(fs::File);

impl File for StdFile {
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<usize> {
        self.0.write_at(data, offset)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn allocate(&self, size: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), 0, size) {
            // Some file systems cannot reserve; the zero-fill that follows then finds out.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.0.set_len(size),
            other => other.map_err(io::Error::from),
        }
    }

    fn breathe(&self) {
        #[expect(clippy::disallowed_methods, reason = "a real disk has threads of its own")]
        std::thread::sleep(BREATH);
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }
}

fn options() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

impl Files for StdFiles {
    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(StdFile(options().create_new(true).open(path)?)))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        Ok(Box::new(StdFile(options().open(path)?)))
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        let mut missing = Vec::new();
        let mut at = Some(dir);
        while let Some(dir) = at {
            if dir.as_os_str().is_empty() || dir.try_exists()? {
                break;
            }
            missing.push(dir);
            at = dir.parent();
        }
        fs::create_dir_all(dir)?;
        for made in missing {
            match made.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => self.sync_dir(parent)?,
                _ => self.sync_dir(Path::new("."))?,
            }
        }
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        fs::File::open(dir)?.sync_all()
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stat = rustix::fs::statvfs(dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
