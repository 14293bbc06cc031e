//! A unit of work from its enqueueing to its durable end, three steps with 64 producers.
//!
//! With etcd each step is a commit of its own, as a work queue on etcd does it: the unit is put;
//! claimed, if nobody has claimed it; finished, if it is still claimed. With Palisade the queue is
//! the kernel's: the producer's transaction enqueues the unit, the watch brings it to a worker that
//! holds the lease, and the worker's fenced transaction finishes it. The payload is the same: 256
//! bytes with the unit, 256 with its result.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use futures::{SinkExt, channel::mpsc, future::Either};
use palisade_state::{
    Command, Role, Txn,
    command::{Enqueue, FenceCheck, FenceWire, Finish, Kind, WorkerBeat},
};
use tokio::sync::oneshot;

use super::{
    client::{Client, Failure, OurStore, applied, op, propose, request, writes},
    cluster::{Cluster, Side},
    load::{self, Keys, Loaded, Plan, Steps, Window, value},
    wire::{
        etcd::{
            Compare, DeleteRangeRequest, PutRequest, TxnRequest, compare::CompareTarget,
            compare::TargetUnion, kv_client::KvClient, request_op::Request as Op,
        },
        store::{WatchRequest, watch_reply::Event},
    },
};
use crate::clock::{self, Clock};

/// The reconciler's name, and that of its lease.
const KIND: &str = "bench";
const WORKER: &str = "bench";
const BEAT: Duration = Duration::from_secs(3);
/// Ends of units that are on their way at a time.
const OPEN: usize = 1024;
const UNIT_LIMIT: Duration = Duration::from_secs(10);

/// How producers reach the leader of Palisade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// A call for each unit.
    Unary,
    /// A stream for each connection, as followers and gateways forward.
    Stream,
}

/// Lets producers work, each with one unit after the other.
pub(super) async fn run(
    cluster: &Cluster,
    leader: usize,
    plan: Plan,
    prefix: &str,
    way: Way,
) -> Result<Loaded> {
    if cluster.side == Side::Etcd {
        let make = |number| ThreeCommits(Keys::new(prefix, number));
        return Ok(load::closed_loop(cluster, leader, plan, make).await?.0);
    }
    let open = Arc::new(Open::default());
    let worker = Worker::start(cluster, leader, open.clone()).await?;
    let producers = async {
        match way {
            Way::Unary => {
                let make =
                    |number| Enqueued { keys: Keys::new(prefix, number), open: open.clone() };
                Ok(load::closed_loop(cluster, leader, plan, make).await?.0)
            }
            Way::Stream => over_streams(cluster, leader, plan, prefix, &open).await,
        }
    };
    match futures::future::select(Box::pin(producers), Box::pin(worker)).await {
        Either::Left((done, _)) => done,
        Either::Right((Ok(()), _)) => bail!("the worker ended early"),
        Either::Right((Err(error), _)) => Err(error.context("the worker")),
    }
}

/// Producers share one stream for each connection.
async fn over_streams(
    cluster: &Cluster,
    leader: usize,
    plan: Plan,
    prefix: &str,
    open: &Arc<Open>,
) -> Result<Loaded> {
    let connections = load::connect(cluster, leader, plan.connections()).await?;
    let window = Window::start(&plan);
    let mut tasks = vec![];
    for (place, client) in connections.into_iter().enumerate() {
        let Client::Ours(mut store) = client else { bail!("the queue is Palisade's") };
        let (requests, receiver) = mpsc::channel(0);
        tasks.push(clock::spawn(async move {
            let answer = store.propose_stream(receiver).await.context("the stream was refused")?;
            let mut replies = answer.into_inner();
            while let Some(reply) = replies.message().await.context("the stream broke")? {
                applied(reply).map_err(|failure| anyhow!("a unit was refused: {failure}"))?;
            }
            Ok(Loaded::default())
        }));
        for number in (place..plan.clients).step_by(plan.connections()) {
            let producer = Producer { keys: Keys::new(prefix, number), open: open.clone() };
            tasks.push(clock::spawn(producer.run(requests.clone(), window)));
        }
    }
    let done = futures::future::try_join_all(tasks).await.context("a producer broke")?;
    Ok(Loaded::sum(done.into_iter().collect::<Result<Vec<_>>>()?))
}

/// One producer on a shared stream. That its unit has ended says that it was enqueued.
struct Producer {
    keys: Keys,
    open: Arc<Open>,
}

impl Producer {
    async fn run(
        mut self,
        mut requests: mpsc::Sender<super::wire::store::ProposeRequest>,
        window: Window,
    ) -> Result<Loaded> {
        let mut loaded = Loaded::default();
        while !window.is_over() {
            let (key, unit) = self.keys.row();
            let ended = self.open.wait_for(String::from_utf8_lossy(&key).into_owned());
            let began = Clock::start();
            requests.send(request(0, &enqueue(key, unit))).await.context("the stream ended")?;
            match clock::within(UNIT_LIMIT, ended).await {
                Some(Ok(())) => window.note(&began, 1, &mut loaded),
                _ => bail!("a unit was not finished in time"),
            }
        }
        Ok(loaded)
    }
}

/// Writes a unit and enqueues it.
fn enqueue(key: Vec<u8>, unit: Vec<u8>) -> Command {
    let name = String::from_utf8_lossy(&key).into_owned();
    let enqueue = Enqueue { kind: KIND.to_owned(), key: name, delay_ms: 0 };
    Txn { writes: writes(vec![(key, unit)]), enqueues: vec![enqueue], ..Txn::default() }.into()
}

/// etcd: three commits by the producer itself.
struct ThreeCommits(Keys);

fn if_equal(key: &[u8], target: CompareTarget, union: TargetUnion) -> Compare {
    Compare {
        target: target.into(),
        key: key.to_vec().into(),
        target_union: Some(union),
        ..Compare::default()
    }
}

fn put_op(key: Vec<u8>, value: Vec<u8>) -> super::wire::etcd::RequestOp {
    op(Op::RequestPut(PutRequest { key: key.into(), value: value.into() }))
}

fn delete_op(key: Vec<u8>) -> super::wire::etcd::RequestOp {
    op(Op::RequestDeleteRange(DeleteRangeRequest {
        key: key.into(),
        ..DeleteRangeRequest::default()
    }))
}

impl Steps for ThreeCommits {
    async fn step(&mut self, client: &mut Client) -> Result<u64, Failure> {
        let (key, unit) = self.0.row();
        let Client::Etcd { kv, .. } = client else {
            return Err(Failure("three commits are etcd's way".into()));
        };
        let with = |prefix: &str| [prefix.as_bytes(), &key].concat();
        let (queued, claim, done) = (with("queue/"), with("claim/"), with("done/"));
        let put = PutRequest { key: queued.clone().into(), value: unit.into() };
        let made = kv.put(put).await?.into_inner().header.map_or(0, |header| header.revision);
        let claimed = TxnRequest {
            compare: vec![
                if_equal(&queued, CompareTarget::Mod, TargetUnion::ModRevision(made)),
                if_equal(&claim, CompareTarget::Version, TargetUnion::Version(0)),
            ],
            success: vec![put_op(claim.clone(), WORKER.as_bytes().to_vec())],
            ..TxnRequest::default()
        };
        committed(kv, claimed).await?;
        let finished = TxnRequest {
            compare: vec![if_equal(&claim, CompareTarget::Version, TargetUnion::Version(1))],
            success: vec![delete_op(queued), delete_op(claim), put_op(done, value(1))],
            ..TxnRequest::default()
        };
        committed(kv, finished).await?;
        Ok(1)
    }
}

async fn committed(kv: &mut KvClient<super::way::Way>, txn: TxnRequest) -> Result<(), Failure> {
    if kv.txn(txn).await?.into_inner().succeeded {
        Ok(())
    } else {
        Err(Failure("a condition did not hold".into()))
    }
}

/// Units whose producers wait for their end.
#[derive(Default)]
struct Open(Mutex<BTreeMap<String, oneshot::Sender<()>>>);

impl Open {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, oneshot::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for(&self, key: String) -> oneshot::Receiver<()> {
        let (tx, rx) = oneshot::channel();
        self.lock().insert(key, tx);
        rx
    }

    fn ended(&self, key: &str) {
        if let Some(waiting) = self.lock().remove(key) {
            let _ = waiting.send(());
        }
    }
}

/// Ours: the producer enqueues, and waits until the worker has finished.
struct Enqueued {
    keys: Keys,
    open: Arc<Open>,
}

impl Steps for Enqueued {
    async fn step(&mut self, client: &mut Client) -> Result<u64, Failure> {
        let Client::Ours(store) = client else {
            return Err(Failure("the queue is Palisade's".into()));
        };
        let (key, unit) = self.keys.row();
        let name = String::from_utf8_lossy(&key).into_owned();
        let ended = self.open.wait_for(name);
        propose(store, enqueue(key, unit)).await?;
        match clock::within(UNIT_LIMIT, ended).await {
            Some(Ok(())) => Ok(1),
            Some(Err(_)) => Err(Failure("the worker has gone".into())),
            None => Err(Failure("a unit was not finished in time".into())),
        }
    }
}

/// A worker that holds the lease of the kind.
struct Worker;

impl Worker {
    /// Takes the lease and watches the queue. What it answers works until it is dropped.
    async fn start(
        cluster: &Cluster,
        leader: usize,
        open: Arc<Open>,
    ) -> Result<impl Future<Output = Result<()>> + use<>> {
        let (_, term) = cluster.until_settled().await?;
        let Client::Ours(mut store) = cluster.as_replica(leader).await? else {
            bail!("the queue is ours")
        };
        let incarnation = clock::unix_micros();
        let beat = WorkerBeat {
            worker: WORKER.to_owned(),
            incarnation,
            role: Role::Controllers.into(),
            singletons: vec![KIND.to_owned()],
            draining: false,
            sharded: false,
        };
        let granted = propose(&mut store, Kind::WorkerBeat(beat.clone()).into()).await;
        let granted = granted.map_err(|failure| anyhow!("the lease: {failure}"))?;
        let fence = FenceWire { epoch: cluster.epoch, term, index: granted.revision };
        let check = FenceCheck {
            lease: format!("singleton:{KIND}"),
            worker: WORKER.to_owned(),
            incarnation,
            fence: Some(fence),
        };
        let watch = WatchRequest { work_kind: KIND.to_owned(), ..WatchRequest::default() };
        let watched = store.watch(watch).await.context("the queue cannot be watched")?;
        let mut watched = watched.into_inner();
        // The first message says where it begins: no unit is there yet.
        watched.message().await.context("the watch of the queue broke")?;
        let (ends, ends_rx) = mpsc::channel(OPEN);
        let keys = Names::default();
        let finish = finish_all(watched, check, ends, keys.clone());
        let answered = answer_all(store.clone(), ends_rx, keys, open);
        let beats = beat_on(store, beat);
        Ok(async move {
            futures::try_join!(finish, answered, beats)?;
            Ok(())
        })
    }
}

type Names = Arc<Mutex<BTreeMap<u64, String>>>;

fn names(keys: &Names) -> MutexGuard<'_, BTreeMap<u64, String>> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Commits the end of each unit that the watch brings.
async fn finish_all(
    mut watched: tonic::Streaming<super::wire::store::WatchReply>,
    check: FenceCheck,
    mut ends: mpsc::Sender<super::wire::store::ProposeRequest>,
    keys: Names,
) -> Result<()> {
    let mut next = 0;
    loop {
        let reply = watched.message().await.context("the watch broke")?;
        let changes = match reply.context("the watch ended")?.event {
            Some(Event::Changes(changes)) => changes,
            Some(Event::Reset(_)) => {
                bail!("the watch of the queue was reset: the worker was too slow")
            }
            None => continue,
        };
        for change in changes.work.into_iter().filter(|change| change.generation > 0) {
            let end = end_of(&change.key, change.generation, check.clone());
            names(&keys).insert(next, change.key);
            ends.send(request(next, &end)).await.context("the stream of ends ended")?;
            next += 1;
        }
    }
}

/// The fenced transaction that ends a unit.
fn end_of(key: &str, generation: u64, check: FenceCheck) -> Command {
    let end = Finish { kind: KIND.to_owned(), key: key.to_owned(), generation };
    Txn {
        fence: Some(check),
        work: Some(end.clone()),
        finishes: vec![end],
        writes: writes(vec![(key.as_bytes().to_vec(), value(1))]),
        ..Txn::default()
    }
    .into()
}

/// Tells producers whose units have ended.
async fn answer_all(
    mut store: OurStore,
    ends: mpsc::Receiver<super::wire::store::ProposeRequest>,
    keys: Names,
    open: Arc<Open>,
) -> Result<()> {
    let answer = store.propose_stream(ends).await.context("the stream of ends was refused")?;
    let mut replies = answer.into_inner();
    loop {
        let reply = replies.message().await.context("the stream of ends broke")?;
        let reply = reply.context("the stream of ends ended")?;
        let key = names(&keys).remove(&reply.id).context("an end that nobody began")?;
        applied(reply).map_err(|failure| anyhow!("the end of {key}: {failure}"))?;
        open.ended(&key);
    }
}

/// Keeps the worker's session.
async fn beat_on(mut store: OurStore, beat: WorkerBeat) -> Result<()> {
    let mut last = Clock::start();
    loop {
        clock::sleep(BEAT.saturating_sub(last.elapsed())).await;
        last = Clock::start();
        let beaten = propose(&mut store, Kind::WorkerBeat(beat.clone()).into()).await;
        beaten.map_err(|failure| anyhow!("a beat: {failure}"))?;
    }
}

#[cfg(test)]
mod tests {
    use palisade_state::command::Kind;

    use super::*;

    #[tokio::test]
    async fn a_producer_learns_of_its_units_end() {
        let open = Open::default();
        let (first, second) = (open.wait_for("a".into()), open.wait_for("b".into()));
        open.ended("b");
        open.ended("nobody waits");
        assert_eq!(second.await, Ok(()));
        drop(open);
        assert!(first.await.is_err());
    }

    #[test]
    fn an_end_is_fenced_and_names_its_generation() {
        let check = FenceCheck { lease: "singleton:bench".into(), ..FenceCheck::default() };
        let Some(Kind::Txn(txn)) = end_of("k", 7, check).kind else { panic!("no transaction") };
        assert_eq!(txn.fence.unwrap().lease, "singleton:bench");
        assert_eq!((txn.work.as_ref(), txn.finishes[0].generation), (txn.finishes.first(), 7));
        assert_eq!(txn.writes[0].value.as_ref().unwrap().len(), 256);
    }
}
