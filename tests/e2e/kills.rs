//! Replicas are killed one after the other under clients that write.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use crate::support::{
    Api, DEADLINE, Replicas, number,
    replicas::{token, tokens},
    text, until,
};

const ROUNDS: usize = 20;
const WRITERS: usize = 2;
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
struct Ledger {
    stop: AtomicBool,
    acknowledged: AtomicU64,
    tries: AtomicU64,
}

/// Stops the writers also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Writes until it is told to stop; each write under one key, over all replicas, until it is
/// acknowledged. Answers the names and the ids that were acknowledged for them.
fn write(api: &Api, writer: usize, ledger: &Ledger) -> BTreeMap<String, String> {
    let mut acknowledged = BTreeMap::new();
    let mut replica = writer;
    for number in 0.. {
        if ledger.stop.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("w{writer}-{number}");
        let begin = Instant::now();
        let id = loop {
            assert!(begin.elapsed() < DEADLINE, "{name} was never acknowledged");
            ledger.tries.fetch_add(1, Ordering::SeqCst);
            match api.post(replica % 3, &tokens(), &format!("key-{name}"), &token(&name)) {
                Ok(answer) if answer.status < 300 => break text(&answer.json(), "/id").to_owned(),
                Ok(answer) => assert_eq!(
                    answer.json()["retryable"],
                    true,
                    "{name} was refused for ever: {answer:#?}"
                ),
                // It may have been applied or not: the same key asks again.
                Err(_) => {}
            }
            replica += 1;
            thread::sleep(PAUSE);
        };
        acknowledged.insert(name, id);
        ledger.acknowledged.fetch_add(1, Ordering::SeqCst);
        replica += 1;
    }
    acknowledged
}

#[test]
fn twenty_kills_lose_no_acknowledged_write_and_apply_none_twice() {
    let mut replicas = Replicas::start(3);
    let (api, ledger) = (replicas.api.clone(), Ledger::default());
    let acknowledged = thread::scope(|scope| {
        let stop = Stop(&ledger.stop);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (api, ledger) = (&api, &ledger);
                scope.spawn(move || write(api, writer, ledger))
            })
            .collect();
        for round in 0..ROUNDS {
            let victim = round % 3;
            let begun = ledger.acknowledged.load(Ordering::SeqCst);
            until("writes before the kill", || {
                (ledger.acknowledged.load(Ordering::SeqCst) >= begun + 3).then_some(())
            });
            replicas.kill(victim);
            let then = ledger.acknowledged.load(Ordering::SeqCst);
            until("writes without the killed replica", || {
                (ledger.acknowledged.load(Ordering::SeqCst) >= then + 5).then_some(())
            });
            replicas.spawn(victim);
            replicas.ready(victim);
        }
        drop(stop);
        let mut all = BTreeMap::new();
        for writer in writers {
            all.extend(writer.join().unwrap());
        }
        all
    });
    assert!(ledger.tries.load(Ordering::SeqCst) > acknowledged.len() as u64, "nothing was retried");
    for replica in 0..3 {
        let mut ids: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for item in api.list(replica, "/api-tokens") {
            let name = text(&item, "/name").to_owned();
            ids.entry(name).or_default().push(text(&item, "/id").to_owned());
        }
        for (name, id) in &acknowledged {
            assert_eq!(ids.get(name), Some(&vec![id.clone()]), "{name} at replica {}", replica + 1);
        }
        let written = ids.keys().filter(|name| name.starts_with('w')).count();
        assert_eq!(written, acknowledged.len(), "more was written than acknowledged");
    }
    let status = api.get(0, "/api/compute/cluster").unwrap().done();
    assert!(number(&status, "/term") > 1, "the leader was among the killed: {status}");
}
