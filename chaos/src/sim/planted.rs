//! Which check must catch which planted defect.

use palisade_state::planted::Defect;

/// What must catch a defect, and where it can show.
pub(crate) struct Aim {
    /// Any of these checks.
    pub(crate) checks: &'static [&'static str],
    /// Machines that it needs.
    pub(crate) agents: u64,
}

/// Who must catch it.
pub(crate) fn aim(defect: Defect) -> Aim {
    let (checks, agents): (&[&str], u64) = match defect {
        Defect::VoteNotSynced => (&["M1"], 0),
        Defect::AckBeforeSync | Defect::UnorderedApply | Defect::SnapshotWithoutLeases => {
            (&["S1"], 0)
        }
        Defect::SnapshotNameNotSynced => (&["start"], 0),
        Defect::StaleRead => (&["L1", "L3"], 0),
        Defect::LostWrite | Defect::PointUnchecked => (&["L1"], 0),
        // A write that is there twice, or replicas that cannot go on with one.
        Defect::DoubledWrite => (&["L2", "start"], 0),
        Defect::FenceUnchecked => (&["I3"], 0),
        Defect::FenceKept => (&["I1", "I3"], 0),
        Defect::FinishAnyGeneration => (&["Q1"], 0),
        Defect::HistoryLeftOut => (&["H1"], 0),
        Defect::DeposedTick => (&["CLOCK"], 0),
        Defect::BooksUnchecked | Defect::CapacityUnchecked => (&["C1"], 4),
        Defect::NodeUnwoken => (&["Q1"], 4),
        Defect::AgentFenceUnchecked | Defect::SpecNotStored => (&["I4"], 4),
        Defect::ReplacedKept | Defect::NoAdoption => (&["A1"], 4),
        Defect::AloneStops => (&["A2"], 4),
        Defect::CommandBegunAgain | Defect::CommandNotRecorded | Defect::CommandUnwoken => {
            (&["C2"], 4)
        }
    };
    Aim { checks, agents }
}
