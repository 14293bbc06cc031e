//! Contexts: which cluster is meant, how it is recognised, and as whom it is asked.
//!
//! # Invariants
//! - `CTX-1` The file is written with mode 0600 and is not read when others may read it.
//! - `CTX-2` A flag wins over the environment, the environment over the file.

use std::{
    fmt, fs,
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::client::{Address, AddressError};

/// Names the file.
pub const FILE_VARIABLE: &str = "PALISADE_CONTEXT_FILE";

/// A secret, shown by nothing.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// One cluster as one principal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// Its name.
    pub name: String,
    /// All replicas, `https://host:port`.
    pub addrs: Vec<String>,
    /// The cluster's CA.
    pub ca_pem: String,
    /// The API token.
    #[serde(default)]
    pub token: Secret,
}

/// All contexts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contexts {
    /// The one that is used when none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// They.
    #[serde(default, rename = "context", skip_serializing_if = "Vec::is_empty")]
    pub contexts: Vec<Context>,
}

/// Why there is no context.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// Others may read the file.
    #[error("{} has mode {mode:04o}: others can read the tokens in it", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file cannot be read or written.
    #[error("cannot {op} {}", path.display())]
    Io {
        /// What was tried.
        op: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The file cannot be understood.
    #[error("{} is not a context file: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// There is no such context.
    #[error("there is no context {name:?} in {}", path.display())]
    Unknown {
        /// The name.
        name: String,
        /// The file.
        path: PathBuf,
        /// Those that there are.
        known: Vec<String>,
    },
    /// Nothing says which cluster is meant.
    #[error("no cluster is chosen: there is no current context in {}", path.display())]
    NoneChosen {
        /// The file.
        path: PathBuf,
    },
    /// A certificate is missing.
    #[error("the cluster's CA is not known, so its replicas cannot be recognised")]
    NoCa,
    /// There is no folder for the file.
    #[error(
        "neither {FILE_VARIABLE}, XDG_CONFIG_HOME nor HOME is set, so there is no place for contexts"
    )]
    NoPlace,
    /// An address cannot be.
    #[error(transparent)]
    Address(#[from] AddressError),
}

/// What the flags and the environment say; flags win.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// `--context-file` or `PALISADE_CONTEXT_FILE`.
    pub file: Option<PathBuf>,
    /// `--context` or `PALISADE_CONTEXT`.
    pub context: Option<String>,
    /// `--addr` or `PALISADE_ADDR`.
    pub addr: Option<String>,
    /// `PALISADE_TOKEN`.
    pub token: Option<String>,
    /// `--token-file`.
    pub token_file: Option<PathBuf>,
    /// `--cacert` or `PALISADE_CACERT`.
    pub cacert: Option<PathBuf>,
}

/// What a request needs.
#[derive(Clone, Debug)]
pub struct Resolved {
    /// The context's name, if one was used.
    pub name: Option<String>,
    /// The replicas.
    pub addresses: Vec<Address>,
    /// The context that named them, unless a flag did.
    pub addresses_of: Option<String>,
    /// The CA.
    pub ca_pem: String,
    /// The token.
    pub token: Option<Secret>,
}

/// Where contexts are kept when no flag says so.
///
/// # Errors
/// Nothing names a folder.
pub fn default_path() -> Result<PathBuf, ContextError> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(path) = set(FILE_VARIABLE) {
        return Ok(path.into());
    }
    let folder = match (set("XDG_CONFIG_HOME"), set("HOME")) {
        (Some(folder), _) => PathBuf::from(folder),
        (None, Some(home)) if cfg!(target_os = "macos") => {
            PathBuf::from(home).join("Library/Application Support")
        }
        (None, Some(home)) => PathBuf::from(home).join(".config"),
        (None, None) => return Err(ContextError::NoPlace),
    };
    Ok(folder.join("palisade/contexts.toml"))
}

impl Contexts {
    /// Reads the file; none is there: no contexts.
    ///
    /// # Errors
    /// See [`ContextError`].
    pub fn load(path: &Path) -> Result<Self, ContextError> {
        let io_error = |source| ContextError::Io { op: "read", path: path.to_owned(), source };
        let file = match fs::File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(io_error(error)),
        };
        let mode = file.metadata().map_err(io_error)?.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(ContextError::Exposed { path: path.to_owned(), mode });
        }
        let text = io::read_to_string(file).map_err(io_error)?;
        toml::from_str(&text).map_err(|error| ContextError::Malformed {
            path: path.to_owned(),
            reason: error.message().to_owned(),
        })
    }

    /// Writes the file: whole, or not at all.
    ///
    /// # Errors
    /// See [`ContextError`].
    pub fn save(&self, path: &Path) -> Result<(), ContextError> {
        let io_error = |source| ContextError::Io { op: "write", path: path.to_owned(), source };
        let text = toml::to_string(self).map_err(|error| io_error(io::Error::other(error)))?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(io_error)?;
        }
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = PathBuf::from(name);
        let _ = fs::remove_file(&temporary);
        write_private(&temporary, text.as_bytes()).map_err(io_error)?;
        fs::rename(&temporary, path).map_err(io_error)
    }

    /// The context with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Context> {
        self.contexts.iter().find(|context| context.name == name)
    }

    /// Adds or replaces a context.
    pub fn put(&mut self, context: Context) {
        self.remove(&context.name);
        self.contexts.push(context);
        self.contexts.sort_by(|one, other| one.name.cmp(&other.name));
    }

    /// Adds or replaces the context of a cluster that was just made. It becomes the current one only if there is none:
    /// whoever works on a cluster goes on with that one. Answers what to say about it.
    pub fn put_new(&mut self, context: Context) -> Option<String> {
        let name = context.name.clone();
        self.put(context);
        let current = self.current.get_or_insert_with(|| name.clone());
        (*current != name).then(|| {
            format!("the current context is still {current:?}; to change that: palisade context use {name}")
        })
    }

    /// Removes a context; answers whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.contexts.len();
        self.contexts.retain(|context| context.name != name);
        self.contexts.len() != before
    }

    /// The context with this name, or an error that says which there are.
    ///
    /// # Errors
    /// There is none.
    pub fn named(&self, name: &str, path: &Path) -> Result<&Context, ContextError> {
        self.get(name).ok_or_else(|| ContextError::Unknown {
            name: name.to_owned(),
            path: path.to_owned(),
            known: self.contexts.iter().map(|context| context.name.clone()).collect(),
        })
    }
}

/// Writes a new file that only its owner can read, durably.
///
/// # Errors
/// It is there already, or the disk refuses.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

impl Overrides {
    /// The file that is meant.
    ///
    /// # Errors
    /// Nothing names a folder.
    pub fn path(&self) -> Result<PathBuf, ContextError> {
        self.file.clone().map_or_else(default_path, Ok)
    }

    /// Puts flags, environment and file together.
    ///
    /// # Errors
    /// See [`ContextError`].
    pub fn resolve(&self) -> Result<Resolved, ContextError> {
        let context = self.context()?;
        let addresses = match (&self.addr, &context) {
            (Some(list), _) => Address::parse_list(list)?,
            (None, Some(context)) => {
                context.addrs.iter().map(|addr| Address::parse(addr)).collect::<Result<_, _>>()?
            }
            (None, None) => return Err(ContextError::NoneChosen { path: self.path()? }),
        };
        let read = |path: &Path| {
            fs::read_to_string(path).map_err(|source| ContextError::Io {
                op: "read",
                path: path.to_owned(),
                source,
            })
        };
        let ca_pem = match (&self.cacert, &context) {
            (Some(path), _) => read(path)?,
            (None, Some(context)) => context.ca_pem.clone(),
            (None, None) => return Err(ContextError::NoCa),
        };
        let token = match (&self.token_file, &self.token) {
            (Some(path), _) => Some(Secret::new(read(path)?.trim())),
            (None, Some(token)) => Some(Secret::new(token.trim())),
            (None, None) => context
                .as_ref()
                .map(|context| context.token.clone())
                .filter(|token| !token.reveal().is_empty()),
        };
        let name = context.map(|context| context.name);
        let addresses_of = name.clone().filter(|_| self.addr.is_none());
        Ok(Resolved { name, addresses, addresses_of, ca_pem, token })
    }

    fn context(&self) -> Result<Option<Context>, ContextError> {
        // With an address and a CA nothing of the file is needed, so that nothing of it can fail.
        if self.context.is_none() && self.addr.is_some() && self.cacert.is_some() {
            return Ok(None);
        }
        let path = self.path()?;
        let contexts = Contexts::load(&path)?;
        match self.context.as_ref().or(contexts.current.as_ref()) {
            Some(name) => Ok(Some(contexts.named(name, &path)?.clone())),
            None => Ok(None),
        }
    }
}

impl From<ContextError> for crate::output::Failure {
    fn from(error: ContextError) -> Self {
        use crate::output::{Exit, failure::chain};
        let text = chain(&error);
        match error {
            ContextError::Exposed { path, .. } => {
                Self::usage(text).hint(format!("run: chmod 600 {}", path.display()))
            }
            ContextError::Unknown { name, known, .. } => {
                let near = known
                    .iter()
                    .max_by(|a, b| strsim::jaro(a, &name).total_cmp(&strsim::jaro(b, &name)))
                    .filter(|near| strsim::jaro(near, &name) > 0.7);
                let hint = match near {
                    Some(near) => format!("did you mean {near:?}?"),
                    None if known.is_empty() => "`palisade dev` and `palisade init` make contexts".into(),
                    None => format!("known: {}", known.join(", ")),
                };
                Self::new(Exit::NotFound, text).hint(hint)
            }
            ContextError::NoneChosen { .. } => Self::usage(text).hint(
                "start one with `palisade dev`, choose one with `palisade context use NAME`, or give --addr and --cacert",
            ),
            ContextError::NoCa => Self::usage(text).hint("give --cacert FILE or PALISADE_CACERT"),
            _ => Self::usage(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::output::Failure;

    fn sample() -> Contexts {
        let context = |name: &str| Context {
            name: name.into(),
            addrs: vec![format!("https://{name}:7401")],
            ca_pem: "PEM".into(),
            token: Secret::new("pal_a_b"),
        };
        Contexts { current: Some("dev".into()), contexts: vec![context("dev"), context("prod")] }
    }

    fn saved() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/contexts.toml");
        sample().save(&path).unwrap();
        (dir, path)
    }

    #[test]
    fn what_is_saved_is_private_and_read_back() {
        let (_dir, path) = saved();
        assert_eq!(Contexts::load(&path).unwrap(), sample());
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_new_cluster_does_not_take_the_place_of_the_one_that_is_worked_on() {
        let trial = |name: &str| Context { name: name.into(), ..sample().contexts[0].clone() };
        let mut contexts = sample();
        let said = contexts.put_new(trial("trial")).unwrap();
        assert!(said.contains("still \"dev\"") && said.contains("context use trial"), "{said}");
        assert_eq!((contexts.current.as_deref(), contexts.contexts.len()), (Some("dev"), 3));
        assert_eq!(contexts.put_new(trial("dev")), None);
        let mut none = Contexts::default();
        assert_eq!(none.put_new(trial("first")), None);
        assert_eq!(none.current.as_deref(), Some("first"));
    }

    #[test]
    fn a_readable_file_is_refused_with_the_command_to_run() {
        let (_dir, path) = saved();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let failure = Failure::from(Contexts::load(&path).unwrap_err());
        assert!(failure.detail.contains("0640"), "{failure}");
        assert_eq!(failure.hint.as_deref(), Some(&*format!("run: chmod 600 {}", path.display())));
    }

    #[test]
    fn an_override_wins_over_the_file() {
        let (dir, path) = saved();
        let cacert = dir.path().join("ca");
        fs::write(&cacert, "OTHER").unwrap();
        let overrides = Overrides { file: Some(path), ..Overrides::default() };
        let plain = overrides.resolve().unwrap();
        assert_eq!((plain.name.as_deref(), plain.ca_pem.as_str()), (Some("dev"), "PEM"));
        let overrides = Overrides {
            context: Some("prod".into()),
            token: Some("pal_c_d".into()),
            cacert: Some(cacert),
            ..overrides
        };
        let other = overrides.resolve().unwrap();
        assert_eq!(other.addresses[0].to_string(), "https://prod:7401");
        assert_eq!(other.token.unwrap().reveal(), "pal_c_d");
        assert_eq!(other.ca_pem, "OTHER");
    }

    #[test]
    fn without_a_file_the_way_out_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let overrides = Overrides { file: Some(dir.path().join("none")), ..Overrides::default() };
        let failure = Failure::from(overrides.resolve().unwrap_err());
        assert!(failure.hint.unwrap().contains("palisade dev"));
    }

    #[test]
    fn an_unknown_context_names_the_near_one() {
        let (_dir, path) = saved();
        let overrides =
            Overrides { file: Some(path), context: Some("prud".into()), ..Overrides::default() };
        let failure = Failure::from(overrides.resolve().unwrap_err());
        assert_eq!(failure.hint.as_deref(), Some("did you mean \"prod\"?"));
    }

    #[test]
    fn no_token_is_shown_by_debug() {
        assert!(!format!("{:?}", sample()).contains("pal_a_b"));
    }
}
