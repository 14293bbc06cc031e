//! Whether a node may come with the key that it has.

use palisade_contract::{Code, Error, NodeId, Result};
use palisade_state::{Tx, View};

use super::Core;

fn revoked() -> Error {
    Error::new(Code::Unauthenticated, "the key of the certificate was revoked").hint(
        "remove the node (`palisade node rm`), and let its machine join again from an empty directory, with a new token",
    )
}

impl Core {
    /// Whether a node that holds this key may come.
    pub(super) fn authenticate(&self, view: &View, node: &NodeId, key: &str) -> Result<()> {
        self.context.ports.nodes.get()?.authenticate(view, node, key)?;
        self.check_key(view, key)
    }

    /// `PKI-3`
    pub(super) fn check_key(&self, view: &View, key: &str) -> Result<()> {
        let Some(certificates) = self.context.ports.certificates.filled() else { return Ok(()) };
        if certificates.is_revoked(view, key)? { Err(revoked()) } else { Ok(()) }
    }

    /// As [`Core::check_key`], of several and read through the transaction.
    pub(super) fn check_keys_in(&self, tx: &mut Tx, keys: [&str; 2]) -> Result<()> {
        let Some(certificates) = self.context.ports.certificates.filled() else { return Ok(()) };
        for key in keys {
            if certificates.is_revoked_in(tx, key)? {
                return Err(revoked());
            }
        }
        Ok(())
    }
}
