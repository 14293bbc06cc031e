//! Connections, the same for both systems: mutual TLS 1.3 and HTTP/2 over TCP without delay.
//!
//! Throughput is measured over bare HTTP/2 connections, without the queue and the task that tonic's
//! channel puts before one: what the client spends, the servers on the same machine do not have.
//! Fail-over needs a channel: it connects again by itself.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::{Context as _, Result};
use futures::{FutureExt, future::BoxFuture};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::{
    body::Body,
    transport::{Channel, Endpoint, Uri},
};

use crate::clock;

const WINDOW: u32 = 4 * 1024 * 1024;
const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// Where a member is and as whom it must show itself.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) addr: SocketAddr,
    pub(super) name: String,
    pub(super) tls: Arc<ClientConfig>,
}

impl Target {
    /// What calls name as their authority.
    pub(super) fn origin(&self) -> Result<Uri> {
        format!("http://{}", self.addr).parse().context("that is no address")
    }

    async fn open(self) -> std::io::Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(self.addr).await?;
        tcp.set_nodelay(true)?;
        let name = ServerName::try_from(self.name).map_err(std::io::Error::other)?;
        TlsConnector::from(self.tls).connect(name, tcp).await
    }

    /// A connection that is made at its first use, and again when it broke.
    pub(super) fn lasting(&self) -> Result<Way> {
        let endpoint = Endpoint::from(self.origin()?)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(4 * WINDOW)
            .connect_timeout(CONNECT_LIMIT);
        let target = self.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let opened = target.clone().open();
            async move { opened.await.map(TokioIo::new) }
        });
        Ok(Way::Lasting(endpoint.connect_with_connector_lazy(connector)))
    }

    /// A connection that is made now, once.
    pub(super) async fn bare(&self) -> Result<Way> {
        let stream = self.clone().open().await.context("cannot connect")?;
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(4 * WINDOW)
            .handshake(TokioIo::new(stream))
            .await
            .context("no HTTP/2 connection")?;
        // It ends with the last sender, or with the server; calls say so then.
        clock::spawn(async move { connection.await.ok() });
        Ok(Way::Bare(sender))
    }
}

/// A connection. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub(in crate::bench) enum Way {
    /// Once.
    Bare(SendRequest<Body>),
    /// Again and again.
    Lasting(Channel),
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl tower::Service<http::Request<Body>> for Way {
    type Response = http::Response<Body>;
    type Error = Error;
    type Future = BoxFuture<'static, Result<Self::Response, Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self {
            Self::Bare(sender) => sender.poll_ready(context).map_err(Into::into),
            Self::Lasting(channel) => {
                tower::Service::poll_ready(channel, context).map_err(Into::into)
            }
        }
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self {
            Self::Bare(sender) => {
                let answer = sender.send_request(request);
                async move { Ok(answer.await?.map(Body::new)) }.boxed()
            }
            Self::Lasting(channel) => {
                let answer = tower::Service::call(channel, request);
                async move { Ok(answer.await?) }.boxed()
            }
        }
    }
}
