//! Join tokens: their text, and where one stands.
//!
//! A token is `palj1.<id>.<secret>`: 16 characters of lower-case base32 that name it, and 32 random
//! bytes in base64url without padding. Only the SHA-256 of those bytes is stored.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use palisade_contract::{Code, Error, NodeId, Result};
use palisade_state::Runtime;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::records::TokenRow;

const PREFIX: &str = "palj1";
const ID_CHARS: usize = 16;
const SECRET_BYTES: usize = 32;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// What somebody who does not hold the secret is told, whatever is wrong.
const REFUSED: &str = "the join token is wrong, used, expired or revoked";

/// A token as it was presented. Has no `Debug`: it holds what follows from the secret.
pub(crate) struct Presented {
    pub id: String,
    secret_sha256: [u8; 32],
}

impl Presented {
    /// Reads a token's text.
    pub fn parse(text: &str) -> Result<Self> {
        let malformed = || {
            Error::new(
                Code::InvalidInput,
                "this is not a join token: one reads palj1.<id>.<secret>, on one line",
            )
            .hint("give the file that `palisade token create` wrote")
        };
        let parts: Vec<&str> = text.trim().split('.').collect();
        let &[PREFIX, id, secret] = parts.as_slice() else { return Err(malformed()) };
        let secret = URL_SAFE_NO_PAD.decode(secret).map_err(|_| malformed())?;
        let well_formed = id.len() == ID_CHARS && id.bytes().all(|b| BASE32.contains(&b));
        if !well_formed || secret.len() != SECRET_BYTES {
            return Err(malformed());
        }
        Ok(Self { id: id.to_owned(), secret_sha256: Sha256::digest(secret).into() })
    }

    /// The token that this is, if the secret is right. As long either way.
    pub fn verify(&self, row: Option<TokenRow>) -> Result<TokenRow> {
        let mut wanted = [0; 32];
        let readable = row
            .as_ref()
            .is_some_and(|row| hex::decode_to_slice(&row.secret_sha256, &mut wanted).is_ok());
        let equal: bool = self.secret_sha256.ct_eq(&wanted).into();
        row.filter(|_| readable && equal).ok_or_else(|| {
            Error::new(Code::Unauthenticated, REFUSED)
                .hint("make a new one with `palisade token create`")
        })
    }
}

/// Where a token stands for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It can make a node.
    Fresh,
    /// It made this node for this very key.
    Redeemed(NodeId),
    /// All its uses went to other keys.
    Used,
    /// Its time is over.
    Expired,
    /// It was taken back.
    Revoked,
}

/// Where `row` stands for `key` at `now_ms` of the logical clock.
pub(crate) fn standing(row: &TokenRow, key: &str, now_ms: u64) -> Standing {
    if row.revoked.is_some() {
        return Standing::Revoked;
    }
    if now_ms >= row.expires_ms {
        return Standing::Expired;
    }
    if let Some(own) = row.redemptions.iter().find(|redemption| redemption.key == key) {
        return Standing::Redeemed(own.node.clone());
    }
    if is_used_up(row) {
        return Standing::Used;
    }
    Standing::Fresh
}

/// Whether no further key can redeem it.
pub(crate) fn is_used_up(row: &TokenRow) -> bool {
    u32::try_from(row.redemptions.len()).is_ok_and(|used| used >= row.uses)
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

/// Whether `text` is a SHA-256 in lower-case hexadecimal.
pub(crate) fn is_sha256_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}
