//! A history for the world in memory: each thing is as it was, because nothing is ever told to have changed.

use std::sync::Arc;

use futures::future::{BoxFuture, ready};
use palisade_contract::{
    Result, When,
    past::{History, Lives, Reach, Wanted},
};
use palisade_state::{
    Store, View, audit::AuditRecord, memory::MemoryStore, outbox::Event, past::Kept,
};

/// See the module.
pub struct Still(pub Arc<MemoryStore>);

impl History for Still {
    fn reach(&self) -> Reach {
        let view = self.0.view();
        Reach { audit: Some((1, view.last_audit())), events: Some((1, view.last_event())) }
    }

    fn audit(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<AuditRecord>>> {
        let view = self.0.view();
        Box::pin(ready(Ok(view.audit(from).take(limit).cloned().collect())))
    }

    fn events(&self, from: u64, limit: usize) -> BoxFuture<'static, Result<Vec<(u64, Event)>>> {
        let view = self.0.view();
        let events = view.events(from).take(limit).map(|(seq, event)| (seq, event.clone()));
        Box::pin(ready(Ok(events.collect())))
    }

    fn view_at(&self, _: When, tables: Vec<Kept>) -> BoxFuture<'static, Result<View>> {
        let view = self.0.view();
        let tables: Vec<_> = tables.into_iter().map(|table| (table, vec![])).collect();
        Box::pin(ready(view.as_of(view.revision(), view.clock(), &tables).map_err(Into::into)))
    }

    fn lives(&self, _: &'static str, _: Wanted) -> BoxFuture<'static, Result<Lives>> {
        let (lives, gaps) = (vec![], vec![]);
        Box::pin(ready(Ok(Lives { lives, view: self.0.view(), from_revision: 1, gaps })))
    }

    fn times(&self, revisions: Vec<u64>) -> BoxFuture<'static, Result<Vec<Option<u64>>>> {
        Box::pin(ready(Ok(revisions.iter().map(|_| None).collect())))
    }
}
