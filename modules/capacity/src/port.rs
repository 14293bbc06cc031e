//! What other modules may ask of capacity.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use palisade_contract::{
    Code, Context, Error, InstanceId, NodeId, Problems, Result,
    node::NodePhase,
    ports::{Allocation, Capacity, Demand, Misfit, NodeCapacity, Nodes},
};
use palisade_scheduler::placement::{cpumem, summarised};
use palisade_state::{Tx, View};
use serde_json::Value;

use crate::{
    PLACER_KIND,
    books::{BOOKS, DEMANDS, DemandRow, DemandState, ask, read},
    placer::Pool,
};

/// The books as other modules see them.
pub(crate) struct Books {
    nodes: Arc<dyn Nodes>,
}

impl Books {
    pub fn new(nodes: Arc<dyn Nodes>) -> Self {
        Self { nodes }
    }

    fn is_gone(&self, view: &View, node: &NodeId) -> Result<bool> {
        let node = self.nodes.find(view, node.as_str())?;
        Ok(node.is_none_or(|node| node.phase == NodePhase::Retired))
    }
}

impl Capacity for Books {
    fn demand(&self, tx: &mut Tx, demand: &Demand) -> Result<()> {
        let (request, _) = read(demand)?;
        if tx.get(&DEMANDS, &demand.id.key())?.is_some() {
            let detail = format!("{} asks for a place already", demand.id);
            return Err(Error::new(Code::Conflict, detail));
        }
        let row = DemandRow {
            demand: demand.clone(),
            limits: request.limits(),
            state: DemandState::Pending { misfits: vec![] },
        };
        tx.put(&DEMANDS, &demand.id.key(), &row)?;
        Ok(tx.enqueue(PLACER_KIND, &demand.pool)?)
    }

    fn release(&self, tx: &mut Tx, id: &InstanceId) -> Result<()> {
        let Some(row) = tx.get(&DEMANDS, &id.key())? else {
            return Ok(());
        };
        tx.delete(&DEMANDS, &id.key())?;
        let DemandState::Placed { node, .. } = &row.state else {
            return Ok(());
        };
        if let Some(mut books) = tx.get(&BOOKS, &node.key())? {
            books.strike(id.as_str());
            if books.allocations.is_empty() && self.is_gone(tx.view(), node)? {
                tx.delete(&BOOKS, &node.key())?;
            } else {
                tx.put(&BOOKS, &node.key(), &books)?;
            }
        }
        // Whether anybody waits is not asked: a demand made meanwhile would not be seen.
        Ok(tx.enqueue(PLACER_KIND, &row.demand.pool)?)
    }

    fn allocation(&self, view: &View, id: &InstanceId) -> Result<Option<Allocation>> {
        let row = DEMANDS.get(view, &id.key())?.map(|row| row.value);
        Ok(row.map(|row| match row.state {
            DemandState::Pending { misfits } => Allocation::Pending { misfits },
            DemandState::Placed { node, ports, fence } => {
                Allocation::Placed { node, ports, limits: row.limits, fence }
            }
        }))
    }

    fn node(&self, view: &View, node: &NodeId) -> Result<NodeCapacity> {
        let books = BOOKS.get(view, &node.key())?.map(|row| row.value).unwrap_or_default();
        let offered = self
            .nodes
            .find(view, node.as_str())?
            .map(|node| cpumem::offered(&node.facts))
            .unwrap_or_default();
        let by_plugin = |value| BTreeMap::from([(cpumem::NAME.to_owned(), value)]);
        Ok(NodeCapacity {
            capacity: by_plugin(cpumem::shown(offered)),
            used: by_plugin(cpumem::shown(books.used)),
            allocations: u64::try_from(books.allocations.len()).unwrap_or(u64::MAX),
        })
    }

    fn check(&self, resources: &BTreeMap<String, Value>, at: &str, problems: &mut Problems) {
        cpumem::resources(resources, at, problems);
    }

    fn dry_run(
        &self,
        _cx: &Context,
        view: &View,
        demand: &Demand,
        count: u32,
    ) -> Result<(Vec<String>, Vec<Misfit>)> {
        let (request, _) = read(demand)?;
        let ask = ask(demand, &request.limits());
        let mut planner = Pool::read(&*self.nodes, view, &demand.pool)?.planner;
        let mut chosen = Vec::new();
        for _ in 0..count {
            match planner.place(&ask) {
                Ok(placement) => chosen.push(placement.node),
                Err(misfits) => return Ok((chosen, misfits)),
            }
        }
        let mut misfits = planner.misfits(&ask);
        let told: BTreeSet<String> =
            misfits.iter().map(|m| m.node.clone()).chain(chosen.iter().cloned()).collect();
        let spare = planner.seen(&ask.class).filter(|machine| !told.contains(&machine.name));
        misfits.extend(spare.map(|machine| Misfit {
            node: machine.name.clone(),
            reason:
                "fits, but the chosen nodes come first: fewer copies, or less loaded".to_owned(),
        }));
        Ok((chosen, summarised(misfits)))
    }
}
