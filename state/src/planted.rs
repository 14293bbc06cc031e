//! Defects that are put in on purpose, so that it can be seen which check catches them.
//!
//! Without the feature `planted`, which no build that is shipped has, nothing of this is left: [`is`] is `false` for
//! the compiler too. With it, one defect at a time is chosen by name for the calling thread.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A vote is answered before it is durable.
    VoteNotSynced,
    /// The log calls back before its sync.
    AckBeforeSync,
    /// Snapshots hold no leases.
    SnapshotWithoutLeases,
    /// A leader that was deposed answers reads from what it has.
    StaleRead,
    /// Nobody looks at a transaction's fence.
    FenceUnchecked,
    /// A transaction's events come in the order of a hash map.
    UnorderedApply,
    /// One write of many is acknowledged and left out.
    LostWrite,
    /// Idempotency keys are not looked up.
    DoubledWrite,
    /// A finish removes work of whatever generation.
    FinishAnyGeneration,
    /// A deposed leader keeps a tick until it leads again, and it is applied.
    DeposedTick,
    /// A version that was read is not compared.
    PointUnchecked,
    /// A snapshot is reported before its name is durable.
    SnapshotNameNotSynced,
    /// The version of a node's books is not compared.
    BooksUnchecked,
    /// Placement takes every node for large enough.
    CapacityUnchecked,
    /// A change of a node does not wake the placer.
    NodeUnwoken,
    /// An agent takes specs from the past.
    AgentFenceUnchecked,
    /// An agent acts on a spec before it is on the disk.
    SpecNotStored,
    /// An agent that comes back keeps what was replaced elsewhere.
    ReplacedKept,
    /// An agent without a control plane stops what runs.
    AloneStops,
    /// An agent that starts does not look at what runs.
    NoAdoption,
    /// A lease that moves keeps its fence.
    FenceKept,
    /// One entry of many never gets into history.
    HistoryLeftOut,
    /// An agent carries out what its journal says that it has carried out.
    CommandBegunAgain,
    /// An agent begins a command before it is on the disk.
    CommandNotRecorded,
    /// The end of a command wakes nobody who waits for it.
    CommandUnwoken,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 25] = [
        Self::VoteNotSynced,
        Self::AckBeforeSync,
        Self::SnapshotWithoutLeases,
        Self::StaleRead,
        Self::FenceUnchecked,
        Self::UnorderedApply,
        Self::LostWrite,
        Self::DoubledWrite,
        Self::FinishAnyGeneration,
        Self::DeposedTick,
        Self::PointUnchecked,
        Self::SnapshotNameNotSynced,
        Self::BooksUnchecked,
        Self::CapacityUnchecked,
        Self::NodeUnwoken,
        Self::AgentFenceUnchecked,
        Self::SpecNotStored,
        Self::ReplacedKept,
        Self::AloneStops,
        Self::NoAdoption,
        Self::FenceKept,
        Self::HistoryLeftOut,
        Self::CommandBegunAgain,
        Self::CommandNotRecorded,
        Self::CommandUnwoken,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::VoteNotSynced => "vote-not-synced",
            Self::AckBeforeSync => "ack-before-sync",
            Self::SnapshotWithoutLeases => "snapshot-without-leases",
            Self::StaleRead => "stale-read",
            Self::FenceUnchecked => "fence-unchecked",
            Self::UnorderedApply => "unordered-apply",
            Self::LostWrite => "lost-write",
            Self::DoubledWrite => "doubled-write",
            Self::FinishAnyGeneration => "finish-any-generation",
            Self::DeposedTick => "deposed-tick",
            Self::PointUnchecked => "point-unchecked",
            Self::SnapshotNameNotSynced => "snapshot-name-not-synced",
            Self::BooksUnchecked => "books-unchecked",
            Self::CapacityUnchecked => "capacity-unchecked",
            Self::NodeUnwoken => "node-unwoken",
            Self::AgentFenceUnchecked => "agent-fence-unchecked",
            Self::SpecNotStored => "spec-not-stored",
            Self::ReplacedKept => "replaced-kept",
            Self::AloneStops => "alone-stops",
            Self::NoAdoption => "no-adoption",
            Self::FenceKept => "fence-kept",
            Self::HistoryLeftOut => "history-left-out",
            Self::CommandBegunAgain => "command-begun-again",
            Self::CommandNotRecorded => "command-not-recorded",
            Self::CommandUnwoken => "command-unwoken",
        }
    }
}

#[cfg(feature = "planted")]
thread_local! {
    static CHOSEN: std::cell::Cell<Option<Defect>> = const { std::cell::Cell::new(None) };
}

/// Chooses the calling thread's defect.
#[cfg(feature = "planted")]
pub fn choose(defect: Option<Defect>) {
    CHOSEN.set(defect);
}

/// Whether this defect is in.
#[cfg(feature = "planted")]
#[must_use]
pub fn is(defect: Defect) -> bool {
    CHOSEN.get() == Some(defect)
}

/// Whether this defect is in: never, in this build.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn is(_: Defect) -> bool {
    false
}
