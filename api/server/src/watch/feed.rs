//! Lists that are watched: each is read once for all that watch it, and what has changed is kept for a while.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use bytes::Bytes;
use futures::{
    StreamExt,
    future::{Either, select},
};
use palisade_contract::{Code, Context, Error, Handler, MethodContext, Principal, Result};
use palisade_state::{View, WatchEvent};
use serde_json::Value;
use tokio::sync::Notify;

use super::{Narrowed, Told};
use crate::{envelope::Route, json};

/// Different lists that are watched at once.
const FEEDS_MAX: usize = 256;
/// Records of a list that is watched.
const RECORDS_MAX: usize = 20_000;
/// Bytes of changes that are kept for watchers that come back or are slow, and how many batches of them.
const KEPT_BYTES: usize = 4 << 20;
const KEPT_BATCHES: usize = 4096;
/// How long a list is read on that nobody watches, for those that come back.
const LINGER: Duration = Duration::from_secs(60);
/// The shortest and the longest pause between two readings; in between, a list is read for at most a fifth of the time.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(5);
const READING_SHARE: u32 = 4;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records as JSON, by id.
type Records = BTreeMap<String, Bytes>;

/// Lists are the same for whom they are.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    route: String,
    input: String,
    filter: String,
    principal: String,
    roles: Vec<String>,
    tenant: String,
}

/// The lists that are watched on this replica.
#[derive(Default)]
pub(crate) struct Feeds(Mutex<BTreeMap<Key, Arc<Feed>>>);

/// What one reading found changed.
struct Step {
    revision: u64,
    told: Vec<Told>,
    bytes: usize,
}

/// A list as it was read last.
#[derive(Default)]
struct Held {
    is_read: bool,
    revision: u64,
    records: Arc<Records>,
    steps: VecDeque<Step>,
    bytes: usize,
    /// Every change behind this revision is in `steps`.
    floor: u64,
    failed: Option<Arc<Error>>,
    watchers: usize,
}

/// One list.
pub(super) struct Feed {
    route: Arc<Route>,
    input: Value,
    filter: Narrowed,
    context: MethodContext,
    held: Mutex<Held>,
    reading: Mutex<()>,
    changed: Notify,
}

/// What a watcher has not been told yet.
pub(super) enum Taken {
    /// These changes, up to a revision.
    Steps(Vec<Told>, u64),
    /// It is too far behind: all records, at a revision.
    All(Vec<Bytes>, u64),
    /// The list cannot be read any more.
    Failed(Arc<Error>),
}

/// A watcher's share of a list; the list is let go some time after the last.
pub(super) struct Share(Arc<Feed>);

impl std::ops::Deref for Share {
    type Target = Feed;

    fn deref(&self) -> &Feed {
        &self.0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        lock(&self.0.held).watchers -= 1;
    }
}

impl Feeds {
    /// The list of a method with an input, as one principal sees it, read at `view` or later.
    pub(super) fn share(
        self: &Arc<Self>,
        route: &Arc<Route>,
        input: &Value,
        filter: &Narrowed,
        cx: MethodContext,
        view: &View,
    ) -> Result<Share> {
        let Principal { name, roles, tenant } = cx.principal.clone();
        let input_text = json::canonical(input);
        let key = Key {
            route: route.id.clone(),
            input: input_text,
            filter: filter.text.clone(),
            principal: name,
            roles,
            tenant,
        };
        let feed = || Feed {
            route: route.clone(),
            input: input.clone(),
            filter: filter.clone(),
            context: cx,
            held: Mutex::default(),
            reading: Mutex::default(),
            changed: Notify::new(),
        };
        let (share, is_new) = self.find(&key, feed)?;
        if is_new {
            // From before it is read on, so that no change can fall between.
            let changes = share.context().store.watch();
            let run = share.0.clone().follow(changes, Arc::downgrade(self), key);
            share.context().rt.spawn("watched list", Box::pin(run));
        }
        share.read(view)?;
        Ok(share)
    }

    fn find(&self, key: &Key, feed: impl FnOnce() -> Feed) -> Result<(Share, bool)> {
        // Taken while the lists are locked, so that one that is let go has no watcher.
        let share = |feed: &Arc<Feed>| {
            lock(&feed.held).watchers += 1;
            Share(feed.clone())
        };
        let mut feeds = lock(&self.0);
        if let Some(feed) = feeds.get(key) {
            return Ok((share(feed), false));
        }
        if feeds.len() >= FEEDS_MAX {
            let full = Error::new(
                Code::Unavailable,
                format!(
                    "{FEEDS_MAX} different lists are watched on this replica, which is all it takes"
                ),
            );
            return Err(full.hint("watch through another replica, or watch fewer different lists"));
        }
        let feed = Arc::new(feed());
        let first = share(&feed);
        feeds.insert(key.clone(), feed);
        Ok((first, true))
    }
}

impl Feed {
    fn context(&self) -> &Context {
        &self.context.context
    }

    /// Ends when the list may have changed.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// From which revision on all changes are known.
    pub(super) fn floor(&self) -> u64 {
        lock(&self.held).floor
    }

    /// What follows `at`; without it, all of it.
    pub(super) fn take(&self, at: Option<u64>) -> Taken {
        let held = lock(&self.held);
        if let Some(failed) = &held.failed {
            return Taken::Failed(failed.clone());
        }
        match at.filter(|at| *at >= held.floor) {
            None => Taken::All(held.records.values().cloned().collect(), held.revision),
            Some(at) => {
                let first = held.steps.partition_point(|step| step.revision <= at);
                let steps = held.steps.range(first..);
                let told = steps.flat_map(|step| step.told.iter().cloned()).collect();
                Taken::Steps(told, held.revision)
            }
        }
    }

    /// Reads it at `view`, unless it was read there or later.
    fn read(&self, view: &View) -> Result<()> {
        let _reading = lock(&self.reading);
        let before = {
            let held = lock(&self.held);
            if let Some(failed) = &held.failed {
                return Err(copy(failed));
            }
            if held.is_read && held.revision >= view.revision() {
                return Ok(());
            }
            held.records.clone()
        };
        match self.records(view) {
            Ok(now) => {
                let told = difference(&before, &now);
                lock(&self.held).advance(view.revision(), now, told);
                self.changed.notify_waiters();
                Ok(())
            }
            Err(error) => {
                lock(&self.held).failed = Some(Arc::new(copy(&error)));
                self.changed.notify_waiters();
                Err(error)
            }
        }
    }

    fn records(&self, view: &View) -> Result<Records> {
        let Handler::Query(run) = &self.route.method.handler else {
            return Err(Error::internal("what is watched is no query"));
        };
        let value = run(&self.context, view, self.input.clone())?;
        let items = match value {
            Value::Array(items) => items,
            Value::Object(mut fields) => match fields.remove("items") {
                Some(Value::Array(items)) => items,
                _ => return Err(Error::internal("a list method answered no items")),
            },
            _ => return Err(Error::internal("a list method answered no list")),
        };
        let items: Vec<Value> = items.into_iter().filter(|item| self.filter.takes(item)).collect();
        if items.len() > RECORDS_MAX {
            let long = Error::new(
                Code::TooLarge,
                format!("the list has {} records; up to {RECORDS_MAX} can be watched", items.len()),
            );
            return Err(long.hint("narrow it, by a filter"));
        }
        let mut records = BTreeMap::new();
        for item in items {
            let id = item.get("id").or_else(|| item.get("name")).and_then(Value::as_str);
            let id = id.ok_or_else(|| Error::internal("a record of a watched list has no id"))?;
            let bytes = serde_json::to_vec(&item).map_err(Error::internal)?;
            records.insert(id.to_owned(), Bytes::from(bytes));
        }
        Ok(records)
    }

    /// Reads it again whenever something has changed, until nobody watches any more.
    async fn follow(
        self: Arc<Self>,
        mut changes: palisade_state::Watch,
        feeds: Weak<Feeds>,
        key: Key,
    ) {
        let rt = self.context().rt.clone();
        let mut idle_since = None;
        loop {
            let quiet = rt.sleep(LINGER / 4);
            let has_changed = match select(changes.next(), quiet).await {
                Either::Left((Some(event), _)) => touches(&event),
                Either::Left((None, _)) => break,
                Either::Right(_) => false,
            };
            let mut more = false;
            while let Some(event) = changes.try_next() {
                more |= touches(&event);
            }
            let mut pause = Duration::ZERO;
            if has_changed || more {
                let began = rt.now();
                // What failed is told by `take`.
                let _ = self.read(&self.context().store.view());
                pause =
                    (rt.now().saturating_sub(began) * READING_SHARE).clamp(PAUSE_MIN, PAUSE_MAX);
            }
            let (watchers, has_failed) = {
                let held = lock(&self.held);
                (held.watchers, held.failed.is_some())
            };
            if has_failed {
                break;
            }
            match (watchers, idle_since) {
                (0, None) => idle_since = Some(rt.now()),
                (0, Some(since)) if rt.now().saturating_sub(since) >= LINGER => {
                    if self.leave(&feeds, &key) {
                        return;
                    }
                }
                (0, Some(_)) => {}
                _ => idle_since = None,
            }
            if pause > Duration::ZERO {
                rt.sleep(pause).await;
            }
        }
        if let Some(feeds) = feeds.upgrade() {
            lock(&feeds.0).remove(&key);
        }
    }

    /// Takes it out of the lists that are watched, unless somebody has come.
    fn leave(&self, feeds: &Weak<Feeds>, key: &Key) -> bool {
        let Some(feeds) = feeds.upgrade() else { return true };
        let mut feeds = lock(&feeds.0);
        let is_idle = lock(&self.held).watchers == 0;
        if is_idle {
            feeds.remove(key);
        }
        is_idle
    }
}

/// Whether a list can have changed.
fn touches(event: &WatchEvent) -> bool {
    match event {
        WatchEvent::Reset => true,
        WatchEvent::Changed(set) => !set.rows.is_empty() || set.everything,
    }
}

fn copy(error: &Error) -> Error {
    let mut copied = Error::new(error.code, error.detail.clone());
    copied.hint.clone_from(&error.hint);
    copied.problems.clone_from(&error.problems);
    copied
}

fn difference(before: &Records, now: &Records) -> Vec<Told> {
    let gone = before.keys().filter(|id| !now.contains_key(*id));
    let gone = gone.map(|id| Told::Delete(id.clone()));
    let put = now.iter().filter(|(id, record)| before.get(*id) != Some(record));
    gone.chain(put.map(|(_, record)| Told::Put(record.clone()))).collect()
}

impl Held {
    fn advance(&mut self, revision: u64, now: Records, told: Vec<Told>) {
        self.revision = revision;
        self.records = Arc::new(now);
        if !std::mem::replace(&mut self.is_read, true) {
            self.floor = revision;
            return;
        }
        if told.is_empty() {
            return;
        }
        let size = |told: &Told| match told {
            Told::Put(record) => record.len(),
            _ => 64,
        };
        let bytes = told.iter().map(size).sum();
        self.bytes += bytes;
        self.steps.push_back(Step { revision, told, bytes });
        while self.bytes > KEPT_BYTES || self.steps.len() > KEPT_BATCHES {
            let Some(oldest) = self.steps.pop_front() else { break };
            self.bytes -= oldest.bytes;
            self.floor = oldest.revision;
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_contract::{Method, Nothing};
    use palisade_state::{Runtime, memory::MemoryStore, port::Store};

    use super::*;

    fn records(of: &[(&str, &str)]) -> Records {
        of.iter().map(|(id, text)| ((*id).to_owned(), Bytes::from((*text).to_owned()))).collect()
    }

    fn short(told: &[Told]) -> Vec<String> {
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
        let one = |told: &Told| match told {
            Told::Put(record) => format!("put {}", text(record)),
            Told::Delete(id) => format!("delete {id}"),
            other => format!("{other:?}"),
        };
        told.iter().map(one).collect()
    }

    #[test]
    fn what_is_told_of_two_readings_is_what_differs() {
        let told =
            difference(&records(&[("a", "1"), ("b", "1")]), &records(&[("b", "2"), ("c", "1")]));
        assert_eq!(short(&told), ["delete a", "put 2", "put 1"]);
        assert!(difference(&records(&[("a", "1")]), &records(&[("a", "1")])).is_empty());
    }

    #[test]
    fn whoever_is_behind_what_is_kept_is_given_the_whole_list() {
        let mut held = Held::default();
        held.advance(10, records(&[("a", "0")]), vec![]);
        assert_eq!((held.floor, held.revision), (10, 10));
        let large = "x".repeat(KEPT_BYTES / 4);
        for revision in 11..=20 {
            let now = records(&[("a", large.as_str())]);
            let told = vec![Told::Put(Bytes::from(large.clone()))];
            held.advance(revision, now, told);
        }
        assert!(held.bytes <= KEPT_BYTES, "SSE-3");
        assert_eq!((held.floor, held.steps.len()), (16, 4), "SSE-1: 16 is the last that is gone");
        for revision in 21..=20 + 2 * KEPT_BATCHES as u64 {
            held.advance(
                revision,
                records(&[("a", "1")]),
                vec![Told::Put(Bytes::from_static(b"1"))],
            );
        }
        assert_eq!(held.steps.len(), KEPT_BATCHES, "SSE-3");
    }

    /// A runtime whose tasks are never run.
    struct Still;

    impl Runtime for Still {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
        fn wall_ms(&self) -> u64 {
            0
        }
        fn sleep(&self, _: Duration) -> futures::future::BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
        fn spawn(&self, _: &'static str, _: futures::future::BoxFuture<'static, ()>) {}
        fn random(&self) -> u64 {
            0
        }
    }

    #[test]
    fn one_list_is_read_once_for_all_and_not_for_others() {
        let reads = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = reads.clone();
        let method = Method::query("pets", "list", "compute:pets:read", move |_, _, _: Nothing| {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            Ok(vec![serde_json::json!({"id": "a"})])
        });
        let binding = palisade_contract::Binding {
            verb: palisade_contract::Verb::Get,
            path: "/pets".to_owned(),
        };
        let route = Arc::new(Route::new("pets.list".to_owned(), method, binding));
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let context = Context::new(Arc::new(Still), store);
        let view = context.store.view();
        let as_whom = |name: &str| MethodContext {
            context: context.clone(),
            principal: Principal { name: name.to_owned(), roles: vec![], tenant: String::new() },
            request_id: String::new(),
            dry_run: false,
            if_match: None,
        };
        let (feeds, input) = (Arc::new(Feeds::default()), serde_json::json!({}));
        let all = Narrowed::default();
        let shares: Vec<Share> = (0..1000)
            .map(|_| feeds.share(&route, &input, &all, as_whom("token/a"), &view).unwrap())
            .collect();
        let count = || reads.load(std::sync::atomic::Ordering::SeqCst);
        assert_eq!(count(), 1, "SSE-3");
        let _other = feeds.share(&route, &input, &all, as_whom("token/b"), &view).unwrap();
        assert_eq!(count(), 2, "somebody else may see something else");
        assert_eq!(lock(&shares[0].held).watchers, 1000);
        drop(shares);
        let again = feeds.share(&route, &input, &all, as_whom("token/a"), &view).unwrap();
        assert_eq!((count(), lock(&again.held).watchers), (2, 1), "it lingers for who comes back");
        for number in 2..FEEDS_MAX {
            feeds.share(&route, &input, &all, as_whom(&format!("token/{number}")), &view).unwrap();
        }
        let refused =
            feeds.share(&route, &input, &all, as_whom("token/more"), &view).err().unwrap();
        assert_eq!(refused.code, Code::Unavailable, "SSE-3");
    }
}
