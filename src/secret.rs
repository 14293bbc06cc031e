//! Secrets that are made here: the other side only ever gets their hash.
//!
//! # Invariants
//! - `SECRET-1` The hash is of the secret's 32 bytes, not of their text.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use crate::edge;

/// A new secret of 256 bits. It has no `Debug`.
pub struct NewSecret([u8; 32]);

impl NewSecret {
    /// Makes one.
    #[must_use]
    pub fn generate() -> Self {
        Self(edge::random_bytes())
    }

    /// Its text: base64url without padding.
    #[must_use]
    pub fn reveal(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0)
    }

    /// The SHA-256 of its bytes, hex.
    #[must_use]
    pub fn sha256(&self) -> String {
        hex::encode(Sha256::digest(self.0))
    }
}

/// An id for a token that is made here: 16 characters of lower-case base32.
#[must_use]
pub fn token_id() -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let letter = |byte: u8| ALPHABET[usize::from(byte % 32)] as char;
    edge::random_bytes::<16>().into_iter().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_long_and_differ() {
        let (one, other) = (NewSecret::generate(), NewSecret::generate());
        assert_eq!(one.reveal().len(), 43);
        assert_ne!(one.reveal(), other.reveal());
        let bytes = URL_SAFE_NO_PAD.decode(one.reveal()).unwrap();
        assert_eq!(one.sha256(), hex::encode(Sha256::digest(bytes)));
        assert_eq!(token_id().len(), 16);
    }
}
