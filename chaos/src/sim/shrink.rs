//! Making a failing run small: fewer faults, fewer clients, less time, as long as the same check fails.

use std::time::Duration;

use super::{Options, Ran, run};

/// Runs that are spent on it.
const RUNS_MAX: u32 = 60;

/// A run that fails, and what is left of its plan.
pub(crate) struct Small {
    pub(crate) options: Options,
    pub(crate) ran: Ran,
    /// The faults that are left, by their numbers in the whole plan.
    pub(crate) kept: Vec<usize>,
    pub(crate) runs: u32,
}

impl Small {
    fn fails(&mut self, kept: &[usize], options: &Options, whole: &Options) -> bool {
        if self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let plan = kept.iter().filter_map(|at| whole.plan.get(*at).cloned()).collect();
        let tried = Options { plan, ..options.clone() };
        let ran = run(&tried);
        let is_same = ran
            .breaches
            .iter()
            .any(|breach| self.ran.breaches.iter().any(|b| b.check == breach.check));
        if is_same {
            (self.options, self.ran, self.kept) = (tried, ran, kept.to_vec());
        }
        is_same
    }

    /// Leaves out parts of the plan, halves first.
    fn drop_faults(&mut self, whole: &Options) {
        let mut size = self.kept.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < self.kept.len() {
                let mut fewer = self.kept.clone();
                fewer.drain(at..(at + size).min(fewer.len()));
                let options = self.options.clone();
                if !self.fails(&fewer, &options, whole) {
                    at += size;
                }
            }
            size = if size == 1 { 0 } else { size.div_ceil(2) };
        }
    }
}

/// Shrinks a run that failed.
pub(crate) fn shrink(whole: &Options, ran: Ran) -> Small {
    // What is planned for later never happened.
    let happened = |at: &usize| whole.plan.get(*at).is_some_and(|p| p.at < whole.length);
    let kept: Vec<usize> = (0..whole.plan.len()).filter(happened).collect();
    let mut small = Small { options: whole.clone(), ran, kept: kept.clone(), runs: 0 };
    // What came after it does not matter: faults end a little behind the first breach.
    for share in [8, 4, 2] {
        let length = whole.length / share;
        let early: Vec<usize> = kept
            .iter()
            .copied()
            .filter(|at| whole.plan.get(*at).is_some_and(|p| p.at < length))
            .collect();
        let options = Options { length, ..whole.clone() };
        if small.fails(&early, &options, whole) {
            break;
        }
    }
    small.drop_faults(whole);
    for clients in 1..small.options.clients {
        let (kept, options) = (small.kept.clone(), Options { clients, ..small.options.clone() });
        if small.fails(&kept, &options, whole) {
            break;
        }
    }
    for seconds in [2, 4, 8, 16] {
        let last = small.options.plan.last().map_or(Duration::ZERO, |planned| planned.at);
        let length = last + Duration::from_secs(seconds);
        let (kept, options) = (small.kept.clone(), Options { length, ..small.options.clone() });
        if length < small.options.length && small.fails(&kept, &options, whole) {
            break;
        }
    }
    small
}
