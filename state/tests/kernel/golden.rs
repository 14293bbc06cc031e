//! Golden files: what is on the log, in answers and in snapshots is read by today's code and, for
//! the current format, written as the very same bytes. The rules are in `docs/formats.md`.
//!
//! `PALISADE_GOLDEN=write` writes the files that are missing, and never one that is there.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::PathBuf};

use palisade_state::{
    Command, Machine, Outcome, Position, Role, Txn, Verdict, View,
    command::{
        self, AuditDraft, Conflict, Dropped, Enqueue, Entry, EventDraft, FORMAT, FenceCheck,
        FenceWire, Fenced, Finish, ForgetReplica, Form, HeldLease, Idempotency,
        IdempotencyMismatch, Kind, LeaseRelease, PointCheck, RaiseFormat, RangeCheck,
        ReplicaReport, Requeue, Superseded, Tick, Trim, WorkerBeat, Write,
    },
    snapshot::{Loader, encode, hash},
};
use prost::Message;
use sha2::{Digest, Sha256};

const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
const SOURCES: [&str; 5] = [
    "src/command/mod.rs",
    "src/command/outcome.rs",
    "src/audit.rs",
    "src/snapshot/mod.rs",
    "src/snapshot/rows.rs",
];

fn fence() -> Option<FenceWire> {
    Some(FenceWire { epoch: 1, term: 7, index: 300 })
}

/// A transaction with every field set.
fn full_txn() -> Txn {
    let (kind, key) = ("instance.check".to_owned(), "in_01".to_owned());
    Txn {
        idempotency: Some(Idempotency {
            scope: "user/ada nodes.add".into(),
            key: "k-1".into(),
            request_hash: vec![0xab; 32],
        }),
        fence: Some(FenceCheck {
            lease: "shard:17".into(),
            worker: "2".into(),
            incarnation: 9_000_000_000,
            fence: fence(),
        }),
        view_rev: 299,
        points: vec![PointCheck {
            table: "nodes".into(),
            key: b"nd_1".to_vec(),
            version: 3,
            created_rev: 12,
        }],
        ranges: vec![
            RangeCheck {
                table: "nodes#pool".into(),
                start: b"a\0".to_vec(),
                end: Some(b"a\x01".to_vec()),
            },
            RangeCheck { table: "nodes".into(), start: vec![], end: None },
        ],
        writes: vec![
            Write {
                table: "nodes".into(),
                key: b"nd_1".to_vec(),
                value: Some(b"{\"name\":\"a\"}".to_vec()),
            },
            Write { table: "nodes#pool".into(), key: b"a\0nd_1".to_vec(), value: Some(vec![]) },
            Write { table: "nodes".into(), key: b"nd_2".to_vec(), value: None },
        ],
        enqueues: vec![Enqueue { kind: kind.clone(), key: key.clone(), delay_ms: 1_500 }],
        finishes: vec![Finish { kind: kind.clone(), key: key.clone(), generation: 290 }],
        requeues: vec![Requeue {
            kind: kind.clone(),
            key: key.clone(),
            generation: 291,
            delay_ms: 2_000,
            error: "it did not answer".into(),
        }],
        events: vec![EventDraft {
            kind: "node.ready".into(),
            tenant: "acme".into(),
            subject: "node/nd_1".into(),
            data: b"{}".to_vec(),
        }],
        audit: Some(AuditDraft {
            actor: "user/ada".into(),
            method: "nodes.add".into(),
            resource: "node/nd_1".into(),
            tenant: "acme".into(),
            outcome: "ok".into(),
            request_id: "rq_1".into(),
        }),
        response: b"{\"id\":\"nd_1\"}".to_vec(),
        work: Some(Finish { kind, key, generation: 290 }),
    }
}

fn beat() -> WorkerBeat {
    WorkerBeat {
        worker: "2".into(),
        incarnation: 41,
        role: Role::Scheduler.into(),
        singletons: vec!["sweeper".into()],
        draining: true,
        sharded: true,
    }
}

fn entries() -> Vec<(&'static str, Entry)> {
    let lease = HeldLease { lease: "scheduler/shard:3".into(), fence: fence() };
    let release = LeaseRelease {
        worker: "2".into(),
        incarnation: 41,
        leases: vec![lease],
        role: Role::Scheduler.into(),
        leave: true,
    };
    let report = ReplicaReport {
        replica: 3,
        format_max: 2,
        version: "0.3.1".into(),
        events_durable: 70_000,
        audit_durable: 8_000,
    };
    let kinds = [
        ("entry-txn", Kind::Txn(full_txn())),
        ("entry-tick", Kind::Tick(Tick {})),
        ("entry-worker-beat", Kind::WorkerBeat(beat())),
        ("entry-lease-release", Kind::LeaseRelease(release)),
        (
            "entry-form",
            Kind::Form(Form { cluster: "cl_1".into(), lineage: "ln_1".into(), epoch: 2 }),
        ),
        ("entry-report", Kind::Report(report)),
        (
            "entry-raise-format",
            Kind::RaiseFormat(RaiseFormat { format: 2, members: vec![1, 2, 300] }),
        ),
        ("entry-trim", Kind::Trim(Trim { events_below: 70_001, audit_below: 8_001 })),
        ("entry-forget-replica", Kind::ForgetReplica(ForgetReplica { replica: 3 })),
    ];
    kinds
        .into_iter()
        .map(|(name, kind)| {
            let commands = vec![Command::from(kind)];
            (
                name,
                Entry {
                    format: 1,
                    proposer_term: 7,
                    delta_ms: 250,
                    wall_ms: 1_700_000_000_000,
                    commands,
                },
            )
        })
        .collect()
}

fn outcomes() -> Vec<(&'static str, Outcome)> {
    let verdicts = [
        ("outcome-applied", Verdict::Applied(b"{}".to_vec())),
        ("outcome-replayed", Verdict::Replayed(b"{}".to_vec())),
        ("outcome-idempotency-mismatch", Verdict::IdempotencyMismatch(IdempotencyMismatch {})),
        (
            "outcome-fenced",
            Verdict::Fenced(Fenced {
                lease: "shard:17".into(),
                current: fence(),
                why: "another worker holds it".into(),
            }),
        ),
        (
            "outcome-conflict",
            Verdict::Conflict(Conflict { table: "nodes".into(), key: b"nd_1".to_vec() }),
        ),
        ("outcome-invalid", Verdict::Invalid("a rule".into())),
        ("outcome-dropped", Verdict::Dropped(Dropped { proposer_term: 6, entry_term: 7 })),
        (
            "outcome-superseded",
            Verdict::Superseded(Superseded { kind: "instance.check".into(), key: "in_01".into() }),
        ),
        (
            "outcome-too-large",
            Verdict::TooLarge(command::TooLarge {
                what: "a transaction".into(),
                unit: "bytes".into(),
                size: 2_000_000,
                limit: 1_048_576,
            }),
        ),
    ];
    verdicts.into_iter().map(|(name, verdict)| (name, Outcome::new(301, verdict))).collect()
}

/// A state with something in every primitive.
fn machine() -> Machine {
    let mut machine = Machine::default();
    let mut apply = |kind: Kind| {
        let at = Position { term: 7, index: machine.applied().index + 1 };
        let entry = Entry {
            format: 1,
            proposer_term: 7,
            delta_ms: 250,
            wall_ms: 1_700_000_000_000,
            commands: vec![kind.into()],
        };
        let outcomes = machine.apply(at, entry).unwrap();
        assert!(outcomes[0].is_applied(), "{outcomes:?}");
    };
    apply(Kind::Form(Form { cluster: "cl_1".into(), lineage: "ln_1".into(), epoch: 2 }));
    let write = |key: &str, value: Option<&str>| Write {
        table: "nodes".into(),
        key: key.into(),
        value: value.map(Into::into),
    };
    let writes = vec![
        write("nd_1", Some("{\"name\":\"a\"}")),
        write("nd_2", Some("{}")),
        write("nd_3", Some("{}")),
    ];
    apply(Kind::Txn(Txn { writes, ..Txn::default() }));
    let sharded = WorkerBeat { role: Role::Controllers.into(), ..beat() };
    apply(Kind::WorkerBeat(sharded.clone()));
    apply(Kind::WorkerBeat(WorkerBeat { worker: "1".into(), draining: false, ..sharded }));
    let full = full_txn();
    let again = write("nd_1", Some("{\"name\":\"b\"}"));
    let writes = vec![again, write("nd_2", None), full.writes[1].clone()];
    let (idempotency, enqueues, events) = (full.idempotency, full.enqueues, full.events);
    apply(Kind::Txn(Txn {
        idempotency,
        enqueues,
        events,
        audit: full.audit,
        response: full.response,
        writes,
        ..Txn::default()
    }));
    let generation = machine_generation();
    let requeue = Requeue { generation, ..full.requeues[0].clone() };
    apply(Kind::Txn(Txn { requeues: vec![requeue], ..Txn::default() }));
    apply(Kind::Report(ReplicaReport {
        replica: 3,
        format_max: 2,
        version: "0.3.1".into(),
        events_durable: 1,
        audit_durable: 1,
    }));
    machine.publish();
    machine
}

/// The entry that enqueues in [`machine`].
fn machine_generation() -> u64 {
    5
}

fn chunks(view: &View) -> Vec<Vec<u8>> {
    let mut chunks = Vec::new();
    let sink = |chunk: &[u8]| {
        chunks.push(chunk.to_vec());
        Ok::<(), serde_json::Error>(())
    };
    encode(view, sink).unwrap();
    chunks
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(32).fold(String::new(), |mut text, line| {
        line.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
        text.push('\n');
        text
    })
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
        .collect()
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(DIR).join(format!("{name}.hex"))
}

/// The bytes of a golden file, which today's code is to write as `today`.
fn golden(name: &str, today: &[u8]) -> Vec<u8> {
    let path = path(name);
    if std::env::var("PALISADE_GOLDEN").is_ok_and(|what| what == "write") && !path.exists() {
        fs::write(&path, hex(today)).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let bytes = from_hex(&text);
    assert_eq!(hex(&bytes), hex(today), "{name}: the bytes changed; that is a new format");
    bytes
}

#[test]
fn log_entries_are_read_and_written_as_they_always_were() {
    for (name, entry) in entries() {
        let bytes = golden(name, &entry.encode_to_vec());
        assert_eq!(Entry::decode(bytes.as_slice()).unwrap(), entry, "{name}");
    }
}

#[test]
fn there_is_a_golden_entry_of_every_kind_and_a_golden_outcome_of_every_verdict() {
    let tags: Vec<(String, u32)> =
        SOURCES.into_iter().flat_map(|source| fields(source).into_keys()).collect();
    let source = |name: &str| -> Vec<u32> {
        tags.iter().filter(|(message, _)| message == name).map(|(_, tag)| *tag).collect()
    };
    let first_tag = |bytes: Vec<u8>| u32::from(bytes[0] >> 3);
    let kinds: Vec<u32> =
        entries().iter().map(|(_, entry)| first_tag(entry.commands[0].encode_to_vec())).collect();
    assert_eq!(kinds, source("Kind"));
    let verdict = |outcome: &Outcome| Outcome { revision: 0, ..outcome.clone() }.encode_to_vec();
    let verdicts: Vec<u32> =
        outcomes().iter().map(|(_, outcome)| first_tag(verdict(outcome))).collect();
    assert_eq!(verdicts, source("Verdict"));
    assert_eq!((Role::Controllers as i32, Role::Scheduler as i32), (0, 1));
    assert_eq!(FORMAT, 1, "a new format has golden files of its own; these stay");
}

#[test]
fn outcomes_are_read_and_written_as_they_always_were() {
    for (name, outcome) in outcomes() {
        let bytes = golden(name, &outcome.encode_to_vec());
        assert_eq!(Outcome::decode(bytes.as_slice()).unwrap(), outcome, "{name}");
    }
}

#[test]
fn a_snapshot_is_read_and_written_as_it_always_was() {
    let here = machine().published().view();
    let mut framed = Vec::new();
    for chunk in chunks(&here) {
        framed.extend_from_slice(&u32::try_from(chunk.len()).unwrap().to_le_bytes());
        framed.extend_from_slice(&chunk);
    }
    let bytes = golden("snapshot", &framed);
    let (mut loader, mut rest) = (Loader::default(), bytes.as_slice());
    let mut sections = Vec::new();
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let (chunk, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
        loader.chunk(chunk).unwrap();
        sections.push(chunk[0] >> 3);
        rest = behind;
    }
    let there = Machine::new(loader.finish().unwrap()).published().view();
    assert_eq!(hash(&here), hash(&there));
    sections.dedup();
    assert_eq!(sections, (1..=10).collect::<Vec<u8>>(), "something is in every section");
    assert_eq!(there.row("nodes", b"nd_1").unwrap().stamp().version, 2);
    assert_eq!(there.lease("shard:0").unwrap().fence.epoch, 2);
    assert_eq!((there.last_event(), there.last_audit(), there.clock().now_ms), (1, 1, 1750));
    there.verify_audit().unwrap();
}

/// `(message, tag)` to what is there, of every message in a source file.
fn fields(source: &str) -> BTreeMap<(String, u32), String> {
    let text = fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(source)).unwrap();
    let (mut message, mut waiting, mut found) = (String::new(), None, BTreeMap::new());
    for line in text.lines().map(str::trim) {
        let declared = line.trim_start_matches("pub(super) ").trim_start_matches("pub ");
        let after = declared.strip_prefix("struct ").or_else(|| declared.strip_prefix("enum "));
        if let Some(name) = after {
            message = name.chars().take_while(|c| c.is_alphanumeric()).collect();
        } else if let Some((kind, tag)) =
            line.strip_prefix("#[prost(").and_then(|rest| rest.split_once(", tag = \""))
        {
            let kind =
                kind.replace("bytes = \"vec\"", "bytes").replace("bytes = \"bytes\"", "bytes");
            waiting = Some((tag.trim_end_matches("\")]").parse::<u32>().unwrap(), kind));
        } else if let Some((tag, kind)) = waiting.take_if(|_| !line.starts_with("//")) {
            let name = declared.split([':', '(']).next().unwrap_or_default();
            let before = found.insert((message.clone(), tag), format!("{kind} {name}"));
            assert_eq!(before, None, "{message} has tag {tag} twice");
        }
    }
    found
}

#[test]
fn a_tag_is_never_given_another_meaning() {
    let path = PathBuf::from(DIR).join("tags.txt");
    let today: BTreeMap<(String, u32), String> = SOURCES.into_iter().flat_map(fields).collect();
    let lines = |tags: &BTreeMap<(String, u32), String>| {
        tags.iter().fold(String::new(), |text, ((message, tag), what)| {
            text + &format!("{message} {tag} {what}\n")
        })
    };
    if std::env::var("PALISADE_GOLDEN").is_ok_and(|what| what == "write") && !path.exists() {
        fs::write(&path, lines(&today)).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap();
    let mut listed = BTreeMap::new();
    for line in known.lines() {
        let (is_retired, line) = line.strip_prefix("- ").map_or((false, line), |rest| (true, rest));
        let mut words = line.splitn(3, ' ');
        let (message, tag) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
        let id = (message.to_owned(), tag);
        match today.get(&id) {
            None => assert!(is_retired, "{line}: it is gone; keep the line, with \"- \" before it"),
            Some(_) if is_retired => panic!("{line}: its tag is used again"),
            Some(what) => {
                assert_eq!(words.next(), Some(what.as_str()), "{line}: it has another meaning now")
            }
        }
        listed.insert(id, ());
    }
    for (id, what) in &today {
        assert!(listed.contains_key(id), "{} {} {what}: add this line to tags.txt", id.0, id.1);
    }
}

#[test]
fn a_golden_file_stays_as_it_was_made() {
    let manifest = PathBuf::from(DIR).join("SHA256");
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    for file in fs::read_dir(DIR).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".hex") {
            let digest = Sha256::digest(fs::read(PathBuf::from(DIR).join(&name)).unwrap());
            files.insert(name, hex(&digest).trim().to_owned());
        }
    }
    let today = files
        .iter()
        .fold(String::new(), |text, (name, digest)| text + &format!("{digest}  {name}\n"));
    let known = fs::read_to_string(&manifest).unwrap();
    for line in known.lines() {
        assert!(today.contains(line), "{line}: a golden file was changed or is gone");
    }
    assert_eq!(known.lines().count(), files.len(), "a new file has a new line: sha256sum *.hex");
    let tested = entries().len() + outcomes().len() + 1;
    assert_eq!(files.len(), tested, "every file is read by a test");
}
