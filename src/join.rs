//! A replica that joins a cluster: its directory, made on its own machine, and its first steps.
//!
//! # Invariants
//! - `JOIN-1` A key of a replica never leaves its machine, and the cluster's CA key reaches a replica over the
//!   connection between replicas only, never over REST and never through the log.
//! - `JOIN-2` A directory that was made to join never forms a cluster.

use std::{fs, io, net::SocketAddr, path::Path, sync::Arc};

use palisade_raft::{Identity, JoinError, Joining, Member, Neighbours, PeerTls, Vault};
use palisade_secrets::keyring;
use palisade_state::{ReplicaId, Rt};

use crate::{
    init::{InitError, NewReplica, claim},
    life::{NewFile, encode, flush, io_error, write, write_dir},
    limits_config::LimitsConfig,
    output::{Exit, Failure, Outcome},
    pki_files,
    replica_dir::{HistoryConfig, MemberConfig, ReplicaConfig, ReplicaDir},
    webhooks_config::WebhooksConfig,
};

/// What the replicas of a cluster hold alike, by file name below `pki/`; beside these, the keys of secrets.
const SHARED: [&str; 3] = ["ca.pem", "ca.key", "backup.key"];

/// What the cluster said about the replica that may join.
pub(crate) struct Enrolled {
    /// Who it is.
    pub identity: Identity,
    /// Its certificate, followed by the CA's.
    pub cert_pem: String,
    /// The CA's certificate.
    pub ca_pem: String,
    /// The members that it joins.
    pub members: Vec<MemberConfig>,
}

/// Looks at the place before the cluster is asked for anything.
///
/// # Errors
/// It is not empty, or cannot be made.
pub(crate) fn claim_dir(dir: &Path) -> Result<(), InitError> {
    claim(dir)?;
    // It is made anew with its own mode.
    fs::remove_dir(dir).map_err(io_error(dir))
}

/// The configuration of a replica that joins, but for the members.
pub(crate) fn plain_config(peer_listen: SocketAddr, api_listen: SocketAddr) -> ReplicaConfig {
    ReplicaConfig {
        peer_listen,
        api_listen,
        advertise: None,
        heartbeat_ms: crate::init::HEARTBEAT_MS,
        node_lost_ms: crate::init::NODE_LOST_MS,
        backup: None,
        history: HistoryConfig::default(),
        limits: LimitsConfig::default(),
        webhooks: WebhooksConfig::default(),
        members: vec![],
    }
}

/// Writes the directory of a replica that joins as `me`, whose id the cluster gave; `config` gets its members here.
///
/// # Errors
/// A file cannot be written.
pub(crate) fn write_joining(
    dir: &Path,
    enrolled: &Enrolled,
    key_pem: &str,
    me: MemberConfig,
    mut config: ReplicaConfig,
) -> Result<(), InitError> {
    let id = enrolled.identity.replica.0;
    config.members.clone_from(&enrolled.members);
    // Whoever had its address before is not there any more.
    config.members.retain(|member| member.id != id && member.peer_addr != me.peer_addr);
    config.members.push(MemberConfig { id, ..me });
    let files: Vec<NewFile> = vec![
        ("pki/ca.pem", enrolled.ca_pem.clone().into(), 0o644),
        ("pki/replica.pem", enrolled.cert_pem.clone().into(), 0o644),
        ("pki/replica.key", key_pem.as_bytes().to_vec(), 0o600),
        ("replica.toml", encode("replica.toml", toml::to_string(&config))?, 0o644),
        (crate::replica_dir::JOINED, vec![], 0o644),
    ];
    write_dir(dir, &files)?;
    flush(dir)?;
    // The identity is last: a directory that has one is whole.
    let text = encode("identity.json", serde_json::to_string(&enrolled.identity))?;
    write(dir, &("identity.json", text, 0o644)).map_err(io_error(dir))?;
    flush(dir)
}

/// What a replica knows of the others, from its directory, and where it is reached now.
///
/// # Errors
/// What it is to advertise is not an address.
pub(crate) fn neighbours(dir: &ReplicaDir, advertise: Option<&NewReplica>) -> Outcome<Neighbours> {
    let written = dir.config.advertise.as_deref().map(advertised).transpose();
    let written =
        written.map_err(|why| Failure::usage(format!("advertise in replica.toml: {why}")))?;
    let advertise = advertise.or(written.as_ref()).map(NewReplica::member);
    Ok(Neighbours {
        hints: dir.config.members.iter().map(Member::from).collect(),
        advertise: advertise.map(|member| (member.peer_addr, member.api_addr)),
        vault: Some(vault(dir)),
        revoked: Some(Arc::new(|view| Ok(palisade_pki::refused(view)?))),
    })
}

/// Parses `HOST:PEERPORT,APIPORT`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn advertised(text: &str) -> Result<NewReplica, String> {
    let replica = NewReplica::parse(&format!("1={text}")).map_err(|_| {
        format!("{text:?} is no address: write HOST:PEERPORT,APIPORT, such as 10.0.0.4:7411,7401")
    })?;
    if palisade_contract::host::is_unspecified(&replica.host) {
        return Err(format!(
            "{text:?} is where to listen, and nobody is reached there: give a name or an IP"
        ));
    }
    Ok(replica)
}

/// Parses `IP:PEERPORT,APIPORT`.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn listening(text: &str) -> Result<NewReplica, String> {
    let wrong = || {
        format!(
            "{text:?} is nowhere to listen: write IP:PEERPORT,APIPORT, such as 0.0.0.0:7411,7401; a name goes into \
             --advertise"
        )
    };
    let replica = NewReplica::parse(&format!("1={text}")).map_err(|_| wrong())?;
    replica.host.parse::<std::net::IpAddr>().map(|_| replica).map_err(|_| wrong())
}

fn vault(dir: &ReplicaDir) -> Vault {
    let names = SHARED.into_iter().chain(pki_files::NEXT);
    let paths: Vec<_> = names.map(|name| (name, dir.pki(name))).collect();
    let pki = dir.path.join("pki");
    std::sync::Arc::new(move || {
        let mut found = keyring::files_in(&pki)?;
        for (name, path) in &paths {
            match fs::read(path) {
                Ok(content) => found.push(((*name).to_owned(), content)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    })
}

/// Whether the replica still has to be let in.
pub(crate) fn lacks_secrets(dir: &ReplicaDir) -> bool {
    dir.is_joined() && !dir.pki("ca.key").exists()
}

/// Says hello to the cluster and writes down what it gives; waits for as long as that takes.
///
/// # Errors
/// The cluster refuses for good, or a file cannot be used.
pub(crate) async fn first_steps(dir: &ReplicaDir, rt: Rt, neighbours: &Neighbours) -> Outcome {
    let failed =
        |what: &str, error: &(dyn std::error::Error + 'static)| Failure::caused(what, error);
    let read = |name: &str| {
        let path = dir.pki(name);
        fs::read(&path).map_err(|error| failed(&format!("cannot read {}", path.display()), &error))
    };
    let tls = PeerTls::from_pem(&read("ca.pem")?, &read("replica.pem")?, &read("replica.key")?)
        .map_err(|error| failed("cannot use the replica's certificate", &error))?;
    let joining = Joining {
        rt,
        identity: dir.identity.clone(),
        tls,
        members: neighbours.hints.clone(),
        advertise: neighbours.advertise.clone().unwrap_or_default(),
    };
    let secrets = palisade_raft::join(joining).await.map_err(|error| {
        let failure = failed("cannot join the cluster", &error);
        match error {
            // For good: whoever starts it again and again should not.
            JoinError::Refused { .. } => Failure { exit: Exit::Conflict, ..failure }.hint(format!(
                "this directory is of no use any more: `palisade cluster status` shows who may come, and \
                 `palisade cluster join` makes another one instead of {}",
                dir.path.display()
            )),
            _ => failure,
        }
    })?;
    // The CA's key is last: a replica that has it has the others too.
    let is_known = |name: &str| SHARED.contains(&name) || keyring::id_in(name).is_some();
    let mut secrets: Vec<_> = secrets.into_iter().filter(|(name, _)| is_known(name)).collect();
    secrets.sort_by_key(|(name, _)| name == "ca.key");
    check_pair(&secrets)?;
    for (name, content) in &secrets {
        let path = dir.pki(name);
        write_secret(&path, content)
            .map_err(|error| failed(&format!("cannot write {}", path.display()), &error))?;
    }
    if lacks_secrets(dir) {
        return Err(Failure::new(Exit::Error, "the cluster gave no CA key to this replica"));
    }
    tracing::info!(replica = %dir.identity.replica, "the cluster let this replica in");
    Ok(())
}

/// Whether the CA's certificate and key are of one CA: they may be read while they are being replaced.
fn check_pair(secrets: &[(String, Vec<u8>)]) -> Outcome {
    let text = |wanted: &str| {
        let found = secrets.iter().find(|(name, _)| name == wanted);
        found.and_then(|(_, content)| std::str::from_utf8(content).ok())
    };
    // A release before this one gives no certificate along.
    let (Some(cert), Some(key)) = (text("ca.pem"), text("ca.key")) else { return Ok(()) };
    match palisade_api::pki::Authority::from_pem(cert, key) {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::caused("the cluster's CA is being replaced just now", &error)
            .hint("start this replica again")),
    }
}

/// Writes a file durably under its name, or not at all.
pub(crate) fn write_secret(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let temporary = path.with_extension("tmp");
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), |dir| fs::File::open(dir)?.sync_all())
}

/// The identity that an answer of the cluster gives.
pub(crate) fn identity(cluster: &str, lineage: &str, epoch: u64, id: u64) -> Identity {
    Identity {
        cluster: cluster.to_owned(),
        lineage: lineage.to_owned(),
        epoch,
        replica: ReplicaId(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_joining_directory_is_read_back_and_never_forms_a_cluster() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("r");
        claim_dir(&dir).unwrap();
        let replica = advertised("127.0.0.1:7414,7404").unwrap();
        let member = |id: u64| MemberConfig {
            id,
            peer_addr: format!("127.0.0.1:741{id}"),
            api_addr: format!("127.0.0.1:740{id}"),
        };
        let enrolled = Enrolled {
            identity: identity("cl_1", "ln_1", 2, 77),
            cert_pem: "c".into(),
            ca_pem: "a".into(),
            members: vec![member(1), member(2)],
        };
        let config = plain_config(replica.listen(7414), replica.listen(7404));
        write_joining(&dir, &enrolled, "k", replica.member(), config).unwrap();
        let read = ReplicaDir::read(&dir).unwrap();
        assert!(read.is_joined() && lacks_secrets(&read), "JOIN-2");
        assert_eq!(read.member().unwrap().peer_addr, "127.0.0.1:7414");
        assert_eq!(read.config.members.len(), 3);
        assert!(matches!(claim_dir(&dir), Err(InitError::NotEmpty { .. })));
        let neighbours = neighbours(&read, None).unwrap();
        assert_eq!(neighbours.advertise, None, "the members' list alone moves nobody");
    }

    #[test]
    fn what_is_advertised_is_an_address() {
        assert!(advertised("10.0.0.4:7411,7401").is_ok());
        for bad in ["", "10.0.0.4", "10.0.0.4:7411", "10.0.0.4:0,1", "4=10.0.0.4:1,2"] {
            assert!(advertised(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_nowhere_to_listen() {
        for good in ["0.0.0.0:7411,7401", "[::]:1,2", "10.0.0.4:7411,7401"] {
            assert!(listening(good).is_ok(), "{good}");
        }
        for bad in ["foo:18933,18923", "foo:1,2", "localhost:1,2", "10.0.0:1,2", ""] {
            let why = listening(bad).unwrap_err();
            assert!(why.contains("IP:PEERPORT,APIPORT"), "{why}");
        }
    }
}
