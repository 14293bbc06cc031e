//! Watching lists: what is in one, and then what changes in it, until the watcher goes.
//!
//! # Invariants
//! - `SSE-1` Whoever applies what it is told, in order, has the list as it is at the revision of the last mark; what it
//!   cannot be told, because it was away for too long or is too slow, is told as a reset and the whole list. There is
//!   never a silent gap.
//! - `SSE-2` What is told is something that the watcher's credential may read at that moment, and a watch ends within
//!   [`ALIVE`] once it may not.
//! - `SSE-3` What a watcher has not taken yet costs nothing: memory is bounded for each list, however many watch it.

mod feed;
mod numbered;
mod records;

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{
    future::{Either, select},
    stream::BoxStream,
};
use palisade_contract::{
    Context, Error, MethodContext, Principal, Problem, Resource, Result, Watched, ports::Credential,
};
use palisade_state::{View, cursor::Cursor};
use serde_json::{Map, Value};

use crate::{
    envelope::{self as steps, Authenticated, Consistency, Envelope, Route},
    lists::Filter,
    stop::Stop,
};

pub(crate) use feed::Feeds;

/// A watcher hears something at least so often, and whether it may go on is looked at as often.
pub(crate) const ALIVE: Duration = Duration::from_secs(5);

/// One thing that a watcher is told.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    /// This record is in the list, new or changed; JSON.
    Put(Bytes),
    /// The record of this id is in it no longer.
    Delete(String),
    /// What was told before is void: the list follows, whole.
    Reset,
    /// Up to here everything was told: a later watch goes on behind this cursor.
    Mark(String),
    /// Nothing has happened.
    Alive,
    /// The watch ends, and why.
    End(Arc<Error>),
}

/// What a watcher is told at once.
pub(crate) type Batch = Vec<Told>;

/// What is watched, and by whom.
pub(crate) struct Watching {
    pub(crate) route: Arc<Route>,
    pub(crate) input: Map<String, Value>,
    /// What its records are narrowed by.
    pub(crate) filter: Option<String>,
    pub(crate) credential: Credential,
    pub(crate) who: Authenticated,
    pub(crate) consistency: Consistency,
    pub(crate) request_id: String,
    /// The mark behind which it goes on.
    pub(crate) since: Option<String>,
    /// Raised when the server stops.
    pub(crate) stopping: Stop,
}

pub(super) fn invalid(field: &str, message: impl Into<String>) -> Error {
    Error::invalid(vec![Problem { pointer: format!("/{field}"), message: message.into() }])
}

/// Begins to watch a list.
///
/// # Errors
/// It cannot be watched, the input is wrong, or the caller may not read it.
pub(crate) async fn start(
    envelope: &Envelope,
    feeds: &Arc<Feeds>,
    mut watching: Watching,
) -> Result<BoxStream<'static, Batch>> {
    let method = &watching.route.method;
    let Some(how) = method.watched else {
        return Err(invalid(
            "watch",
            format!("{} cannot be watched: see /openapi.json for what can", watching.route.id),
        ));
    };
    if let (Watched::Numbered(_), Some(since)) = (how, &watching.since) {
        watching.input.insert("cursor".to_owned(), since.as_str().into());
    }
    let input = Value::Object(std::mem::take(&mut watching.input));
    let input = steps::within(&watching.route, input, &watching.who.principal);
    (method.validate)(&input)?;
    let resource = (method.resource)(&input);
    let Watching {
        route, filter, credential, who, consistency, request_id, since, stopping, ..
    } = watching;
    let filter = Narrowed::read(filter, &route)?;
    let context = envelope.context().clone();
    let Authenticated { principal, view, .. } = who;
    envelope.metrics().count(&route.id, "WATCH");
    let watcher =
        Watcher { context, route, input, filter, credential, principal, resource, request_id };
    watcher.authorize(&view)?;
    match how {
        Watched::Numbered(last) => Ok(numbered::watch(watcher, last, stopping)),
        Watched::Records => {
            let since = since.as_deref().map(str::parse::<Cursor>).transpose();
            let since = since.map_err(|error| invalid("lastEventId", error.to_string()))?;
            records::watch(watcher, feeds, view, since, consistency, stopping).await
        }
    }
}

/// What a list is narrowed by.
#[derive(Clone, Default)]
struct Narrowed {
    text: String,
    filter: Option<Filter>,
}

impl Narrowed {
    fn read(text: Option<String>, route: &Route) -> Result<Self> {
        let Some(text) = text else { return Ok(Self::default()) };
        let filter = Filter::read(&text, route.known()).map_err(|why| invalid("filter", why))?;
        Ok(Self { text, filter: Some(filter) })
    }

    fn takes(&self, record: &Value) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(record))
    }
}

/// Who watches what.
struct Watcher {
    context: Context,
    route: Arc<Route>,
    input: Value,
    filter: Narrowed,
    credential: Credential,
    principal: Principal,
    resource: Resource,
    request_id: String,
}

impl Watcher {
    fn method_context(&self) -> MethodContext {
        MethodContext {
            context: self.context.clone(),
            principal: self.principal.clone(),
            request_id: self.request_id.clone(),
            dry_run: false,
            if_match: None,
        }
    }

    fn authorize(&self, view: &View) -> Result<()> {
        let access = self.context.ports.access.get()?;
        access.authorize(view, &self.principal, &self.route.method.action, &self.resource)
    }

    /// `SSE-2`.
    fn may_go_on(&self, view: &View) -> Result<()> {
        let access = self.context.ports.access.get()?;
        let now = access.authenticate(view, &self.credential)?;
        if now != self.principal {
            let changed = Error::new(
                palisade_contract::Code::AccessDenied,
                format!("what {} may do has changed since the watch began", self.principal.name),
            );
            return Err(changed.hint("begin to watch again"));
        }
        self.authorize(view)
    }
}

/// What ended a wait.
enum Woken {
    Changed,
    Late,
    Stopped,
}

async fn woken(context: &Context, stopping: &Stop, changed: impl Future<Output = ()>) -> Woken {
    let (changed, late) = (pin!(changed), context.rt.sleep(ALIVE));
    let stopped = pin!(stopping.raised());
    match select(select(changed, late), stopped).await {
        Either::Left((Either::Left(_), _)) => Woken::Changed,
        Either::Left((Either::Right(_), _)) => Woken::Late,
        Either::Right(_) => Woken::Stopped,
    }
}

fn mark(view: &View, at: u64) -> Told {
    Told::Mark(Cursor::at(view, at).to_string())
}

fn end(error: Error) -> Told {
    Told::End(Arc::new(error))
}

/// The end of a watch on a replica that stops.
fn stopped() -> Told {
    let error = Error::new(palisade_contract::Code::Unavailable, "this replica is stopping");
    end(error.hint("watch through another replica, from the last id on"))
}
