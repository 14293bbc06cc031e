//! HTTP/1.1 over TLS, one request per connection.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use palisade_api::pki::{self, Authority, Identity};
use palisade_state::Runtime;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::World;

#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {:?}", self.body))
    }

    pub fn code(&self) -> String {
        self.json()["code"].as_str().unwrap_or_default().to_owned()
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

pub fn tls(ca: &Authority, identity: Option<&Identity>) -> Arc<ClientConfig> {
    let mut config = (*pki::client_config(&[ca.cert_der().clone()], identity).unwrap()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Arc::new(config)
}

pub async fn connect(
    world: &World,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(world.server.local_addr()).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(config).connect(name, tcp).await
}

pub async fn send(
    stream: TlsStream<TcpStream>,
    rt: &dyn Runtime,
    request: Request<Full<Bytes>>,
) -> Result<Answer, hyper::Error> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    rt.spawn("client", Box::pin(async move { drop(connection.await) }));
    let (parts, body) = sender.send_request(request).await?.into_parts();
    let body = body.collect().await?.to_bytes();
    Ok(Answer { status: parts.status, headers: parts.headers, body })
}

/// A request in the making.
pub struct Call<'a> {
    world: &'a World,
    builder: http::request::Builder,
    body: Bytes,
}

impl World {
    pub fn call(&self, method: &str, path: &str) -> Call<'_> {
        let builder = Request::builder().method(method).uri(path).header("host", "palisade");
        Call { world: self, builder, body: Bytes::new() }
    }

    pub fn api(&self, method: &str, path: &str) -> Call<'_> {
        self.call(method, &format!("/api/compute{path}"))
            .header("authorization", "Bearer pal_admin")
    }
}

impl Call<'_> {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.builder = self.builder.header(name, value);
        self
    }

    pub fn json(self, value: &Value) -> Self {
        self.text(value.to_string())
    }

    pub fn text(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self.header("content-type", "application/json")
    }

    pub async fn send(self) -> Answer {
        let stream = connect(self.world, tls(&self.world.authority, None)).await.unwrap();
        let request = self.builder.body(Full::new(self.body)).unwrap();
        send(stream, &*self.world.rt, request).await.unwrap()
    }

    pub async fn send_as(self, identity: &Identity) -> Answer {
        let stream = connect(self.world, tls(&self.world.authority, Some(identity))).await.unwrap();
        let request = self.builder.body(Full::new(self.body)).unwrap();
        send(stream, &*self.world.rt, request).await.unwrap()
    }
}

impl Call<'_> {
    /// A body without a word about its type.
    pub fn bytes(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }
}
