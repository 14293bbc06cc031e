//! Limits of one transaction and of the tables that the kernel bounds itself.

/// Encoded size of one command.
pub const TXN_BYTES_MAX: usize = 1024 * 1024;
/// Puts and deletes of one transaction, index rows not counted.
pub const TXN_WRITES_MAX: usize = 10_000;
/// Rows that one transaction read by their keys. What it writes it reads, and it may read as many more.
pub const TXN_POINTS_MAX: usize = 2 * TXN_WRITES_MAX;
/// Ranges that one transaction read; those that overlap are one.
pub const TXN_RANGES_MAX: usize = 1_000;
/// Bytes of one record.
pub const VALUE_BYTES_MAX: usize = 512 * 1024;
/// Bytes of one row key.
pub const KEY_BYTES_MAX: usize = 1024;
/// Bytes of a work queue key.
pub const WORK_KEY_BYTES_MAX: usize = 512;
/// Bytes of a name: of a table, a lease, a worker, an event's kind or tenant, a version.
pub const NAME_BYTES_MAX: usize = 256;
/// Bytes of an event's subject.
pub const SUBJECT_BYTES_MAX: usize = 1024;
/// Bytes of the error that is kept of a run.
pub const WORK_ERROR_BYTES_MAX: usize = 4096;
/// Bytes of one audit record.
pub const AUDIT_BYTES_MAX: usize = 64 * 1024;
/// Bytes of the answer that is kept with a transaction.
pub const RESPONSE_BYTES_MAX: usize = VALUE_BYTES_MAX;
/// Bytes of an idempotency key.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 256;
/// Leases that one command names.
pub const LEASES_MAX: usize = 10_000;
/// Members that one command names.
pub const MEMBERS_MAX: usize = 1_000;
/// Milliseconds that one entry may add to the logical clock.
pub const CLOCK_STEP_MS_MAX: u64 = 10_000;
/// Deletions remembered for range checks.
pub const DELETIONS_MAX: usize = 10_000;
/// Events kept in memory.
pub const EVENTS_MAX: usize = 100_000;
/// Audit records kept in memory.
pub const AUDIT_MAX: usize = 10_000;
/// Life of an idempotency record on the logical clock.
pub const IDEMPOTENCY_MS: u64 = 24 * 60 * 60 * 1000;
/// Idempotency records kept; the oldest leave first.
pub const IDEMPOTENCY_MAX: usize = 1_000_000;
/// Rows that one step (a tick or a trim) removes from each bounded table.
pub const TRIM_STEP_MAX: usize = 1_000;
/// Life of a worker's session on the logical clock.
pub const SESSION_MS: u64 = 10_000;
/// How long the old owner of a lease may finish before it moves all the same.
pub const HANDOFF_MS: u64 = 10_000;

const _: () = assert!(VALUE_BYTES_MAX < TXN_BYTES_MAX);
const _: () = assert!(TRIM_STEP_MAX < AUDIT_MAX && AUDIT_MAX < EVENTS_MAX);
