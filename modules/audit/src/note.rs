//! Signed notes (C2SP signed-note): a text, and Ed25519 signatures below it that name their key.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use palisade_contract::past::Seal;
use ring::signature::{ED25519, UnparsedPublicKey};
use sha2::{Digest, Sha256};

/// The kind of key: Ed25519.
const ED25519_KEY: u8 = 1;
const SIGNATURE: &str = "\u{2014} ";

/// A key that verifies notes. Its text is `<name>+<id>+<base64>`, the id in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verifier {
    name: String,
    public: [u8; 32],
}

/// Why a key or a note cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoteError {
    /// Not a verifier key.
    #[error("it is no key, which looks like name+1a2b3c4d+AQ…")]
    Key,
    /// Not a note.
    #[error("it is no signed note: a text, an empty line, and signatures")]
    Malformed,
    /// No signature of a key that is known.
    #[error("it is not signed with the key that was given")]
    Unsigned,
    /// The signature is not of this text.
    #[error("its signature is not of this text")]
    Forged,
}

impl Verifier {
    /// The key of this name.
    #[must_use]
    pub fn new(name: String, public: [u8; 32]) -> Self {
        Self { name, public }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The first four bytes of SHA-256 over its name and key.
    fn id(&self) -> [u8; 4] {
        let digest = Sha256::new()
            .chain_update(self.name.as_bytes())
            .chain_update([b'\n', ED25519_KEY])
            .chain_update(self.public)
            .finalize();
        let mut id = [0; 4];
        id.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        id
    }

    /// Whether a signature of a note is said to be of this key. It is not verified.
    pub(crate) fn has_signed(&self, note: &str) -> bool {
        let lines = note.lines().filter_map(|line| line.strip_prefix(SIGNATURE)?.rsplit_once(' '));
        let mut ids = lines.filter(|(name, _)| *name == self.name).filter_map(|(_, signature)| {
            STANDARD.decode(signature).ok()?.first_chunk::<4>().copied()
        });
        ids.any(|id| id == self.id())
    }

    /// Signs a text, which ends in a line feed, with the private half.
    #[must_use]
    pub fn sign(&self, text: &str, seal: &dyn Seal) -> String {
        let mut signature = self.id().to_vec();
        signature.extend_from_slice(&seal.sign(text.as_bytes()));
        format!("{text}\n{SIGNATURE}{} {}\n", self.name, STANDARD.encode(signature))
    }
}

impl fmt::Display for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = vec![ED25519_KEY];
        key.extend_from_slice(&self.public);
        write!(f, "{}+{}+{}", self.name, hex::encode(self.id()), STANDARD.encode(key))
    }
}

impl FromStr for Verifier {
    type Err = NoteError;

    fn from_str(text: &str) -> Result<Self, NoteError> {
        let mut parts = text.trim().splitn(3, '+');
        let (Some(name), Some(id), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(NoteError::Key);
        };
        let key = STANDARD.decode(key).map_err(|_| NoteError::Key)?;
        let Some((&ED25519_KEY, public)) = key.split_first() else { return Err(NoteError::Key) };
        let public = public.try_into().map_err(|_| NoteError::Key)?;
        let verifier = Self { name: name.to_owned(), public };
        let is_name = !name.is_empty() && !name.contains(char::is_whitespace);
        if is_name && hex::encode(verifier.id()) == id { Ok(verifier) } else { Err(NoteError::Key) }
    }
}

/// The text of a note that one of these keys has signed. Signatures of other keys are not looked at.
///
/// # Errors
/// It is no note, no known key has signed it, or a signature is wrong.
pub fn open<'a>(note: &'a str, keys: &[Verifier]) -> Result<&'a str, NoteError> {
    let end = note.rfind("\n\n").ok_or(NoteError::Malformed)?;
    let (text, rest) = note.split_at(end + 1);
    let signatures = rest.strip_prefix('\n').filter(|rest| rest.ends_with('\n'));
    let signatures = signatures.ok_or(NoteError::Malformed)?;
    if note.chars().any(|c| c.is_control() && c != '\n') {
        return Err(NoteError::Malformed);
    }
    let mut is_signed = false;
    for line in signatures.lines() {
        let line = line.strip_prefix(SIGNATURE).ok_or(NoteError::Malformed)?;
        let (name, signature) = line.rsplit_once(' ').ok_or(NoteError::Malformed)?;
        let signature = STANDARD.decode(signature).map_err(|_| NoteError::Malformed)?;
        let (id, signature) = signature.split_at_checked(4).ok_or(NoteError::Malformed)?;
        for key in keys.iter().filter(|key| key.name == name && key.id() == id) {
            let public = UnparsedPublicKey::new(&ED25519, key.public);
            public.verify(text.as_bytes(), signature).map_err(|_| NoteError::Forged)?;
            is_signed = true;
        }
    }
    if is_signed { Ok(text) } else { Err(NoteError::Unsigned) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ClusterSeal;

    // The example of the signed-note specification.
    const KEY: &str = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
    const NOTE: &str = "This is an example message.\n\n\u{2014} example.com/foo Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n";

    #[test]
    fn it_is_known_which_key_has_signed() {
        let (before, after) = (
            ClusterSeal::derive(b"old", "ln").unwrap(),
            ClusterSeal::derive(b"new", "ln").unwrap(),
        );
        let [before_key, after_key] = [&before, &after]
            .map(|seal| Verifier::new("palisade-audit/ln".to_owned(), seal.public()));
        let note = before_key.sign("text\n", &before);
        assert!(before_key.has_signed(&note) && !after_key.has_signed(&note));
        let other = Verifier::new("palisade-audit/other".to_owned(), before.public());
        assert!(!other.has_signed(&note) && !before_key.has_signed("text\n"));
    }

    #[test]
    fn the_published_note_is_opened_and_its_key_is_read_and_written() {
        let key: Verifier = KEY.parse().unwrap();
        assert_eq!(key.to_string(), KEY);
        assert_eq!(open(NOTE, &[key]), Ok("This is an example message.\n"));
    }

    #[test]
    fn no_byte_of_a_note_can_be_changed() {
        let key: Verifier = KEY.parse().unwrap();
        for at in 0..NOTE.len() {
            for bit in 0..8 {
                let mut bytes = NOTE.as_bytes().to_vec();
                bytes[at] ^= 1 << bit;
                let Ok(changed) = String::from_utf8(bytes) else { continue };
                assert!(
                    open(&changed, std::slice::from_ref(&key)).is_err(),
                    "byte {at}, bit {bit}"
                );
            }
        }
    }

    #[test]
    fn what_another_key_signed_is_not_signed() {
        let seal = ClusterSeal::derive(b"secret", "ln_1").unwrap();
        let key = Verifier::new("palisade-audit/ln_1".to_owned(), seal.public());
        let note = key.sign("a\nb\n", &seal);
        assert_eq!(open(&note, std::slice::from_ref(&key)), Ok("a\nb\n"));
        assert_eq!(open(&note, &[KEY.parse().unwrap()]), Err(NoteError::Unsigned));
        assert_eq!(open(&note, &[KEY.parse().unwrap(), key]), Ok("a\nb\n"));
        for text in ["", "x", "a+b+c", "a+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"] {
            assert_eq!(text.parse::<Verifier>(), Err(NoteError::Key), "{text}");
        }
    }
}
