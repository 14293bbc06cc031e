//! Stage 1: whether a node may take an ask at all.

use super::types::{Class, Machine};

/// Whether whoever asks may not know of the node: it is of another tenant. The cluster knows of all.
#[must_use]
pub fn is_hidden(machine: &Machine, class: &Class) -> bool {
    let (asks, owns) = (&class.tenant, &machine.tenant);
    !asks.is_empty() && !owns.is_empty() && asks != owns
}

/// Why not; `None`: it may.
#[must_use]
pub fn misfit(machine: &Machine, class: &Class) -> Option<String> {
    if !class.includes.is_empty() && !class.includes.contains(&machine.name) {
        return Some("not among placement.includes".to_owned());
    }
    if class.excludes.contains(&machine.name) {
        return Some("among placement.excludes".to_owned());
    }
    if !machine.tenant.is_empty() && machine.tenant != class.tenant {
        return Some("belongs to another tenant".to_owned());
    }
    if !machine.ready {
        return Some(match machine.phase.as_str() {
            "" => "not ready".to_owned(),
            phase => format!("not ready ({phase})"),
        });
    }
    if !machine.schedulable {
        return Some("cordoned".to_owned());
    }
    let missing: Vec<String> = class
        .labels
        .iter()
        .filter(|(key, value)| machine.labels.get(*key) != Some(value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if !missing.is_empty() {
        let word = if missing.len() == 1 { "label" } else { "labels" };
        return Some(format!("lacks {word} {}", missing.join(", ")));
    }
    if !machine.drivers.contains(&class.driver) {
        return Some(format!("lacks driver {}", class.driver));
    }
    None
}
