//! Streams over gRPC and mutual TLS.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::{Stream, StreamExt, future::BoxFuture};
use palisade_proto::agent::{Down, RenewRequest, Up, gateway_client::GatewayClient};
use tokio::sync::mpsc;
use tonic::{Response, Status, Streaming, transport::Channel};

use super::{CONTROL_MAX, Link, Renewed, Transport};
use crate::{
    identity::Identity,
    port::{Rt, timeout},
    tls::{self, ConnectError},
};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const OPEN_LIMIT: Duration = Duration::from_secs(3);
const BULK_MAX: usize = 16;
const DOWN_MAX: usize = 16;
/// A NodeSpec carries whole workload specs and their files.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// See the module documentation.
pub struct GrpcTransport {
    rt: Rt,
}

impl GrpcTransport {
    /// Over tokio's sockets.
    #[must_use]
    pub fn new(rt: Rt) -> Self {
        Self { rt }
    }
}

async fn client(
    rt: &Rt,
    server: &str,
    identity: &Identity,
) -> Result<GatewayClient<Channel>, ConnectError> {
    let config = tls::session_config(identity)?;
    let channel = tls::connect(rt.as_ref(), server, config, CONNECT_LIMIT).await?;
    Ok(GatewayClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX))
}

impl Transport for GrpcTransport {
    fn open(
        &self,
        server: String,
        identity: Identity,
    ) -> BoxFuture<'static, Result<Link, ConnectError>> {
        let rt = self.rt.clone();
        Box::pin(async move {
            let mut client = client(&rt, &server, &identity).await?;
            let (control, control_out) = mpsc::channel(CONTROL_MAX);
            let (bulk, bulk_out) = mpsc::channel(BULK_MAX);
            let (down_in, down) = mpsc::channel(DOWN_MAX);
            let stream = Merged { control: control_out, bulk: bulk_out };
            let task = async move {
                // The caller gives a silent session up by dropping its end: that ends the stream
                // and with it the connection.
                let given_up = down_in.clone();
                let work = std::pin::pin!(read(client.session(stream), down_in));
                futures::future::select(work, std::pin::pin!(given_up.closed())).await;
            };
            rt.spawn("read a session", Box::pin(task));
            Ok(Link { control, bulk, down })
        })
    }

    fn renew(
        &self,
        server: String,
        identity: Identity,
        csr_der: Vec<u8>,
    ) -> BoxFuture<'static, Result<Renewed, String>> {
        let rt = self.rt.clone();
        Box::pin(async move {
            let mut client =
                client(&rt, &server, &identity).await.map_err(|error| error.to_string())?;
            let call = client.renew(RenewRequest { csr_der });
            let answer = timeout(rt.as_ref(), OPEN_LIMIT * 3, call)
                .await
                .ok_or_else(|| "no answer in time".to_owned())?
                .map_err(|status| describe(&status))?
                .into_inner();
            Ok(Renewed { chain_der: answer.chain_der, ca_der: answer.ca_der })
        })
    }
}

/// Hands on what comes down. The call itself may be answered only after the first message up, so
/// it is waited for here and not before the caller can send one.
async fn read(
    call: impl Future<Output = Result<Response<Streaming<Down>>, Status>>,
    down: mpsc::Sender<Result<Down, String>>,
) {
    let mut answers = match call.await {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            let _ = down.send(Err(describe(&status))).await;
            return;
        }
    };
    while let Some(answer) = answers.next().await {
        let failed = answer.is_err();
        let sent = down.send(answer.map_err(|status| describe(&status))).await;
        if failed || sent.is_err() {
            return;
        }
    }
}

fn describe(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// Both queues as one stream; what is small and urgent goes first.
struct Merged {
    control: mpsc::Receiver<Up>,
    bulk: mpsc::Receiver<Up>,
}

impl Stream for Merged {
    type Item = Up;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Up>> {
        let control = self.control.poll_recv(context);
        if let Poll::Ready(Some(message)) = control {
            return Poll::Ready(Some(message));
        }
        match (control, self.bulk.poll_recv(context)) {
            (_, Poll::Ready(Some(message))) => Poll::Ready(Some(message)),
            // The session is over when nothing can come any more.
            (Poll::Ready(None), Poll::Ready(None)) => Poll::Ready(None),
            _ => Poll::Pending,
        }
    }
}
