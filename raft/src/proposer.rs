//! Proposing as leader: what waits becomes one log entry, stamped with time and term.
//!
//! # Invariants
//! - `PROP-1` An entry is appended in the term with which it is stamped, or not at all.
//! - `PROP-2` The time on the entries of one leader adds up to at most its own monotonic clock since it was first
//!   seen to lead. The time without a leader, and what was applied meanwhile, is on no entry: what is lost is lost on
//!   the slow side.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use openraft::{AsyncRuntime, errors::ClientWriteError, raft::ClientWriteResult};
use palisade_state::{
    Command, Outcome, Published, Rt,
    command::{Entry, Form, Kind, Tick},
    port::timeout,
};
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{
    formats::Build,
    leadership::Leadership,
    machine::Shared,
    quorum,
    refusal::Refusal,
    store::admit,
    types::{FnResponder, Payload, Raft, TypeConfig},
    wal::Handle,
};

/// Encoded commands of one entry; a single command may be larger.
const ENTRY_BYTES_MAX: usize = 1024 * 1024;
const ENTRY_COMMANDS_MAX: usize = 4096;
/// Commands that may wait for the proposer.
const QUEUE: usize = 16 * 1024;

/// Bytes of commands that are proposed and not answered, at most; who proposes more waits.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// How often a leader whom no majority answers looks again, and how often while its pipeline is full.
const QUORUM_LOOK: Duration = Duration::from_millis(10);
const SLOT_LOOK: Duration = Duration::from_millis(200);

/// Whoever waits for an outcome.
pub(crate) enum Answer {
    /// One caller.
    One(oneshot::Sender<Result<Outcome, Refusal>>),
    /// A stream of callers; the number is the request's.
    Many(u64, mpsc::OwnedPermit<(u64, Result<Outcome, Refusal>)>),
    /// Nobody, by intention.
    Nobody,
}

impl Answer {
    /// Answers.
    pub(crate) fn send(self, result: Result<Outcome, Refusal>) {
        match self {
            Self::One(answer) => drop(answer.send(result)),
            Self::Many(id, place) => drop(place.send((id, result))),
            Self::Nobody => {}
        }
    }
}

/// Whoever waits, and the room that its command takes.
type Waiter = (Answer, Option<OwnedSemaphorePermit>);

/// A command that waits.
struct Proposal {
    command: Command,
    bytes: usize,
    waiter: Waiter,
}

impl Proposal {
    /// Whether who proposed it has gone away: it was told that its fate is unknown, and need not become known.
    fn is_abandoned(&self) -> bool {
        matches!(&self.waiter.0, Answer::One(answer) if answer.is_closed())
    }

    fn stands_alone(&self) -> bool {
        !matches!(self.command.kind, Some(Kind::Txn(_)))
    }
}

/// The way to the proposer.
#[derive(Clone)]
pub(crate) struct Proposer {
    queue: mpsc::Sender<Proposal>,
    room: Arc<Semaphore>,
}

/// What waits for the proposer.
pub(crate) struct Waiting(mpsc::Receiver<Proposal>);

impl Proposer {
    pub(crate) fn new() -> (Self, Waiting) {
        let (queue, waiting) = mpsc::channel(QUEUE);
        (Self { queue, room: Arc::new(Semaphore::new(BYTES_MAX)) }, Waiting(waiting))
    }

    /// Proposes here; refused unless this replica leads.
    pub(crate) async fn propose(&self, command: Command) -> Result<Outcome, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.submit(command, Answer::One(answer)).await;
        answered.await.unwrap_or(Err(Refusal::Unknown))
    }

    /// Proposes here, and goes on as soon as there is room for more; the answer comes when it comes.
    pub(crate) async fn submit(&self, command: Command, answer: Answer) {
        let bytes = command.encoded_len();
        if let Err(refusal) = admit::check(&command, bytes) {
            return answer.send(Err(refusal));
        }
        let stopping = Refusal::Unavailable("it is stopping".to_owned());
        let room = u32::try_from(bytes).unwrap_or(u32::MAX);
        let Ok(room) = self.room.clone().acquire_many_owned(room).await else {
            return answer.send(Err(stopping));
        };
        let proposal = Proposal { command, bytes, waiter: (answer, Some(room)) };
        if let Err(mpsc::error::SendError(proposal)) = self.queue.send(proposal).await {
            proposal.waiter.0.send(Err(stopping));
        }
    }

    /// Lets time pass, without waiting for it.
    pub(crate) fn tick(&self) {
        let command: Command = Kind::Tick(Tick {}).into();
        let bytes = command.encoded_len();
        // A full queue lets time pass by itself.
        let _ = self.queue.try_send(Proposal { command, bytes, waiter: (Answer::Nobody, None) });
    }
}

/// The time stamps of one leader.
struct Stamp {
    term: u64,
    last: Duration,
}

impl Stamp {
    /// Whole milliseconds since the entry before; the rest counts for the next one.
    ///
    /// The first one of a term counts from when something was last applied, and never from before `led_since`: a
    /// worker could not show itself while nobody led, and must not be charged for it.
    fn next(
        &mut self,
        term: u64,
        now: Duration,
        applied_at: Duration,
        led_since: Option<Duration>,
    ) -> u64 {
        if self.term != term {
            *self = Self { term, last: applied_at.max(led_since.unwrap_or(now)) };
        }
        let delta = u64::try_from(now.saturating_sub(self.last).as_millis()).unwrap_or(u64::MAX);
        self.last += Duration::from_millis(delta);
        delta
    }
}

/// The proposer's own.
pub(crate) struct Leader<R: AsyncRuntime> {
    pub(crate) raft: Raft<R>,
    pub(crate) rt: Rt,
    pub(crate) shared: Arc<Shared>,
    pub(crate) published: Arc<Published>,
    pub(crate) leadership: Arc<Leadership>,
    pub(crate) me: u64,
    pub(crate) wal: Handle,
    pub(crate) form: Form,
    pub(crate) pipeline: usize,
    /// How long a leader may append after a majority has answered it.
    pub(crate) lease: Duration,
    pub(crate) build: Build,
}

/// Takes what goes into the next entry: transactions together, anything else alone.
fn take_group(waiting: &mut VecDeque<Proposal>) -> Vec<Proposal> {
    let mut group: Vec<Proposal> = Vec::new();
    let mut bytes = 0;
    while let Some(next) = waiting.front() {
        let fits = bytes + next.bytes <= ENTRY_BYTES_MAX && group.len() < ENTRY_COMMANDS_MAX;
        if !group.is_empty() && (!fits || next.stands_alone()) {
            break;
        }
        let alone = next.stands_alone();
        bytes += next.bytes;
        group.extend(waiting.pop_front());
        if alone {
            break;
        }
    }
    group
}

/// Those who wait for an entry; whoever takes them answers them.
type Held = Mutex<Option<Vec<Waiter>>>;

fn take(held: &Held) -> Vec<Waiter> {
    held.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
}

fn refuse(waiting: impl Iterator<Item = Proposal>, refusal: &Refusal) {
    for proposal in waiting {
        proposal.waiter.0.send(Err(refusal.clone()));
    }
}

/// Hands the outcomes of one entry to those who wait for them.
fn answer<R: AsyncRuntime>(
    waiters: Vec<Waiter>,
    result: ClientWriteResult<TypeConfig<R>>,
    shared: &Shared,
) {
    let refusal = match result {
        Ok(response) => {
            let mut outcomes = response.data.0.into_iter();
            for (answer, _room) in waiters {
                answer.send(outcomes.next().ok_or(Refusal::Unknown));
            }
            return;
        }
        Err(ClientWriteError::ForwardToLeader(_)) => Refusal::NotLeader,
        Err(error) => {
            tracing::debug!(error = %error, "the fate of an entry is unknown");
            shared.metrics.outcomes_unknown.inc_by(waiters.len() as u64);
            Refusal::Unknown
        }
    };
    for (answer, _room) in waiters {
        answer.send(Err(refusal.clone()));
    }
}

impl<R: AsyncRuntime> Leader<R> {
    /// Proposes until nobody can ask any more.
    pub(crate) async fn run(self, mut queue: Waiting) {
        let slots = Arc::new(Semaphore::new(self.pipeline));
        let mut stamp = Stamp { term: 0, last: Duration::ZERO };
        let mut waiting = VecDeque::new();
        let mut taken = Vec::new();
        let mut is_held_up = false;
        loop {
            let Some(slot) = self.slot(&slots, &mut queue, &mut waiting).await else { return };
            if waiting.is_empty() && queue.0.recv_many(&mut taken, ENTRY_COMMANDS_MAX).await == 0 {
                return;
            }
            waiting.extend(taken.drain(..));
            while waiting.len() < ENTRY_COMMANDS_MAX
                && let Ok(next) = queue.0.try_recv()
            {
                waiting.push_back(next);
            }
            let Ok(term) = self.raft.as_leader().map(|leader| leader.term()) else {
                refuse(waiting.drain(..), &Refusal::NotLeader);
                continue;
            };
            if let Some(silence) = quorum::silence(&self.raft, &self.leadership, self.lease) {
                if !std::mem::replace(&mut is_held_up, true) {
                    tracing::warn!("writes wait: no majority answers this leader");
                }
                match quorum::refusal(silence, self.lease) {
                    Some(refusal) => refuse(waiting.drain(..), &refusal),
                    None => self.rt.sleep(QUORUM_LOOK).await,
                }
                continue;
            }
            if std::mem::take(&mut is_held_up) {
                tracing::warn!("writes go on: a majority answers this leader again");
            }
            if let Some(shortage) = self.wal.shortage(self.me) {
                refuse(waiting.drain(..), &Refusal::NoSpace(shortage.to_string()));
                continue;
            }
            self.wal.room().await;
            if self.published.view().formation().is_none() && !self.form(&mut stamp, term).await {
                refuse(waiting.drain(..), &Refusal::NotLeader);
                continue;
            }
            waiting.retain(|proposal: &Proposal| !proposal.is_abandoned());
            self.refuse_what_is_too_new(&mut waiting);
            let group = take_group(&mut waiting);
            if group.is_empty() {
                continue;
            }
            self.propose(&mut stamp, term, group, slot).await;
        }
    }

    /// A place in the pipeline. While there is none because no majority answers, what waits is refused.
    async fn slot(
        &self,
        slots: &Arc<Semaphore>,
        queue: &mut Waiting,
        waiting: &mut VecDeque<Proposal>,
    ) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(slot) = slots.clone().try_acquire_owned() {
                return Some(slot);
            }
            let free = slots.clone().acquire_owned();
            if let Some(slot) = timeout(self.rt.as_ref(), SLOT_LOOK, free).await {
                return slot.ok();
            }
            let silence = quorum::silence(&self.raft, &self.leadership, self.lease);
            if let Some(refusal) = silence.and_then(|silence| quorum::refusal(silence, self.lease))
            {
                waiting.extend(std::iter::from_fn(|| queue.0.try_recv().ok()));
                refuse(waiting.drain(..), &refusal);
            }
        }
    }

    /// Refuses what some member could not read.
    fn refuse_what_is_too_new(&self, waiting: &mut VecDeque<Proposal>) {
        if self.build.newer.is_empty() {
            return;
        }
        let active = self.published.view().format();
        for proposal in std::mem::take(waiting) {
            match self.build.check(&proposal.command, active) {
                Ok(()) => waiting.push_back(proposal),
                Err(refusal) => proposal.waiter.0.send(Err(refusal)),
            }
        }
    }

    fn entry(&self, stamp: &mut Stamp, term: u64, commands: Vec<Command>) -> Payload {
        let led_since = self.leadership.led_since(self.me, term);
        let applied_at = self.shared.last_applied_at();
        let delta_ms = stamp.next(term, self.rt.now(), applied_at, led_since);
        let wall_ms = self.rt.wall_ms();
        let format = self.published.view().format();
        Payload::new(Entry { format, proposer_term: term, delta_ms, wall_ms, commands })
    }

    async fn propose(
        &self,
        stamp: &mut Stamp,
        term: u64,
        group: Vec<Proposal>,
        slot: OwnedSemaphorePermit,
    ) {
        let (commands, waiters): (Vec<_>, Vec<_>) =
            group.into_iter().map(|proposal| (proposal.command, proposal.waiter)).unzip();
        self.shared.metrics.entries_proposed.inc();
        self.shared.metrics.commands_proposed.inc_by(commands.len() as u64);
        let payload = self.entry(stamp, term, commands);
        let shared = self.shared.clone();
        let waiters = Arc::new(Mutex::new(Some(waiters)));
        let held = waiters.clone();
        let responder = FnResponder::new(move |result| {
            answer::<R>(take(&held), result, &shared);
            drop(slot);
        });
        if let Err(fatal) = self.raft.write(payload).with_leader(term).responder(responder).await {
            tracing::debug!(error = %fatal, "proposing to a replica that has stopped");
            for (answer, _room) in take(&waiters) {
                answer.send(Err(Refusal::NotLeader));
            }
        }
    }

    /// Makes the cluster's identity the first thing that a new cluster knows.
    async fn form(&self, stamp: &mut Stamp, term: u64) -> bool {
        let command: Command = Kind::Form(self.form.clone()).into();
        let payload = self.entry(stamp, term, vec![command]);
        let (tx, rx) = oneshot::channel();
        let responder = FnResponder::new(move |result: ClientWriteResult<TypeConfig<R>>| {
            let _ = tx.send(result.is_ok());
        });
        let sent = self.raft.write(payload).with_leader(term).responder(responder).await;
        let formed = sent.is_ok() && rx.await.unwrap_or(false);
        if formed {
            tracing::info!(
                cluster = self.form.cluster,
                epoch = self.form.epoch,
                "the cluster is formed"
            );
        }
        formed
    }
}

/// Lets time pass while this replica leads and something waits for it.
pub(crate) async fn tick<R: AsyncRuntime>(
    rt: Rt,
    raft: Raft<R>,
    published: Arc<Published>,
    proposer: Proposer,
    every: Duration,
) {
    #[cfg(feature = "planted")]
    crate::late_tick::begin(&rt, &raft);
    loop {
        rt.sleep(every).await;
        if !raft.is_leader() {
            continue;
        }
        let view = published.view();
        if view.timers_pending() || view.formation().is_none() {
            proposer.tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_state::command::{Txn, WorkerBeat};

    use super::*;

    fn waiting(commands: Vec<Command>) -> VecDeque<Proposal> {
        let proposal = |command: Command| {
            let bytes = command.encoded_len();
            Proposal { command, bytes, waiter: (Answer::Nobody, None) }
        };
        commands.into_iter().map(proposal).collect()
    }

    fn txn(bytes: usize) -> Command {
        Txn { response: vec![0; bytes], ..Txn::default() }.into()
    }

    fn beat() -> Command {
        Kind::WorkerBeat(WorkerBeat::default()).into()
    }

    #[test]
    fn transactions_share_an_entry_and_nothing_else_does() {
        let mut queue = waiting(vec![txn(1), txn(2), beat(), beat(), txn(3)]);
        let mut sizes = vec![];
        while !queue.is_empty() {
            sizes.push(take_group(&mut queue).len());
        }
        assert_eq!(sizes, [2, 1, 1, 1]);
    }

    #[test]
    fn an_entry_is_bounded_and_a_large_command_goes_by_itself() {
        let mut queue =
            waiting(vec![txn(ENTRY_BYTES_MAX - 100), txn(200), txn(ENTRY_BYTES_MAX + 1)]);
        let mut sizes = vec![];
        while !queue.is_empty() {
            sizes.push(take_group(&mut queue).len());
        }
        assert_eq!(sizes, [1, 1, 1]);
    }

    #[test]
    fn the_stamps_of_a_leader_add_up_to_its_clock() {
        let mut stamp = Stamp { term: 0, last: Duration::ZERO };
        let at = Duration::from_micros;
        let led = Some(at(4_000));
        let first = stamp.next(3, at(10_900), at(5_000), led);
        assert_eq!(first, 5, "counted from what it applied last");
        assert_eq!(stamp.next(3, at(11_100), at(11_050), led), 1, "the rest was carried over");
        assert_eq!(stamp.next(3, at(11_200), at(11_150), led), 0);
        assert_eq!(stamp.next(3, at(20_000), at(19_900), led), 9);
        let led = Some(at(70_000));
        assert_eq!(stamp.next(4, at(90_000), at(80_000), led), 10, "another term begins anew");
    }

    #[test]
    fn the_time_without_a_leader_is_on_no_stamp() {
        let at = Duration::from_secs;
        let mut stamp = Stamp { term: 3, last: at(100) };
        assert_eq!(
            stamp.next(4, at(112), at(100), Some(at(112))),
            0,
            "its own first is not applied"
        );
        assert_eq!(stamp.next(4, at(113), at(112), Some(at(112))), 1000, "then time goes on");
        let mut stamp = Stamp { term: 3, last: at(100) };
        assert_eq!(
            stamp.next(4, at(112), at(100), None),
            0,
            "proposed before leadership was noted"
        );
        assert_eq!(stamp.next(4, at(113), at(100), Some(at(112))), 1000);
    }
}
