//! Clients that work in a closed loop: each sends its next request when it has the answer to the
//! last one. The same loop drives both systems.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use futures::{SinkExt, channel::mpsc, future::try_join_all};

use super::{
    client::{Client, Failure, Row, applied, command, request},
    cluster::Cluster,
    histogram::Histogram,
};
use crate::clock::{self, Clock};

/// More connections than this are shared.
pub(super) const CONNECTIONS_MAX: usize = 16;
/// Bytes of a value.
pub(super) const VALUE_BYTES: usize = 256;
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(2);

/// How long, and by how many.
#[derive(Clone, Copy, Debug)]
pub(in crate::bench) struct Plan {
    pub(in crate::bench) clients: usize,
    /// What is answered meanwhile is not counted.
    pub(in crate::bench) warm: Duration,
    pub(in crate::bench) measured: Duration,
}

impl Plan {
    pub(super) fn connections(&self) -> usize {
        self.clients.clamp(1, CONNECTIONS_MAX)
    }
}

/// What the clients saw.
#[derive(Clone, Debug, Default)]
pub(in crate::bench) struct Loaded {
    /// Units (writes, reads) that were acknowledged within the measured time.
    pub(in crate::bench) units: u64,
    pub(in crate::bench) latency: Histogram,
    pub(in crate::bench) failures: u64,
    pub(in crate::bench) first_failure: Option<Failure>,
}

impl Loaded {
    fn add(&mut self, other: Self) {
        self.units += other.units;
        self.latency.add(&other.latency);
        self.failures += other.failures;
        self.first_failure = self.first_failure.take().or(other.first_failure);
    }

    /// Takes note of a call that failed.
    pub(in crate::bench) fn failed(&mut self, failure: Failure) {
        self.failures += 1;
        self.first_failure.get_or_insert(failure);
    }

    /// Together.
    pub(in crate::bench) fn sum(all: impl IntoIterator<Item = Self>) -> Self {
        all.into_iter().fold(Self::default(), |mut sum, one| {
            sum.add(one);
            sum
        })
    }
}

/// The window in which answers count.
#[derive(Clone, Copy)]
pub(in crate::bench) struct Window {
    clock: Clock,
    warm: Duration,
    end: Duration,
}

impl Window {
    /// Begins now.
    pub(in crate::bench) fn start(plan: &Plan) -> Self {
        Self { clock: Clock::start(), warm: plan.warm, end: plan.warm + plan.measured }
    }

    pub(in crate::bench) fn is_over(&self) -> bool {
        self.clock.elapsed() >= self.end
    }

    /// Takes note of an answer to what began at `began`, if it came within the window.
    pub(in crate::bench) fn note(&self, began: &Clock, units: u64, loaded: &mut Loaded) {
        let now = self.clock.elapsed();
        if now >= self.warm && now < self.end {
            loaded.units += units;
            loaded.latency.record(began.micros());
        }
    }
}

/// What one client does again and again.
pub(in crate::bench) trait Steps: Send + 'static {
    /// Does it once; how many units that were.
    fn step(&mut self, client: &mut Client) -> impl Future<Output = Result<u64, Failure>> + Send;
}

/// Lets that many clients work, each with steps of its own; answers what they saw, and the steps.
pub(in crate::bench) async fn closed_loop<S: Steps>(
    cluster: &Cluster,
    leader: usize,
    plan: Plan,
    make: impl Fn(usize) -> S,
) -> Result<(Loaded, Vec<S>)> {
    let connections = connect(cluster, leader, plan.connections()).await?;
    let window = Window::start(&plan);
    let tasks = (0..plan.clients).map(|number| {
        let mut client = connections[number % connections.len()].clone();
        let mut steps = make(number);
        clock::spawn(async move {
            let mut loaded = Loaded::default();
            while !window.is_over() {
                let began = Clock::start();
                match steps.step(&mut client).await {
                    Ok(units) => window.note(&began, units, &mut loaded),
                    Err(failure) => {
                        loaded.failed(failure);
                        clock::sleep(PAUSE_AFTER_FAILURE).await;
                    }
                }
            }
            (loaded, steps)
        })
    });
    let done = try_join_all(tasks).await.context("a client broke")?;
    let (loaded, steps): (Vec<_>, Vec<_>) = done.into_iter().unzip();
    Ok((Loaded::sum(loaded), steps))
}

/// Connections that have been used once: no handshake is measured.
pub(in crate::bench) async fn connect(
    cluster: &Cluster,
    member: usize,
    count: usize,
) -> Result<Vec<Client>> {
    let mut clients = try_join_all((0..count).map(|_| cluster.client(member))).await?;
    for (number, client) in clients.iter_mut().enumerate() {
        let row = (format!("warm/{number}").into_bytes(), value(0));
        if let Err(failure) = client.put(row).await {
            bail!("{} does not take a write: {failure}", cluster.side.name());
        }
    }
    Ok(clients)
}

/// Writes over one stream for each connection, each with its share of the clients' requests open.
pub(super) async fn pipelined(
    cluster: &Cluster,
    leader: usize,
    plan: Plan,
    prefix: &str,
) -> Result<Loaded> {
    let connections = connect(cluster, leader, plan.connections()).await?;
    let open = plan.clients.div_ceil(connections.len());
    let window = Window::start(&plan);
    let prefix: Arc<str> = prefix.into();
    let tasks = connections.into_iter().enumerate().map(|(number, client)| {
        clock::spawn(one_stream(client, Keys::new(&prefix, number), open, window))
    });
    let done = try_join_all(tasks).await.context("a stream's task broke")?;
    Ok(Loaded::sum(done.into_iter().collect::<Result<Vec<_>>>()?))
}

async fn one_stream(client: Client, mut keys: Keys, open: usize, window: Window) -> Result<Loaded> {
    let Client::Ours(mut store) = client else { bail!("etcd has no stream of writes") };
    let (mut requests, receiver) = mpsc::channel(open);
    let mut began = vec![Clock::start(); open];
    // The request's id names its place: a place is used again once it is answered.
    let mut next = move |place: usize| request(place as u64, &command(vec![keys.row()]));
    for place in 0..open {
        requests.send(next(place)).await.context("the stream ended")?;
    }
    let answer = store.propose_stream(receiver).await.context("the stream was refused")?;
    let (mut replies, mut loaded, mut flying) = (answer.into_inner(), Loaded::default(), open);
    while flying > 0 {
        let reply = replies.message().await.context("the stream broke")?;
        let reply = reply.context("the stream ended")?;
        let place = usize::try_from(reply.id).unwrap_or(usize::MAX);
        let begin = began.get_mut(place).context("an answer to what was not asked")?;
        match applied(reply) {
            Ok(_) => window.note(begin, 1, &mut loaded),
            Err(failure) => loaded.failed(failure),
        }
        if window.is_over() {
            flying -= 1;
            continue;
        }
        *begin = Clock::start();
        requests.send(next(place)).await.context("the stream ended")?;
    }
    Ok(loaded)
}

/// The keys of one client, each used once.
#[derive(Clone, Debug)]
pub(in crate::bench) struct Keys {
    prefix: String,
    next: u64,
}

impl Keys {
    pub(in crate::bench) fn new(prefix: &str, client: usize) -> Self {
        Self { prefix: format!("{prefix}/{client:03}/"), next: 0 }
    }

    /// The key with this number.
    pub(super) fn key(&self, number: u64) -> Vec<u8> {
        format!("{}{number:09}", self.prefix).into_bytes()
    }

    /// The next row.
    pub(in crate::bench) fn row(&mut self) -> Row {
        let row = (self.key(self.next), value(self.next));
        self.next += 1;
        row
    }

    /// How many were given out.
    pub(super) fn given(&self) -> u64 {
        self.next
    }
}

/// Bytes that do not compress.
pub(super) fn value(seed: u64) -> Vec<u8> {
    sized_value(seed, VALUE_BYTES)
}

/// That many bytes that do not compress.
pub(super) fn sized_value(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
    let mut value = Vec::with_capacity(bytes + 8);
    while value.len() < bytes {
        // Xorshift (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        value.extend_from_slice(&state.to_le_bytes());
    }
    value.truncate(bytes);
    value
}

/// One write a call.
pub(in crate::bench) struct Puts(pub(in crate::bench) Keys);

impl Steps for Puts {
    async fn step(&mut self, client: &mut Client) -> Result<u64, Failure> {
        client.put(self.0.row()).await?;
        Ok(1)
    }
}

/// That many writes in one transaction.
pub(super) struct PutsTogether(pub(super) Keys, pub(super) usize);

impl Steps for PutsTogether {
    async fn step(&mut self, client: &mut Client) -> Result<u64, Failure> {
        let rows = (0..self.1).map(|_| self.0.row()).collect();
        client.put_all(rows).await?;
        Ok(self.1 as u64)
    }
}

/// Reads rows that are there.
pub(super) struct Gets {
    pub(super) keys: Keys,
    pub(super) rows: u64,
    pub(super) state: u64,
}

impl Steps for Gets {
    async fn step(&mut self, client: &mut Client) -> Result<u64, Failure> {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let key = self.keys.key((self.state >> 33) % self.rows);
        match client.get(key).await? {
            Some(value) if value.len() == VALUE_BYTES => Ok(1),
            Some(_) => Err(Failure("a row with another value".into())),
            None => Err(Failure("a row that was written is not there".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_clients_share_a_key() {
        let (mut one, mut other) = (Keys::new("u16", 1), Keys::new("u16", 11));
        let mut keys: Vec<Vec<u8>> = (0..200).flat_map(|_| [one.row().0, other.row().0]).collect();
        keys.sort();
        keys.dedup();
        assert_eq!((keys.len(), one.given()), (400, 200));
    }

    #[test]
    fn values_have_their_length_and_differ() {
        assert_eq!(value(1).len(), VALUE_BYTES);
        assert_ne!(value(1), value(3));
        assert_eq!(sized_value(9, 13).len(), 13);
    }

    #[test]
    fn connections_are_as_many_as_clients_up_to_sixteen() {
        let plan = |clients| Plan { clients, warm: Duration::ZERO, measured: Duration::ZERO };
        let connections = [1, 7, 16, 256].map(|clients| plan(clients).connections());
        assert_eq!(connections, [1, 7, 16, 16]);
    }

    #[test]
    fn answers_outside_the_window_do_not_count() {
        let clock = Clock::start();
        let early = Window { clock, warm: Duration::from_secs(60), end: Duration::from_secs(90) };
        let late = Window { clock, warm: Duration::ZERO, end: Duration::ZERO };
        let inside = Window { clock, warm: Duration::ZERO, end: Duration::from_secs(90) };
        let mut loaded = Loaded::default();
        early.note(&clock, 1, &mut loaded);
        late.note(&clock, 1, &mut loaded);
        assert_eq!((loaded.units, loaded.latency.count()), (0, 0));
        inside.note(&clock, 5, &mut loaded);
        assert_eq!((loaded.units, loaded.latency.count()), (5, 1));
        assert!(late.is_over() && !inside.is_over());
    }
}
