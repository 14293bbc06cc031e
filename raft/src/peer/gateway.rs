//! A gateway's way to the Store service of a replica: mutual TLS, and who is calling.

use std::sync::Arc;

use tonic::{service::interceptor::InterceptedService, transport::Channel};

use super::{
    PeerError, PeerTls, TlsError,
    client::{Introduction, MESSAGE_BYTES_MAX, connect},
    tls::client_config,
    wire::store_client::StoreClient,
};

/// Who a gateway is. Its certificate is the cluster CA's and names `palisade://<lineage>/gateway/<name>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its name, `^[a-z0-9][a-z0-9._-]{0,63}$`.
    pub name: String,
    /// The cluster that it is for.
    pub cluster: String,
    /// The cluster's epoch.
    pub epoch: u64,
}

/// The Store service of one replica, over one connection.
pub type GatewayStore = StoreClient<Called>;

type Called = InterceptedService<Channel, Introduction>;

impl Gateway {
    /// Connects to the replica `replica` at `addr`.
    ///
    /// # Errors
    /// The TLS material or the names cannot be used, or the replica cannot be reached.
    pub async fn connect(
        &self,
        replica: u64,
        addr: &str,
        tls: PeerTls,
    ) -> Result<GatewayStore, PeerError> {
        let (channel, introduction) = self.channel(replica, addr, tls).await?;
        Ok(StoreClient::new(InterceptedService::new(channel, introduction))
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    /// The Peer service, which no gateway may use.
    #[cfg(test)]
    pub(super) async fn peer(
        &self,
        replica: u64,
        addr: &str,
        tls: PeerTls,
    ) -> Result<super::wire::peer_client::PeerClient<Called>, PeerError> {
        let (channel, introduction) = self.channel(replica, addr, tls).await?;
        let called = InterceptedService::new(channel, introduction);
        Ok(super::wire::peer_client::PeerClient::new(called))
    }

    async fn channel(
        &self,
        replica: u64,
        addr: &str,
        tls: PeerTls,
    ) -> Result<(Channel, Introduction), PeerError> {
        let unusable = |error: &TlsError| PeerError::Unreachable(crate::fault::chain(error));
        let config = client_config(tls).map_err(|error| unusable(&error))?;
        let from = format!("gateway/{}", self.name);
        let caller = Introduction::new(&self.cluster, self.epoch, &from)
            .map_err(|error| PeerError::Unreachable(error.to_string()))?;
        Ok((
            connect(replica, addr, Arc::new(move || config.clone()), Arc::default(), None).await?,
            caller,
        ))
    }
}
