//! Somebody who asks instances all the time and forgives nothing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use super::{dev::Instance, http::plain_get, number};

const PAUSE: Duration = Duration::from_millis(5);

/// Asks until it is told to stop, or dropped.
pub struct Probe {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: Option<JoinHandle<Vec<String>>>,
}

impl Probe {
    /// Asks these instances in turn; each must answer, and from the same process.
    pub fn start(instances: &[Instance]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answers = Arc::new(AtomicU64::new(0));
        let thread = {
            let (stop, answers, instances) = (stop.clone(), answers.clone(), instances.to_vec());
            std::thread::spawn(move || {
                let mut failures = Vec::new();
                for instance in instances.iter().cycle() {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    match ask(instance) {
                        Ok(()) => drop(answers.fetch_add(1, Ordering::Relaxed)),
                        Err(why) => failures.push(format!("{}: {why}", instance.name)),
                    }
                    std::thread::sleep(PAUSE);
                }
                failures
            })
        };
        Self { stop, answers, thread: Some(thread) }
    }

    /// How many answers there were up to now.
    pub fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Ends and asserts that every question was answered.
    #[track_caller]
    pub fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        let failures = self.thread.take().unwrap().join().unwrap();
        assert!(failures.is_empty(), "{} failures: {failures:#?}", failures.len());
        self.answers()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks one instance for its process.
pub fn ask(instance: &Instance) -> Result<(), String> {
    let answer = plain_get(&instance.addr, "/").map_err(|error| error.to_string())?;
    if answer.status != 200 {
        return Err(format!("status {}", answer.status));
    }
    let pid = number(&answer.json(), "/pid");
    if pid == instance.pid { Ok(()) } else { Err(format!("process {pid}, not {}", instance.pid)) }
}
