//! One child process that is kept alive until it is told to stop.

use std::{
    ffi::OsString,
    fs::{self, OpenOptions},
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use tokio::{
    process::{Child, Command},
    sync::{Notify, mpsc},
};

use super::{layout::Layout, process::ProcessId};
use crate::{
    edge,
    output::{Failure, Outcome},
};

const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Who ran so long is forgiven what was before.
const STEADY: Duration = Duration::from_secs(30);
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// What is started, and where what it says goes.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    pub name: String,
    pub args: Vec<OsString>,
    pub layout: Layout,
    /// How long it may take to end when it is asked to.
    pub grace: Duration,
}

/// A child ended by itself.
#[derive(Debug)]
pub(super) struct Ended {
    pub name: String,
    pub how: String,
}

#[derive(Debug, Default)]
struct Stop {
    is_asked: AtomicBool,
    asked: Notify,
}

impl Stop {
    fn ask(&self) {
        self.is_asked.store(true, Ordering::SeqCst);
        self.asked.notify_one();
    }

    fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::SeqCst)
    }

    async fn wait(&self) {
        while !self.is_asked() {
            self.asked.notified().await;
        }
    }
}

/// A child that is kept alive.
#[derive(Debug)]
pub(super) struct Kept {
    stop: Arc<Stop>,
    task: tokio::task::JoinHandle<()>,
}

impl Kept {
    /// Starts it and goes on starting it until [`Self::stop`]; says on `ended` when it ends.
    pub fn start(recipe: Recipe, ended: mpsc::UnboundedSender<Ended>) -> Outcome<Self> {
        let first = recipe.spawn()?;
        let stop = Arc::new(Stop::default());
        let task = edge::spawn(keep(recipe, first, stop.clone(), ended));
        Ok(Self { stop, task })
    }

    /// Stops it and waits until it is gone.
    pub async fn stop(mut self) {
        self.stop.ask();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Kept {
    /// A child that nobody holds is not started again.
    fn drop(&mut self) {
        self.stop.ask();
    }
}

async fn keep(recipe: Recipe, first: Child, stop: Arc<Stop>, ended: mpsc::UnboundedSender<Ended>) {
    let mut next = Some(first);
    let mut pause = PAUSE_FIRST;
    while !stop.is_asked() {
        let began = edge::now();
        let how = match next.take().map_or_else(|| recipe.spawn(), Ok) {
            Err(failure) => failure.detail,
            Ok(mut child) => {
                // Held here: waiting for a child would close it, and that tells the child to end.
                let _stdin = child.stdin.take();
                match unless_asked(&mut child, &stop).await {
                    None => {
                        end(child, recipe.grace).await;
                        let _ = fs::remove_file(recipe.layout.pid_file(&recipe.name));
                        return;
                    }
                    Some(status) => describe(status),
                }
            }
        };
        if began.elapsed() >= STEADY {
            pause = PAUSE_FIRST;
        }
        let _ = ended.send(Ended { name: recipe.name.clone(), how });
        let _ = edge::within(pause, stop.wait()).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
    let _ = fs::remove_file(recipe.layout.pid_file(&recipe.name));
}

/// How it ended, or `None` when it was asked to stop before.
async fn unless_asked(child: &mut Child, stop: &Stop) -> Option<io::Result<ExitStatus>> {
    let asked = std::pin::pin!(stop.wait());
    let over = std::pin::pin!(child.wait());
    match futures::future::select(asked, over).await {
        futures::future::Either::Left(_) => None,
        futures::future::Either::Right((status, _)) => Some(status),
    }
}

fn describe(status: io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "no reason".to_owned(),
        },
        Err(error) => error.to_string(),
    }
}

/// Asks it to end, and makes it.
async fn end(mut child: Child, grace: Duration) {
    if let Some(id) = child.id().and_then(|pid| ProcessId::of(pid).ok()) {
        id.signal(Signal::TERM);
    }
    if edge::within(grace, child.wait()).await.is_none() {
        let _ = child.kill().await;
    }
}

impl Recipe {
    fn log(&self) -> PathBuf {
        self.layout.log(&self.name)
    }

    /// A command of this very program, with its output in the log and its own process group, so
    /// that a Ctrl-C of the terminal reaches the supervisor alone.
    pub fn command(&self) -> Outcome<Command> {
        let failed =
            |error: io::Error| Failure::caused(format!("cannot start {}", self.name), &error);
        let log = self.log();
        // A log that grew large begins anew; the one before is kept.
        if fs::metadata(&log).is_ok_and(|meta| meta.len() > LOG_BYTES_MAX) {
            let _ = fs::rename(&log, self.layout.log(&format!("{}.1", self.name)));
        }
        let out = OpenOptions::new().create(true).append(true).open(&log).map_err(failed)?;
        let err = out.try_clone().map_err(failed)?;
        let mut command = Command::new(THIS_PROGRAM);
        command
            .arg0("palisade")
            .args(&self.args)
            .env("PATH", path())
            .env_remove("PALISADE_TOKEN")
            .env_remove("PALISADE_CONTEXT")
            .env_remove("PALISADE_ADDR")
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        Ok(command)
    }

    fn spawn(&self) -> Outcome<Child> {
        let failed =
            |error: io::Error| Failure::caused(format!("cannot start {}", self.name), &error);
        let child = self.command()?.spawn().map_err(failed)?;
        if let Some(id) = child.id().and_then(|pid| ProcessId::of(pid).ok()) {
            id.write(&self.layout.pid_file(&self.name)).map_err(failed)?;
        }
        Ok(child)
    }
}

/// The last lines of a child's log.
pub(super) fn log_tail(layout: &Layout, name: &str) -> Vec<String> {
    const BYTES: u64 = 4096;
    const LINES: usize = 8;
    let Ok(mut file) = fs::File::open(layout.log(name)) else { return vec![] };
    let length = file.metadata().map_or(0, |meta| meta.len());
    let _ = file.seek(SeekFrom::Start(length.saturating_sub(BYTES)));
    let mut bytes = Vec::new();
    let _ = file.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|line| (*line).to_owned()).collect()
}

/// This very program, also when its file was replaced by a build meanwhile.
pub(super) const THIS_PROGRAM: &str = "/proc/self/exe";

/// The search path with this program's directory at its end, so that `palisade` is found.
fn path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    let program = std::env::current_exe().unwrap_or_default();
    if let Some(dir) = program.parent().filter(|dir| dir.is_absolute()) {
        if !path.is_empty() {
            path.push(":");
        }
        path.push(dir);
    }
    path
}
