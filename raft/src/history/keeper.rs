//! The one who writes history: on a thread of its own, or as a task where nothing blocks.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use palisade_state::{Published, Rt, View};

use super::{
    HistorySizes, Shared,
    book::{Book, More, Range},
    feed::Feed,
    place::{Opened, Place},
    reading::Reader,
    resolve::resolve,
    scrub::Scrub,
    shelf::{MemShelf, ShelfError, Shelved},
};
use crate::offload::Disk;

/// Audit records, and events, in one batch.
const BATCH_MAX: usize = 2000;
/// Bytes of versions after which a batch is not put off.
const BATCH_BYTES: usize = 4 << 20;
/// Versions in one range of one batch, and bytes of them: what is written together takes several times its size in
/// memory until it is.
const RANGE_VERSIONS_MAX: usize = 20_000;
const RANGE_BYTES: usize = 1 << 20;
/// How long what came first waits before it is looked at: more of it comes.
const GATHER: Duration = Duration::from_millis(5);
/// Pause before something that may pass is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Steps of retention and of reading everything in one turn.
const STEPS_MAX: usize = 8;
/// How often a store is begun anew while a process runs; more often, and the disk is what is wrong.
const ASIDE_MAX: u32 = 3;

/// What the writer is made of.
pub(super) struct Parts {
    pub(super) feed: Arc<Feed>,
    pub(super) shared: Arc<Shared>,
    pub(super) published: Arc<Published>,
    pub(super) rt: Rt,
    pub(super) disk: Disk,
    /// `None`: in memory.
    pub(super) place: Option<Place>,
    pub(super) sizes: HistorySizes,
    /// Free space that is not history's to take.
    pub(super) reserve_bytes: u64,
}

/// See the module.
pub(super) struct Keeper {
    parts: Parts,
    book: Option<Book>,
    staged: VecDeque<Range>,
    staged_bytes: usize,
    /// Since when something waits to be written.
    since: Option<Duration>,
    not_before: Duration,
    set_aside: u32,
    /// The chain on the shelf was held against the one in state.
    is_checked: bool,
    is_off: bool,
    scrub: Scrub,
}

impl Keeper {
    /// One that has a book on this shelf already.
    #[cfg(test)]
    pub(super) fn over(parts: Parts, shelf: Arc<dyn super::shelf::Shelf>) -> Shelved<Self> {
        Ok(Self { book: Some(Book::open(shelf)?), ..Self::new(parts) })
    }

    pub(super) fn new(parts: Parts) -> Self {
        Self {
            parts,
            book: None,
            staged: VecDeque::new(),
            staged_bytes: 0,
            since: None,
            not_before: Duration::ZERO,
            set_aside: 0,
            is_checked: false,
            is_off: false,
            scrub: Scrub::begin(),
        }
    }

    /// Writes until the queue is closed, and what is left then. Blocks.
    pub(super) fn run(mut self) {
        loop {
            let limit = self.until_next();
            self.parts.feed.wait(limit);
            self.parts.feed.rest(GATHER);
            if self.turn() {
                break;
            }
        }
        self.close();
    }

    /// The same as a task.
    pub(super) async fn run_in_place(mut self) {
        loop {
            self.parts.feed.waited().await;
            self.parts.rt.sleep(self.parts.sizes.linger).await;
            self.since = Some(Duration::ZERO);
            if self.turn() {
                break;
            }
        }
        self.close();
    }

    /// When there is something to do by itself.
    fn until_next(&self) -> Option<Duration> {
        let now = self.parts.rt.now();
        if self.is_off {
            return None;
        }
        if self.book.is_none() {
            return Some(self.not_before.saturating_sub(now));
        }
        let due = self.since.map(|since| (since + self.parts.sizes.linger).max(self.not_before));
        let scrub = (self.scrub != Scrub::Done && self.is_checked).then_some(now + RETRY);
        due.into_iter().chain(scrub).min().map(|at| at.saturating_sub(now))
    }

    /// One look at everything; true when it was the last.
    pub(super) fn turn(&mut self) -> bool {
        let closed = self.gather();
        if let Some(what) = self.parts.shared.take_damage() {
            self.damaged(&ShelfError::Broken(what));
        }
        let now = self.parts.rt.now();
        if self.is_off || (now < self.not_before && !closed) {
            return closed;
        }
        let done = self.open_if_needed().and_then(|()| self.work(now, closed));
        if let Err(error) = done {
            self.damaged(&error);
        }
        closed
    }

    /// Takes what waits, or as much of it as is written together, and lets go of the views in it.
    fn gather(&mut self) -> bool {
        let taken = self.parts.feed.take(BATCH_BYTES);
        let now = self.parts.rt.now();
        if !taken.batches.is_empty() {
            self.since.get_or_insert(now);
        }
        let versions = !self.parts.sizes.retention.versions.is_zero();
        for batch in taken.batches {
            let last = batch.last;
            if versions && !self.is_off {
                let full = self.staged_bytes > self.parts.sizes.queue_bytes;
                // A range that begins behind its end says that everything up to there is missing.
                let range = if full {
                    Range { first: last + 1, last, ..Range::default() }
                } else {
                    resolve(batch)
                };
                self.stage(range);
            }
        }
        let reached = self.staged.back().map_or(0, |range| range.last);
        if versions && !self.is_off && taken.seen > reached && self.is_left_out(taken.seen) {
            self.stage(Range { first: taken.seen + 1, last: taken.seen, ..Range::default() });
        }
        taken.closed
    }

    /// Whether an entry was applied and never came here.
    fn is_left_out(&self, seen: u64) -> bool {
        self.book.as_ref().is_some_and(|book| seen > book.progress.through)
    }

    fn stage(&mut self, range: Range) {
        let bytes = range.bytes();
        self.staged_bytes += bytes;
        match self.staged.back_mut() {
            Some(last)
                if last.last + 1 == range.first
                    && range.first <= range.last
                    && last.versions.len() < RANGE_VERSIONS_MAX
                    && last.bytes() + bytes <= RANGE_BYTES =>
            {
                last.last = range.last;
                last.moments.extend(range.moments);
                last.versions.extend(range.versions);
            }
            _ => self.staged.push_back(range),
        }
    }

    /// The oldest of what is staged, as much as is written together.
    fn next_ranges(&mut self) -> Vec<Range> {
        let (mut ranges, mut bytes) = (vec![], 0);
        while bytes < RANGE_BYTES
            && let Some(range) = self.staged.pop_front()
        {
            bytes += range.bytes();
            ranges.push(range);
        }
        self.staged_bytes = self.staged_bytes.saturating_sub(bytes);
        ranges
    }

    fn open_if_needed(&mut self) -> Shelved<()> {
        if self.book.is_some() {
            return Ok(());
        }
        let opened = match &self.parts.place {
            Some(place) => place.open()?,
            None => Opened::Book(Book::open(Arc::new(MemShelf::default()))?),
        };
        match opened {
            Opened::Newer(why) => self.turn_off(why),
            Opened::Book(book) => {
                let progress = &book.progress;
                let (audit, events) = (progress.audit_last, progress.event_last);
                tracing::info!(audit, events, through = progress.through, "history is open");
                if let Some(place) = &self.parts.place
                    && let Some(aside) = place.aside().last()
                {
                    self.parts.shared.find(
                        "aside",
                        format!(
                            "a history was set aside in {}: it was damaged or did not fit this replica; look at the \
                             log of that time, and remove the directory when it is not needed",
                            aside.display()
                        ),
                    );
                }
                self.is_checked = false;
                self.scrub = Scrub::begin();
                self.book = Some(book);
            }
        }
        Ok(())
    }

    fn work(&mut self, now: Duration, closed: bool) -> Shelved<()> {
        let view = self.parts.published.view();
        if !self.check_chain(&view)? {
            // State has yet to apply what history knows already.
            self.not_before = now + RETRY;
            return Ok(());
        }
        let is_due = self.since.is_none_or(|since| now >= since + self.parts.sizes.linger);
        if closed || is_due || self.staged_bytes >= BATCH_BYTES {
            self.check_room()?;
            self.write(&view)?;
            self.since = None;
        }
        if !closed {
            self.look_after(&view)?;
        }
        Ok(())
    }

    /// Holds the end of the chain that is kept against the one in state, as soon as state has got there.
    fn check_chain(&mut self, view: &View) -> Shelved<bool> {
        let Some(book) = &self.book else { return Ok(false) };
        if self.is_checked {
            return Ok(true);
        }
        let last = book.progress.audit_last;
        if last > view.last_audit() || book.progress.event_last > view.last_event() {
            return Ok(false);
        }
        if let Some(record) = view.audit(last).next().filter(|record| record.seq == last)
            && record.hash != book.progress.audit_hash
        {
            let what = format!("audit record {last} is another one in the cluster's state");
            return Err(ShelfError::Broken(what));
        }
        self.is_checked = true;
        self.publish();
        Ok(true)
    }

    fn check_room(&self) -> Shelved<()> {
        let Some(place) = &self.parts.place else { return Ok(()) };
        let free = self.parts.disk.files.free_bytes(&place.dir()).unwrap_or(u64::MAX);
        if free < self.parts.reserve_bytes.saturating_mul(2) {
            return Err(ShelfError::Full);
        }
        Ok(())
    }

    /// Writes everything that waits.
    fn write(&mut self, view: &View) -> Shelved<()> {
        loop {
            let Some(book) = &self.book else { return Ok(()) };
            let (audit, event) = (book.progress.audit_last + 1, book.progress.event_last + 1);
            let events = view.events(event).take(BATCH_MAX);
            let more = More {
                audit: view.audit(audit).take(BATCH_MAX).cloned().collect(),
                events: events.map(|(seq, event)| (seq, event.clone())).collect(),
                ranges: self.next_ranges(),
            };
            if more.is_empty() {
                return Ok(());
            }
            let Some(book) = &mut self.book else { return Ok(()) };
            if let Err(error) = book.append(&more) {
                // They are nowhere else. What is staged meanwhile is bounded, and so this is.
                self.staged_bytes += more.ranges.iter().map(Range::bytes).sum::<usize>();
                more.ranges.into_iter().rev().for_each(|range| self.staged.push_front(range));
                return Err(error);
            }
            if let Some(place) = &self.parts.place {
                place.note(&book.progress)?;
            }
            self.parts.shared.lost("full");
            self.publish();
        }
    }

    /// What is done in steps: retention, and reading everything once.
    fn look_after(&mut self, view: &View) -> Shelved<()> {
        let now_ms = view.clock().wall_ms;
        for _ in 0..STEPS_MAX {
            let Some(book) = &mut self.book else { return Ok(()) };
            if !book.trim(now_ms, &self.parts.sizes.retention)? {
                break;
            }
            self.publish();
        }
        for _ in 0..STEPS_MAX {
            let Some(book) = &self.book else { return Ok(()) };
            if self.scrub == Scrub::Done {
                break;
            }
            let reader = Reader { shelf: book.shelf.clone(), progress: book.progress.clone() };
            self.scrub = self.scrub.step(&reader)?;
        }
        Ok(())
    }

    /// Tells readers and reporters how far it reaches.
    fn publish(&self) {
        if let Some(book) = &self.book {
            let (shelf, progress) = (book.shelf.clone(), book.progress.clone());
            self.parts.shared.publish(Reader { shelf, progress });
        }
    }

    fn turn_off(&mut self, why: String) {
        tracing::warn!(why, "no history is kept");
        self.parts.shared.find("off", why);
        self.parts.shared.withdraw();
        self.book = None;
        self.staged.clear();
        self.staged_bytes = 0;
        self.is_off = true;
    }

    /// Something went wrong: wait, or begin anew, or give up. Never more than that.
    fn damaged(&mut self, error: &ShelfError) {
        self.not_before = self.parts.rt.now() + RETRY;
        if error.is_passing() {
            self.parts.shared.find("full", format!("history waits: {error}"));
            return;
        }
        tracing::error!(error = %error, "history is damaged");
        self.parts.shared.withdraw();
        self.parts.shared.lose();
        self.book = None;
        self.set_aside += 1;
        let Some(place) = &self.parts.place else {
            return self.turn_off(format!("history in memory is damaged: {error}"));
        };
        if self.set_aside > ASIDE_MAX {
            return self.turn_off(format!("history was damaged again and again, at last: {error}"));
        }
        match place.set_aside() {
            Ok(to) => {
                tracing::warn!(aside = %to.display(), "history was set aside and begins anew");
                self.not_before = Duration::ZERO;
                self.since = Some(Duration::ZERO);
                // What it lacks below the window in memory would be asked of a peer here, by sequence range.
                self.parts.feed.wake();
            }
            Err(failed) if failed.is_passing() => self.set_aside -= 1,
            Err(failed) => {
                self.turn_off(format!("history is damaged ({error}) and stays that way: {failed}"));
            }
        }
    }

    fn close(self) {
        self.parts.shared.withdraw();
        drop(self.book);
    }
}
