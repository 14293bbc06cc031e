//! A place for a replica: its process, its directory and its addresses. Who sits there may change:
//! a replica that is replaced or repaired comes back under another id.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result};

use super::{Binary, Launch, Member, Ports, Volume, commands, tool};

/// Two ports at an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) host: IpAddr,
    pub(crate) ports: Ports,
}

impl Address {
    pub(crate) fn local(ports: Ports) -> Self {
        Self { host: IpAddr::V4(Ipv4Addr::LOCALHOST), ports }
    }

    /// As `--advertise` and `--listen` take it.
    pub(crate) fn flag(&self) -> String {
        format!("{}:{},{}", self.host, self.ports.peer, self.ports.api)
    }

    pub(crate) fn sockets(&self) -> [SocketAddr; 2] {
        [self.ports.peer, self.ports.api].map(|port| SocketAddr::new(self.host, port))
    }
}

/// See the module documentation.
pub(crate) struct Seat {
    /// From 0.
    pub(crate) place: usize,
    /// The replica's id; 0: nobody sits here.
    id: AtomicU64,
    pub(crate) member: Arc<Member>,
    pub(crate) dir: PathBuf,
    /// Where the others look for it.
    pub(crate) advertise: Address,
    /// Where it listens.
    pub(crate) listen: Address,
    /// The file system of its directory, if it has one of its own.
    pub(crate) volume: Option<Volume>,
    /// Held by a fault that nothing else may disturb here.
    pub(crate) busy: tokio::sync::Mutex<()>,
}

/// What a seat is made of.
pub(crate) struct Furnished {
    pub(crate) dir: PathBuf,
    pub(crate) advertise: Address,
    pub(crate) listen: Address,
    pub(crate) volume: Option<Volume>,
    pub(crate) within: Vec<std::ffi::OsString>,
}

impl Seat {
    pub(crate) fn new(
        place: usize,
        id: u64,
        binary: &Binary,
        logs: &Path,
        furnished: Furnished,
    ) -> Self {
        let Furnished { dir, advertise, listen, volume, within } = furnished;
        let name = format!("replica {}", place + 1);
        let launch = Launch {
            program: binary.path().to_owned(),
            args: commands::serve(&dir),
            within,
            env: vec![],
        };
        let log = logs.join(format!("replica-{}.log", place + 1));
        let member = Arc::new(Member::launched(name, launch, log));
        let busy = tokio::sync::Mutex::default();
        Self { place, id: AtomicU64::new(id), member, dir, advertise, listen, volume, busy }
    }

    /// Who sits here.
    pub(crate) fn id(&self) -> Option<u64> {
        Some(self.id.load(Ordering::SeqCst)).filter(|id| *id != 0)
    }

    /// Somebody else sits here now.
    pub(crate) fn seat(&self, id: Option<u64>) {
        self.id.store(id.unwrap_or(0), Ordering::SeqCst);
    }

    /// Takes what is in `made` for its own, and lets it listen where this seat listens.
    pub(crate) async fn move_in(&self, made: &Path) -> Result<()> {
        if made != self.dir {
            std::fs::create_dir_all(&self.dir).context("cannot make a replica's directory")?;
            tool::copy(made, &self.dir).await?;
            std::fs::remove_dir_all(made).context("cannot remove a directory")?;
        }
        listen_at(&self.dir.join("replica.toml"), &self.listen)?;
        // What we copied is to outlive a power cut; what the product writes it syncs itself.
        tool::run("sync", &[&"-f", &self.dir]).await.map(drop)
    }
}

/// Changes where a replica listens, in its configuration.
fn listen_at(path: &Path, listen: &Address) -> Result<()> {
    let text = std::fs::read_to_string(path).context("cannot read a replica's configuration")?;
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (name, socket) in ["peerListen", "apiListen"].into_iter().zip(listen.sockets()) {
        let is_it = |line: &&mut String| line.split('=').next().map(str::trim) == Some(name);
        let line = lines.iter_mut().find(is_it);
        *line.with_context(|| format!("{} has no {name}", path.display()))? =
            format!("{name} = \"{socket}\"");
    }
    let text: String = lines.into_iter().map(|line| line + "\n").collect();
    std::fs::write(path, text).context("cannot write a replica's configuration")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_it_listens_changes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "apiListen = \"127.0.0.1:1\"\npeerListen = \"127.0.0.1:2\"\nheartbeatMs = 7\n";
        std::fs::write(file.path(), text).unwrap();
        listen_at(file.path(), &Address::local(Ports { peer: 5, api: 6 })).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(text.contains("peerListen = \"127.0.0.1:5\""), "{text}");
        assert!(text.contains("apiListen = \"127.0.0.1:6\""), "{text}");
        assert!(text.contains("heartbeatMs = 7"), "{text}");
    }
}
