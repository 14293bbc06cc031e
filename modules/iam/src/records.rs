//! What is stored of API tokens, principals, roles and who holds them.

use std::collections::BTreeSet;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use palisade_state::{Index, Runtime, Table};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{access::ADMIN, roles::Role};

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
    /// Its roles; a principal's token has none of its own.
    #[serde(default)]
    pub roles: Vec<String>,
    /// The tenant that it is bound to, or that its principal belongs to; empty: none.
    #[serde(default)]
    pub tenant: String,
    /// The principal whose it is; empty: it stands for itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub principal: String,
    /// Who made it.
    #[serde(default)]
    pub created_by: String,
    /// Whose hand it was then: who had made that one, and so on. It stays when they go.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub makers: BTreeSet<String>,
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

/// Somebody who comes with a client certificate `palisade://<lineage>/user/<name>`, or with a token of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PrincipalRow {
    /// Its name, also in certificates.
    pub name: String,
    /// Roles that it holds in its tenant without a binding, as rows do that were written before there were bindings.
    pub roles: Vec<String>,
    /// The tenant that it belongs to; empty: the cluster.
    pub tenant: String,
    /// Its certificates and tokens are refused.
    pub disabled: bool,
    /// SHA-256 (hex) of the keys whose certificates are accepted; absent: any that the CA certified for its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<String>>,
    /// What it is for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Who made it.
    pub created_by: String,
    /// Whose hand it has been: who made it, chose its keys or let it in again, and who had made those then. It only grows.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub makers: BTreeSet<String>,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
}

impl PrincipalRow {
    /// Whoever the CA has certified as `admin`, as it is until somebody changes it.
    pub(crate) fn admin() -> Self {
        Self {
            name: ADMIN.to_owned(),
            roles: vec![Role::ClusterAdmin.word().to_owned()],
            description: "whoever has a certificate of the cluster's CA for this name".to_owned(),
            created_by: "init".to_owned(),
            ..Self::default()
        }
    }

    /// Whether a certificate of this key is one of its.
    pub(crate) fn accepts(&self, key: &str) -> bool {
        self.keys.as_ref().is_none_or(|keys| keys.iter().any(|one| one == key))
    }

    /// Whether it may everything, also without a binding.
    pub(crate) fn is_cluster_admin(&self) -> bool {
        self.tenant.is_empty() && self.roles.iter().any(|role| role == Role::ClusterAdmin.word())
    }
}

/// A role that is not built in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RoleRow {
    /// Its name.
    pub name: String,
    /// What it allows, in order, each once.
    pub actions: Vec<String>,
    /// What it is for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Who made it.
    pub created_by: String,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
}

/// That a principal holds a role somewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BindingRow {
    /// Who.
    pub principal: String,
    /// Which role.
    pub role: String,
    /// On whose things; empty: everybody's and the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// Who made it.
    pub created_by: String,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
}

/// When a token was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UseRow {
    /// Wall-clock milliseconds of the newest use that was written.
    pub last_used_ms: u64,
}

impl BindingRow {
    /// Its id. Names have no dot, so that no two bindings share one.
    pub fn id(&self) -> String {
        binding_id(&self.principal, &self.role, &self.tenant)
    }
}

/// The id of a binding: `<principal>.<role>`, and `.<tenant>` behind it.
pub(crate) fn binding_id(principal: &str, role: &str, tenant: &str) -> String {
    let within = if tenant.is_empty() { String::new() } else { format!(".{tenant}") };
    format!("{principal}.{role}{within}")
}

pub(crate) static API_TOKENS: Table<String, TokenRow> = Table::new(
    "api_tokens",
    &[
        Index {
            name: "name",
            keys: |row| if row.revoked.is_none() { vec![row.name.clone()] } else { vec![] },
        },
        Index {
            name: "principal",
            keys: |row| match &row.revoked {
                None if !row.principal.is_empty() => vec![row.principal.clone()],
                _ => vec![],
            },
        },
    ],
);

/// Principals by name. `admin`, whom the holder of the CA's key can certify, needs no row.
pub static PRINCIPALS: Table<String, PrincipalRow> = Table::new("principals", &[]);

/// Roles that are not built in, by name.
pub(crate) static CUSTOM_ROLES: Table<String, RoleRow> = Table::new("roles", &[]);

/// Who holds which role where, by [`binding_id`].
pub(crate) static ROLE_BINDINGS: Table<String, BindingRow> = Table::new(
    "role_bindings",
    &[
        // Those of one principal are together by their key.
        Index { name: "role", keys: |row| vec![row.role.clone()] },
    ],
);

/// When tokens were used last, by their id.
pub(crate) static TOKEN_USES: Table<String, UseRow> = Table::new("api_token_uses", &[]);

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
