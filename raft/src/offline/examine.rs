//! Looking for what would keep a replica from starting from its data.

use std::path::Path;

use super::{OfflineError, survivor::load};
use crate::{Identity, IdentityError, disk::DirLock, exile, identity::has_log};

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
    let file = data.join("identity.json");
    match Identity::read(data)? {
        Some(found) if found != *identity => {
            let (found, expected) = (Box::new(found), Box::new(identity.clone()));
            return Err(IdentityError::Foreign { file, found, expected }.into());
        }
        None if has_log(data)? => return Err(IdentityError::Missing { file }.into()),
        _ => {}
    }
    exile::check(data, identity)?;
    let loaded = load(data, identity)?;
    Ok(Examined { last: loaded.machine.applied().index, _lock: lock })
}
