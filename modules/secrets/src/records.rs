//! What is stored of secrets, of the keys that seal them, and of which replica holds which.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use palisade_contract::{Error, Result, secrets::Sealed};
use palisade_state::{Table, View};
use serde::{Deserialize, Serialize};

/// Dropped keys that the ring remembers, so that replicas which were away remove their files.
const DROPPED_MAX: usize = 32;

/// A secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SecretRow {
    /// Its name.
    pub name: String,
    /// Whose it is; empty: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// 1, 2, 3 …
    pub version: u64,
    /// The state's revision when this version was made.
    pub set_after: u64,
    /// The id of the key that it is sealed with.
    pub key: String,
    /// Base64.
    pub nonce: String,
    /// Base64.
    pub sealed: String,
    /// Bytes of the content.
    pub bytes: usize,
    /// Who set this version.
    #[serde(default)]
    pub set_by: String,
    /// Wall-clock milliseconds of the first version.
    pub created_at_ms: u64,
    /// Wall-clock milliseconds of this version.
    pub set_at_ms: u64,
}

impl SecretRow {
    pub fn key_of(tenant: &str, name: &str) -> String {
        format!("{tenant}/{name}")
    }

    pub fn id(&self) -> String {
        Self::key_of(&self.tenant, &self.name)
    }

    /// What is sealed.
    ///
    /// # Errors
    /// It is no base64.
    pub fn sealed(&self) -> Result<Sealed> {
        let nonce = STANDARD.decode(&self.nonce).map_err(Error::internal)?;
        let nonce = nonce.try_into().map_err(|_| Error::internal("a nonce has 12 bytes"))?;
        Ok(Sealed { nonce, data: STANDARD.decode(&self.sealed).map_err(Error::internal)? })
    }

    /// With what is sealed.
    pub fn with(self, key: &str, sealed: &Sealed) -> Self {
        Self {
            key: key.to_owned(),
            nonce: STANDARD.encode(sealed.nonce),
            sealed: STANDARD.encode(&sealed.data),
            ..self
        }
    }

    /// `SEC-4` What a version is sealed for: each part with its length, so that no two are alike.
    pub fn bound_to(&self, view: &View, key: &str) -> Vec<u8> {
        let lineage = view.formation().map_or("", |formation| formation.lineage.as_str());
        let version = self.version.to_string();
        let mut bound = b"palisade secret v1".to_vec();
        for part in [lineage, &self.tenant, &self.name, &version, key] {
            bound.extend((part.len() as u64).to_be_bytes());
            bound.extend(part.as_bytes());
        }
        bound
    }
}

/// Where a key is in its life.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum KeyState {
    /// Not every voter holds it yet: nothing is sealed with it.
    Pending,
    /// What is set is sealed with it.
    Current,
    /// What is sealed with it is being sealed with the current one.
    Retiring,
    /// Nothing is sealed with it; replicas remove it.
    Dropped,
    /// No replica of this cluster has it: what is sealed with it is lost.
    Lost,
}

/// A key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyRow {
    /// 1, 2, 3 …
    pub version: u64,
    /// By what its file is known.
    pub id: String,
    /// Where it is in its life.
    pub state: KeyState,
    /// Who asked for it.
    #[serde(default)]
    pub by: String,
    /// Wall-clock milliseconds.
    pub made_at_ms: u64,
    /// Logical milliseconds.
    #[serde(default)]
    pub made_at_logical_ms: u64,
}

impl KeyRow {
    /// Whether replicas are to hold it.
    pub fn is_needed(&self) -> bool {
        matches!(self.state, KeyState::Pending | KeyState::Current | KeyState::Retiring)
    }
}

/// All keys, oldest first: one row, so that whoever seals notices when the current one changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RingRow {
    /// The keys.
    pub keys: Vec<KeyRow>,
    /// Who asked for another key, while it is not made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted_by: Option<String>,
}

impl RingRow {
    pub fn of(view: &View) -> Result<Self> {
        Ok(RING.get(view, &RING_KEY.to_owned())?.map(|row| row.value).unwrap_or_default())
    }

    pub fn in_state(&self, state: KeyState) -> Option<&KeyRow> {
        self.keys.iter().find(|key| key.state == state)
    }

    pub fn version_of(&self, id: &str) -> Option<&KeyRow> {
        self.keys.iter().find(|key| key.id == id)
    }

    /// Puts all keys of a state into another one.
    pub fn turn(&mut self, from: KeyState, to: KeyState) {
        self.keys.iter_mut().filter(|key| key.state == from).for_each(|key| key.state = to);
    }

    pub fn next_version(&self) -> u64 {
        self.keys.iter().map(|key| key.version).max().unwrap_or(0) + 1
    }

    /// Forgets keys that were dropped long ago.
    pub fn trim(&mut self) {
        let dropped = self.keys.iter().filter(|key| key.state == KeyState::Dropped).count();
        let mut surplus = dropped.saturating_sub(DROPPED_MAX);
        self.keys.retain(|key| {
            let goes = key.state == KeyState::Dropped && surplus > 0;
            surplus -= usize::from(goes);
            !goes
        });
    }
}

/// Which of the needed keys a replica holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HolderRow {
    /// Their ids, in order.
    pub keys: Vec<String>,
}

pub(crate) const RING_KEY: &str = "ring";

/// By `<tenant>/<name>`.
pub(crate) const SECRETS: Table<String, SecretRow> = Table::new("secrets", &[]);
/// One row.
pub(crate) const RING: Table<String, RingRow> = Table::new("secret_keys", &[]);
/// By replica.
pub(crate) const HOLDERS: Table<u64, HolderRow> = Table::new("secret_key_holders", &[]);

/// How many secrets each key seals.
pub(crate) fn sealed_with(view: &View) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for found in SECRETS.page(view, &[], None) {
        *counts.entry(found?.1.value.key).or_insert(0) += 1;
    }
    Ok(counts)
}

/// How many secrets a tenant has.
pub(crate) fn count_of(view: &View, tenant: &str) -> usize {
    // '0' is what comes behind '/'.
    let (start, end) = (format!("{tenant}/"), format!("{tenant}0"));
    view.rows(SECRETS.name(), start.as_bytes(), Some(end.as_bytes())).count()
}
