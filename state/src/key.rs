//! Row keys: bytes that sort as the thing they stand for.

use std::{borrow::Borrow, fmt, ops::Deref, sync::Arc};

use smallvec::SmallVec;

/// A key in the making.
pub type KeyBuf = SmallVec<[u8; 64]>;

/// Bytes that are kept inline.
const INLINE: usize = 30;

/// A row's key within its table. Up to 30 bytes are kept inline, and longer ones are counted: nodes
/// of the tables' trees are copied all the time, and their keys with them.
#[derive(Clone)]
pub struct KeyBytes(Repr);

#[derive(Clone)]
enum Repr {
    Inline { len: u8, bytes: [u8; INLINE] },
    Shared(Arc<[u8]>),
}

const _: () = assert!(size_of::<KeyBytes>() == 32);

impl KeyBytes {
    /// The empty key, which is before all others.
    #[must_use]
    pub const fn new() -> Self {
        Self(Repr::Inline { len: 0, bytes: [0; INLINE] })
    }

    /// A key of these bytes.
    #[must_use]
    pub fn from_slice(key: &[u8]) -> Self {
        let mut bytes = [0; INLINE];
        match (u8::try_from(key.len()), bytes.get_mut(..key.len())) {
            (Ok(len), Some(room)) => {
                room.copy_from_slice(key);
                Self(Repr::Inline { len, bytes })
            }
            _ => Self(Repr::Shared(key.into())),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Repr::Inline { len, bytes } => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Repr::Shared(bytes) => bytes,
        }
    }
}

impl Default for KeyBytes {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for KeyBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Borrow<[u8]> for KeyBytes {
    fn borrow(&self) -> &[u8] {
        self.as_slice()
    }
}

impl PartialEq for KeyBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for KeyBytes {}

impl PartialOrd for KeyBytes {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for KeyBytes {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl std::hash::Hash for KeyBytes {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl fmt::Debug for KeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_slice().escape_ascii())
    }
}

/// A type that can be a table's key. Encodings keep the order of the type.
pub trait Key: Sized {
    /// Appends the encoding to `out`.
    fn encode(&self, out: &mut KeyBuf);

    /// Reads a key back; `None` when the bytes are not one.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// The encoding by itself.
    fn to_key(&self) -> KeyBytes {
        let mut out = KeyBuf::new();
        self.encode(&mut out);
        KeyBytes::from_slice(&out)
    }
}

impl Key for String {
    fn encode(&self, out: &mut KeyBuf) {
        out.extend_from_slice(self.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }
}

impl Key for u64 {
    fn encode(&self, out: &mut KeyBuf) {
        out.extend_from_slice(&self.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_be_bytes)
    }
}

/// The parts of a compound key with a zero byte between them. Only the last part may hold a zero
/// byte itself; the builder of transactions refuses what breaks this.
#[must_use]
pub fn joined(parts: &[&[u8]]) -> KeyBytes {
    let mut out = KeyBuf::new();
    for (position, part) in parts.iter().enumerate() {
        if position > 0 {
            out.push(0);
        }
        debug_assert!(
            position + 1 == parts.len() || !part.contains(&0),
            "only the last part of a compound key may hold a zero byte"
        );
        out.extend_from_slice(part);
    }
    KeyBytes::from_slice(&out)
}

/// The first key after every key that starts with `prefix`; `None` when there is none.
#[must_use]
pub fn after_prefix(prefix: &[u8]) -> Option<KeyBytes> {
    let kept = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = KeyBuf::from_slice(prefix.get(..=kept)?);
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    Some(KeyBytes::from_slice(&end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_sort_as_numbers() {
        assert!(255_u64.to_key() < 256_u64.to_key());
        assert_eq!(u64::decode(&7_u64.to_key()), Some(7));
        assert_eq!(u64::decode(b"short"), None);
    }

    #[test]
    fn the_end_of_a_prefix_is_after_all_its_keys() {
        assert_eq!(after_prefix(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(after_prefix(&[b'a', 0xff]).as_deref(), Some(&b"b"[..]));
        assert_eq!(after_prefix(&[0xff, 0xff]), None);
        assert_eq!(after_prefix(b""), None);
    }

    #[test]
    fn keys_sort_as_their_bytes_however_they_are_kept() {
        let bytes = |n: usize| vec![b'k'; n];
        for n in [0, 1, INLINE - 1, INLINE, INLINE + 1, 1024] {
            let (key, longer) =
                (KeyBytes::from_slice(&bytes(n)), KeyBytes::from_slice(&bytes(n + 1)));
            assert_eq!(key.as_slice(), bytes(n));
            assert!(key < longer && key == key.clone());
        }
    }
}
