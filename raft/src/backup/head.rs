//! What a backup says about itself before its content.

use std::collections::BTreeMap;

use palisade_state::View;

use super::{Sealed, SealedFile};

/// A member of the cluster when it was backed up. For people to read: a restore names its own.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupMember {
    /// Its id.
    pub id: u64,
    /// Where peers reached it.
    pub peer_addr: String,
    /// Where operators and agents reached it.
    pub api_addr: String,
    /// Whether it had a vote.
    pub voter: bool,
}

/// The header of a backup. A later release may add fields; a reader passes over what it does not know.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupHead {
    /// The cluster's id.
    pub cluster: String,
    /// Its lineage.
    pub lineage: String,
    /// Its epoch.
    pub epoch: u64,
    /// The term of the last entry that the state covers.
    pub term: u64,
    /// The index of that entry.
    pub index: u64,
    /// The revision of the state.
    pub revision: u64,
    /// When it was made, by the clock of the replica that made it, in milliseconds since 1970.
    pub created_ms: u64,
    /// The version of the program that made it.
    pub palisade: String,
    /// The format of log entries that it wrote.
    pub entry_format: u32,
    /// How many rows each table has.
    pub tables: BTreeMap<String, u64>,
    /// The members.
    pub members: Vec<BackupMember>,
    /// The CA's certificate, PEM.
    pub ca_pem: String,
    /// The CA's key (PEM), sealed.
    pub ca_key: Sealed,
    /// The keys that secrets in the state are sealed with, themselves sealed. Backups of earlier releases have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secret_keys: Vec<SealedFile>,
    /// The files of the CA that is to replace the present one, sealed; none: it is not being replaced, or this replica
    /// does not have them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub next_ca: Vec<SealedFile>,
}

impl BackupHead {
    /// Fills in what the view says about itself.
    #[must_use]
    pub fn of_view(mut self, view: &View) -> Self {
        let at = view.applied();
        (self.term, self.index, self.revision) = (at.term, at.index, view.revision());
        self.tables = view.tables().map(|(name, rows)| (name.to_string(), rows as u64)).collect();
        self
    }

    /// What ties a sealed key to its backup's lineage.
    pub(super) fn bound_to(lineage: &str) -> Vec<u8> {
        format!("palisade backup: the CA key of {lineage}").into_bytes()
    }
}
