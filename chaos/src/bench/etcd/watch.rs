//! Deliveries: one writer, and many watchers that see each of its writes. The next write begins
//! when the last watcher has seen the one before.
//!
//! Watchers share 16 connections, and those of a connection share one stream: etcd's own client does
//! it like that, and Palisade has a call for it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use futures::{SinkExt, channel::mpsc};
use tokio::{sync::Notify, task::JoinHandle};

use super::{
    client::{Client, TABLE},
    cluster::Cluster,
    load::{self, CONNECTIONS_MAX, Loaded, Plan, Window, value},
    wire::{
        etcd::{WatchCreateRequest, WatchRequest as EtcdWatch, watch_request::RequestUnion},
        store::{
            WatchManyReply, WatchManyRequest, WatchReply, WatchRequest,
            watch_many_reply::Result as Told, watch_reply::Event,
        },
    },
};
use crate::clock::{self, Clock};

/// What is watched.
const PREFIX: &[u8] = b"watched/";
const PREFIX_END: &[u8] = b"watched0";
const EVENT_LIMIT: Duration = Duration::from_secs(10);

/// How many deliveries there were, and a bell for when it is enough.
#[derive(Default)]
pub(in crate::bench) struct Seen {
    deliveries: AtomicU64,
    wanted: AtomicU64,
    bell: Notify,
}

impl Seen {
    /// Counts that many more.
    pub(in crate::bench) fn add(&self, count: u64) {
        let now = self.deliveries.fetch_add(count, Ordering::AcqRel) + count;
        if now >= self.wanted.load(Ordering::Acquire) {
            self.bell.notify_one();
        }
    }

    /// Waits until there were so many.
    pub(in crate::bench) async fn until(&self, wanted: u64) -> Result<()> {
        self.wanted.store(wanted, Ordering::Release);
        let clock = Clock::start();
        while self.deliveries.load(Ordering::Acquire) < wanted {
            let left = EVENT_LIMIT.checked_sub(clock.elapsed());
            let left = left.with_context(|| {
                let seen = self.deliveries.load(Ordering::Acquire);
                format!("{seen} of {wanted} deliveries came")
            })?;
            clock::within(left.min(Duration::from_millis(100)), self.bell.notified()).await;
        }
        Ok(())
    }
}

/// Ends the watchers when it is dropped.
pub(in crate::bench) struct Watchers(pub(in crate::bench) Vec<JoinHandle<Result<()>>>);

impl Drop for Watchers {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

/// Watches with that many clients, and writes as long as the plan says.
pub(in crate::bench) async fn run(cluster: &Cluster, leader: usize, plan: Plan) -> Result<Loaded> {
    let seen = Arc::new(Seen::default());
    let watchers = watch_all(cluster, leader, plan.clients, &seen).await?;
    let mut writer = load::connect(cluster, leader, 1).await?.pop().context("no connection")?;
    deliver(&seen, &watchers, plan, async |number| {
        let key = [PREFIX, format!("{:03}", number % 100).as_bytes()].concat();
        let put = writer.put((key, value(number))).await;
        put.map(|_| ()).map_err(|failure| anyhow!("{failure}"))
    })
    .await
}

/// Writes, and waits each time until all watchers have seen it.
pub(in crate::bench) async fn deliver(
    seen: &Seen,
    watchers: &Watchers,
    plan: Plan,
    mut write: impl AsyncFnMut(u64) -> Result<()>,
) -> Result<Loaded> {
    let window = Window::start(&plan);
    let (mut loaded, mut number) = (Loaded::default(), 0);
    while !window.is_over() {
        number += 1;
        let began = Clock::start();
        write(number).await?;
        if let Err(error) = seen.until(number * plan.clients as u64).await {
            if watchers.0.iter().any(JoinHandle::is_finished) {
                bail!("a watcher ended: {error}");
            }
            return Err(error);
        }
        window.note(&began, plan.clients as u64, &mut loaded);
    }
    let (all, expected) = (seen.deliveries.load(Ordering::Acquire), number * plan.clients as u64);
    if all != expected {
        bail!("{all} deliveries, and {expected} were due");
    }
    Ok(loaded)
}

async fn watch_all(
    cluster: &Cluster,
    leader: usize,
    count: usize,
    seen: &Arc<Seen>,
) -> Result<Watchers> {
    let connections = load::connect(cluster, leader, count.clamp(1, CONNECTIONS_MAX)).await?;
    let shares: Vec<usize> = (0..connections.len())
        .map(|place| count / connections.len() + usize::from(place < count % connections.len()))
        .collect();
    let mut watchers = Watchers(Vec::new());
    for (client, share) in connections.into_iter().zip(shares) {
        let more = match client {
            Client::Etcd { watch, .. } => etcd(watch, share, seen.clone()).await?,
            Client::Ours(store) => ours(store, share, seen.clone()).await?,
        };
        watchers.0.push(more);
    }
    Ok(watchers)
}

type EtcdClient = super::wire::etcd::watch_client::WatchClient<super::way::Way>;

/// That many watches on one stream.
async fn etcd(
    mut client: EtcdClient,
    count: usize,
    seen: Arc<Seen>,
) -> Result<JoinHandle<Result<()>>> {
    let (mut requests, receiver) = mpsc::channel(count);
    for _ in 0..count {
        let create = WatchCreateRequest {
            key: PREFIX.into(),
            range_end: PREFIX_END.into(),
            ..WatchCreateRequest::default()
        };
        let request = EtcdWatch { request_union: Some(RequestUnion::CreateRequest(create)) };
        requests.send(request).await.context("the stream ended")?;
    }
    let mut replies = client.watch(receiver).await.context("the watch was refused")?.into_inner();
    let mut created = 0;
    while created < count {
        let reply = replies.message().await.context("the watch broke")?;
        created += usize::from(reply.context("the watch ended")?.created);
    }
    Ok(clock::spawn(async move {
        // The stream lives as long as its requests may come.
        let _requests = requests;
        while let Some(reply) = replies.message().await.context("the watch broke")? {
            if reply.canceled {
                bail!("a watch was cancelled: {}", reply.cancel_reason);
            }
            seen.add(reply.events.len() as u64);
        }
        bail!("the watch ended")
    }))
}

/// That many watches on one stream.
async fn ours(
    mut store: super::client::OurStore,
    count: usize,
    seen: Arc<Seen>,
) -> Result<JoinHandle<Result<()>>> {
    let (mut requests, receiver) = mpsc::channel(count);
    for id in 0..count as u64 {
        let watch = WatchRequest {
            table: TABLE.to_owned(),
            start: PREFIX.into(),
            end: Some(PREFIX_END.into()),
            ..WatchRequest::default()
        };
        let request = WatchManyRequest { id, watch: Some(watch) };
        requests.send(request).await.context("the stream ended")?;
    }
    let replies = store.watch_many(receiver).await.context("the watches were refused")?;
    let mut replies = replies.into_inner();
    // The first message of each says where it begins.
    for _ in 0..count {
        let first = replies.message().await.context("the watches broke")?;
        if told(first.context("the watches ended")?)? > 0 {
            bail!("a watch from now on begins with something older");
        }
    }
    Ok(clock::spawn(async move {
        // The stream lives as long as its requests may come.
        let _requests = requests;
        while let Some(reply) = replies.message().await.context("the watches broke")? {
            seen.add(told(reply)?);
        }
        bail!("the watches ended")
    }))
}

/// How many rows a message tells of.
fn told(reply: WatchManyReply) -> Result<u64> {
    match reply.result {
        Some(Told::Reply(WatchReply { event: Some(Event::Changes(changes)) })) => {
            Ok(changes.rows.len() as u64)
        }
        Some(Told::Reply(_)) => bail!("a watch was reset: its watcher was too slow"),
        Some(Told::Refusal(refusal)) => bail!("a watch was refused: {refusal:?}"),
        None => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_writer_waits_for_the_last_delivery() {
        let seen = Arc::new(Seen::default());
        let counter = seen.clone();
        let task = clock::spawn(async move {
            for _ in 0..10 {
                counter.add(1);
                tokio::task::yield_now().await;
            }
        });
        seen.until(10).await.unwrap();
        assert_eq!(seen.deliveries.load(Ordering::Acquire), 10);
        task.await.unwrap();
    }
}
