use std::sync::Arc;

use futures::executor::block_on;
use palisade_contract::{
    Code, Context, Principal, When,
    past::{Lives, Wanted},
};
use palisade_state::{
    Formation, Machine, Position, State,
    command::{AuditDraft, Entry, EventDraft, FORMAT, Form, Kind, Trim, Txn},
    limits::AUDIT_MAX,
    memory::MemoryStore,
    rebirth,
    step::StepRuntime,
};
use serde_json::json;

use super::*;

fn apply(machine: &mut Machine, kind: Kind) {
    let at = Position { term: 1, index: machine.applied().index + 1 };
    let commands = vec![kind.into()];
    let entry = Entry { format: FORMAT, proposer_term: 1, delta_ms: 0, wall_ms: 0, commands };
    assert!(machine.apply(at, entry).unwrap().iter().all(palisade_state::Outcome::is_applied));
}

fn audited(records: usize) -> Machine {
    let mut machine = Machine::new(State::default());
    let form = Form { cluster: "cl_1".into(), lineage: "l".into(), epoch: 0 };
    apply(&mut machine, Kind::Form(form));
    for _ in 0..records {
        let audit = Some(AuditDraft::default());
        apply(&mut machine, Kind::Txn(Txn { audit, ..Txn::default() }));
    }
    machine.publish();
    machine
}

/// A history that has these records, of a cluster that has forgotten some.
struct Old {
    view: View,
    kept: Vec<u64>,
}

impl History for Old {
    fn reach(&self) -> Reach {
        let reach = self.kept.first().copied().zip(self.kept.last().copied());
        Reach { audit: reach, events: reach }
    }

    fn audit(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<AuditRecord>>> {
        let kept = self.view.audit(from).filter(|record| self.kept.contains(&record.seq));
        // Less than is asked for: whoever reads goes on.
        Box::pin(std::future::ready(Ok(kept.take(limit.min(3)).cloned().collect())))
    }

    fn events(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<(u64, Event)>>> {
        let kept = self.view.events(from).filter(|(seq, _)| self.kept.contains(seq));
        let kept = kept.take(limit.min(3)).map(|(seq, event)| (seq, event.clone()));
        Box::pin(std::future::ready(Ok(kept.collect())))
    }

    fn view_at(
        &self,
        _: When,
        _: Vec<palisade_state::past::Kept>,
    ) -> BoxFuture<'static, Result<View>> {
        unreachable!()
    }

    fn lives(&self, _: &'static str, _: Wanted) -> BoxFuture<'static, Result<Lives>> {
        unreachable!()
    }

    fn times(&self, _: Vec<u64>) -> BoxFuture<'static, Result<Vec<Option<u64>>>> {
        unreachable!()
    }
}

fn context(history: Option<Old>) -> MethodContext {
    let context = Context::new(StepRuntime::new(1), Arc::new(MemoryStore::default()));
    if let Some(history) = history {
        context.ports.history.fill(Arc::new(history)).unwrap();
    }
    MethodContext {
        context,
        principal: Principal { name: "user/a".into(), roles: vec![], tenant: String::new() },
        request_id: String::new(),
        dry_run: false,
        if_match: None,
    }
}

/// The numbers of a part of the audit chain, and where it goes on.
fn numbers(cx: &MethodContext, view: &View, asked: &str) -> Result<(Vec<u64>, Option<String>)> {
    let asked: From = serde_json::from_str(asked).unwrap();
    let part = block_on(audit(cx.clone(), view.clone(), asked))?;
    Ok((part.items.iter().map(|record| record.seq).collect(), part.next_cursor))
}

fn problem<T>(refused: Result<T>) -> (Code, String, String) {
    let mut error = refused.err().unwrap();
    let problem = error.problems.remove(0);
    (error.code, problem.pointer, problem.message)
}

/// A chain of which the first four have left memory, before and after they did.
fn trimmed() -> (View, View) {
    let mut machine = audited(AUDIT_MAX + 4);
    let whole = machine.published().view();
    apply(&mut machine, Kind::Trim(Trim { events_below: 0, audit_below: 5 }));
    machine.publish();
    let view = machine.published().view();
    assert_eq!((whole.first_audit(), view.first_audit()), (Some(1), Some(5)));
    (whole, view)
}

#[test]
fn without_a_history_what_has_left_memory_is_refused_with_where_memory_begins() {
    let (cx, (_, view)) = (context(None), trimmed());
    let first = |asked: &str| numbers(&cx, &view, asked).unwrap().0[0];
    assert_eq!(first(r#"{"from": 5}"#), 5);
    assert_eq!(first(r#"{"from": 0}"#), 5, "the oldest there is");
    assert_eq!(first(r#"{"cursor": "4@cl_1"}"#), 5);
    for (asked, at) in [(r#"{"from": 4}"#, "/from"), (r#"{"cursor": "3@cl_1"}"#, "/cursor")] {
        let (code, pointer, message) = problem(numbers(&cx, &view, asked));
        assert_eq!((code, pointer.as_str()), (Code::InvalidInput, at));
        assert!(message.contains("4 has left memory, and the oldest there is 5"), "{message}");
    }
}

#[test]
fn what_has_left_memory_is_read_from_history_and_goes_on_in_memory() {
    let (whole, view) = trimmed();
    let cx = context(Some(Old { view: whole, kept: (1..=7).collect() }));
    let read = |asked: &str| numbers(&cx, &view, asked).unwrap();
    let (all, next) = read(r#"{"from": 0, "limit": 9}"#);
    assert_eq!((all, next.as_deref()), ((1..=9).collect(), Some("9@cl_1")));
    assert_eq!(read(r#"{"from": 3, "limit": 4}"#).0, [3, 4, 5, 6]);
    assert_eq!(read(r#"{"cursor": "1@cl_1", "limit": 2}"#), (vec![2, 3], Some("3@cl_1".into())));
    assert_eq!(read(r#"{"from": 2, "limit": 3}"#), (vec![2, 3, 4], Some("4@cl_1".into())));
    let newest = block_on(audit(cx.clone(), view.clone(), serde_json::from_str("{}").unwrap()));
    assert!(newest.unwrap().older, "it is said that there are older ones");
}

#[test]
fn what_history_does_not_have_is_never_left_out_without_a_word() {
    let (whole, view) = trimmed();
    let old = |kept: &[u64]| context(Some(Old { view: whole.clone(), kept: kept.to_vec() }));
    // It begins later than asked.
    let late = old(&[3, 4, 5]);
    let (code, pointer, message) = problem(numbers(&late, &view, r#"{"from": 1}"#));
    assert_eq!((code, pointer.as_str()), (Code::Unavailable, "/from"));
    assert!(message.contains("records 1 to 2 are not in this replica's history"), "{message}");
    let refused = numbers(&late, &view, r#"{"cursor": "0@cl_1"}"#).unwrap_err();
    assert!(!refused.retryable, "another replica may have it; this one will not");
    assert_eq!(numbers(&late, &view, r#"{"from": 0, "limit": 3}"#).unwrap().0, [3, 4, 5]);
    // It has a hole: what is before it is told, and what is in it is named.
    let holed = old(&[1, 2, 4, 5]);
    let (before, next) = numbers(&holed, &view, r#"{"from": 1}"#).unwrap();
    assert_eq!((before, next.as_deref()), (vec![1, 2], Some("2@cl_1")));
    let (_, pointer, message) = problem(numbers(&holed, &view, r#"{"cursor": "2@cl_1"}"#));
    assert_eq!(pointer, "/cursor");
    assert!(message.contains("record 3 is not in this replica's history"), "{message}");
    assert_eq!(numbers(&holed, &view, r#"{"from": 4, "limit": 3}"#).unwrap().0, [4, 5, 6]);
    // It lags behind memory.
    let short = old(&[1, 2]);
    assert_eq!(numbers(&short, &view, r#"{"from": 0}"#).unwrap().0, [1, 2]);
    let (_, _, message) = problem(numbers(&short, &view, r#"{"from": 3}"#));
    assert!(message.contains("record 3 is not"), "{message}");
    // It cannot be read at all.
    for asked in [r#"{"from": 0}"#, r#"{"from": 4}"#] {
        let refused = numbers(&old(&[]), &view, asked).unwrap_err();
        assert_eq!((refused.code, refused.retryable), (Code::Unavailable, true));
    }
}

#[test]
fn a_cursor_from_before_a_restore_is_refused_and_both_clusters_are_named() {
    let (cx, machine) = (context(None), audited(3));
    let view = machine.published().view();
    let (_, cursor) = numbers(&cx, &view, r#"{"from": 1, "limit": 2}"#).unwrap();
    assert_eq!(cursor.as_deref(), Some("2@cl_1"));
    assert_eq!(numbers(&cx, &view, r#"{"cursor": "2@cl_1", "limit": 7}"#).unwrap().0, [3]);
    let formation = Formation { cluster: "cl_2".into(), lineage: "l".into(), epoch: 1 };
    let restored = Machine::new(rebirth(machine.into_state(), formation)).published().view();
    let (_, pointer, message) = problem(numbers(&cx, &restored, r#"{"cursor": "2@cl_1"}"#));
    assert_eq!(pointer, "/cursor");
    assert!(message.contains("of cluster cl_1, this is cl_2"), "{message}");
    let ahead = numbers(&cx, &restored, r#"{"cursor": "9@cl_2"}"#).unwrap_err();
    assert_eq!((ahead.code, ahead.retryable), (Code::Unavailable, true));
}

#[test]
fn nothing_yet_is_no_gap() {
    let (cx, view) = (context(None), audited(0).published().view());
    for asked in [r#"{"from": 1}"#, "{}", r#"{"cursor": "0@cl_1"}"#, r#"{"from": 0}"#] {
        assert_eq!(numbers(&cx, &view, asked).unwrap(), (vec![], None), "{asked}");
    }
}

/// Records of tenants, in turn from `tenants`.
fn of_tenants(tenants: &[&str]) -> View {
    let mut machine = audited(0);
    for tenant in tenants {
        let (tenant, actor) = ((*tenant).to_owned(), format!("token/of-{tenant}"));
        let event = EventDraft {
            kind: "pet.fed".into(),
            tenant: tenant.clone(),
            subject: format!("pet/of-{tenant}"),
            data: b"{}".to_vec(),
        };
        let audit = Some(AuditDraft { tenant, actor, ..AuditDraft::default() });
        apply(&mut machine, Kind::Txn(Txn { audit, events: vec![event], ..Txn::default() }));
    }
    machine.publish();
    machine.published().view()
}

/// The sequence numbers of a part of a tenant's events and of its audit records, and where they go on.
fn part(view: &View, asked: &Value) -> Result<(Vec<u64>, Option<String>)> {
    let of = |asked: &Value| serde_json::from_value::<From>(asked.clone()).unwrap();
    let cx = context(None);
    let told = block_on(events(cx.clone(), view.clone(), of(asked)))?;
    let noted = block_on(audit(cx, view.clone(), of(asked)))?;
    let seqs: Vec<u64> = told.items.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, noted.items.iter().map(|record| record.seq).collect::<Vec<_>>());
    assert_eq!(told.next_cursor, noted.next_cursor);
    let wanted = asked["tenant"].as_str().unwrap();
    assert!(told.items.iter().all(|event| event.tenant == wanted), "TEN-1");
    assert!(noted.items.iter().all(|record| record.tenant == wanted), "TEN-1");
    Ok((seqs, told.next_cursor))
}

#[test]
fn a_tenant_has_its_own_newest_records_and_its_parts_lead_to_all_of_them() {
    let others = ["b"; 150];
    let view = of_tenants(&[&["a", "", "b", "a", "a"][..], &others, &["a", ""]].concat());
    let read = |asked: Value| part(&view, &asked).unwrap();
    assert_eq!(read(json!({"tenant": "a"})), (vec![1, 4, 5, 156], None));
    assert_eq!(read(json!({"tenant": "a", "limit": 2})).0, [5, 156], "the newest two");
    assert_eq!(read(json!({"tenant": "a", "from": 2})).0, [4, 5, 156]);
    assert_eq!(read(json!({"tenant": "nobody"})), (vec![], None));
    assert_eq!(read(json!({"tenant": "", "from": 0})).0, [2, 157], "the cluster's own");
    let (mut all, mut cursor) = read(json!({"tenant": "a", "from": 0, "limit": 1}));
    while let Some(at) = cursor {
        let (more, next) = read(json!({"tenant": "a", "limit": 1, "cursor": at}));
        all.extend(more);
        cursor = next;
    }
    assert_eq!(all, [1, 4, 5, 156]);
}

#[test]
fn what_a_tenant_is_refused_does_not_say_how_many_records_others_have() {
    let view = of_tenants(&["a", "b", "b", "b"]);
    let refused = part(&view, &json!({"tenant": "a", "cursor": "77@cl_1"})).unwrap_err();
    assert_eq!((refused.code, refused.retryable), (Code::Unavailable, true));
    assert!(!refused.detail.contains('4'), "TEN-1: {}", refused.detail);
    let mut machine = audited(AUDIT_MAX + 40);
    let whole = machine.published().view();
    apply(&mut machine, Kind::Trim(Trim { events_below: 0, audit_below: 39 }));
    machine.publish();
    let trimmed = machine.published().view();
    let late = || Some(Old { view: whole.clone(), kept: (20..30).collect() });
    for history in [None, late(), Some(Old { view: whole.clone(), kept: vec![] })] {
        let cx = context(history);
        for asked in [r#"{"tenant": "a", "from": 2}"#, r#"{"tenant": "a", "cursor": "2@cl_1"}"#] {
            let refused = numbers(&cx, &trimmed, asked).unwrap_err();
            let told = format!("{refused:?}");
            let number = ["39", "38", "20", "29", "30"].iter().find(|n| told.contains(**n));
            assert_eq!(number, None, "TEN-1: {told}");
        }
    }
}

#[test]
fn a_tenants_records_in_history_are_found_among_those_of_others() {
    let view = of_tenants(&["b", "a", "b", "b", "b", "b", "b", "a", "b", "a"]);
    let all = Old { view: view.clone(), kept: (1..=10).collect() };
    let cx = context(Some(all));
    let asked = |limit: u64| From {
        tenant: Some("a".to_owned()),
        from: Some(0),
        limit: Some(limit),
        cursor: None,
    };
    let found = |limit| {
        // As if memory began behind the last record.
        let asked = asked(limit);
        let past = asked.past::<AuditEntry>(&cx, list::Begin::Oldest, 11, limit as usize);
        let found = block_on(past).unwrap();
        found.records.iter().map(|(seq, _)| *seq).collect::<Vec<_>>()
    };
    assert_eq!(found(10), [2, 8, 10]);
    assert_eq!(found(1), [2, 8], "one more than it may have, so that it goes on");
}
