//! The API of one replica without its port: the envelope and the agent gateway, for whoever carries the messages.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use palisade_contract::{Context, NodeId, Registry, ports::JoinRequest};
use tokio::sync::Semaphore;
use tonic::Status;

use crate::{
    Limits,
    envelope::Envelope,
    gateway::{self, Core, GatewayOptions, Inbound, Outbound, Service, Sessions},
    metrics::Metrics,
    module::ServerModule,
    pki::{Authority, Identity, Live, Material},
    serve::ServeError,
    stop::Stop,
};

/// What it is made of.
pub struct LocalOptions {
    /// The cluster's CA.
    pub authority: Arc<Authority>,
    /// This replica's certificate and key.
    pub identity: Identity,
    /// All modules.
    pub registry: Registry,
    /// The server's own module, as it is registered.
    pub server_module: Arc<ServerModule>,
    /// The ports. `agents` is filled here.
    pub context: Context,
    /// The agent gateway's options.
    pub gateway: GatewayOptions,
    /// Where this replica is reached when its membership does not say.
    pub own_address: String,
}

/// See the module.
pub struct LocalApi {
    service: Service,
    envelope: Arc<Envelope>,
}

impl LocalApi {
    /// Begins what the gateway does beside its sessions; serves at once, so the tables are to be up to date.
    ///
    /// # Errors
    /// See [`ServeError`].
    pub fn start(options: LocalOptions) -> Result<Self, ServeError> {
        let LocalOptions { authority, identity, registry, server_module, context, .. } = options;
        let live = Live::new(Material::new(authority, identity))?;
        let metrics = Metrics::default();
        server_module.attach(&registry, &live);
        let limits = Limits::default();
        let envelope = Envelope::new(&registry, context.clone(), metrics.clone(), &limits);
        let envelope = Arc::new(envelope.map_err(ServeError::Setup)?);
        let core = Core {
            handlers: registry.status_handlers(),
            live,
            sessions: Arc::new(Sessions::new(context.rt.clone(), metrics.clone())),
            metrics,
            options: options.gateway,
            own_address: options.own_address,
            open: Arc::new(AtomicBool::new(true)),
            stopping: Stop::default(),
            draining: Stop::default(),
            drained: AtomicBool::new(false),
            joins: Semaphore::new(gateway::JOINS_MAX),
            context,
        };
        let core = core.begin().map_err(ServeError::Setup)?;
        Ok(Self { service: Service(core), envelope })
    }

    /// For calls of methods.
    #[must_use]
    pub fn envelope(&self) -> &Arc<Envelope> {
        &self.envelope
    }

    /// Redeems a join token; answers the node's id and name. The certificate is the caller's affair.
    ///
    /// # Errors
    /// As over gRPC.
    pub async fn join(&self, request: &JoinRequest) -> Result<(NodeId, String), Status> {
        let joined = self.service.redeem(request).await?;
        Ok((joined.id, joined.name))
    }

    /// Opens the session of a node that holds `key`: what comes up from it, and what goes down.
    ///
    /// # Errors
    /// As over gRPC.
    pub async fn session(
        &self,
        node: NodeId,
        key: String,
        up: Inbound,
    ) -> Result<Outbound, Status> {
        self.service.open(node, key, None, up).await
    }
}

impl Drop for LocalApi {
    fn drop(&mut self) {
        self.service.0.stopping.raise();
        self.service.0.open.store(false, Ordering::Release);
    }
}
