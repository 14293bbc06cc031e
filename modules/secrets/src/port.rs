//! Secrets for the rest of the process: what there is of one, and its content where it is used.

use std::sync::Arc;

use palisade_contract::{
    Code, Context, Error, Result, SecretBytes, SecretRef,
    secrets::{KeptSecret, SecretFacts, SecretKeys, Secrets, is_kept},
};
use palisade_state::{Tx, View};

use crate::{
    methods::{SECRETS_MAX, too_many},
    records::{KeyState, RING, RING_KEY, RingRow, SECRETS, SecretRow, count_of},
};

/// What fills `ports.secrets`.
pub(crate) struct Port(pub Arc<dyn SecretKeys>);

/// That there is no secret of this name, in the words that are said of another tenant's too.
pub(crate) fn not_found(name: &str) -> Error {
    Error::not_found("secret", name).hint("`palisade secret ls` shows all")
}

/// The keys of this replica.
///
/// # Errors
/// `UNSUPPORTED` where there are none.
pub(crate) fn keys(cx: &Context) -> Result<&Arc<dyn SecretKeys>> {
    cx.ports.secret_keys.filled().ok_or_else(|| {
        Error::new(Code::Unsupported, "this process holds no keys of secrets: ask a replica")
    })
}

/// That nothing can be sealed yet.
fn no_key(ring: &RingRow) -> Error {
    let waits = if ring.in_state(KeyState::Pending).is_some() {
        "the cluster's first key of secrets is not on every replica yet"
    } else {
        "the cluster has no key of secrets yet: it makes one by itself"
    };
    Error::new(Code::Unavailable, waits).hint(
        "try again in a moment; if it lasts, `palisade doctor` says which replica is waited for",
    )
}

/// The key with which secrets are sealed now, as part of what the transaction has read.
///
/// # Errors
/// `UNAVAILABLE` while there is none.
pub(crate) fn current(tx: &mut Tx) -> Result<String> {
    let ring = tx.get(&RING, &RING_KEY.to_owned())?.unwrap_or_default();
    match ring.in_state(KeyState::Current) {
        Some(key) => Ok(key.id.clone()),
        None => Err(no_key(&ring)),
    }
}

/// That a secret was sealed with a key that no replica has.
fn lost(row: &SecretRow) -> Error {
    Error::new(
        Code::InvalidState,
        format!("secret {} was sealed with a key that this cluster does not have", row.name),
    )
    .hint("set it again: `palisade secret set`")
}

fn of_a_module(name: &str) -> Result<()> {
    if is_kept(name) {
        return Ok(());
    }
    Err(Error::internal(format!("{name:?} is no name under which a module keeps a secret")))
}

impl Secrets for Port {
    fn facts(&self, view: &View, tenant: &str, secret: &SecretRef) -> Result<Option<SecretFacts>> {
        let found = SECRETS.get(view, &SecretRow::key_of(tenant, &secret.secret))?;
        Ok(found.map(|found| SecretFacts {
            version: found.value.version,
            revision: found.value.set_after,
            bytes: found.value.bytes,
        }))
    }

    fn open(&self, view: &View, tenant: &str, secret: &SecretRef) -> Result<SecretBytes> {
        let found = SECRETS.get(view, &SecretRow::key_of(tenant, &secret.secret))?;
        let row = found.ok_or_else(|| not_found(&secret.secret))?.value;
        let is_lost = RingRow::of(view)?
            .version_of(&row.key)
            .is_none_or(|key| matches!(key.state, KeyState::Lost | KeyState::Dropped));
        if is_lost && !self.0.has(&row.key) {
            return Err(lost(&row));
        }
        self.0.open(&row.key, &row.bound_to(view, &row.key), &row.sealed()?)
    }

    fn blind(&self, view: &View, text: &str) -> Result<String> {
        let ring = RingRow::of(view)?;
        let key = ring.in_state(KeyState::Current).ok_or_else(|| no_key(&ring))?;
        self.0.digest(&key.id, text.as_bytes())
    }

    fn require(&self, tx: &mut Tx, tenant: &str, secret: &SecretRef) -> Result<()> {
        let key = SecretRow::key_of(tenant, &secret.secret);
        tx.get(&SECRETS, &key)?.map(drop).ok_or_else(|| not_found(&secret.secret))
    }

    fn keep(&self, tx: &mut Tx, secret: &KeptSecret<'_>) -> Result<()> {
        of_a_module(secret.name)?;
        let key = SecretRow::key_of(secret.tenant, secret.name);
        let (before, view) = (tx.get(&SECRETS, &key)?, tx.view().clone());
        if before.is_none() && count_of(&view, secret.tenant) >= SECRETS_MAX {
            return Err(too_many(secret.tenant));
        }
        let (sealer, wall_ms) = (current(tx)?, view.clock().wall_ms);
        let row = SecretRow {
            name: secret.name.to_owned(),
            tenant: secret.tenant.to_owned(),
            version: before.as_ref().map_or(1, |before| before.version + 1),
            set_after: view.revision(),
            key: String::new(),
            nonce: String::new(),
            sealed: String::new(),
            bytes: secret.content.reveal().len(),
            set_by: secret.by.to_owned(),
            created_at_ms: before.map_or(wall_ms, |before| before.created_at_ms),
            set_at_ms: wall_ms,
        };
        // SEC-5
        let sealed = self.0.seal(&sealer, &row.bound_to(&view, &sealer), secret.content)?;
        Ok(tx.put(&SECRETS, &key, &row.with(&sealer, &sealed))?)
    }

    fn discard(&self, tx: &mut Tx, tenant: &str, name: &str) -> Result<()> {
        of_a_module(name)?;
        Ok(tx.delete(&SECRETS, &SecretRow::key_of(tenant, name))?)
    }
}
