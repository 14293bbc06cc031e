//! What all tests use: a home of their own, the binary, and patience with an end.

pub mod agents;
pub mod dev;
pub mod http;
pub mod probe;
pub mod procs;
pub mod replicas;

use std::{
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::Value;

pub use dev::Dev;
pub use http::Api;
pub use replicas::Replicas;

/// The binary under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_palisade");
/// How long anything may take.
pub const DEADLINE: Duration = Duration::from_secs(60);
const COMMAND_DEADLINE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// Says that a test proved nothing, past the capture of what tests print.
pub fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// Fails in CI, which is to install the tool that is missing: nobody reads what a green run says.
#[track_caller]
pub fn lacks_tool(tool: &str) {
    let is_ci = std::env::var_os("CI").is_some();
    assert!(!is_ci, "it needs {tool}, which CI is to install: it cannot be skipped here");
}

/// A file of the examples.
pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// What `look` finds, looked for until the deadline.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < DEADLINE, "not within {} s: {what}", DEADLINE.as_secs());
        std::thread::sleep(POLL);
    }
}

static FREE_SLOTS: Mutex<u32> = Mutex::new(2);
static SLOT_FREED: Condvar = Condvar::new();

/// The right to run a cluster.
pub struct Slot(());

impl Slot {
    pub fn take() -> Self {
        let free = FREE_SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free =
            SLOT_FREED.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Self(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        *FREE_SLOTS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        SLOT_FREED.notify_one();
    }
}

/// A directory of its own, with a context file of its own.
pub struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    pub fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("palisade-e2e-").tempdir().unwrap();
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn context_file(&self) -> PathBuf {
        self.path().join("contexts.toml")
    }

    /// Writes a file and answers where it is.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The binary with these arguments, cut off from the environment of whoever runs the tests.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(BINARY);
        for name in ["PALISADE_TOKEN", "PALISADE_ADDR", "PALISADE_CACERT", "PALISADE_CONTEXT"] {
            command.env_remove(name);
        }
        command
            .args(args)
            .current_dir(self.path())
            .env("HOME", self.path())
            .env("PALISADE_CONTEXT_FILE", self.context_file())
            .stdin(Stdio::null());
        command
    }

    /// Runs the binary to its end.
    #[track_caller]
    pub fn palisade<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Out {
        finish(&mut self.command(args))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let left = procs::naming(self.path());
        for pid in &left {
            procs::kill(*pid);
        }
        until("an end of what was left behind", || {
            procs::naming(self.path()).is_empty().then_some(())
        });
        if !std::thread::panicking() {
            assert!(left.is_empty(), "processes were left behind: {left:?}");
        }
    }
}

/// What a command came to.
#[derive(Debug)]
pub struct Out {
    #[expect(dead_code, reason = "a failed assertion shows it")]
    pub command: String,
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a command to its end, and makes it end when it does not.
#[track_caller]
pub fn finish(command: &mut Command) -> Out {
    let (mut stdout, mut stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    command.stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
    let shown = format!("{command:?}");
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    let mut late = false;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if !late && begin.elapsed() > COMMAND_DEADLINE {
            late = true;
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let read = |file: &mut std::fs::File| {
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (read(&mut stdout), read(&mut stderr));
    let out = Out { command: shown, code: status.code().unwrap_or(-1), stdout, stderr };
    assert!(!late, "it did not end: {out:#?}");
    out
}

impl Out {
    #[track_caller]
    pub fn ok(self) -> Self {
        self.ends(0)
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn ends(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Asserts that stderr holds all of these.
    #[track_caller]
    pub fn says(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in {self:#?}");
        }
        self
    }

    /// Its data.
    #[track_caller]
    pub fn json(self) -> Value {
        let out = self.ok();
        serde_json::from_str(&out.stdout).unwrap_or_else(|error| panic!("{error}: {out:#?}"))
    }
}

/// A text of a record.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or("")
}

/// A number of a record.
#[track_caller]
pub fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number at {pointer} of {value}"))
}

/// A list in a record.
#[track_caller]
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.unwrap_or_else(|| panic!("no list at {pointer:?} of {value}"))
}
