//! Decay of every file of a data directory: what was acknowledged is all there, or the replica refuses to start and
//! names the file and the place. Never a panic, never silence.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use openraft::RaftLogReader;
use palisade_state::{Machine, Position, ReplicaId, Store, Txn, View, command::Write};

use crate::{
    Disk, Identity, LogSizes, Member, Replica, ReplicaOptions, StartError, TokioRuntime, Tuning,
    Wires,
    disk::DirLock,
    fault::chain,
    recovery,
    storage_tests::nobody::Nobody,
    types::{EntryPayload, TokioExecutor, TypeConfig, term_of},
};

const CASES: u64 = 500;
const CASES_VARIABLE: &str = "PALISADE_DECAY_CASES";

fn options(dir: &Path) -> ReplicaOptions {
    options_on(Disk::real(), dir)
}

/// A replica that is alone in its cluster, with small segments and many snapshots.
pub(super) fn options_on(disk: Disk, dir: &Path) -> ReplicaOptions {
    let ms = std::time::Duration::from_millis;
    ReplicaOptions {
        dir: dir.to_owned(),
        disk,
        identity: Identity {
            cluster: "c1".into(),
            lineage: "l1".into(),
            epoch: 0,
            replica: ReplicaId(1),
        },
        wires: Wires::Custom(Arc::new(Nobody)),
        neighbours: crate::Neighbours::default(),
        tuning: Tuning {
            heartbeat: ms(10),
            election_min: ms(20),
            election_max: ms(40),
            silence: None,
            snapshot_log_bytes: 48 << 10,
            snapshot_check: ms(5),
            keep_entries: 5,
            log: LogSizes {
                segment_bytes: 16 << 10,
                first_segment_bytes: 8 << 10,
                reserve_bytes: 0,
            },
            ..Tuning::default()
        },
        rt: Arc::new(TokioRuntime::current().unwrap()),
    }
}

/// What was acknowledged: the newest value of each key.
pub(super) type Rows = BTreeMap<String, Vec<u8>>;

async fn fill(replica: &Replica, rows: &mut Rows, range: std::ops::Range<u64>) {
    for number in range {
        let (key, value) =
            (format!("k{:02}", number % 60), format!("{number}-").repeat(60).into_bytes());
        let write =
            Write { table: "t".into(), key: key.as_str().into(), value: Some(value.clone()) };
        let txn = Txn { writes: vec![write], ..Txn::default() };
        replica.propose(txn.into()).await.unwrap();
        rows.insert(key, value);
    }
}

/// A directory with sealed segments, two snapshots and a log behind them; `in_order`: it was stopped and not killed.
async fn sound(dir: &Path, in_order: bool) -> Rows {
    let replica = Replica::<TokioExecutor>::start(options(dir)).await.unwrap();
    let member = Member { id: ReplicaId(1), peer_addr: "1".into(), api_addr: "1".into() };
    replica.form(&[member]).await.unwrap();
    let mut rows = Rows::new();
    for round in 0..3 {
        fill(&replica, &mut rows, round * 200..round * 200 + 200).await;
        let taken = replica.metrics().snapshots_taken();
        replica.take_snapshot().await.unwrap();
        while replica.metrics().snapshots_taken() == taken {
            replica.rt.sleep(std::time::Duration::from_millis(2)).await;
        }
    }
    fill(&replica, &mut rows, 600..650).await;
    if in_order {
        replica.shutdown().await;
    }
    rows
}

fn dice(seed: u64, limit: u64) -> u64 {
    let mut z = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % limit.max(1)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).unwrap());
        std::fs::create_dir_all(target.parent().unwrap()).unwrap();
        std::fs::copy(&file, target).unwrap();
    }
}

/// The kinds of files, each as often as the others, whatever the number of its files.
fn kinds(dir: &Path) -> Vec<Vec<PathBuf>> {
    let all = files(dir);
    let ends = |suffix: &str| -> Vec<PathBuf> {
        all.iter().filter(|path| path.to_str().unwrap().ends_with(suffix)).cloned().collect()
    };
    let mut segments = ends(".seg");
    let newest = segments.pop().unwrap();
    let mut snapshots = ends(".snap");
    let index = |path: &PathBuf| -> u64 {
        path.file_stem().unwrap().to_str().unwrap().split('-').next().unwrap().parse().unwrap()
    };
    snapshots.sort_by_key(index);
    let youngest = snapshots.pop().unwrap();
    assert!(!segments.is_empty() && !snapshots.is_empty(), "{all:?}");
    vec![
        segments,
        vec![newest],
        ends("tail"),
        snapshots,
        vec![youngest],
        ends("identity.json"),
        ends("LOCK"),
    ]
}

/// Damages what a file holds; says what it did.
pub(super) fn decay(bytes: &mut Vec<u8>, seed: u64) -> String {
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |at| at + 1);
    let at = (dice(seed + 1, used as u64) as usize).min(bytes.len().saturating_sub(1));
    let zero = |bytes: &mut Vec<u8>, size: usize| {
        let from = at / size * size;
        let to = (from + size).min(bytes.len());
        bytes[from..to].fill(0);
    };
    match dice(seed + 2, 4) {
        0 if !bytes.is_empty() => {
            bytes[at] ^= 1 << (seed % 8);
            format!("bit {} of byte {at} flipped", seed % 8)
        }
        1 => {
            zero(bytes, 4096);
            format!("the page of byte {at} zeroed")
        }
        2 => {
            zero(bytes, 512);
            format!("the sector of byte {at} zeroed")
        }
        _ => {
            bytes.truncate(at);
            format!("cut to {at} bytes")
        }
    }
}

/// Damages a file of the kind whose turn it is; says what it did.
fn hurt(dir: &Path, seed: u64) -> String {
    let kinds = kinds(dir);
    let kind = &kinds[seed as usize % kinds.len()];
    let path = &kind[dice(seed, kind.len() as u64) as usize];
    let mut bytes = std::fs::read(path).unwrap();
    let what = decay(&mut bytes, seed);
    std::fs::write(path, bytes).unwrap();
    format!("case {seed}: {}: {what}", path.strip_prefix(dir).unwrap().display())
}

/// What a replica would have once it leads: its snapshot, and all of its log applied.
async fn found(dir: &Path) -> Result<View, StartError> {
    found_in(options(dir)).await
}

pub(super) async fn found_in(options: ReplicaOptions) -> Result<View, StartError> {
    let recovery = recovery::recover(&options).await?;
    let (mut machine, covered) = match recovery.found.state {
        Some((last, _, state)) => (Machine::new(state), last.index),
        None => (Machine::default(), 0),
    };
    let mut log = recovery.log;
    let entries =
        RaftLogReader::<TypeConfig<TokioExecutor>>::try_get_log_entries(&mut log, covered + 1..);
    for entry in entries.await.unwrap() {
        let at = Position { term: term_of(&entry.log_id), index: entry.log_id.index };
        match entry.payload {
            EntryPayload::Normal(payload) => {
                machine.apply(at, payload.decode().unwrap()).unwrap();
            }
            _ => machine.pass(at).unwrap(),
        }
    }
    machine.publish();
    if let Some(running) = recovery.running {
        running.stop();
    }
    Ok(machine.published().view())
}

pub(super) fn assert_all_there(view: &View, rows: &Rows, what: &str) {
    for (key, value) in rows {
        let row = view.row("t", key.as_bytes());
        let held = row.map(|row| row.value().to_vec());
        assert!(held.as_ref() == Some(value), "{what}: it started in silence, and {key} is lost");
    }
}

/// A refusal names the file and the place in it, or the two formats.
fn assert_says_where(error: &StartError, dir: &Path, what: &str) {
    let text = chain(error);
    let file = text.contains(dir.to_str().unwrap());
    let place = text.contains("at byte ") || text.contains(" has format ");
    assert!(file && place, "{what}: {text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_decay_of_any_file_loses_nothing_or_is_refused_with_file_and_offset() {
    let cases = std::env::var(CASES_VARIABLE).map_or(CASES, |text| text.parse().unwrap());
    let home = tempfile::tempdir().unwrap();
    let mut images = vec![];
    for in_order in [true, false] {
        let dir = home.path().join(format!("sound-{in_order}"));
        // One that is not stopped ends with its runtime, like a process that is killed.
        let made = dir.clone();
        let rows = std::thread::scope(|scope| {
            let made = scope.spawn(move || {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                let rows = runtime.block_on(sound(&made, in_order));
                runtime.shutdown_background();
                rows
            });
            made.join().unwrap()
        });
        // Its log's thread has ended when its lock is free.
        while DirLock::acquire(&dir).is_err() {
            std::thread::yield_now();
        }
        images.push((dir, rows));
    }
    let (mut refused, mut recovered) = (0, 0);
    for seed in 0..cases {
        let (image, rows) = &images[seed as usize % images.len()];
        // Each has a directory of its own: a replica that was refused may still be letting go of the last one's.
        let dir = home.path().join(format!("case-{seed}"));
        copy(image, &dir);
        let what = hurt(&dir, seed);
        match found(&dir).await {
            Ok(view) => {
                assert_all_there(&view, rows, &what);
                recovered += 1;
            }
            Err(error) => {
                assert_says_where(&error, &dir, &what);
                refused += 1;
            }
        }
        // What cannot be removed yet goes with `home`.
        let _ = std::fs::remove_dir_all(&dir);
    }
    println!("{cases} cases: {recovered} recovered, {refused} refused");
    assert!(
        recovered > cases / 5 && refused > cases / 5,
        "{recovered} recovered, {refused} refused"
    );
}

/// The marks say why a replica must not start; each does so however it decays.
#[test]
fn a_mark_that_bars_a_start_bars_it_however_it_decays() {
    let dir = tempfile::tempdir().unwrap();
    let identity =
        || Identity { cluster: "c1".into(), lineage: "l1".into(), epoch: 0, replica: ReplicaId(1) };
    let whole = r#"{"cluster":"c1","replica":1,"why":"replica 4 took its place"}"#.as_bytes();
    for name in ["removed.json", "lost.json", "copy.json"] {
        let file = dir.path().join(name);
        for seed in 0..CASES / 10 {
            let mut bytes = whole.to_vec();
            let what = format!("{name}: {}", decay(&mut bytes, seed));
            std::fs::write(&file, &bytes).unwrap();
            let barred = crate::exile::check(dir.path(), &identity()).err();
            let error = StartError::from(barred.unwrap_or_else(|| panic!("{what}: it starts")));
            let is_it = match name {
                "removed.json" => matches!(error, StartError::Removed(_)),
                "lost.json" => matches!(error, StartError::Lost(_)),
                _ => matches!(error, StartError::Copy(_)),
            };
            let text = error.to_string();
            let says = text.contains(file.to_str().unwrap())
                || serde_json::from_slice::<serde_json::Value>(&bytes).is_ok();
            assert!(is_it && says, "{what}: {text}");
        }
        std::fs::remove_file(&file).unwrap();
    }
    crate::exile::check(dir.path(), &identity()).map_err(StartError::from).unwrap();
}
