//! What replicas report, the active format, trimming, and a state's next life.

use palisade_state::{
    Formation, Machine, Outcome, Position, ReplicaId, State, Table, Tx, Verdict,
    command::{
        AuditDraft, Command, Entry, FORMAT, ForgetReplica, Form, Kind, RaiseFormat, ReplicaReport,
        Role, Tick, Trim, WorkerBeat,
    },
    limits::{AUDIT_MAX, EVENTS_MAX, TRIM_STEP_MAX},
    machine::ApplyError,
    rebirth,
    roster::{self, Enrolment, Known, REPLICAS, Replica, Standing},
    snapshot::{LoadError, Loader, encode, hash},
};
use proptest::prelude::*;

const T: Table<String, u64> = Table::new("t", &[]);

struct Rig {
    machine: Machine,
    term: u64,
}

impl Rig {
    fn new() -> Self {
        let mut rig = Self { machine: Machine::default(), term: 1 };
        let form = Form { cluster: "c".into(), lineage: "l".into(), epoch: 0 };
        rig.apply(Kind::Form(form).into());
        rig
    }

    fn entry(
        &mut self,
        proposer_term: u64,
        commands: Vec<Command>,
    ) -> Result<Vec<Outcome>, ApplyError> {
        let at = Position { term: self.term, index: self.machine.applied().index + 1 };
        let entry = Entry { format: FORMAT, proposer_term, delta_ms: 1, wall_ms: 1, commands };
        let outcomes = self.machine.apply(at, entry);
        self.machine.publish();
        outcomes
    }

    fn apply(&mut self, command: Command) -> Verdict {
        let outcomes = self.entry(self.term, vec![command]).unwrap();
        outcomes[0].verdict.clone().unwrap()
    }

    fn report(&mut self, replica: u64, format_max: u32) -> Verdict {
        let report = ReplicaReport {
            replica,
            format_max,
            version: "1.0".into(),
            events_durable: 5,
            audit_durable: 6,
        };
        self.apply(Kind::Report(report).into())
    }

    fn raise(&mut self, format: u32, members: &[u64]) -> Verdict {
        self.apply(Kind::RaiseFormat(RaiseFormat { format, members: members.to_vec() }).into())
    }

    fn view(&self) -> palisade_state::View {
        self.machine.published().view()
    }

    fn fill(&mut self, events: usize, audits: usize) {
        let count = events.max(audits);
        for from in (0..count).step_by(1000) {
            let commands = (from..count.min(from + 1000)).map(|n| {
                let mut tx = Tx::new(self.view());
                if n < events {
                    tx.publish("e", "", "s".into(), &serde_json::json!(n));
                }
                if n < audits {
                    tx.audit(AuditDraft::default());
                }
                tx.build().unwrap().into()
            });
            let commands = commands.collect();
            self.entry(self.term, commands).unwrap();
        }
    }
}

fn is_applied(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Applied(_))
}

fn through_chunks(rig: &Rig) -> Result<State, LoadError> {
    let mut loader = Loader::default();
    encode(&rig.view(), |chunk| {
        loader.chunk(chunk).unwrap();
        Ok::<(), serde_json::Error>(())
    })
    .unwrap();
    loader.finish()
}

#[test]
fn a_report_is_kept_until_the_replica_is_forgotten() {
    let mut rig = Rig::new();
    rig.report(3, 1);
    let row = rig.view().replica(3).unwrap().clone();
    assert_eq!(
        (row.format_max, row.version.as_str(), row.events_durable, row.audit_durable),
        (1, "1.0", 5, 6)
    );
    assert_eq!(row.reported_rev, rig.view().revision());
    assert!(is_applied(&rig.apply(Kind::ForgetReplica(ForgetReplica { replica: 3 }).into())));
    assert_eq!(rig.view().replicas().count(), 0);
}

#[test]
fn a_format_is_raised_only_once_every_member_reads_it() {
    let mut rig = Rig::new();
    assert_eq!(rig.view().format(), 1);
    rig.report(1, 2);
    rig.report(2, 2);
    rig.report(3, 1);
    for format in [1, 2, FORMAT + 1] {
        let Verdict::Invalid(why) = rig.raise(format, &[]) else { panic!("raised for nobody") };
        assert!(why.contains("members"), "{why}");
    }
    let Verdict::Invalid(why) = rig.raise(2, &[1, 2, 3]) else { panic!("raised over replica 3") };
    assert!(why.contains("replica 3 reads formats up to 1"), "{why}");
    let Verdict::Invalid(why) = rig.raise(2, &[1, 2, 4]) else { panic!("raised over replica 4") };
    assert!(why.contains("replica 4 has not reported"), "{why}");
    assert!(is_applied(&rig.raise(1, &[1, 2, 3])), "what it is already");
    assert_eq!(rig.view().format(), 1);
}

#[test]
fn a_format_of_a_newer_build_stops_the_replica_before_anything_changes() {
    let mut rig = Rig::new();
    let newer = FORMAT + 1;
    rig.report(1, newer);
    let (applied, before) = (rig.machine.applied(), hash(&rig.view()));
    let raise = RaiseFormat { format: newer, members: vec![1] };
    let error = rig.entry(rig.term, vec![Kind::RaiseFormat(raise).into()]).unwrap_err();
    assert_eq!(error, ApplyError::FormatRaised { index: applied.index + 1, format: newer });
    assert!(error.to_string().ends_with("run a newer binary"), "{error}");
    assert_eq!((rig.machine.applied(), hash(&rig.view())), (applied, before));
}

#[test]
fn what_a_leader_proposed_in_another_term_is_dropped() {
    let report = ReplicaReport { replica: 1, format_max: 1, ..ReplicaReport::default() };
    let kinds = [
        Kind::Tick(Tick {}),
        Kind::Report(report),
        Kind::RaiseFormat(RaiseFormat { format: 1, members: vec![1] }),
        Kind::Trim(Trim { events_below: 9, audit_below: 9 }),
        Kind::ForgetReplica(ForgetReplica { replica: 2 }),
    ];
    for kind in kinds {
        let mut rig = Rig::new();
        rig.report(2, 1);
        rig.term = 2;
        let outcomes = rig.entry(1, vec![kind.clone().into()]).unwrap();
        assert!(matches!(outcomes[0].verdict, Some(Verdict::Dropped(_))), "{kind:?}");
        assert!(rig.view().replica(1).is_none() && rig.view().replica(2).is_some());
    }
}

#[test]
fn only_transactions_share_an_entry() {
    let mut rig = Rig::new();
    let trim: Command = Kind::Trim(Trim::default()).into();
    let forget: Command = Kind::ForgetReplica(ForgetReplica { replica: 1 }).into();
    let outcomes = rig.entry(1, vec![trim, forget]).unwrap();
    assert!(outcomes.iter().all(|o| matches!(o.verdict, Some(Verdict::Invalid(_)))));
}

#[test]
fn a_trim_removes_a_bounded_step_of_what_is_durable_and_outside_the_window() {
    let mut rig = Rig::new();
    rig.fill(0, AUDIT_MAX + TRIM_STEP_MAX + 5);
    let trim = |rig: &mut Rig, below: u64| {
        rig.apply(Kind::Trim(Trim { events_below: below, audit_below: below }).into());
        rig.view().first_audit().unwrap()
    };
    rig.apply(Kind::Tick(Tick {}).into());
    assert_eq!(rig.view().first_audit(), Some(1), "a tick trims nothing");
    assert_eq!(trim(&mut rig, 3), 3, "not above what is durable");
    assert_eq!(trim(&mut rig, u64::MAX), 3 + TRIM_STEP_MAX as u64, "one step");
    assert_eq!(trim(&mut rig, u64::MAX), 6 + TRIM_STEP_MAX as u64, "the window stays");
    assert_eq!(rig.view().audit(0).count(), AUDIT_MAX);
    rig.view().verify_audit().unwrap();
}

#[test]
fn events_are_trimmed_the_same_way() {
    let mut rig = Rig::new();
    rig.fill(EVENTS_MAX + 10, 0);
    rig.apply(Kind::Trim(Trim { events_below: 8, audit_below: 0 }).into());
    assert_eq!(rig.view().first_event(), Some(8));
    rig.apply(Kind::Trim(Trim { events_below: u64::MAX, audit_below: 0 }).into());
    assert_eq!(rig.view().events(0).count(), EVENTS_MAX);
}

#[test]
fn a_snapshot_carries_reports_and_format() {
    let mut rig = Rig::new();
    rig.report(1, 7);
    rig.report(2, 1);
    rig.raise(1, &[1, 2]);
    let loaded = Machine::new(through_chunks(&rig).unwrap());
    let (here, there) = (rig.view(), loaded.published().view());
    assert_eq!(here.replicas().collect::<Vec<_>>(), there.replicas().collect::<Vec<_>>());
    assert_eq!((here.format(), hash(&here)), (there.format(), hash(&there)));
}

#[test]
fn a_new_life_keeps_everything_but_what_belonged_to_the_replicas() {
    let mut rig = Rig::new();
    rig.report(1, 1);
    let mut tx = Tx::new(rig.view());
    tx.put(&T, &"k".to_owned(), &7).unwrap();
    tx.enqueue("kind", "k").unwrap();
    tx.publish("e", "", "s".into(), &serde_json::json!(1));
    tx.audit(AuditDraft::default());
    let gone = Replica { standing: Standing::Removed, drained: true, ..Replica::default() };
    tx.put(&REPLICAS, &3, &gone).unwrap();
    let (peer_addr, api_addr) = ("a:1".to_owned(), "a:2".to_owned());
    let enrolment = Enrolment { peer_addr, api_addr, replaces: None, at_ms: 0 };
    roster::enrol(&mut tx, "key", &enrolment).unwrap();
    rig.apply(tx.build().unwrap().into());
    let enrolled = roster::enrolled_as(&rig.view(), "key").unwrap().unwrap();
    let beat = WorkerBeat {
        worker: "1".into(),
        incarnation: 1,
        role: Role::Controllers.into(),
        sharded: true,
        ..WorkerBeat::default()
    };
    rig.apply(Kind::WorkerBeat(beat.clone()).into());
    let old_fence = rig.view().lease("shard:0").unwrap().fence;
    let formation = Formation { cluster: "c2".into(), lineage: "l".into(), epoch: 1 };
    let reborn = rebirth(through_chunks(&rig).unwrap(), formation.clone());
    let mut rig = Rig { machine: Machine::new(reborn), term: rig.term };
    let view = rig.view();
    assert_eq!((view.formation(), view.applied()), (Some(&formation), rig.machine.applied()));
    assert_eq!(
        (view.leases().count(), view.sessions().count(), view.replicas().count()),
        (0, 0, 0)
    );
    for id in [ReplicaId(3), enrolled] {
        assert_eq!(roster::known(&view, id).unwrap(), Known::Nothing, "of the old life: {id}");
    }
    assert_eq!(T.get(&view, &"k".to_owned()).unwrap().unwrap().value, 7);
    assert_eq!((view.all_work().count(), view.last_event(), view.last_audit()), (1, 1, 1));
    view.verify_audit().unwrap();
    rig.apply(Kind::WorkerBeat(beat).into());
    assert!(rig.view().lease("shard:0").unwrap().fence > old_fence, "I2 across lives");
}

#[derive(Clone, Debug)]
enum Upgrade {
    Report { replica: u64, format: u32 },
    Forget { replica: u64 },
    Raise { format: u32, members: Vec<u64>, deposed: bool },
}

fn upgrade() -> impl Strategy<Value = Upgrade> {
    let members = prop::sample::subsequence(vec![1, 2, 3, 4_u64], 0..4);
    prop_oneof![
        4 => (1..5_u64, 1..6_u32).prop_map(|(replica, format)| Upgrade::Report { replica, format }),
        1 => (1..5_u64).prop_map(|replica| Upgrade::Forget { replica }),
        4 => (1..6_u32, members, prop::bool::weighted(0.1))
            .prop_map(|(format, members, deposed)| Upgrade::Raise { format, members, deposed }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// `FORMAT-1`, against what each replica reported last.
    #[test]
    fn the_format_never_goes_down_and_each_named_member_reads_it(
        steps in prop::collection::vec(upgrade(), 1..60),
    ) {
        let mut rig = Rig::new();
        rig.machine = std::mem::take(&mut rig.machine).reading(5);
        let mut reads: std::collections::BTreeMap<u64, u32> = std::collections::BTreeMap::new();
        let mut active = 1;
        for step in steps {
            match step {
                Upgrade::Report { replica, format } => {
                    rig.report(replica, format);
                    reads.insert(replica, format);
                }
                Upgrade::Forget { replica } => {
                    rig.apply(Kind::ForgetReplica(ForgetReplica { replica }).into());
                    reads.remove(&replica);
                }
                Upgrade::Raise { format, members, deposed } => {
                    let all_read =
                        members.iter().all(|member| reads.get(member).is_some_and(|reads| *reads >= format));
                    let rises = format >= active && !members.is_empty() && all_read && !deposed;
                    let proposer_term = rig.term - u64::from(deposed);
                    let raise = Kind::RaiseFormat(RaiseFormat { format, members });
                    let outcomes = rig.entry(proposer_term, vec![raise.into()]).unwrap();
                    prop_assert_eq!(outcomes[0].is_applied(), rises, "FORMAT-1");
                    active = if rises { format } else { active };
                }
            }
            prop_assert_eq!(rig.view().format(), active, "FORMAT-1");
        }
    }
}
