//! `[webhooks]` in `replica.toml`: where this replica may send events; to be the same on all replicas.

use std::path::PathBuf;

use palisade_events::http::{HttpsOptions, Range};
use serde::{Deserialize, Serialize};

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct WebhooksConfig {
    /// Ranges of addresses that are sent to beside the public ones, such as `10.1.0.0/16`.
    pub allow: Vec<String>,
    /// Whether `http://` is sent to loopback addresses, which `allow` must name too.
    pub plain_to_loopback: bool,
    /// A PEM file of CA certificates that are trusted beside the system's.
    pub ca_file: Option<PathBuf>,
}

impl WebhooksConfig {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// For the module.
    ///
    /// # Errors
    /// A range is none.
    pub(crate) fn options(&self) -> Result<HttpsOptions, String> {
        let allow: Result<Vec<Range>, String> =
            self.allow.iter().map(|range| range.parse()).collect();
        Ok(HttpsOptions {
            allow: allow?,
            plain_to_loopback: self.plain_to_loopback,
            ca_file: self.ca_file.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::replica_dir::read_config;

    #[test]
    fn ranges_are_read_and_what_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replica.toml");
        let read = |webhooks: &str| {
            let text = format!(
                "peerListen = \"127.0.0.1:1\"\napiListen = \"127.0.0.1:2\"\n{webhooks}\n[[members]]\n\
                 id = 1\npeerAddr = \"a:1\"\napiAddr = \"a:2\"\n"
            );
            std::fs::write(&path, text).unwrap();
            read_config(&path).map(|config| config.webhooks).map_err(|error| error.to_string())
        };
        assert!(read("").unwrap().is_default());
        let some = read("webhooks.allow = [\"10.1.0.0/16\", \"::1/128\"]").unwrap();
        assert_eq!(some.options().unwrap().allow.len(), 2);
        assert!(!some.plain_to_loopback);
        let wrong = read("webhooks.allow = [\"10.1.0.0\"]").unwrap_err();
        assert!(wrong.contains("replica.toml") && wrong.contains("10.0.0.0/8"), "{wrong}");
        assert!(read("webhooks.deny = []").is_err());
    }
}
