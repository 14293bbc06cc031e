//! What a run for a subscription leaves, as a function of what it found, what became of each attempt, and the time.
//!
//! # Invariants
//! - `EVT-3` The cursor moves in the transaction that keeps what was not delivered: every event behind which it stands was delivered,
//!   waits, is a dead letter, is in a gap that is noted, or was not asked for.

use crate::{
    outcome::Attempt,
    plan::{Item, Plan},
    records::{DeliveryRow, LetterRow, ProgressRow, Reason, StoppedRow},
    schedule::{PROBE_MS_MAX, TOTAL_MS, pause_ms},
};

/// The time at the end of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Logical milliseconds.
    pub logical: u64,
    /// Wall-clock milliseconds.
    pub wall: u64,
}

/// What a run leaves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Left {
    pub progress: ProgressRow,
    /// Rows that were there and are gone.
    pub gone: Vec<DeliveryRow>,
    /// Rows that were there and are changed.
    pub changed: Vec<DeliveryRow>,
    /// Rows that were not there.
    pub added: Vec<DeliveryRow>,
    pub letters: Vec<LetterRow>,
    /// The receiver wants no more, since this run.
    pub disabled: Option<StoppedRow>,
}

impl Left {
    /// Notes what became of each item.
    pub fn of(
        subscription: &str,
        seen: &ProgressRow,
        plan: &Plan,
        done: Vec<(Item, Attempt)>,
        now: Now,
    ) -> Self {
        let mut left = Self {
            progress: ProgressRow { cursor: plan.cursor, ..seen.clone() },
            added: plan.held.clone(),
            ..Self::default()
        };
        for (item, attempt) in done {
            left.note(subscription, item, attempt, now, plan.is_down);
        }
        left
    }

    fn note(&mut self, subscription: &str, item: Item, attempt: Attempt, now: Now, was_down: bool) {
        let Item { mut row, is_kept } = item;
        let (error, hold_ms, gone) = match attempt {
            Attempt::Delivered => {
                self.delivered(now, was_down);
                if is_kept {
                    self.gone.push(row);
                }
                return;
            }
            Attempt::Skipped => {
                if !is_kept {
                    self.added.push(row);
                }
                return;
            }
            Attempt::Failed { error, hold_ms, gone } => (error, hold_ms, gone),
        };
        self.failed(&error, hold_ms, gone, now);
        if was_down {
            let probes = self.progress.probes.saturating_add(1);
            let pause = pause_ms(subscription, "probe", probes).min(PROBE_MS_MAX);
            self.progress.probes = probes;
            self.progress.probe_at = now.logical.saturating_add(pause);
        }
        if row.attempts == 0 {
            row.first_at = now.logical;
        }
        row.attempts = row.attempts.saturating_add(1);
        row.last_at = now.logical;
        row.error = error;
        let pause = pause_ms(subscription, &row.event.id, row.attempts).max(hold_ms);
        row.due = now.logical.saturating_add(pause);
        if now.logical.saturating_sub(row.first_at) >= TOTAL_MS && !gone {
            if is_kept {
                self.gone.push(row.clone());
            }
            self.letters.push(LetterRow {
                subscription: subscription.to_owned(),
                reason: Reason::Exhausted,
                delivery: Some(row),
                gap: None,
                dead_at: now.logical,
                dead_at_ms: now.wall,
            });
        } else if is_kept {
            self.changed.push(row);
        } else {
            self.added.push(row);
        }
    }

    fn delivered(&mut self, now: Now, was_down: bool) {
        let progress = &mut self.progress;
        progress.delivered += 1;
        progress.delivered_at_ms = now.wall;
        progress.success_at = Some(now.logical);
        (progress.probes, progress.probe_at) = (0, 0);
        if was_down {
            progress.recovered_at = now.logical;
        }
    }

    fn failed(&mut self, error: &str, hold_ms: u64, gone: bool, now: Now) {
        let progress = &mut self.progress;
        progress.failed += 1;
        error.clone_into(&mut progress.last_error);
        progress.failing_since_ms.get_or_insert(now.wall);
        if hold_ms > 0 {
            progress.hold_until = progress.hold_until.max(now.logical.saturating_add(hold_ms));
        }
        if gone {
            let reason = "the receiver answered 410: it asks for no more".to_owned();
            self.disabled = Some(StoppedRow { reason, at_ms: now.wall });
            progress.disabled.clone_from(&self.disabled);
        }
    }

    /// A gap of events that are not known any more.
    pub fn gap(&mut self, subscription: &str, gap: (u64, u64), now: Now) {
        self.progress.cursor = gap.1;
        self.letters.push(LetterRow {
            subscription: subscription.to_owned(),
            reason: Reason::Gap,
            delivery: None,
            gap: Some(gap),
            dead_at: now.logical,
            dead_at_ms: now.wall,
        });
    }

    /// What waits afterwards; with it, whether it is failing is known.
    pub fn close(&mut self, rows: &[DeliveryRow]) -> Vec<DeliveryRow> {
        let mut after: Vec<DeliveryRow> = rows
            .iter()
            .filter(|row| !self.gone.iter().any(|gone| gone.event.id == row.event.id))
            .map(|row| {
                let changed = self.changed.iter().find(|changed| changed.event.id == row.event.id);
                changed.unwrap_or(row).clone()
            })
            .chain(self.added.iter().cloned())
            .collect();
        after.sort_by_key(DeliveryRow::key);
        if !after.iter().any(|row| row.attempts > 0) {
            self.progress.failing_since_ms = None;
            self.progress.last_error.clear();
        }
        after
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::waits;

    const NOW: Now = Now { logical: 1_000, wall: 9_000 };

    fn left(items: Vec<(Item, Attempt)>) -> Left {
        let plan = Plan { cursor: 9, ..Plan::default() };
        Left::of("acme/p", &ProgressRow::default(), &plan, items, NOW)
    }

    fn item(seq: u64, is_kept: bool) -> Item {
        Item { row: waits(seq, "a"), is_kept }
    }

    #[test]
    fn everything_behind_the_cursor_is_somewhere() {
        let mut left = left(vec![
            (item(1, true), Attempt::Delivered),
            (item(2, true), Attempt::failed("no")),
            (item(3, true), Attempt::Skipped),
            (item(4, false), Attempt::Delivered),
            (item(5, false), Attempt::failed("no")),
            (item(6, false), Attempt::Skipped),
        ]);
        let rows: Vec<DeliveryRow> = (1..=3).map(|seq| waits(seq, "a")).collect();
        let after: Vec<u64> = left.close(&rows).iter().map(|row| row.event.seq).collect();
        assert_eq!(after, [2, 3, 5, 6], "EVT-3");
        assert_eq!((left.progress.cursor, left.progress.delivered), (9, 2));
        assert!(left.progress.failing_since_ms.is_some());
    }

    #[test]
    fn what_was_tried_for_long_enough_is_a_dead_letter() {
        let tried = |first_at| {
            let row = DeliveryRow { attempts: 80, first_at, ..waits(2, "a") };
            let now = Now { logical: TOTAL_MS + 5, ..NOW };
            let failed = vec![(Item { row, is_kept: true }, Attempt::failed("no"))];
            Left::of("acme/p", &ProgressRow::default(), &Plan::default(), failed, now)
        };
        let (young, old) = (tried(6), tried(5));
        assert_eq!((young.letters.len(), young.changed.len()), (0, 1));
        assert_eq!((old.letters.len(), old.gone.len(), old.changed.len()), (1, 1, 0));
        assert_eq!(old.letters[0].delivery.as_ref().unwrap().attempts, 81);
    }

    #[test]
    fn a_receiver_that_asks_for_no_more_is_disabled_and_its_event_kept() {
        let gone = Attempt::Failed { error: "410".into(), hold_ms: 0, gone: true };
        let left = left(vec![(item(1, false), gone)]);
        assert!(left.progress.disabled.is_some() && left.disabled.is_some());
        assert_eq!((left.added.len(), left.letters.len()), (1, 0));
    }
}
