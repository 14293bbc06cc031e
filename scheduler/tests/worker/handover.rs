//! `WORK-1` under load: what becomes of a key that runs while its lease is handed over.

use std::sync::{Arc, Mutex};

use futures::{FutureExt, channel::oneshot};
use palisade_contract::{Code, ReconcileContext, ShardBy, module::Run};
use palisade_state::{
    Role, Store,
    command::{Kind, WorkerBeat},
    limits::HANDOFF_MS,
    shard::{rendezvous_weight, shard_of},
};

use crate::{MARKS, Rig, Script, enqueue_command};

/// A worker that runs the key "a", whose run waits at a gate, while the lease of its shard is being
/// handed over to a worker that joined.
struct HandOver {
    rig: Rig,
    _stop: oneshot::Sender<()>,
    gate: Mutex<Option<oneshot::Sender<()>>>,
    /// How the runs' last transactions ended.
    ends: Arc<Mutex<Vec<Option<Code>>>>,
    successor: String,
    /// Another key of the same shard.
    neighbour: String,
}

const LEASE: &str = "shard:44"; // of the key "a"

fn gated(gate: oneshot::Receiver<()>, ends: Arc<Mutex<Vec<Option<Code>>>>) -> Arc<Script> {
    let gate = Mutex::new(Some(gate));
    Arc::new(move |cx: &ReconcileContext, _: &str| {
        let (cx, gate, ends) = (cx.clone(), gate.lock().unwrap().take(), ends.clone());
        async move {
            if let Some(gate) = gate {
                let _ = gate.await;
            }
            let written = cx.finish(|tx| Ok(tx.put(&MARKS, &"m".to_owned(), &1)?)).await;
            ends.lock().unwrap().push(written.as_ref().err().map(|error| error.code));
            written.map(|_| Run::Done)
        }
        .boxed()
    })
}

impl HandOver {
    fn begin() -> Self {
        let (gate, opened) = oneshot::channel();
        let ends = Arc::default();
        let rig = Rig::new(ShardBy::Key, false, gated(opened, Arc::clone(&ends)));
        let stop = rig.start();
        rig.enqueue("a");
        assert_eq!(rig.ran(), ["a"]);
        let weight = |worker: &str| rendezvous_weight(worker, LEASE);
        let mut names = (2..).map(|n: u64| n.to_string());
        let successor = names.find(|name| weight(name) > weight("1")).unwrap();
        let mut keys = (0..).map(|n| format!("k{n}"));
        let neighbour = keys.find(|key| shard_of(key) == shard_of("a")).unwrap();
        let gate = Mutex::new(Some(gate));
        let hand_over = Self { rig, _stop: stop, gate, ends, successor, neighbour };
        hand_over.beat();
        let lease = hand_over.rig.store.view().lease(LEASE).cloned().unwrap();
        let to = lease.handoff.map(|handoff| handoff.to.to_string());
        assert_eq!(to.as_ref(), Some(&hand_over.successor));
        for key in [hand_over.neighbour.as_str(), "a"] {
            assert!(hand_over.rig.store.apply(enqueue_command(key)).unwrap().is_applied());
        }
        hand_over.rig.rt.settle();
        hand_over
    }

    fn beat(&self) {
        let beat = WorkerBeat {
            worker: self.successor.clone(),
            incarnation: 1,
            role: Role::Controllers.into(),
            singletons: vec![],
            draining: false,
            sharded: true,
        };
        assert!(self.rig.store.apply(Kind::WorkerBeat(beat).into()).unwrap().is_applied());
        self.rig.rt.settle();
    }

    fn pass(&self, ms: u64) {
        for _ in 0..ms / 500 {
            self.rig.pass(500);
            self.beat();
        }
    }

    /// Lets the run go on, to its end.
    fn open(&self) {
        self.gate.lock().unwrap().take().unwrap().send(()).unwrap();
        self.rig.rt.settle();
    }

    fn owner(&self) -> String {
        self.rig.store.view().lease(LEASE).unwrap().owner.to_string()
    }
}

#[test]
fn a_lease_that_is_handed_over_starts_no_key_and_is_released_when_its_run_has_ended() {
    let hand_over = HandOver::begin();
    hand_over.pass(HANDOFF_MS - 500);
    assert!(hand_over.rig.ran().is_empty(), "WORK-1: no key begins under it");
    assert_eq!(hand_over.owner(), "1", "WORK-1: it is kept while a key runs");
    hand_over.open();
    assert_eq!(*hand_over.ends.lock().unwrap(), [None], "the run commits under the lease it had");
    assert!(MARKS.get(&hand_over.rig.store.view(), &"m".to_owned()).unwrap().is_some());
    assert_eq!(hand_over.owner(), hand_over.successor, "it is released at once");
    assert!(hand_over.rig.ran().is_empty(), "WORK-1");
    let view = hand_over.rig.store.view();
    for key in ["a", hand_over.neighbour.as_str()] {
        assert!(view.work("test.marks", key).is_some(), "{key} waits for the successor");
    }
}

#[test]
fn a_run_that_does_not_end_loses_its_lease_and_what_it_writes() {
    let hand_over = HandOver::begin();
    hand_over.pass(HANDOFF_MS + 500);
    assert_eq!(hand_over.owner(), hand_over.successor, "it moved although nobody released it");
    hand_over.open();
    assert_eq!(*hand_over.ends.lock().unwrap(), [Some(Code::Fenced)], "I3");
    assert!(MARKS.get(&hand_over.rig.store.view(), &"m".to_owned()).unwrap().is_none());
    assert!(hand_over.rig.ran().is_empty(), "the keys are the successor's");
}
