//! What to do next to bring a workload's instances to what is wanted; pure.
//!
//! # Invariants
//! - `ROLL-1` No step removes a ready instance when fewer than `count` − `max_unavailable` would be
//!   left ready, unless more than `count` up-to-date ones exist.
//! - `ROLL-2` While old instances exist, no step makes more than `count` + `max_surge` in all.

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Instances.
    pub count: usize,
    /// Instances of a spec version below this one are to be replaced.
    pub template_version: u64,
    /// Instances that saw fewer restarts than this are to be restarted.
    pub restarts: u64,
    /// Whether they run at all; when they do not, there is nothing to be careful with.
    pub up: bool,
    /// Instances above `count` while an update lasts.
    pub max_surge: usize,
    /// Instances below `count` that may be missing while an update or restart lasts.
    pub max_unavailable: usize,
}

/// An instance that counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Its id.
    pub id: String,
    /// Its number.
    pub number: u64,
    /// The spec version that it was made from.
    pub version: u64,
    /// Whether it is healthy.
    pub ready: bool,
    /// Restarts that it has seen.
    pub restarts: u64,
}

/// The next step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Instances to make.
    pub create: usize,
    /// Instances to remove.
    pub remove: Vec<String>,
    /// Instances to restart where they are.
    pub restart: Vec<String>,
}

/// Those that are not ready first, then the highest number.
fn by_worth(mut copies: Vec<&Copy>) -> Vec<&Copy> {
    copies
        .sort_by(|a, b| a.ready.cmp(&b.ready).then(b.number.cmp(&a.number)).then(a.id.cmp(&b.id)));
    copies
}

/// The next step towards the target.
#[must_use]
pub fn next(target: &Target, copies: &[Copy]) -> Step {
    let is_old = |copy: &&Copy| copy.version < target.template_version;
    let (old, current): (Vec<&Copy>, Vec<&Copy>) = copies.iter().partition(is_old);
    let mut step = Step::default();
    let missing = target.count.saturating_sub(current.len());
    step.create = if old.is_empty() || !target.up {
        missing
    } else {
        missing.min((target.count + target.max_surge).saturating_sub(copies.len()))
    };
    let excess = current.len().saturating_sub(target.count);
    let current = by_worth(current);
    let (extra, kept) = current.split_at(excess);
    step.remove.extend(extra.iter().map(|copy| copy.id.clone()));
    if !old.is_empty() {
        step.remove.extend(leaving(target, kept, &by_worth(old)));
    } else if excess == 0 {
        step.restart = restarting(target, kept);
    }
    step
}

/// Old instances that may go now: all that are not ready, and as many ready ones as the floor
/// leaves.
fn leaving(target: &Target, kept: &[&Copy], old: &[&Copy]) -> Vec<String> {
    if !target.up {
        return old.iter().map(|copy| copy.id.clone()).collect();
    }
    let floor = target.count.saturating_sub(target.max_unavailable);
    let ready = kept.iter().chain(old).filter(|copy| copy.ready).count();
    let mut spare = ready.saturating_sub(floor);
    let mut chosen = Vec::new();
    for copy in old {
        if copy.ready && spare == 0 {
            continue;
        }
        spare -= usize::from(copy.ready);
        chosen.push(copy.id.clone());
    }
    chosen
}

/// Instances that may be restarted now: all that are not ready, and of the ready ones as many as
/// may be missing, but at least one.
fn restarting(target: &Target, current: &[&Copy]) -> Vec<String> {
    let behind = current.iter().filter(|copy| copy.restarts < target.restarts);
    if !target.up {
        return behind.map(|copy| copy.id.clone()).collect();
    }
    let missing = current.iter().filter(|copy| !copy.ready).count();
    let mut spare = target.max_unavailable.max(1).saturating_sub(missing);
    let mut chosen = Vec::new();
    for copy in behind {
        if !copy.ready {
            chosen.push(copy.id.clone());
        } else if spare > 0 {
            spare -= 1;
            chosen.push(copy.id.clone());
        }
    }
    chosen
}
