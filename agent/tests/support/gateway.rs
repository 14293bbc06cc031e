//! A gateway that does as it is told, over real TLS.

use std::{
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
};

use futures::{Stream, StreamExt};
use palisade_agent::Pin as KeyPin;
use palisade_proto::agent::{
    Down, Goodbye, HeartbeatAck, Hello, JoinRequest, JoinResponse, LogRequest, NodeSpec,
    RenewRequest, RenewResponse, Up, Welcome, down,
    gateway_server::{Gateway, GatewayServer},
    up,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, PublicKeyData, SanType,
};
use tokio::{net::TcpListener, sync::mpsc};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Certificate, Identity, Server, ServerTlsConfig},
};

use super::spawn;

/// A certificate authority.
pub struct Ca {
    pub cert: rcgen::Certificate,
    issuer: Issuer<'static, KeyPair>,
    spki: Vec<u8>,
}

impl Ca {
    pub fn new() -> Arc<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let spki = key.subject_public_key_info();
        let cert = params.self_signed(&key).unwrap();
        Arc::new(Self { cert, issuer: Issuer::new(params, key), spki })
    }

    pub fn pin(&self) -> String {
        KeyPin::of_spki(&self.spki).to_string()
    }

    /// A server's chain and key, in PEM.
    fn server(&self, shown_ca: &Self) -> Identity {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate().unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        Identity::from_pem(leaf.pem() + &shown_ca.cert.pem(), key.serialize_pem())
    }

    /// A node's leaf; an old one has lived for most of its life already.
    fn node(&self, csr: &[u8], old: bool) -> Vec<u8> {
        let mut csr = CertificateSigningRequestParams::from_der(&csr.to_vec().into()).unwrap();
        csr.params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        csr.params.subject_alt_names =
            vec![SanType::URI("palisade://lineage/node/n1".try_into().unwrap())];
        csr.params.not_before = rcgen::date_time_ymd(if old { 1990 } else { 2024 }, 1, 1);
        csr.params.not_after = rcgen::date_time_ymd(if old { 2040 } else { 2900 }, 1, 1);
        csr.signed_by(&self.issuer).unwrap().der().to_vec()
    }
}

/// How the gateway behaves.
#[derive(Clone, Default)]
pub struct Script {
    /// What joins are answered before they succeed.
    pub join_refusals: Vec<Status>,
    /// Node certificates have lived for most of their life.
    pub old_certificates: bool,
    /// The spec that each session gets.
    pub spec: Option<NodeSpec>,
    /// What each session asks for once the spec is there.
    pub logs: Option<LogRequest>,
    /// Ends each session after the welcome.
    pub goodbye: Option<Goodbye>,
    /// Servers that the welcome names.
    pub servers: Vec<String>,
    /// Servers that another welcome names, if any, at each heartbeat from now on.
    pub later_servers: Vec<String>,
    /// The heartbeat interval of the welcome.
    pub heartbeat_ms: u32,
    /// Heartbeats are not answered.
    pub silent: bool,
}

/// What the gateway has seen.
#[derive(Default)]
pub struct Seen {
    pub joins: Vec<(JoinRequest, Vec<u8>)>,
    pub hellos: Vec<(Hello, Vec<u8>)>,
    pub ups: Vec<Up>,
    pub renewals: usize,
}

struct Inner {
    ca: Arc<Ca>,
    script: Mutex<Script>,
    seen: Mutex<Seen>,
}

/// A running gateway; dropping it closes it and its connections.
pub struct Fake {
    pub address: String,
    inner: Arc<Inner>,
    task: tokio::task::AbortHandle,
    down: tokio::sync::watch::Sender<bool>,
}

impl Fake {
    pub async fn start(ca: &Arc<Ca>, script: Script) -> Self {
        Self::impostor(ca, ca, script).await
    }

    /// Its leaf is signed by `ca`, but it shows `shown` as the authority.
    pub async fn impostor(ca: &Arc<Ca>, shown: &Ca, script: Script) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let inner =
            Arc::new(Inner { ca: ca.clone(), script: Mutex::new(script), seen: Mutex::default() });
        let tls = ServerTlsConfig::new()
            .identity(ca.server(shown))
            .client_ca_root(Certificate::from_pem(ca.cert.pem()))
            .client_auth_optional(true);
        let (down, stop) = tokio::sync::watch::channel(false);
        let mut server = Server::builder().tls_config(tls).unwrap();
        let gateway = Handler { inner: inner.clone(), stop };
        let serve = server
            .add_service(GatewayServer::new(gateway))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let task = spawn(async move {
            let _ = serve.await;
        });
        Self { address, inner, task, down }
    }

    pub fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.inner.seen.lock().unwrap())
    }

    pub fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.inner.script.lock().unwrap());
    }

    /// The status of the newest report.
    pub fn status(&self) -> Option<palisade_proto::agent::Status> {
        self.seen(|seen| {
            let all = seen.ups.iter().rev();
            all.filter_map(|up| match up.msg.as_ref()? {
                up::Msg::Status(status) => Some(status.clone()),
                _ => None,
            })
            .next()
        })
    }

    /// Closes as a killed process does: nobody listens, and streams end.
    pub fn stop(&self) {
        self.task.abort();
        let _ = self.down.send(true);
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Handler {
    inner: Arc<Inner>,
    #[allow(clippy::disallowed_types, reason = "not in a simulator")]
    stop: tokio::sync::watch::Receiver<bool>,
}

fn client_key<T>(request: &Request<T>) -> Vec<u8> {
    let certs = request.peer_certs();
    certs.and_then(|list| list.first().map(|cert| cert.to_vec())).unwrap_or_default()
}

#[tonic::async_trait]
impl Gateway for Handler {
    type SessionStream = Pin<Box<dyn Stream<Item = Result<Down, Status>> + Send>>;

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let request = request.into_inner();
        let der = request.csr_der.clone();
        let csr = CertificateSigningRequestParams::from_der(&der.clone().into()).unwrap();
        let spki = csr.public_key.subject_public_key_info();
        self.inner.seen.lock().unwrap().joins.push((request, spki));
        let mut script = self.inner.script.lock().unwrap();
        if !script.join_refusals.is_empty() {
            return Err(script.join_refusals.remove(0));
        }
        let ca = &self.inner.ca;
        Ok(Response::new(JoinResponse {
            node_id: "n1".into(),
            node_name: "node-one".into(),
            chain_der: vec![ca.node(&der, script.old_certificates)],
            ca_der: vec![ca.cert.der().to_vec()],
            lineage: "lineage".into(),
            servers: script.servers.clone(),
        }))
    }

    async fn renew(
        &self,
        request: Request<RenewRequest>,
    ) -> Result<Response<RenewResponse>, Status> {
        if client_key(&request).is_empty() {
            return Err(Status::unauthenticated("no certificate"));
        }
        self.inner.seen.lock().unwrap().renewals += 1;
        let leaf = self.inner.ca.node(&request.into_inner().csr_der, false);
        Ok(Response::new(RenewResponse { chain_der: vec![leaf], ca_der: vec![] }))
    }

    async fn session(
        &self,
        request: Request<Streaming<Up>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let key = client_key(&request);
        if key.is_empty() {
            return Err(Status::unauthenticated("no certificate"));
        }
        let (out, answers) = mpsc::channel(64);
        let (inner, stop) = (self.inner.clone(), self.stop.clone());
        spawn(async move { converse(inner, request.into_inner(), key, out, stop).await });
        Ok(Response::new(Box::pin(ReceiverStream::new(answers))))
    }
}

#[allow(clippy::disallowed_types, reason = "not in a simulator")]
async fn converse(
    inner: Arc<Inner>,
    mut ups: Streaming<Up>,
    key: Vec<u8>,
    out: mpsc::Sender<Result<Down, Status>>,
    mut stop: tokio::sync::watch::Receiver<bool>,
) {
    let script = inner.script.lock().unwrap().clone();
    let say = |msg: down::Msg| {
        let out = out.clone();
        async move {
            let _ = out.send(Ok(Down { msg: Some(msg) })).await;
        }
    };
    loop {
        let next = {
            let stopped = std::pin::pin!(stop.changed());
            match futures::future::select(ups.next(), stopped).await {
                futures::future::Either::Left((next, _)) => next,
                futures::future::Either::Right(_) => return,
            }
        };
        let Some(Ok(up)) = next else { return };
        match &up.msg {
            Some(up::Msg::Hello(hello)) => {
                inner.seen.lock().unwrap().hellos.push((hello.clone(), key.clone()));
                say(down::Msg::Welcome(Welcome {
                    node_id: "n1".into(),
                    session_id: "s1".into(),
                    heartbeat_interval_ms: script.heartbeat_ms,
                    servers: script.servers.clone(),
                    ca_der: vec![],
                }))
                .await;
                if let Some(spec) = script.spec.clone() {
                    say(down::Msg::NodeSpec(spec)).await;
                }
                if let Some(goodbye) = script.goodbye.clone() {
                    say(down::Msg::Goodbye(goodbye)).await;
                }
                if let Some(request) = script.logs.clone() {
                    say(down::Msg::LogRequest(request)).await;
                }
            }
            Some(up::Msg::Heartbeat(beat)) if !script.silent => {
                let servers = inner.script.lock().unwrap().later_servers.clone();
                if !servers.is_empty() {
                    say(down::Msg::Welcome(Welcome { servers, ..Welcome::default() })).await;
                }
                say(down::Msg::HeartbeatAck(HeartbeatAck { seq: beat.seq })).await;
            }
            _ => {}
        }
        inner.seen.lock().unwrap().ups.push(up);
    }
}

/// A token file of the right mode.
pub fn token_file(dir: &Path) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = dir.join("token");
    std::fs::write(&path, "palj1.abcdefghijklmnop.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n")
        .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}
