//! Watching lists whose records are compared.

use std::{pin::pin, sync::Arc};

use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use palisade_contract::Result;
use palisade_state::{View, WatchEvent, cursor::Cursor};

use super::{
    Batch, Told, Watcher, Woken, end,
    feed::{Feeds, Share, Taken},
    invalid, mark, stopped, woken,
};
use crate::{envelope::Consistency, stop::Stop};

/// How a watch begins.
enum Begin {
    /// With the whole list; after a reset, for one that was there before.
    All { reset: bool },
    /// Behind this revision.
    At(u64),
}

/// One watcher on its way.
struct State {
    watcher: Watcher,
    share: Share,
    stopping: Stop,
    /// What it was told up to; none: nothing yet.
    at: Option<u64>,
    /// It was told something by an earlier watch that is void.
    reset: bool,
    begun: bool,
    ended: bool,
}

pub(super) async fn watch(
    watcher: Watcher,
    feeds: &Arc<Feeds>,
    view: View,
    since: Option<Cursor>,
    consistency: Consistency,
    stopping: Stop,
) -> Result<BoxStream<'static, Batch>> {
    let view = reached(&watcher, view, since.as_ref(), consistency).await?;
    let share = feeds.share(
        &watcher.route,
        &watcher.input,
        &watcher.filter,
        watcher.method_context(),
        &view,
    )?;
    let (at, reset) = match begin(&watcher, &share, &view, since) {
        Begin::All { reset } => (None, reset),
        Begin::At(at) => (Some(at), false),
    };
    let state = State { watcher, share, stopping, at, reset, begun: false, ended: false };
    Ok(stream::unfold(state, next).boxed())
}

/// A view that has what the watcher has seen.
async fn reached(
    watcher: &Watcher,
    view: View,
    since: Option<&Cursor>,
    consistency: Consistency,
) -> Result<View> {
    let ours = Cursor::at(&view, view.revision());
    match since {
        Some(since) if since.cluster == ours.cluster && since.seq > ours.seq => {
            if consistency == Consistency::Local {
                let (theirs, ours) = (since.seq, ours.seq);
                return Err(invalid(
                    "lastEventId",
                    format!(
                        "is of revision {theirs}, and this replica has {ours}: leave consistency=local out to wait for it"
                    ),
                ));
            }
            Ok(watcher.context.store.at_revision(since.seq).await?)
        }
        _ => Ok(view),
    }
}

/// `SSE-1`: goes on behind `since` only when all that has changed from there on is known.
fn begin(watcher: &Watcher, share: &Share, view: &View, since: Option<Cursor>) -> Begin {
    let Some(since) = since else { return Begin::All { reset: false } };
    if since.cluster != Cursor::at(view, 0).cluster {
        return Begin::All { reset: true };
    }
    let floor = share.floor();
    if since.seq >= floor {
        return Begin::At(since.seq);
    }
    // Another replica was asked before, or a long time has passed: nothing may have changed all the same.
    let mut changes = watcher.context.store.watch_from(since.seq);
    let mut passed = std::iter::from_fn(|| changes.try_next());
    let has_changed = |event: WatchEvent| match event {
        WatchEvent::Reset => true,
        WatchEvent::Changed(set) => {
            set.revision <= floor && (set.everything || !set.rows.is_empty())
        }
    };
    if passed.any(has_changed) {
        return Begin::All { reset: true };
    }
    Begin::At(floor)
}

async fn next(mut state: State) -> Option<(Batch, State)> {
    if state.ended {
        return None;
    }
    let mut batch = state.wait().await;
    if let Err(refused) = state.watcher.may_go_on(&state.watcher.context.store.view()) {
        batch = vec![end(refused)];
    }
    state.ended = matches!(batch.last(), Some(Told::End(_)));
    Some((batch, state))
}

impl State {
    /// Waits until there is something to tell.
    async fn wait(&mut self) -> Batch {
        loop {
            let Self { watcher, share, stopping, at, reset, begun, .. } = &mut *self;
            // From before the list is looked at on, so that no change can fall between.
            let mut changed = pin!(share.changed());
            changed.as_mut().enable();
            let is_first = !std::mem::replace(begun, true);
            let told = tell(share.take(*at), at, *reset, is_first, &watcher.context.store.view());
            if !told.is_empty() {
                return told;
            }
            match woken(&watcher.context, stopping, changed).await {
                Woken::Changed => {}
                Woken::Late => return vec![Told::Alive],
                Woken::Stopped => return vec![stopped()],
            }
        }
    }
}

/// What there is to tell somebody who was told everything up to `at`.
fn tell(taken: Taken, at: &mut Option<u64>, reset: bool, is_first: bool, view: &View) -> Batch {
    match taken {
        Taken::Failed(error) => vec![Told::End(error)],
        Taken::Steps(mut told, revision) => {
            *at = Some(revision);
            if is_first || !told.is_empty() {
                told.push(mark(view, revision));
            }
            told
        }
        Taken::All(records, revision) => {
            // Whoever was told something before was too slow.
            let is_void = at.replace(revision).is_some() || reset;
            let mut told: Batch = is_void.then_some(Told::Reset).into_iter().collect();
            told.extend(records.into_iter().map(Told::Put));
            told.push(mark(view, revision));
            told
        }
    }
}
