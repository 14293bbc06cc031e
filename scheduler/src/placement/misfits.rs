//! Why nodes do not fit, in a bounded form.

use std::collections::BTreeMap;

use palisade_contract::ports::Misfit;

/// Nodes named one by one; the others are counted by reason.
pub const MISFITS_MAX: usize = 20;

/// Stands for no node in particular.
pub(super) const NO_NODE: &str = "*";

/// The first [`MISFITS_MAX`] by name, then one that counts the others by reason.
#[must_use]
pub fn summarised(mut misfits: Vec<Misfit>) -> Vec<Misfit> {
    misfits.sort();
    misfits.dedup();
    if misfits.len() <= MISFITS_MAX {
        return misfits;
    }
    let rest = misfits.split_off(MISFITS_MAX);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for misfit in &rest {
        *counts.entry(kind(&misfit.reason)).or_default() += 1;
    }
    let words: Vec<String> =
        counts.iter().map(|(reason, count)| format!("{count} × {reason}")).collect();
    misfits.push(Misfit {
        node: NO_NODE.to_owned(),
        reason: format!("and {} more nodes: {}", rest.len(), words.join(", ")),
    });
    misfits
}

/// A reason without its numbers, so that equal ones can be counted.
fn kind(reason: &str) -> &str {
    match reason {
        r if r.contains("of memory") => "too little memory",
        r if r.contains("CPU") => "too little CPU",
        r if r.contains("port") => "no port",
        r if r.starts_with("lacks label") => "lacks a label",
        r => r,
    }
}
