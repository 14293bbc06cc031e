//! The reconciler that brings a workload's instances to what is wanted.
//!
//! # Invariants
//! - `WL-1` An instance's record and allocation outlive it on its node: they go only when the agent
//!   was seen without it under a spec without it, was never told of it, or is gone itself.
//! - `ROLL-1`, `ROLL-2` see [`crate::rollout`].

use std::collections::{BTreeMap, BTreeSet};

use futures::future::BoxFuture;
use palisade_contract::{
    Context, InstanceId, NodeId, ReconcileContext, Reconciler, Result, ShardBy,
    module::Run,
    node::{Node, NodePhase},
    node_spec,
    ports::{Allocation, Demand},
};
use palisade_state::{Tx, View};
use serde_json::json;

use crate::{
    NODES_KIND, RECONCILE_KIND, TIMER_KIND,
    lookup::instances_of,
    records::{
        ANNOUNCED, Announced, INSTANCES, InstanceRow, Life, Place, Seen, VERSIONS, WORKLOADS, Why,
        WorkloadRow,
    },
    rollout::{self, Copy, Target},
    status::{self, Phase},
    tenancy,
    told::Told,
};

/// Records that one transaction changes at most.
const BATCH_MAX: usize = 200;

/// Bytes that the new instances of one transaction take at most, as estimated.
const BATCH_BYTES_MAX: usize = 384 * 1024;

/// What an instance's record takes, in bytes, beside what its demand takes.
const ROW_BYTES: usize = 1024;

/// How soon an instance that no agent may have been told of is looked at again.
const SETTLE_MS: u64 = 200;

/// Converges workloads; its keys are their ids.
#[derive(Debug, Default)]
pub struct Reconcile;

impl Reconciler for Reconcile {
    fn name(&self) -> &'static str {
        RECONCILE_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        Ok(WORKLOADS.all(view)?.into_iter().map(|(id, _)| id).collect())
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let id = key.to_owned();
            cx.finish(|tx| match tx.get(&WORKLOADS, &id)? {
                Some(workload) => Converge::begin(&cx.context, tx.view(), workload)?.run(tx),
                None => Ok(()),
            })
            .await?;
            Ok(Run::Done)
        })
    }
}

/// Wakes a workload's reconciler when a time has come.
#[derive(Debug, Default)]
pub struct Timer;

impl Reconciler for Timer {
    fn name(&self) -> &'static str {
        TIMER_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Key
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            cx.finish(|tx| Ok(tx.enqueue(RECONCILE_KIND, key)?)).await?;
            Ok(Run::Done)
        })
    }
}

/// What a workload is brought to.
pub(crate) fn target(workload: &WorkloadRow) -> Target {
    let size = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    Target {
        count: size(workload.spec.count),
        template_version: workload.template_version,
        restarts: workload.restarts,
        up: workload.is_up(),
        max_surge: size(workload.spec.update.max_surge),
        max_unavailable: size(workload.spec.update.max_unavailable),
    }
}

/// The instances that count, as the roll-out sees them.
pub(crate) fn copies<'a>(rows: impl IntoIterator<Item = &'a InstanceRow>) -> Vec<Copy> {
    let live = rows.into_iter().filter(|row| row.is_live());
    live.map(|row| Copy {
        id: row.id.key(),
        number: row.number,
        version: row.version,
        ready: row.is_ready(),
        restarts: row.restarts,
    })
    .collect()
}

/// What an instance of a workload's newest spec asks for.
pub(crate) fn demand(workload: &WorkloadRow, id: InstanceId) -> Demand {
    let spec = &workload.spec;
    Demand {
        id,
        group: workload.id.key(),
        tenant: spec.tenant.clone(),
        pool: spec.pool.clone(),
        resources: spec.resources.clone(),
        ports: spec.port_requests(),
        labels: spec.placement.labels.clone(),
        includes: spec.placement.includes.clone(),
        excludes: spec.placement.excludes.clone(),
        driver: spec.wanted_driver(),
        strategy: spec.placement.strategy.clone(),
        wake: (RECONCILE_KIND.to_owned(), workload.id.key()),
    }
}

/// The smallest numbers that are free.
pub(crate) fn free_numbers(taken: &BTreeSet<u64>) -> impl Iterator<Item = u64> {
    (1..).filter(|number| !taken.contains(number))
}

/// One run. Rows are read from the view; those that are written join the read set then.
struct Converge<'a> {
    cx: &'a Context,
    view: View,
    told: Told,
    nodes: BTreeMap<NodeId, Option<Node>>,
    workload: WorkloadRow,
    rows: BTreeMap<InstanceId, InstanceRow>,
    dirty: BTreeSet<InstanceId>,
    gone: BTreeSet<InstanceId>,
    again: bool,
    timer_ms: Option<u64>,
}

impl<'a> Converge<'a> {
    fn begin(cx: &'a Context, view: &View, workload: WorkloadRow) -> Result<Self> {
        let rows = instances_of(view, &workload.id)?;
        Ok(Self {
            cx,
            view: view.clone(),
            told: Told::new(view.clone()),
            nodes: BTreeMap::new(),
            workload,
            rows: rows.into_iter().map(|row| (row.id.clone(), row)).collect(),
            dirty: BTreeSet::new(),
            gone: BTreeSet::new(),
            again: false,
            timer_ms: None,
        })
    }

    fn run(mut self, tx: &mut Tx) -> Result<()> {
        self.fill(tx)?;
        self.let_go(tx)?;
        if self.workload.removing {
            let live = self.live();
            self.leave_all(tx, &live)?;
        } else {
            tenancy::settle(self.cx, tx, &self.workload)?;
            self.roll(tx)?;
        }
        for id in &self.gone {
            tx.delete(&INSTANCES, &id.key())?;
            self.rows.remove(id);
        }
        for id in self.dirty.difference(&self.gone) {
            if let Some(row) = self.rows.get(id) {
                tx.put(&INSTANCES, &id.key(), row)?;
            }
        }
        if self.workload.removing && self.rows.is_empty() {
            return self.forget(tx);
        }
        self.announce(tx)?;
        self.wake_again(tx)
    }

    /// Whether this transaction takes another change; if not, another run will.
    fn has_room(&mut self) -> bool {
        let has = self.dirty.len() + self.gone.len() < BATCH_MAX;
        self.again |= !has;
        has
    }

    fn live(&self) -> Vec<InstanceId> {
        self.rows.values().filter(|row| row.is_live()).map(|row| row.id.clone()).collect()
    }

    fn node(&mut self, id: &NodeId) -> Result<Option<&Node>> {
        if !self.nodes.contains_key(id) {
            let found = self.cx.ports.nodes.get()?.find(&self.view, id.as_str())?;
            self.nodes.insert(id.clone(), found);
        }
        Ok(self.nodes.get(id).and_then(Option::as_ref))
    }

    /// Takes in the places that the placer has found.
    fn fill(&mut self, tx: &mut Tx) -> Result<()> {
        let capacity = self.cx.ports.capacity.get()?.clone();
        let waiting: Vec<InstanceId> = self
            .rows
            .values()
            .filter(|row| row.is_live() && row.place.is_none())
            .map(|row| row.id.clone())
            .collect();
        for id in waiting {
            let Some(Allocation::Placed { node, ports, limits, fence }) =
                capacity.allocation(&self.view, &id)?
            else {
                continue;
            };
            if !self.has_room() {
                break;
            }
            let node_name = self.node(&node)?.map(|node| node.name.clone()).unwrap_or_default();
            let place = Place {
                spec_generation: self.told.generation(&node)?,
                since_ms: self.view.clock().now_ms,
                node_name,
                ports,
                limits,
                fence,
                node,
            };
            node_spec::invalidate(tx, &place.node)?;
            // It may have been lost between the placer's view and now.
            tx.enqueue(NODES_KIND, place.node.as_str())?;
            if let Some(row) = self.rows.get_mut(&id) {
                row.place = Some(place);
                row.seen = Seen::default();
            }
            self.dirty.insert(id);
        }
        Ok(())
    }

    /// Forgets instances on their way out that no agent can still have (`WL-1`). Those that an
    /// agent may have go when it reports; see [`crate::report`].
    fn let_go(&mut self, tx: &mut Tx) -> Result<()> {
        let leaving: Vec<InstanceRow> =
            self.rows.values().filter(|row| !row.is_live()).cloned().collect();
        for row in leaving {
            let (Some(place), Life::Leaving { told, .. }) = (&row.place, row.life) else {
                continue;
            };
            let removing = self.workload.removing;
            let is_gone = match self.node(&place.node)?.map(|node| node.phase) {
                None | Some(NodePhase::Retired) => true,
                Some(NodePhase::Lost) => removing,
                Some(_) => false,
            };
            if is_gone || (!told && self.never_told(place, &row.id)?) {
                if !self.has_room() {
                    break;
                }
                self.drop_row(tx, &row.id)?;
            }
        }
        Ok(())
    }

    fn never_told(&mut self, place: &Place, id: &InstanceId) -> Result<bool> {
        if !self.told.is_settled(&place.node) {
            self.timer_within(SETTLE_MS);
            return Ok(false);
        }
        Ok(!self.told.holds(&place.node, id)?
            && self.told.generation(&place.node)? == place.spec_generation)
    }

    fn timer_within(&mut self, ms: u64) {
        self.timer_ms = Some(self.timer_ms.map_or(ms, |earlier| earlier.min(ms)));
    }

    fn drop_row(&mut self, tx: &mut Tx, id: &InstanceId) -> Result<()> {
        self.cx.ports.capacity.get()?.release(tx, id)?;
        self.gone.insert(id.clone());
        Ok(())
    }

    fn leave_all(&mut self, tx: &mut Tx, ids: &[InstanceId]) -> Result<()> {
        for id in ids {
            if !self.has_room() {
                break;
            }
            let Some(place) = self.rows.get(id).and_then(|row| row.place.clone()) else {
                self.drop_row(tx, id)?;
                continue;
            };
            let told = self.told.holds(&place.node, id)?;
            if !told {
                self.timer_within(SETTLE_MS);
            }
            node_spec::invalidate(tx, &place.node)?;
            if let Some(row) = self.rows.get_mut(id) {
                row.life = Life::Leaving { why: Why::Removed, told };
            }
            self.dirty.insert(id.clone());
        }
        Ok(())
    }

    fn roll(&mut self, tx: &mut Tx) -> Result<()> {
        let target = target(&self.workload);
        let step = rollout::next(&target, &copies(self.rows.values()));
        self.create(tx, step.create)?;
        let ids = |names: &[String]| names.iter().filter_map(|id| InstanceId::parse(id)).collect();
        let remove: Vec<InstanceId> = ids(&step.remove);
        self.leave_all(tx, &remove)?;
        // What leaves makes room for the next step, and nobody else tells of what no agent had.
        self.again |= !remove.is_empty();
        let restart: Vec<InstanceId> = ids(&step.restart);
        for id in restart {
            if !self.has_room() {
                break;
            }
            let Some(row) = self.rows.get_mut(&id) else { continue };
            row.restarts = target.restarts;
            if let Some(place) = row.place.as_mut().filter(|_| target.up) {
                row.generation += 1;
                place.since_ms = self.view.clock().now_ms;
                node_spec::invalidate(tx, &place.node)?;
            }
            self.dirty.insert(id);
        }
        Ok(())
    }

    fn create(&mut self, tx: &mut Tx, count: usize) -> Result<()> {
        let capacity = self.cx.ports.capacity.get()?.clone();
        let taken: BTreeSet<u64> = self.rows.values().map(|row| row.number).collect();
        let mut bytes = 0;
        for number in free_numbers(&taken).take(count) {
            if bytes > BATCH_BYTES_MAX || !self.has_room() {
                self.again = true;
                break;
            }
            let id = InstanceId::mint(&*self.cx.rt);
            let demand = demand(&self.workload, id.clone());
            bytes += ROW_BYTES + serde_json::to_vec(&demand).map_or(0, |bytes| bytes.len());
            capacity.demand(tx, &demand)?;
            let name = &self.workload.spec.name;
            let row = InstanceRow {
                id: id.clone(),
                name: format!("{name}-{number}"),
                number,
                workload: self.workload.id.clone(),
                workload_name: name.clone(),
                tenant: self.workload.spec.tenant.clone(),
                version: self.workload.version,
                generation: 1,
                restarts: self.workload.restarts,
                life: Life::Live,
                place: None,
                seen: Seen::default(),
                created_at_ms: self.view.clock().wall_ms,
            };
            self.rows.insert(id.clone(), row);
            self.dirty.insert(id);
        }
        Ok(())
    }

    fn forget(&self, tx: &mut Tx) -> Result<()> {
        let id = self.workload.id.key();
        for (key, _) in tx.scan(&VERSIONS, format!("{id}/").as_bytes())? {
            tx.delete(&VERSIONS, &key)?;
        }
        tx.delete(&ANNOUNCED, &id)?;
        tx.delete(&WORKLOADS, &id)?;
        tenancy::release(self.cx, tx, &self.workload)?;
        self.publish(tx, "workload.removed", "");
        Ok(())
    }

    fn publish(&self, tx: &mut Tx, kind: &str, message: &str) {
        let spec = &self.workload.spec;
        let data = json!({
            "workload": self.workload.id, "name": spec.name, "version": self.workload.version,
            "message": message,
        });
        tx.publish(kind, &spec.tenant, format!("workload/{}", self.workload.id), &data);
    }

    /// Publishes the phase when it is another one than last time.
    fn announce(&self, tx: &mut Tx) -> Result<()> {
        let rows: Vec<InstanceRow> = self.rows.values().cloned().collect();
        let capacity = self.cx.ports.capacity.get()?;
        let status = status::of(&**capacity, &self.view, &self.workload, &rows)?;
        let id = self.workload.id.key();
        let before = ANNOUNCED.get(&self.view, &id)?.map(|row| row.value.phase);
        if before == Some(status.phase) {
            return Ok(());
        }
        tx.put(&ANNOUNCED, &id, &Announced { phase: status.phase })?;
        let kind = match status.phase {
            Phase::Pending => "workload.pending",
            Phase::Running => "workload.running",
            Phase::Degraded => "workload.degraded",
            Phase::Stopped => "workload.stopped",
            Phase::Progressing | Phase::Removing => return Ok(()),
        };
        self.publish(tx, kind, &status.message);
        Ok(())
    }

    fn wake_again(&mut self, tx: &mut Tx) -> Result<()> {
        let id = self.workload.id.key();
        if self.again {
            // The row that this run finishes is at a newer generation then, and stays.
            tx.enqueue(RECONCILE_KIND, &id)?;
        }
        if self.workload.is_up() {
            let now_ms = self.view.clock().now_ms;
            let due = self.rows.values().map(|row| status::overdue_at(&self.workload, row));
            let next = due.filter(|at| *at > now_ms && *at < u64::MAX).min();
            if let Some(at) = next {
                self.timer_within(at - now_ms);
            }
        }
        match self.timer_ms {
            Some(ms) => Ok(tx.enqueue_after(TIMER_KIND, &id, ms)?),
            None => Ok(()),
        }
    }
}
