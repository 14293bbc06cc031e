//! Logs of instances, wherever the session of their node is.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures::{StreamExt, future::BoxFuture};
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, BodyStream, Empty, Limited};
use hyper_util::rt::TokioIo;
use palisade_contract::{
    Code, Error, InstanceId, NodeId, Result, method::ByteStream, ports::Agents,
};
use palisade_state::{View, port::timeout};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::Core;
use crate::{pki, trace};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
const PROBLEM_BYTES_MAX: usize = 64 * 1024;

/// The `agents` port: logs through this replica's sessions or another replica.
pub(super) struct Relay(pub(super) Weak<Core>);

impl Agents for Relay {
    fn logs(
        &self,
        view: View,
        node: NodeId,
        instance: InstanceId,
        follow: bool,
        tail_lines: u32,
    ) -> BoxFuture<'static, Result<ByteStream>> {
        let core = self.0.upgrade();
        Box::pin(async move {
            let stopped = || Error::new(Code::Unavailable, "this replica stops");
            let core = core.ok_or_else(stopped)?;
            if core.sessions.get(&node).is_some() {
                return core.sessions.open_log(&node, &instance, follow, tail_lines).await;
            }
            let record = core.context.ports.nodes.get()?.find(&view, node.as_str())?;
            let record = record.ok_or_else(|| Error::not_found("node", node.as_str()))?;
            let away = || {
                Error::new(
                    Code::Unavailable,
                    format!("node {} is not connected to the control plane", record.name),
                )
                .hint("its logs stay on it: look at `palisade node ls`, and try again when it is back")
            };
            let replica = record.session.as_ref().ok_or_else(away)?.replica;
            if replica == core.context.store.replica().0 {
                return Err(away());
            }
            let members = core.context.store.status().members;
            let member = members.into_iter().find(|member| member.id.0 == replica);
            let address = member.ok_or_else(away)?.api_addr;
            let query = format!("?follow={follow}&tail={tail_lines}");
            let path = format!("/internal/logs/{node}/{instance}{query}");
            fetch(&core, replica, &address, &path).await
        })
    }
}

fn unreachable(replica: u64, error: impl std::fmt::Display) -> Error {
    Error::new(
        Code::Unavailable,
        format!("replica {replica}, which has the node's session, cannot be reached: {error}"),
    )
    .hint("try again: the agent reconnects to another replica by itself")
}

async fn fetch(core: &Core, replica: u64, address: &str, path: &str) -> Result<ByteStream> {
    let rt = &core.context.rt;
    let connected = timeout(&**rt, CONNECT_TIMEOUT, connect(core, replica, address)).await;
    let stream = match connected {
        Some(connected) => connected.map_err(|error| unreachable(replica, error))?,
        None => return Err(unreachable(replica, "it does not answer")),
    };
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(replica, error))?;
    rt.spawn("log-relay", Box::pin(async move { drop(connection.await) }));
    let mut request = Request::get(path)
        .header(header::HOST, pki::replica_name(replica))
        .body(Empty::<Bytes>::new())
        .map_err(Error::internal)?;
    if let Some(trace) = trace::current() {
        trace.put(request.headers_mut());
    }
    let answered = timeout(&**rt, ANSWER_TIMEOUT, sender.send_request(request)).await;
    let response = match answered {
        Some(answered) => answered.map_err(|error| unreachable(replica, error))?,
        None => return Err(unreachable(replica, "it does not answer")),
    };
    let (parts, body) = response.into_parts();
    if parts.status != StatusCode::OK {
        let bytes = Limited::new(body, PROBLEM_BYTES_MAX).collect().await;
        let bytes = bytes.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        return Err(problem(replica, &bytes));
    }
    let frames = BodyStream::new(body).filter_map(move |frame| {
        std::future::ready(match frame {
            Ok(frame) => frame.into_data().ok().map(|data| Ok(data.to_vec())),
            Err(error) => Some(Err(unreachable(replica, error))),
        })
    });
    Ok(Box::pin(frames))
}

async fn connect(
    core: &Core,
    replica: u64,
    address: &str,
) -> std::io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from(pki::replica_name(replica)).map_err(std::io::Error::other)?;
    let mut config = (*core.live.client()).clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// The other replica's own error.
fn problem(replica: u64, bytes: &[u8]) -> Error {
    let document: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    let text = |name: &str| document.get(name).and_then(serde_json::Value::as_str);
    match (text("code").and_then(Code::parse), text("detail")) {
        (Some(code), Some(detail)) if code != Code::Internal => {
            let error = Error::new(code, detail);
            match text("hint") {
                Some(hint) => error.hint(hint),
                None => error,
            }
        }
        _ => unreachable(replica, "it answered with an error of its own"),
    }
}
