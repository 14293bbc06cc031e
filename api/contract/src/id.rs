//! Typed ids and names.

use std::fmt;

use palisade_state::Runtime;

/// Mints ids: a prefix and a ULID, whose time is the wall clock's and whose rest is random.
pub fn mint(rt: &dyn Runtime, prefix: &str) -> String {
    let random = (u128::from(rt.random()) << 64) | u128::from(rt.random());
    let ulid = ulid::Ulid::from_parts(rt.wall_ms(), random);
    format!("{prefix}_{}", ulid.to_string().to_ascii_lowercase())
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// What its ids begin with.
            pub const PREFIX: &'static str = $prefix;

            /// A new id.
            #[must_use]
            pub fn mint(rt: &dyn Runtime) -> Self {
                Self(mint(rt, $prefix))
            }

            /// Reads an id that was written; the prefix is checked.
            #[must_use]
            pub fn parse(text: &str) -> Option<Self> {
                let rest = text.strip_prefix($prefix)?.strip_prefix('_')?;
                let well_formed = rest.len() == 26 && rest.bytes().all(|b| b.is_ascii_alphanumeric());
                well_formed.then(|| Self(text.to_owned()))
            }

            /// As text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// As a table key.
            #[must_use]
            pub fn key(&self) -> String {
                self.0.clone()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

ids! {
    /// A command to an agent.
    CommandId = "cm",
    /// A running copy of a workload; also the id of its allocation.
    InstanceId = "in",
    /// A machine with an agent.
    NodeId = "nd",
    /// A session of an agent with a replica.
    SessionId = "ss",
    /// What a user wants running.
    WorkloadId = "wl",
}

/// Whether `name` may name a node, pool, workload or tenant: 1 to 63 lower-case letters, digits and
/// hyphens, beginning and ending with a letter or digit (RFC 1123 label).
#[must_use]
pub fn is_name(name: &str) -> bool {
    let edge =
        |byte: Option<u8>| byte.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    name.len() <= 63
        && edge(name.bytes().next())
        && edge(name.bytes().last())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// The rule of [`is_name`], for messages.
pub const NAME_RULE: &str =
    "1 to 63 lower-case letters, digits and hyphens, beginning and ending with a letter or digit";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_rfc_1123_labels() {
        for good in ["a", "web", "web-1", "1a", &"x".repeat(63)] {
            assert!(is_name(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", "ü", "a\u{202e}b", &"x".repeat(64)] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn an_id_of_another_kind_is_refused() {
        assert!(NodeId::parse("nd_01arz3ndektsv4rrffq69g5fav").is_some());
        assert!(NodeId::parse("wl_01arz3ndektsv4rrffq69g5fav").is_none());
        assert!(NodeId::parse("nd_short").is_none());
    }
}
