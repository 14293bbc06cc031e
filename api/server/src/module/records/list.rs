//! A part of a list of numbered records. Where the state has trimmed them it goes on into this replica's history.
//!
//! # Invariants
//! - `TEN-2` A part has every record of its range that is asked for, or it is said which are not known here: nothing is
//!   left out without a word.

use futures::future::BoxFuture;
use palisade_contract::{
    Code, Error, MethodContext, Problem, Result,
    past::{History, Reach},
};
use palisade_state::{
    View,
    cursor::{Cursor, CursorError},
};

use super::{From, RECORDS_DEFAULT, Records};

/// Records that are read from history at once.
pub(super) const PAGE: usize = 1000;

/// Numbered records that were read.
pub(super) type Kept<R> = BoxFuture<'static, Result<Vec<(u64, R)>>>;

/// A kind of numbered records.
pub(super) trait Numbered: Sized + Send + 'static {
    /// As the state has it.
    type Record: Clone + Send + 'static;

    /// The first number that a view has and the last there is.
    fn ends(view: &View) -> (Option<u64>, u64);

    /// What a view has from a number on.
    fn in_memory(
        view: &View,
        from: u64,
    ) -> impl DoubleEndedIterator<Item = (u64, &Self::Record)> + Send;

    /// The first number that history has and the last one.
    fn reach(reach: Reach) -> Option<(u64, u64)>;

    /// What history has from a number on; up to [`PAGE`] of them.
    fn kept(history: &dyn History, from: u64) -> Kept<Self::Record>;

    /// Whose it is.
    fn tenant(record: &Self::Record) -> &str;

    /// As it is shown.
    fn shown(seq: u64, record: Self::Record) -> Self;
}

/// Where a part begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// With so many of the newest.
    Newest,
    /// With the oldest that is kept.
    Oldest,
    /// With this number.
    At(u64),
}

/// What was found, and where it must stop although there is more.
pub(super) struct Found<R> {
    pub(super) records: Vec<(u64, R)>,
    /// What is behind this number is not known here.
    stopped: Option<u64>,
}

fn invalid(pointer: &str, message: String) -> Error {
    Error::invalid(vec![Problem { pointer: pointer.to_owned(), message }])
}

pub(super) async fn list<N: Numbered>(
    cx: MethodContext,
    view: View,
    asked: From,
) -> Result<Records<N>> {
    let (first, last) = N::ends(&view);
    let oldest = first.unwrap_or(last.saturating_add(1));
    let limit = usize::try_from(asked.limit.unwrap_or(RECORDS_DEFAULT)).unwrap_or(usize::MAX);
    let begin = asked.begin(&view, last)?;
    let mut found = Found { records: vec![], stopped: None };
    let from = match begin {
        Begin::Newest => asked.newest::<N>(&view, last, limit),
        Begin::Oldest => 0,
        Begin::At(from) => from,
    };
    if begin != Begin::Newest && from < oldest && oldest > 1 {
        found = asked.past::<N>(&cx, begin, oldest, limit).await?;
    }
    if found.stopped.is_none() {
        let is_wanted = |(_, record): &(u64, &N::Record)| asked.is_wanted::<N>(record);
        let missing = (limit + 1).saturating_sub(found.records.len());
        let more = N::in_memory(&view, from).filter(is_wanted).take(missing);
        found.records.extend(more.map(|(seq, record)| (seq, record.clone())));
    }
    let older = begin == Begin::Newest && from > 1;
    Ok(records(&view, found, limit, older))
}

fn records<N: Numbered>(
    view: &View,
    found: Found<N::Record>,
    limit: usize,
    older: bool,
) -> Records<N> {
    let Found { mut records, stopped } = found;
    let is_more = records.len() > limit;
    records.truncate(limit);
    let behind = match (records.last(), stopped) {
        (Some((last, _)), _) if is_more => Some(*last),
        (_, stopped) => stopped,
    };
    Records {
        items: records.into_iter().map(|(seq, record)| N::shown(seq, record)).collect(),
        next_cursor: behind.map(|seq| Cursor::at(view, seq).to_string()),
        older,
    }
}

impl From {
    fn is_wanted<N: Numbered>(&self, record: &N::Record) -> bool {
        self.tenant.as_ref().is_none_or(|tenant| tenant == N::tenant(record))
    }

    /// Where it begins, with the last number that there is.
    pub(super) fn begin(&self, view: &View, last: u64) -> Result<Begin> {
        match (&self.cursor, self.from) {
            (Some(text), _) => text
                .parse::<Cursor>()
                .and_then(|cursor| cursor.next_among(view, Some(1), last))
                .map(Begin::At)
                .map_err(|error| self.refused(&error)),
            (None, Some(0)) => Ok(Begin::Oldest),
            (None, Some(from)) => Ok(Begin::At(from)),
            (None, None) => Ok(Begin::Newest),
        }
    }

    /// The number of the oldest of the newest. Those of a tenant are looked for in memory, however many of others came
    /// since.
    fn newest<N: Numbered>(&self, view: &View, last: u64, limit: usize) -> u64 {
        if self.tenant.is_none() {
            let limit = u64::try_from(limit).unwrap_or(u64::MAX);
            return last.saturating_add(1).saturating_sub(limit).max(1);
        }
        let is_wanted = |(_, record): &(u64, &N::Record)| self.is_wanted::<N>(record);
        let newest = N::in_memory(view, 0).rev().filter(is_wanted).take(limit).last();
        newest.map_or(last.saturating_add(1), |(seq, _)| seq)
    }

    /// What history has of it below `until`, where memory begins: up to one more than `limit`.
    pub(super) async fn past<N: Numbered>(
        &self,
        cx: &MethodContext,
        begin: Begin,
        until: u64,
        limit: usize,
    ) -> Result<Found<N::Record>> {
        let mut found = Found { records: vec![], stopped: None };
        let history = match (cx.context.ports.history.get(), begin) {
            (Ok(history), _) => history,
            // A process without a history has never had one.
            (Err(_), Begin::At(from)) => return Err(self.left_memory(from, until)),
            (Err(_), _) => return Ok(found),
        };
        let reach = N::reach(history.reach()).filter(|(_, last)| *last > 0);
        let (first, _) = reach.ok_or_else(|| self.no_history(until))?;
        let mut next = match begin {
            Begin::At(from) if from < first.min(until) => {
                return Err(self.unknown(from, first.min(until) - 1, until));
            }
            Begin::At(from) => from,
            _ => first,
        };
        while next < until {
            let page = N::kept(&**history, next).await?;
            let before = next;
            for (seq, record) in page {
                if seq != next || seq >= until {
                    break;
                }
                next = seq + 1;
                if self.is_wanted::<N>(&record) {
                    found.records.push((seq, record));
                }
                if found.records.len() > limit {
                    return Ok(found);
                }
            }
            if next == before {
                return self.stopped::<N>(found, (begin, next, until));
            }
        }
        Ok(found)
    }

    /// What comes next is not known here: what was found stands, if there is any.
    fn stopped<N: Numbered>(
        &self,
        mut found: Found<N::Record>,
        (begin, next, until): (Begin, u64, u64),
    ) -> Result<Found<N::Record>> {
        found.stopped = match &self.tenant {
            // `TEN-1`: how far others' records go is not told.
            Some(_) => found.records.last().map(|(seq, _)| *seq),
            None if begin == Begin::At(next) => None,
            None => Some(next - 1),
        };
        if found.stopped.is_some() { Ok(found) } else { Err(self.unknown(next, next, until)) }
    }

    fn pointer(&self) -> &'static str {
        if self.cursor.is_some() { "/cursor" } else { "/from" }
    }

    fn left_memory(&self, from: u64, oldest: u64) -> Error {
        let message = match &self.tenant {
            None => format!(
                "{from} has left memory, and the oldest there is {oldest}: begin there, or at 0 for the oldest"
            ),
            Some(_) => "what is asked for has left memory: begin at 0 for the oldest".to_owned(),
        };
        invalid(self.pointer(), message)
    }

    fn elsewhere(&self, message: String) -> Error {
        let problem = Problem { pointer: self.pointer().to_owned(), message: message.clone() };
        let mut error = Error::new(Code::Unavailable, message);
        error.problems = vec![problem];
        error
    }

    /// History is not open, or is off.
    fn no_history(&self, oldest: u64) -> Error {
        let here = match &self.tenant {
            None => format!(": memory begins at {oldest}"),
            Some(_) => String::new(),
        };
        self.elsewhere(format!(
            "what is asked for has left memory, and this replica's history cannot be read now{here}"
        ))
        .hint("ask another replica, or in a moment; `palisade doctor` says what is wrong with a history")
    }

    /// What this replica does not have, and another may.
    fn unknown(&self, from: u64, to: u64, oldest: u64) -> Error {
        let message = match &self.tenant {
            None if from == to => {
                format!("record {from} is not in this replica's history; memory begins at {oldest}")
            }
            None => format!(
                "records {from} to {to} are not in this replica's history: they are older than what it keeps, or it \
                 was not there; memory begins at {oldest}"
            ),
            Some(_) => "a part of what is asked for is not in this replica's history".to_owned(),
        };
        let mut error = self.elsewhere(message).hint(
            "another replica may have it; here, begin at 0 for the oldest that is kept, or behind what is missing",
        );
        error.retryable = false;
        error
    }

    fn refused(&self, error: &CursorError) -> Error {
        let message = match (&self.tenant, error) {
            (Some(_), CursorError::Ahead { seq, .. }) => {
                format!(
                    "the cursor is at {seq}, which is not yet here: ask a replica that is further on"
                )
            }
            _ => error.to_string(),
        };
        match error {
            CursorError::Ahead { .. } => Error::new(Code::Unavailable, message),
            _ => invalid("/cursor", message),
        }
    }
}
