//! The way between an agent and the gateways of replicas: a stream each way, which the network carries as it does.

use std::{io, sync::Arc, time::Duration};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Either, select},
    stream::BoxStream,
};
use palisade_agent::{
    ConnectError, Identity,
    session::{Link as Ends, Renewed, Transport},
};
use palisade_api::LocalApi;
use palisade_contract::NodeId;
use palisade_proto::agent::{Down, Up, down};
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::{
    super::{
        net::{Link, pipe},
        nodes::Life,
        runtime::world_sleep,
    },
    driver::Rig,
};

const OPEN_LIMIT: Duration = Duration::from_secs(3);
const QUEUE: usize = 64;
/// Specs, and commands, of earlier sessions that the network may still bring.
const HEARD_MAX: usize = 16;

type Downward = BoxStream<'static, Result<Down, String>>;

fn broken_up() -> Option<Result<Up, Status>> {
    Some(Err(Status::unavailable("the connection broke")))
}

fn broken_down() -> Option<Result<Down, String>> {
    Some(Err("the connection broke".to_owned()))
}

impl Transport for Rig {
    fn open(
        &self,
        server: String,
        identity: Identity,
    ) -> BoxFuture<'static, Result<Ends, ConnectError>> {
        let rig = self.clone();
        async move {
            let opening = rig.opens(&server, identity).boxed();
            match select(opening, world_sleep(OPEN_LIMIT)).await {
                Either::Left((opened, _)) => opened,
                Either::Right(_) => {
                    let waited_ms = OPEN_LIMIT.as_millis();
                    Err(ConnectError::Timeout { server: server.clone(), waited_ms })
                }
            }
        }
        .boxed()
    }

    fn renew(
        &self,
        _: String,
        _: Identity,
        _: Vec<u8>,
    ) -> BoxFuture<'static, Result<Renewed, String>> {
        async { Err("simulated certificates are not renewed".to_owned()) }.boxed()
    }
}

impl Rig {
    /// A connection to the replica at an address.
    pub(super) fn link(&self, server: &str) -> Link {
        let net = self.fleet.net.clone();
        let to = net.node_at(server);
        Link { net, from: self.machine.number, to }
    }

    async fn opens(self, server: &str, identity: Identity) -> Result<Ends, ConnectError> {
        let failed = |kind| {
            let source = io::Error::from(kind);
            ConnectError::Tcp { server: server.to_owned(), source }
        };
        let link = self.link(server);
        if !link.cross().await {
            return Err(failed(io::ErrorKind::TimedOut));
        }
        let Some((there, api)) = self.fleet.door(link.to) else {
            link.back().cross().await;
            return Err(failed(io::ErrorKind::ConnectionRefused));
        };
        let (control, control_out) = mpsc::channel::<Up>(QUEUE);
        let (bulk, bulk_out) = mpsc::channel::<Up>(QUEUE);
        let ups = merged(control_out, bulk_out).map(Ok).boxed();
        let up = pipe(&link, ups, broken_up);
        let (down_in, down) = mpsc::channel(QUEUE);
        let reading = self.clone().reads(link, there, api, identity, up, down_in);
        self.fleet.nodes.spawn(self.life, reading.boxed());
        Ok(Ends { control, bulk, down })
    }

    /// Hands on what comes down, until the agent hangs up.
    async fn reads(
        self,
        link: Link,
        there: Life,
        api: Arc<LocalApi>,
        identity: Identity,
        up: BoxStream<'static, Result<Up, Status>>,
        down_in: mpsc::Sender<Result<Down, String>>,
    ) {
        let given_up = down_in.clone();
        let work = async {
            let mut downs = match self.calls(&link, there, api, &identity, up).await {
                Ok(downs) => downs,
                Err(why) => {
                    let _ = down_in.send(Err(why)).await;
                    return;
                }
            };
            while let Some(item) = downs.next().await {
                let has_failed = item.is_err();
                if let Some(old) = self.late(&item, &link)
                    && down_in.send(Ok(old)).await.is_err()
                {
                    return;
                }
                if down_in.send(item).await.is_err() || has_failed {
                    return;
                }
            }
        };
        select(std::pin::pin!(work), std::pin::pin!(given_up.closed())).await;
    }

    /// Calls the gateway: what runs there runs as the replica's task.
    async fn calls(
        &self,
        link: &Link,
        there: Life,
        api: Arc<LocalApi>,
        identity: &Identity,
        up: BoxStream<'static, Result<Up, Status>>,
    ) -> Result<Downward, String> {
        let node = NodeId::parse(&identity.node_id).ok_or("the identity names no node")?;
        let (key, back) = (self.machine.key(), link.back());
        let (opened, opening) = oneshot::channel::<Result<Downward, String>>();
        let serving = async move {
            let answer = match api.session(node, key, up).await {
                Ok(downs) => {
                    let downs = downs.map(|item| item.map_err(|status| told(&status))).boxed();
                    Ok(pipe(&back, downs, broken_down))
                }
                Err(status) => Err(told(&status)),
            };
            drop(api);
            let _ = opened.send(answer);
        };
        self.fleet.nodes.spawn(there, serving.boxed());
        let answer = opening.await.unwrap_or_else(|_| Err("the connection broke".to_owned()));
        link.back().cross().await;
        answer
    }

    /// Keeps the specs and commands that came; in bad weather one of an earlier time comes once more.
    fn late(&self, item: &Result<Down, String>, link: &Link) -> Option<Down> {
        let Ok(Down { msg: Some(message) }) = item else { return None };
        let mut state = self.machine.state();
        match message {
            down::Msg::NodeSpec(spec) => {
                keep(&mut state.heard, spec);
                return None;
            }
            down::Msg::Command(command) => {
                keep(&mut state.commands, command);
                return None;
            }
            down::Msg::Welcome(_) => return None,
            _ => {}
        }
        if state.heard.is_empty() || !link.is_doubled() {
            return None;
        }
        let (specs, commands) = (state.heard.len(), state.commands.len());
        let msg = if commands > 0 && state.random.coin() {
            let at = state.random.index(commands);
            down::Msg::Command(state.commands.get(at).cloned()?)
        } else {
            let at = state.random.index(specs);
            down::Msg::NodeSpec(state.heard.get(at).cloned()?)
        };
        Some(Down { msg: Some(msg) })
    }
}

fn keep<T: Clone>(heard: &mut Vec<T>, one: &T) {
    heard.push(one.clone());
    if heard.len() > HEARD_MAX {
        heard.remove(0);
    }
}

fn told(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// Both queues as one stream, the first before the second.
fn merged(control: mpsc::Receiver<Up>, bulk: mpsc::Receiver<Up>) -> BoxStream<'static, Up> {
    futures::stream::unfold((control, bulk), |(mut control, mut bulk)| async move {
        let next = {
            let first = std::pin::pin!(control.recv());
            let second = std::pin::pin!(bulk.recv());
            match select(first, second).await {
                Either::Left((Some(up), _)) | Either::Right((Some(up), _)) => Some(up),
                Either::Left((None, second)) => second.await,
                Either::Right((None, first)) => first.await,
            }
        };
        next.map(|up| (up, (control, bulk)))
    })
    .boxed()
}
