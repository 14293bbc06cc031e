//! What may be proposed: limits and rules that are checked before a command can enter the log.
//!
//! # Invariants
//! - `ADMIT-1` A command that some replica could not apply never enters the log, whoever sent it.

use palisade_state::{
    Command, Txn,
    command::Kind,
    limits::{
        KEY_BYTES_MAX, TXN_BYTES_MAX, TXN_POINTS_MAX, TXN_RANGES_MAX, TXN_WRITES_MAX,
        VALUE_BYTES_MAX, WORK_KEY_BYTES_MAX,
    },
};

use crate::refusal::Refusal;

fn bounded(what: impl FnOnce() -> String, size: usize, limit: usize) -> Result<(), Refusal> {
    if size <= limit {
        return Ok(());
    }
    Err(Refusal::TooLarge(format!("{} has {size}, the limit is {limit}", what())))
}

fn named(key: &[u8]) -> String {
    let shown = key.get(..64).unwrap_or(key);
    String::from_utf8_lossy(shown).into_owned()
}

/// Whether a key can be one.
pub(crate) fn check_key(table: &str, key: &[u8]) -> Result<(), Refusal> {
    bounded(|| format!("key {}… of table {table} (bytes)", named(key)), key.len(), KEY_BYTES_MAX)
}

/// Whether a table can have this name.
pub(crate) fn check_table(name: &str) -> Result<(), Refusal> {
    if name.is_empty() {
        return Err(Refusal::Invalid("a table without a name".to_owned()));
    }
    bounded(|| format!("the table's name {}… (bytes)", named(name.as_bytes())), name.len(), 256)
}

/// Whether `start..end` is a range.
pub(crate) fn check_range(table: &str, start: &[u8], end: Option<&[u8]>) -> Result<(), Refusal> {
    check_key(table, start)?;
    if let Some(end) = end {
        check_key(table, end)?;
        if end < start {
            let what = format!("a range of table {table} that ends before it begins");
            return Err(Refusal::Invalid(what));
        }
    }
    Ok(())
}

/// Whether a command may be proposed; `bytes` is its encoded size.
pub(crate) fn check(command: &Command, bytes: usize) -> Result<(), Refusal> {
    bounded(|| "the command (bytes)".to_owned(), bytes, TXN_BYTES_MAX)?;
    match &command.kind {
        Some(Kind::Txn(txn)) => check_txn(txn),
        Some(_) => Ok(()),
        None => Err(Refusal::Invalid(
            "a command of a kind that the leader does not know: the caller is newer".to_owned(),
        )),
    }
}

/// Whether a gateway may propose it.
pub(crate) fn check_from_gateway(command: &Command) -> Result<(), Refusal> {
    match &command.kind {
        Some(Kind::Txn(_)) => Ok(()),
        _ => Err(Refusal::Invalid("a gateway proposes transactions, and nothing else".to_owned())),
    }
}

fn check_txn(txn: &Txn) -> Result<(), Refusal> {
    // Rows of an index are not counted: their table's name has a `#`.
    let writes = txn.writes.iter().filter(|write| !write.table.contains('#')).count();
    bounded(|| "the transaction (writes)".to_owned(), writes, TXN_WRITES_MAX)?;
    let (points, ranges) = (txn.points.len(), txn.ranges.len());
    bounded(|| "the transaction (reads of a row)".to_owned(), points, TXN_POINTS_MAX)?;
    bounded(|| "the transaction (reads of a range)".to_owned(), ranges, TXN_RANGES_MAX)?;
    for write in &txn.writes {
        check_table(&write.table)?;
        check_key(&write.table, &write.key)?;
        if let Some(value) = &write.value {
            let what = || format!("record {}… of table {} (bytes)", named(&write.key), write.table);
            bounded(what, value.len(), VALUE_BYTES_MAX)?;
        }
    }
    for range in &txn.ranges {
        check_range(&range.table, &range.start, range.end.as_deref())?;
    }
    let finishes = txn.finishes.iter().map(|item| &item.key);
    let requeues = txn.requeues.iter().map(|item| &item.key);
    for key in txn.enqueues.iter().map(|item| &item.key).chain(finishes).chain(requeues) {
        let what = || format!("work key {}… (bytes)", named(key.as_bytes()));
        bounded(what, key.len(), WORK_KEY_BYTES_MAX)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use palisade_state::command::{Enqueue, PointCheck, RangeCheck, Tick, Write};
    use prost::Message;

    use super::*;

    fn judge(txn: Txn) -> Result<(), Refusal> {
        let command: Command = txn.into();
        check(&command, command.encoded_len())
    }

    fn put(key: usize, value: usize) -> Write {
        Write { table: "t".into(), key: vec![b'k'; key], value: Some(vec![0; value]) }
    }

    fn too_large(result: Result<(), Refusal>) -> String {
        match result {
            Err(Refusal::TooLarge(what)) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_at_its_limit_passes_and_one_more_is_named() {
        let writes = |n| Txn { writes: vec![put(1, 1); n], ..Txn::default() };
        assert_eq!(judge(writes(TXN_WRITES_MAX)), Ok(()));
        assert!(too_large(judge(writes(TXN_WRITES_MAX + 1))).contains("10001"));
        let one = |key, value| Txn { writes: vec![put(key, value)], ..Txn::default() };
        assert_eq!(judge(one(KEY_BYTES_MAX, VALUE_BYTES_MAX)), Ok(()));
        assert!(too_large(judge(one(KEY_BYTES_MAX + 1, 1))).starts_with("key kkk"));
        assert!(too_large(judge(one(1, VALUE_BYTES_MAX + 1))).starts_with("record k"));
        let large = Txn { response: vec![0; TXN_BYTES_MAX], ..Txn::default() };
        assert!(too_large(judge(large)).starts_with("the command"));
        let work = |len| Enqueue { kind: "k".into(), key: "w".repeat(len), delay_ms: 0 };
        let enqueue = |len| Txn { enqueues: vec![work(len)], ..Txn::default() };
        assert_eq!(judge(enqueue(WORK_KEY_BYTES_MAX)), Ok(()));
        assert!(too_large(judge(enqueue(WORK_KEY_BYTES_MAX + 1))).starts_with("work key"));
    }

    #[test]
    fn reads_have_limits() {
        let point = PointCheck { table: "t".into(), key: b"k".to_vec(), ..PointCheck::default() };
        let points = |n| Txn { points: vec![point.clone(); n], ..Txn::default() };
        assert_eq!(judge(points(TXN_POINTS_MAX)), Ok(()));
        assert!(too_large(judge(points(TXN_POINTS_MAX + 1))).contains("reads of a row) has 20001"));
        let range = RangeCheck { table: "t".into(), start: b"k".to_vec(), end: None };
        let ranges = |n| Txn { ranges: vec![range.clone(); n], ..Txn::default() };
        assert_eq!(judge(ranges(TXN_RANGES_MAX)), Ok(()));
        assert!(
            too_large(judge(ranges(TXN_RANGES_MAX + 1))).contains("reads of a range) has 1001")
        );
    }

    #[test]
    fn index_rows_are_not_counted() {
        let row = Write { table: "t#by-x".into(), ..put(1, 1) };
        let txn = Txn { writes: vec![row; TXN_WRITES_MAX + 1], ..Txn::default() };
        assert_eq!(judge(txn), Ok(()));
    }

    #[test]
    fn a_range_that_ends_before_it_begins_is_refused() {
        let range = |start: &[u8], end: Option<&[u8]>| {
            let (table, start) = ("t".to_owned(), start.to_vec());
            let range = RangeCheck { table, start, end: end.map(<[u8]>::to_vec) };
            judge(Txn { ranges: vec![range], ..Txn::default() })
        };
        assert!(matches!(range(b"b", Some(b"a")), Err(Refusal::Invalid(_))));
        assert_eq!(range(b"b", Some(b"b")), Ok(()), "it is empty");
        assert_eq!(range(b"b", None), Ok(()));
    }

    #[test]
    fn a_command_of_an_unknown_kind_is_refused() {
        assert!(matches!(check(&Command { kind: None }, 2), Err(Refusal::Invalid(_))));
    }

    #[test]
    fn a_gateway_proposes_transactions_alone() {
        assert_eq!(check_from_gateway(&Txn::default().into()), Ok(()));
        let tick: Command = Kind::Tick(Tick {}).into();
        assert!(matches!(check_from_gateway(&tick), Err(Refusal::Invalid(_))));
    }
}
