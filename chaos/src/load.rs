//! The clients: they write and read through any replica, with retries under one idempotency key.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    clock::{self, Clock},
    history::{Action, Operation, Outcome},
    http::{BASE, Http, Request, Tried},
    random::Random,
    rig,
};

/// Longer than an election, shorter than a pause, so that a paused replica is left for another.
const TRY_LIMIT: Duration = Duration::from_millis(1500);
const BUDGET: Duration = Duration::from_secs(20);
const PAUSE_MS_MAX: u64 = 60;
/// Few, so that all clients meet at them.
const HOT_KEYS: u64 = 3;

/// One client. It does one thing after the other.
pub(crate) struct Client {
    id: u32,
    clients: u32,
    http: Http,
    clock: Clock,
    stop: Arc<AtomicBool>,
    random: Random,
    /// The replica that answered last.
    replica: usize,
    /// How many things it has done.
    done: u64,
    /// The last value that it gave its register.
    value: u64,
    /// The last version of each hot key that it saw.
    versions: BTreeMap<String, u64>,
    /// How many values it gave hot keys.
    written: u64,
    /// Where acknowledged writes are counted while it works.
    acknowledged: Option<Arc<AtomicU64>>,
}

/// A key that everybody writes.
fn hot_key(number: u64) -> String {
    format!("hot-{number}")
}

/// The register that this client writes.
pub(crate) fn register_name(client: u32) -> String {
    format!("register-{client}")
}

impl Client {
    pub(crate) fn new(
        id: u32,
        clients: u32,
        seed: u64,
        http: Http,
        clock: Clock,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let mut random = Random::part(seed, &format!("client/{id}"));
        let replica = random.index(http.replicas());
        Self {
            id,
            clients,
            http,
            clock,
            stop,
            random,
            replica,
            done: 0,
            value: 0,
            versions: BTreeMap::new(),
            written: 0,
            acknowledged: None,
        }
    }

    /// Acknowledged writes are counted there.
    pub(crate) fn counted(self, acknowledged: Arc<AtomicU64>) -> Self {
        Self { acknowledged: Some(acknowledged), ..self }
    }

    /// Works until it is told to stop; answers all that it did.
    pub(crate) async fn run(mut self) -> Vec<Operation> {
        let mut operations = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let action = self.choose();
            let operation = self.perform(action).await;
            self.learn(&operation);
            if let Some(count) = &self.acknowledged
                && operation.is_ok()
                && !operation.action.is_read()
            {
                count.fetch_add(1, Ordering::Relaxed);
            }
            operations.push(operation);
            self.done += 1;
            clock::sleep_ms(self.random.below(PAUSE_MS_MAX)).await;
        }
        operations
    }

    /// Reads every hot key through the replicas at these places.
    pub(crate) async fn read_all(mut self, places: &[usize]) -> Vec<Operation> {
        let mut operations = Vec::new();
        for &replica in places {
            for number in 0..HOT_KEYS {
                self.replica = replica;
                operations.push(self.perform(Action::Read { key: hot_key(number) }).await);
            }
        }
        operations
    }

    /// Remembers which version a hot key is at.
    fn learn(&mut self, operation: &Operation) {
        let (Action::Read { key } | Action::Write { key, .. } | Action::Swap { key, .. }) =
            &operation.action
        else {
            return;
        };
        match operation.outcome {
            Outcome::Ok { version: Some(version), .. } => {
                self.versions.insert(key.clone(), version);
            }
            // It is at another by now, or may be.
            _ => {
                self.versions.remove(key);
            }
        }
    }

    fn choose(&mut self) -> Action {
        match self.random.below(10) {
            // Join tokens, because nothing but the idempotency key keeps two of them apart: each
            // application makes another. Its pool is the row's name.
            0..=2 => Action::Add { name: format!("row-{}-{}", self.id, self.done) },
            3..=4 => {
                self.value += 1;
                Action::Set { register: register_name(self.id), value: self.value }
            }
            5 => {
                let client = u32::try_from(self.random.below(self.clients.into())).unwrap_or(0);
                Action::Get { register: register_name(client) }
            }
            _ => self.choose_hot(),
        }
    }

    /// Something with a key that everybody writes, through any replica.
    fn choose_hot(&mut self) -> Action {
        self.replica = self.random.index(self.http.replicas());
        let key = hot_key(self.random.below(HOT_KEYS));
        let kind = self.random.below(10);
        if kind < 4 {
            return Action::Read { key };
        }
        // A client has a million values, so that no two operations write the same.
        self.written += 1;
        let value = (u64::from(self.id) + 1) * 1_000_000 + self.written;
        match (kind, self.versions.get(&key)) {
            (4..=7, Some(&at)) => Action::Swap { key, at, value },
            _ => Action::Write { key, value },
        }
    }

    fn request(&mut self, action: &Action) -> Request {
        let key = format!("chaos-{}-{}", self.id, self.done);
        match action {
            Action::Add { name } => Request::post(
                format!("{BASE}/join-tokens"),
                key,
                json!({"secretSha256": self.random.hex64(), "pool": name}),
            ),
            Action::Set { register, value } => Request::put(
                format!("{BASE}/workloads/{register}"),
                key,
                rig::register(register, *value),
            ),
            Action::Write { key: name, value } => {
                Request::put(format!("{BASE}/workloads/{name}"), key, rig::register(name, *value))
            }
            Action::Swap { key: name, at, value } => {
                Request::put(format!("{BASE}/workloads/{name}"), key, rig::register(name, *value))
                    .at(*at)
            }
            Action::Get { register: name } | Action::Read { key: name } => {
                Request::get(format!("{BASE}/workloads/{name}"))
            }
        }
    }

    async fn perform(&mut self, action: Action) -> Operation {
        let request = self.request(&action);
        let invoked = self.clock.micros();
        let reads = action.is_read();
        let mut tries = Tries::default();
        let began = Clock::start();
        let outcome = loop {
            let tried = self.http.once(self.replica, &request, TRY_LIMIT).await;
            if let Some(outcome) = tries.ended(tried, reads) {
                break outcome;
            }
            if began.elapsed() >= BUDGET {
                break tries.given_up();
            }
            self.replica = (self.replica + 1) % self.http.replicas().max(1);
            clock::sleep_ms(10 + self.random.below(50)).await;
        };
        let ended = self.clock.micros();
        Operation { client: self.id, action, invoked, ended, tries: tries.count, outcome }
    }
}

/// What is known of an operation after some tries.
#[derive(Default)]
struct Tries {
    count: u32,
    /// A try may have been applied, or may yet be.
    maybe_done: bool,
    last: String,
}

impl Tries {
    /// The outcome, if this try settles it.
    fn ended(&mut self, tried: Tried, reads: bool) -> Option<Outcome> {
        self.count += 1;
        match tried {
            Tried::Done(answer) => Some(Outcome::Ok {
                revision: answer.revision,
                value: if reads { rig::register_value(&answer.body) } else { None },
                version: rig::register_version(&answer.body),
            }),
            // A register that nobody has written yet.
            Tried::Refused { status: 404, .. } if reads => {
                Some(Outcome::Ok { revision: None, value: Some(0), version: None })
            }
            Tried::Refused { status: status @ 400..=499, code, detail, retryable } => {
                if retryable || status == 429 {
                    self.last = format!("{status} {code}: {detail}");
                    return None;
                }
                Some(self.refused(if code.is_empty() { status.to_string() } else { code }))
            }
            Tried::Refused { status, code, detail, .. } => {
                // What went wrong inside may have gone wrong after the commit.
                self.maybe_done = true;
                self.last = format!("{status} {code}: {detail}");
                None
            }
            Tried::Nothing { reason, sent } => {
                self.maybe_done |= sent;
                self.last = reason;
                None
            }
        }
    }

    fn refused(&self, code: String) -> Outcome {
        if self.maybe_done {
            return Outcome::Unknown { reason: format!("an earlier try, then {code}") };
        }
        Outcome::Refused { code }
    }

    fn given_up(&self) -> Outcome {
        if self.maybe_done {
            return Outcome::Unknown { reason: self.last.clone() };
        }
        Outcome::Refused { code: format!("never done ({})", self.last) }
    }
}

/// The number of times each row is there, from the records of the join tokens.
pub(crate) fn count_rows(records: &[Value]) -> BTreeMap<String, u64> {
    let mut rows = BTreeMap::new();
    for record in records {
        match record.get("pool").and_then(Value::as_str) {
            Some(name) if name.starts_with("row-") => {
                *rows.entry(name.to_owned()).or_insert(0) += 1;
            }
            _ => {}
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::Answer;

    fn refused(status: u16, retryable: bool) -> Tried {
        Tried::Refused { status, code: "CODE".into(), detail: String::new(), retryable }
    }

    fn nothing(sent: bool) -> Tried {
        Tried::Nothing { reason: "no".into(), sent }
    }

    #[test]
    fn a_refusal_is_certain_only_if_no_earlier_try_may_be_done() {
        let mut tries = Tries::default();
        assert_eq!(tries.ended(nothing(false), false), None);
        assert_eq!(
            tries.ended(refused(400, false), false),
            Some(Outcome::Refused { code: "CODE".into() })
        );
        for before in [nothing(true), refused(503, true)] {
            let mut tries = Tries::default();
            assert_eq!(tries.ended(before, false), None);
            let outcome = tries.ended(refused(400, false), false);
            assert!(matches!(outcome, Some(Outcome::Unknown { .. })));
        }
    }

    #[test]
    fn what_was_never_sent_was_never_done() {
        let mut tries = Tries::default();
        assert_eq!(tries.ended(nothing(false), false), None);
        assert!(matches!(tries.given_up(), Outcome::Refused { .. }));
        assert_eq!(tries.ended(nothing(true), false), None);
        assert!(matches!(tries.given_up(), Outcome::Unknown { .. }));
    }

    #[test]
    fn a_conflict_that_may_pass_is_tried_again() {
        assert_eq!(Tries::default().ended(refused(409, true), false), None);
    }

    #[test]
    fn an_answer_settles_it_whatever_came_before() {
        let mut tries = Tries::default();
        assert_eq!(tries.ended(nothing(true), false), None);
        let answer = Answer { revision: Some(7), body: Value::Null };
        let ok = Outcome::Ok { revision: Some(7), value: None, version: None };
        assert_eq!(tries.ended(Tried::Done(answer), false), Some(ok));
        assert_eq!(tries.count, 2);
    }

    #[test]
    fn only_the_rows_of_clients_are_counted() {
        let records =
            [json!({"pool": "default"}), json!({"pool": "row-1-1"}), json!({"pool": "row-1-1"})];
        assert_eq!(count_rows(&records), [("row-1-1".to_owned(), 2)].into());
    }
}
