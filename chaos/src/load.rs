//! The clients: they write and read through any replica, with retries under one idempotency key.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
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
        Self { id, clients, http, clock, stop, random, replica, done: 0, value: 0 }
    }

    /// Works until it is told to stop; answers all that it did.
    pub(crate) async fn run(mut self) -> Vec<Operation> {
        let mut operations = Vec::new();
        while !self.stop.load(Ordering::Relaxed) {
            let action = self.choose();
            operations.push(self.perform(action).await);
            self.done += 1;
            clock::sleep_ms(self.random.below(PAUSE_MS_MAX)).await;
        }
        operations
    }

    fn choose(&mut self) -> Action {
        match self.random.below(10) {
            // Join tokens, because nothing but the idempotency key keeps two of them apart: each
            // application makes another. Its pool is the row's name.
            0..=3 => Action::Add { name: format!("row-{}-{}", self.id, self.done) },
            4..=6 => {
                self.value += 1;
                Action::Set { register: register_name(self.id), value: self.value }
            }
            _ => {
                let client = u32::try_from(self.random.below(self.clients.into())).unwrap_or(0);
                Action::Get { register: register_name(client) }
            }
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
            Action::Get { register } => Request::get(format!("{BASE}/workloads/{register}")),
        }
    }

    async fn perform(&mut self, action: Action) -> Operation {
        let request = self.request(&action);
        let invoked = self.clock.micros();
        let reads = matches!(action, Action::Get { .. });
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
            }),
            // A register that nobody has written yet.
            Tried::Refused { status: 404, .. } if reads => {
                Some(Outcome::Ok { revision: None, value: Some(0) })
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
pub(crate) fn count_rows(records: &[Value]) -> std::collections::BTreeMap<String, u64> {
    let mut rows = std::collections::BTreeMap::new();
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
        let ok = Outcome::Ok { revision: Some(7), value: None };
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
