//! How much room the disk has, and making segments ahead of their use while there is some.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use super::error::WalError;
use super::types::Options;
use crate::disk::{self, File, Files};

/// The free space under the log, shared between the log and its handles.
pub(super) struct Space {
    files: Arc<dyn Files>,
    dir: PathBuf,
    reserve: u64,
}

impl Space {
    pub fn new(files: Arc<dyn Files>, dir: &Path, reserve: u64) -> Self {
        Self { files, dir: dir.to_owned(), reserve }
    }

    /// Looks; a file system that does not say counts as having room, and then preparing a segment finds out.
    pub fn free(&self) -> u64 {
        self.files.free_bytes(&self.dir).unwrap_or(u64::MAX)
    }

    /// Whether less than the reserve is free. It looks each time: other programs fill disks quickly,
    /// and who asks first need not have anything refused later.
    pub fn is_low(&self) -> bool {
        self.free() < self.reserve
    }

    /// The directory, what is free and what must be, if less is free than the reserve.
    pub fn shortage(&self) -> Option<(&Path, u64, u64)> {
        let free = self.free();
        (free < self.reserve).then_some((self.dir.as_path(), free, self.reserve))
    }

    /// What must stay free when entries are taken; the rest of the reserve is for votes.
    pub fn floor(&self) -> u64 {
        self.reserve / 2
    }

    fn full(&self, needed: u64) -> WalError {
        WalError::NoSpace { dir: self.dir.clone(), free: self.free(), needed }
    }
}

/// Whether entries had to be refused. Until then what has room in a segment is taken: that room was
/// made before, and refusing what is in flight would stop the replica.
#[derive(Default)]
pub(super) struct Gauge {
    refused: bool,
}

impl Gauge {
    /// Looks again before the next entries are taken.
    pub fn suspect(&mut self) {
        self.refused = true;
    }

    /// Whether more entries may be taken.
    pub fn admit(&mut self, space: &Space) -> Result<(), WalError> {
        if !self.refused {
            return Ok(());
        }
        self.refused = space.free() < space.floor();
        if self.refused { Err(space.full(space.floor())) } else { Ok(()) }
    }
}

/// A zero-filled file that will become a segment.
pub(super) struct Prepared {
    pub file: Box<dyn File>,
    pub path: PathBuf,
    pub size: u64,
}

/// What is asked of the helper or made in place.
#[derive(Clone, Copy)]
pub(super) struct Order {
    /// The segment's number.
    pub number: u64,
    /// The smallest size that will do.
    pub at_least: u64,
    /// What must stay free besides.
    pub keep_free: u64,
}

/// The planned size of a segment, if there is room for it.
fn planned(options: &Options, number: u64) -> u64 {
    let shift = u32::try_from(number.saturating_sub(1)).unwrap_or(u32::MAX).saturating_mul(2);
    let grown =
        if shift < 32 { options.first_segment_bytes.saturating_mul(1 << shift) } else { u64::MAX };
    grown.min(options.segment_bytes)
}

/// A segment of votes alone, when there is no room for another.
const SMALLEST: u64 = 4096;

/// Makes a segment's file of the planned size, or smaller when the disk is short; for votes, which alone may take the
/// whole reserve, of any size in which one fits.
fn prepare(
    space: &Space,
    options: &Options,
    order: Order,
    is_patient: &dyn Fn() -> bool,
) -> Result<Prepared, WalError> {
    let path = space.dir.join(format!("next-{:08}.tmp", order.number));
    match space.files.remove(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(WalError::io("remove", &path)(error));
        }
        _ => {}
    }
    let planned = planned(options, order.number).max(order.at_least);
    let smallest = if order.keep_free == 0 { order.at_least.max(SMALLEST) } else { planned / 16 };
    for size in [planned, planned / 4, planned / 16, smallest] {
        let size = size.next_multiple_of(disk::SECTOR);
        if size < order.at_least || space.free() < size.saturating_add(order.keep_free) {
            continue;
        }
        match disk::create_zeroed(space.files.as_ref(), &path, size, is_patient) {
            Ok(file) => {
                options.hooks.on_point("wal.prepare.zeroed");
                return Ok(Prepared { file, path, size });
            }
            Err(error) if disk::is_full(&error) => {}
            Err(error) => return Err(WalError::io("prepare", &path)(error)),
        }
    }
    Err(space
        .full((planned / 16).min(smallest).max(order.at_least).saturating_add(order.keep_free)))
}

enum Job {
    Prepare(Order),
    Remove(PathBuf),
}

/// The helper thread that makes the next segment while the current one fills, and removes old ones.
struct Helper {
    jobs: mpsc::Sender<Job>,
    done: mpsc::Receiver<Result<Prepared, WalError>>,
    pending: bool,
    /// Somebody waits for what is being made.
    hurry: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Drop for Helper {
    /// Ends the thread: whoever opens the log next must not see files go that it has just found.
    fn drop(&mut self) {
        self.hurry.store(true, Ordering::Relaxed);
        self.jobs = mpsc::channel().0;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that makes the log's segments panicked");
        }
    }
}

/// Where the next segment comes from: made in place, or by the helper thread.
pub(super) struct Ahead {
    space: Arc<Space>,
    options: Options,
    helper: Option<Helper>,
    ready: Option<Prepared>,
}

impl Ahead {
    pub fn new(space: Arc<Space>, options: Options) -> Self {
        Self { space, options, helper: None, ready: None }
    }

    /// Starts the helper thread.
    pub fn start(&mut self) -> std::io::Result<()> {
        let (jobs, inbox) = mpsc::channel();
        let (outbox, done) = mpsc::channel();
        let (space, options) = (self.space.clone(), self.options.clone());
        let hurry = Arc::new(AtomicBool::new(false));
        let hurried = hurry.clone();
        let thread = thread::Builder::new().name("wal-ahead".to_owned()).spawn(move || {
            let is_patient = || !hurried.load(Ordering::Relaxed);
            let mut doomed = VecDeque::new();
            for job in inbox {
                match job {
                    Job::Prepare(order) => {
                        if outbox.send(prepare(&space, &options, order, &is_patient)).is_err() {
                            break;
                        }
                    }
                    Job::Remove(path) => {
                        doomed.push_back(path);
                        remove_in_order(&space, &options, &mut doomed);
                    }
                }
            }
        })?;
        self.helper = Some(Helper { jobs, done, pending: false, hurry, thread: Some(thread) });
        Ok(())
    }

    /// Has segment `number` made by the helper, if there is one and it has nothing else to make.
    pub fn request(&mut self, number: u64) {
        let keep_free = self.space.floor();
        if let Some(helper) = self.helper.as_mut().filter(|helper| !helper.pending)
            && self.ready.is_none()
        {
            let order = Order { number, at_least: 0, keep_free };
            helper.pending = helper.jobs.send(Job::Prepare(order)).is_ok();
        }
    }

    /// Makes sure that a segment as ordered is ready.
    pub fn obtain(&mut self, order: Order) -> Result<(), WalError> {
        if let Some(helper) = self.helper.as_mut().filter(|helper| helper.pending) {
            helper.pending = false;
            helper.hurry.store(true, Ordering::Relaxed);
            let made = match helper.done.try_recv() {
                Err(mpsc::TryRecvError::Empty) => {
                    tracing::warn!(segment = order.number, "the log waits for its next segment");
                    helper.done.recv()
                }
                made => made.map_err(|_| mpsc::RecvError),
            };
            helper.hurry.store(false, Ordering::Relaxed);
            match made {
                Ok(Ok(prepared)) => self.ready = Some(prepared),
                Ok(Err(error)) if !error.is_refusal() => return Err(error),
                // Out of room then; perhaps no longer. Or the helper is gone: make it here.
                Ok(Err(_)) | Err(_) => {}
            }
        }
        if self.ready.as_ref().is_some_and(|ready| ready.size < order.at_least) {
            self.ready = None;
        }
        if self.ready.is_none() {
            self.ready = Some(prepare(&self.space, &self.options, order, &|| false)?);
        }
        Ok(())
    }

    pub fn on_point(&self, point: &'static str) {
        self.options.hooks.on_point(point);
    }

    /// The segment that is ready.
    pub fn take(&mut self) -> Option<Prepared> {
        self.ready.take()
    }

    /// Removes a segment that is no longer needed; oldest first, so that never a hole appears.
    ///
    /// A failure only costs space: the file is found and dropped again after a restart.
    pub fn remove(&self, path: PathBuf) {
        match &self.helper {
            Some(helper) => {
                let _ = helper.jobs.send(Job::Remove(path));
            }
            None => remove_in_order(&self.space, &self.options, &mut VecDeque::from([path])),
        }
    }
}

/// Removes files one by one, each durably before the next; stops at the first that fails.
fn remove_in_order(space: &Space, options: &Options, doomed: &mut VecDeque<PathBuf>) {
    while let Some(path) = doomed.front() {
        let removed = match space.files.remove(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other,
        };
        if let Err(error) = removed.and_then(|()| space.files.sync_dir(&space.dir)) {
            tracing::warn!(file = %path.display(), %error, "cannot remove an old log segment");
            return;
        }
        options.hooks.on_point("wal.drop.removed");
        doomed.pop_front();
    }
}
