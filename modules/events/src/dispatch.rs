//! Who is woken when something happens: each replica watches, and the one whose worker holds the lease of `outbox-dispatch` wakes the
//! subscriptions that ask for what happened. Once a minute all are looked at, so that no wake-up is missed for good.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_contract::{
    Context, Periodic, ReconcileContext, Reconciler, Result, ShardBy, module::Run, waking::Waker,
};
use palisade_state::{Table, Tx, View, shard::fnv1a_32};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    deliver::SUBSCRIBERS,
    filter::wants,
    records::{LETTERS, PROGRESS, ProgressRow, QUEUE, SUBSCRIPTIONS, SubscriptionRow, letters},
    schedule::LETTER_MS,
    secrets::retain,
};

/// The reconciler that looks at all subscriptions.
pub(crate) const DISPATCH: &str = "outbox-dispatch";
const ALL: &str = "all";
/// How often all are looked at.
const EVERY: Duration = Duration::from_secs(60);
/// A subscription is woken when it is so many events behind, although it asks for none of them: its cursor must not be left behind
/// by what leaves memory.
const BEHIND_MAX: u64 = 10_000;
/// Each subscription's dead letters are looked at once in so many passes.
const LETTER_PASSES: u64 = 60;
/// Dead letters that one pass removes of a subscription at most.
const LETTERS_STEP: usize = 100;

/// Rows of subscriptions that are gone that one pass removes of each kind at most.
const ORPHANS_STEP: usize = 500;

/// How far this process has looked, by subscription: nothing is looked at twice for nothing.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<BTreeMap<String, (String, u64)>>);

fn goes(row: &SubscriptionRow, progress: &ProgressRow) -> bool {
    !row.paused && progress.id == row.id && progress.disabled.is_none()
}

impl Waker for Seen {
    fn by(&self) -> &'static str {
        DISPATCH
    }

    fn whom(&self) -> &'static str {
        SUBSCRIBERS
    }

    fn last(&self, view: &View) -> u64 {
        view.last_event()
    }

    fn wanting(&self, view: &View, anew: bool) -> Result<Vec<String>> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if anew {
            seen.clear();
        }
        let (last, first) = (view.last_event(), view.first_event());
        let (mut wanting, mut still) = (vec![], BTreeMap::new());
        for found in SUBSCRIPTIONS.page(view, &[], None) {
            let (key, row) = found?;
            let row = row.value;
            let progress = PROGRESS.get(view, &key)?.map(|found| found.value).unwrap_or_default();
            if !goes(&row, &progress) {
                continue;
            }
            let looked = seen.get(&key).filter(|(id, _)| *id == row.id).map_or(0, |(_, to)| *to);
            let from = looked.max(progress.cursor) + 1;
            let is_behind = last.saturating_sub(progress.cursor) > BEHIND_MAX
                || first.is_some_and(|first| progress.cursor + 1 < first);
            if is_behind || view.events(from).any(|(_, event)| wants(&row, event)) {
                wanting.push(key.clone());
            }
            still.insert(key, (row.id, last));
        }
        *seen = still;
        Ok(wanting)
    }
}

/// See the module.
pub(crate) struct Dispatch;

impl Reconciler for Dispatch {
    fn name(&self) -> &'static str {
        DISPATCH
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::None
    }

    fn periodic(&self) -> Vec<Periodic> {
        vec![Periodic { key: ALL.to_owned(), every: EVERY }]
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, _key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            cx.finish(|tx| {
                let view = tx.view().clone();
                for key in Seen::default().wanting(&view, true)? {
                    // What waits for its time is woken by it.
                    if view.work(SUBSCRIBERS, &key).is_none() {
                        tx.enqueue(SUBSCRIBERS, &key)?;
                    }
                }
                let mut known = BTreeSet::new();
                for (key, row) in SUBSCRIPTIONS.all(&view)? {
                    tidy(&cx.context, tx, &view, &key, &row.value)?;
                    known.insert(row.value.rows());
                }
                orphans(tx, &view, &QUEUE, &known)?;
                orphans(tx, &view, &LETTERS, &known)
            })
            .await?;
            Ok(Run::Done)
        })
    }
}

/// Takes away what a subscription has had for long enough: the secret before the current one, and old dead letters.
fn tidy(cx: &Context, tx: &mut Tx, view: &View, key: &String, row: &SubscriptionRow) -> Result<()> {
    let now = view.clock().now_ms;
    if row.signing.iter().any(|signing| !signing.is_used(now))
        && let Some(mut row) = tx.get(&SUBSCRIPTIONS, key)?
    {
        retain(cx, tx, &mut row, |signing| signing.is_used(now))?;
        tx.put(&SUBSCRIPTIONS, key, &row)?;
    }
    let pass = now / u64::try_from(EVERY.as_millis()).unwrap_or(u64::MAX);
    if u64::from(fnv1a_32(key.as_bytes())) % LETTER_PASSES != pass % LETTER_PASSES {
        return Ok(());
    }
    expire(tx, view, key, &row.rows())
}

/// Removes rows of subscriptions that are gone.
fn orphans<V: Serialize + DeserializeOwned>(
    tx: &mut Tx,
    view: &View,
    table: &Table<String, V>,
    known: &BTreeSet<String>,
) -> Result<()> {
    let keys = view.rows(table.name(), b"", None).filter_map(|(key, _)| {
        let key = std::str::from_utf8(key).ok()?;
        let (rows, _) = key.rsplit_once('/')?;
        (!known.contains(rows)).then(|| key.to_owned())
    });
    let gone: Vec<String> = keys.take(ORPHANS_STEP).collect();
    for key in gone {
        tx.delete(table, &key)?;
    }
    Ok(())
}

/// Removes dead letters by their age, and says so.
fn expire(tx: &mut Tx, view: &View, key: &String, rows: &str) -> Result<()> {
    let now = view.clock().now_ms;
    let is_old = |dead_at: u64| now.saturating_sub(dead_at) >= LETTER_MS;
    let old = letters(view, rows)?.into_iter().filter(|(_, letter)| is_old(letter.dead_at));
    let old: Vec<String> = old.map(|(letter, _)| letter).take(LETTERS_STEP).collect();
    if old.is_empty() {
        return Ok(());
    }
    for letter in &old {
        tx.delete(&LETTERS, letter)?;
    }
    if let Some(mut progress) = tx.get(&PROGRESS, key)? {
        progress.letters_lost += old.len() as u64;
        tx.put(&PROGRESS, key, &progress)?;
    }
    Ok(())
}
