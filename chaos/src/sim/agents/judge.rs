//! What must be true of machines, their books and what runs on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use palisade_agent::fence::Fence;
use palisade_state::{View, outbox::Event};
use serde_json::Value;

use super::{
    super::Breach,
    machine::{Machine, Proc},
    orders::Orders,
    rows::{all, newest, number, text},
};

const BOOKS: &str = "capacity_nodes";
const DEMANDS: &str = "capacity_demands";
const INSTANCES: &str = "workload_instances";
const WORKLOADS: &str = "workloads";
const SPECS: &str = "node_specs";
const NODES: &str = "nodes";

fn breach(check: &'static str, message: String) -> Breach {
    Breach { check, message }
}

/// What is seen of the books while a run goes on.
#[derive(Default)]
pub(crate) struct Book {
    /// The newest view that was looked at, and what its books' newest change was.
    index: u64,
    newest: (u64, usize),
    event: u64,
    /// Nodes that were lost.
    lost: BTreeSet<String>,
    /// Instances that were given up with their nodes. An instance has one place in its life; what replaces it has
    /// another id.
    given_up: BTreeSet<String>,
    /// What happened since it was last told.
    pub(crate) news: Vec<String>,
    /// What is told of commands.
    pub(crate) orders: Orders,
}

impl Book {
    /// Whether an instance was given up because its node was lost.
    pub(crate) fn is_given_up(&self, instance: &str) -> bool {
        self.given_up.contains(instance)
    }

    fn happens(&mut self, event: &Event) {
        match event.kind.as_ref() {
            "node.lost" => {
                let node = event.subject.trim_start_matches("node/");
                self.news.push(format!("{node} is lost"));
                self.lost.insert(node.to_owned());
            }
            "instance.lost" => {
                let data: Value = serde_json::from_slice(&event.data).unwrap_or_default();
                let (node, instance) = (text(&data, "/node"), text(&data, "/instance"));
                self.news.push(format!("{instance} is given up on {node}"));
                if self.lost.contains(node) {
                    self.given_up.insert(instance.to_owned());
                }
            }
            _ => {}
        }
    }

    /// Looks at a view, unless a newer one was seen: C1 at every revision that a replica shows.
    pub(crate) fn look(&mut self, machines: &[Arc<Machine>], view: &View) -> Vec<Breach> {
        let index = view.applied().index;
        if index <= self.index {
            return vec![];
        }
        self.index = index;
        for (sequence, event) in view.events(self.event + 1) {
            self.event = sequence;
            self.happens(event);
            self.orders.happens(event);
        }
        let newest = newest(view, &[BOOKS, DEMANDS, INSTANCES]);
        if newest == self.newest {
            return vec![];
        }
        self.newest = newest;
        books(machines, view)
    }
}

/// C1: what a node has given away is what its instances hold, and never more than it has.
fn books(machines: &[Arc<Machine>], view: &View) -> Vec<Breach> {
    let index = view.applied().index;
    let at = |node: &str, what: String| breach("C1", format!("{node} at {index}: {what}"));
    let mut breaches = vec![];
    let mut entered: BTreeMap<String, String> = BTreeMap::new();
    for (node, books) in all(view, BOOKS) {
        let (mut cpu, mut memory) = (0, 0);
        let mut ports = BTreeSet::new();
        for (id, held) in books.get("allocations").and_then(Value::as_object).into_iter().flatten()
        {
            cpu += number(held, "/amount/cpuMilli");
            memory += number(held, "/amount/memoryBytes");
            if let Some(other) = entered.insert(id.clone(), node.clone()) {
                breaches.push(at(&node, format!("{id} is in the books of {other} too")));
            }
            for port in held.get("ports").and_then(Value::as_object).into_iter().flatten() {
                if !ports.insert(port.1.as_u64()) {
                    breaches.push(at(&node, format!("port {} is given twice", port.1)));
                }
            }
        }
        let told = (number(&books, "/used/cpuMilli"), number(&books, "/used/memoryBytes"));
        if told != (cpu, memory) {
            let sums = format!("the books say {told:?}, the sum is {:?}", (cpu, memory));
            breaches.push(at(&node, sums));
        }
        let machine = machines.iter().find(|machine| machine.node_id().as_ref() == Some(&node));
        if let Some(machine) = machine
            && (cpu > machine.cpu_milli || memory > machine.memory_bytes)
        {
            let has = (machine.cpu_milli, machine.memory_bytes);
            let over = format!("{:?} is given away of {has:?}", (cpu, memory));
            breaches.push(at(&node, over));
        }
    }
    let instances: BTreeMap<String, Value> = all(view, INSTANCES).into_iter().collect();
    for (id, demand) in all(view, DEMANDS) {
        let placed = text(&demand, "/state/node");
        let held = entered.remove(&id).unwrap_or_default();
        if placed != held {
            breaches
                .push(at(placed, format!("{id} has its place there and is booked on {held:?}")));
        }
        if !instances.contains_key(&id) {
            breaches.push(at(placed, format!("{id} is no instance and holds a place")));
        }
    }
    for (id, node) in entered {
        breaches.push(at(&node, format!("{id} is booked and asks for nothing")));
    }
    breaches
}

/// An instance that is to run.
struct Wanted {
    node: String,
    generation: u64,
    fence: Fence,
}

fn fence_of(value: Option<&Value>) -> Fence {
    let part = |name: &str| value.map_or(0, |value| number(value, name));
    Fence { epoch: part("/epoch"), term: part("/term"), index: part("/index") }
}

/// What is not as it must be at the end: A1, Q1, and whatever has not come to rest.
pub(crate) fn unsettled(machines: &[Arc<Machine>], view: &View) -> Vec<Breach> {
    let nodes: BTreeMap<String, Value> = all(view, NODES).into_iter().collect();
    let specs: BTreeMap<String, Value> = all(view, SPECS).into_iter().collect();
    let workloads: BTreeMap<String, Value> = all(view, WORKLOADS).into_iter().collect();
    let mut breaches = vec![];
    for machine in machines {
        breaches.extend(followed(machine, &nodes, &specs));
    }
    let mut wanted: BTreeMap<String, Wanted> = BTreeMap::new();
    for (id, row) in all(view, INSTANCES) {
        let node = text(&row, "/place/node").to_owned();
        let workload = workloads.get(text(&row, "/workload"));
        let is_up = workload.is_some_and(|workload| text(workload, "/spec/wanted") == "up");
        if text(&row, "/life/is") != "live" {
            breaches.push(breach("A1", format!("{id} is still on its way out of {node}")));
        } else if node.is_empty() {
            breaches.extend(waits(machines, view, &nodes, &id));
        } else if is_up {
            let fence = fence_of(row.pointer("/place/fence"));
            let generation = number(&row, "/generation");
            wanted.insert(id, Wanted { node, generation, fence });
        }
    }
    let removing = workloads.iter().filter(|(_, row)| row.get("removing") == Some(&true.into()));
    breaches.extend(removing.map(|(id, _)| breach("Q1", format!("{id} is still being removed"))));
    breaches.extend(updates(view, &workloads));
    breaches.extend(running(machines, &wanted));
    breaches
}

/// Q1: an update goes on until all that counts is of the newest template, unless something waits for a place.
fn updates(view: &View, workloads: &BTreeMap<String, Value>) -> Vec<Breach> {
    let mut behind: BTreeMap<&str, String> = BTreeMap::new();
    let mut waiting: BTreeSet<&str> = BTreeSet::new();
    let instances = all(view, INSTANCES);
    for (id, row) in instances.iter().filter(|(_, row)| text(row, "/life/is") == "live") {
        let Some((name, workload)) = workloads.get_key_value(text(row, "/workload")) else {
            continue;
        };
        if text(row, "/place/node").is_empty() {
            waiting.insert(name);
        }
        let is_old = number(row, "/version") < number(workload, "/templateVersion")
            || number(row, "/restarts") < number(workload, "/restarts");
        if is_old && text(workload, "/spec/wanted") == "up" {
            behind.insert(name, format!("{id} is of an older version of {name} and stays"));
        }
    }
    behind.retain(|name, _| !waiting.contains(name));
    behind.into_values().map(|message| breach("Q1", message)).collect()
}

/// Whether a machine's agent is there and follows the newest spec.
fn followed(
    machine: &Machine,
    nodes: &BTreeMap<String, Value>,
    specs: &BTreeMap<String, Value>,
) -> Vec<Breach> {
    let name = &machine.name;
    let Some(id) = machine.node_id() else {
        return vec![breach("quiet", format!("{name} has not joined"))];
    };
    let phase = nodes.get(&id).map_or("nowhere", |row| text(row, "/node/phase"));
    if phase != "ready" {
        return vec![breach("quiet", format!("{name} is {phase}"))];
    }
    let held = machine.state().spec.as_ref().map(|spec| spec.generation);
    let newest = specs.get(&id).map(|row| number(row, "/generation"));
    if held != newest {
        let message = format!("{name} follows generation {held:?}, the newest is {newest:?}");
        return vec![breach("quiet", message)];
    }
    vec![]
}

/// A1: what is wanted up runs where it has its place, and nothing else runs.
fn running(machines: &[Arc<Machine>], wanted: &BTreeMap<String, Wanted>) -> Vec<Breach> {
    let mut breaches = vec![];
    for machine in machines {
        let node = machine.node_id().unwrap_or_default();
        let name = &machine.name;
        let procs = machine.state().procs.clone();
        for (id, proc) in procs.iter().filter(|(_, proc)| proc.runs()) {
            if wanted.get(id).is_none_or(|wanted| wanted.node != node) {
                breaches.push(breach("A1", format!("{id} runs on {name} and is not wanted there")));
            }
            if proc.stop_asked.is_some() {
                breaches.push(breach("A1", format!("{id} on {name} was asked to stop")));
            }
        }
        for (id, wanted) in wanted.iter().filter(|(_, wanted)| wanted.node == node) {
            let proc = procs.get(id).filter(|proc| proc.runs());
            let is_it =
                |proc: &Proc| proc.spec_version == wanted.generation && proc.fence == wanted.fence;
            if !proc.is_some_and(is_it) {
                let message = format!("{id} is wanted up on {name} and does not run as it should");
                breaches.push(breach("A1", message));
            }
        }
    }
    breaches
}

/// Q1: nothing waits for a place while there is one.
fn waits(
    machines: &[Arc<Machine>],
    view: &View,
    nodes: &BTreeMap<String, Value>,
    id: &str,
) -> Option<Breach> {
    let demand: Value = serde_json::from_slice(view.row(DEMANDS, id.as_bytes())?.value()).ok()?;
    if text(&demand, "/state/is") != "pending" {
        return Some(breach("Q1", format!("{id} has a place and was not told of it")));
    }
    let cpu = number(&demand, "/limits/cpuRequestMilli");
    let memory = number(&demand, "/limits/memoryRequestBytes");
    let fits = |machine: &&Arc<Machine>| {
        let node = machine.node_id().unwrap_or_default();
        let is_open = nodes.get(&node).is_some_and(|row| {
            text(row, "/node/phase") == "ready"
                && row.pointer("/node/schedulable") == Some(&true.into())
        });
        is_open && has_room(machine, view, cpu, memory)
    };
    let machine = machines.iter().find(fits)?;
    let name = &machine.name;
    Some(breach("Q1", format!("{id} waits for a place although {name} has room for it")))
}

/// Whether a machine has so much left by its books.
pub(crate) fn has_room(machine: &Machine, view: &View, cpu: u64, memory: u64) -> bool {
    let node = machine.node_id().unwrap_or_default();
    let books: Option<Value> = view
        .row(BOOKS, node.as_bytes())
        .and_then(|record| serde_json::from_slice(record.value()).ok());
    let used = |what: &str| books.as_ref().map_or(0, |books| number(books, what));
    used("/used/cpuMilli") + cpu <= machine.cpu_milli
        && used("/used/memoryBytes") + memory <= machine.memory_bytes
}

/// Instances that have a place, of workloads whose names begin so.
pub(crate) fn placed(view: &View, workloads: &str) -> Vec<String> {
    let instances = all(view, INSTANCES).into_iter().filter(|(_, row)| {
        text(row, "/workloadName").starts_with(workloads) && !text(row, "/place/node").is_empty()
    });
    instances.map(|(id, _)| id).collect()
}

/// Whether an instance of a workload waits for a place.
pub(crate) fn is_waiting(view: &View, workload: &str) -> bool {
    all(view, INSTANCES).iter().filter(|(_, row)| text(row, "/workloadName") == workload).any(
        |(id, _)| {
            let demand = view.row(DEMANDS, id.as_bytes());
            let demand =
                demand.and_then(|record| serde_json::from_slice::<Value>(record.value()).ok());
            demand.is_some_and(|demand| text(&demand, "/state/is") == "pending")
        },
    )
}
