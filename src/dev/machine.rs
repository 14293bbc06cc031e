//! How much of this machine each agent offers.

/// A share of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub cpu_milli: u64,
    pub memory_bytes: u64,
}

/// One of `parts` equal shares: agents on one machine must not promise the same CPU twice.
pub(super) fn share(parts: u64) -> Share {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let memory = rustix::system::sysinfo();
    let bytes = memory.totalram.saturating_mul(u64::from(memory.mem_unit.max(1)));
    Share { cpu_milli: threads * 1000 / parts.max(1), memory_bytes: bytes / parts.max(1) }
}
