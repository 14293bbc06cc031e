//! An export, whole and tampered with.

use std::sync::Arc;

use futures::{StreamExt, executor::block_on};
use palisade_contract::{Context, MethodContext, Principal, past::Seal};
use palisade_state::{Store, Tx, command::AuditDraft, memory::MemoryStore, step::StepRuntime};
use serde_json::{Value, json};

use crate::{
    checkpoint,
    export::{Asked, export},
    key::ClusterSeal,
    note::Verifier,
    statement::key_name,
    verify::{Flaw, Report, verify},
};

struct World {
    store: Arc<MemoryStore>,
    cx: MethodContext,
    seal: Arc<ClusterSeal>,
}

impl World {
    fn new() -> Self {
        let store = Arc::new(MemoryStore::default());
        let seal = Arc::new(ClusterSeal::derive(b"the CA's key", "memory").unwrap());
        let context = Context::new(StepRuntime::new(1), store.clone());
        context.ports.seal.fill(seal.clone()).unwrap();
        let cx = MethodContext {
            context,
            principal: Principal { name: "user/a".into(), roles: vec![], tenant: String::new() },
            request_id: String::new(),
            dry_run: false,
            if_match: None,
        };
        Self { store, cx, seal }
    }

    fn run(&self, build: impl FnOnce(&mut Tx) -> palisade_contract::Result<()>) {
        let mut tx = Tx::new(self.store.view());
        build(&mut tx).unwrap();
        let built = tx.build().unwrap();
        assert!(block_on(self.store.propose(built.into())).unwrap().is_applied());
    }

    fn record(&self, records: u64) {
        for n in 0..records {
            self.run(|tx| {
                tx.audit(AuditDraft {
                    actor: "token/ada".into(),
                    method: "workloads.scale".into(),
                    resource: format!("workload/web-{n}"),
                    tenant: "corp".into(),
                    outcome: "ok".into(),
                    request_id: format!("req_\"{n}\""),
                });
                Ok(())
            });
        }
    }

    fn checkpoint(&self) {
        self.run(checkpoint::note);
        let noted = self.store.view();
        self.run(|tx| checkpoint::sign(tx, &noted, &*self.seal));
    }

    fn key(&self) -> Verifier {
        Verifier::new(key_name("memory"), self.seal.public())
    }

    fn export(&self, from: Option<u64>, to: Option<u64>) -> String {
        let stream = block_on(export(self.cx.clone(), self.store.view(), Asked { from, to }));
        let parts: Vec<_> = block_on(stream.unwrap().collect());
        let bytes: Vec<u8> = parts.into_iter().flat_map(|part| part.unwrap()).collect();
        String::from_utf8(bytes).unwrap()
    }

    fn verified(&self, text: &str) -> Result<Report, Flaw> {
        verify(text.as_bytes(), &[self.key()])
    }
}

/// Nine records, checkpoints behind the third and the seventh.
fn world() -> (World, String) {
    let world = World::new();
    world.record(3);
    world.checkpoint();
    world.record(4);
    world.checkpoint();
    world.record(2);
    let text = world.export(None, None);
    (world, text)
}

fn is_checkpoint(line: &str) -> bool {
    line.contains(r#""type":"checkpoint""#)
}

#[test]
fn an_untouched_export_is_verified() {
    let (world, text) = world();
    let report = world.verified(&text).unwrap();
    assert_eq!((report.records, report.first, report.last, report.checkpoints), (9, 1, 9, 2));
    assert_eq!(report.head, hex::encode(world.store.view().audit_head()));
    let part = world.verified(&world.export(Some(4), Some(8))).unwrap();
    assert_eq!((part.records, part.first, part.last, part.checkpoints), (5, 4, 8, 1));
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    // A short one: each byte is a verification.
    let world = World::new();
    world.record(1);
    world.checkpoint();
    world.record(1);
    let text = world.export(None, None);
    assert_eq!(world.verified(&text).unwrap().checkpoints, 1);
    for at in 0..text.len() {
        // Bit 5 tells capitals apart, which much of what reads texts overlooks.
        for bit in [at % 5, 5] {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1 << bit;
            let verified = verify(bytes.as_slice(), &[world.key()]);
            assert!(verified.is_err(), "byte {at}, bit {bit} of {text:?}");
        }
    }
}

#[test]
fn each_altered_field_is_found_with_its_line_and_record() {
    let (world, text) = world();
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.contains(r#""seq":5"#)).unwrap();
    let record: Value = serde_json::from_str(lines[at]).unwrap();
    for (field, value) in [
        ("seq", json!(6)),
        ("revision", json!(1)),
        ("at", json!("1970-01-01T00:00:00.001Z")),
        ("actor", json!("token/eve")),
        ("method", json!("workloads.remove")),
        ("resource", json!("workload/x")),
        ("tenant", json!("")),
        ("outcome", json!("ACCESS_DENIED")),
        ("requestId", json!("req_x")),
        ("prevHash", json!("00".repeat(32))),
        ("hash", json!("00".repeat(32))),
    ] {
        let mut altered: crate::line::Line = serde_json::from_value(record.clone()).unwrap();
        let crate::line::Line::Record(entry) = &mut altered else { panic!() };
        let mut fields = serde_json::to_value(&**entry).unwrap();
        assert_ne!(fields[field], value, "{field}");
        fields[field] = value;
        **entry = serde_json::from_value(fields).unwrap();
        let line = altered.text().unwrap();
        let mut all: Vec<&str> = lines.clone();
        all[at] = line.trim_end();
        let flaw = world.verified(&(all.join("\n") + "\n")).unwrap_err();
        assert_eq!(flaw.line, u64::try_from(at).unwrap() + 1, "{field}: {flaw}");
        assert_eq!(flaw.seq, Some(if field == "seq" { 6 } else { 5 }), "{field}: {flaw}");
    }
}

#[test]
fn whoever_chains_anew_what_he_altered_has_no_signature_for_it() {
    let (world, text) = world();
    let forger = World::new();
    forger.record(4);
    forger.run(|tx| {
        tx.audit(AuditDraft { actor: "token/nobody".into(), ..AuditDraft::default() });
        Ok(())
    });
    forger.record(4);
    // His records, whole and chained, behind what was signed of others.
    let head = text.lines().next().unwrap();
    let forged = forger.export(None, None);
    let records: Vec<&str> = forged.lines().skip(1).collect();
    let flaw = world.verified(&format!("{head}\n{}\n", records.join("\n"))).unwrap_err();
    assert!(flaw.what.contains("another record than the one that was signed"), "{flaw}");
    let own = ClusterSeal::derive(b"his own", "memory").unwrap();
    let keyed = Verifier::new(key_name("memory"), own.public());
    assert!(verify(forged.as_bytes(), &[keyed]).unwrap_err().what.contains("not signed"));
}

#[test]
fn what_is_cut_off_or_out_is_found_and_checkpoints_only_add() {
    let (world, text) = world();
    let lines: Vec<&str> = text.lines().collect();
    let verified = |lines: &[&str]| world.verified(&(lines.join("\n") + "\n"));
    for end in 0..lines.len() {
        let flaw = verified(&lines[..end]).unwrap_err();
        assert!(flaw.line >= 1 && !flaw.what.is_empty(), "cut behind line {end}: {flaw}");
        let mut without = lines.clone();
        let gone = without.remove(end);
        assert_eq!(verified(&without).is_ok(), is_checkpoint(gone), "without {gone}");
    }
    let begin = [&lines[..1], &lines[3..]].concat();
    let flaw = verified(&begin).unwrap_err();
    assert_eq!((flaw.line, flaw.seq), (2, Some(3)), "{flaw}");
    assert!(flaw.what.contains("begins at record 1"), "{flaw}");
    let middle = [&lines[..2], &lines[3..]].concat();
    assert_eq!(verified(&middle).unwrap_err().seq, Some(3));
    let tail = verified(&lines[..lines.len() - 1]).unwrap_err();
    assert!(tail.what.contains("signed to go to record 9"), "{tail}");
    assert_eq!(tail.seq, Some(8));
    let torn = world.verified(text.trim_end()).unwrap_err();
    assert!(torn.what.contains("broke off"), "{torn}");
}

#[test]
fn lines_that_were_moved_or_doubled_are_found() {
    let (world, text) = world();
    let lines: Vec<&str> = text.lines().collect();
    for at in 0..lines.len() - 1 {
        let mut swapped = lines.clone();
        swapped.swap(at, at + 1);
        assert!(world.verified(&(swapped.join("\n") + "\n")).is_err(), "line {at} moved");
        let mut doubled = lines.clone();
        doubled.insert(at, lines[at]);
        let is_ok = world.verified(&(doubled.join("\n") + "\n")).is_ok();
        assert_eq!(is_ok, is_checkpoint(lines[at]), "line {at} twice");
    }
}

#[test]
fn an_export_that_broke_off_is_whole_once_it_was_gone_on_with() {
    let (world, text) = world();
    let lines: Vec<&str> = text.lines().collect();
    let begun = lines[..6].join("\n") + "\n";
    let last = begun.matches(r#""type":"record""#).count() as u64;
    let rest = world.export(Some(last + 1), Some(9));
    let report = world.verified(&format!("{begun}{rest}")).unwrap();
    assert_eq!((report.records, report.last), (9, 9));
    // Gone on with elsewhere than it broke off.
    for from in [last, last + 2] {
        let flaw = world.verified(&format!("{begun}{}", world.export(Some(from), Some(9))));
        assert!(flaw.unwrap_err().what.contains("does not follow"));
    }
    // Later records behind a whole one.
    world.record(2);
    let more = world.verified(&format!("{text}{}", world.export(Some(10), None))).unwrap();
    assert_eq!((more.records, more.last), (11, 11));
}
