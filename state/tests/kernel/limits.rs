//! LIMIT-1: what is over a limit or against a rule is refused by the builder, and by apply for who
//! builds commands by hand; the refusal says what, and state stays as it was.

use palisade_state::{
    Command, Index, Outcome, Store, Table, Tx, Txn, Verdict, View,
    check::{self, TooLarge},
    command::{
        AuditDraft, Enqueue, EventDraft, FenceCheck, Finish, Form, Idempotency, Kind, LeaseRelease,
        PointCheck, RaiseFormat, RangeCheck, ReplicaReport, Requeue, Tick, WorkerBeat, Write,
    },
    limits::{
        AUDIT_BYTES_MAX, KEY_BYTES_MAX, NAME_BYTES_MAX, RESPONSE_BYTES_MAX, TXN_BYTES_MAX,
        TXN_POINTS_MAX, TXN_RANGES_MAX, TXN_WRITES_MAX, VALUE_BYTES_MAX, WORK_ERROR_BYTES_MAX,
        WORK_KEY_BYTES_MAX,
    },
    memory::MemoryStore,
    snapshot,
};

const T: Table<String, String> = Table::new("pets", &[]);

#[expect(clippy::ptr_arg, reason = "an index takes a reference to its table's record")]
fn tags(value: &String) -> Vec<String> {
    value.split(',').map(str::to_owned).collect()
}

const TAGGED: Table<String, String> = Table::new("tagged", &[Index { name: "tag", keys: tags }]);

fn key(name: &str) -> String {
    name.to_owned()
}

/// All of a state but the position and the clock of its last entry.
fn but_for_the_position(view: &View) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    snapshot::encode(view, |chunk| {
        chunks.push(chunk.to_vec());
        Ok::<(), serde_json::Error>(())
    })
    .unwrap();
    chunks.remove(0);
    chunks
}

/// Applies what the builder would never make; answers why it was refused.
fn refused(store: &MemoryStore, command: impl Into<Command>) -> String {
    let command = command.into();
    let told = check::command(&command).unwrap_err();
    let (before, revision) = (but_for_the_position(&store.view()), store.view().revision());
    let Outcome { verdict, .. } = store.apply(command).unwrap();
    let why = match verdict.unwrap() {
        Verdict::Invalid(why) => why,
        Verdict::TooLarge(large) => TooLarge::from(large).to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(told.to_string(), why, "told the same before it is proposed");
    assert_eq!(before, but_for_the_position(&store.view()), "a refusal leaves nothing: {why}");
    assert_eq!(revision, store.view().revision());
    why
}

fn write(table: &str, key: &[u8], value: Option<Vec<u8>>) -> Txn {
    let write = Write { table: table.into(), key: key.to_vec(), value };
    Txn { writes: vec![write], ..Txn::default() }
}

fn assert_says(why: &str, parts: &[&str]) {
    assert!(parts.iter().all(|part| why.contains(part)), "{why:?} names {parts:?}");
}

#[test]
fn the_builder_names_what_is_too_large() {
    let mut tx = Tx::new(MemoryStore::default().view());
    let error = tx.put(&T, &key("rex"), &"x".repeat(VALUE_BYTES_MAX)).unwrap_err().to_string();
    assert_says(
        &error,
        &["a record of table pets, key \"rex\"", "524290 bytes", "limit is 524288"],
    );
    let error = tx.put(&T, &"k".repeat(KEY_BYTES_MAX + 1), &key("v")).unwrap_err().to_string();
    assert_says(&error, &["a key of table pets", "kkk…", "1025 bytes", "limit is 1024"]);
    tx.put(&T, &"k".repeat(KEY_BYTES_MAX), &key("v")).unwrap();
    let error = tx.put(&T, &key(""), &key("v")).unwrap_err().to_string();
    assert_says(&error, &["a key of table pets is empty"]);
    for n in 1..TXN_WRITES_MAX {
        tx.put(&T, &n.to_string(), &key("v")).unwrap();
    }
    tx.put(&T, &key("one more"), &key("v")).unwrap();
    let error = tx.build().unwrap_err().to_string();
    assert_says(&error, &["a transaction has 10001 writes", "limit is 10000"]);
}

#[test]
fn as_many_writes_as_are_allowed_are_applied_whatever_their_indexes_need() {
    let store = MemoryStore::default();
    let mut tx = Tx::new(store.view());
    for n in 0..TXN_WRITES_MAX {
        tx.put(&TAGGED, &n.to_string(), &key("a,b")).unwrap();
    }
    assert!(store.apply(tx.build().unwrap().into()).unwrap().is_applied());
    assert_eq!(store.view().count("tagged#tag"), 2 * TXN_WRITES_MAX);
}

#[test]
fn a_transaction_of_a_mebibyte_is_applied_and_a_larger_one_is_not() {
    let store = MemoryStore::default();
    let mut tx = Tx::new(store.view());
    for n in 0..3 {
        tx.put(&T, &n.to_string(), &"x".repeat(TXN_BYTES_MAX / 3)).unwrap();
    }
    let error = tx.build().unwrap_err().to_string();
    assert_says(&error, &["a transaction has", "bytes, the limit is 1048576"]);
    let half = vec![b'x'; VALUE_BYTES_MAX];
    let mut txn = write("pets", b"a", Some(half.clone()));
    txn.writes.extend(write("pets", b"b", Some(half[..VALUE_BYTES_MAX - 60].to_vec())).writes);
    assert!(store.apply(txn.clone().into()).unwrap().is_applied());
    txn.writes.extend(write("pets", b"c", Some(vec![b'x'; 60])).writes);
    assert_says(&refused(&store, txn), &["a transaction has", "limit is 1048576"]);
}

#[test]
fn apply_refuses_rows_that_the_builder_would() {
    let store = MemoryStore::default();
    let over = vec![b'k'; KEY_BYTES_MAX + 1];
    let cases: [(Txn, &[&str]); 8] = [
        (write("", b"k", None), &["a table's name is empty"]),
        (write(&"t".repeat(NAME_BYTES_MAX + 1), b"k", None), &["a table's name", "257 bytes"]),
        (write("pets", b"", Some(vec![])), &["a key of table pets is empty"]),
        (write("pets", &over, Some(vec![])), &["a key of table pets", "1025 bytes"]),
        (
            write("pets", b"rex", Some(vec![0; VALUE_BYTES_MAX + 1])),
            &["a record of table pets, key \"rex\"", "524289 bytes"],
        ),
        (write("pets#tag", b"no primary", Some(vec![])), &["is not a key of index pets#tag"]),
        (write("pets#tag", b"\xff\0rex", Some(vec![])), &["\\xff\\x00rex", "index pets#tag"]),
        (
            Txn {
                points: vec![PointCheck {
                    table: "pets".into(),
                    key: over.clone(),
                    ..PointCheck::default()
                }],
                ..Txn::default()
            },
            &["a key of table pets", "1025 bytes"],
        ),
    ];
    for (txn, parts) in cases {
        assert_says(&refused(&store, txn), parts);
    }
    let writes = (0..=TXN_WRITES_MAX).flat_map(|n| write("p", &n.to_be_bytes(), None).writes);
    let many = Txn { writes: writes.collect(), ..Txn::default() };
    assert_says(&refused(&store, many), &["a transaction has 10001 writes"]);
}

#[test]
fn reads_have_a_limit_and_ranges_that_overlap_are_one() {
    let store = MemoryStore::default();
    let point = |n: usize| PointCheck {
        table: "p".into(),
        key: n.to_be_bytes()[4..].to_vec(),
        ..PointCheck::default()
    };
    let points = |count| Txn { points: (0..count).map(point).collect(), ..Txn::default() };
    assert!(store.apply(points(TXN_POINTS_MAX).into()).unwrap().is_applied());
    assert_says(
        &refused(&store, points(TXN_POINTS_MAX + 1)),
        &["a transaction has 20001 reads of a row, the limit is 20000"],
    );
    let range = |n: usize| RangeCheck {
        table: "p".into(),
        start: n.to_be_bytes().to_vec(),
        end: Some(n.to_be_bytes().to_vec()),
    };
    let ranges = |count| Txn { ranges: (0..count).map(range).collect(), ..Txn::default() };
    assert!(store.apply(ranges(TXN_RANGES_MAX).into()).unwrap().is_applied());
    let told = "a transaction has 1001 reads of a range, the limit is 1000";
    assert_says(&refused(&store, ranges(TXN_RANGES_MAX + 1)), &[told]);
    // The builder counts what is left when those that overlap are one.
    let scanned = |count: usize, whole: bool| {
        let mut tx = Tx::new(store.view());
        for n in 0..count {
            tx.scan(&T, format!("{n:04}").as_bytes()).unwrap();
        }
        if whole {
            tx.scan(&T, b"").unwrap();
        }
        tx.build().map(|txn| txn.ranges.len()).map_err(|error| error.to_string())
    };
    assert_eq!(scanned(TXN_RANGES_MAX, false), Ok(TXN_RANGES_MAX));
    assert_eq!(scanned(TXN_RANGES_MAX + 1, false), Err(told.to_owned()));
    assert_eq!(scanned(TXN_RANGES_MAX + 1, true), Ok(1));
}

#[test]
fn a_range_that_starts_behind_its_end_is_refused() {
    let store = MemoryStore::default();
    let range = |start: &[u8], end: &[u8]| {
        let range =
            RangeCheck { table: "pets".into(), start: start.to_vec(), end: Some(end.to_vec()) };
        Txn { ranges: vec![range], ..Txn::default() }
    };
    let why = refused(&store, range(b"b\xff", b"a"));
    assert_says(&why, &["a range of table pets starts at \"b\\xff\", behind its end \"a\""]);
    assert!(store.apply(range(b"a", b"a").into()).unwrap().is_applied(), "an empty one is one");
    assert!(
        check::ends("pets", b"b", Some(b"a")).is_err() && check::ends("pets", b"b", None).is_ok()
    );
}

#[test]
fn a_view_from_the_future_is_refused() {
    let store = MemoryStore::default();
    let view_rev = store.view().applied().index + 1;
    let outcome = store.apply(Txn { view_rev, ..Txn::default() }.into()).unwrap();
    let Some(Verdict::Invalid(why)) = outcome.verdict else { panic!("{outcome:?}") };
    assert_says(&why, &["is ahead of entry"]);
    let view_rev = store.view().applied().index;
    assert!(store.apply(Txn { view_rev, ..Txn::default() }.into()).unwrap().is_applied());
}

#[test]
fn the_queue_takes_only_its_kinds_and_keys() {
    let store = MemoryStore::default();
    let long = "k".repeat(WORK_KEY_BYTES_MAX + 1);
    let cases = [
        ("Bad Kind", "k", "\"Bad Kind\" is not a kind of work"),
        ("9lives", "k", "not a kind"),
        ("", "k", "not a kind"),
        ("ok", "", "a key of ok work is empty"),
        ("ok", long.as_str(), "513 bytes, the limit is 512"),
    ];
    for (kind, key, part) in cases {
        let mut tx = Tx::new(store.view());
        assert_says(&tx.enqueue(kind, key).unwrap_err().to_string(), &[part]);
        let (kind, key) = (kind.to_owned(), key.to_owned());
        let enqueue = Enqueue { kind: kind.clone(), key: key.clone(), delay_ms: 0 };
        let finish = Finish { kind: kind.clone(), key: key.clone(), generation: 1 };
        let requeue = Requeue { kind, key, ..Requeue::default() };
        for txn in [
            Txn { enqueues: vec![enqueue], ..Txn::default() },
            Txn { finishes: vec![finish.clone()], ..Txn::default() },
            Txn { work: Some(finish), ..Txn::default() },
            Txn { requeues: vec![requeue], ..Txn::default() },
        ] {
            assert_says(&refused(&store, txn), &[part]);
        }
    }
    let mut tx = Tx::new(store.view());
    tx.enqueue(&format!("a{}", "9".repeat(63)), &"k".repeat(WORK_KEY_BYTES_MAX)).unwrap();
    assert!(store.apply(tx.build().unwrap().into()).unwrap().is_applied());
}

#[test]
fn of_a_long_error_the_head_is_kept() {
    let store = MemoryStore::default();
    let error = format!("{}é", "x".repeat(WORK_ERROR_BYTES_MAX - 1));
    let requeue = Requeue { kind: "k".into(), key: "k".into(), error, ..Requeue::default() };
    let raw = Txn { requeues: vec![requeue.clone()], ..Txn::default() };
    assert_says(&refused(&store, raw), &["the error of k work", "limit is 4096"]);
    let mut tx = Tx::new(store.view());
    tx.requeue(requeue);
    assert_eq!(tx.build().unwrap().requeues[0].error.len(), WORK_ERROR_BYTES_MAX - 1);
}

#[test]
fn events_audit_keys_and_fences_have_limits() {
    let store = MemoryStore::default();
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    let event =
        EventDraft { kind: "pet.born".into(), data: b"{}".to_vec(), ..EventDraft::default() };
    let events = |event: EventDraft| Txn { events: vec![event], ..Txn::default() };
    let keyed = |item: Idempotency| Txn { idempotency: Some(item), ..Txn::default() };
    let item = Idempotency { scope: "s".into(), key: "k".into(), request_hash: vec![1; 32] };
    let fenced = |fence: FenceCheck| Txn { fence: Some(fence), ..Txn::default() };
    let cases: [(Txn, &str); 11] = [
        (events(EventDraft { kind: String::new(), ..event.clone() }), "an event's kind is empty"),
        (
            events(EventDraft { tenant: long.clone(), ..event.clone() }),
            "the tenant of a pet.born event",
        ),
        (
            events(EventDraft { subject: long.repeat(5), ..event.clone() }),
            "the subject of a pet.born event",
        ),
        (events(EventDraft { data: vec![0xff], ..event.clone() }), "pet.born event is not UTF-8"),
        (Txn { events: vec![event; TXN_WRITES_MAX + 1], ..Txn::default() }, "has 10001 events"),
        (
            Txn {
                audit: Some(AuditDraft {
                    resource: "x".repeat(AUDIT_BYTES_MAX),
                    ..AuditDraft::default()
                }),
                ..Txn::default()
            },
            "an audit record has",
        ),
        (
            Txn { response: vec![0; RESPONSE_BYTES_MAX + 1], ..Txn::default() },
            "a transaction's response has",
        ),
        (keyed(Idempotency { key: String::new(), ..item.clone() }), "an idempotency key is empty"),
        (keyed(Idempotency { key: long, ..item.clone() }), "an idempotency key"),
        (
            keyed(Idempotency { request_hash: vec![0; 65], ..item }),
            "the hash of a request has 65 bytes",
        ),
        (fenced(FenceCheck::default()), "a fence's lease is empty"),
    ];
    for (txn, part) in cases {
        assert_says(&refused(&store, txn), &[part]);
    }
}

#[test]
fn commands_that_are_no_transactions_have_rules_too() {
    let store = MemoryStore::default();
    let beat = WorkerBeat { worker: "1".into(), ..WorkerBeat::default() };
    let cases: [(Kind, &str); 7] = [
        (Kind::WorkerBeat(WorkerBeat::default()), "a worker's name is empty"),
        (
            Kind::WorkerBeat(WorkerBeat { singletons: vec![String::new()], ..beat }),
            "a singleton's name is empty",
        ),
        (Kind::LeaseRelease(LeaseRelease::default()), "a worker's name is empty"),
        (
            Kind::Form(Form { cluster: "c".into(), ..Form::default() }),
            "the cluster's lineage is empty",
        ),
        (
            Kind::Report(ReplicaReport { format_max: 1, ..ReplicaReport::default() }),
            "names no replica",
        ),
        (Kind::Report(ReplicaReport { replica: 1, ..ReplicaReport::default() }), "names no format"),
        (Kind::RaiseFormat(RaiseFormat { format: 1, members: vec![1; 1001] }), "has 1001 members"),
    ];
    for (kind, part) in cases {
        assert_says(&refused(&store, kind), &[part]);
    }
    assert!(check::command(&Kind::Tick(Tick {}).into()).is_ok());
    let unknown = check::command(&Command { kind: None }).unwrap_err().to_string();
    assert_says(&unknown, &["a kind that this build does not know"]);
}

#[test]
fn text_that_is_not_utf8_is_refused_by_name_when_it_is_read() {
    use prost::Message;
    let txn = Txn {
        enqueues: vec![Enqueue { kind: "kind".into(), key: "k?".into(), delay_ms: 0 }],
        ..Txn::default()
    };
    let mut bytes = Command::from(txn).encode_to_vec();
    let at = bytes.iter().position(|byte| *byte == b'?').unwrap();
    bytes[at] = 0xff;
    let error = Command::decode(bytes.as_slice()).unwrap_err().to_string();
    assert_says(&error, &["Enqueue.key", "UTF-8"]);
}

#[test]
fn an_index_key_with_a_zero_byte_is_refused_and_finds_nothing() {
    let store = MemoryStore::default();
    let mut tx = Tx::new(store.view());
    let error = tx.put(&TAGGED, &key("rex"), &key("a\0b")).unwrap_err().to_string();
    assert_says(&error, &["index tag of table tagged", "zero byte"]);
    let mut tx = Tx::new(store.view());
    tx.put(&TAGGED, &key("rex"), &key("a")).unwrap();
    let error = tx.put(&TAGGED, &"k".repeat(KEY_BYTES_MAX), &key("a")).unwrap_err().to_string();
    assert_says(&error, &["a key of table tagged#tag", "limit is 1024"]);
    let mut tx = Tx::new(store.view());
    tx.put(&TAGGED, &key("rex"), &key("a")).unwrap();
    assert!(store.apply(tx.build().unwrap().into()).unwrap().is_applied());
    assert!(TAGGED.by_index(&store.view(), "tag", "a\0rex").unwrap().is_empty());
    let mut tx = Tx::new(store.view());
    assert!(tx.by_index(&TAGGED, "tag", "a\0rex").unwrap().is_empty());
    assert!(store.apply(tx.build().unwrap().into()).unwrap().is_applied());
}
