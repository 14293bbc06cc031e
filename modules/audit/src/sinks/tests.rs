//! A sink that takes, one that does not, and one that was away for too long.

use std::sync::Mutex;

use palisade_contract::{
    Code, Error, When,
    audit::AuditSink,
    past::{History, Lives, Reach, Wanted},
};
use palisade_state::{
    command::{AuditDraft, Kind, Trim},
    limits::AUDIT_MAX,
    outbox::Event,
    past::Kept,
};
use palisade_testing::Bench;

use super::*;

/// Keeps what it is given.
#[derive(Default)]
struct Keeping {
    batches: Mutex<Vec<AuditBatch>>,
    refuses: Mutex<Option<&'static str>>,
}

impl AuditSink for Keeping {
    fn deliver<'a>(&'a self, _: &'a Context, batch: &'a AuditBatch) -> BoxFuture<'a, Result<()>> {
        let answer = match *self.refuses.lock().unwrap() {
            Some(why) => Err(Error::new(Code::ProviderError, why)),
            None => {
                self.batches.lock().unwrap().push(batch.clone());
                Ok(())
            }
        };
        Box::pin(std::future::ready(answer))
    }
}

/// The module without its watch: the tests step its work.
struct Stepped<'a>(&'a AuditSinks);

impl Module for Stepped<'_> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        self.0.reconcilers()
    }
}

struct World {
    bench: Bench,
    sink: Arc<Keeping>,
    module: AuditSinks,
}

impl World {
    fn new() -> Self {
        let sink = Arc::new(Keeping::default());
        let registered = RegisteredAuditSink { id: "siem", version: "1", sink: sink.clone() };
        let module = AuditSinks::new(vec![registered]);
        let bench = Bench::new(&[&Stepped(&module)]);
        Self { bench, sink, module }
    }

    fn record(&self, count: u64) {
        for _ in 0..count {
            self.bench.commit(|tx| {
                tx.audit(AuditDraft { method: "workloads.scale".into(), ..AuditDraft::default() });
                Ok(())
            });
        }
    }

    fn tick(&self) {
        self.bench.jobs(KIND).tick();
    }

    /// The numbers that the sink took, and those that it was told are missing.
    fn taken(&self) -> (Vec<u64>, Vec<(u64, u64)>) {
        let batches = self.sink.batches.lock().unwrap();
        let seqs = batches.iter().flat_map(|batch| batch.records.iter().map(|one| one.seq));
        (seqs.collect(), batches.iter().filter_map(|batch| batch.missing).collect())
    }

    fn checks(&self) -> Vec<(String, Option<u64>)> {
        let found = self.module.self_check(&self.bench.context, &self.bench.view()).unwrap();
        found.into_iter().map(|finding| (finding.check, finding.count)).collect()
    }
}

#[test]
fn a_sink_is_given_each_record_once_in_order() {
    let world = World::new();
    world.record(3);
    world.tick();
    assert_eq!(world.taken(), (vec![1, 2, 3], vec![]));
    world.record(2);
    world.bench.advance(60_000);
    world.tick();
    world.bench.advance(60_000);
    world.tick();
    assert_eq!(world.taken(), (vec![1, 2, 3, 4, 5], vec![]), "SINK-2");
    assert_eq!(world.checks(), []);
}

#[test]
fn more_than_fits_into_one_batch_is_given_in_several() {
    let world = World::new();
    world.record(BATCH_MAX as u64 + 7);
    world.tick();
    let sizes: Vec<usize> =
        world.sink.batches.lock().unwrap().iter().map(|batch| batch.records.len()).collect();
    assert_eq!(sizes, [BATCH_MAX, 7]);
}

#[test]
fn a_sink_that_fails_is_tried_again_later_and_misses_nothing() {
    let world = World::new();
    *world.sink.refuses.lock().unwrap() = Some("its disk is full");
    world.record(2);
    world.tick();
    world.tick();
    assert_eq!(progress(&world.bench.view(), &"siem@1".into()).unwrap().failing.unwrap().tries, 1);
    world.bench.advance(1_000);
    world.tick();
    let row = progress(&world.bench.view(), &"siem@1".into()).unwrap();
    assert_eq!((row.done, row.failing.unwrap().tries), (0, 2));
    assert_eq!(world.checks(), [], "a moment is not worth a word");
    world.bench.advance(PATIENCE_MS);
    world.record(1);
    assert_eq!(world.checks(), [("audit.sink-failing".to_owned(), Some(3))]);
    *world.sink.refuses.lock().unwrap() = None;
    world.tick();
    assert_eq!(world.taken(), (vec![1, 2, 3], vec![]), "SINK-1");
    assert_eq!(world.checks(), []);
}

/// A history that begins late.
struct Late(Vec<AuditRecord>);

impl History for Late {
    fn reach(&self) -> Reach {
        Reach::default()
    }

    fn audit(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<AuditRecord>>> {
        let all = self.0.iter().filter(|record| record.seq >= from).take(limit).cloned();
        Box::pin(std::future::ready(Ok(all.collect())))
    }

    fn events(&self, _: u64, _: usize) -> BoxFuture<'static, Result<Vec<(u64, Event)>>> {
        unreachable!("nobody asks for events")
    }

    fn view_at(&self, _: When, _: Vec<Kept>) -> BoxFuture<'static, Result<View>> {
        unreachable!("nobody asks for a view")
    }

    fn lives(&self, _: &'static str, _: Wanted) -> BoxFuture<'static, Result<Lives>> {
        unreachable!("nobody asks for lives")
    }

    fn times(&self, _: Vec<u64>) -> BoxFuture<'static, Result<Vec<Option<u64>>>> {
        unreachable!("nobody asks for times")
    }
}

#[test]
fn what_has_left_memory_comes_from_history_and_what_has_left_both_is_named() {
    let world = World::new();
    let last = AUDIT_MAX as u64 + 7;
    world.record(last);
    let seqs = [3, 4, 6];
    let view = world.bench.view();
    let late = Late(view.audit(1).filter(|one| seqs.contains(&one.seq)).cloned().collect());
    world.bench.context.ports.history.fill(Arc::new(late)).unwrap();
    let trim = Kind::Trim(Trim { events_below: 1, audit_below: 8 });
    assert!(world.bench.store.apply(trim.into()).unwrap().is_applied());
    assert_eq!(world.bench.view().first_audit(), Some(8));
    while progress(&world.bench.view(), &"siem@1".into()).unwrap().done < last {
        world.tick();
        world.bench.advance(50);
    }
    let (taken, missing) = world.taken();
    assert_eq!(taken, seqs.into_iter().chain(8..=last).collect::<Vec<_>>(), "SINK-1");
    assert_eq!(missing, [(1, 2), (5, 5), (7, 7)], "SINK-1");
    assert_eq!(world.checks(), [("audit.sink-missing".to_owned(), Some(4))]);
}

#[test]
fn only_who_has_something_to_be_told_of_is_woken_and_who_failed_by_its_time() {
    let world = World::new();
    let waiting = Waiting(vec!["siem@1".to_owned()]);
    let wanting = || waiting.wanting(&world.bench.view(), false).unwrap();
    assert_eq!(wanting(), Vec::<String>::new());
    world.record(1);
    assert_eq!(wanting(), ["siem@1"]);
    *world.sink.refuses.lock().unwrap() = Some("its disk is full");
    world.tick();
    assert_eq!(wanting(), Vec::<String>::new(), "its back-off stays");
    *world.sink.refuses.lock().unwrap() = None;
    world.bench.advance(1_000);
    world.tick();
    assert_eq!(wanting(), Vec::<String>::new(), "it was told of all");
    world.record(1);
    assert_eq!(wanting(), ["siem@1"]);
}
