//! Addresses of replicas.

use std::fmt;

/// Why an address cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// There is no plaintext port.
    #[error("{0:?} has no TLS: replicas have no plaintext port; write https://host:port")]
    Plain(String),
    /// It is not `https://host:port`.
    #[error("{0:?} is not an address: write host:port or https://host:port")]
    Malformed(String),
}

/// A replica's API: `https://host:port`, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

impl Address {
    /// Parses `host:port` or `https://host:port`.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let text = text.trim();
        if text.starts_with("http://") {
            return Err(AddressError::Plain(text.to_owned()));
        }
        let rest = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
        let malformed = || AddressError::Malformed(text.to_owned());
        let (host, port) = rest.rsplit_once(':').ok_or_else(malformed)?;
        let port: u16 = port.parse().map_err(|_| malformed())?;
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let clean = |c: char| c.is_ascii_alphanumeric() || "-._:".contains(c);
        let bracketed = host.starts_with('[') && host.ends_with(']');
        if bare.is_empty()
            || port == 0
            || !bare.chars().all(clean)
            || bare.contains(':') != bracketed
        {
            return Err(malformed());
        }
        Ok(Self(format!("https://{host}:{port}")))
    }

    /// Parses addresses with commas or spaces between them.
    ///
    /// # Errors
    /// See [`AddressError`].
    pub fn parse_list(text: &str) -> Result<Vec<Self>, AddressError> {
        text.split([',', ' ']).filter(|part| !part.is_empty()).map(Self::parse).collect()
    }

    /// `host:port`.
    #[must_use]
    pub fn host_port(&self) -> &str {
        self.0.strip_prefix("https://").unwrap_or(&self.0)
    }

    /// An address of a stub that speaks plain HTTP.
    #[cfg(test)]
    pub(crate) fn plain(port: u16) -> Self {
        Self(format!("http://127.0.0.1:{port}"))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_addresses() {
        for (text, address) in [
            ("127.0.0.1:7401", "https://127.0.0.1:7401"),
            ("https://a.example:7401/", "https://a.example:7401"),
            ("[::1]:7401", "https://[::1]:7401"),
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), address);
        }
        assert_eq!(Address::parse_list("a:1, b:2").unwrap().len(), 2);
    }

    #[test]
    fn plaintext_and_junk_are_refused() {
        assert!(matches!(Address::parse("http://a:1"), Err(AddressError::Plain(_))));
        for text in ["", "a", "a:", "a:0", "a:99999", ":1", "a b:1", "::1:7", "https://u@h:1/x"] {
            assert!(matches!(Address::parse(text), Err(AddressError::Malformed(_))), "{text}");
        }
    }
}
