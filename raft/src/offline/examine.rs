//! Looking for what would keep a replica from starting from its data.

use std::path::Path;

use super::{OfflineError, survivor::load};
use crate::{
    Identity, IdentityError,
    disk::DirLock,
    exile::{self, Barred},
};

/// A replica's data that can be started from, locked.
#[derive(Debug)]
pub struct Examined {
    /// The last entry that it has.
    pub last: u64,
    _lock: DirLock,
}

/// Reads the data directory `data` of `identity`'s replica, which has a log, as its start would. It blocks.
///
/// # Errors
/// What would keep it from starting, in the words of the start.
pub fn examine(data: &Path, identity: &Identity) -> Result<Examined, OfflineError> {
    let lock = DirLock::acquire(data)?;
    if let Some(found) = Identity::read(data)?
        && found != *identity
    {
        let (found, expected) = (Box::new(found), Box::new(identity.clone()));
        let file = data.join("identity.json");
        return Err(IdentityError::Foreign { file, found, expected }.into());
    }
    let barred = exile::barred(data, identity);
    match barred.map_err(|source| OfflineError::Dir { dir: data.to_owned(), source })? {
        None => {}
        Some(Barred::Removed(told)) => return Err(OfflineError::Removed(told)),
        Some(Barred::Copy(told)) => return Err(OfflineError::Copy(told)),
    }
    let loaded = load(data, identity)?;
    Ok(Examined { last: loaded.machine.applied().index, _lock: lock })
}
