//! The runs of one subscription: it sends what waits and what happened since, and notes what became of it.
//!
//! # Invariants
//! - `EVT-8` A receiver that is slow or down takes places only among those who are: it holds up no other subscription.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, stream};
use palisade_contract::{
    Code, EventSink, ReconcileContext, Reconciler, Result, ShardBy, events::Webhooks, module::Run,
};
use palisade_state::{Tx, View, port::timeout};
use serde_json::json;

use crate::{
    Sinks,
    news::{Found, read},
    outcome::{Attempt, SINK_LIMIT, cloud_event, post},
    plan::{Item, News, Plan, is_down, plan},
    records::{
        DeliveryRow, LETTERS, LetterRow, PROGRESS, ProgressRow, QUEUE, Reason, SUBSCRIPTIONS,
        SubscriptionRow, letters, subscription, waiting,
    },
    secrets::keys,
    settle::{Left, Now},
    signature::SigningKey,
};

/// The reconciler whose keys are subscriptions.
pub(crate) const SUBSCRIBERS: &str = "event-subscribers";
/// Chains of one subscription that are sent at once.
const CHAINS_AT_ONCE: usize = 8;
/// Runs of subscriptions on one replica at once: of those that are well, and of those that are failing.
const WELL_MAX: usize = 24;
const FAILING_MAX: usize = 8;
/// How long a run waits for its place.
const PLACE: Duration = Duration::from_millis(500);
/// Dead letters of one subscription.
pub(crate) const LETTERS_MAX: usize = 1_000;

/// `EVT-8` Places for runs, on this replica.
#[derive(Debug, Default)]
struct Lanes {
    well: Arc<AtomicUsize>,
    failing: Arc<AtomicUsize>,
}

struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Lanes {
    fn enter(&self, is_failing: bool) -> Option<Place> {
        let (lane, most) =
            if is_failing { (&self.failing, FAILING_MAX) } else { (&self.well, WELL_MAX) };
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
    Webhook(Arc<dyn Webhooks>),
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
}

impl Subscribers {
    pub fn new(sinks: Arc<Sinks>) -> Self {
        Self { sinks, lanes: Lanes::default() }
    }

    fn courier(&self, cx: &ReconcileContext, row: &SubscriptionRow) -> Result<Option<Courier>> {
        if row.sink.is_empty() {
            return Ok(cx.context.ports.webhooks.filled().cloned().map(Courier::Webhook));
        }
        Ok(Some(Courier::Sink(self.sinks.find(&row.sink)?)))
    }

    async fn go(&self, cx: &ReconcileContext, key: &str) -> Result<Run> {
        let view = cx.view();
        let Some((row, seen)) = subscription(&view, key)? else { return Ok(Run::Done) };
        if row.paused || seen.disabled.is_some() || !is_open(cx, &view, &row)? {
            return Ok(Run::Done);
        }
        let Some(courier) = self.courier(cx, &row)? else { return Ok(Run::Done) };
        let Some(_place) = self.lanes.enter(seen.failing_since_ms.is_some()) else {
            return Ok(Run::After(PLACE));
        };
        let rows = waiting(&view, &row.rows())?;
        let tour = Tour { cx, view, key, row, seen, rows };
        let Found { news, gap } = tour.look().await?;
        let now = tour.view.clock().now_ms;
        let plan = plan(&tour.seen, &tour.rows, news, now);
        let done = tour.send(&courier, &plan.chains).await?;
        tour.settle(&plan, done, gap).await
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
    async fn send(&self, courier: &Courier, chains: &[Vec<Item>]) -> Result<Vec<(Item, Attempt)>> {
        if chains.is_empty() {
            return Ok(vec![]);
        }
        // Before anything is sent: what cannot be signed is no failure of the receiver.
        let keys = match courier {
            Courier::Webhook(_) => keys(&self.cx.context, &self.view, &self.row)?,
            Courier::Sink(_) => vec![],
        };
        let keys = keys.as_slice();
        let mut sent: Vec<BoxFuture<'_, Vec<(Item, Attempt)>>> = vec![];
        for chain in chains {
            sent.push(Box::pin(self.chain(courier, keys, chain)));
        }
        let done: Vec<Vec<(Item, Attempt)>> =
            stream::iter(sent).buffer_unordered(CHAINS_AT_ONCE).collect().await;
        Ok(done.into_iter().flatten().collect())
    }

    async fn chain(
        &self,
        courier: &Courier,
        keys: &[SigningKey],
        chain: &[Item],
    ) -> Vec<(Item, Attempt)> {
        let mut done = Vec::with_capacity(chain.len());
        let mut goes_on = true;
        for item in chain {
            let attempt = if goes_on && !self.cx.cancelled.is_cancelled() {
                self.attempt(courier, keys, &item.row).await
            } else {
                Attempt::Skipped
            };
            // EVT-2
            goes_on &= attempt == Attempt::Delivered;
            done.push((item.clone(), attempt));
        }
        done
    }

    async fn attempt(&self, courier: &Courier, keys: &[SigningKey], row: &DeliveryRow) -> Attempt {
        let (cx, event) = (&self.cx.context, &row.event);
        match courier {
            Courier::Webhook(port) => {
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

    /// `EVT-3`
    async fn settle(
        self,
        plan: &Plan,
        done: Vec<(Item, Attempt)>,
        gap: Option<(u64, u64)>,
    ) -> Result<Run> {
        let clock = self.cx.view().clock();
        let now = Now { logical: clock.now_ms, wall: clock.wall_ms };
        let rows = self.row.rows();
        let mut left = Left::of(&rows, &self.seen, plan, done, now);
        if let Some(gap) = gap {
            left.gap(&rows, gap, now);
        }
        let after = left.close(&self.rows);
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
        if left.disabled.is_none() {
            progress.disabled = before.disabled;
        }
        // What `resume` asked for meanwhile stands.
        progress.success_at = progress.success_at.max(before.success_at);
        progress.recovered_at = progress.recovered_at.max(before.recovered_at);
        progress.letters_lost = before.letters_lost + lost;
        tx.put(&PROGRESS, &key, &progress)?;
        if let Some(disabled) = &left.disabled {
            self.tell(tx, "subscription.disabled", &json!({ "reason": disabled.reason }));
        }
        Ok(())
    }

    /// `EVT-5` Keeps dead letters; how many older ones had to leave for them.
    fn give_up(&self, tx: &mut Tx, new: &[LetterRow]) -> Result<u64> {
        if new.is_empty() {
            return Ok(0);
        }
        let mut old = letters(tx.view(), &self.row.rows())?;
        old.sort_by_key(|(_, letter)| letter.dead_at);
        let surplus = (old.len() + new.len()).saturating_sub(LETTERS_MAX).min(old.len());
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
        let failing: Vec<Place> = (0..FAILING_MAX).filter_map(|_| lanes.enter(true)).collect();
        assert_eq!(failing.len(), FAILING_MAX);
        assert!(lanes.enter(true).is_none(), "EVT-8");
        let well: Vec<Place> = (0..WELL_MAX).filter_map(|_| lanes.enter(false)).collect();
        assert_eq!(well.len(), WELL_MAX, "EVT-8");
        drop(failing);
        assert!(lanes.enter(true).is_some(), "a place comes back");
    }
}
