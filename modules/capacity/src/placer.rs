//! The reconciler that gives pending demands their places, pool by pool.
//!
//! The plan is made on a view; what makes over-commitment impossible is that the transaction's read
//! set holds the books of each node that it touches, so a plan that others overtook is not applied
//! but made again.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use palisade_contract::{
    NodeId, ReconcileContext, Reconciler, Result, ShardBy,
    module::Run,
    node::NodePhase,
    ports::{Misfit, Nodes},
};
use palisade_scheduler::placement::{Ask, Placement, Planner};
use palisade_state::{
    Fence, Role, Tx, View,
    planted::{self, Defect},
};

use crate::{
    PLACER_KIND,
    books::{BOOKS, DEMANDS, DemandRow, DemandState, Held, NodeBooks, PENDING, ask, machine},
};

/// Demands that one transaction changes at most.
const BATCH_MAX: usize = 200;

/// Bytes of records that one transaction writes at most, as estimated; the kernel's limit for a
/// whole transaction is twice as much.
const BATCH_BYTES_MAX: usize = 512 * 1024;

/// What an entry of a node's books takes at most, in bytes.
const HELD_BYTES: usize = 256;

/// The placer.
#[derive(Debug, Default)]
pub struct Placer;

impl Reconciler for Placer {
    fn name(&self) -> &'static str {
        PLACER_KIND
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::Pool
    }

    fn role(&self) -> Role {
        Role::Scheduler
    }

    fn keys(&self, view: &View) -> Result<Vec<String>> {
        let mut pools: Vec<String> = DEMANDS
            .all(view)?
            .into_iter()
            .filter(|(_, row)| matches!(row.value.state, DemandState::Pending { .. }))
            .map(|(_, row)| row.value.demand.pool)
            .collect();
        pools.sort_unstable();
        pools.dedup();
        Ok(pools)
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, key: &'a str) -> BoxFuture<'a, Result<Run>> {
        Box::pin(async move {
            let nodes = cx.context.ports.nodes.get()?.clone();
            let fence = cx.fence();
            cx.finish(|tx| Batch::begin(&*nodes, tx, key, fence)?.place_all(tx)).await?;
            Ok(Run::Done)
        })
    }
}

/// A pool's nodes with their books, ready to be planned on.
pub(crate) struct Pool {
    pub planner: Planner,
    pub books: BTreeMap<String, (NodeId, NodeBooks)>,
}

impl Pool {
    /// Reads a pool. What is read here is not part of a read set: the books of nodes that are
    /// written join it when they are.
    pub fn read(nodes: &dyn Nodes, view: &View, pool: &str) -> Result<Self> {
        let mut books = BTreeMap::new();
        let mut machines = Vec::new();
        for node in nodes.list(view)? {
            if node.pool != pool || node.phase == NodePhase::Retired {
                continue;
            }
            let kept = BOOKS.get(view, &node.id.key())?.map(|row| row.value).unwrap_or_default();
            machines.push(machine(&node, &kept));
            books.insert(node.name.clone(), (node.id, kept));
        }
        Ok(Self { planner: Planner::new(pool, machines), books })
    }
}

/// One transaction of the placer.
struct Batch {
    pool: String,
    state: Pool,
    fence: Fence,
    pending: Vec<(String, DemandRow)>,
    touched: BTreeMap<String, usize>,
    changed: usize,
    bytes: usize,
}

impl Batch {
    fn begin(nodes: &dyn Nodes, tx: &Tx, pool: &str, fence: Fence) -> Result<Self> {
        let view = tx.view().clone();
        let pending: Vec<(String, DemandRow)> = DEMANDS
            .by_index(&view, PENDING, pool)?
            .into_iter()
            .map(|(id, row)| (id, row.value))
            .collect();
        let state = if pending.is_empty() {
            Pool { planner: Planner::new(pool, []), books: BTreeMap::new() }
        } else {
            Pool::read(nodes, &view, pool)?
        };
        Ok(Self {
            pool: pool.to_owned(),
            state,
            fence,
            pending,
            touched: BTreeMap::new(),
            changed: 0,
            bytes: 0,
        })
    }

    fn place_all(mut self, tx: &mut Tx) -> Result<()> {
        for (id, row) in std::mem::take(&mut self.pending) {
            if self.changed >= BATCH_MAX || self.bytes >= BATCH_BYTES_MAX {
                // The row that this run finishes is at a newer generation then, and stays.
                tx.enqueue(PLACER_KIND, &self.pool)?;
                break;
            }
            let ask = ask(&row.demand, &row.limits);
            match self.state.planner.place(&ask) {
                Ok(placement) => self.placed(tx, &id, row, &ask, placement)?,
                Err(misfits) => self.missed(tx, &id, row, misfits)?,
            }
        }
        for name in self.touched.keys() {
            if let Some((node, books)) = self.state.books.get(name) {
                debug_assert!(books.balance(), "C1");
                tx.put(&BOOKS, &node.key(), books)?;
            }
        }
        Ok(())
    }

    fn placed(
        &mut self,
        tx: &mut Tx,
        id: &String,
        mut row: DemandRow,
        ask: &Ask,
        placement: Placement,
    ) -> Result<()> {
        let Placement { node: name, ports, .. } = placement;
        let Some((node, books)) = self.state.books.get_mut(&name) else {
            return Ok(());
        };
        if !self.touched.contains_key(&name) {
            self.bytes += books.allocations.len() * HELD_BYTES;
        }
        *self.touched.entry(name.clone()).or_default() += 1;
        let held = Held { group: ask.group.clone(), amount: ask.need, ports: ports.clone() };
        books.enter(id, held);
        if let Some(machine) = self.state.planner.machine(&name) {
            books.port_next = machine.port_next;
            let within = |need: u64, used: u64, offered: u64| need == 0 || used <= offered;
            debug_assert!(
                planted::is(Defect::CapacityUnchecked)
                    || within(ask.need.cpu_milli, books.used.cpu_milli, machine.offered.cpu_milli)
                        && within(
                            ask.need.memory_bytes,
                            books.used.memory_bytes,
                            machine.offered.memory_bytes
                        ),
                "C1"
            );
        }
        row.state = DemandState::Placed { node: node.clone(), ports, fence: self.fence };
        self.write(tx, id, &row)
    }

    fn missed(
        &mut self,
        tx: &mut Tx,
        id: &String,
        mut row: DemandRow,
        misfits: Vec<Misfit>,
    ) -> Result<()> {
        let state = DemandState::Pending { misfits };
        if row.state == state {
            return Ok(());
        }
        row.state = state;
        self.write(tx, id, &row)
    }

    fn write(&mut self, tx: &mut Tx, id: &String, row: &DemandRow) -> Result<()> {
        self.changed += 1;
        self.bytes += HELD_BYTES + serde_json::to_vec(row).map_or(0, |bytes| bytes.len());
        let (kind, key) = &row.demand.wake;
        tx.enqueue(kind, key)?;
        Ok(tx.put(&DEMANDS, id, row)?)
    }
}
