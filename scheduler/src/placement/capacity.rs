//! Stage 2: whether a node has room and ports for an ask.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::ports::PortRequest;
use palisade_state::planted::{self, Defect};

use super::{
    size,
    types::{ALLOCATIONS_MAX, Amount, Machine},
};

/// The ports that the node would give.
///
/// # Errors
/// Why it has no room, in clauses.
pub fn fit(
    machine: &Machine,
    need: Amount,
    ports: &[PortRequest],
) -> Result<BTreeMap<String, u16>, String> {
    let free = match planted::is(Defect::CapacityUnchecked) {
        true => machine.offered,
        false => machine.offered.minus(machine.used),
    };
    let mut reasons = Vec::new();
    if machine.allocations() >= ALLOCATIONS_MAX {
        reasons.push(format!("has {ALLOCATIONS_MAX} instances, the most that a node takes"));
    }
    if need.cpu_milli > free.cpu_milli {
        let word = if need.cpu_milli == 1000 { "CPU" } else { "CPUs" };
        reasons.push(format!(
            "needs {} {word}, {} free",
            size::cpus(need.cpu_milli),
            size::cpus(free.cpu_milli)
        ));
    }
    if need.memory_bytes > free.memory_bytes {
        reasons.push(format!(
            "needs {} of memory, {} free",
            size::bytes(need.memory_bytes),
            size::bytes(free.memory_bytes)
        ));
    }
    let found = find_ports(machine, ports);
    match found {
        Ok(ports) if reasons.is_empty() => Ok(ports),
        Ok(_) => Err(reasons.join("; ")),
        Err(reason) => {
            reasons.push(reason);
            Err(reasons.join("; "))
        }
    }
}

/// Fixed ports first, so that a free choice never takes one of them.
fn find_ports(machine: &Machine, asked: &[PortRequest]) -> Result<BTreeMap<String, u16>, String> {
    let mut found = BTreeMap::new();
    let mut taken: BTreeSet<u16> = BTreeSet::new();
    for (request, port) in asked.iter().filter_map(|r| r.fixed.map(|port| (r, port))) {
        if machine.ports.contains(&port) || !taken.insert(port) {
            return Err(format!("port {port} is taken"));
        }
        found.insert(request.name.clone(), port);
    }
    let (first, last) = (machine.port_first, machine.port_last);
    let mut from =
        if (first..=last).contains(&machine.port_next) { machine.port_next } else { first };
    for request in asked.iter().filter(|request| request.fixed.is_none()) {
        if first == 0 || last < first {
            return Err("offers no ports".to_owned());
        }
        let port = (from..=last)
            .chain(first..from)
            .find(|port| !machine.ports.contains(port) && !taken.contains(port))
            .ok_or_else(|| format!("no free port in {first}-{last}"))?;
        taken.insert(port);
        from = if port == last { first } else { port + 1 };
        found.insert(request.name.clone(), port);
    }
    Ok(found)
}
