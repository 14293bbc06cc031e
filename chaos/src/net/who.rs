//! Who is at the other end of a connection: TLS hides it, and on one machine all come from one address.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::{Arc, Mutex},
};

use futures::future::BoxFuture;

use super::Host;
use crate::clock::{self, Clock};

/// Looking up whose sockets there are costs the same for one connection as for all, and grows with
/// the number of those on the machine: it is not done more often than this.
const LOOK_EVERY_MS: u64 = 50;

/// Tells which process has a connection.
pub(crate) trait Who: Send + Sync {
    /// The host from which `peer` connected to `local`.
    fn at(&self, peer: SocketAddr, local: SocketAddr) -> BoxFuture<'_, Option<Host>>;
}

/// By the socket that a process has open, where all are in one network.
#[derive(Default)]
pub(crate) struct BySocket {
    processes: Arc<Mutex<Vec<(Host, Process)>>>,
    /// What was found last, and when that look began. Whoever came before needs no look of its own.
    found: tokio::sync::Mutex<Option<(Clock, Sockets)>>,
}

type Process = Box<dyn Fn() -> Option<u32> + Send + Sync>;

/// Whose is the socket at the first address that is connected to the second one.
type Sockets = BTreeMap<(SocketAddr, SocketAddr), Host>;

impl BySocket {
    /// `pid` answers the process of `host` at any time.
    pub(crate) fn add(&self, host: Host, pid: impl Fn() -> Option<u32> + Send + Sync + 'static) {
        super::lock(&self.processes).push((host, Box::new(pid)));
    }
}

impl Who for Arc<BySocket> {
    fn at(&self, peer: SocketAddr, local: SocketAddr) -> BoxFuture<'_, Option<Host>> {
        self.as_ref().at(peer, local)
    }
}

impl Who for BySocket {
    fn at(&self, peer: SocketAddr, local: SocketAddr) -> BoxFuture<'_, Option<Host>> {
        let asked = Clock::start();
        Box::pin(async move {
            let mut found = self.found.lock().await;
            if let Some((began, sockets)) = &*found {
                if began.elapsed() < asked.elapsed() {
                    return sockets.get(&(peer, local)).copied();
                }
                clock::sleep_ms(LOOK_EVERY_MS.saturating_sub(began.millis())).await;
            }
            let (began, processes) = (Clock::start(), self.processes.clone());
            let looked = clock::aside(move || sockets(&processes)).await;
            let (_, sockets) = found.insert((began, looked.unwrap_or_default()));
            sockets.get(&(peer, local)).copied()
        })
    }
}

/// All sockets of the processes that are known.
fn sockets(processes: &Mutex<Vec<(Host, Process)>>) -> Sockets {
    let running: Vec<(Host, u32)> =
        super::lock(processes).iter().filter_map(|(host, pid)| Some((*host, pid()?))).collect();
    let mut owners = BTreeMap::new();
    for (host, pid) in running {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for link in open.filter_map(|entry| fs::read_link(entry.path()).ok()) {
            let inode =
                link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
            owners.extend(inode.and_then(|inode| Some((inode.parse().ok()?, host))));
        }
    }
    by_address(&fs::read_to_string("/proc/net/tcp").unwrap_or_default(), &owners)
}

/// The sockets in a table like `/proc/net/tcp` that somebody has.
fn by_address(table: &str, owners: &BTreeMap<u64, Host>) -> Sockets {
    let line = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = (fields.nth(1)?, fields.next()?);
        let host = owners.get(&fields.nth(6)?.parse().ok()?)?;
        Some(((address(from)?, address(to)?), *host))
    };
    table.lines().skip(1).filter_map(line).collect()
}

/// An address as the system's table has it.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let ip = u32::from_str_radix(ip, 16).ok()?.to_le_bytes();
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
}

/// By the address, where each has one of its own.
pub(crate) struct ByAddress(pub(crate) fn(std::net::IpAddr) -> Option<Host>);

impl Who for ByAddress {
    fn at(&self, peer: SocketAddr, _: SocketAddr) -> BoxFuture<'_, Option<Host>> {
        Box::pin(std::future::ready((self.0)(peer.ip())))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test]
    async fn the_process_that_connected_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let stream = TcpStream::connect(local).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        let who = BySocket::default();
        who.add(Host::Agent(0), || None);
        assert_eq!(who.at(peer, local).await, None);
        let own = std::process::id();
        who.add(Host::Replica(4), move || Some(own));
        assert_eq!(who.at(peer, local).await, Some(Host::Replica(4)));
        drop(stream);
    }

    /// Each look takes the machine's whole table: many connections at once need only one or two.
    #[tokio::test]
    async fn many_who_ask_at_once_share_a_look() {
        let who = BySocket::default();
        let looks = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = looks.clone();
        who.add(Host::Agent(0), move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            None
        });
        let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
        futures::future::join_all((0..500).map(|_| who.at(nowhere, nowhere))).await;
        let looks = looks.load(std::sync::atomic::Ordering::SeqCst);
        assert!((1..=2).contains(&looks), "{looks}");
    }
}
