//! The session with the control plane: one stream to any replica, found again when it is lost.
//!
//! # Invariants
//! - `SESS-1` The first message up is `Hello`; nothing is taken before `Welcome`.
//! - `SESS-2` Every channel is bounded; log bytes never stand before a heartbeat.
//! - `SESS-3` A session whose replica is silent for three heartbeats is given up.

use std::{sync::Arc, time::Duration};

use futures::future::{Either, select};
use palisade_proto::agent::{Down, Goodbye, Heartbeat, Hello, Inventory, Up, Welcome, down, up};
use tokio::sync::mpsc;

use crate::{
    commands,
    engine::{Drivers, Handle},
    fence::Fence,
    identity::{Identity, IdentityError, IdentityStore},
    logs::LogServer,
    port::{Rt, timeout},
    tls::ConnectError,
};

mod grpc;
mod renew;
mod retry;

pub use grpc::GrpcTransport;
use renew::Renewal;
pub use retry::Servers;

const CONTROL_MAX: usize = 64;
const WELCOME_LIMIT: Duration = Duration::from_secs(5);
const HEARTBEAT_MS_MIN: u32 = 50;
const HEARTBEAT_MS_DEFAULT: u32 = 5_000;
const SILENCE_MIN: Duration = Duration::from_secs(1);
const INVENTORY_EVERY: Duration = Duration::from_secs(60);

/// An open stream.
pub struct Link {
    /// Heartbeats, statuses and everything small.
    pub control: mpsc::Sender<Up>,
    /// Log bytes; waits while the network is busy.
    pub bulk: mpsc::Sender<Up>,
    /// What comes down; an error or the end when the stream is over.
    pub down: mpsc::Receiver<Result<Down, String>>,
}

/// How streams are opened: gRPC in production, messages in the simulator.
pub trait Transport: Send + Sync + 'static {
    /// Opens a stream to one server.
    fn open(
        &self,
        server: String,
        identity: Identity,
    ) -> futures::future::BoxFuture<'static, Result<Link, ConnectError>>;

    /// Asks one server for a certificate for the key of `csr_der`; answers chain and authorities.
    fn renew(
        &self,
        server: String,
        identity: Identity,
        csr_der: Vec<u8>,
    ) -> futures::future::BoxFuture<'static, Result<Renewed, String>>;
}

/// A renewed certificate.
#[derive(Clone, Debug)]
pub struct Renewed {
    /// Leaf first.
    pub chain_der: Vec<Vec<u8>>,
    /// Whom to trust; empty: as before.
    pub ca_der: Vec<Vec<u8>>,
}

/// What a session is made of.
pub struct Session {
    /// Time and tasks.
    pub rt: Rt,
    /// How streams are opened.
    pub transport: Arc<dyn Transport>,
    /// The engine to feed.
    pub engine: Handle,
    /// Who carries commands out.
    pub commands: commands::Handle,
    /// For logs.
    pub drivers: Drivers,
    /// Who this node is.
    pub identity: Identity,
    /// Where the identity is kept.
    pub identities: Arc<dyn IdentityStore>,
    /// This program's version.
    pub agent_version: String,
    /// Random for each start of the agent.
    pub incarnation: String,
    /// The facts, when asked.
    pub inventory: Arc<dyn Fn() -> Inventory + Send + Sync>,
}

/// Why a stream is over.
#[derive(Debug)]
enum End {
    Lost(String),
    Goodbye(Goodbye),
    Renewed,
}

impl Session {
    /// Runs until the control plane revokes this node.
    pub async fn run(mut self) {
        let mut servers = Servers::new(self.identity.servers.clone());
        let mut renewal = Renewal::new(&self.identity, self.rt.as_ref());
        loop {
            let Some(server) = servers.turn() else {
                tracing::error!("no server is known; join again or give --server");
                return;
            };
            let opened = self.transport.open(server.clone(), self.identity.clone()).await;
            let mut wait = None;
            match opened {
                Err(error) => self.not_opened(&server, &error),
                Ok(link) => match self.serve(&server, link, &mut servers, &mut renewal).await {
                    End::Goodbye(goodbye) if goodbye.revoked => return self.revoked(&goodbye),
                    End::Goodbye(goodbye) => {
                        tracing::info!(server, reason = %goodbye.reason, "session ended by the replica");
                        wait = Some(Duration::from_millis(goodbye.reconnect_after_ms));
                    }
                    End::Renewed => servers.stay(),
                    End::Lost(reason) => tracing::warn!(server, reason, "session lost"),
                },
            }
            let pause = servers.pause(self.rt.as_ref());
            self.rt.sleep(wait.map_or(pause, |wait| wait.max(pause))).await;
        }
    }

    fn not_opened(&self, server: &str, error: &ConnectError) {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(server, error = %error, cause, "no session");
        let now_s = i64::try_from(self.rt.wall_ms() / 1000).unwrap_or(i64::MAX);
        if !self.identity.usable(now_s) {
            tracing::error!(
                "the node's certificate has expired; run `palisade agent join` with a new token. Instances go on"
            );
        }
    }

    fn revoked(&mut self, goodbye: &Goodbye) {
        tracing::error!(
            node = %self.identity.node_id,
            reason = %goodbye.reason,
            "the control plane has revoked this node; the agent stops trying. Instances go on; to bring the node back, run `palisade agent join` with a new token"
        );
        self.identity.revoked = true;
        self.save();
    }

    fn save(&self) {
        if let Err(error) = self.identities.save(&self.identity) {
            tracing::error!(error = %error, "identity not stored");
        }
    }

    async fn serve(
        &mut self,
        server: &str,
        mut link: Link,
        servers: &mut Servers,
        renewal: &mut Renewal,
    ) -> End {
        let inventory = (self.inventory)();
        let hello = self.hello(inventory.clone()).await;
        let epoch = Fence::of(hello.fence.as_ref()).epoch;
        if !say(&link, up::Msg::Hello(hello)).await {
            return End::Lost("the stream closed at once".to_owned());
        }
        let welcome = match timeout(self.rt.as_ref(), WELCOME_LIMIT, link.down.recv()).await {
            None => return End::Lost("no welcome in time".to_owned()),
            Some(None) => return End::Lost("the stream closed before the welcome".to_owned()),
            Some(Some(Err(reason))) => return End::Lost(reason),
            Some(Some(Ok(Down { msg: Some(down::Msg::Welcome(welcome)) }))) => welcome,
            Some(Some(Ok(Down { msg: Some(down::Msg::Goodbye(goodbye)) }))) => {
                return End::Goodbye(goodbye);
            }
            Some(Some(Ok(_))) => return End::Lost("the first message was no welcome".to_owned()),
        };
        tracing::info!(server, session = %welcome.session_id, "session open");
        servers.opened();
        self.welcome(&welcome, servers, renewal);
        self.engine.attach(link.control.clone()).await;
        self.commands.attach(link.control.clone(), epoch).await;
        let interval_ms = match welcome.heartbeat_interval_ms {
            0 => HEARTBEAT_MS_DEFAULT,
            ms => ms.max(HEARTBEAT_MS_MIN),
        };
        let beat = Duration::from_millis(u64::from(interval_ms));
        self.exchange(server, link, beat, inventory, (servers, renewal)).await
    }

    async fn hello(&self, inventory: Inventory) -> Hello {
        let snapshot = self.engine.snapshot().await;
        Hello {
            agent_version: self.agent_version.clone(),
            boot_id: inventory.boot_id.clone(),
            agent_incarnation: self.incarnation.clone(),
            inventory: Some(inventory),
            generation: snapshot.generation,
            hash: snapshot.hash,
            fence: Some(snapshot.fence.to_wire()),
            status: Some(snapshot.status),
            takes_commands: true,
        }
    }

    /// Servers and authorities of a welcome replace what the agent knew.
    fn welcome(&mut self, welcome: &Welcome, servers: &mut Servers, renewal: &mut Renewal) {
        let mut changed = self.identity.trust(&welcome.ca_der);
        if !welcome.servers.is_empty() && welcome.servers != self.identity.servers {
            self.identity.servers.clone_from(&welcome.servers);
            servers.replace(welcome.servers.clone());
            changed = true;
        }
        if changed {
            self.save();
        }
        if !self.identity.is_of_the_issuing() {
            renewal.soon(self.rt.as_ref());
        }
    }

    /// Heartbeats up, messages down, until something ends it.
    async fn exchange(
        &mut self,
        server: &str,
        mut link: Link,
        beat: Duration,
        mut told: Inventory,
        (servers, renewal): (&mut Servers, &mut Renewal),
    ) -> End {
        let rt = self.rt.clone();
        let mut logs = LogServer::new(rt.clone(), self.drivers.clone(), link.bulk.clone());
        let silence = (beat * 3).max(SILENCE_MIN);
        let mut seq = 0;
        let mut heard = rt.now();
        let mut next_beat = rt.now() + beat;
        let mut next_inventory = rt.now() + INVENTORY_EVERY;
        loop {
            let now = rt.now();
            if now >= heard + silence {
                return End::Lost(format!("silent for {} ms", silence.as_millis()));
            }
            if now >= next_beat {
                seq += 1;
                next_beat = now + beat;
                if link.control.try_send(message(up::Msg::Heartbeat(Heartbeat { seq }))).is_err() {
                    return End::Lost("the stream takes nothing any more".to_owned());
                }
            }
            if now >= next_inventory {
                next_inventory = now + INVENTORY_EVERY;
                let facts = (self.inventory)();
                if facts != told {
                    told.clone_from(&facts);
                    let _ = link.control.try_send(message(up::Msg::Inventory(facts)));
                }
            }
            if renewal.due(rt.as_ref()) && self.renew(server, renewal).await {
                return End::Renewed;
            }
            let until = next_beat.min(heard + silence).min(next_inventory);
            let until = until.min(now + renewal.wait(rt.as_ref()));
            let sleep = rt.sleep(until.saturating_sub(rt.now()));
            let received = match select(std::pin::pin!(link.down.recv()), sleep).await {
                Either::Left((received, _)) => received,
                Either::Right(_) => continue,
            };
            match received {
                None => return End::Lost("the stream is closed".to_owned()),
                Some(Err(reason)) => return End::Lost(reason),
                Some(Ok(down)) => {
                    heard = rt.now();
                    match down.msg {
                        Some(down::Msg::NodeSpec(spec)) => self.engine.offer(spec).await,
                        Some(down::Msg::Secret(secret)) => self.engine.secret(secret).await,
                        Some(down::Msg::LogRequest(request)) => logs.request(request),
                        Some(down::Msg::LogCancel(cancel)) => logs.cancel(cancel.request_id),
                        Some(down::Msg::Command(command)) => self.commands.command(command).await,
                        Some(down::Msg::CommandQuery(query)) => self.commands.query(query).await,
                        Some(down::Msg::CommandTaken(taken)) => self.commands.taken(taken).await,
                        Some(down::Msg::Goodbye(goodbye)) => return End::Goodbye(goodbye),
                        // The replicas are others by now.
                        Some(down::Msg::Welcome(welcome)) => {
                            self.welcome(&welcome, servers, renewal)
                        }
                        // An unknown message is of a later version, and is not for us.
                        Some(down::Msg::HeartbeatAck(_)) | None => {}
                    }
                }
            }
        }
    }

    /// Whether there is a new certificate, so that the session is to be opened anew.
    async fn renew(&mut self, server: &str, renewal: &mut Renewal) -> bool {
        let renewed = self.ask_for_renewal(server, renewal).await;
        match renewed {
            Ok(identity) => {
                tracing::info!(node = %identity.node_id, "certificate renewed");
                self.identity = identity;
                *renewal = Renewal::new(&self.identity, self.rt.as_ref());
                true
            }
            Err(reason) => {
                tracing::warn!(server, reason, "certificate not renewed, tried again later");
                renewal.failed(self.rt.as_ref());
                false
            }
        }
    }

    async fn ask_for_renewal(&self, server: &str, renewal: &Renewal) -> Result<Identity, String> {
        let describe = |error: IdentityError| error.to_string();
        let key = self.identities.renewal_key(renewal.purpose()).map_err(describe)?;
        let csr =
            crate::identity::signing_request(&key, &self.identity.node_name).map_err(describe)?;
        let work = self.transport.renew(server.to_owned(), self.identity.clone(), csr);
        let renewed = timeout(self.rt.as_ref(), Duration::from_secs(15), work)
            .await
            .unwrap_or_else(|| Err("no answer in time".to_owned()))?;
        let mut identity = self.identity.clone();
        identity.replace(&renewed.chain_der, &renewed.ca_der, &key).map_err(describe)?;
        self.identities.save(&identity).map_err(describe)?;
        self.identities.renewed();
        Ok(identity)
    }
}

fn message(msg: up::Msg) -> Up {
    Up { msg: Some(msg) }
}

async fn say(link: &Link, msg: up::Msg) -> bool {
    link.control.send(message(msg)).await.is_ok()
}
