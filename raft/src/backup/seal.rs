//! Sealing the CA's key under the cluster's backup key (ChaCha20-Poly1305).

use std::{fmt, path::Path};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use sha2::{Digest, Sha256};

use super::{BackupError, BackupHead};

pub(super) const KEY_BYTES: usize = 32;
const NONCE_BYTES: usize = 12;
const ID_BYTES: usize = 8;

/// A sealed secret. All three are hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sealed {
    /// Which key opens it.
    pub key_id: String,
    /// Never used twice with one key.
    pub nonce: String,
    /// The ciphertext and its tag.
    pub data: String,
}

/// The key that a cluster seals its backups with: `pki/backup.key`, the same on all replicas.
#[derive(Clone, PartialEq, Eq)]
pub struct BackupKey([u8; KEY_BYTES]);

impl fmt::Debug for BackupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackupKey({})", self.id())
    }
}

/// A sealed file.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SealedFile {
    /// Its name.
    pub name: String,
    /// Its content.
    pub sealed: Sealed,
}

/// What ties a sealed file to its name and its backup's lineage.
fn bound_to(lineage: &str, name: &str) -> Vec<u8> {
    format!("palisade backup: the file {name} of {lineage}").into_bytes()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits.chunks(2).map(pair).collect()
}

impl BackupKey {
    /// The key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Reads the key in a file.
    ///
    /// # Errors
    /// It cannot be read, or holds something else.
    pub fn load(file: &Path) -> Result<Self, BackupError> {
        let bytes = std::fs::read(file).map_err(BackupError::io("read", file))?;
        let key = <[u8; KEY_BYTES]>::try_from(bytes.as_slice());
        let no_key = |_| BackupError::NoKey { file: file.to_owned(), bytes: bytes.len() as u64 };
        key.map(Self).map_err(no_key)
    }

    /// The bytes, to be written into another replica's directory. Secret.
    #[must_use]
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// By what a key is recognised; it tells nothing of the key.
    #[must_use]
    pub fn id(&self) -> String {
        let digest =
            Sha256::new().chain_update(b"palisade backup key\n").chain_update(self.0).finalize();
        hex(&digest[..ID_BYTES])
    }

    fn cipher(&self) -> Result<LessSafeKey, BackupError> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.0).map_err(|_| BackupError::Seal)?;
        Ok(LessSafeKey::new(key))
    }

    /// Seals a file of a lineage that only replicas may hold. The nonce must be fresh random bytes.
    ///
    /// # Errors
    /// The cipher failed.
    pub fn seal_file(
        &self,
        lineage: &str,
        name: &str,
        content: &[u8],
        nonce: [u8; NONCE_BYTES],
    ) -> Result<SealedFile, BackupError> {
        let mut data = content.to_vec();
        let unique = Nonce::assume_unique_for_key(nonce);
        self.cipher()?
            .seal_in_place_append_tag(unique, Aad::from(bound_to(lineage, name)), &mut data)
            .map_err(|_| BackupError::Seal)?;
        let sealed = Sealed { key_id: self.id(), nonce: hex(&nonce), data: hex(&data) };
        Ok(SealedFile { name: name.to_owned(), sealed })
    }

    /// Opens what [`BackupKey::seal_file`] sealed; `None` when this is not the key, or it is not that file.
    #[must_use]
    pub fn open_file(&self, lineage: &str, file: &SealedFile) -> Option<Vec<u8>> {
        let nonce = unhex(&file.sealed.nonce)?;
        let nonce = Nonce::try_assume_unique_for_key(&nonce).ok()?;
        let mut data = unhex(&file.sealed.data)?;
        let bound = Aad::from(bound_to(lineage, &file.name));
        let plain = self.cipher().ok()?.open_in_place(nonce, bound, &mut data).ok()?;
        Some(plain.to_vec())
    }

    /// Seals the CA's key of a lineage. The nonce must be fresh random bytes.
    ///
    /// # Errors
    /// The cipher failed.
    pub fn seal(
        &self,
        lineage: &str,
        ca_key_pem: &str,
        nonce: [u8; NONCE_BYTES],
    ) -> Result<Sealed, BackupError> {
        let mut data = ca_key_pem.as_bytes().to_vec();
        let bound = Aad::from(BackupHead::bound_to(lineage));
        let unique = Nonce::assume_unique_for_key(nonce);
        self.cipher()?
            .seal_in_place_append_tag(unique, bound, &mut data)
            .map_err(|_| BackupError::Seal)?;
        Ok(Sealed { key_id: self.id(), nonce: hex(&nonce), data: hex(&data) })
    }

    /// Opens what [`BackupKey::seal`] sealed; `None` when this is not the key, or the secret is not what was sealed.
    #[must_use]
    pub fn open(&self, lineage: &str, sealed: &Sealed) -> Option<String> {
        let nonce = unhex(&sealed.nonce)?;
        let nonce = Nonce::try_assume_unique_for_key(&nonce).ok()?;
        let mut data = unhex(&sealed.data)?;
        let bound = Aad::from(BackupHead::bound_to(lineage));
        let plain = self.cipher().ok()?.open_in_place(nonce, bound, &mut data).ok()?;
        String::from_utf8(plain.to_vec()).ok()
    }
}
