//! Whether the other replicas can be reached: who still has a quorum needs no recovery.

use std::{
    io,
    net::{TcpStream, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use palisade_api::pki::{Authority, Identity, client_config, replica_name};
use rustls::{ClientConnection, pki_types::ServerName};

/// How long one peer is tried.
const LIMIT: Duration = Duration::from_secs(2);

/// What came of trying to reach a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It is there: it has a certificate of this lineage for its id.
    Answers,
    /// It is not; why.
    Silent(String),
}

/// Tries to reach a replica on its peer address. It blocks.
#[must_use]
pub fn reach(id: u64, peer_addr: &str, authority: &Authority, identity: &Identity) -> Reach {
    match shake_hands(id, peer_addr, authority, identity) {
        Ok(()) => Reach::Answers,
        Err(error) => Reach::Silent(error.to_string()),
    }
}

fn shake_hands(
    id: u64,
    peer_addr: &str,
    authority: &Authority,
    identity: &Identity,
) -> io::Result<()> {
    let config = client_config(&[authority.cert_der().clone()], Some(identity));
    let config = config.map_err(io::Error::other)?;
    let name = ServerName::try_from(replica_name(id)).map_err(io::Error::other)?;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for addr in peer_addr.to_socket_addrs()? {
        let mut tcp = match TcpStream::connect_timeout(&addr, LIMIT) {
            Ok(tcp) => tcp,
            Err(error) => {
                last = error;
                continue;
            }
        };
        tcp.set_read_timeout(Some(LIMIT))?;
        tcp.set_write_timeout(Some(LIMIT))?;
        let connection = ClientConnection::new(Arc::clone(&config), name.clone());
        let mut connection = connection.map_err(io::Error::other)?;
        while connection.is_handshaking() {
            connection.complete_io(&mut tcp)?;
        }
        return Ok(());
    }
    Err(last)
}
