//! Row keys: bytes that sort as the thing they stand for.

use smallvec::SmallVec;

/// A row's key within its table. Up to 32 bytes are kept inline.
pub type KeyBytes = SmallVec<[u8; 32]>;

/// A type that can be a table's key. Encodings keep the order of the type.
pub trait Key: Sized {
    /// Appends the encoding to `out`.
    fn encode(&self, out: &mut KeyBytes);

    /// Reads a key back; `None` when the bytes are not one.
    fn decode(bytes: &[u8]) -> Option<Self>;

    /// The encoding by itself.
    fn to_key(&self) -> KeyBytes {
        let mut out = KeyBytes::new();
        self.encode(&mut out);
        out
    }
}

impl Key for String {
    fn encode(&self, out: &mut KeyBytes) {
        out.extend_from_slice(self.as_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        std::str::from_utf8(bytes).ok().map(str::to_owned)
    }
}

impl Key for u64 {
    fn encode(&self, out: &mut KeyBytes) {
        out.extend_from_slice(&self.to_be_bytes());
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self::from_be_bytes)
    }
}

/// The part of a compound key before its last part. It ends in a zero byte, so it can hold no
/// zero byte itself; [`joined`] refuses one.
#[must_use]
pub fn joined(parts: &[&[u8]]) -> KeyBytes {
    let mut out = KeyBytes::new();
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
    out
}

/// The first key after every key that starts with `prefix`; `None` when there is none.
#[must_use]
pub fn after_prefix(prefix: &[u8]) -> Option<KeyBytes> {
    let mut end = KeyBytes::from_slice(prefix);
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Some(end);
        }
    }
    None
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
    }
}
