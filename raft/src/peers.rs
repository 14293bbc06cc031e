//! One client for each peer and purpose.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{
    addresses::Addresses,
    exile::Exile,
    peer::{PeerApi, Purpose, Transport},
    types::Node,
};

type Clients = BTreeMap<(u64, Purpose), (String, Arc<dyn PeerApi>)>;

/// The clients of all peers, made once.
pub(crate) struct Peers {
    transport: Arc<dyn Transport>,
    addresses: Arc<Addresses>,
    exile: Arc<Exile>,
    clients: Mutex<Clients>,
}

impl Peers {
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        addresses: Arc<Addresses>,
        exile: Arc<Exile>,
    ) -> Self {
        Self { transport, addresses, exile, clients: Mutex::default() }
    }

    /// The client for a member.
    pub(crate) fn get(&self, peer: u64, node: &Node, purpose: Purpose) -> Arc<dyn PeerApi> {
        self.addresses.record(peer, &node.peer_addr);
        self.client(peer, purpose)
    }

    /// The client for a peer of which some address is known; a new one when its record has changed.
    pub(crate) fn client(&self, peer: u64, purpose: Purpose) -> Arc<dyn PeerApi> {
        let recorded = self.addresses.recorded(peer);
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((addr, client)) = clients.get(&(peer, purpose))
            && *addr == recorded
        {
            return client.clone();
        }
        let client = self.transport.peer_at(peer, &self.addresses, purpose);
        clients.insert((peer, purpose), (recorded, client.clone()));
        client
    }

    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(crate) fn addresses(&self) -> &Arc<Addresses> {
        &self.addresses
    }

    pub(crate) fn exile(&self) -> &Arc<Exile> {
        &self.exile
    }
}
