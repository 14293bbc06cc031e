//! A change that is authenticated, authorized, audited and idempotent, and tells an event, beside what the kernel does by
//! itself: a plain write, and a transaction that holds all that the change holds.

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use palisade_state::{
    Txn,
    command::{AuditDraft, EventDraft, Idempotency},
};
use serde_json::json;

use super::{Bench, Sample};
use crate::{
    bench::{
        Better,
        etcd::{
            client::{Client, Failure, propose, writes},
            load::{self, Keys, Loaded, Plan, Puts, Steps, Window},
            report::{Goal, Line, Round},
        },
    },
    clock::{self, Clock},
    http::{BASE, Http, Request, Tried},
};

const LIMIT: std::time::Duration = std::time::Duration::from_secs(10);
/// The part of the kernel's rate that must be left.
const LEFT: f64 = 0.75;

/// All rounds of one way.
#[derive(Default)]
struct Way(Vec<Sample>);

pub(super) async fn measure(bench: &Bench) -> Result<Vec<Line>> {
    let plan = bench.plan(bench.options.clients);
    let clients = clients(bench, plan.clients)?;
    make(&clients).await?;
    let (mut plain, mut whole, mut rest) = (Way::default(), Way::default(), Way::default());
    for round in 0..bench.options.rounds {
        let prefix = format!("api/{round}");
        let cluster = &bench.cluster;
        plain.0.push(
            bench
                .sample("kernel: a plain write", plan, async |leader| {
                    let make = |number| Puts(Keys::new(&prefix, number));
                    Ok(load::closed_loop(cluster, leader, plan, make).await?.0)
                })
                .await?,
        );
        rest.0.push(
            bench
                .sample("REST: a change", plan, async |leader| {
                    change(&clients, leader, plan, round).await
                })
                .await?,
        );
        whole.0.push(
            bench
                .sample("kernel: the same transaction", plan, async |leader| {
                    let make =
                        |number| Whole { keys: Keys::new(&prefix, number), done: 0, number, round };
                    Ok(load::closed_loop(cluster, leader, plan, make).await?.0)
                })
                .await?,
        );
    }
    let count = plan.clients;
    Ok(vec![
        rest.beside(
            &plain,
            format!("changes over REST; kernel: plain writes, {count} clients"),
            Goal::RatioAtLeast(LEFT),
        ),
        rest.beside(
            &whole,
            format!("changes over REST; kernel: the same transaction, {count} clients"),
            Goal::RatioAtLeast(LEFT),
        ),
        rest.latency(&plain, format!("their p99; kernel: plain writes, {count} clients")),
    ])
}

impl Way {
    fn beside(&self, kernel: &Self, measure: String, goal: Goal) -> Line {
        let line =
            Line::new(measure, "1/s", &self.rounds(kernel, |one| one.rate), goal, Better::Higher);
        let middle = |way: &Self, number: fn(&Sample) -> f64| {
            crate::bench::median(&way.0.iter().map(number).collect::<Vec<_>>()).round()
        };
        line.with("oursServerMicros", middle(self, |one| one.server_micros))
            .with("oursClientMicros", middle(self, |one| one.client_micros))
            .with("peerServerMicros", middle(kernel, |one| one.server_micros))
            .with("peerClientMicros", middle(kernel, |one| one.client_micros))
    }

    fn latency(&self, kernel: &Self, measure: String) -> Line {
        Line::new(measure, "ms", &self.rounds(kernel, Sample::p99), Goal::None, Better::Lower)
    }

    fn rounds(&self, kernel: &Self, number: fn(&Sample) -> f64) -> Vec<Round> {
        let pairs = self.0.iter().zip(&kernel.0);
        let round = |(ours, peer): (&Sample, &Sample)| Round {
            ours: number(ours),
            peer: Some(number(peer)),
            foreign: ours.foreign.max(peer.foreign),
        };
        pairs.map(round).collect()
    }
}

/// That many clients, each with a connection of its own.
fn clients(bench: &Bench, count: usize) -> Result<Vec<Http>> {
    let access = bench.cluster.access()?;
    (0..count).map(|_| Http::new(access.clone())).collect()
}

fn name(number: usize) -> String {
    format!("bench-{number:03}")
}

/// What is changed: one principal for each client. Its connection is used here for the first time.
async fn make(clients: &[Http]) -> Result<()> {
    let made = clients.iter().enumerate().map(async |(number, http)| {
        let body = json!({"name": name(number), "description": "as it was made"});
        let request = Request::post(format!("{BASE}/principals"), format!("make-{number}"), body);
        http.ask(&request, LIMIT).await
    });
    try_join_all(made).await.context("there is nothing to change")?;
    Ok(())
}

/// A text of which the record is about as long as a plain write.
fn text(round: usize, done: u64) -> String {
    format!("{round}/{done:09}/{}", "x".repeat(120))
}

async fn change(clients: &[Http], leader: usize, plan: Plan, round: usize) -> Result<Loaded> {
    let window = Window::start(&plan);
    let tasks = clients.iter().cloned().enumerate().map(|(number, http)| {
        clock::spawn(async move {
            let (mut loaded, mut done) = (Loaded::default(), 0);
            let path = format!("{BASE}/principals/{}", name(number));
            while !window.is_over() {
                let (began, body) = (Clock::start(), json!({"description": text(round, done)}));
                let request = Request::patch(&path, format!("{round}-{number}-{done}"), body);
                match http.once(leader, &request, LIMIT).await {
                    Tried::Done(_) => window.note(&began, 1, &mut loaded),
                    other => loaded.failed(Failure(other.describe())),
                }
                done += 1;
            }
            loaded
        })
    });
    Ok(Loaded::sum(try_join_all(tasks).await.context("a client broke")?))
}

/// All that a change holds, proposed as it is.
struct Whole {
    keys: Keys,
    done: u64,
    number: usize,
    round: usize,
}

impl Steps for Whole {
    async fn step(&mut self, client: &mut Client) -> Result<u64, Failure> {
        let Client::Ours(store) = client else { return Err(Failure("etcd has none".into())) };
        self.done += 1;
        let (subject, response) =
            (format!("principal/{}", name(self.number)), text(self.round, self.done));
        let txn = Txn {
            idempotency: Some(Idempotency {
                scope: "user/bench principals.update".into(),
                key: format!("w-{}-{}-{}", self.round, self.number, self.done),
                request_hash: vec![7; 32],
            }),
            writes: writes(vec![self.keys.row()]),
            events: vec![EventDraft {
                kind: "principal.updated".into(),
                subject: subject.clone(),
                data: response.clone().into_bytes(),
                ..EventDraft::default()
            }],
            audit: Some(AuditDraft {
                actor: "user/bench".into(),
                method: "principals.update".into(),
                resource: subject,
                outcome: "ok".into(),
                request_id: format!("req_{:026}", self.done),
                ..AuditDraft::default()
            }),
            response: response.into_bytes(),
            ..Txn::default()
        };
        propose(store, txn.into()).await?;
        Ok(1)
    }
}
