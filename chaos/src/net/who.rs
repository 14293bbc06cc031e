//! Who is at the other end of a connection: TLS hides it, and on one machine all come from one address.

use std::{fs, net::SocketAddr, sync::Mutex};

use super::Host;

/// Tells which process has a connection.
pub(crate) trait Who: Send + Sync {
    /// The host from which `peer` connected to `local`.
    fn at(&self, peer: SocketAddr, local: SocketAddr) -> Option<Host>;
}

/// By the socket that a process has open, where all are in one network.
#[derive(Default)]
pub(crate) struct BySocket {
    processes: Mutex<Vec<(Host, Process)>>,
}

type Process = Box<dyn Fn() -> Option<u32> + Send + Sync>;

impl BySocket {
    /// `pid` answers the process of `host` at any time.
    pub(crate) fn add(&self, host: Host, pid: impl Fn() -> Option<u32> + Send + Sync + 'static) {
        super::lock(&self.processes).push((host, Box::new(pid)));
    }
}

impl Who for std::sync::Arc<BySocket> {
    fn at(&self, peer: SocketAddr, local: SocketAddr) -> Option<Host> {
        self.as_ref().at(peer, local)
    }
}

impl Who for BySocket {
    fn at(&self, peer: SocketAddr, local: SocketAddr) -> Option<Host> {
        let inode = inode(&fs::read_to_string("/proc/net/tcp").ok()?, peer, local)?;
        let wanted = format!("socket:[{inode}]");
        let processes = super::lock(&self.processes);
        let has = |pid: u32| {
            let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            open.into_iter()
                .filter_map(|entry| fs::read_link(entry.path()).ok())
                .any(|target| target.as_os_str() == wanted.as_str())
        };
        processes.iter().find(|(_, pid)| pid().is_some_and(has)).map(|(host, _)| *host)
    }
}

/// The socket at `from` that is connected to `to`, in `/proc/net/tcp`.
fn inode(table: &str, from: SocketAddr, to: SocketAddr) -> Option<u64> {
    let (from, to) = (hex(from)?, hex(to)?);
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let is_it = fields.nth(1)? == from && fields.next()? == to;
        if is_it { fields.nth(6)?.parse().ok() } else { None }
    })
}

fn hex(address: SocketAddr) -> Option<String> {
    let SocketAddr::V4(address) = address else { return None };
    let ip = u32::from_le_bytes(address.ip().octets());
    Some(format!("{ip:08X}:{:04X}", address.port()))
}

/// By the address, where each has one of its own.
pub(crate) struct ByAddress(pub(crate) fn(std::net::IpAddr) -> Option<Host>);

impl Who for ByAddress {
    fn at(&self, peer: SocketAddr, _: SocketAddr) -> Option<Host> {
        (self.0)(peer.ip())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_process_that_connected_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        let stream = TcpStream::connect(local).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        let who = BySocket::default();
        who.add(Host::Agent(0), || None);
        assert_eq!(who.at(peer, local), None);
        let own = std::process::id();
        who.add(Host::Replica(4), move || Some(own));
        assert_eq!(who.at(peer, local), Some(Host::Replica(4)));
        drop(stream);
    }
}
