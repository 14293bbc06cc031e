//! SIGKILL at random moments while a child appends, votes, truncates, purges and rotates through the real threads.
//!
//! What the child appends follows from its seed and from what it recovered, so the parent knows it, too.
#![allow(clippy::disallowed_methods, reason = "the random moments are those of the real clock")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::sync::Condvar;
use std::time::Duration;

use super::*;
use crate::disk::StdFiles;

const DIR: &str = "PALISADE_WAL_DIR";
const SEED: &str = "PALISADE_WAL_SEED";
const ROUNDS: &str = "PALISADE_CRASH_ROUNDS";
/// Records that the child has waiting at a time.
const IN_FLIGHT: u64 = 8;

fn open_real(dir: &Path) -> (Wal, Recovered) {
    Wal::open(Arc::new(StdFiles), dir, ME, small()).unwrap()
}

/// What a log holds, and what comes next.
struct Model {
    held: (State, Vec<EntryRecord>),
    dice: u64,
}

impl Model {
    fn new(recovered: &Recovered, seed: u64) -> Self {
        Self { held: (recovered.state, recovered.entries.clone()), dice: seed }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % limit.max(1)
    }

    /// A record that fits, already taken into account.
    fn next(&mut self) -> Record {
        let record = self.draw();
        fold_onto(&mut self.held, &record);
        record
    }

    fn draw(&mut self) -> Record {
        let (state, count) = (self.held.0, self.held.1.len() as u64);
        let term = state.vote.map_or(1, |vote| vote.term);
        let pick = self.below(count);
        let picked = self.held.1.get(pick as usize).map(EntryRecord::position);
        match (self.below(8), picked) {
            (0, _) => vote(term + 1, 1 + pick % 3),
            (1, Some(after)) if Some(after.index) >= state.committed.map(|c| c.index) => {
                Record::TruncateAfter(Some(after))
            }
            (2, Some(to)) if count > 40 => Record::Purge(to),
            (3, Some(_)) => Record::Committed(state.last.unwrap()),
            _ => {
                let next = state.next_index().unwrap_or(0);
                entries(term, next..next + 1 + self.below(5))
            }
        }
    }
}

/// Not a test by itself: what the campaign starts and kills.
#[test]
fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut vec![]);
        std::process::exit(1);
    });
    let seed = std::env::var(SEED).unwrap().parse().unwrap();
    let (wal, recovered) = open_real(Path::new(&dir));
    let mut model = Model::new(&recovered, seed);
    let (handle, driver) = Driver::new(wal);
    let _running = driver.spawn().unwrap();
    let acked = Arc::new((Mutex::new(0_u64), Condvar::new()));
    println!();
    for nth in 1_u64.. {
        let record = model.next();
        let held = acked.0.lock().unwrap();
        drop(acked.1.wait_while(held, |acked| nth - *acked > IN_FLIGHT).unwrap());
        let sync = !matches!(record, Record::Committed(_));
        let acked = acked.clone();
        let done = move |result: Result<(), WalError>| {
            result.unwrap();
            println!("acked {nth}");
            *acked.0.lock().unwrap() = nth;
            acked.1.notify_all();
        };
        handle.append(vec![record], sync, Box::new(done));
    }
}

/// Starts a child, kills it after a while, and says what it had acknowledged.
fn round(dir: &Path, seed: u64, after: Duration) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["wal::tests::kills::child", "--exact", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(SEED, seed.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reading = std::thread::spawn(move || {
        let acked = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("acked ")?.parse().ok());
        acked.last().unwrap_or(0)
    });
    std::thread::sleep(after);
    child.kill().unwrap();
    let said = child.wait_with_output().unwrap().stderr;
    assert_eq!(String::from_utf8_lossy(&said), "");
    reading.join().unwrap()
}

#[test]
fn nothing_acknowledged_is_lost_to_kills_whatever_the_records() {
    let rounds = std::env::var(ROUNDS).map_or(200, |text| text.parse().unwrap());
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("log");
    let (mut written, mut dice) = (0, Model { held: Default::default(), dice: 7 });
    for seed in 0..rounds {
        let base = open_real(&dir).1;
        let acked = round(&dir, seed, Duration::from_micros(dice.below(60_000)));
        let (_, recovered) = open_real(&dir);
        let mut model = Model::new(&base, seed);
        for _ in 0..acked {
            model.next();
        }
        // Of what was under way, any prefix may be there.
        let mut held = model.held.clone();
        let under_way = flat(&(0..IN_FLIGHT).map(|_| model.next()).collect::<Vec<_>>());
        let expected = (recovered.state, recovered.entries);
        let found = held == expected
            || under_way.iter().any(|record| {
                fold_onto(&mut held, record);
                held == expected
            });
        assert!(
            found,
            "seed {seed}: {acked} records were acknowledged, and it holds {:?}",
            expected.0
        );
        written += acked;
    }
    println!("{rounds} kills, {written} records acknowledged");
    assert!(written > rounds, "{written} records in {rounds} rounds");
    let first =
        StdFiles.list(&dir).unwrap().into_iter().find(|name| name.ends_with(".seg")).unwrap();
    assert_ne!(first, "00000001.seg", "segments came and went");
}
