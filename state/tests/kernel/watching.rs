//! WATCH-1: whoever follows change sets, from any revision and at any pace, ends with what is there
//! or is told to read everything again.

use std::collections::BTreeMap;

use palisade_state::{
    Machine, Position, Store, Table, Tx, View, Watch, WatchEvent,
    command::{Command, Entry, FORMAT, Form, Kind, Tick},
    memory::MemoryStore,
};
use proptest::prelude::*;

const T: Table<String, u64> = Table::new("t", &[]);
const OTHER: Table<String, u64> = Table::new("t2", &[]);

/// A copy of a table that is kept by following its changes.
struct Follower {
    watch: Watch,
    copy: BTreeMap<Vec<u8>, Vec<u8>>,
    work: BTreeMap<String, u64>,
    resets: usize,
}

fn all(view: &View) -> BTreeMap<Vec<u8>, Vec<u8>> {
    view.rows("t", &[], None).map(|(key, record)| (key.to_vec(), record.value().to_vec())).collect()
}

fn all_work(view: &View) -> BTreeMap<String, u64> {
    view.work_of("kind", "").map(|(key, row)| (key.to_string(), row.generation)).collect()
}

impl Follower {
    fn new(watch: Watch, read_at: &View) -> Self {
        Self { watch, copy: all(read_at), work: all_work(read_at), resets: 0 }
    }

    fn follow(&mut self, view: &View) {
        while let Some(event) = self.watch.try_next() {
            match event {
                WatchEvent::Changed(changes) if !changes.everything => {
                    for key in changes.keys_of("t") {
                        match view.row("t", key) {
                            Some(record) => {
                                drop(self.copy.insert(key.to_vec(), record.value().to_vec()))
                            }
                            None => drop(self.copy.remove(key.as_slice())),
                        }
                    }
                    for key in changes.work_of("kind") {
                        match view.work("kind", key) {
                            Some(row) => drop(self.work.insert(key.to_string(), row.generation)),
                            None => drop(self.work.remove(key.as_ref())),
                        }
                    }
                }
                _ => {
                    self.resets += 1;
                    self.copy = all(view);
                    self.work = all_work(view);
                }
            }
        }
    }
}

fn command(view: View, key: u8, what: u8) -> Command {
    let mut tx = Tx::new(view);
    let name = (key % 8).to_string();
    match what % 5 {
        0 => tx.delete(&T, &name).unwrap(),
        1 => tx.put(&OTHER, &name, &u64::from(key)).unwrap(),
        2 => tx.enqueue("kind", &name).unwrap(),
        3 => {
            let generation = tx.view().work("kind", &name).map_or(1, |row| row.generation);
            tx.finish(palisade_state::command::Finish {
                kind: "kind".into(),
                key: name,
                generation,
            });
        }
        _ => tx.put(&T, &name, &u64::from(key)).unwrap(),
    }
    tx.build().unwrap().into()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn followers_end_with_what_is_there(
        steps in prop::collection::vec((any::<u8>(), any::<u8>(), any::<bool>()), 1..80),
        begin in 0..80_usize,
        late in 0..80_usize,
    ) {
        let mut machine = Machine::default();
        let published = machine.published();
        let form = Form { cluster: "c".into(), lineage: "l".into(), epoch: 0 };
        let mut commands = vec![vec![Kind::Form(form).into()]];
        commands.extend(steps.iter().map(|(key, what, _)| {
            vec![command(Machine::default().published().view(), *key, *what)]
        }));
        let mut followers = vec![Follower::new(published.watch(), &published.view())];
        let mut begun = published.view();
        for (n, commands) in commands.into_iter().enumerate() {
            let at = Position { term: 1, index: n as u64 + 1 };
            let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms: 1, wall_ms: 1, commands };
            machine.apply(at, entry).unwrap();
            // Some entries are published alone, some together.
            if n == 0 || steps[n - 1].2 {
                machine.publish();
            }
            if n == begin {
                begun = published.view();
            }
            if n == begin + late {
                followers.push(Follower::new(published.watch_from(begun.revision()), &begun));
            }
            if let Some(follower) = followers.first_mut() {
                follower.follow(&published.view());
            }
        }
        machine.publish();
        followers.push(Follower::new(published.watch_from(begun.applied().index), &begun));
        let view = published.view();
        for follower in &mut followers {
            follower.follow(&view);
            prop_assert_eq!(&follower.copy, &all(&view), "WATCH-1");
            prop_assert_eq!(&follower.work, &all_work(&view), "WATCH-1");
            prop_assert_eq!(follower.resets, 0, "nothing was forgotten");
        }
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
        let commands = vec![command(before.clone(), 4, 4)];
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
