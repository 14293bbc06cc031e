//! Work that is woken by what happens: each replica watches, and the one that holds a reconciler's lease wakes it.

use std::sync::{Mutex, PoisonError};

use futures::{FutureExt, StreamExt, channel::oneshot, select_biased};
use palisade_state::{View, lease::singleton_lease};

use crate::{Context, Result};

/// Which keys have something to do because of what happened.
pub trait Waker: Send + Sync + 'static {
    /// The reconciler whose lease says who wakes. It has one for all its keys.
    fn by(&self) -> &'static str;

    /// The reconciler that is woken.
    fn whom(&self) -> &'static str;

    /// The number of the last thing that happened: while it stays, nobody is looked for.
    fn last(&self, view: &View) -> u64;

    /// The keys that have something to do. `anew`: nothing may be left out because it was woken before, for somebody else may have
    /// held the lease, or a wake-up have failed.
    ///
    /// # Errors
    /// A record cannot be read.
    fn wanting(&self, view: &View, anew: bool) -> Result<Vec<String>>;
}

/// Whether a module watches.
#[derive(Debug, Default)]
pub struct Watching(Mutex<Option<oneshot::Sender<()>>>);

impl Watching {
    /// Begins to watch, unless that has begun.
    pub fn begin(&self, cx: &Context, name: &'static str, waker: impl Waker) {
        let mut watching = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if watching.is_none() {
            let (stop, stopped) = oneshot::channel();
            *watching = Some(stop);
            cx.rt.spawn(name, Box::pin(watch(cx.clone(), waker, stopped)));
        }
    }

    /// Ends it.
    pub fn end(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// Watches until `stop` ends. Whatever goes wrong, the reconciler's own period finds what was not woken.
async fn watch(cx: Context, waker: impl Waker, stop: oneshot::Receiver<()>) {
    let lease = singleton_lease(waker.by());
    let (mut changes, mut stop) = (cx.store.watch().fuse(), stop.fuse());
    let mut last = None;
    loop {
        select_biased! {
            _ = stop => return,
            change = changes.next() => match change {
                // One look for all that waits.
                Some(_) => while changes.get_mut().try_next().is_some() {},
                None => return,
            },
        }
        let view = cx.store.view();
        let me = cx.store.replica().to_string();
        if view.lease(&lease).is_none_or(|lease| lease.owner.as_ref() != me) {
            last = None;
            continue;
        }
        let now = waker.last(&view);
        if last == Some(now) {
            continue;
        }
        last = match wake(&cx, &waker, &view, last.is_none()).await {
            Ok(()) => Some(now),
            // The next change is another try.
            Err(error) => {
                tracing::debug!(%error, whom = waker.whom(), "nobody was woken");
                None
            }
        };
    }
}

async fn wake(cx: &Context, waker: &impl Waker, view: &View, anew: bool) -> Result<()> {
    let wanting = waker.wanting(view, anew)?;
    if !wanting.is_empty() {
        let whom = waker.whom();
        cx.commit(|tx| Ok(wanting.iter().try_for_each(|key| tx.enqueue(whom, key))?)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use futures::future::BoxFuture;
    use palisade_state::{
        Role, Runtime, Store as _,
        command::{Kind, Tick, WorkerBeat},
        memory::MemoryStore,
    };

    use super::*;
    use crate::Error;

    const BY: &str = "test.dispatch";
    const WHOM: &str = "test.work";

    /// Keeps what is spawned, for the test to drive.
    #[derive(Default)]
    struct Kept(Mutex<Vec<BoxFuture<'static, ()>>>);

    impl Runtime for Kept {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn wall_ms(&self) -> u64 {
            0
        }

        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }

        fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) {
            self.0.lock().unwrap().push(task);
        }

        fn random(&self) -> u64 {
            0
        }
    }

    /// Wants one key for each event; notes what it was asked.
    #[derive(Default)]
    struct Asked {
        looks: Mutex<Vec<(u64, bool)>>,
        fails: Mutex<bool>,
    }

    impl Waker for Arc<Asked> {
        fn by(&self) -> &'static str {
            BY
        }

        fn whom(&self) -> &'static str {
            WHOM
        }

        fn last(&self, view: &View) -> u64 {
            view.last_event()
        }

        fn wanting(&self, view: &View, anew: bool) -> Result<Vec<String>> {
            self.looks.lock().unwrap().push((view.last_event(), anew));
            if *self.fails.lock().unwrap() {
                return Err(Error::internal("it cannot be read"));
            }
            Ok(view.events(0).map(|(_, event)| event.subject.to_string()).collect())
        }
    }

    struct World {
        store: Arc<MemoryStore>,
        cx: Context,
        tasks: Arc<Kept>,
        watching: Watching,
        asked: Arc<Asked>,
    }

    impl World {
        fn new() -> Self {
            let (store, tasks) = (Arc::new(MemoryStore::default()), Arc::<Kept>::default());
            let cx = Context::new(tasks.clone(), store.clone());
            let world =
                Self { store, cx, tasks, watching: Watching::default(), asked: Arc::default() };
            world.watching.begin(&world.cx, "a test", world.asked.clone());
            assert_eq!(world.looks(), []);
            world
        }

        fn beat(&self, worker: &str) {
            let beat = WorkerBeat {
                worker: worker.to_owned(),
                incarnation: 1,
                role: Role::Controllers.into(),
                singletons: vec![BY.to_owned()],
                draining: false,
                sharded: true,
            };
            assert!(self.store.apply(Kind::WorkerBeat(beat).into()).unwrap().is_applied());
        }

        fn happens(&self, subject: &str) {
            let told = self.cx.commit(|tx| {
                tx.publish("test.told", "", subject.to_owned(), &serde_json::Value::Null);
                Ok(())
            });
            told.now_or_never().unwrap().unwrap();
        }

        fn ticks(&self) {
            self.store.apply(Kind::Tick(Tick {}).into()).unwrap();
        }

        /// Drives the watch as far as it goes; whether it is over, and how it looked meanwhile.
        fn drive(&self) -> (bool, Vec<(u64, bool)>) {
            let mut tasks = self.tasks.0.lock().unwrap();
            assert_eq!(tasks.len(), 1, "one watch");
            let is_over = (&mut tasks[0]).now_or_never().is_some();
            (is_over, std::mem::take(&mut *self.asked.looks.lock().unwrap()))
        }

        fn looks(&self) -> Vec<(u64, bool)> {
            let (is_over, looks) = self.drive();
            assert!(!is_over);
            looks
        }

        fn is_woken(&self, key: &str) -> bool {
            self.store.view().work(WHOM, key).is_some()
        }
    }

    #[test]
    fn who_holds_the_lease_wakes_and_looks_once_for_all_that_happened() {
        let world = World::new();
        world.happens("a");
        assert_eq!(world.looks(), [], "nobody holds the lease");
        world.beat("1");
        assert_eq!(world.looks(), [(1, true)]);
        assert!(world.is_woken("a"));
        // Nothing happened, whatever else changed.
        world.ticks();
        world.beat("1");
        assert_eq!(world.looks(), []);
        for subject in ["b", "c", "d"] {
            world.happens(subject);
        }
        assert_eq!(world.looks(), [(4, false)]);
        assert!(world.is_woken("d"));
    }

    #[test]
    fn who_does_not_hold_the_lease_wakes_nobody_and_looks_anew_once_it_does() {
        let world = World::new();
        world.beat("2");
        world.happens("a");
        assert_eq!(world.looks(), []);
        assert!(!world.is_woken("a"));
        let mut waited = 0;
        while world.store.view().lease(&singleton_lease(BY)).unwrap().owner.as_ref() != "1" {
            world.store.advance(1_000);
            world.beat("1");
            waited += 1;
            assert!(waited < 600, "the lease of who is gone ends");
        }
        assert_eq!(world.looks(), [(1, true)]);
        assert!(world.is_woken("a"));
    }

    #[test]
    fn a_wake_up_that_failed_is_tried_again_with_the_next_change() {
        let world = World::new();
        world.beat("1");
        assert_eq!(world.looks(), [(0, true)]);
        *world.asked.fails.lock().unwrap() = true;
        world.happens("a");
        assert_eq!(world.looks(), [(1, false)]);
        *world.asked.fails.lock().unwrap() = false;
        assert_eq!(world.looks(), [], "not before something changes");
        world.ticks();
        assert_eq!(world.looks(), [(1, true)]);
        assert!(world.is_woken("a"));
        world.ticks();
        assert_eq!(world.looks(), []);
    }

    #[test]
    fn it_begins_once_and_ends_when_it_is_told_to() {
        let world = World::new();
        world.watching.begin(&world.cx, "a test", world.asked.clone());
        assert!(!world.drive().0);
        world.watching.end();
        assert!(world.drive().0);
    }
}
