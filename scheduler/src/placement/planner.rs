//! The pipeline itself.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::ports::{Misfit, PortRequest};

use super::{
    candidates, capacity,
    misfits::{NO_NODE, summarised},
    strategy,
    types::{Amount, Ask, Class, Machine, Placement},
};

/// What two asks must share to fit the same nodes.
type Kind = (Class, Amount, Vec<(String, Option<u16>)>);

/// Places one ask after another on the same machines. What it gives away stays given away, so an
/// ask that fitted nowhere need not be looked at again when another of its kind comes.
#[derive(Clone, Debug)]
pub struct Planner {
    machines: BTreeMap<String, Machine>,
    pool: String,
    hopeless: BTreeMap<Kind, Vec<Misfit>>,
}

fn kind_of(ask: &Ask) -> Kind {
    let ports = ask.ports.iter().map(|PortRequest { name, fixed }| (name.clone(), *fixed));
    (ask.class.clone(), ask.need, ports.collect())
}

impl Planner {
    /// Begins with the machines of a pool.
    #[must_use]
    pub fn new(pool: &str, machines: impl IntoIterator<Item = Machine>) -> Self {
        let machines = machines.into_iter().map(|m| (m.name.clone(), m)).collect();
        Self { machines, pool: pool.to_owned(), hopeless: BTreeMap::new() }
    }

    /// Places an ask.
    ///
    /// # Errors
    /// Why it fits nowhere, per node.
    pub fn place(&mut self, ask: &Ask) -> Result<Placement, Vec<Misfit>> {
        let kind = kind_of(ask);
        if let Some(misfits) = self.hopeless.get(&kind) {
            return Err(misfits.clone());
        }
        let best = self
            .machines
            .values()
            .filter(|machine| candidates::misfit(machine, &ask.class).is_none())
            .filter_map(|machine| {
                let ports = capacity::fit(machine, ask.need, &ask.ports).ok()?;
                Some((strategy::rank(machine, ask), ports))
            })
            .min_by(|a, b| a.0.cmp(&b.0))
            .map(|((_, _, name), ports)| (name.to_owned(), ports));
        let Some((node, ports)) = best else {
            let misfits = summarised(self.misfits(ask));
            self.hopeless.insert(kind, misfits.clone());
            return Err(misfits);
        };
        if let Some(machine) = self.machines.get_mut(&node) {
            machine.take(ask, &ports);
        }
        Ok(Placement { id: ask.id.clone(), node, ports })
    }

    /// Why each node that does not take the ask now does not.
    #[must_use]
    pub fn misfits(&self, ask: &Ask) -> Vec<Misfit> {
        if self.seen(&ask.class).next().is_none() {
            let reason = format!("pool {} has no nodes", self.pool);
            return vec![Misfit { node: NO_NODE.to_owned(), reason }];
        }
        let known: BTreeSet<&String> = self.seen(&ask.class).map(|machine| &machine.name).collect();
        let unknown = ask.class.includes.iter().filter(|name| !known.contains(name));
        let unknown = unknown.map(|name| Misfit {
            node: name.clone(),
            reason: format!("no such node in pool {}", self.pool),
        });
        let misfits = self.seen(&ask.class).filter_map(|machine| {
            let reason = candidates::misfit(machine, &ask.class)
                .or_else(|| capacity::fit(machine, ask.need, &ask.ports).err())?;
            Some(Misfit { node: machine.name.clone(), reason })
        });
        unknown.chain(misfits).collect()
    }

    /// The machines of which whoever asks may know, as they are after what was placed.
    pub fn seen(&self, class: &Class) -> impl Iterator<Item = &Machine> {
        self.machines.values().filter(move |machine| !candidates::is_hidden(machine, class))
    }

    /// One machine as it is after what was placed.
    #[must_use]
    pub fn machine(&self, name: &str) -> Option<&Machine> {
        self.machines.get(name)
    }
}

/// Who got what, and who got nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// By the order of ids.
    pub placed: Vec<Placement>,
    /// Why not, by id.
    pub unplaced: BTreeMap<String, Vec<Misfit>>,
}

/// Places all asks, in the order of their ids.
#[must_use]
pub fn plan(pool: &str, machines: &[Machine], asks: &[Ask]) -> Plan {
    let mut planner = Planner::new(pool, machines.iter().cloned());
    let mut in_order: Vec<&Ask> = asks.iter().collect();
    in_order.sort_by(|a, b| a.id.cmp(&b.id));
    let mut made = Plan::default();
    for ask in in_order {
        match planner.place(ask) {
            Ok(placement) => made.placed.push(placement),
            Err(misfits) => drop(made.unplaced.insert(ask.id.clone(), misfits)),
        }
    }
    debug_assert_eq!(super::check::check(machines, asks, &made), Ok(()), "C1");
    made
}
