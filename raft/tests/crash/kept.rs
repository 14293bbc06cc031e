//! What a child's history has durably: it says so, and must find it again, because state lets go of what is durable there.
//!
//! How far the versions of records reach tells: those are nowhere else once a snapshot covers the log.

use std::time::Duration;

use palisade_raft::{
    Replica,
    history::{HistoryStatus, Part},
};

/// How far a child's history reached, as it said before; with this set it keeps one that is written at once.
pub const KEPT: &str = "PALISADE_CRASH_KEPT";
const PAUSE: Duration = Duration::from_millis(3);
/// How long a history may take to be there.
const PAUSES: u32 = 10_000;

/// How far it reaches, and how many log entries below that it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub through: u64,
    pub missing: u64,
}

impl Kept {
    pub fn parse(text: &str) -> Option<Self> {
        let (through, missing) = text.split_once(',')?;
        Some(Self { through: through.parse().ok()?, missing: missing.parse().ok()? })
    }

    pub fn text(&self) -> String {
        format!("{},{}", self.through, self.missing)
    }

    /// As the parent had heard, when it wants to know.
    pub fn wanted() -> Option<Self> {
        std::env::var(KEPT).ok().and_then(|text| Self::parse(&text))
    }

    /// What a status says of the entries up to `through`.
    fn up_to(status: &HistoryStatus, through: u64) -> Option<Self> {
        let (from, reaches) = status.versions?;
        let through = through.min(reaches);
        let gaps = status.gaps.iter().filter(|gap| gap.part() == Part::Versions);
        let lacks = |from: u64, to: u64| (to.min(through) + 1).saturating_sub(from);
        let missing =
            lacks(1, from.saturating_sub(1)) + gaps.map(|gap| lacks(gap.from, gap.to)).sum::<u64>();
        Some(Self { through, missing })
    }

    /// Finds it again, in a replica that has come back.
    pub async fn find(&self, replica: &Replica) -> Result<(), String> {
        for _ in 0..PAUSES {
            let status = replica.history().status();
            if let Some(found) = Self::up_to(&status, self.through) {
                let is_there = found.through == self.through && found.missing <= self.missing;
                return if is_there {
                    Ok(())
                } else {
                    Err(format!("history has {found:?}, durable was {self:?}: {status:?}"))
                };
            }
            tokio::time::sleep(PAUSE).await;
        }
        Err(format!("history does not open: {:?}", replica.history().status()))
    }
}

/// Says whenever it reaches further.
pub async fn tell(replica: &Replica) {
    let mut told = Kept::default();
    loop {
        if let Some(now) = Kept::up_to(&replica.history().status(), u64::MAX)
            && now != told
        {
            told = now;
            println!("kept {}", now.text());
        }
        tokio::time::sleep(PAUSE).await;
    }
}
