//! Work for the product's own workers: chores that clients ask for and a reconciler does, under leases and fences.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::future::BoxFuture;
use palisade_contract::{
    Context, Module, ReconcileContext, Reconciler, Registry, Result, ShardBy, module::Run,
};
use palisade_scheduler::worker::{Options, Worker};
use palisade_state::{
    Declared, Fence, Role, Rt, SharedStore, Table, Tx, TxError, View, queue::WorkRow,
};
use serde::{Deserialize, Serialize};

use super::{
    eyes::{Breach, Eyes},
    leases::Acted,
    world::Handle,
};

/// The kind of the work.
pub(crate) const KIND: &str = "chores";
pub(crate) const DONE: &str = "chore.done";

/// How often a chore was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chore {
    pub(crate) wanted: u64,
}

pub(crate) static CHORES: Table<String, Chore> = Table::new("chores", &[]);

/// A client asks once more.
pub(crate) fn ask(tx: &mut Tx, key: &str) -> Result<(), TxError> {
    let mut chore = tx.get(&CHORES, &key.to_owned())?.unwrap_or_default();
    chore.wanted += 1;
    tx.put(&CHORES, &key.to_owned(), &chore)?;
    tx.enqueue(KIND, key)
}

/// One commit of a run, as its event says.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Done {
    key: String,
    /// What it had been asked for when the run began.
    upto: u64,
    generation: u64,
    lease: String,
    worker: String,
    incarnation: u64,
    fence: (u64, u64, u64),
}

struct Chores {
    rt: Rt,
}

impl Reconciler for Chores {
    fn name(&self) -> &'static str {
        KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            // Nothing but the generation says whether more was asked for meanwhile: the row is not looked at again.
            let asked = Tx::new(cx.view()).get(&CHORES, &key.to_owned())?.unwrap_or_default();
            // Long enough for the lease to move meanwhile, now and then.
            let millis = if self.rt.random().is_multiple_of(16) { 3_000 } else { 30 };
            self.rt.sleep(Duration::from_millis(self.rt.random() % millis)).await;
            let done = Done {
                key: key.to_owned(),
                upto: asked.wanted,
                generation: cx.work.generation,
                fence: (cx.fence().epoch, cx.fence().term, cx.fence().index),
                lease: cx.lease.lease.clone(),
                worker: cx.lease.worker.clone(),
                incarnation: cx.lease.incarnation,
            };
            cx.finish(|tx| {
                let data = serde_json::json!({
                    "key": done.key, "upto": done.upto, "generation": done.generation, "lease": done.lease,
                    "worker": done.worker, "incarnation": done.incarnation, "fence": done.fence,
                });
                tx.publish(DONE, "", format!("chore/{key}"), &data);
                Ok(())
            })
            .await?;
            Ok(Run::Done)
        })
    }
}

struct Household {
    rt: Rt,
}

impl Module for Household {
    fn name(&self) -> &'static str {
        "household"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![CHORES.declared()]
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(Chores { rt: self.rt.clone() })]
    }
}

/// Whether work is left to do: a chore at any time, and what else is due. Modules have rows that come back by themselves.
fn is_dirty(view: &View, kind: &str, row: &WorkRow) -> bool {
    kind == KIND || row.due_ms <= view.clock().now_ms
}

/// Whether any work is left to do.
pub(crate) fn has_work(view: &View) -> bool {
    view.all_work().any(|((kind, _), row)| is_dirty(view, kind, row))
}

/// The module that does the chores.
pub(crate) fn household(rt: Rt) -> Arc<dyn Module> {
    Arc::new(Household { rt })
}

/// The product's worker on one replica.
pub(crate) async fn work(rt: Rt, replica: Handle) {
    let store: SharedStore = replica;
    let Ok(registry) = Registry::new(vec![household(rt.clone())]) else { return };
    let context = Context::new(rt, store).with_tables(&registry);
    let options = Options { resync: Duration::from_secs(3_600), ..Options::default() };
    let worker = Worker::new(context, &registry, Role::Controllers, options);
    worker.run(Box::pin(std::future::pending())).await;
}

/// Q1: nothing is left to do, and what was asked for is done. I3: what was done was under the fence of its time. Q2: no generation of a key was done twice.
pub(crate) fn judge(last: &View, eyes: &Eyes) -> Vec<Breach> {
    let mut breaches = left(last);
    let mut done: BTreeMap<(String, u64), String> = BTreeMap::new();
    for (_, event) in last.events(1).filter(|(_, event)| event.kind.as_ref() == DONE) {
        let Ok(by) = serde_json::from_slice::<Done>(&event.data) else { continue };
        let (epoch, term, index) = by.fence;
        let acted = Acted {
            what: &format!("chore {}", by.key),
            lease: &by.lease,
            worker: &by.worker,
            incarnation: by.incarnation,
            fence: Fence { epoch, term, index },
            index: event.revision,
            term: eyes.term_at(event.revision),
        };
        breaches.extend(eyes.leases.judge(&acted));
        let worker = format!("{}/{}", by.worker, by.incarnation);
        let (key, generation) = (by.key.clone(), by.generation);
        if let Some(first) = done.insert((by.key, by.generation), worker.clone()) {
            let message = format!(
                "generation {generation} of {key} was done twice: by {first} and by {worker}"
            );
            breaches.push(Breach { check: "Q2", message });
        }
    }
    breaches
}

fn left(last: &View) -> Vec<Breach> {
    let mut breaches = vec![];
    for ((kind, key), row) in last.all_work().filter(|(id, row)| is_dirty(last, id.0, row)) {
        let generation = row.generation;
        let message = format!("{kind} {key} is still dirty at the end, generation {generation}");
        breaches.push(Breach { check: "Q1", message });
    }
    let mut done: BTreeMap<String, u64> = BTreeMap::new();
    for (_, event) in last.events(1).filter(|(_, event)| event.kind.as_ref() == DONE) {
        let Ok(by) = serde_json::from_slice::<Done>(&event.data) else { continue };
        let upto = done.entry(by.key).or_default();
        *upto = by.upto.max(*upto);
    }
    for (key, record) in last.rows(CHORES.name(), b"", None) {
        let Ok(chore) = serde_json::from_slice::<Chore>(record.value()) else { continue };
        let key = String::from_utf8_lossy(key.as_slice()).into_owned();
        let upto = done.get(&key).copied().unwrap_or(0);
        if upto != chore.wanted {
            let wanted = chore.wanted;
            let message =
                format!("chore {key} was asked for {wanted} times and is done up to {upto}");
            breaches.push(Breach { check: "Q1", message });
        }
    }
    breaches
}

/// I5: while a worker lives, every shard lease has an owner, and each owner lives.
pub(crate) fn owners(last: &View) -> Vec<Breach> {
    let live: BTreeSet<&str> = last.sessions().map(|((_, worker), _)| worker.as_ref()).collect();
    if live.is_empty() {
        let message = "no worker has a session at the end".to_owned();
        return vec![Breach { check: "I5", message }];
    }
    let mut breaches = vec![];
    for shard in 0..=u8::MAX {
        let name = format!("shard:{shard}");
        match last.lease(&name) {
            Some(lease) if live.contains(lease.owner.as_ref()) => {}
            Some(lease) => {
                let message = format!("{name} is owned by {}, which has no session", lease.owner);
                breaches.push(Breach { check: "I5", message });
            }
            None => {
                breaches.push(Breach { check: "I5", message: format!("{name} has no owner") });
            }
        }
    }
    breaches
}
