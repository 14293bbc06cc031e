//! Asking history: what was at a moment, which lives records had, and when revisions were.
//!
//! # Invariants
//! - `HIST-8` What was at a moment is answered only if every version that ended since is kept here; otherwise it is said
//!   from where on, or which log entries are missing.

use std::sync::Arc;

use palisade_state::View;

use super::{
    History, HistoryError, OldRow, Past,
    book::Moment,
    rows::{Gap, Part},
};

/// What it takes to see the state as it was.
#[derive(Clone, Debug)]
pub struct Then {
    /// The moment.
    pub moment: Moment,
    /// A view that is not older, whose rows are those of then where they have not changed since.
    pub view: View,
    /// For each table, in order, the rows that were there then and are others now, or gone.
    pub ended: Vec<Vec<OldRow>>,
}

/// Versions of a table's rows that have ended.
#[derive(Clone, Debug)]
pub struct Lives {
    /// By key and age.
    pub lives: Vec<(Vec<u8>, Past)>,
    /// A view that is not older than any of them.
    pub view: View,
    /// Everything that ended from here on is here, but for the gaps.
    pub from_revision: u64,
    /// What is known to be missing.
    pub gaps: Vec<Gap>,
}

/// Which versions are wanted, by key and bytes.
pub type Wanted = Arc<dyn Fn(&[u8], &[u8]) -> bool + Send + Sync>;

impl History {
    /// What was at a revision.
    ///
    /// # Errors
    /// See [`HistoryError`]; an answer is whole.
    pub async fn then(
        &self,
        revision: u64,
        tables: Vec<&'static str>,
    ) -> Result<Then, HistoryError> {
        let view = self.known_at(revision).await?;
        let read = self.read(move |reader| {
            let ended: Result<Vec<_>, _> =
                tables.iter().map(|table| reader.ended(table, revision)).collect();
            Ok((ended?, reader.moment_of(revision)?))
        });
        let (ended, moment) = read.await?;
        // Versions may have left by age while they were read.
        self.known_at(revision).await?;
        let clock = moment.unwrap_or_default().clock;
        Ok(Then { moment: Moment { revision, clock }, view, ended })
    }

    /// The last moment at a time or before it, Unix milliseconds, by the cluster's clock.
    ///
    /// # Errors
    /// See [`HistoryError`]; a time that is not over by the cluster's clock has none yet.
    pub async fn moment_at(&self, at_ms: u64) -> Result<Moment, HistoryError> {
        let view = self.published.view();
        let now_ms = view.clock().wall_ms;
        // An entry to come may be of the very same millisecond.
        if at_ms >= now_ms {
            return Err(HistoryError::NotYet { now_ms });
        }
        self.known_at(view.revision()).await?;
        let read = self.read(move |reader| Ok((reader.moment_at(at_ms)?, reader.first_ms()?)));
        let (moment, from_ms) = read.await?;
        let Moment { revision, clock } = moment.ok_or(HistoryError::TooEarly { from_ms })?;
        // Entries behind the view's revision changed the clock alone.
        Ok(Moment { revision: revision.min(view.revision()), clock })
    }

    /// The versions of a table's rows that are wanted, by their key and bytes, of those that have ended.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub async fn lives(
        &self,
        table: &'static str,
        is_wanted: Wanted,
    ) -> Result<Lives, HistoryError> {
        let view = self.known_at(self.published.view().revision()).await?;
        let read = self.read(move |reader| {
            let from = reader.progress.versions_from;
            let gaps = reader.gaps(Part::Versions, from, u64::MAX);
            Ok((reader.lives(table, &*is_wanted)?, from, gaps))
        });
        let (lives, from_revision, gaps) = read.await?;
        Ok(Lives { lives, view, from_revision, gaps })
    }

    /// When revisions were, Unix milliseconds, as far as that is known.
    ///
    /// # Errors
    /// See [`HistoryError`].
    pub async fn times(&self, revisions: Vec<u64>) -> Result<Vec<Option<u64>>, HistoryError> {
        self.read(move |reader| {
            let time = |revision: &u64| {
                Ok(reader.moment_of(*revision)?.map(|moment| moment.clock.wall_ms))
            };
            revisions.iter().map(time).collect()
        })
        .await
    }
}
