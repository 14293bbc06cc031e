//! What can be measured, by name.

/// One measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    /// Durable writes, one for each unary call.
    Unary,
    /// Durable writes over one stream a connection.
    Stream,
    /// 64 writes in one transaction.
    Txn,
    /// Linearizable reads.
    Reads,
    /// A unit of work: enqueued, delivered, finished.
    Work,
    /// The same with producers that share one stream a connection.
    WorkStream,
    /// Deliveries to watchers.
    Watch,
    /// SIGKILL of the leader.
    Failover,
    /// SIGKILL of the leader while clients write as fast as they can.
    FailoverLoaded,
    /// SIGSTOP of the leader.
    Freeze,
    /// Elections that nobody asked for, with slow flushes and saturated.
    Elections,
    /// The longest pause of writes while a snapshot is taken.
    SnapshotStall,
    /// Resident memory of many keys.
    Memory,
    /// From SIGKILL of all to the first read.
    Restart,
}

impl Measure {
    /// All, in the order in which they are measured.
    pub(crate) const ALL: [Self; 14] = [
        Self::Unary,
        Self::Stream,
        Self::Txn,
        Self::Reads,
        Self::Work,
        Self::WorkStream,
        Self::Watch,
        Self::Failover,
        Self::FailoverLoaded,
        Self::Freeze,
        Self::Elections,
        Self::SnapshotStall,
        Self::Memory,
        Self::Restart,
    ];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Stream => "stream",
            Self::Txn => "txn",
            Self::Reads => "reads",
            Self::Work => "work",
            Self::WorkStream => "work-stream",
            Self::Watch => "watch",
            Self::Failover => "failover",
            Self::FailoverLoaded => "failover-loaded",
            Self::Freeze => "freeze",
            Self::Elections => "elections",
            Self::SnapshotStall => "snapshot-stall",
            Self::Memory => "memory",
            Self::Restart => "restart",
        }
    }

    /// The one with this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|measure| measure.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_is_found_by_its_name() {
        for measure in Measure::ALL {
            assert_eq!(Measure::parse(measure.name()), Some(measure));
        }
        assert_eq!(Measure::parse("unry"), None);
    }
}
