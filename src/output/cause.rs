//! The exit code of what failed without a replica's answer: on this machine's disk, in a directory or a file.

use std::{error::Error, io};

use palisade_contract::Code;
use palisade_raft::{StartError, disk::LockError, offline::OfflineError};

use super::Exit;
use crate::replica_dir::DirError;

impl Exit {
    /// The exit code for an error of this machine, by the same words as those of the API: `CONFLICT` for a directory
    /// that is in use, `NO_SPACE` for a full disk, `NOT_FOUND` for a file that is not there, `INVALID_CONFIG` for one
    /// that an operator wrote wrongly. What is damaged is none of them.
    #[must_use]
    pub fn of_cause(error: &(dyn Error + 'static)) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(exit) = known(error) {
                return exit;
            }
            next = error.source();
        }
        Self::Error
    }
}

fn known(error: &(dyn Error + 'static)) -> Option<Exit> {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return match error.kind() {
            io::ErrorKind::NotFound => Some(Exit::NotFound),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Some(Exit::Unavailable),
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<LockError>() {
        return matches!(error, LockError::Held { .. }).then_some(Exit::Conflict);
    }
    if let Some(error) = error.downcast_ref::<DirError>() {
        return of_dir(error);
    }
    if let Some(error) = error.downcast_ref::<StartError>() {
        return of_start(error);
    }
    if let Some(error) = error.downcast_ref::<palisade_contract::Error>() {
        return (error.code != Code::Internal).then(|| Exit::of(error.code));
    }
    let data = error.downcast_ref::<OfflineError>()?;
    match data {
        OfflineError::Lock(error) => Some(Exit::of_cause(error)),
        OfflineError::Removed(_) => Some(Exit::Conflict),
        OfflineError::Unused { .. } => Some(Exit::NotFound),
        error if error.is_damage() => Some(Exit::Error),
        _ => None,
    }
}

fn of_dir(error: &DirError) -> Option<Exit> {
    match error {
        DirError::Malformed { path, .. } if path.ends_with("replica.toml") => Some(Exit::Usage),
        DirError::Recovering { .. } | DirError::Repairing { .. } => Some(Exit::Conflict),
        _ => None,
    }
}

fn of_start(error: &StartError) -> Option<Exit> {
    match error {
        StartError::Lock(error) => Some(Exit::of_cause(error)),
        StartError::NoRoom { .. } => Some(Exit::Unavailable),
        StartError::Tuning(_) => Some(Exit::Usage),
        StartError::Removed(_) | StartError::Copy(_) | StartError::Lost(_) => Some(Exit::Conflict),
        StartError::Log(error) if error.is_full() => Some(Exit::Unavailable),
        // A file of its data that is gone is damage, not a file that was named wrongly.
        error if error.is_damage() => Some(Exit::Error),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn io(kind: io::ErrorKind) -> io::Error {
        kind.into()
    }

    #[test]
    fn what_fails_here_has_the_exit_code_of_its_kind() {
        let dir = PathBuf::from("r");
        let held = || LockError::Held { dir: dir.clone(), holder: "process 1".into() };
        let full = LockError::Io { dir: dir.clone(), source: io(io::ErrorKind::StorageFull) };
        let toml = |path: &str| DirError::Malformed { path: path.into(), why: "x".into() };
        let gone = DirError::Read { path: dir.clone(), source: io(io::ErrorKind::NotFound) };
        let no_room = StartError::NoRoom { dir: dir.clone(), free_mib: 1, needed_mib: 68 };
        let cases: [(&dyn Fn() -> Exit, Exit); 8] = [
            (&|| Exit::of_cause(&held()), Exit::Conflict),
            (&|| Exit::of_cause(&StartError::Lock(held())), Exit::Conflict),
            (&|| Exit::of_cause(&OfflineError::Lock(held())), Exit::Conflict),
            (&|| Exit::of_cause(&full), Exit::Unavailable),
            (&|| Exit::of_cause(&no_room), Exit::Unavailable),
            (&|| Exit::of_cause(&gone), Exit::NotFound),
            (&|| Exit::of_cause(&toml("r/replica.toml")), Exit::Usage),
            (&|| Exit::of_cause(&toml("r/identity.json")), Exit::Error),
        ];
        for (number, (exit, expected)) in cases.iter().enumerate() {
            assert_eq!(exit(), *expected, "{number}");
        }
    }
}
