//! Clients that read, write and swap registers, one thing after the other, and keep trying under one idempotency key.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use palisade_state::{
    Command, Outcome as Applied, Store, StoreError, Tx, Txn, View,
    command::{AuditDraft, EventDraft, Idempotency, PointCheck, Verdict, Write},
};

use super::{
    chores,
    nodes::{lock, now},
    record::{Action, Outcome, Record},
    runtime::world_sleep,
    world::World,
};
use crate::random::Random;

pub(crate) const TABLE: &str = "registers";
/// The kind of the event that each write leaves.
pub(crate) const SET: &str = "register.set";
const CHORES: u64 = 5;
/// How long one operation is tried.
const PATIENCE: Duration = Duration::from_secs(12);
const RETRY: Duration = Duration::from_millis(30);

/// What a register holds.
pub(crate) fn value_of(view: &View, key: u64) -> Option<u64> {
    let record = view.row(TABLE, format!("r{key}").as_bytes())?;
    let bytes = record.value().get(..8)?.try_into().ok()?;
    Some(u64::from_be_bytes(bytes))
}

fn event(kind: &str, row: &str, value: u64) -> EventDraft {
    EventDraft {
        kind: kind.to_owned(),
        tenant: String::new(),
        subject: format!("register/{row}"),
        data: value.to_string().into_bytes(),
    }
}

/// One client.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) world: Arc<World>,
    pub(crate) number: u64,
    pub(crate) keys: u64,
    /// Between two operations, in milliseconds at most.
    pub(crate) pause_ms: u64,
    pub(crate) random: Random,
    pub(crate) records: Arc<Mutex<Vec<Record>>>,
    pub(crate) stop: Arc<AtomicBool>,
    /// How many of them are at it.
    pub(crate) working: Arc<AtomicU64>,
}

/// What one try to write came to.
enum Try {
    Over(Outcome),
    Again { is_certain: bool },
}

fn judged(answer: Option<Result<Applied, StoreError>>) -> Try {
    let outcome = match answer {
        None | Some(Err(StoreError::Unknown)) => return Try::Again { is_certain: false },
        Some(Err(_)) => return Try::Again { is_certain: true },
        Some(Ok(outcome)) => outcome,
    };
    match outcome.verdict {
        Some(Verdict::Applied(_) | Verdict::Replayed(_)) => {
            Try::Over(Outcome::Done(outcome.revision))
        }
        Some(Verdict::Conflict(_)) => Try::Over(Outcome::Refused),
        _ => Try::Over(Outcome::Failed),
    }
}

impl Client {
    /// Works until it is stopped.
    pub(crate) async fn run(mut self) {
        let mut nth = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let pause = self.random.within(1, self.pause_ms * 2);
            world_sleep(Duration::from_millis(pause)).await;
            nth += 1;
            let key = self.random.below(self.keys);
            match self.random.below(12) {
                0..=3 => drop(self.read(key).await),
                4..=7 => self.write(key, nth).await,
                8..=9 => self.swap(key, nth).await,
                _ => self.ask_for_chore(nth).await,
            }
        }
        self.working.fetch_sub(1, Ordering::Relaxed);
    }

    /// Writes so often a second, whether the ones before are done or not, until it is stopped.
    pub(crate) async fn write_steadily(self, a_second: u64) {
        let pause = Duration::from_micros(1_000_000 / a_second.max(1));
        let mut nth = 0;
        while !self.stop.load(Ordering::Relaxed) {
            world_sleep(pause).await;
            nth += 1;
            let random = Random::part(nth, "steady");
            let mut one = Self { random, ..self.clone() };
            self.working.fetch_add(1, Ordering::Relaxed);
            let writing = async move {
                let key = one.random.below(one.keys);
                one.write(key, nth).await;
                one.working.fetch_sub(1, Ordering::Relaxed);
            };
            self.world.nodes.spawn(0, writing.boxed());
        }
        self.working.fetch_sub(1, Ordering::Relaxed);
    }

    fn any_node(&mut self) -> u64 {
        let ids = self.world.ids();
        ids.get(self.random.index(ids.len())).copied().unwrap_or(1)
    }

    fn note(&self, record: Record) {
        self.world.nodes.note(&[6, self.number, record.key]);
        self.world.nodes.tell(|| {
            let Record { client, key, action, outcome, .. } = &record;
            format!("client {client}: {action:?} of register {key}: {outcome:?}")
        });
        lock(&self.records).push(record);
    }

    async fn read(&mut self, key: u64) -> Option<View> {
        let invoked = now();
        let node = self.any_node();
        let asked =
            self.world.ask(node, |replica| async move { replica.linearizable().await }.boxed());
        let view = asked.await.and_then(Result::ok)?;
        let outcome = Outcome::Value(value_of(&view, key));
        self.note(Record {
            client: self.number,
            key,
            action: Action::Read,
            outcome,
            invoked,
            ended: now(),
            revision: Some(view.revision()),
        });
        Some(view)
    }

    fn value(&self, nth: u64) -> u64 {
        self.number << 32 | nth
    }

    fn txn(&self, key: u64, value: u64, nth: u64, points: Vec<PointCheck>) -> Txn {
        let mut bytes = value.to_be_bytes().to_vec();
        bytes.resize(64, b'.');
        let id = format!("{}-{nth}", self.number);
        let row = format!("r{key}");
        let write = Write { table: TABLE.into(), key: row.clone().into(), value: Some(bytes) };
        Txn {
            idempotency: Some(Idempotency {
                scope: format!("client-{}", self.number),
                key: id.clone(),
                request_hash: value.to_be_bytes().to_vec(),
            }),
            points,
            writes: vec![write],
            events: vec![event(SET, &row, value), event("register.seen", &row, value ^ 1)],
            audit: Some(AuditDraft {
                actor: format!("client-{}", self.number),
                method: "registers.set".into(),
                resource: row,
                tenant: String::new(),
                outcome: "ok".into(),
                request_id: id,
            }),
            ..Txn::default()
        }
    }

    async fn write(&mut self, key: u64, nth: u64) {
        let value = self.value(nth);
        let txn = self.txn(key, value, nth, vec![]);
        self.propose(key, Action::Write(value), txn).await;
    }

    async fn swap(&mut self, key: u64, nth: u64) {
        let Some(view) = self.read(key).await else { return };
        let row = format!("r{key}");
        let stamp = view.row(TABLE, row.as_bytes()).map(palisade_state::Record::stamp);
        let point = PointCheck {
            table: TABLE.into(),
            key: row.into(),
            version: stamp.map_or(0, |stamp| stamp.version),
            created_rev: stamp.map_or(0, |stamp| stamp.created_rev),
        };
        let new = self.value(nth);
        let txn = self.txn(key, new, nth, vec![point]);
        self.propose(key, Action::Swap { expected: value_of(&view, key), new }, txn).await;
    }

    /// Asks for a chore to be done, once.
    async fn ask_for_chore(&mut self, nth: u64) {
        let key = format!("c{}", self.random.below(CHORES));
        let view = self.read(0).await;
        let Some(mut tx) = view.map(Tx::new) else { return };
        if chores::ask(&mut tx, &key).is_err() {
            return;
        }
        let scope = format!("client-{}", self.number);
        let request_hash = nth.to_be_bytes().to_vec();
        tx.idempotent(Idempotency { scope, key: format!("chore-{nth}"), request_hash });
        if let Ok(txn) = tx.build() {
            let (outcome, _) = self.insist(txn.into()).await;
            self.world.nodes.note(&[8, self.number, u64::from(outcome == Outcome::Refused)]);
        }
    }

    async fn propose(&mut self, key: u64, action: Action, txn: Txn) {
        let (outcome, invoked) = self.insist(txn.into()).await;
        let revision = match outcome {
            Outcome::Done(revision) => Some(revision),
            _ => None,
        };
        let client = self.number;
        self.note(Record { client, key, action, outcome, invoked, ended: now(), revision });
    }

    /// Proposes until somebody says what became of it; also says when it began.
    async fn insist(&mut self, command: Command) -> (Outcome, Duration) {
        let invoked = now();
        let mut is_certain = true;
        loop {
            let node = self.any_node();
            let sent = command.clone();
            let asked = self
                .world
                .ask(node, move |replica| async move { replica.propose(sent).await }.boxed());
            match judged(asked.await) {
                Try::Over(outcome) => return (outcome, invoked),
                Try::Again { is_certain: this } => is_certain &= this,
            }
            if now() >= invoked + PATIENCE {
                let outcome = if is_certain { Outcome::Failed } else { Outcome::Unknown };
                return (outcome, invoked);
            }
            world_sleep(RETRY).await;
        }
    }
}
