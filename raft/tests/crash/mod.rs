//! Crash campaigns: a replica in a process of its own writes, is killed or loses its power at a random moment, and
//! must come back with everything that it had acknowledged.
//!
//! The child is this test binary again, started with [`DIR`] set. It reports on its standard output; what it
//! acknowledged counts from then on, whatever happens to it. Rounds are run over one directory, so that each
//! recovery is the next one's past. `PALISADE_CRASH_ROUNDS` overrides how many there are.

mod full;
mod kept;
mod kill;
mod lack;
mod model;
mod power;
mod writer;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use self::{
    kept::{KEPT, Kept},
    model::{Counts, WRITERS},
};

/// The child's data directory.
pub const DIR: &str = "PALISADE_CRASH_DIR";
/// What it must find there, as far as was acknowledged.
pub const ACKED: &str = "PALISADE_CRASH_ACKED";
const ROUNDS: &str = "PALISADE_CRASH_ROUNDS";
/// How long a child may take to recover.
const LIMIT: Duration = Duration::from_secs(60);

pub fn rounds(default: u64) -> u64 {
    std::env::var(ROUNDS).ok().map_or(default, |text| text.parse().expect("a number of rounds"))
}

/// A small generator, so that a seed says what was drawn.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

/// Command line of this binary for one test of it alone.
pub fn this_binary(test: &str) -> Vec<String> {
    let exe = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    [exe.as_str(), test, "--exact", "--nocapture", "--test-threads=1"].map(str::to_owned).to_vec()
}

/// What a child says.
enum Line {
    /// It has recovered: this much of each writer's work, in this term.
    Recovered(Counts, u64),
    /// A writer's work is done up to here.
    Acked(usize, u64),
    /// So much is durable in its history.
    Kept(Kept),
}

fn parse(line: &str) -> Option<Line> {
    let mut words = line.split_whitespace();
    match words.next()? {
        "acked" => Some(Line::Acked(words.next()?.parse().ok()?, words.next()?.parse().ok()?)),
        "kept" => Some(Line::Kept(Kept::parse(words.next()?)?)),
        "recovered" => {
            Some(Line::Recovered(model::counts(words.next()?)?, words.next()?.parse().ok()?))
        }
        _ => None,
    }
}

/// A child that writes until it is ended.
struct Writer {
    process: Child,
    lines: mpsc::Receiver<Line>,
}

/// What the campaign knows.
pub struct Campaign {
    /// The highest acknowledged work of each writer.
    pub acked: Counts,
    /// The term of the last recovery that was reported.
    pub term: u64,
    /// How many recoveries were reported.
    pub recoveries: u64,
    /// What the children's history has durably, where that is asked for.
    pub kept: Option<Kept>,
}

impl Campaign {
    fn new() -> Self {
        Self { acked: [0; WRITERS], term: 0, recoveries: 0, kept: None }
    }

    /// One whose children find again what was durable in their history.
    fn with_history() -> Self {
        Self { kept: Some(Kept::default()), ..Self::new() }
    }

    fn start(&self, dir: &Path) -> Writer {
        let line = this_binary("crash::writer::child");
        let mut process = Command::new(&line[0])
            .args(&line[1..])
            .env(DIR, dir)
            .env(ACKED, model::text(&self.acked))
            .envs(self.kept.map(|kept| (KEPT, kept.text())))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(log(dir)).unwrap())
            .spawn()
            .unwrap();
        let out = process.stdout.take().unwrap();
        let (tx, lines) = mpsc::channel();
        std::thread::spawn(move || read(out, &tx));
        Writer { process, lines }
    }

    fn take(&mut self, line: Line) {
        match line {
            Line::Acked(writer, number) => self.acked[writer] = self.acked[writer].max(number),
            Line::Kept(kept) => self.kept = Some(kept),
            Line::Recovered(found, term) => {
                assert!(
                    term > self.term,
                    "term {term} after term {}: it led again without a vote",
                    self.term
                );
                for (found, acked) in found.iter().zip(&self.acked) {
                    assert!(
                        found >= acked && *found <= acked + 1,
                        "found {found}, acknowledged was {acked}"
                    );
                }
                (self.acked, self.term) = (found, term);
                self.recoveries += 1;
            }
        }
    }

    /// Lets a child recover.
    fn recover(&mut self, writer: &mut Writer, dir: &Path) {
        let before = self.recoveries;
        while self.recoveries == before {
            match writer.lines.recv_timeout(LIMIT) {
                Ok(line) => self.take(line),
                Err(why) => {
                    let _ = writer.process.kill();
                    panic!("it did not recover ({why}): {}", said(dir));
                }
            }
        }
    }

    /// Takes in what an ended child had said.
    fn finish(&mut self, mut writer: Writer, dir: &Path) {
        let ended = writer.process.wait().unwrap();
        while let Ok(line) = writer.lines.recv_timeout(LIMIT) {
            self.take(line);
        }
        let said = said(dir);
        // History's store panics when its disk is gone; that is caught, and stops history alone.
        let is_ours = |line: &str| line.contains("panicked at") && !line.contains("/sled-");
        assert!(!said.lines().any(is_ours) && !said.contains("lost:"), "{ended}: {said}");
    }
}

fn read(out: ChildStdout, lines: &mpsc::Sender<Line>) {
    for line in BufReader::new(out).lines() {
        let Ok(line) = line else { return };
        if let Some(line) = parse(&line)
            && lines.send(line).is_err()
        {
            return;
        }
    }
}

/// Where the child complains: beside its directory, which may be on a disk that fails.
fn log(dir: &Path) -> std::path::PathBuf {
    std::env::temp_dir().join(format!(
        "palisade-crash-{}-{}.log",
        std::process::id(),
        dir.to_str().unwrap().replace('/', "_")
    ))
}

fn said(dir: &Path) -> String {
    std::fs::read_to_string(log(dir)).unwrap_or_default()
}

/// Removes the child's complaints in the end.
pub struct Log<'a>(pub &'a Path);

impl Drop for Log<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(log(self.0));
    }
}
