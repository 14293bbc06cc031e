//! What Linux says of processes in `/proc`.

use std::{collections::BTreeMap, fs};

use crate::history::ProcessSeen;

/// One line of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) parent: u32,
    /// It ended and only waits to be asked for its status.
    pub(crate) over: bool,
    pub(crate) start_ticks: u64,
    /// CPU time of its own, and of children that it has waited for.
    pub(crate) cpu_ticks: u64,
}

impl Stat {
    pub(crate) fn read(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name in parentheses may hold anything: fields begin after the last one.
    fn parse(text: &str) -> Option<Self> {
        let fields: Vec<&str> =
            text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(4)?).ok()?,
            over: matches!(*fields.first()?, "Z" | "X" | "x"),
            start_ticks: number(22)?,
            cpu_ticks: (14..=17).filter_map(number).sum(),
        })
    }
}

/// The process with this number, unless it is over.
pub(crate) fn process(pid: u32) -> Option<ProcessSeen> {
    let stat = Stat::read(pid).filter(|stat| !stat.over)?;
    Some(ProcessSeen { pid, start_ticks: stat.start_ticks })
}

/// Whether exactly this process runs.
pub(crate) fn runs(seen: ProcessSeen) -> bool {
    process(seen.pid) == Some(seen)
}

/// All processes.
pub(crate) fn all() -> BTreeMap<u32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, Stat::read(pid)?)))
        .collect()
}

/// The processes below `root` in the tree, without it.
pub(crate) fn descendants(all: &BTreeMap<u32, Stat>, root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        found.extend(all.iter().filter(|(_, stat)| stat.parent == parent).map(|(pid, _)| *pid));
        // Numbers may be used again while we look; a tree is never larger than the table.
        if found.len() > all.len() + 1 {
            break;
        }
    }
    found.split_off(1)
}

/// CPU time of this machine and of us, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cpu {
    /// Ticks that passed, over all cores.
    total: u64,
    /// Ticks in which something ran.
    busy: u64,
    /// Ticks in which we ran: this process and all below it.
    ours: u64,
}

impl Cpu {
    /// Now.
    pub(crate) fn now() -> Option<Self> {
        let (total, busy) = parse_cpu(&fs::read_to_string("/proc/stat").ok()?)?;
        let all = all();
        let own = std::process::id();
        let mut ours = all.get(&own)?.cpu_ticks;
        for pid in descendants(&all, own) {
            ours += all.get(&pid).map_or(0, |stat| stat.cpu_ticks);
        }
        Some(Self { total, busy, ours })
    }

    /// The share of the machine's CPU time that others had since then, from 0 to 1.
    pub(crate) fn foreign_since(&self, before: &Self) -> f64 {
        let total = self.total.saturating_sub(before.total);
        let busy = self.busy.saturating_sub(before.busy);
        let ours = self.ours.saturating_sub(before.ours);
        if total == 0 {
            return 0.0;
        }
        busy.saturating_sub(ours) as f64 / total as f64
    }
}

/// Total and busy ticks of the first line of `/proc/stat`: user, nice, system, idle, iowait, irq,
/// softirq, steal. Interrupts belong to nobody and count as idle; what another virtual machine had
/// (steal) counts as busy.
fn parse_cpu(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().take(8).filter_map(|field| field.parse().ok()).collect();
    let at = |index: usize| ticks.get(index).copied().unwrap_or(0);
    Some((ticks.iter().sum(), at(0) + at(1) + at(2) + at(7)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_is_read_over() {
        let text = "7 (a) b) Z 3 7 7 0 -1 4 1 0 0 0 10 20 3 4 20 0 1 0 99 5 6";
        let stat = Stat::parse(text).unwrap();
        assert_eq!(stat, Stat { parent: 3, over: true, start_ticks: 99, cpu_ticks: 37 });
    }

    #[test]
    fn this_process_runs_and_is_found_below_its_parent() {
        let own = std::process::id();
        let seen = process(own).unwrap();
        assert!(runs(seen));
        assert!(!runs(ProcessSeen { start_ticks: seen.start_ticks + 1, ..seen }));
        let all = all();
        assert!(descendants(&all, all[&own].parent).contains(&own));
    }

    #[test]
    fn the_share_of_others_is_what_is_busy_and_not_ours() {
        let before = Cpu { total: 100, busy: 50, ours: 10 };
        let after = Cpu { total: 300, busy: 150, ours: 90 };
        assert!((after.foreign_since(&before) - 0.1).abs() < 1e-9);
        assert!(before.foreign_since(&before).abs() < 1e-9);
    }

    #[test]
    fn interrupts_count_as_idle_and_steal_as_busy() {
        assert_eq!(parse_cpu("cpu  1 2 4 8 16 32 64 128 0 0\ncpu0 1\n"), Some((255, 135)));
    }
}
