//! The export: the chain as lines, behind a signed statement of what they are.

use std::{collections::VecDeque, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream};
use palisade_contract::{
    Check, Code, Error, MethodContext, Problem, Problems, Result, method::ByteStream, past::History,
};
use palisade_state::{View, audit::AuditRecord};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    checkpoint::{CHECKPOINTS, formation},
    line::{Entry, Line},
    note::Verifier,
    statement::{Extent, key_name},
};

/// Records that are read and sent together.
const PAGE: usize = 1000;

/// Which records.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Asked {
    /// The first one; absent: the oldest that is kept.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub from: Option<u64>,
    /// The last one; absent: the newest.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub to: Option<u64>,
}

impl Check for Asked {
    fn check(&self, at: &str, problems: &mut Problems) {
        for (name, number) in [("from", self.from), ("to", self.to)] {
            if number == Some(0) {
                problems.add(format!("{at}/{name}"), "records are numbered from 1");
            }
        }
        if let (Some(from), Some(to)) = (self.from, self.to)
            && to < from
        {
            problems.add(format!("{at}/to"), "must not be before from");
        }
    }
}

/// Where records come from.
#[derive(Clone)]
struct Source {
    view: View,
    history: Option<Arc<dyn History>>,
}

impl Source {
    /// Records from a number on, dense; at least that one.
    async fn read(&self, from: u64) -> Result<Vec<AuditRecord>> {
        let oldest = self.view.first_audit().unwrap_or(u64::MAX);
        let mut found: Vec<AuditRecord> = match &self.history {
            Some(history) if from < oldest => history.audit(from, PAGE).await?,
            _ => self.view.audit(from).take(PAGE).cloned().collect(),
        };
        let is_dense = (from..).zip(&found).take_while(|(seq, record)| *seq == record.seq).count();
        found.truncate(is_dense);
        if found.is_empty() {
            let message = format!(
                "record {from} is not known to this replica: it is older than what its history keeps, or it was not there"
            );
            let mut error = Error::new(Code::Unavailable, message)
                .hint("another replica may have it, and is asked with --addr; or begin behind it, with --from");
            error.retryable = false;
            return Err(error);
        }
        Ok(found)
    }

    async fn one(&self, seq: u64) -> Result<AuditRecord> {
        self.read(seq).await?.into_iter().next().ok_or_else(|| Error::internal("no record"))
    }

    /// The oldest record that is known.
    fn first(&self) -> u64 {
        let in_memory = self.view.first_audit().unwrap_or(1);
        let kept = self.history.as_ref().and_then(|history| history.reach().audit);
        kept.filter(|(_, last)| *last > 0).map_or(in_memory, |(first, _)| first.min(in_memory))
    }
}

/// An export on its way.
struct Export {
    source: Source,
    next: u64,
    to: u64,
    /// The hash of the record before the next one.
    before: Vec<u8>,
    checkpoints: VecDeque<(u64, String)>,
}

/// Begins an export: the record of who asked for it is in it, unless it is to end before.
pub(crate) fn export(
    cx: MethodContext,
    _: View,
    asked: Asked,
) -> BoxFuture<'static, Result<ByteStream>> {
    Box::pin(async move {
        let seal = cx.context.ports.seal.get()?.clone();
        // What is signed is committed.
        let view = cx.context.store.linearizable().await?;
        let source =
            Source { view: view.clone(), history: cx.context.ports.history.get().ok().cloned() };
        let last = view.last_audit();
        let (from, to) = (asked.from.unwrap_or_else(|| source.first()), asked.to.unwrap_or(last));
        if from > last || to > last {
            let pointer = if from > last { "/from" } else { "/to" };
            let message = format!("there is no such record yet: the newest is {last}");
            return Err(Error::invalid(vec![Problem { pointer: pointer.to_owned(), message }]));
        }
        let (first, end) = (source.one(from).await?, source.one(to).await?);
        let formation = formation(&view)?;
        let extent = Extent {
            from,
            to,
            prev: first.prev_hash.clone(),
            head: end.hash,
            at_ms: view.clock().wall_ms,
        };
        let key = Verifier::new(key_name(&formation.lineage), seal.public());
        let note = key.sign(&extent.text(&formation), &*seal);
        let head = Line::Export { note }.text().map_err(Error::internal)?;
        let mut checkpoints = VecDeque::new();
        for row in CHECKPOINTS.page(&view, &[], None) {
            let (size, row) = row?;
            // What another key has signed, of an earlier CA, is not for who has this one: `audit.checkpoints` has all.
            let is_ours = row.value.lineage == formation.lineage
                && row.value.note.as_ref().is_some_and(|note| key.has_signed(note))
                && (from..=to).contains(&size);
            checkpoints.extend(row.value.note.filter(|_| is_ours).map(|note| (size, note)));
        }
        let export = Export { source, next: from, to, before: first.prev_hash, checkpoints };
        let lines = stream::unfold(Some(export), |export| async move {
            let mut export = export.filter(|export| export.next <= export.to)?;
            match export.more().await {
                Ok(bytes) => Some((Ok(bytes), Some(export))),
                Err(error) => Some((Err(error), None)),
            }
        });
        let begin = stream::once(std::future::ready(Ok(head.into_bytes())));
        Ok(Box::pin(begin.chain(lines)) as ByteStream)
    })
}

impl Export {
    /// The next lines.
    async fn more(&mut self) -> Result<Vec<u8>> {
        let mut lines = String::new();
        for record in self.source.read(self.next).await? {
            if record.seq > self.to {
                break;
            }
            if record.prev_hash != self.before || !record.is_sound() {
                let what = format!("audit record {} does not follow the one before it", record.seq);
                return Err(Error::internal(what));
            }
            lines +=
                &Line::Record(Box::new(Entry::from(&record))).text().map_err(Error::internal)?;
            while let Some((_, note)) =
                self.checkpoints.pop_front_if(|(size, _)| *size <= record.seq)
            {
                lines += &Line::Checkpoint { note }.text().map_err(Error::internal)?;
            }
            self.next = record.seq + 1;
            self.before = record.hash;
        }
        Ok(lines.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_record_has_are_refused_and_not_looked_for() {
        let problems = |from, to| {
            let mut problems = Problems::default();
            Asked { from, to }.check("", &mut problems);
            problems.into_result().err().map(|error| error.problems.len()).unwrap_or_default()
        };
        assert_eq!(problems(Some(0), Some(0)), 2);
        assert_eq!(problems(None, Some(0)), 1);
        assert_eq!(problems(Some(3), Some(2)), 1);
        assert_eq!(problems(Some(3), Some(3)), 0);
    }
}
