//! Moves output from the pipes to the log while waiting for the workload to end.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group,
        pidfd_open, waitid, waitpid,
    },
};

use super::now_ms;
use crate::driver::log;

const READ_BYTES_MAX: usize = 64 * 1024;
/// How often orphans are reaped when nothing else happens.
const REAP_S: i64 = 10;

/// How a child ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    pub(super) code: Option<i32>,
    pub(super) signal: Option<i32>,
}

pub(super) struct Pump {
    out: Option<File>,
    err: Option<File>,
    log: log::Writer,
    buffer: Vec<u8>,
    child: Option<u32>,
}

impl Pump {
    pub(super) fn new(out: File, err: File, log: log::Writer) -> Self {
        Self { out: Some(out), err: Some(err), log, buffer: vec![0; READ_BYTES_MAX], child: None }
    }

    /// Pumps until our child has ended, ends its group, and reaps it.
    pub(super) fn until_child_ends(&mut self, pid: u32) -> io::Result<Outcome> {
        self.child = Some(pid);
        let pid = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("not a process id"))?;
        let fd = pidfd_open(pid, PidfdFlags::empty())?;
        self.until_gone(fd.as_fd())?;
        // Not reaped yet, so its number still names its group and nothing else.
        let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let _ = kill_process_group(pid, Signal::KILL);
        let status = waitpid(Some(pid), WaitOptions::empty())?;
        Ok(status.map_or_else(Outcome::default, |(_, status)| Outcome {
            code: status.exit_status(),
            signal: status.terminating_signal(),
        }))
    }

    /// Pumps until the process behind the descriptor has ended.
    pub(super) fn until_gone(&mut self, process: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let mut fds = vec![PollFd::from_borrowed_fd(process, PollFlags::IN)];
            let pipes = [(false, &self.out), (true, &self.err)];
            let open: Vec<bool> = pipes
                .iter()
                .filter_map(|(stderr, pipe)| {
                    let pipe = pipe.as_ref()?;
                    fds.push(PollFd::new(pipe, PollFlags::IN));
                    Some(*stderr)
                })
                .collect();
            let limit = Timespec { tv_sec: REAP_S, tv_nsec: 0 };
            match poll(&mut fds, Some(&limit)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            for (stderr, _) in open.iter().zip(happened.iter().skip(1)).filter(|(_, now)| **now) {
                self.read(*stderr);
            }
            if happened.first() == Some(&true) {
                return Ok(());
            }
            if !happened.contains(&true) {
                reap(self.child);
            }
        }
    }

    /// Takes what is still in the pipes.
    pub(super) fn drain(&mut self) {
        for stderr in [false, true] {
            while self.read(stderr) {}
        }
    }

    /// Reads once; `false` when nothing was there. A pipe that has no writer any more is closed.
    fn read(&mut self, stderr: bool) -> bool {
        let pipe = if stderr { &mut self.err } else { &mut self.out };
        let Some(file) = pipe else { return false };
        match file.read(&mut self.buffer) {
            Ok(0) => {
                *pipe = None;
                false
            }
            Ok(read) => {
                self.log.write(now_ms(), stderr, self.buffer.get(..read).unwrap_or_default());
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                *pipe = None;
                false
            }
        }
    }
}

/// Reaps orphans that became ours, but not `keep`: its status is still wanted.
pub(super) fn reap(keep: Option<u32>) {
    let me = std::process::id();
    for child in crate::driver::children_of(me).into_iter().filter(|child| Some(*child) != keep) {
        let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
        let _ = pid.map(|pid| waitpid(Some(pid), WaitOptions::NOHANG));
    }
}
