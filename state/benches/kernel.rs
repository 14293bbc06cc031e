//! Figures of the kernel by itself: apply, memory, snapshots, the work queue. `cargo bench -p
//! palisade-state [-- NAME]` prints them; each runs in a process of its own, so that resident
//! memory means something.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_precision_loss
)]
#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use std::time::{Duration, Instant};

use palisade_state::{
    Command, Machine, Position, State, Txn, View,
    command::{Enqueue, Entry, FORMAT, Finish, Form, Kind, PointCheck, RangeCheck, Write},
    snapshot::{Loader, encode, hash},
};
use prost::Message;

const RECORDS: u64 = 1_000_000;
const VALUE: [u8; 256] = [7; 256];

type Bench = (&'static str, fn());

const BENCHES: [Bench; 5] = [
    ("memory", memory),
    ("apply", apply),
    ("snapshot", snapshot),
    ("queue", queue),
    ("ranges", ranges),
];

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    if let [one, name] = wanted.as_slice()
        && one == "run"
    {
        let (_, run) = BENCHES.iter().find(|(known, _)| known == name).unwrap();
        return run();
    }
    for (name, _) in BENCHES {
        if wanted.is_empty() || wanted.iter().any(|one| one == name) {
            let this = std::env::current_exe().unwrap();
            let ended = std::process::Command::new(this).args(["run", name]).status().unwrap();
            assert!(ended.success());
        }
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// A number that is spread over all of u64 (the finaliser of SplitMix64), each once.
fn spread(n: u64) -> u64 {
    let mixed = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn key(n: u64) -> Vec<u8> {
    format!("pod/{:016x}", spread(n)).into_bytes()
}

fn put(n: u64) -> Command {
    let write = Write { table: "pods".into(), key: key(n), value: Some(VALUE.to_vec()) };
    Txn { writes: vec![write], ..Txn::default() }.into()
}

/// A put with the point check that a builder that reads what it writes makes.
fn checked_put(view: &View, n: u64) -> Command {
    let stamp = view.row("pods", &key(n)).unwrap().stamp();
    let Some(Kind::Txn(mut txn)) = put(n).kind else { panic!("not a transaction") };
    txn.points.push(PointCheck {
        table: "pods".into(),
        key: key(n),
        version: stamp.version,
        created_rev: stamp.created_rev,
    });
    txn.into()
}

struct Rig {
    machine: Machine,
    spent: Duration,
}

impl Rig {
    fn new(state: State) -> Self {
        let mut rig = Self { machine: Machine::new(state), spent: Duration::ZERO };
        if rig.machine.applied().index == 0 {
            rig.entry(vec![
                Kind::Form(Form { cluster: "c".into(), lineage: "l".into(), epoch: 0 }).into(),
            ]);
        }
        rig
    }

    fn view(&self) -> View {
        self.machine.published().view()
    }

    /// Applies and publishes one entry; only that is timed.
    fn entry(&mut self, commands: Vec<Command>) {
        let at = Position { term: 1, index: self.machine.applied().index + 1 };
        let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms: 0, wall_ms: 0, commands };
        let begun = Instant::now();
        let outcomes = self.machine.apply(at, entry).unwrap();
        self.machine.publish();
        self.spent += begun.elapsed();
        assert!(outcomes.iter().all(palisade_state::Outcome::is_applied));
    }

    fn fill(&mut self, records: u64, batch: u64) {
        for from in (0..records).step_by(usize::try_from(batch).unwrap()) {
            self.entry((from..records.min(from + batch)).map(put).collect());
        }
    }

    fn take(&mut self) -> Duration {
        std::mem::take(&mut self.spent)
    }
}

fn per_second(count: u64, spent: Duration) -> String {
    format!("{:.0}/s", count as f64 / spent.as_secs_f64())
}

fn chunks(view: &View) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    encode(view, |chunk| {
        chunks.push(chunk.to_vec());
        Ok::<(), serde_json::Error>(())
    })
    .unwrap();
    chunks
}

fn load(chunks: &[Vec<u8>]) -> State {
    let mut loader = Loader::default();
    for chunk in chunks {
        loader.chunk(chunk).unwrap();
    }
    loader.finish().unwrap()
}

fn memory() {
    let before = resident();
    let mut rig = Rig::new(State::default());
    rig.fill(RECORDS, 64);
    let bytes = resident() - before;
    println!("memory   a key, 20 B, 256 B value, inserted in random order: {} B", bytes / RECORDS);
}

fn apply() {
    let mut rig = Rig::new(State::default());
    rig.fill(RECORDS, 64);
    println!("apply    inserts, 64 transactions a batch: {}", per_second(RECORDS, rig.take()));
    for batch in [1, 16, 64, 256] {
        let count = 256_000;
        for from in (0..count).step_by(batch) {
            let batch = u64::try_from(batch).unwrap();
            rig.entry((from..from + batch).map(|n| put(spread(n) % RECORDS)).collect());
        }
        println!(
            "apply    updates, {batch} transactions a batch: {}",
            per_second(count, rig.take())
        );
    }
    for from in (0..256_000).step_by(64) {
        let view = rig.view();
        rig.entry((from..from + 64).map(|n| checked_put(&view, n)).collect());
    }
    println!("apply    updates of what was read, 64 a batch: {}", per_second(256_000, rig.take()));
    for from in (0..256_000).step_by(64) {
        let Command { kind: Some(Kind::Txn(mut many)) } = put(from) else {
            panic!("a transaction")
        };
        for n in from + 1..from + 64 {
            let Command { kind: Some(Kind::Txn(one)) } = put(n) else { panic!("a transaction") };
            many.writes.extend(one.writes);
        }
        rig.entry(vec![many.into()]);
    }
    println!("apply    writes of transactions of 64: {}", per_second(256_000, rig.take()));
    let entry = Entry { commands: (0..64).map(put).collect(), ..Entry::default() }.encode_to_vec();
    let begun = Instant::now();
    for _ in 0..4_000 {
        assert_eq!(Entry::decode(entry.as_slice()).unwrap().commands.len(), 64);
    }
    println!("apply    decoding alone: {}", per_second(256_000, begun.elapsed()));
}

fn snapshot() {
    let mut rig = Rig::new(State::default());
    rig.fill(RECORDS, 64);
    let view = rig.view();
    let begun = Instant::now();
    let chunks = chunks(&view);
    let bytes: usize = chunks.iter().map(Vec::len).sum();
    println!("snapshot {RECORDS} records, {} MiB, written in {:?}", bytes >> 20, begun.elapsed());
    let begun = Instant::now();
    let hashed = hash(&view);
    println!("snapshot hashed in {:?}", begun.elapsed());
    drop(view);
    drop(rig);
    let begun = Instant::now();
    let state = load(&chunks);
    println!("snapshot loaded in {:?}", begun.elapsed());
    drop(chunks);
    assert_eq!(hash(&Machine::new(state).published().view()), hashed);
}

fn queue() {
    let before = resident();
    let mut rig = Rig::new(State::default());
    let name = |n: u64| format!("nd_{:026x}", spread(n));
    for from in (0..RECORDS).step_by(64) {
        let enqueue = |n| -> Command {
            let item = Enqueue { kind: "instance".into(), key: name(n), delay_ms: 0 };
            Txn { enqueues: vec![item], ..Txn::default() }.into()
        };
        rig.entry((from..from + 64).map(enqueue).collect());
    }
    println!("queue    enqueued, 64 a batch: {}", per_second(RECORDS, rig.take()));
    println!("queue    a row: {} B", (resident() - before) / RECORDS);
    let begun = Instant::now();
    assert!(!rig.view().timers_pending());
    println!("queue    whether a timer is pending: {:?}", begun.elapsed());
    let view = rig.view();
    let rows: Vec<(String, u64)> =
        view.all_work().map(|((_, key), row)| (key.to_string(), row.generation)).collect();
    for some in rows.chunks(64) {
        let finish = |(key, generation): &(String, u64)| -> Command {
            let item =
                Finish { kind: "instance".into(), key: key.clone(), generation: *generation };
            Txn { work: Some(item.clone()), finishes: vec![item], ..Txn::default() }.into()
        };
        rig.entry(some.iter().map(finish).collect());
    }
    println!("queue    finished, 64 a batch: {}", per_second(RECORDS, rig.take()));
}

/// What a scan costs at apply, over 10,000 rows, and what a view costs.
fn ranges() {
    let mut rig = Rig::new(State::default());
    rig.fill(10_000, 64);
    let view = rig.view();
    rig.take();
    for n in 0..200 {
        let range = RangeCheck { table: "pods".into(), start: b"pod/".to_vec(), end: None };
        let txn = Txn { view_rev: rig.view().revision(), ranges: vec![range], ..Txn::default() };
        let Command { kind: Some(Kind::Txn(write)) } = put(n) else { panic!("a transaction") };
        rig.entry(vec![Txn { writes: write.writes, ..txn }.into()]);
    }
    println!("ranges   a transaction that scanned 10,000 rows: {:?}", rig.take() / 200);
    let begun = Instant::now();
    for _ in 0..1_000_000 {
        std::hint::black_box(rig.view());
    }
    println!("ranges   a view: {:?}", begun.elapsed() / 1_000_000);
    drop(view);
}
