//! An agent's side of the wire.

use std::sync::Arc;

use hyper_util::rt::TokioIo;
use palisade_api::pki::{self, Identity};
use palisade_contract::NodeId;
use palisade_proto::agent::{
    Down, Heartbeat, Hello, InstanceStatus, Inventory, JoinRequest, JoinResponse, Status, Up,
    down::Msg, gateway_client::GatewayClient, up::Msg as UpMsg,
};
use palisade_state::port::timeout;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tokio::{net::TcpStream, sync::mpsc};
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Streaming,
    transport::{Channel, Endpoint},
};

use super::{World, nodes::TOKEN};

pub fn new_key() -> KeyPair {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap()
}

pub fn signing_request(key: &KeyPair) -> Vec<u8> {
    CertificateParams::default().serialize_request(key).unwrap().der().to_vec()
}

pub fn identity(chain: &[Vec<u8>], key: &KeyPair) -> Identity {
    Identity {
        chain: chain.iter().map(|der| CertificateDer::from(der.clone())).collect(),
        key: PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
    }
}

pub async fn gateway(world: &World, identity: Option<&Identity>) -> GatewayClient<Channel> {
    let ca = [world.authority.cert_der().clone()];
    let config = pki::client_config(&ca, identity).unwrap();
    let address = world.server.local_addr();
    let connect = move |_: tonic::transport::Uri| {
        let config = Arc::clone(&config);
        async move {
            let tcp = TcpStream::connect(address).await?;
            let name = ServerName::try_from("127.0.0.1").unwrap();
            let tls = TlsConnector::from(config).connect(name, tcp).await?;
            Ok::<_, std::io::Error>(TokioIo::new(tls))
        }
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint.connect_with_connector(tower::service_fn(connect)).await.unwrap();
    GatewayClient::new(channel)
}

pub async fn join(
    world: &World,
    token: &str,
    key: &KeyPair,
) -> Result<JoinResponse, tonic::Status> {
    let request = JoinRequest {
        token: token.to_owned(),
        csr_der: signing_request(key),
        name: "n1".to_owned(),
        inventory: Some(Inventory { hostname: "h".to_owned(), ..Inventory::default() }),
        agent_version: "1".to_owned(),
    };
    Ok(gateway(world, None).await.join(request).await?.into_inner())
}

/// A joined node.
pub struct Node {
    pub id: NodeId,
    pub identity: Identity,
}

pub async fn joined(world: &World) -> Node {
    let key = new_key();
    let joined = join(world, TOKEN, &key).await.unwrap();
    Node {
        id: NodeId::parse(&joined.node_id).unwrap(),
        identity: identity(&joined.chain_der, &key),
    }
}

/// An open session.
pub struct Session {
    up: mpsc::Sender<Up>,
    down: Streaming<Down>,
    rt: Arc<super::TestRuntime>,
}

/// Says hello, and leaves the answer to be read.
pub async fn try_open(world: &World, node: &Node, hello: Hello) -> Result<Session, tonic::Status> {
    let (up, receiver) = mpsc::channel(1024);
    let mut client = gateway(world, Some(&node.identity)).await;
    let down = client.session(ReceiverStream::new(receiver)).await?.into_inner();
    let mut session = Session { up, down, rt: world.rt.clone() };
    session.send(UpMsg::Hello(hello)).await;
    Ok(session)
}

pub async fn open(world: &World, node: &Node, hello: Hello) -> Result<Session, tonic::Status> {
    let mut session = try_open(world, node, hello).await?;
    match session.next().await {
        Some(Msg::Welcome(welcome)) => assert_eq!(welcome.node_id, node.id.to_string()),
        other => panic!("no welcome: {other:?}"),
    }
    Ok(session)
}

impl Session {
    pub async fn send(&mut self, msg: UpMsg) {
        self.up.send(Up { msg: Some(msg) }).await.unwrap();
    }

    /// The next message; `None` when the session ended.
    pub async fn next(&mut self) -> Option<Msg> {
        let next = timeout(&*self.rt, std::time::Duration::from_secs(10), self.down.message());
        next.await.expect("a message in time").ok().flatten().and_then(|down| down.msg)
    }

    /// Sends a heartbeat and returns once it is acknowledged: all that was sent before was read.
    /// Whatever came before the acknowledgement is returned.
    pub async fn beat(&mut self, seq: u64) -> Vec<Msg> {
        self.send(UpMsg::Heartbeat(Heartbeat { seq })).await;
        let mut before = vec![];
        loop {
            match self.next().await {
                Some(Msg::HeartbeatAck(ack)) if ack.seq == seq => return before,
                Some(other) => before.push(other),
                None => panic!("the session ended"),
            }
        }
    }

    pub async fn report(&mut self, restarts: u32) {
        let id = super::nodes::instance().to_string();
        let instance = InstanceStatus { id, restarts, ..InstanceStatus::default() };
        let status = Status { instances: vec![instance], ..Status::default() };
        self.send(UpMsg::Status(status)).await;
    }
}
