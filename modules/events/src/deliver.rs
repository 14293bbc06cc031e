//! The runs of one subscription: it sends what waits and what happened since, and notes what became of it.
//!
//! # Invariants
//! - `EVT-8` A receiver that is slow or down takes places only among those who are: it holds up no other subscription. Who was well
//!   until now and is slow at once holds one place for one attempt more than [`SLICE`], and is among the slow then.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream};
use palisade_contract::{
    Code, Error, EventSink, ReconcileContext, Reconciler, Result, ShardBy, events::Webhooks,
    module::Run,
};
use palisade_state::{Tx, View, port::timeout};
use serde_json::json;

use crate::{
    Sinks,
    news::{Found, read},
    outcome::{Attempt, SINK_LIMIT, cloud_event, post, shortened},
    plan::{Item, News, Plan, is_down, plan},
    records::{
        DeliveryRow, LETTERS, LetterRow, PROGRESS, ProgressRow, QUEUE, Reason, SUBSCRIPTIONS,
        StoppedRow, SubscriptionRow, letters, subscription, waiting,
    },
    secrets::keys,
    settle::{Left, Now},
    signature::SigningKey,
};

/// The reconciler whose keys are subscriptions.
pub(crate) const SUBSCRIBERS: &str = "event-subscribers";
/// Chains of one subscription that are sent at once.
const CHAINS_AT_ONCE: usize = 8;
/// Runs of subscriptions on one replica at once: of those that are well, and of those that are slow or failing.
const WELL_MAX: usize = 24;
const SLOW_MAX: usize = 8;
/// How long a run waits for its place.
const PLACE: Duration = Duration::from_millis(500);
/// A run of those that are well begins no attempt after this time; one of those that are slow or failing has more.
const SLICE: Duration = Duration::from_secs(2);
const SLOW_SLICE: Duration = Duration::from_secs(10);
/// A receiver that took so long for one event is slow, and stays among the slow for so many logical milliseconds.
const SLOW: Duration = Duration::from_secs(2);
const SLOW_MS: u64 = 10 * 60 * 1000;
/// Logical milliseconds until it is looked again whether what could not be sent from here can be.
const BLOCKED_MS: u64 = 30_000;
/// Dead letters of one subscription, and bytes of their data.
pub(crate) const LETTERS_MAX: usize = 1_000;
const LETTERS_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// `EVT-8` Places for runs, on this replica.
#[derive(Debug, Default)]
struct Lanes {
    well: Arc<AtomicUsize>,
    slow: Arc<AtomicUsize>,
}

struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lanes {
    fn enter(&self, is_slow: bool) -> Option<Place> {
        let (lane, most) = if is_slow { (&self.slow, SLOW_MAX) } else { (&self.well, WELL_MAX) };
        let more = |taken: usize| (taken < most).then_some(taken + 1);
        lane.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Place(lane.clone()))
    }
}

/// See the module.
pub(crate) struct Subscribers {
    sinks: Arc<Sinks>,
    lanes: Lanes,
}

/// Who takes the events of a subscription.
enum Courier {
    /// What is sent to it is signed with these.
    Webhook(Arc<dyn Webhooks>, Vec<SigningKey>),
    Sink(Arc<dyn EventSink>),
}

/// One run.
struct Tour<'a> {
    cx: &'a ReconcileContext,
    view: View,
    key: &'a str,
    row: SubscriptionRow,
    seen: ProgressRow,
    rows: Vec<DeliveryRow>,
    is_slow: bool,
}

/// What a run has sent.
#[derive(Default)]
struct Sent {
    done: Vec<(Item, Attempt)>,
    /// An attempt took long.
    is_slow: bool,
}

impl Subscribers {
    pub fn new(sinks: Arc<Sinks>) -> Self {
        Self { sinks, lanes: Lanes::default() }
    }

    /// Who takes what a run sends, and what it is signed with: what cannot be signed is no failure of the receiver.
    fn courier(&self, tour: &Tour<'_>, port: Option<&Arc<dyn Webhooks>>) -> Result<Courier> {
        match port {
            Some(port) => {
                let keys = keys(&tour.cx.context, &tour.view, &tour.row)?;
                Ok(Courier::Webhook(port.clone(), keys))
            }
            None => Ok(Courier::Sink(self.sinks.find(&tour.row.sink)?)),
        }
    }

    async fn go(&self, cx: &ReconcileContext, key: &str) -> Result<Run> {
        let view = cx.view();
        let Some((row, seen)) = subscription(&view, key)? else { return Ok(Run::Done) };
        if row.paused || seen.disabled.is_some() || !is_open(cx, &view, &row)? {
            return Ok(Run::Done);
        }
        let port = cx.context.ports.webhooks.filled().filter(|_| row.sink.is_empty());
        if row.sink.is_empty() && port.is_none() {
            return Ok(Run::Done);
        }
        let now = view.clock().now_ms;
        let is_slow = seen.failing_since_ms.is_some() || now < seen.slow_until;
        let Some(_place) = self.lanes.enter(is_slow) else { return Ok(Run::After(PLACE)) };
        let rows = waiting(&view, &row.rows())?;
        let tour = Tour { cx, view, key, row, seen, rows, is_slow };
        let Found { news, gap } = tour.look().await?;
        let plan = plan(&tour.seen, &tour.rows, news, now);
        if plan.chains.is_empty() {
            return tour.settle(&plan, Sent::default(), gap).await;
        }
        match self.courier(&tour, port) {
            Ok(courier) => {
                let sent = tour.send(&courier, &plan.chains).await;
                tour.settle(&plan, sent, gap).await
            }
            Err(why) => tour.block(&why).await,
        }
    }
}

/// Whether something is sent for a tenant: not any more when it is being deleted.
fn is_open(cx: &ReconcileContext, view: &View, row: &SubscriptionRow) -> Result<bool> {
    match cx.context.ports.tenant_open(&mut Tx::new(view.clone()), &row.tenant) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.code, Code::InvalidState | Code::NotFound) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Tour<'_> {
    async fn look(&self) -> Result<Found> {
        let waits = self.view.clock().now_ms < self.seen.hold_until;
        if waits || is_down(&self.seen, &self.rows) {
            let news = News { until: self.seen.cursor, ..News::default() };
            return Ok(Found { news, gap: None });
        }
        read(&self.cx.context, &self.view, &self.row, &self.seen).await
    }

    /// Sends the chains beside each other, and each in order.
    async fn send(&self, courier: &Courier, chains: &[Vec<Item>]) -> Sent {
        let rt = &self.cx.context.rt;
        let until = rt.now() + if self.is_slow { SLOW_SLICE } else { SLICE };
        let mut all: Vec<BoxFuture<'_, Sent>> = vec![];
        for chain in chains {
            all.push(Box::pin(self.chain(courier, chain, until)));
        }
        let all: Vec<Sent> = stream::iter(all).buffer_unordered(CHAINS_AT_ONCE).collect().await;
        let is_slow = all.iter().any(|sent| sent.is_slow);
        Sent { done: all.into_iter().flat_map(|sent| sent.done).collect(), is_slow }
    }

    async fn chain(&self, courier: &Courier, chain: &[Item], until: Duration) -> Sent {
        let rt = &self.cx.context.rt;
        let mut sent = Sent::default();
        let mut goes_on = true;
        for item in chain {
            let begun = rt.now();
            // EVT-8: what is left of it waits for the next run.
            let attempt = if goes_on && begun < until && !self.cx.cancelled.is_cancelled() {
                self.attempt(courier, &item.row).await
            } else {
                Attempt::Skipped
            };
            sent.is_slow |= rt.now().saturating_sub(begun) >= SLOW;
            // EVT-2
            goes_on &= attempt == Attempt::Delivered;
            sent.done.push((item.clone(), attempt));
        }
        sent
    }

    async fn attempt(&self, courier: &Courier, row: &DeliveryRow) -> Attempt {
        let (cx, event) = (&self.cx.context, &row.event);
        match courier {
            Courier::Webhook(port, keys) => {
                let at = cx.rt.wall_ms() / 1000;
                port.post(post(&self.row, keys, event, at)).await.into()
            }
            Courier::Sink(sink) => {
                let event = cloud_event(event);
                match timeout(&*cx.rt, SINK_LIMIT, sink.deliver(cx, &event)).await {
                    Some(Ok(())) => Attempt::Delivered,
                    Some(Err(error)) => Attempt::failed(error.to_string()),
                    None => Attempt::failed("the sink did not take it within 30 seconds"),
                }
            }
        }
    }

    /// Says why what waits cannot be sent from here, and has it looked at again soon. Nothing is moved: `EVT-3`
    async fn block(&self, why: &Error) -> Result<Run> {
        let reason = shortened(&why.detail);
        let build = |tx: &mut Tx| {
            let (key, at_ms) = (self.key.to_owned(), tx.view().clock().wall_ms);
            let found = tx.get(&PROGRESS, &key)?.filter(|progress| progress.id == self.row.id);
            let Some(mut progress) = found else { return Ok(()) };
            match &mut progress.blocked {
                Some(blocked) if blocked.reason == reason => return Ok(()),
                Some(blocked) => blocked.reason.clone_from(&reason),
                None => {
                    progress.blocked = Some(StoppedRow { reason: reason.clone(), at_ms });
                    self.tell(tx, "subscription.blocked", &json!({ "reason": reason }));
                }
            }
            Ok(tx.put(&PROGRESS, &key, &progress)?)
        };
        self.cx.go_on(BLOCKED_MS, build).await?;
        Ok(Run::Done)
    }

    /// `EVT-3`
    async fn settle(self, plan: &Plan, sent: Sent, gap: Option<(u64, u64)>) -> Result<Run> {
        let clock = self.cx.view().clock();
        let now = Now { logical: clock.now_ms, wall: clock.wall_ms };
        let rows = self.row.rows();
        let mut left = Left::of(&rows, &self.seen, plan, sent.done, now);
        if sent.is_slow {
            left.progress.slow_until = now.logical.saturating_add(SLOW_MS);
        }
        if let Some(gap) = gap {
            left.gap(&rows, gap, now);
        }
        let after = left.close(&self.rows);
        if !plan.chains.is_empty() || after.is_empty() {
            left.progress.blocked = None;
        }
        let goes_on = plan.more || gap.is_some();
        let next = next_ms(&left, &after, goes_on, now.logical);
        if left.progress == self.seen && left.added.is_empty() {
            return Ok(next.map_or(Run::Done, |ms| Run::After(Duration::from_millis(ms))));
        }
        let build = |tx: &mut Tx| self.write(tx, &left);
        match next {
            None => self.cx.finish(build).await?,
            Some(delay_ms) => self.cx.go_on(delay_ms, build).await?,
        };
        Ok(Run::Done)
    }

    /// Writes what the run leaves, unless the subscription is another one by now.
    fn write(&self, tx: &mut Tx, left: &Left) -> Result<()> {
        let key = self.key.to_owned();
        let row = tx.get(&SUBSCRIPTIONS, &key)?;
        let before = tx.get(&PROGRESS, &key)?;
        let Some(before) = before.filter(|before| before.id == self.row.id) else { return Ok(()) };
        if row.is_none() || before.cursor != self.seen.cursor {
            return Ok(());
        }
        for gone in &left.gone {
            tx.delete(&QUEUE, &gone.key())?;
        }
        for row in &left.changed {
            // What was dropped meanwhile stays so.
            if tx.get(&QUEUE, &row.key())?.is_some() {
                tx.put(&QUEUE, &row.key(), row)?;
            }
        }
        for row in &left.added {
            tx.put(&QUEUE, &row.key(), row)?;
        }
        let lost = self.give_up(tx, &left.letters)?;
        let mut progress = left.progress.clone();
        progress.letters_lost = before.letters_lost + lost;
        // What somebody asked for meanwhile stands: this run was of before.
        let is_resumed = before.recovered_at != self.seen.recovered_at;
        if is_resumed {
            let now = tx.view().clock().now_ms;
            progress.success_at = Some(now);
            progress.recovered_at = before.recovered_at.max(now) + 1;
            progress.hold_until = before.hold_until;
            (progress.probes, progress.probe_at) = (before.probes, before.probe_at);
        }
        if is_resumed || left.disabled.is_none() {
            progress.disabled = before.disabled;
        } else if let Some(disabled) = &left.disabled {
            self.tell(tx, "subscription.disabled", &json!({ "reason": disabled.reason }));
        }
        Ok(tx.put(&PROGRESS, &key, &progress)?)
    }

    /// `EVT-5` Keeps dead letters; how many older ones had to leave for them.
    fn give_up(&self, tx: &mut Tx, new: &[LetterRow]) -> Result<u64> {
        if new.is_empty() {
            return Ok(0);
        }
        let mut old = letters(tx.view(), &self.row.rows())?;
        old.sort_by_key(|(_, letter)| letter.dead_at);
        let surplus = surplus(old.iter().map(|(_, letter)| letter), new);
        for (key, _) in old.iter().take(surplus) {
            tx.delete(&LETTERS, key)?;
        }
        for letter in new {
            tx.put(&LETTERS, &letter.key(), letter)?;
            let (kind, data) = match (letter.reason, &letter.delivery) {
                (Reason::Exhausted, Some(delivery)) => (
                    "subscription.dead-letter",
                    json!({
                        "event": delivery.event.id, "type": delivery.event.kind,
                        "subject": delivery.event.subject, "attempts": delivery.attempts,
                    }),
                ),
                _ => {
                    let (from, to) = letter.gap.unwrap_or_default();
                    ("subscription.gap", json!({ "from": from, "to": to }))
                }
            };
            self.tell(tx, kind, &data);
        }
        Ok(surplus as u64)
    }

    fn tell(&self, tx: &mut Tx, kind: &str, data: &serde_json::Value) {
        tx.publish(kind, &self.row.tenant, format!("subscription/{}", self.row.name), data);
    }
}

/// How many of the old ones must leave for new ones, from the first on. `EVT-5`
fn surplus<'a>(old: impl Iterator<Item = &'a LetterRow> + Clone, new: &'a [LetterRow]) -> usize {
    let bytes = |letter: &LetterRow| letter.delivery.as_ref().map_or(0, |row| row.event.bytes);
    let mut count = old.clone().count() + new.len();
    let mut total: u64 = old.clone().chain(new).map(bytes).fold(0, u64::saturating_add);
    let too_many = |letter: &&LetterRow| {
        let is_one = count > LETTERS_MAX || total > LETTERS_BYTES_MAX;
        count -= 1;
        total = total.saturating_sub(bytes(letter));
        is_one
    };
    old.take_while(too_many).count()
}

/// Milliseconds until the next run; `None`: nothing is due until something happens.
fn next_ms(left: &Left, after: &[DeliveryRow], goes_on: bool, now: u64) -> Option<u64> {
    if left.progress.disabled.is_some() {
        return None;
    }
    let news = News { until: left.progress.cursor, ..News::default() };
    let next = plan(&left.progress, after, news, now);
    if now < left.progress.hold_until {
        return Some(left.progress.hold_until - now);
    }
    let is_due = !next.chains.is_empty() || next.more || (goes_on && !next.is_down);
    if is_due { Some(0) } else { next.next_due.map(|due| due.saturating_sub(now)) }
}

impl Reconciler for Subscribers {
    fn name(&self) -> &'static str {
        SUBSCRIBERS
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        let all = SUBSCRIPTIONS.all(view)?.into_iter();
        Ok(all.filter(|(_, row)| !row.value.paused).map(|(key, _)| key).collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(self.go(cx, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_ones_take_no_place_of_those_that_are_well() {
        let lanes = Lanes::default();
        let failing: Vec<Place> = (0..SLOW_MAX).filter_map(|_| lanes.enter(true)).collect();
        assert_eq!(failing.len(), SLOW_MAX);
        assert!(lanes.enter(true).is_none(), "EVT-8");
        let well: Vec<Place> = (0..WELL_MAX).filter_map(|_| lanes.enter(false)).collect();
        assert_eq!(well.len(), WELL_MAX, "EVT-8");
        drop(failing);
        assert!(lanes.enter(true).is_some(), "a place comes back");
    }
}
