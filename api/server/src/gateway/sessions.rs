//! The sessions that this replica holds, and the logs that are read through them.

use std::{
    collections::{BTreeMap, BTreeSet},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context as TaskContext, Poll},
    time::Duration,
};

use futures::{Stream, StreamExt, stream};
use palisade_contract::{Code, Error, InstanceId, NodeId, Result, SessionId, method::ByteStream};
use palisade_proto::agent::{Down, LogCancel, LogChunk, LogRequest, down::Msg};
use palisade_state::{Rt, port::timeout};
use tokio::sync::{Notify, mpsc};

use crate::{metrics::Metrics, stop::Stop};

/// How long the agent may take to be handed a log request.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the first bytes of a log are waited for, so that a refusal is answered as one.
const FIRST_BYTES: Duration = Duration::from_millis(500);
/// Bytes of one log that wait for their reader.
const LOG_BYTES_MAX: usize = 16 * 1024 * 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Why a session is ended by this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The agent has opened another one here.
    Replaced,
    /// This replica stops.
    Draining,
}

/// One session, for those who have something for its agent.
pub(crate) struct SessionHandle {
    pub(crate) id: SessionId,
    pub(crate) node: NodeId,
    down: mpsc::Sender<Down>,
    /// The node or its spec may have changed.
    pub(crate) changed: Notify,
    ending: Mutex<Option<Ending>>,
    /// Raised to ask the session to end.
    pub(crate) end: Stop,
    /// Raised when it has ended: what waits in `down` still goes out.
    pub(crate) over: Stop,
    logs: Mutex<BTreeMap<u64, LogSink>>,
    next_log: AtomicU64,
}

struct LogSink {
    sender: mpsc::UnboundedSender<Result<Vec<u8>>>,
    waiting: Arc<AtomicUsize>,
}

impl SessionHandle {
    pub(crate) fn new(id: SessionId, node: NodeId, down: mpsc::Sender<Down>) -> Self {
        Self {
            id,
            node,
            down,
            changed: Notify::new(),
            ending: Mutex::new(None),
            end: Stop::default(),
            over: Stop::default(),
            logs: Mutex::default(),
            next_log: AtomicU64::new(1),
        }
    }

    /// Asks the session to end.
    pub(crate) fn end(&self, why: Ending) {
        lock(&self.ending).get_or_insert(why);
        self.end.raise();
    }

    pub(crate) fn ending(&self) -> Option<Ending> {
        *lock(&self.ending)
    }

    /// Sends if there is room at once.
    pub(crate) fn try_send(&self, msg: Msg) -> bool {
        self.down.try_send(Down { msg: Some(msg) }).is_ok()
    }

    /// The way down, for those who can wait for room.
    pub(crate) fn down(&self) -> &mpsc::Sender<Down> {
        &self.down
    }

    /// Hands a piece of a log to its reader. A reader that is too slow loses its log, never the
    /// session its pace.
    pub(crate) fn log_chunk(&self, chunk: LogChunk) {
        let id = chunk.request_id;
        let mut logs = lock(&self.logs);
        let Some(sink) = logs.get(&id) else {
            drop(logs);
            if !chunk.eof {
                self.try_send(Msg::LogCancel(LogCancel { request_id: id }));
            }
            return;
        };
        if !chunk.data.is_empty() {
            let waiting = sink.waiting.fetch_add(chunk.data.len(), Ordering::AcqRel);
            if waiting > LOG_BYTES_MAX {
                let error = Error::new(Code::Unavailable, "the log came faster than it was read")
                    .hint("read it again with a smaller tail");
                let _ = sink.sender.send(Err(error));
                logs.remove(&id);
                drop(logs);
                self.try_send(Msg::LogCancel(LogCancel { request_id: id }));
                return;
            }
            let _ = sink.sender.send(Ok(chunk.data));
        }
        if !chunk.error.is_empty() {
            let _ = sink.sender.send(Err(Error::new(Code::Unavailable, chunk.error)));
            logs.remove(&id);
        } else if chunk.eof {
            logs.remove(&id);
        }
    }

    /// The session is over: ends its stream and every log.
    pub(crate) fn finish(&self) {
        self.over.raise();
        for sink in std::mem::take(&mut *lock(&self.logs)).into_values() {
            let _ = sink.sender.send(Err(no_session(&self.node)));
        }
    }
}

fn no_session(node: &NodeId) -> Error {
    Error::new(Code::Unavailable, format!("node {node} has no session with this replica"))
        .hint("its agent is not connected: look at `palisade node ls`")
}

/// All sessions of this replica by node.
pub struct Sessions {
    rt: Rt,
    metrics: Metrics,
    by_node: Mutex<BTreeMap<NodeId, Arc<SessionHandle>>>,
    alive: Mutex<BTreeSet<SessionId>>,
}

/// A session has a task as long as this is.
pub(crate) struct Alive {
    sessions: Arc<Sessions>,
    id: SessionId,
}

impl Drop for Alive {
    fn drop(&mut self) {
        lock(&self.sessions.alive).remove(&self.id);
    }
}

impl Sessions {
    pub(crate) fn new(rt: Rt, metrics: Metrics) -> Self {
        Self { rt, metrics, by_node: Mutex::default(), alive: Mutex::default() }
    }

    /// Notes that a session has a task, from before it is recorded until after its end was.
    pub(crate) fn alive(self: &Arc<Self>, id: &SessionId) -> Alive {
        lock(&self.alive).insert(id.clone());
        Alive { sessions: self.clone(), id: id.clone() }
    }

    /// Whether a session has a task: it is being opened, is open, or is being closed.
    pub(crate) fn is_alive(&self, id: &SessionId) -> bool {
        lock(&self.alive).contains(id)
    }

    /// Takes a session in; one that the node had here before is asked to end.
    pub(crate) fn insert(&self, session: Arc<SessionHandle>) {
        let before = {
            let mut by_node = lock(&self.by_node);
            let before = by_node.insert(session.node.clone(), session);
            self.metrics.agent_sessions.set(i64::try_from(by_node.len()).unwrap_or(i64::MAX));
            before
        };
        if let Some(before) = before {
            before.end(Ending::Replaced);
        }
    }

    /// Forgets a session, unless the node has another one by now.
    pub(crate) fn remove(&self, session: &SessionHandle) {
        let mut by_node = lock(&self.by_node);
        if by_node.get(&session.node).is_some_and(|present| present.id == session.id) {
            by_node.remove(&session.node);
        }
        self.metrics.agent_sessions.set(i64::try_from(by_node.len()).unwrap_or(i64::MAX));
    }

    /// The session of a node.
    pub(crate) fn get(&self, node: &NodeId) -> Option<Arc<SessionHandle>> {
        lock(&self.by_node).get(node).cloned()
    }

    /// All sessions.
    pub(crate) fn all(&self) -> Vec<Arc<SessionHandle>> {
        lock(&self.by_node).values().cloned().collect()
    }

    /// How many sessions there are.
    #[must_use]
    pub fn count(&self) -> usize {
        lock(&self.by_node).len()
    }

    /// Opens the log of an instance of a node whose session is here.
    pub(crate) async fn open_log(
        &self,
        node: &NodeId,
        instance: &InstanceId,
        follow: bool,
        tail_lines: u32,
    ) -> Result<ByteStream> {
        let session = self.get(node).ok_or_else(|| no_session(node))?;
        let request_id = session.next_log.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = mpsc::unbounded_channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let sink = LogSink { sender, waiting: waiting.clone() };
        lock(&session.logs).insert(request_id, sink);
        let mut log = LogStream { receiver, waiting, session: session.clone(), request_id };
        let request =
            LogRequest { request_id, instance_id: instance.to_string(), follow, tail_lines };
        let down = Down { msg: Some(Msg::LogRequest(request)) };
        if session.over.is_raised() {
            return Err(no_session(node));
        }
        match timeout(&*self.rt, SEND_TIMEOUT, session.down.send(down)).await {
            Some(Ok(())) => {}
            _ => return Err(no_session(node)),
        }
        match timeout(&*self.rt, FIRST_BYTES, log.next()).await {
            Some(Some(Err(error))) => Err(error),
            Some(Some(first)) => Ok(Box::pin(stream::iter([first]).chain(log))),
            Some(None) => Ok(Box::pin(stream::empty())),
            None => Ok(Box::pin(log)),
        }
    }
}

/// The reader's end of a log; its drop tells the agent to stop.
struct LogStream {
    receiver: mpsc::UnboundedReceiver<Result<Vec<u8>>>,
    waiting: Arc<AtomicUsize>,
    session: Arc<SessionHandle>,
    request_id: u64,
}

impl Stream for LogStream {
    type Item = Result<Vec<u8>>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.receiver.poll_recv(cx);
        if let Poll::Ready(Some(Ok(bytes))) = &polled {
            self.waiting.fetch_sub(bytes.len(), Ordering::AcqRel);
        }
        polled
    }
}

impl Drop for LogStream {
    fn drop(&mut self) {
        if lock(&self.session.logs).remove(&self.request_id).is_some() {
            self.session.try_send(Msg::LogCancel(LogCancel { request_id: self.request_id }));
        }
    }
}
