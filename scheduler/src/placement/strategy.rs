//! Stage 3: which of the nodes that fit.

use palisade_contract::input::nearest;

use super::types::{Ask, Machine};

/// How to choose among nodes that fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Strategy {
    /// Fewest copies of the group, then least loaded on the scarcest resource, then by name.
    #[default]
    Auto,
}

const LATER: [&str; 6] = ["fill", "each", "global", "drained", "spread", "binpack"];

impl Strategy {
    /// Reads its name; empty: the default.
    ///
    /// # Errors
    /// What is wrong with it, in a clause.
    pub fn parse(name: &str) -> Result<Self, String> {
        match name {
            "" | "auto" => Ok(Self::Auto),
            later if LATER.contains(&later) => {
                Err(format!("strategy {later:?} is not supported yet; use \"auto\""))
            }
            other => {
                let known = std::iter::once("auto").chain(LATER);
                let hint = nearest(other, known)
                    .map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
                Err(format!("is no strategy; known: \"auto\"{hint}"))
            }
        }
    }
}

/// What orders nodes for an ask: the least is chosen. Ends in the name, so the order is total.
pub(super) fn rank<'a>(machine: &'a Machine, ask: &Ask) -> (u64, u64, &'a str) {
    match ask.class.strategy {
        Strategy::Auto => (machine.copies(&ask.group), load_ppm(machine, ask), &machine.name),
    }
}

/// Millionths of the scarcest resource that would be used with the ask on the node.
fn load_ppm(machine: &Machine, ask: &Ask) -> u64 {
    let after = machine.used.plus(ask.need);
    let share = |used: u64, offered: u64| -> u64 {
        if used == 0 {
            return 0;
        }
        let ppm = u128::from(used) * 1_000_000 / u128::from(offered.max(1));
        u64::try_from(ppm).unwrap_or(u64::MAX)
    };
    share(after.cpu_milli, machine.offered.cpu_milli)
        .max(share(after.memory_bytes, machine.offered.memory_bytes))
}
