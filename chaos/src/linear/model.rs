//! One register, one operation after the other: what is possible, and what it leads to.

use std::collections::BTreeMap;

use super::{Expected, Op, Outcome, What};

/// What a register holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct State {
    pub(super) value: Option<u64>,
    /// Its version if that is known; otherwise its version is higher than this.
    version: u64,
    known: bool,
}

/// What an operation that may have happened needs and does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The register held exactly this.
    See { value: Option<u64>, version: Option<u64> },
    /// It held anything else.
    Differ(Condition),
    /// It holds this from now on, if the condition holds now.
    Put { when: Option<Condition>, value: Option<u64>, version: Option<u64> },
}

/// What a compare-and-swap compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Value(Option<u64>),
    /// A version, and the value that others saw under it.
    Version {
        version: u64,
        named: Option<u64>,
    },
}

/// Which value has which version, as far as somebody was told.
pub(super) fn names(ops: &[Op]) -> BTreeMap<u64, u64> {
    let mut names = BTreeMap::new();
    for op in ops {
        let Outcome::Ok { value: read, version: Some(version) } = op.outcome else { continue };
        let value = match op.what {
            What::Read => read,
            What::Write { value } | What::Swap { value, .. } => Some(value),
            What::Delete => None,
        };
        if let Some(value) = value {
            names.entry(version).or_insert(value);
        }
    }
    names
}

impl Step {
    /// Of an operation; none: it says nothing and does nothing.
    pub(super) fn of(op: &Op, names: &BTreeMap<u64, u64>) -> Option<Self> {
        let condition = |expected| match expected {
            Expected::Value(value) => Condition::Value(value),
            Expected::Version(0) => Condition::Value(None),
            Expected::Version(version) => {
                Condition::Version { version, named: names.get(&version).copied() }
            }
        };
        let version = match op.outcome {
            Outcome::Failed => return None,
            Outcome::Mismatch => {
                let What::Swap { expected, .. } = op.what else { return None };
                return Some(Self::Differ(condition(expected)));
            }
            Outcome::Unknown => None,
            Outcome::Ok { version, .. } => version,
        };
        Some(match (op.what, op.outcome) {
            (What::Read, Outcome::Ok { value, .. }) => Self::See { value, version },
            (What::Read, _) => return None,
            (What::Write { value }, _) => Self::Put { when: None, value: Some(value), version },
            (What::Delete, _) => Self::Put { when: None, value: None, version },
            (What::Swap { expected, value }, _) => {
                Self::Put { when: Some(condition(expected)), value: Some(value), version }
            }
        })
    }

    /// The version that it names as that of its moment.
    pub(super) fn version(&self) -> Option<u64> {
        match *self {
            Self::See { value: Some(_), version } | Self::Put { value: Some(_), version, .. } => {
                version
            }
            _ => None,
        }
    }

    /// The value that must be there for it: `Some(None)` is nothing.
    pub(super) fn observes(&self) -> Option<Option<u64>> {
        let condition = match *self {
            Self::See { value, .. } => return Some(value),
            Self::Differ(_) | Self::Put { when: None, .. } => return None,
            Self::Put { when: Some(condition), .. } => condition,
        };
        match condition {
            Condition::Value(value) => Some(value),
            Condition::Version { named, .. } => named.map(Some),
        }
    }

    /// Whether it compares with a version that nobody was told the value of.
    pub(super) fn is_nameless(&self) -> bool {
        matches!(
            self,
            Self::Put { when: Some(Condition::Version { named: None, .. }), .. }
                | Self::Differ(Condition::Version { named: None, .. })
        )
    }
}

impl State {
    /// What it leads to; none: this is not possible now.
    pub(super) fn after(&self, step: &Step) -> Option<Self> {
        match *step {
            Step::See { value, version } => {
                let same = self.value == value;
                match (same, value, version) {
                    (true, Some(_), Some(version)) => self.at(version),
                    (same, ..) => same.then_some(*self),
                }
            }
            Step::Differ(condition) => (!self.surely(condition)).then_some(*self),
            Step::Put { when, value, version } => {
                let now = match when {
                    Some(condition) => self.given(condition)?,
                    None => *self,
                };
                match (value, version) {
                    (Some(_), Some(version)) => {
                        (version > now.version).then_some(Self { value, version, known: true })
                    }
                    (_, version) => {
                        let version = version.unwrap_or(0).max(now.version);
                        Some(Self { value, version, known: false })
                    }
                }
            }
        }
    }

    /// This state, if its version can be that one.
    fn at(&self, version: u64) -> Option<Self> {
        let possible = if self.known { version == self.version } else { version > self.version };
        possible.then_some(Self { value: self.value, version, known: true })
    }

    /// This state, if the condition can hold.
    fn given(&self, condition: Condition) -> Option<Self> {
        match condition {
            Condition::Value(value) => (self.value == value).then_some(*self),
            Condition::Version { version, named } => {
                let value = self.value?;
                if named.is_some_and(|named| named != value) {
                    return None;
                }
                self.at(version)
            }
        }
    }

    /// Whether the condition holds for certain.
    fn surely(&self, condition: Condition) -> bool {
        match condition {
            Condition::Value(value) => self.value == value,
            Condition::Version { version, .. } => {
                self.value.is_some() && self.known && self.version == version
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(value: u64, version: Option<u64>) -> Step {
        Step::Put { when: None, value: Some(value), version }
    }

    fn see(value: u64, version: u64) -> Step {
        Step::See { value: Some(value), version: Some(version) }
    }

    fn swap(version: u64, named: Option<u64>) -> Step {
        let when = Some(Condition::Version { version, named });
        Step::Put { when, value: Some(9), version: None }
    }

    #[test]
    fn a_register_begins_empty_and_holds_what_was_written_last() {
        let empty = State::default();
        assert_eq!(empty.after(&Step::See { value: None, version: None }), Some(empty));
        let one = empty.after(&put(1, Some(5))).unwrap();
        assert!(one.after(&see(1, 5)).is_some());
        assert_eq!(one.after(&see(2, 5)), None);
        assert_eq!(one.after(&see(1, 6)), None);
        assert_eq!(one.after(&Step::See { value: None, version: None }), None);
    }

    #[test]
    fn versions_rise() {
        let one = State::default().after(&put(1, Some(5))).unwrap();
        assert_eq!(one.after(&put(2, Some(5))), None);
        assert!(one.after(&put(2, Some(6))).is_some());
        let untold = one.after(&put(2, None)).unwrap();
        assert_eq!(untold.after(&see(2, 5)), None);
        let told = untold.after(&see(2, 8)).unwrap();
        assert_eq!(told.after(&see(2, 9)), None);
    }

    #[test]
    fn a_swap_needs_its_version_and_the_value_that_goes_with_it() {
        let one = State::default().after(&put(1, Some(5))).unwrap();
        assert!(one.after(&swap(5, None)).is_some());
        assert_eq!(one.after(&swap(4, None)), None);
        let untold = State::default().after(&put(1, None)).unwrap();
        assert!(untold.after(&swap(5, Some(1))).is_some());
        assert_eq!(untold.after(&swap(5, Some(2))), None);
        assert_eq!(State::default().after(&swap(5, None)), None);
    }

    #[test]
    fn a_mismatch_needs_something_else() {
        let one = State::default().after(&put(1, Some(5))).unwrap();
        let differ = |version| Step::Differ(Condition::Version { version, named: None });
        assert_eq!(one.after(&differ(5)), None);
        assert_eq!(one.after(&differ(4)), Some(one));
        assert_eq!(one.after(&Step::Differ(Condition::Value(Some(1)))), None);
        assert_eq!(State::default().after(&Step::Differ(Condition::Value(None))), None);
    }

    #[test]
    fn a_deletion_leaves_nothing_and_versions_go_on_from_there() {
        let one = State::default().after(&put(1, Some(5))).unwrap();
        let gone = one.after(&Step::Put { when: None, value: None, version: None }).unwrap();
        assert!(gone.after(&Step::See { value: None, version: None }).is_some());
        assert_eq!(gone.after(&put(2, Some(4))), None);
        assert!(gone.after(&put(2, Some(6))).is_some());
    }
}
