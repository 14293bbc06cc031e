//! One client for each peer and purpose.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    peer::{PeerApi, Purpose, Transport},
    types::Node,
};

type Clients = BTreeMap<(u64, Purpose), (String, Arc<dyn PeerApi>)>;

/// The clients of all peers, made once.
pub(crate) struct Peers {
    transport: Arc<dyn Transport>,
    clients: Mutex<Clients>,
}

impl Peers {
    pub(crate) fn new(transport: Arc<dyn Transport>) -> Self {
        Self { transport, clients: Mutex::default() }
    }

    /// The client for a peer; a new one when its address has changed.
    pub(crate) fn get(&self, peer: u64, node: &Node, purpose: Purpose) -> Arc<dyn PeerApi> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((addr, client)) = clients.get(&(peer, purpose))
            && *addr == node.peer_addr
        {
            return client.clone();
        }
        let client = self.transport.peer(peer, &node.peer_addr, purpose);
        clients.insert((peer, purpose), (node.peer_addr.clone(), client.clone()));
        client
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }
}
