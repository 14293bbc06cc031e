//! Watching lists whose records are numbered: events and the audit chain.

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use palisade_contract::{Code, Error, Handler, Problem, Result};
use palisade_state::{View, Watch, WatchEvent, cursor::Cursor};
use serde_json::Value;

use super::{Batch, Told, Watcher, Woken, end, stopped, woken};
use crate::stop::Stop;

/// Records that are told at once.
const TOGETHER: u64 = 500;

struct State {
    watcher: Watcher,
    changes: Watch,
    last: fn(&View) -> u64,
    stopping: Stop,
    /// Behind which record it goes on; none: it begins as its input says.
    cursor: Option<String>,
    /// The last record that was told; 0: none.
    told: u64,
    /// There may be something to read.
    due: bool,
    ended: bool,
}

pub(super) fn watch(
    watcher: Watcher,
    last: fn(&View) -> u64,
    stopping: Stop,
) -> BoxStream<'static, Batch> {
    let changes = watcher.context.store.watch();
    let cursor = watcher.input.get("cursor").and_then(Value::as_str).map(str::to_owned);
    let told = cursor.as_ref().and_then(|text| text.parse::<Cursor>().ok());
    let told = told.map_or(0, |cursor| cursor.seq);
    let state = State { watcher, changes, last, stopping, cursor, told, due: true, ended: false };
    stream::unfold(state, next).boxed()
}

async fn next(mut state: State) -> Option<(Batch, State)> {
    if state.ended {
        return None;
    }
    loop {
        let mut batch = vec![];
        let waiting = std::iter::from_fn(|| state.changes.try_next()).count();
        let view = state.watcher.context.store.view();
        if std::mem::take(&mut state.due) || waiting > 0 {
            batch = state.read(&view).await.unwrap_or_else(|error| vec![end(error)]);
        }
        if batch.is_empty() {
            let changed = async {
                if let Some(WatchEvent::Changed(_) | WatchEvent::Reset) = state.changes.next().await
                {
                    return;
                }
                // The store has stopped, and the server is about to.
                std::future::pending::<()>().await;
            };
            match woken(&state.watcher.context, &state.stopping, changed).await {
                Woken::Changed => {
                    state.due = true;
                    continue;
                }
                Woken::Late => batch.push(Told::Alive),
                Woken::Stopped => batch.push(stopped()),
            }
        }
        if let Err(refused) = state.watcher.may_go_on(&view) {
            batch = vec![end(refused)];
        }
        state.ended = matches!(batch.last(), Some(Told::End(_)));
        return Some((batch, state));
    }
}

/// Whether it is the cursor that is refused: what is behind it is not known here any more, or belongs to another cluster.
fn is_about_the_cursor(error: &Error) -> bool {
    let is_one = |problem: &Problem| problem.pointer == "/cursor";
    match error.code {
        Code::InvalidInput => error.problems.iter().all(is_one),
        Code::Unavailable => error.problems.first().is_some_and(is_one),
        _ => false,
    }
}

impl State {
    /// What is new, with a mark behind it.
    async fn read(&mut self, view: &View) -> Result<Batch> {
        let is_first = self.cursor.is_none();
        let mut batch = vec![];
        let page = match self.page(view).await {
            Err(refused) if !is_first && is_about_the_cursor(&refused) => {
                batch.push(Told::Reset);
                (self.cursor, self.told) = (None, 0);
                self.page(view).await?
            }
            page => page?,
        };
        let Value::Object(mut page) = page else {
            return Err(Error::internal("a list method answered no list"));
        };
        let Some(Value::Array(items)) = page.remove("items") else {
            return Err(Error::internal("a list method answered no items"));
        };
        let newest = items.last().and_then(|item| item.get("seq")?.as_u64());
        self.told = newest.unwrap_or(self.told);
        let is_mark_due = !items.is_empty();
        for item in items.iter().filter(|item| self.watcher.filter.takes(item)) {
            batch.push(Told::Put(serde_json::to_vec(item).map_err(Error::internal)?.into()));
        }
        let next = match page.remove("nextCursor") {
            Some(Value::String(next)) => {
                self.due = true;
                next
            }
            _ => Cursor::at(view, (self.last)(view)).to_string(),
        };
        if is_mark_due || !batch.is_empty() || self.cursor.is_none() {
            batch.push(if self.watcher.resource.tenant.is_empty() {
                Told::Mark(next.clone())
            } else {
                // `TEN-1`: how far others' records go is not told.
                Told::Mark(Cursor::at(view, self.told).to_string())
            });
        }
        self.cursor = Some(next);
        Ok(batch)
    }

    async fn page(&self, view: &View) -> Result<Value> {
        let handler = &self.watcher.route.method.handler;
        let mut input = self.watcher.input.clone();
        if let Some(fields) = input.as_object_mut() {
            match &self.cursor {
                Some(cursor) => {
                    fields.insert("cursor".to_owned(), cursor.as_str().into());
                    fields.insert("limit".to_owned(), TOGETHER.into());
                    fields.remove("from");
                }
                None => drop(fields.remove("cursor")),
            }
        }
        let cx = self.watcher.method_context();
        match handler {
            Handler::Query(run) => run(&cx, view, input),
            Handler::Read(run) => run(cx, view.clone(), input).await,
            _ => Err(Error::internal("what is watched is no query")),
        }
    }
}
