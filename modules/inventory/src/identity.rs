//! The SMBIOS product UUID: a selector, not proof.
//!
//! Its first three fields are little-endian in the table since SMBIOS 2.6, and tools disagree about
//! showing them so. Two texts are one UUID here when they differ in that byte order alone.

/// A product UUID as 16 bytes in the order of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductUuid([u8; 16]);

/// What boards have whose maker gave them none: all are one machine to whoever believes them.
const CONSTANTS: [&str; 4] = [
    "00000000-0000-0000-0000-000000000000",
    "ffffffff-ffff-ffff-ffff-ffffffffffff",
    "03000200-0400-0500-0006-000700080009",
    "12345678-1234-5678-90ab-cddeefaabbcc",
];

impl ProductUuid {
    /// Reads 32 hexadecimal digits, with hyphens or braces wherever they are.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits: String =
            text.trim().chars().filter(|c| !matches!(c, '-' | '{' | '}')).collect();
        let bytes = hex::decode(digits).ok()?;
        bytes.try_into().ok().map(Self)
    }

    /// The same UUID in the other byte order.
    fn swapped(self) -> Self {
        let mut bytes = self.0;
        for field in [0..4, 4..6, 6..8] {
            if let Some(field) = bytes.get_mut(field) {
                field.reverse();
            }
        }
        Self(bytes)
    }

    /// One text for both byte orders.
    #[must_use]
    pub fn canonical(&self) -> String {
        let other = self.swapped();
        hex::encode(self.0.min(other.0))
    }

    /// Whether it can tell machines apart: it is not a constant that many boards share.
    #[must_use]
    pub fn identifies(&self) -> bool {
        !CONSTANTS
            .iter()
            .filter_map(|constant| Self::parse(constant))
            .any(|constant| constant.canonical() == self.canonical())
    }

    /// Whether both are one UUID, in whichever byte order.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.canonical() == other.canonical()
    }
}

/// A node name from a host name: its first label, made a name; `None` when nothing is left.
pub(crate) fn name_from_hostname(hostname: &str) -> Option<String> {
    let label = hostname.split('.').next().unwrap_or_default().to_lowercase();
    let name: String = label
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(63)
        .collect();
    let name = name.trim_matches('-').to_owned();
    palisade_contract::id::is_name(&name).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_uuid_in_two_byte_orders_is_one_uuid() {
        let raw = ProductUuid::parse("33221100-5544-7766-8899-aabbccddeeff").unwrap();
        let shown = ProductUuid::parse("{00112233-4455-6677-8899-AABBCCDDEEFF}").unwrap();
        assert!(raw.is(&shown));
        let other = ProductUuid::parse("00112233-4455-6677-8899-aabbccddeefe").unwrap();
        assert!(!raw.is(&other));
    }

    #[test]
    fn constants_of_cheap_boards_identify_nobody() {
        for constant in [
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "03000200-0400-0500-0006-000700080009",
            "00020003-0004-0005-0006-000700080009",
        ] {
            assert!(!ProductUuid::parse(constant).unwrap().identifies(), "{constant}");
        }
        assert!(ProductUuid::parse("00112233-4455-6677-8899-aabbccddeeff").unwrap().identifies());
    }

    #[test]
    fn what_is_not_a_uuid_is_none() {
        for text in ["", "Not Settable", "0011", "00112233-4455-6677-8899-aabbccddeeffee"] {
            assert_eq!(ProductUuid::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_host_name_becomes_a_name() {
        assert_eq!(name_from_hostname("Web_1.example.org").as_deref(), Some("web-1"));
        assert_eq!(name_from_hostname("-x-").as_deref(), Some("x"));
        assert_eq!(name_from_hostname("..."), None);
        assert_eq!(name_from_hostname(&"a".repeat(80)).map(|n| n.len()), Some(63));
    }
}
