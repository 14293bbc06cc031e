//! The key that signs checkpoints: derived from the CA's key, which every replica has and backups hold sealed.
//!
//! # Invariants
//! - `SEAL-1` The private key is made where the CA's key is, and is in no file, no log entry, no snapshot and no answer.

use std::fmt;

use palisade_contract::past::Seal;
use ring::{
    hkdf::{HKDF_SHA256, KeyType, Salt},
    signature::{Ed25519KeyPair, KeyPair as _},
};

const SALT: &[u8] = b"palisade audit chain";
const INFO: &[u8] = b"ed25519 v1";

/// The cluster's key.
pub struct ClusterSeal(Ed25519KeyPair);

impl fmt::Debug for ClusterSeal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSeal")
    }
}

struct Seed;

impl KeyType for Seed {
    fn len(&self) -> usize {
        32
    }
}

/// The key could not be derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key of the audit chain cannot be derived from the CA's key")]
pub struct NoSeal;

impl ClusterSeal {
    /// The key of a lineage, from its CA's private key (PKCS #8, DER).
    ///
    /// # Errors
    /// [`NoSeal`].
    pub fn derive(ca_key_der: &[u8], lineage: &str) -> Result<Self, NoSeal> {
        let mut seed = [0; 32];
        let extracted = Salt::new(HKDF_SHA256, SALT).extract(ca_key_der);
        let filled = extracted
            .expand(&[INFO, lineage.as_bytes()], Seed)
            .and_then(|expanded| expanded.fill(&mut seed));
        filled.map_err(|_| NoSeal)?;
        Self::from_seed(&seed)
    }

    fn from_seed(seed: &[u8]) -> Result<Self, NoSeal> {
        Ed25519KeyPair::from_seed_unchecked(seed).map(Self).map_err(|_| NoSeal)
    }
}

impl Seal for ClusterSeal {
    fn public(&self) -> [u8; 32] {
        let mut public = [0; 32];
        public.iter_mut().zip(self.0.public_key().as_ref()).for_each(|(to, from)| *to = *from);
        public
    }

    fn sign(&self, message: &[u8]) -> [u8; 64] {
        let mut signature = [0; 64];
        let made = self.0.sign(message);
        signature.iter_mut().zip(made.as_ref()).for_each(|(to, from)| *to = *from);
        signature
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ed25519_is_that_of_rfc_8032() {
        // Section 7.1, tests 1 and 3.
        for (seed, public, message, signature) in [
            (
                "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
                "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
                "",
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
            ),
            (
                "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
                "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
                "af82",
                "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
            ),
        ] {
            let seal = ClusterSeal::from_seed(&hex::decode(seed).unwrap()).unwrap();
            assert_eq!(hex::encode(seal.public()), public);
            assert_eq!(hex::encode(seal.sign(&hex::decode(message).unwrap())), signature);
        }
    }

    #[test]
    fn hkdf_is_that_of_rfc_5869() {
        struct Long;
        impl KeyType for Long {
            fn len(&self) -> usize {
                42
            }
        }
        // Appendix A, test case 1.
        let salt = Salt::new(HKDF_SHA256, &hex::decode("000102030405060708090a0b0c").unwrap());
        let mut out = [0; 42];
        let info = hex::decode("f0f1f2f3f4f5f6f7f8f9").unwrap();
        let extracted = salt.extract(&[0x0b; 22]);
        extracted.expand(&[&info], Long).unwrap().fill(&mut out).unwrap();
        assert_eq!(
            hex::encode(out),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
        );
    }

    #[test]
    fn the_key_is_the_same_wherever_the_ca_is_and_another_for_another_lineage() {
        let public =
            |secret: &[u8], lineage| ClusterSeal::derive(secret, lineage).unwrap().public();
        assert_eq!(public(b"ca", "ln_1"), public(b"ca", "ln_1"));
        assert_ne!(public(b"ca", "ln_1"), public(b"ca", "ln_2"));
        assert_ne!(public(b"ca", "ln_1"), public(b"cb", "ln_1"));
        let seal = ClusterSeal::derive(b"ca", "ln_1").unwrap();
        assert_eq!(format!("{seal:?}"), "ClusterSeal", "SEAL-1");
    }
}
