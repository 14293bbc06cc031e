//! What the agent is told by its operator, and where it keeps its files.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use crate::durable;

/// The first and last port that instances may be given when the operator says nothing.
pub const PORTS_DEFAULT: (u16, u16) = (20_000, 29_999);

/// The agent's configuration. `join` stores it, `run` reads it back.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Config {
    /// Where the agent keeps everything.
    #[serde(skip)]
    pub data_dir: PathBuf,
    /// Gateways of replicas, `host:port`; those learned from the control plane win.
    pub servers: Vec<String>,
    /// The node's name; empty: its host name.
    pub node_name: String,
    /// Labels that the inventory carries.
    pub labels: BTreeMap<String, String>,
    /// First port that instances may be given.
    pub port_first: u16,
    /// Last port that instances may be given.
    pub port_last: u16,
    /// Where instances are reached; empty: the address towards the control plane.
    pub address: String,
    /// CPU offered to workloads, in thousandths of a core; 0: all.
    pub offered_cpu_milli: u64,
    /// Memory offered to workloads; 0: all.
    pub offered_memory_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::new(),
            servers: Vec::new(),
            node_name: String::new(),
            labels: BTreeMap::new(),
            port_first: PORTS_DEFAULT.0,
            port_last: PORTS_DEFAULT.1,
            address: String::new(),
            offered_cpu_milli: 0,
            offered_memory_bytes: 0,
        }
    }
}

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A file could not be read or written.
    #[error("cannot use {}: check that it exists and belongs to this user", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file is not a configuration.
    #[error("{} is not a configuration; correct it, or remove it and join again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the decoder said.
        #[source]
        source: serde_json::Error,
    },
    /// A field has a value that cannot be.
    #[error("{field}: {reason}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// Why.
        reason: String,
    },
}

impl Config {
    /// A configuration for `data_dir` with everything else as by default.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self { data_dir: data_dir.into(), ..Self::default() }
    }

    /// What `join` stored in `data_dir`, or the defaults.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub fn load(data_dir: &Path) -> Result<Self, ConfigError> {
        let path = Layout::new(data_dir).config();
        let bytes = durable::read(&path)
            .map_err(|source| ConfigError::Io { path: path.clone(), source })?;
        let mut config = match bytes {
            Some(bytes) => serde_json::from_slice::<Self>(&bytes)
                .map_err(|source| ConfigError::Malformed { path, source })?,
            None => Self::default(),
        };
        data_dir.clone_into(&mut config.data_dir);
        Ok(config)
    }

    /// Stores it in its data directory.
    ///
    /// # Errors
    /// When the disk refuses.
    pub fn save(&self) -> Result<(), ConfigError> {
        let path = Layout::new(&self.data_dir).config();
        let io_error = |source| ConfigError::Io { path: path.clone(), source };
        std::fs::create_dir_all(&self.data_dir).map_err(io_error)?;
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| io_error(error.into()))?;
        durable::write(&path, &bytes, 0o644).map_err(io_error)
    }

    /// Checks what can be checked without doing anything.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), ConfigError> {
        let invalid = |field, reason: String| Err(ConfigError::Invalid { field, reason });
        if self.data_dir.as_os_str().is_empty() {
            return invalid("data dir", "must be given".to_owned());
        }
        if self.port_first == 0 || self.port_first > self.port_last {
            return invalid(
                "port range",
                format!(
                    "{}-{} is empty; give a first port that is not above the last",
                    self.port_first, self.port_last
                ),
            );
        }
        for server in &self.servers {
            if split_server(server).is_none() {
                return invalid("server", format!("`{server}` is not host:port"));
            }
        }
        Ok(())
    }
}

/// The host (without brackets) and port of `host:port` or `[v6]:port`.
pub(crate) fn split_server(server: &str) -> Option<(&str, u16)> {
    let (host, port) = server.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    let port = port.parse().ok()?;
    (!host.is_empty() && port != 0).then_some((host, port))
}

/// The names of the files in the agent's data directory.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub(crate) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    pub(crate) fn config(&self) -> PathBuf {
        self.dir.join("config.json")
    }

    pub(crate) fn identity(&self) -> PathBuf {
        self.dir.join("identity.json")
    }

    pub(crate) fn join_key(&self) -> PathBuf {
        self.dir.join("join-key.json")
    }

    pub(crate) fn renew_key(&self) -> PathBuf {
        self.dir.join("renew-key.pem")
    }

    pub(crate) fn spec(&self) -> PathBuf {
        self.dir.join("nodespec.bin")
    }

    pub(crate) fn commands(&self) -> PathBuf {
        self.dir.join("commands.bin")
    }

    pub(crate) fn instances(&self) -> PathBuf {
        self.dir.join("instances")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_configuration_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::new(dir.path());
        config.servers = vec!["127.0.0.1:7000".into()];
        config.labels.insert("rack".into(), "a".into());
        config.save().unwrap();
        assert_eq!(Config::load(dir.path()).unwrap(), config);
    }

    #[test]
    fn servers_need_a_host_and_a_port() {
        assert_eq!(split_server("[::1]:70"), Some(("::1", 70)));
        assert_eq!(split_server("a.b:70"), Some(("a.b", 70)));
        for bad in ["a", ":70", "a:0", "a:x", ""] {
            assert_eq!(split_server(bad), None, "{bad}");
        }
    }
}
