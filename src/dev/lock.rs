//! The lock on a directory of `dev`.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
};

use rustix::fs::{FlockOperation, flock};

use super::{layout::Layout, process::ProcessId};
use crate::output::{Exit, Failure, Outcome};

/// Holds the directory until it is dropped or the process ends (`DEV-1`).
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
}

/// Who has the directory.
#[derive(Debug)]
pub(super) enum Holder {
    Nobody,
    /// Somebody, who may be too young to have written who.
    Somebody(Option<ProcessId>),
}

impl Lock {
    pub fn acquire(layout: &Layout) -> Outcome<Self> {
        let failed = |error: io::Error| {
            Failure::caused(format!("cannot lock {}", layout.lock().display()), &error)
        };
        let mut file = open(layout).map_err(failed)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(failed(error.into()));
            }
            let who = read(&mut file).map_or("unknown".to_owned(), |holder| holder.pid.to_string());
            return Err(Failure::new(
                Exit::Conflict,
                format!(
                    "{} is in use by another `palisade dev`, process {who}",
                    layout.root().display()
                ),
            )
            .hint(format!(
                "`{}` ends it; `{}` shows it",
                layout.command("stop"),
                layout.command("status")
            )));
        }
        let write = || -> io::Result<()> {
            let me = ProcessId::of(std::process::id())?;
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(&serde_json::to_vec(&me)?)
        };
        let mut write = write;
        write().map_err(failed)?;
        Ok(Self { _file: file })
    }

    pub fn holder(layout: &Layout) -> Holder {
        let Ok(mut file) = OpenOptions::new().read(true).open(layout.lock()) else {
            return Holder::Nobody;
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Holder::Nobody,
            Err(_) => Holder::Somebody(read(&mut file)),
        }
    }
}

fn open(layout: &Layout) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(layout.lock())
}

fn read(file: &mut File) -> Option<ProcessId> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_one_is_told_who_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert!(matches!(Lock::holder(&layout), Holder::Nobody));
        let held = Lock::acquire(&layout).unwrap();
        let refused = Lock::acquire(&layout).unwrap_err();
        assert!(refused.detail.contains(&std::process::id().to_string()), "{refused}");
        assert_eq!(refused.exit, Exit::Conflict);
        let Holder::Somebody(Some(who)) = Lock::holder(&layout) else { panic!("nobody") };
        assert_eq!(who.pid, std::process::id());
        drop(held);
        assert!(matches!(Lock::holder(&layout), Holder::Nobody));
    }
}
