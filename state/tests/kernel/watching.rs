//! WATCH-1: whoever follows change sets, from any revision and at any pace, ends with what is there
//! or is told to read everything again.

use std::collections::BTreeMap;

use palisade_state::{
    ChangeSet, Machine, Position, Store, Tx, View, Watch, WatchEvent,
    change::WATCH_BACKLOG_MAX,
    command::{Command, Entry, FORMAT, Kind, Tick},
    lease::Lease,
    memory::MemoryStore,
    queue::WorkRow,
};
use proptest::prelude::*;

use crate::logs::{T, record, steps, through_snapshot};

/// A copy of what is there, kept by following its changes.
struct Follower {
    watch: Watch,
    copy: Copy,
    applied: u64,
    resets: usize,
    expects_resets: usize,
}

#[derive(Debug, Default, PartialEq)]
struct Copy {
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
    work: BTreeMap<String, WorkRow>,
    leases: BTreeMap<String, Lease>,
    last_event: u64,
}

impl Copy {
    fn of(view: &View) -> Self {
        let rows = view.rows("t", &[], None);
        let work = view.work_of("kind", "");
        let leases = view.leases();
        Self {
            rows: rows.map(|(key, record)| (key.to_vec(), record.value().to_vec())).collect(),
            work: work.map(|(key, row)| (key.to_string(), row.clone())).collect(),
            leases: leases.map(|(name, lease)| (name.to_string(), lease.clone())).collect(),
            last_event: view.last_event(),
        }
    }

    fn follow(&mut self, changes: &ChangeSet, view: &View) {
        for key in changes.keys_of("t") {
            match view.row("t", key) {
                Some(record) => drop(self.rows.insert(key.to_vec(), record.value().to_vec())),
                None => drop(self.rows.remove(key.as_slice())),
            }
        }
        for key in changes.work_of("kind") {
            match view.work("kind", key) {
                Some(row) => drop(self.work.insert(key.to_string(), row.clone())),
                None => drop(self.work.remove(key.as_ref())),
            }
        }
        for name in &changes.leases {
            match view.lease(name) {
                Some(lease) => drop(self.leases.insert(name.to_string(), lease.clone())),
                None => drop(self.leases.remove(name.as_ref())),
            }
        }
        if let Some((first, after)) = changes.events {
            assert!(first <= self.last_event + 1, "WATCH-1: events between were left out");
            self.last_event = self.last_event.max(after - 1);
        }
    }
}

impl Follower {
    fn new(watch: Watch, read_at: &View, expects_resets: usize) -> Self {
        Self { watch, copy: Copy::of(read_at), applied: 0, resets: 0, expects_resets }
    }

    fn follow(&mut self, view: &View) {
        while let Some(event) = self.watch.try_next() {
            match event {
                WatchEvent::Changed(changes) if !changes.everything => {
                    assert!(changes.applied >= self.applied, "WATCH-1: in order");
                    self.applied = changes.applied;
                    self.copy.follow(&changes, view);
                }
                _ => {
                    self.resets += 1;
                    self.copy = Copy::of(view);
                }
            }
        }
    }
}

fn put(view: View) -> Command {
    let mut tx = Tx::new(view);
    tx.put(&T, &"k".to_owned(), &1).unwrap();
    tx.build().unwrap().into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A snapshot that is ahead is installed on the way, in some of the cases: the entries between
    /// are never seen one by one.
    #[test]
    fn followers_end_with_what_is_there(
        steps in steps(80),
        together in prop::collection::vec(any::<bool>(), 80),
        (begin, late) in (0..80_usize, 0..80_usize),
        install in prop::option::of((0..80_usize, 0..20_usize)),
    ) {
        let recorded = record(&steps);
        let (mut machine, mut ahead) = (Machine::default(), Machine::default());
        let published = machine.published();
        let mut begun = published.view();
        let last = recorded.log.len() - 1;
        let jump = install.filter(|(first, _)| *first <= last).map(|(first, more)| (first, last.min(first + more)));
        let mut installed: Option<u64> = None;
        let mut followers = vec![Follower::new(published.watch(), &begun, usize::from(jump.is_some()))];
        for (n, (at, entry)) in recorded.log.iter().enumerate() {
            ahead.apply(*at, entry.clone()).unwrap();
            ahead.publish();
            match jump {
                Some((first, end)) if (first..end).contains(&n) => {}
                Some((_, end)) if n == end => {
                    machine.publish();
                    machine.install(through_snapshot(&ahead));
                    installed = Some(at.index);
                }
                _ => drop(machine.apply(*at, entry.clone()).unwrap()),
            }
            // Some entries are published alone, some together.
            if n == 0 || together[n % together.len()] {
                machine.publish();
            }
            if n <= begin {
                begun = published.view();
            }
            if n == begin + late {
                let from = begun.revision();
                let missed = installed.is_some_and(|floor| from < floor);
                let comes = jump.is_some() && installed.is_none();
                let expects = usize::from(missed) + usize::from(comes);
                followers.push(Follower::new(published.watch_from(from), &begun, expects));
            }
            if let Some(follower) = followers.first_mut() {
                follower.follow(&published.view());
            }
        }
        machine.publish();
        let missed = usize::from(installed.is_some_and(|floor| begun.applied().index < floor));
        followers.push(Follower::new(published.watch_from(begun.applied().index), &begun, missed));
        let view = published.view();
        prop_assert_eq!(view.applied(), recorded.views.last().unwrap().applied());
        for follower in &mut followers {
            follower.follow(&view);
            prop_assert_eq!(&follower.copy, &Copy::of(&view), "WATCH-1");
            prop_assert_eq!(follower.resets, follower.expects_resets, "WATCH-1");
        }
    }
}

#[test]
fn a_watcher_too_slow_or_too_late_is_reset_and_ends_with_what_is_there() {
    let store = MemoryStore::default();
    let write = |n: u64| {
        let mut tx = Tx::new(store.view());
        let key = (n % 7).to_string();
        if n.is_multiple_of(3) {
            tx.delete(&T, &key).unwrap();
        } else {
            tx.put(&T, &key, &n).unwrap();
        }
        tx.enqueue("kind", &key).unwrap();
        store.apply(tx.build().unwrap().into()).unwrap();
    };
    let begun = store.view();
    let mut slow = Follower::new(store.watch(), &begun, 1);
    (0..WATCH_BACKLOG_MAX as u64 + 10).for_each(write);
    let mut late = Follower::new(store.watch_from(begun.applied().index), &begun, 1);
    let middle = store.view();
    (0..10).for_each(write);
    let mut in_time = Follower::new(store.watch_from(middle.applied().index), &middle, 0);
    for follower in [&mut slow, &mut late, &mut in_time] {
        follower.follow(&store.view());
        assert_eq!(follower.copy, Copy::of(&store.view()), "WATCH-1");
        assert_eq!(follower.resets, follower.expects_resets, "WATCH-1");
    }
}

#[test]
fn a_batch_is_one_publication_and_one_wake_up() {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };
    struct Count(AtomicUsize);
    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let mut machine = Machine::default();
    let published = machine.published();
    let mut watch = published.watch();
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = count.clone().into();
    let mut context = std::task::Context::from_waker(&waker);
    assert!(futures::StreamExt::poll_next_unpin(&mut watch, &mut context).is_pending());
    let before = published.view();
    for index in 1..=50 {
        let commands = vec![put(before.clone())];
        let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms: 0, wall_ms: 0, commands };
        machine.apply(Position { term: 1, index }, entry).unwrap();
        assert_eq!(published.view().applied().index, 0, "nothing shows before the publication");
    }
    machine.publish();
    assert_eq!(count.0.load(Ordering::Relaxed), 1, "one wake-up");
    let Some(WatchEvent::Changed(changes)) = watch.try_next() else { panic!("nothing came") };
    assert_eq!((changes.applied, changes.rows.len()), (50, 1), "one set, each key once");
    assert!(watch.try_next().is_none());
    assert_eq!((before.applied().index, before.count("t")), (0, 0), "a view stays what it was");
}

#[test]
fn an_installed_snapshot_shows_as_a_change_of_everything() {
    let mut machine = Machine::default();
    let published = machine.published();
    let mut watch = published.watch();
    let retired = machine.install(palisade_state::State::default());
    assert!(retired.is_large() && !retired.is_read());
    let Some(WatchEvent::Changed(changes)) = watch.try_next() else { panic!("nothing came") };
    assert!(changes.everything && changes.touches("whatever"));
}

#[test]
fn what_a_reader_still_holds_is_not_given_back() {
    let store = MemoryStore::default();
    let held = store.view();
    store.apply(Kind::Tick(Tick {}).into()).unwrap();
    assert_eq!(held.applied().index + 1, store.view().applied().index);
    let mut machine = Machine::default();
    let read = machine.published().view();
    assert!(machine.publish().is_read());
    drop(read);
    assert!(!machine.publish().is_read());
}
