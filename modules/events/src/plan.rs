//! What one run for a subscription sends, as a function of what waits, what happened since, and the time.
//!
//! # Invariants
//! - `EVT-2` Events of one subject are sent in order, one after the other; one that fails holds back the later ones of its subject
//!   and no others.
//! - `EVT-5` What waits for a subscription is bounded, in rows and in bytes: beyond it, events stay in the outbox, and the cursor
//!   before them.

use std::collections::{BTreeMap, BTreeSet};

use crate::records::{DeliveryRow, ProgressRow};

/// Rows that wait for one subscription at most. A replay may add as many again.
pub(crate) const WAITING_MAX: usize = 1_000;
/// Bytes of their data at most. A replay may add as many again.
pub(crate) const WAITING_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Events that one run takes up at most.
const BATCH_MAX: usize = 64;
/// Bytes of their data at most, but for a single one: what may be written back fits into a transaction.
const BATCH_BYTES_MAX: u64 = 384 * 1024;
/// Subjects that must fail without a success between before the receiver itself is taken to be down.
const DOWN_SUBJECTS: usize = 3;

/// An event in a run.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Item {
    pub row: DeliveryRow,
    /// It waited already; otherwise it comes from the outbox.
    pub is_kept: bool,
}

/// What a run is to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// To be sent: within a chain in order, each only after the one before it was delivered.
    pub chains: Vec<Vec<Item>>,
    /// Taken from the outbox, to wait behind others of their subject.
    pub held: Vec<DeliveryRow>,
    /// The event up to which the outbox was read.
    pub cursor: u64,
    /// There is more to do at once.
    pub more: bool,
    /// Logical milliseconds at which something is due that waits; `None`: nothing is.
    pub next_due: Option<u64>,
    /// The receiver itself seems to be down: one event is tried, and nothing new is taken up.
    pub is_down: bool,
}

/// What happened behind the cursor, as far as it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct News {
    /// What the subscription asks for, in order.
    pub events: Vec<DeliveryRow>,
    /// The number up to which events were looked at.
    pub until: u64,
    /// There are others behind it.
    pub more: bool,
}

struct Planner<'a> {
    progress: &'a ProgressRow,
    now: u64,
    plan: Plan,
    taken: usize,
    bytes: u64,
    /// Of each subject that has a chain: where it is.
    chains: BTreeMap<String, usize>,
    /// Subjects of which something waits and is not sent now.
    blocked: BTreeSet<String>,
}

fn earlier(one: Option<u64>, other: u64) -> Option<u64> {
    Some(one.map_or(other, |one| one.min(other)))
}

/// Whether the receiver itself seems to be down.
pub(crate) fn is_down(progress: &ProgressRow, rows: &[DeliveryRow]) -> bool {
    let is_later =
        |row: &DeliveryRow| progress.success_at.is_none_or(|success| row.last_at > success);
    let failed = rows.iter().filter(|row| row.attempts > 0 && is_later(row));
    failed.map(|row| &row.event.subject).collect::<BTreeSet<_>>().len() >= DOWN_SUBJECTS
}

/// What may wait for a subscription beside what does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub rows: usize,
    pub bytes: u64,
}

impl Room {
    /// Up to so many rows and bytes.
    pub fn beside(rows: &[DeliveryRow], (most, bytes_most): (usize, u64)) -> Self {
        let bytes = rows.iter().map(|row| row.event.bytes).fold(0, u64::saturating_add);
        Self { rows: most.saturating_sub(rows.len()), bytes: bytes_most.saturating_sub(bytes) }
    }

    /// What is left behind another one; `None`: that does not fit.
    pub fn with(self, row: &DeliveryRow) -> Option<Self> {
        let (rows, bytes) = (self.rows.checked_sub(1)?, self.bytes.checked_sub(row.event.bytes)?);
        Some(Self { rows, bytes })
    }
}

/// Plans a run.
pub(crate) fn plan(progress: &ProgressRow, rows: &[DeliveryRow], news: News, now: u64) -> Plan {
    let plan =
        Plan { cursor: progress.cursor, is_down: is_down(progress, rows), ..Plan::default() };
    let (chains, blocked) = (BTreeMap::new(), BTreeSet::new());
    let mut planner = Planner { progress, now, plan, taken: 0, bytes: 0, chains, blocked };
    if now < progress.hold_until {
        planner.plan.next_due = Some(progress.hold_until);
        return planner.plan;
    }
    if planner.plan.is_down {
        planner.probe(rows);
        return planner.plan;
    }
    for row in rows {
        planner.kept(row);
    }
    planner.news(news, Room::beside(rows, (WAITING_MAX, WAITING_BYTES_MAX)));
    planner.plan
}

impl Planner<'_> {
    fn is_due(&self, row: &DeliveryRow) -> bool {
        row.attempts == 0 || row.due <= self.now || row.last_at < self.progress.recovered_at
    }

    fn has_room(&self, row: &DeliveryRow) -> bool {
        let bytes = self.bytes.saturating_add(row.event.bytes);
        self.taken == 0 || (self.taken < BATCH_MAX && bytes <= BATCH_BYTES_MAX)
    }

    fn take(&mut self, row: DeliveryRow, is_kept: bool) {
        self.taken += 1;
        self.bytes = self.bytes.saturating_add(row.event.bytes);
        let subject = row.event.subject.clone();
        let item = Item { row, is_kept };
        match self.chains.get(&subject).and_then(|at| self.plan.chains.get_mut(*at)) {
            Some(chain) => chain.push(item),
            None => {
                self.chains.insert(subject, self.plan.chains.len());
                self.plan.chains.push(vec![item]);
            }
        }
    }

    /// Of a receiver that is down, the event that has been due for longest, at the time that is set for trying it.
    fn probe(&mut self, rows: &[DeliveryRow]) {
        let mut seen = BTreeSet::new();
        let heads = rows.iter().filter(|row| seen.insert(&row.event.subject));
        // What is sent to try it has no number.
        let tried = heads.filter(|row| row.attempts > 0 || row.event.seq == 0);
        let Some(head) = tried.min_by_key(|row| row.due) else { return };
        let at = match self.progress.probe_at {
            _ if head.attempts == 0 => self.now,
            0 => head.due,
            at => at,
        };
        if at <= self.now {
            self.take(head.clone(), true);
        }
        self.plan.next_due = Some(at);
    }

    fn kept(&mut self, row: &DeliveryRow) {
        let subject = &row.event.subject;
        // EVT-2
        if self.blocked.contains(subject) {
            return;
        }
        let is_head = !self.chains.contains_key(subject);
        if is_head && !self.is_due(row) {
            self.plan.next_due = earlier(self.plan.next_due, row.due);
        } else if self.has_room(row) {
            return self.take(row.clone(), true);
        } else {
            self.plan.more = true;
        }
        self.blocked.insert(subject.clone());
    }

    fn news(&mut self, news: News, room: Room) {
        let mut room = room;
        for row in news.events {
            let seq = row.event.seq;
            // EVT-5
            let Some(left) = room.with(&row) else { return };
            if !self.has_room(&row) {
                self.plan.more = true;
                return;
            }
            room = left;
            if self.blocked.contains(&row.event.subject) {
                self.taken += 1;
                self.bytes = self.bytes.saturating_add(row.event.bytes);
                self.plan.held.push(row);
            } else {
                self.take(row, false);
            }
            self.plan.cursor = seq;
        }
        self.plan.cursor = self.plan.cursor.max(news.until);
        self.plan.more |= news.more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::waits;

    fn failed(seq: u64, subject: &str, due: u64) -> DeliveryRow {
        DeliveryRow { attempts: 1, first_at: 10, last_at: 10, due, ..waits(seq, subject) }
    }

    fn at(cursor: u64) -> ProgressRow {
        ProgressRow { cursor, ..ProgressRow::default() }
    }

    fn news(rows: &[DeliveryRow]) -> News {
        let until = rows.last().map_or(0, |row| row.event.seq);
        News { events: rows.to_vec(), until, more: false }
    }

    fn chains(plan: &Plan) -> Vec<Vec<u64>> {
        let numbers = |chain: &Vec<Item>| chain.iter().map(|item| item.row.event.seq).collect();
        plan.chains.iter().map(numbers).collect()
    }

    #[test]
    fn a_failing_subject_holds_back_its_own_and_no_other() {
        let rows = [failed(1, "a", 100), waits(2, "a"), failed(3, "b", 20)];
        let plan = plan(&at(3), &rows, news(&[waits(4, "a"), waits(5, "b"), waits(6, "c")]), 50);
        assert_eq!(chains(&plan), [vec![3, 5], vec![6]], "EVT-2");
        let held: Vec<u64> = plan.held.iter().map(|row| row.event.seq).collect();
        assert_eq!((held, plan.cursor, plan.next_due), (vec![4], 6, Some(100)), "EVT-2");
    }

    #[test]
    fn a_receiver_that_is_down_is_tried_with_one_event_and_told_nothing_new() {
        let rows = [failed(1, "a", 30), failed(2, "b", 20), failed(3, "c", 90), waits(4, "c")];
        let down = plan(&at(4), &rows, news(&[waits(5, "d")]), 50);
        assert!(down.is_down);
        assert_eq!((chains(&down), down.cursor), (vec![vec![2]], 4));
        let waiting = ProgressRow { probe_at: 60, ..at(4) };
        let down = plan(&waiting, &rows, news(&[]), 50);
        assert_eq!((chains(&down).len(), down.next_due), (0, Some(60)), "no row's own time counts");
        let tried = waits(0, "subscription/p");
        let down = plan(&waiting, &[rows.as_slice(), &[tried]].concat(), news(&[]), 50);
        assert_eq!(chains(&down), [vec![0]], "whoever asks for a test gets it at once");
        // One success says that it is back: what failed before is due at once.
        let back = ProgressRow { success_at: Some(11), recovered_at: 11, ..at(4) };
        let plan = plan(&back, &rows, news(&[waits(5, "d")]), 12);
        assert_eq!(chains(&plan), [vec![1], vec![2], vec![3, 4], vec![5]]);
    }

    #[test]
    fn one_subject_alone_does_not_make_a_receiver_down() {
        let rows = [failed(1, "a", 100), failed(2, "a", 100), failed(3, "b", 100)];
        assert_eq!(chains(&plan(&at(3), &rows, news(&[waits(4, "c")]), 50)), [vec![4]]);
    }

    #[test]
    fn what_waits_is_bounded_and_the_cursor_stays_before_the_rest() {
        let rows: Vec<DeliveryRow> = std::iter::once(failed(1, "a", 100))
            .chain((2..=WAITING_MAX as u64 - 1).map(|seq| waits(seq, "a")))
            .collect();
        let new = [waits(2_001, "b"), waits(2_002, "b")];
        let plan = plan(&at(2_000), &rows, news(&new), 50);
        assert_eq!((chains(&plan), plan.cursor), (vec![vec![2_001]], 2_001), "EVT-5");
        assert!(!plan.more, "it waits for what is due, and does not run in circles");
    }

    #[test]
    fn the_bytes_of_what_waits_are_bounded_too() {
        let mut rows = vec![failed(1, "a", 100), waits(2, "a")];
        rows[1].event.bytes = WAITING_BYTES_MAX - 12;
        let mut new = [waits(3, "b"), waits(4, "b"), waits(5, "b")];
        new[1].event.bytes = 9;
        let plan = plan(&at(2), &rows, news(&new), 50);
        assert_eq!(
            (chains(&plan), plan.cursor),
            (vec![vec![3]], 3),
            "EVT-5: and none overtakes it"
        );
        assert!(!plan.more, "it waits for what is due, and does not run in circles");
    }

    #[test]
    fn a_run_takes_up_no_more_than_fits_into_a_transaction() {
        let many: Vec<DeliveryRow> = (1..=200).map(|seq| waits(seq, &format!("s{seq}"))).collect();
        let first = plan(&at(0), &[], news(&many), 50);
        assert_eq!((first.chains.len(), first.cursor, first.more), (BATCH_MAX, 64, true));
        let mut large = many[..3].to_vec();
        for row in &mut large {
            row.event.bytes = BATCH_BYTES_MAX - 1;
        }
        let plan = plan(&at(0), &[], news(&large), 50);
        assert_eq!((chains(&plan), plan.cursor, plan.more), (vec![vec![1]], 1, true));
    }

    #[test]
    fn nothing_is_sent_before_the_time_that_the_receiver_asked_for() {
        let holds = ProgressRow { hold_until: 60, ..at(1) };
        let plan = plan(&holds, &[waits(1, "a")], news(&[waits(2, "b")]), 50);
        assert_eq!((plan.chains.len(), plan.cursor, plan.next_due), (0, 1, Some(60)));
    }
}
