//! The time of a write, on a clock that is stepped: the read before it and the commit share five seconds.

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_api::{
    Envelope, Limits, ServerModule,
    envelope::{Answer, CallOptions, Caller, Consistency},
    metrics::Metrics,
};
use palisade_contract::{
    Code, Context, Module, Principal, Registry, Result,
    ports::{MemberChange, MemberChanged, Members},
};
use palisade_state::{Runtime, Store, Tx, step::StepRuntime};
use serde_json::{Value, json};

use crate::support::{
    TestAccess,
    ailing::Ailing,
    widgets::{WIDGETS, Widget, Widgets},
};

const FIVE: Duration = Duration::from_secs(5);
const SLACK: Duration = Duration::from_millis(200);

/// Counts what it is asked to do.
#[derive(Default)]
pub struct Changes(pub Mutex<Vec<MemberChange>>);

impl Members for Changes {
    fn change(
        &self,
        change: MemberChange,
        dry_run: bool,
    ) -> BoxFuture<'static, Result<MemberChanged>> {
        let mut made = self.0.lock().unwrap();
        if !dry_run {
            made.push(change);
        }
        let replica = u64::try_from(made.len()).unwrap();
        Box::pin(std::future::ready(Ok(MemberChanged { replica, note: "done".to_owned() })))
    }
}

struct World {
    rt: Arc<StepRuntime>,
    store: Arc<Ailing>,
    envelope: Arc<Envelope>,
    changes: Arc<Changes>,
    _registry: Registry,
}

/// An answer, and when it came.
type Ended = Arc<Mutex<Option<(Duration, Result<Answer>)>>>;

impl World {
    fn new() -> Self {
        let rt = StepRuntime::new(1);
        let store = Ailing::new(rt.clone());
        let context = Context::new(rt.clone(), store.clone());
        context.ports.access.fill(Arc::new(TestAccess)).unwrap();
        let changes = Arc::new(Changes::default());
        context.ports.members.fill(changes.clone()).unwrap();
        let modules: Vec<Arc<dyn Module>> = vec![ServerModule::new("1"), Arc::new(Widgets)];
        let registry = Registry::new(modules).unwrap();
        let limits = Limits::default();
        let envelope = Envelope::new(&registry, context, Metrics::default(), &limits).unwrap();
        Self { rt, store, envelope: Arc::new(envelope), changes, _registry: registry }
    }

    fn begin(&self, method: &'static str, input: Value, options: CallOptions) -> Ended {
        let ended = Ended::default();
        let (slot, envelope, rt) = (ended.clone(), self.envelope.clone(), self.rt.clone());
        let begun = self.rt.now();
        let task = async move {
            let answer = envelope.call(method, input, admin(), options).await;
            *slot.lock().unwrap() = Some((rt.now() - begun, answer));
        };
        self.rt.spawn("call", Box::pin(task));
        self.rt.settle();
        ended
    }

    /// The answer, at most a minute later.
    fn end(&self, ended: &Ended) -> (Duration, Result<Answer>) {
        self.rt.advance(Duration::from_secs(60));
        ended.lock().unwrap().take().expect("an answer")
    }

    fn call(&self, method: &'static str, input: Value) -> (Duration, Result<Answer>) {
        let begun = self.begin(method, input, CallOptions::default());
        self.end(&begun)
    }

    fn under(&self, key: &str, method: &'static str, input: Value) -> Result<Answer> {
        let key = Some(key.to_owned());
        let options = CallOptions { idempotency_key: key, ..CallOptions::default() };
        let begun = self.begin(method, input, options);
        self.end(&begun).1
    }

    fn made(&self) -> usize {
        self.changes.0.lock().unwrap().len()
    }

    fn audited(&self) -> Vec<String> {
        let view = self.store.memory.view();
        view.audit(0).map(|record| record.body.clone().unwrap().outcome).collect()
    }
}

fn admin() -> Caller {
    Caller::Internal(Principal {
        name: "system/test".to_owned(),
        roles: vec!["admin".to_owned()],
        tenant: String::new(),
    })
}

fn code(ended: Result<Answer>) -> Code {
    match ended {
        Ok(_) => panic!("it succeeded"),
        Err(error) => error.code,
    }
}

fn put() -> Value {
    json!({"widget": "a", "sizeLimit": 1})
}

#[test]
fn a_quorum_that_goes_between_read_and_commit_is_told_within_five_seconds() {
    let world = World::new();
    *world.store.read_takes.lock().unwrap() = Duration::from_secs(4);
    world.store.proposals_left.store(0, Ordering::SeqCst);
    let (took, ended) = world.call("widgets.put", put());
    assert_eq!(code(ended), Code::NoQuorum, "it is certain that nothing was applied");
    assert!(took <= FIVE + SLACK, "{took:?}");
    assert!(took >= FIVE - SLACK, "what there is of the time is used: {took:?}");
}

#[test]
fn a_read_without_a_quorum_is_told_within_five_seconds() {
    let world = World::new();
    *world.store.read_takes.lock().unwrap() = Duration::from_secs(600);
    let (took, ended) = world.call("widgets.put", put());
    assert_eq!(code(ended), Code::NoQuorum);
    assert!(took <= FIVE + SLACK, "{took:?}");
}

#[test]
fn a_slow_read_leaves_time_to_write() {
    let world = World::new();
    *world.store.read_takes.lock().unwrap() = Duration::from_millis(4_900);
    let (took, ended) = world.call("widgets.put", put());
    assert!(ended.is_ok());
    assert!(took < FIVE);
}

#[test]
fn the_record_of_a_refusal_shares_the_time() {
    let world = World::new();
    world.call("widgets.create", json!({"name": "a"})).1.unwrap();
    *world.store.read_takes.lock().unwrap() = Duration::from_secs(4);
    world.store.proposals_left.store(0, Ordering::SeqCst);
    let (took, ended) = world.call("widgets.create", json!({"name": "a"}));
    assert_eq!(code(ended), Code::Conflict, "the refusal is told although it is not recorded");
    assert!(took <= FIVE + SLACK, "{took:?}");
}

#[test]
fn a_quorum_that_goes_before_the_second_try_is_no_unknown_outcome() {
    let world = World::new();
    world.call("widgets.put", put()).1.unwrap();
    let meddle = |memory: &palisade_state::memory::MemoryStore| {
        let mut tx = Tx::new(memory.view());
        tx.put(&WIDGETS, &"a".to_owned(), &Widget { name: "a".to_owned(), size_limit: 9 }).unwrap();
        assert!(memory.apply(tx.build().unwrap().into()).unwrap().is_applied());
    };
    *world.store.before_next.lock().unwrap() = Some(Box::new(meddle));
    let begun = world.begin("widgets.put", put(), CallOptions::default());
    *world.store.read_takes.lock().unwrap() = Duration::from_secs(600);
    let (took, ended) = world.end(&begun);
    assert_eq!(code(ended), Code::NoQuorum);
    assert!(took <= FIVE + SLACK, "{took:?}");
}

#[test]
fn what_the_caller_takes_to_send_its_request_is_not_in_it() {
    let world = World::new();
    let (envelope, rt) = (world.envelope.clone(), world.rt.clone());
    let who = world
        .rt
        .block_on(async move { envelope.authenticate(admin(), Consistency::Local).await.unwrap() });
    rt.advance(Duration::from_secs(30));
    let envelope = world.envelope.clone();
    let ended = rt.block_on(async move {
        let route = envelope.find("widgets.put").unwrap().clone();
        envelope.run(&route, put(), who.unwrap(), CallOptions::default()).await.is_ok()
    });
    assert_eq!(ended, Some(true));
}

#[test]
fn a_retry_of_an_action_is_answered_and_not_made_again() {
    let world = World::new();
    let first = world.under("k", "cluster.drain", json!({"replica": 2})).unwrap();
    let second = world.under("k", "cluster.drain", json!({"replica": 2})).unwrap();
    assert_eq!((first.replayed, second.replayed), (false, true));
    assert_eq!(json_of(first), json_of(second));
    assert_eq!((world.made(), world.audited()), (1, vec!["ok".to_owned()]));
    world.under("l", "cluster.drain", json!({"replica": 2})).unwrap();
    world.under("k", "cluster.transferLeader", json!({})).unwrap();
    assert_eq!(world.made(), 3, "another key and another method are other requests");
}

fn json_of(answer: Answer) -> Value {
    match answer.reply {
        palisade_api::envelope::Reply::Json(value) => value,
        palisade_api::envelope::Reply::Stream(_) => panic!("a stream"),
    }
}

#[test]
fn another_action_under_one_key_is_refused_before_it_is_made() {
    let world = World::new();
    world.under("k", "cluster.drain", json!({"replica": 2})).unwrap();
    let other = world.under("k", "cluster.drain", json!({"replica": 3}));
    assert_eq!(code(other), Code::IdempotencyMismatch);
    assert_eq!(world.made(), 1);
    assert_eq!(world.audited(), ["ok", "IDEMPOTENCY_MISMATCH"]);
}

#[test]
fn an_action_whose_answer_was_not_kept_is_made_again_by_a_retry() {
    let world = World::new();
    // Its key is noted, it is made, and then there is no quorum.
    world.store.proposals_left.store(1, Ordering::SeqCst);
    let told = world.under("k", "cluster.drain", json!({"replica": 2})).unwrap();
    assert_eq!((told.replayed, world.made()), (false, 1), "it has happened");
    world.store.proposals_left.store(usize::MAX, Ordering::SeqCst);
    let other = world.under("k", "cluster.drain", json!({"replica": 3}));
    assert_eq!((code(other), world.made()), (Code::IdempotencyMismatch, 1), "the key was noted");
    let again = world.under("k", "cluster.drain", json!({"replica": 2})).unwrap();
    assert_eq!((again.replayed, world.made()), (false, 2));
    assert!(world.under("k", "cluster.drain", json!({"replica": 2})).unwrap().replayed);
    assert_eq!((world.made(), world.audited().len()), (2, 2), "one record of each request");
}

#[test]
fn without_a_quorum_an_action_under_a_key_is_not_made() {
    let world = World::new();
    world.store.proposals_left.store(0, Ordering::SeqCst);
    assert_eq!(code(world.under("k", "cluster.drain", json!({"replica": 2}))), Code::NoQuorum);
    assert_eq!(world.made(), 0);
}

#[test]
fn on_a_full_disk_an_action_is_made_all_the_same() {
    let world = World::new();
    world.store.full.store(true, Ordering::SeqCst);
    world.under("k", "cluster.transferLeader", json!({"to": 2})).unwrap();
    assert_eq!(world.made(), 1);
}

#[test]
fn a_dry_run_of_an_action_leaves_nothing_under_its_key() {
    let world = World::new();
    let key = Some("k".to_owned());
    let dry = CallOptions { idempotency_key: key, dry_run: true, ..CallOptions::default() };
    let begun = world.begin("cluster.drain", json!({"replica": 2}), dry);
    world.end(&begun).1.unwrap();
    assert_eq!(world.made(), 0);
    assert!(!world.under("k", "cluster.drain", json!({"replica": 2})).unwrap().replayed);
    assert_eq!(world.made(), 1);
}

#[test]
fn a_condition_that_an_action_cannot_look_at_is_refused() {
    let world = World::new();
    let options = CallOptions { if_match: Some(7), ..CallOptions::default() };
    let begun = world.begin("cluster.drain", json!({"replica": 2}), options);
    let Err(refused) = world.end(&begun).1 else { panic!("it was ignored") };
    assert_eq!(refused.code, Code::InvalidInput);
    assert!(refused.detail.contains("If-Match"), "{refused}");
    assert_eq!((world.made(), world.audited().len()), (0, 0));
}
