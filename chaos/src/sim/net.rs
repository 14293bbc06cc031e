//! The network between nodes: messages take time, get lost, come twice or late; links are cut in one direction or both.
//!
//! A call is a message and its answer, each on its own. A stream is a connection: in order and whole, until it breaks.
//! What a cut link holds back comes when it is mended, however old it is by then. That the other end has gone is news
//! too: it comes by the same way and takes as long.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Either, select},
    stream::{self, BoxStream},
};
use palisade_raft::peer::{Answer, PeerApi, PeerError};
use tokio::sync::{Notify, mpsc, oneshot};

use super::{
    nodes::{Life, Nodes, current, lock, now},
    runtime::world_sleep,
};
use crate::random::Random;

/// A vote's answer is on its way.
pub(crate) const VOTED: &str = "said.vote";
/// How long a cut link is waited for before its connections are given up.
const PATIENCE: Duration = Duration::from_secs(15);
/// Items of a stream that are on their way at the same time.
const WINDOW: usize = 32;

/// How bad the network is, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weather {
    /// Calls that are lost.
    pub(crate) lost: u64,
    /// Calls that come twice.
    pub(crate) twice: u64,
    /// Messages that are slow.
    pub(crate) slow: u64,
    /// Streams that break at an item.
    pub(crate) broken: u64,
}

/// What a link carries by its kind.
struct State {
    ends: BTreeMap<u64, (Life, Arc<dyn PeerApi>)>,
    cut: BTreeSet<(u64, u64)>,
    /// The node at each address.
    names: BTreeMap<String, u64>,
    weather: Weather,
    random: Random,
}

/// See the module.
pub(crate) struct Net {
    pub(crate) nodes: Arc<Nodes>,
    state: Mutex<State>,
    mended: Notify,
}

/// One direction between two nodes.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) net: Arc<Net>,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Whoever waits for a call's answer; the first one counts.
pub(crate) type Answering<A> = Arc<Mutex<Option<oneshot::Sender<Result<A, PeerError>>>>>;

/// What a call does at the other end.
pub(crate) type Serve<A> = Box<dyn FnOnce(Arc<dyn PeerApi>) -> Answer<A> + Send>;

enum Item<T> {
    Data(T),
    End,
}

impl Net {
    pub(crate) fn new(nodes: Arc<Nodes>, seed: u64) -> Arc<Self> {
        let state = State {
            ends: BTreeMap::new(),
            cut: BTreeSet::new(),
            names: BTreeMap::new(),
            weather: Weather::default(),
            random: Random::part(seed, "network"),
        };
        Arc::new(Self { nodes, state: Mutex::new(state), mended: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Gives a node an address.
    pub(crate) fn name(&self, addr: &str, node: u64) {
        self.state().names.insert(addr.to_owned(), node);
    }

    /// The node at an address; 0 is nobody.
    pub(crate) fn node_at(&self, addr: &str) -> u64 {
        self.state().names.get(addr).copied().unwrap_or(0)
    }

    pub(crate) fn attach(&self, node: u64, life: Life, api: Arc<dyn PeerApi>) {
        self.state().ends.insert(node, (life, api));
    }

    /// Nobody answers at this node any more.
    pub(crate) fn detach(&self, node: u64) -> Option<(Life, Arc<dyn PeerApi>)> {
        self.state().ends.remove(&node)
    }

    pub(crate) fn cut(&self, from: u64, to: u64) {
        self.state().cut.insert((from, to));
    }

    pub(crate) fn mend(&self, from: u64, to: u64) {
        self.state().cut.remove(&(from, to));
        self.mended.notify_waiters();
    }

    pub(crate) fn mend_all(&self) {
        {
            let mut state = self.state();
            state.cut.clear();
            state.weather = Weather::default();
        }
        self.mended.notify_waiters();
    }

    pub(crate) fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Who answers at a node, if its process runs.
    pub(crate) fn end(&self, node: u64) -> Option<(Life, Arc<dyn PeerApi>)> {
        let (life, api) = self.state().ends.get(&node).cloned()?;
        (!self.nodes.is_gone(life)).then_some((life, api))
    }
}

/// Carries a call to the other end and its answer back.
pub(crate) struct Call<A> {
    pub(crate) link: Link,
    pub(crate) kind: &'static str,
    pub(crate) life: Life,
    pub(crate) serve: Serve<A>,
    pub(crate) answer: Answering<A>,
}

impl Link {
    /// The other direction.
    pub(crate) fn back(&self) -> Self {
        Self { net: self.net.clone(), from: self.to, to: self.from }
    }

    fn is_cut(&self) -> bool {
        self.net.state().cut.contains(&(self.from, self.to))
    }

    fn delay(&self) -> Duration {
        let mut state = self.net.state();
        let slow = state.weather.slow;
        let is_slow = state.random.below(1000) < slow;
        let micros = if is_slow {
            state.random.within(5_000, 250_000)
        } else {
            state.random.within(80, 1_200)
        };
        Duration::from_micros(micros)
    }

    fn strikes(&self, share: impl FnOnce(&Weather) -> u64) -> bool {
        let mut state = self.net.state();
        let share = share(&state.weather);
        share > 0 && state.random.below(1000) < share
    }

    pub(crate) fn is_doubled(&self) -> bool {
        self.strikes(|weather| weather.twice)
    }

    /// Waits until the link carries again; false when that takes too long.
    async fn passable(&self) -> bool {
        let begun = now();
        loop {
            let mended = self.net.mended.notified();
            if !self.is_cut() {
                return true;
            }
            let left = PATIENCE.saturating_sub(now().saturating_sub(begun));
            if left.is_zero() {
                return false;
            }
            select(std::pin::pin!(mended), std::pin::pin!(world_sleep(left))).await;
        }
    }

    /// One message's way; false when it never gets there.
    pub(crate) async fn cross(&self) -> bool {
        world_sleep(self.delay()).await;
        self.passable().await
    }

    fn number(&self) -> u64 {
        self.from << 8 | self.to
    }
}

fn failed(what: &str) -> PeerError {
    PeerError::Failed(what.to_owned())
}

impl<A: Send + 'static> Call<A> {
    /// Goes its way, whether its caller still waits or not.
    pub(crate) fn go(self) {
        let nodes = self.link.net.nodes.clone();
        nodes.spawn(0, self.travel().boxed());
    }

    async fn travel(self) {
        let Self { link, kind, life, serve, answer } = self;
        let nodes = link.net.nodes.clone();
        let reply = move |result| {
            if let Some(answer) = lock(&answer).take() {
                let _ = answer.send(result);
            }
        };
        if nodes.is_gone(life) {
            return;
        }
        if link.strikes(|weather| weather.lost) || !link.cross().await {
            world_sleep(PATIENCE).await;
            return reply(Err(failed("the connection timed out")));
        }
        let Some((there, api)) = link.net.end(link.to) else {
            let word = link.back().cross().await;
            let refused = || PeerError::Unreachable("the port refuses".to_owned());
            return reply(Err(if word { refused() } else { failed("the connection timed out") }));
        };
        nodes.note(&[1, link.number(), kind.len() as u64]);
        let result = serve_there(&nodes, there, kind, api, serve).await;
        let back = link.back();
        if !back.cross().await {
            return reply(Err(failed("the connection timed out")));
        }
        nodes.note(&[2, back.number(), kind.len() as u64]);
        reply(result.unwrap_or_else(|| Err(failed("the connection broke"))));
    }
}

fn heard(kind: &str) -> &'static str {
    match kind {
        "vote" => "heard.vote",
        "snapshot" => "heard.snapshot",
        _ => "heard.other",
    }
}

fn answered(kind: &str) -> &'static str {
    match kind {
        "vote" => "answer.vote",
        "heartbeat" => "answer.heartbeat",
        "transfer" => "answer.transfer",
        "snapshot" => "answer.snapshot",
        "append" => "answer.append",
        _ => "answer.other",
    }
}

/// Runs a call as a task of the other end; `None` when that ended meanwhile.
async fn serve_there<A: Send + 'static>(
    nodes: &Arc<Nodes>,
    there: Life,
    kind: &'static str,
    api: Arc<dyn PeerApi>,
    serve: Serve<A>,
) -> Option<Result<A, PeerError>> {
    let (served, serving) = oneshot::channel();
    let at = nodes.clone();
    nodes.spawn(
        there,
        async move {
            at.pass(there, heard(kind));
            if at.is_gone(there) {
                return std::future::pending().await;
            }
            let result = serve(api).await;
            at.pass(there, answered(kind));
            if at.is_gone(there) {
                return;
            }
            let _ = served.send(result);
            if kind == "vote" {
                at.pass(there, VOTED);
            }
        }
        .boxed(),
    );
    serving.await.ok()
}

/// Carries a stream whose items are made by the calling node and taken by the other one. `broken` is what the taker
/// gets, if anything, when the stream did not end by itself.
pub(crate) fn pipe<T: Send + 'static>(
    link: &Link,
    items: BoxStream<'static, T>,
    broken: fn() -> Option<T>,
) -> BoxStream<'static, T> {
    let (sent, arriving) = mpsc::channel(WINDOW);
    let (nodes, life) = (link.net.nodes.clone(), current());
    nodes.spawn(life, pump(link.clone(), life, items, sent).boxed());
    let start = Some((link.clone(), arriving));
    stream::unfold(start, move |state| async move {
        let (link, mut arriving) = state?;
        match arriving.recv().await {
            Some((at, Item::Data(item))) => {
                world_sleep(at.saturating_sub(now())).await;
                let is_whole = link.passable().await && !link.strikes(|weather| weather.broken);
                if !is_whole {
                    return broken().map(|item| (item, None));
                }
                link.net.nodes.note(&[3, link.number()]);
                Some((item, Some((link, arriving))))
            }
            Some((at, Item::End)) => {
                world_sleep(at.saturating_sub(now())).await;
                link.passable().await;
                None
            }
            None => {
                link.cross().await;
                broken().map(|item| (item, None))
            }
        }
    })
    .boxed()
}

/// The sending side of a stream.
async fn pump<T: Send + 'static>(
    link: Link,
    life: Life,
    mut items: BoxStream<'static, T>,
    sent: mpsc::Sender<(Duration, Item<T>)>,
) {
    let mut last = Duration::ZERO;
    loop {
        let next = {
            let closed = std::pin::pin!(sent.closed());
            match select(items.next(), closed).await {
                Either::Left((next, _)) => next,
                Either::Right(_) => {
                    // That the other end hung up is heard later.
                    link.back().cross().await;
                    return;
                }
            }
        };
        if link.net.nodes.is_gone(life) {
            return std::future::pending().await;
        }
        last = last.max(now() + link.delay());
        let Some(item) = next else {
            drop(items);
            let _ = sent.send((last, Item::End)).await;
            return;
        };
        if sent.send((last, Item::Data(item))).await.is_err() {
            link.back().cross().await;
            return;
        }
    }
}

/// What a look at a node's port tells.
pub(crate) fn probe(link: Link) -> BoxFuture<'static, palisade_raft::peer::Probe> {
    use palisade_raft::peer::Probe;
    async move {
        world_sleep(link.delay()).await;
        if link.is_cut() || link.back().is_cut() {
            return Probe::Unclear;
        }
        if link.net.end(link.to).is_some() { Probe::Open } else { Probe::Refused }
    }
    .boxed()
}
