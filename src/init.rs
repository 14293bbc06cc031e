//! `palisade init`: a new cluster on paper: its CA, its replicas' directories, its first token.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use palisade_api::pki::{Authority, PkiError};

use palisade_raft::backup::BackupKey;

use crate::{
    context_file::{Context, Secret},
    edge,
    life::{Life, write_replicas},
    replica_dir::{BootstrapFile, IDENTITY, JOINED, MemberConfig, STARTED},
    secret::{NewSecret, token_id},
};

/// One replica to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReplica {
    /// Its id.
    pub id: u64,
    /// The host under which it is reached: a name or an IP.
    pub host: String,
    /// Its port for the other replicas.
    pub peer_port: u16,
    /// Its port for clients and agents.
    pub api_port: u16,
}

/// What `init` needs.
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// Where the replicas' directories are made; empty, or not there yet.
    pub dir: PathBuf,
    /// The replicas: an odd number, so that one more than half can agree.
    pub replicas: Vec<NewReplica>,
    /// The name of the context that leads to the cluster.
    pub context: String,
    /// Milliseconds between an agent's heartbeats.
    pub heartbeat_ms: u32,
    /// Milliseconds after which a node whose session is gone is lost.
    pub node_lost_ms: u64,
}

/// So much of what is in the way is named.
const NAMED_MAX: usize = 3;
/// Milliseconds between an agent's heartbeats, unless said otherwise.
pub const HEARTBEAT_MS: u32 = 5_000;
/// Milliseconds after which a node whose session is gone is lost, unless said otherwise.
pub const NODE_LOST_MS: u64 = 30_000;

/// What `init` made.
#[derive(Clone, Debug)]
pub struct Initialised {
    /// The cluster's id.
    pub cluster: String,
    /// Its lineage.
    pub lineage: String,
    /// The pin of its CA.
    pub pin: String,
    /// The replicas' directories, in the order of the replicas.
    pub replicas: Vec<PathBuf>,
    /// The way in, as its first admin. It is stored by the caller, and nowhere else.
    pub context: Context,
}

/// Why a cluster cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// What was asked cannot be.
    #[error("{0}")]
    Invalid(String),
    /// Something is there.
    #[error("{} is not empty: it holds {held}", dir.display())]
    NotEmpty {
        /// The directory.
        dir: PathBuf,
        /// What is there.
        held: String,
    },
    /// The directory cannot be used.
    #[error("cannot use {}", dir.display())]
    Io {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A certificate cannot be made.
    #[error("cannot make the cluster's certificates")]
    Pki(#[from] PkiError),
    /// The state of a replica cannot be written.
    #[error("cannot write the replica's data")]
    Seed(#[from] palisade_raft::offline::OfflineError),
    /// A file cannot be encoded.
    #[error("cannot encode {name}: {reason}")]
    Encode {
        /// The file.
        name: &'static str,
        /// Why.
        reason: String,
    },
}

impl NewReplica {
    /// Parses `ID=HOST:PEERPORT,APIPORT`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no replica: write ID=HOST:PEERPORT,APIPORT, such as 1=10.0.0.1:7411,7401"
            )
        };
        let (id, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (peer, api) = rest.split_once(',').ok_or_else(wrong)?;
        let (host, peer_port) = peer.rsplit_once(':').ok_or_else(wrong)?;
        if !palisade_contract::host::is_host(host) {
            return Err(wrong());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = |text: &str| text.parse().ok().filter(|port| *port != 0).ok_or_else(wrong);
        let id = id.parse().ok().filter(|id| *id != 0).ok_or_else(wrong)?;
        Ok(Self { id, host: host.to_owned(), peer_port: port(peer_port)?, api_port: port(api)? })
    }

    fn addr(&self, port: u16) -> String {
        if self.host.contains(':') {
            format!("[{}]:{port}", self.host)
        } else {
            format!("{}:{port}", self.host)
        }
    }

    /// An IP is listened on as it is; a name may be of any interface.
    pub(crate) fn listen(&self, port: u16) -> SocketAddr {
        let ip = self.host.parse().unwrap_or(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        SocketAddr::new(ip, port)
    }

    /// As the members' list has it.
    pub(crate) fn member(&self) -> MemberConfig {
        MemberConfig {
            id: self.id,
            peer_addr: self.addr(self.peer_port),
            api_addr: self.addr(self.api_port),
        }
    }
}

/// Makes the directories of a new cluster.
///
/// # Errors
/// See [`InitError`].
pub fn init(options: &InitOptions) -> Result<Initialised, InitError> {
    check(&options.replicas)?;
    claim(&options.dir)?;
    let now_ms = edge::wall_ms();
    let (cluster, lineage) = (new_id("cl"), new_id("ln"));
    let authority = Authority::create(&lineage, now_ms)?;
    let secret = NewSecret::generate();
    let bootstrap = BootstrapFile { token_id: token_id(), secret_sha256: secret.sha256() };
    let backup_key = BackupKey::new(edge::random_bytes());
    let members: Vec<MemberConfig> = options.replicas.iter().map(NewReplica::member).collect();
    let life = Life {
        cluster: cluster.clone(),
        lineage: lineage.clone(),
        epoch: 0,
        authority: &authority,
        backup_key: &backup_key,
        replicas: &options.replicas,
        bootstrap: Some(&bootstrap),
        heartbeat_ms: options.heartbeat_ms,
        node_lost_ms: options.node_lost_ms,
    };
    let replicas = write_replicas(&options.dir, &life, now_ms, |_, _| Ok(()))?;
    let context = Context {
        name: options.context.clone(),
        addrs: members.iter().map(|member| format!("https://{}", member.api_addr)).collect(),
        ca_pem: authority.cert_pem().to_owned(),
        token: Secret::new(format!("pal_{}_{}", bootstrap.token_id, secret.reveal())),
    };
    Ok(Initialised { cluster, lineage, pin: authority.pin(), replicas, context })
}

/// Whether these can be the replicas of one cluster.
pub(crate) fn check(replicas: &[NewReplica]) -> Result<(), InitError> {
    let invalid = |reason: String| Err(InitError::Invalid(reason));
    if replicas.len().is_multiple_of(2) {
        return invalid(format!(
            "{} replicas cannot outvote each other better than {}: give 1, 3 or 5",
            replicas.len(),
            replicas.len().saturating_sub(1)
        ));
    }
    let mut seen = std::collections::BTreeSet::new();
    for replica in replicas {
        let id = format!("replica id {}", replica.id);
        let (peer, api) = (replica.addr(replica.peer_port), replica.addr(replica.api_port));
        if palisade_contract::host::is_unspecified(&replica.host) {
            return invalid(format!(
                "{peer} is where to listen, and nobody is reached there: give a name or an IP"
            ));
        }
        for thing in [id, peer, api] {
            if !seen.insert(thing.clone()) {
                return invalid(format!("{thing} is given twice"));
            }
        }
    }
    Ok(())
}

/// Whether this is a replica's directory that was begun and not finished (`LIFE-1`), and that no replica has run on.
fn is_half_made(dir: &Path) -> bool {
    let has = |name: &str| dir.join(name).exists();
    has("pki") && ![IDENTITY, STARTED, JOINED].into_iter().any(has)
}

/// Takes a directory that is empty, or not there yet.
pub(crate) fn claim(dir: &Path) -> Result<(), InitError> {
    let io_error = |source| InitError::Io { dir: dir.to_owned(), source };
    fs::create_dir_all(dir).map_err(io_error)?;
    let entries: Result<Vec<_>, _> = fs::read_dir(dir).map_err(io_error)?.collect();
    let mut names: Vec<String> = entries
        .map_err(io_error)?
        .into_iter()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        // Whoever looked at a directory that was none has left it there.
        .filter(|name| name != "LOCK")
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    names.sort();
    let more = names.len().saturating_sub(NAMED_MAX);
    names.truncate(NAMED_MAX);
    for name in &mut names {
        if is_half_made(&dir.join(&*name)) {
            name.push_str(" (begun and never finished, it may be removed)");
        }
    }
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let held = format!("{}{more}", names.join(", "));
    Err(InitError::NotEmpty { dir: dir.to_owned(), held })
}

/// A new id, such as `cl_…`.
pub(crate) fn new_id(prefix: &str) -> String {
    let random = u128::from_le_bytes(edge::random_bytes());
    format!("{prefix}_{}", ulid::Ulid::from_parts(edge::wall_ms(), random)).to_lowercase()
}

impl From<InitError> for crate::output::Failure {
    fn from(error: InitError) -> Self {
        use crate::output::{Exit, failure::chain};
        let text = chain(&error);
        match error {
            InitError::Invalid(_) => Self::usage(text),
            InitError::NotEmpty { .. } => Self::new(Exit::Conflict, text)
                .hint("give another directory: nothing is made over something else"),
            error => Self::new(Exit::of_cause(&error), text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;
    use palisade_state::ReplicaId;

    use crate::replica_dir::ReplicaDir;

    fn options(dir: PathBuf) -> InitOptions {
        let replica = |id: u16| NewReplica {
            id: id.into(),
            host: "127.0.0.1".into(),
            peer_port: 7410 + id,
            api_port: 7400 + id,
        };
        InitOptions {
            dir,
            replicas: vec![replica(1), replica(2), replica(3)],
            context: "t".into(),
            heartbeat_ms: HEARTBEAT_MS,
            node_lost_ms: NODE_LOST_MS,
        }
    }

    #[test]
    fn what_is_made_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let made = init(&options(dir.path().join("cluster"))).unwrap();
        assert_eq!(made.replicas.len(), 3);
        let second = ReplicaDir::read(&made.replicas[1]).unwrap();
        assert_eq!(second.identity.replica, ReplicaId(2));
        let key = |dir: &PathBuf| BackupKey::load(&dir.join("pki/backup.key")).unwrap();
        assert_eq!(key(&made.replicas[0]), key(&made.replicas[1]), "one key for the cluster");
        assert_eq!((second.identity.epoch, &second.identity.lineage), (0, &made.lineage));
        assert_eq!(second.member().unwrap().api_addr, "127.0.0.1:7402");
        assert_eq!(second.config.members.len(), 3);
        let id = second.bootstrap.as_ref().unwrap().token_id.clone();
        assert!(made.context.token.reveal().starts_with(&format!("pal_{id}_")));
        for key in ["ca.key", "replica.key"] {
            assert_eq!(fs::metadata(second.pki(key)).unwrap().mode() & 0o777, 0o600);
        }
        Authority::load(&second.pki("ca.pem"), &second.pki("ca.key")).unwrap();
    }

    #[test]
    fn nobody_is_reached_at_an_address_to_listen_on() {
        for host in ["0.0.0.0", "[::]"] {
            let host = host.to_owned();
            let error =
                check(&[NewReplica { id: 1, host, peer_port: 1, api_port: 2 }]).unwrap_err();
            assert!(error.to_string().contains("is where to listen"), "{error}");
        }
    }

    #[test]
    fn a_directory_with_something_in_it_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("LOCK"), "").unwrap();
        claim(dir.path()).unwrap();
        fs::write(dir.path().join("precious"), "x").unwrap();
        let error = init(&options(dir.path().to_owned())).unwrap_err();
        assert!(matches!(error, InitError::NotEmpty { .. }), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_was_begun_and_never_finished_is_named_and_what_has_run_is_not() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["replica-1", "replica-2", "replica-3"] {
            fs::create_dir_all(dir.path().join(name).join("pki")).unwrap();
        }
        fs::write(dir.path().join("replica-1").join(IDENTITY), "{}").unwrap();
        fs::write(dir.path().join("replica-3").join(STARTED), "").unwrap();
        let error = claim(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains(
                "replica-1, replica-2 (begun and never finished, it may be removed), replica-3"
            ),
            "{error}"
        );
        assert!(!error.contains("replica-3 ("), "what has voted is never called half: {error}");
    }

    #[test]
    fn replicas_are_parsed_and_counted() {
        let one = NewReplica::parse("1=a.example:7411,7401").unwrap();
        assert_eq!(one.member().peer_addr, "a.example:7411");
        assert_eq!(one.listen(7401).to_string(), "0.0.0.0:7401");
        let six = NewReplica::parse("6=[::1]:1,2").unwrap();
        assert_eq!(six.member().api_addr, "[::1]:2");
        for bad in ["", "1", "1=a", "1=a:1", "0=a:1,2", "1=:1,2", "1=a:0,2", "x=a:1,2"] {
            assert!(NewReplica::parse(bad).is_err(), "{bad}");
        }
        let mut even = options(PathBuf::new());
        even.replicas.pop();
        assert!(init(&even).unwrap_err().to_string().contains("give 1, 3 or 5"));
    }
}
