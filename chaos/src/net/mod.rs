//! The network between replicas and agents: a proxy of our own in front of each replica's ports.
//!
//! Bytes of a connection stay in order and whole: what TCP does not allow is not done. Connections
//! overtake each other, and an old one may deliver what it held after its successor did.
//!
//! # Invariants
//! - `NET-1` A byte is delivered at most once on its connection, in order, or the connection ends.

mod carry;
mod shapes;
mod who;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::clock;

pub(crate) use shapes::{Cut, one_way, partition};
pub(crate) use who::{ByAddress, BySocket, Who};

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
const LOOK_MS: u64 = 5;

/// A process with a place in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Host {
    /// The replica of this place.
    Replica(usize),
    /// The agent of this place.
    Agent(usize),
}

/// From whom to whom.
pub(crate) type Pair = (Host, Host);

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rule {
    /// They are held.
    pub(crate) cut: bool,
    /// They take this much longer, in microseconds.
    pub(crate) delay: u64,
    /// And up to this much more.
    pub(crate) jitter: u64,
}

impl Rule {
    /// Nothing comes through.
    pub(crate) const CUT: Self = Self { cut: true, delay: 0, jitter: 0 };

    fn and(self, other: Self) -> Self {
        Self {
            cut: self.cut || other.cut,
            delay: self.delay.max(other.delay),
            jitter: self.jitter.max(other.jitter),
        }
    }
}

/// One connection.
#[derive(Default)]
struct Connection {
    /// From whom, and to whom; none: somebody for whom no rule is made.
    pair: Option<Pair>,
    /// It ends at once, with all that is on its way.
    over: AtomicBool,
    /// What comes from the side that connected is held.
    held: AtomicBool,
    /// The side that connected was told that it has ended.
    cut_off: AtomicBool,
    changed: Notify,
}

impl Connection {
    fn set(&self, flag: &AtomicBool, to: bool) {
        flag.store(to, Ordering::SeqCst);
        self.changed.notify_waiters();
    }
}

/// Rules that a fault made; they end when it does.
#[derive(Debug)]
pub(crate) struct Token(u64);

/// See the module documentation.
pub(crate) struct Net {
    who: Box<dyn Who>,
    rules: Mutex<BTreeMap<u64, BTreeMap<Pair, Rule>>>,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    next: AtomicU64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Net {
    pub(crate) fn new(who: Box<dyn Who>) -> Self {
        Self {
            who,
            rules: Mutex::default(),
            connections: Mutex::default(),
            next: AtomicU64::new(1),
        }
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// From now on these rules hold, beside those of others.
    pub(crate) fn begin(&self, rules: BTreeMap<Pair, Rule>) -> Token {
        let token = self.number();
        lock(&self.rules).insert(token, rules);
        Token(token)
    }

    /// The rules end.
    pub(crate) fn end(&self, token: &Token) {
        lock(&self.rules).remove(&token.0);
    }

    fn rule(&self, pair: Pair) -> Rule {
        let rules = lock(&self.rules);
        rules
            .values()
            .filter_map(|rules| rules.get(&pair))
            .fold(Rule::default(), |all, rule| all.and(*rule))
    }

    fn of(&self, wanted: impl Fn(Pair) -> bool) -> Vec<Arc<Connection>> {
        let connections = lock(&self.connections);
        connections
            .values()
            .filter(|connection| connection.pair.is_some_and(&wanted))
            .cloned()
            .collect()
    }

    /// Ends all connections between these; answers how many.
    pub(crate) fn reset(&self, wanted: impl Fn(Pair) -> bool) -> usize {
        let found = self.of(wanted);
        found.iter().for_each(|connection| connection.set(&connection.over, true));
        found.len()
    }

    /// Holds what comes on the connections that there are now.
    pub(crate) fn hold(&self, wanted: impl Fn(Pair) -> bool) -> Held {
        let found = self.of(wanted);
        found.iter().for_each(|connection| connection.set(&connection.held, true));
        Held(found)
    }

    /// Passes everything that comes to `listener` on to `upstream`, which belongs to `to`.
    pub(crate) async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        to: Host,
        upstream: SocketAddr,
    ) {
        loop {
            match listener.accept().await {
                Ok((client, peer)) => {
                    drop(clock::spawn(self.clone().pass(client, peer, to, upstream)));
                }
                Err(error) => {
                    tracing::warn!(%error, "a proxy cannot accept");
                    clock::sleep_ms(100).await;
                }
            }
        }
    }

    async fn pass(self: Arc<Self>, client: TcpStream, peer: SocketAddr, to: Host, up: SocketAddr) {
        let from = match client.local_addr() {
            Ok(local) => self.who.at(peer, local).await,
            Err(_) => None,
        };
        let pair = from.filter(|from| *from != to).map(|from| (from, to));
        if let Some((from, to)) = pair {
            while self.rule((from, to)).cut || self.rule((to, from)).cut {
                clock::sleep_ms(LOOK_MS).await;
            }
        }
        let Some(Ok(server)) = clock::within(CONNECT_LIMIT, TcpStream::connect(up)).await else {
            // As if nobody listened.
            let _ = client.set_zero_linger();
            return;
        };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let connection = Arc::new(Connection { pair, ..Connection::default() });
        let number = self.number();
        lock(&self.connections).insert(number, connection.clone());
        carry::both(&self, &connection, client, server, number).await;
        lock(&self.connections).remove(&number);
    }
}

/// Connections whose bytes are held.
pub(crate) struct Held(Vec<Arc<Connection>>);

impl Held {
    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Tells those that connected that it has ended; what is held stays.
    pub(crate) fn cut_off(&self) {
        self.0.iter().for_each(|connection| connection.set(&connection.cut_off, true));
    }

    /// What is held is delivered.
    pub(crate) fn release(&self) {
        self.0.iter().for_each(|connection| connection.set(&connection.held, false));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests;
