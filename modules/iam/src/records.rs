//! What is stored of API tokens and principals.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use palisade_state::{Index, Runtime, Table};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::roles::Role;

/// A stored API token. Its secret is not in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TokenRow {
    /// Its id.
    pub id: String,
    /// SHA-256 of the secret's 32 bytes, hex.
    pub secret_sha256: String,
    /// What its maker calls it; unique among tokens that are not revoked.
    pub name: String,
    /// Its roles.
    pub roles: Vec<String>,
    /// The tenant that it is bound to; empty: none.
    #[serde(default)]
    pub tenant: String,
    /// Who made it.
    #[serde(default)]
    pub created_by: String,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
    /// Its life in milliseconds; absent: until it is revoked.
    #[serde(default)]
    pub ttl_ms: Option<u64>,
    /// Logical milliseconds from which on it is refused.
    #[serde(default)]
    pub expires_ms: Option<u64>,
    /// Set once it was revoked.
    #[serde(default)]
    pub revoked: Option<Revocation>,
}

/// Who revoked a token, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Revocation {
    /// Who.
    pub by: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
    /// Logical milliseconds.
    pub at_logical_ms: u64,
}

/// Somebody who comes with a client certificate `palisade://<lineage>/user/<name>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PrincipalRow {
    /// The name in the certificate.
    pub name: String,
    /// Its roles; none: it may nothing.
    pub roles: Vec<String>,
    /// The tenant that it is bound to; empty: none.
    #[serde(default)]
    pub tenant: String,
    /// Its certificates are refused.
    #[serde(default)]
    pub disabled: bool,
}

pub(crate) static API_TOKENS: Table<String, TokenRow> = Table::new(
    "api_tokens",
    &[Index {
        name: "name",
        keys: |row| if row.revoked.is_none() { vec![row.name.clone()] } else { vec![] },
    }],
);

/// Principals by the name in their certificates. The one of `init`, `admin`, needs no row.
pub static PRINCIPALS: Table<String, PrincipalRow> = Table::new("principals", &[]);

impl TokenRow {
    /// Whether it lets somebody in at `now_ms` of the logical clock.
    pub fn is_valid(&self, now_ms: u64) -> bool {
        self.revoked.is_none() && self.expires_ms.is_none_or(|expires_ms| now_ms < expires_ms)
    }

    /// Whether it may everything.
    pub fn is_cluster_admin(&self) -> bool {
        self.tenant.is_empty() && self.roles.iter().any(|role| role == Role::ClusterAdmin.word())
    }
}

const PREFIX: &str = "pal_";
const SECRET_BYTES: usize = 32;
/// 32 bytes in base64 without padding.
const SECRET_CHARS: usize = 43;
const ID_CHARS: usize = 16;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// Reads `pal_<id>_<secret>`: the id, and the SHA-256 of the secret's bytes. The secret's length is
/// fixed, and its alphabet has the underscore too, so that it is cut off from the end.
pub(crate) fn parse_token(text: &str) -> Option<(String, [u8; 32])> {
    let rest = text.strip_prefix(PREFIX)?;
    let cut = rest.len().checked_sub(SECRET_CHARS)?;
    let id = rest.get(..cut)?.strip_suffix('_')?;
    let secret = URL_SAFE_NO_PAD.decode(rest.get(cut..)?).ok()?;
    (is_token_id(id) && secret.len() == SECRET_BYTES)
        .then(|| (id.to_owned(), Sha256::digest(secret).into()))
}

/// Whether `text` may be a token's id.
pub(crate) fn is_token_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Whether `text` is a SHA-256 in lower-case hexadecimal.
pub(crate) fn is_sha256_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A new id: 80 random bits.
pub(crate) fn mint_id(rt: &dyn Runtime) -> String {
    let random = (u128::from(rt.random()) << 64) | u128::from(rt.random());
    (0..ID_CHARS)
        .filter_map(|position| {
            let index = usize::try_from((random >> (position * 5)) & 31).ok()?;
            BASE32.get(index).copied().map(char::from)
        })
        .collect()
}

pub(crate) use palisade_contract::time::rfc3339;
