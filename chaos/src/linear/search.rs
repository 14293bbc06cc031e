//! The search for an order: depth first, with a memory of what was visited.
//!
//! Four rules keep it short, and none takes an order away that exists:
//! * One who only looks, and is answered as now, has its moment now: nothing is gained by waiting.
//! * Versions rise: what would go past the version that another named is not tried before it.
//! * What may not have happened is tried last.
//! * A filler is tried only where a compare-and-swap must find something else and does not yet, and
//!   of the plain ones only the first, for they are alike.

#![expect(
    clippy::disallowed_types,
    reason = "the set is only asked whether something is in it; its order is never seen"
)]

use std::collections::HashSet;

use super::{
    model::{State, Step},
    prepare::{Definite, Prepared},
};

/// How a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// With an order.
    Order,
    /// There is none: all that returned before this operation has one, but not with it.
    Stuck {
        /// Its place in the history.
        op: usize,
    },
    /// The steps were spent.
    Spent,
}

/// Searches, and takes what it needs from `steps`.
pub(super) fn search(prepared: &Prepared, steps: &mut u64) -> Found {
    let mut search = Search::new(prepared);
    let found = search.run(*steps);
    *steps = steps.saturating_sub(search.steps);
    found
}

/// What is tried: in this order at each place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Definite(usize),
    Pending(usize),
}

struct Frame {
    choice: Choice,
    before: State,
    highest_before: usize,
    /// There was no other choice.
    forced: bool,
}

#[derive(PartialEq, Eq, Hash)]
struct Visited {
    state: State,
    /// The first that has no moment; then who behind it has one; then who of the pending has.
    set: Box<[u64]>,
}

struct Search<'a> {
    definite: &'a [Definite],
    prepared: &'a Prepared,
    /// Who has no moment yet, as a ring through the place behind the last.
    next: Vec<usize>,
    previous: Vec<usize>,
    done: Vec<u64>,
    /// The first without a moment.
    lowest: usize,
    /// The last with one.
    highest: usize,
    pending_done: Vec<u64>,
    state: State,
    stack: Vec<Frame>,
    visited: HashSet<Visited>,
    steps: u64,
    /// The latest first return that was ever ahead.
    farthest: Option<(u64, usize)>,
    candidates: Vec<usize>,
}

impl<'a> Search<'a> {
    fn new(prepared: &'a Prepared) -> Self {
        let count = prepared.definite.len();
        Self {
            definite: &prepared.definite,
            prepared,
            next: (1..=count).chain([0]).collect(),
            previous: [count].into_iter().chain(0..count).collect(),
            done: vec![0; count / 64 + 1],
            lowest: 0,
            highest: 0,
            pending_done: vec![0; prepared.pending.len().div_ceil(64)],
            state: State::default(),
            stack: Vec::new(),
            visited: HashSet::new(),
            steps: 0,
            farthest: None,
            candidates: Vec::new(),
        }
    }

    /// The place in the ring that belongs to nobody.
    fn head(&self) -> usize {
        self.definite.len()
    }

    fn run(&mut self, steps_max: u64) -> Found {
        let mut after = None;
        loop {
            if self.next[self.head()] == self.head() {
                return Found::Order;
            }
            if self.steps >= steps_max {
                return Found::Spent;
            }
            after = match self.advance(after) {
                true => None,
                false => match self.back() {
                    Some(choice) => Some(choice),
                    None => {
                        let op = self.farthest.map_or(0, |(_, place)| self.definite[place].op);
                        return Found::Stuck { op };
                    }
                },
            };
        }
    }

    /// Gives the next possible operation a moment; false: there is none here (after that one).
    fn advance(&mut self, after: Option<Choice>) -> bool {
        let (first_return, version_min) = self.look();
        if after.is_none() {
            let identity = |&&place: &&usize| {
                let step = &self.definite[place].step;
                !matches!(step, Step::Put { .. }) && self.state.after(step) == Some(self.state)
            };
            if let Some(place) = self.candidates.iter().find(identity).copied() {
                return self.enter(Choice::Definite(place), self.state, true);
            }
        }
        if !matches!(after, Some(Choice::Pending(_))) {
            let from = match after {
                Some(Choice::Definite(place)) => {
                    self.candidates.partition_point(|candidate| *candidate <= place)
                }
                _ => 0,
            };
            for index in from..self.candidates.len() {
                let place = self.candidates[index];
                let step = &self.definite[place].step;
                self.steps += 1;
                if step.version().is_some_and(|version| version > version_min) {
                    continue;
                }
                let Some(state) = self.state.after(step) else { continue };
                if self.enter(Choice::Definite(place), state, false) {
                    return true;
                }
            }
        }
        let from = match after {
            Some(Choice::Pending(place)) => place + 1,
            _ => 0,
        };
        self.advance_pending(from, first_return)
    }

    fn advance_pending(&mut self, from: usize, first_return: u64) -> bool {
        if from >= self.prepared.pending.len() {
            return false;
        }
        let blocked = self.candidates.iter().any(|place| {
            let step = &self.definite[*place].step;
            matches!(step, Step::Differ(_)) && self.state.after(step).is_none()
        });
        let mut plain_before = false;
        for (place, pending) in self.prepared.pending.iter().enumerate() {
            if pending.call > first_return {
                break;
            }
            if self.pending_done[place / 64] & 1 << (place % 64) != 0 {
                continue;
            }
            if pending.filler {
                let plain = matches!(pending.step, Step::Put { when: None, .. });
                if !blocked || (plain && plain_before) {
                    continue;
                }
                plain_before |= plain;
            }
            if place < from {
                continue;
            }
            self.steps += 1;
            let Some(state) = self.state.after(&pending.step) else { continue };
            if self.enter(Choice::Pending(place), state, false) {
                return true;
            }
        }
        false
    }

    /// Finds who may be next: who was called before the first return of those without a moment.
    /// Answers that return, and the lowest version that one of them names.
    fn look(&mut self) -> (u64, u64) {
        self.candidates.clear();
        let (mut first_return, mut version_min) = (u64::MAX, u64::MAX);
        let mut first = None;
        let mut place = self.next[self.head()];
        while place != self.head() {
            let definite = &self.definite[place];
            if definite.call > first_return {
                break;
            }
            // Of two the later: a write that returns with the one who saw it comes before that one.
            if definite.ret <= first_return {
                (first_return, first) = (definite.ret, Some(place));
            }
            version_min = version_min.min(definite.step.version().unwrap_or(u64::MAX));
            self.candidates.push(place);
            place = self.next[place];
        }
        self.steps += 1;
        if let Some(first) = first
            && self.farthest.is_none_or(|(farthest, _)| farthest < first_return)
        {
            self.farthest = Some((first_return, first));
        }
        (first_return, version_min)
    }

    /// Gives `choice` its moment, unless that leads to where the search has been.
    fn enter(&mut self, choice: Choice, state: State, forced: bool) -> bool {
        let highest_before = self.highest;
        match choice {
            Choice::Definite(place) => {
                self.done[place / 64] |= 1 << (place % 64);
                let (previous, next) = (self.previous[place], self.next[place]);
                self.next[previous] = next;
                self.previous[next] = previous;
                self.highest = self.highest.max(place);
                self.lowest = self.next[self.head()];
            }
            Choice::Pending(place) => self.pending_done[place / 64] |= 1 << (place % 64),
        }
        let before = std::mem::replace(&mut self.state, state);
        let visited = Visited { state, set: self.set() };
        if !self.visited.insert(visited) {
            self.undo(choice, before, highest_before);
            return false;
        }
        self.stack.push(Frame { choice, before, highest_before, forced });
        true
    }

    fn undo(&mut self, choice: Choice, before: State, highest_before: usize) {
        match choice {
            Choice::Definite(place) => {
                self.done[place / 64] &= !(1 << (place % 64));
                let (previous, next) = (self.previous[place], self.next[place]);
                self.next[previous] = place;
                self.previous[next] = place;
                self.lowest = self.next[self.head()];
            }
            Choice::Pending(place) => self.pending_done[place / 64] &= !(1 << (place % 64)),
        }
        self.highest = highest_before;
        self.state = before;
    }

    /// Takes moments back until there is another choice; answers after which.
    fn back(&mut self) -> Option<Choice> {
        while let Some(frame) = self.stack.pop() {
            self.undo(frame.choice, frame.before, frame.highest_before);
            if !frame.forced {
                return Some(frame.choice);
            }
        }
        None
    }

    fn set(&self) -> Box<[u64]> {
        let low = self.lowest / 64;
        let behind = self.done.get(low..=self.highest / 64).unwrap_or_default();
        let mut set = Vec::with_capacity(1 + behind.len() + self.pending_done.len());
        set.push(self.lowest as u64);
        // What lies before the first without a moment is told by its place.
        set.extend_from_slice(behind);
        set.extend_from_slice(&self.pending_done);
        set.into_boxed_slice()
    }
}
