//! Time, tasks and randomness of the operator's side: the one place of this package that touches
//! them. Nothing here decides anything that is replicated.
#![allow(
    clippy::disallowed_methods,
    reason = "the command line is a real program at the edge; nothing of it runs in the simulator"
)]

use std::{
    future::Future,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rand::Rng as _;

/// A point on the monotonic clock.
pub type Moment = Instant;

/// Now, on the monotonic clock.
#[must_use]
pub fn now() -> Moment {
    Instant::now()
}

/// Now, as wall-clock milliseconds since 1970.
#[must_use]
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Waits.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Waits, blocking the thread: for the few verbs that have no runtime.
pub fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// What the future answers, or `None` when it takes too long.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, future).await.ok()
}

/// Starts a task.
pub fn spawn<T: Send + 'static>(
    task: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(task)
}

/// Runs blocking work off the executor's threads; `None` when it panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}

/// Starts a thread that nobody waits for.
pub fn thread(work: impl FnOnce() + Send + 'static) {
    drop(std::thread::spawn(work));
}

/// Random bytes good enough for secrets: from the thread's generator, which the system seeds.
#[must_use]
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    rand::rng().fill_bytes(&mut bytes);
    bytes
}

/// A random number below `limit`, which is not 0.
#[must_use]
pub fn random_below(limit: u64) -> u64 {
    u64::from_le_bytes(random_bytes()) % limit.max(1)
}

/// A key under which a write is applied at most once.
#[must_use]
pub fn idempotency_key() -> String {
    hex::encode(random_bytes::<16>())
}

/// The first of SIGINT and SIGTERM; never ends where signals cannot be had.
pub async fn stop_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    futures::future::select(Box::pin(interrupt.recv()), Box::pin(terminate.recv())).await;
}

/// Ends when standard input does.
///
/// A supervisor holds the other end of the pipe: when it is gone, however it went, so is its child.
pub async fn stdin_closed() {
    let (tell, told) = tokio::sync::oneshot::channel();
    thread(move || {
        let mut sink = std::io::sink();
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut sink);
        let _ = tell.send(());
    });
    let _ = told.await;
}

/// Asks whoever sits at the terminal; anything but a yes is a no. `None`: nobody does.
pub async fn asked(question: &str) -> Option<bool> {
    use std::io::{BufRead, IsTerminal, Write};
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return None;
    }
    let mut stderr = std::io::stderr();
    let _ = write!(stderr, "{question} [y/N] ").and_then(|()| stderr.flush());
    let (tell, told) = tokio::sync::oneshot::channel();
    thread(move || {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        let _ = tell.send(read.is_ok() && is_yes(&line));
    });
    Some(told.await.unwrap_or(false))
}

fn is_yes(line: &str) -> bool {
    matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes")
}

/// Ends at a stop signal and, if asked for, when standard input ends.
pub async fn stop(with_stdin: bool) {
    if with_stdin {
        futures::future::select(Box::pin(stop_signal()), Box::pin(stdin_closed())).await;
    } else {
        stop_signal().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_but_a_yes_is_a_no() {
        assert!(["y\n", "Yes\r\n", " YES "].into_iter().all(is_yes));
        assert!(!["", "\n", "n\n", "yess", "ja"].into_iter().any(is_yes));
    }
}
