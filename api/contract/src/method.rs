//! Methods: the typed API of a module, without a word about its transport.

use std::{fmt, pin::Pin, sync::Arc};

use futures::{Stream, future::BoxFuture};
use palisade_state::{Tx, View};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    context::MethodContext,
    error::{Error, Result},
    input::{self, Check},
};

/// What a method does to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MethodKind {
    /// Reads only.
    Query,
    /// Writes.
    Mutation,
    /// Writes, and may be held for approval where the tenant asks for it.
    Destructive,
    /// Reads, and answers with a stream of bytes.
    Stream,
}

/// The verb of a method's REST binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// GET
    Get,
    /// POST
    Post,
    /// PUT
    Put,
    /// PATCH
    Patch,
    /// DELETE
    Delete,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        })
    }
}

impl fmt::Display for MethodKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Query => "query",
            Self::Mutation => "mutation",
            Self::Destructive => "destructive",
            Self::Stream => "stream",
        })
    }
}

/// Where a method is found over REST. Parameters in the path (`/nodes/{node}`) and in the query
/// become fields of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The verb.
    pub verb: Verb,
    /// The path below the API's base.
    pub path: String,
}

/// How a list is watched.
#[derive(Clone, Copy, Debug)]
pub enum Watched {
    /// By comparing its records by their id (or name), whenever a row of any table has changed. A record that changes
    /// several times in a moment may be told once, as it is then.
    Records,
    /// Its records are numbered by `seq` and never change: what is new is read behind the last one, which this finds
    /// in a view. Its input has a `cursor` whose text is a [`palisade_state::cursor::Cursor`].
    Numbered(fn(&View) -> u64),
}

/// What a caller wants to act on, for authorization and audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resource {
    /// `node`, `workload`, `cluster` …
    pub kind: String,
    /// Its id or name; empty: all of them.
    pub id: String,
    /// Whose it is; empty: the cluster's.
    pub tenant: String,
}

impl Resource {
    /// A resource of the cluster's own.
    #[must_use]
    pub fn cluster(kind: &str, id: &str) -> Self {
        Self { kind: kind.to_owned(), id: id.to_owned(), tenant: String::new() }
    }

    /// A resource of a tenant.
    #[must_use]
    pub fn of_tenant(kind: &str, id: &str, tenant: &str) -> Self {
        Self { kind: kind.to_owned(), id: id.to_owned(), tenant: tenant.to_owned() }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, if self.id.is_empty() { "*" } else { &self.id })
    }
}

/// Bytes that come as they are made.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Vec<u8>>> + Send>>;

/// The media type of a stream, unless a method says another.
pub const TEXT: &str = "text/plain; charset=utf-8";

/// The records of a list, made as they are taken.
pub type Records<'a, O> = Box<dyn Iterator<Item = Result<O>> + 'a>;

type RecordsFn = dyn for<'a> Fn(&'a MethodContext, &'a View, Value, &str) -> Result<Records<'a, Value>>
    + Send
    + Sync;
type ValidateFn = dyn Fn(&Value) -> Result<()> + Send + Sync;
type QueryFn = dyn Fn(&MethodContext, &View, Value) -> Result<Value> + Send + Sync;
type MutationFn = dyn Fn(&MethodContext, &mut Tx, Value) -> Result<Value> + Send + Sync;
type ReadFn = dyn Fn(MethodContext, View, Value) -> BoxFuture<'static, Result<Value>> + Send + Sync;
type StreamFn =
    dyn Fn(MethodContext, View, Value) -> BoxFuture<'static, Result<ByteStream>> + Send + Sync;
type ActionFn = dyn Fn(MethodContext, Value) -> BoxFuture<'static, Result<Value>> + Send + Sync;

/// The code behind a method.
#[derive(Clone)]
pub enum Handler {
    /// Reads a view.
    Query(Arc<QueryFn>),
    /// Reads a view, and what is not in it.
    Read(Arc<ReadFn>),
    /// Builds a transaction. May run several times: on a conflict it gets a fresh view.
    Mutation(Arc<MutationFn>),
    /// Opens a stream.
    Stream(Arc<StreamFn>),
    /// Does something that is no transaction, such as a change of the control plane's members. May
    /// run twice for one request: it must do no more than once.
    Action(Arc<ActionFn>),
}

/// One method.
#[derive(Clone)]
pub struct Method {
    /// Its group, such as `nodes`.
    pub group: String,
    /// Its name, such as `list`.
    pub name: String,
    /// What it is for, in a sentence.
    pub summary: String,
    /// What it does to state.
    pub kind: MethodKind,
    /// The action that its caller must be allowed, `compute:<area>:<verb>`.
    pub action: String,
    /// Its REST binding; absent: `POST <group>/<name>`.
    pub binding: Option<Binding>,
    /// Whether the answer is a list of records.
    pub list: bool,
    /// The records of the list behind the one of this id, in the order of their ids; absent: they are all made at once.
    pub records: Option<Arc<RecordsFn>>,
    /// How the list can be watched; absent: it cannot.
    pub watched: Option<Watched>,
    /// The media type of a stream.
    pub media: &'static str,
    /// Whether it is in the audit chain although it writes nothing.
    pub audited: bool,
    /// Fields of the input whose text is a secret: not in what ties an idempotency key to its request, and not in a URL.
    pub secret: &'static [&'static str],
    /// Whether it also reads the state as it was: it reads nothing but the view, and of that only kept tables.
    pub past: bool,
    /// JSON Schema of the input.
    pub input: fn(&mut SchemaGenerator) -> Schema,
    /// JSON Schema of the output.
    pub output: fn(&mut SchemaGenerator) -> Schema,
    /// Finds every problem of an input.
    pub validate: Arc<ValidateFn>,
    /// What an input acts on.
    pub resource: Arc<dyn Fn(&Value) -> Resource + Send + Sync>,
    /// The code.
    pub handler: Handler,
}

impl fmt::Debug for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Method")
            .field("group", &self.group)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn encode<O: Serialize>(output: &O) -> Result<Value> {
    serde_json::to_value(output).map_err(Error::internal)
}

impl Method {
    fn new<I, O>(group: &str, name: &str, kind: MethodKind, action: &str, handler: Handler) -> Self
    where
        I: DeserializeOwned + JsonSchema + Check + 'static,
        O: JsonSchema,
    {
        Self {
            group: group.to_owned(),
            name: name.to_owned(),
            summary: String::new(),
            kind,
            action: action.to_owned(),
            binding: None,
            list: false,
            records: None,
            watched: None,
            media: TEXT,
            audited: false,
            secret: &[],
            past: false,
            input: <SchemaGenerator>::subschema_for::<I>,
            output: <SchemaGenerator>::subschema_for::<O>,
            validate: Arc::new(|value| input::decode::<I>(value).map(drop)),
            resource: Arc::new(|_| Resource::default()),
            handler,
        }
    }

    /// A method that reads.
    pub fn query<I, O>(
        group: &str,
        name: &str,
        action: &str,
        handler: impl Fn(&MethodContext, &View, I) -> Result<O> + Send + Sync + 'static,
    ) -> Self
    where
        I: DeserializeOwned + JsonSchema + Check + 'static,
        O: Serialize + JsonSchema,
    {
        let run = move |cx: &MethodContext, view: &View, value: Value| {
            encode(&handler(cx, view, input::decode(&value)?)?)
        };
        Self::new::<I, O>(group, name, MethodKind::Query, action, Handler::Query(Arc::new(run)))
    }

    /// A method that reads a list of records. The handler is given the id behind which to begin, empty for the first, and
    /// makes records as they are taken, in the order of their ids: so a part of a long list costs what it has, and
    /// not the whole list.
    pub fn listing<I, O>(
        group: &str,
        name: &str,
        action: &str,
        handler: impl for<'a> Fn(&'a MethodContext, &'a View, I, &str) -> Result<Records<'a, O>>
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        I: DeserializeOwned + JsonSchema + Check + 'static,
        O: Serialize + JsonSchema + 'static,
    {
        let handler = Arc::new(handler);
        let all = handler.clone();
        let run = move |cx: &MethodContext, view: &View, value: Value| {
            let records = all(cx, view, input::decode(&value)?, "")?;
            records.map(|record| encode(&record?)).collect::<Result<Vec<Value>>>().map(Value::Array)
        };
        let kind = MethodKind::Query;
        let mut method =
            Self::new::<I, Vec<O>>(group, name, kind, action, Handler::Query(Arc::new(run)));
        method.list = true;
        method.records = Some(Arc::new(move |cx, view, value, after| {
            let records = handler(cx, view, input::decode(&value)?, after)?;
            Ok(Box::new(records.map(|record| encode(&record?))))
        }));
        method
    }

    /// A method that reads a view, and what is not in it, such as history.
    pub fn read<I, O>(
        group: &str,
        name: &str,
        action: &str,
        handler: impl Fn(MethodContext, View, I) -> BoxFuture<'static, Result<O>>
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        I: DeserializeOwned + JsonSchema + Check + 'static,
        O: Serialize + JsonSchema + 'static,
    {
        let run = move |cx: MethodContext, view: View, value: Value| {
            let begun = input::decode(&value).map(|input| handler(cx, view, input));
            let run = async move { encode(&begun?.await?) };
            Box::pin(run) as BoxFuture<'static, _>
        };
        Self::new::<I, O>(group, name, MethodKind::Query, action, Handler::Read(Arc::new(run)))
    }

    /// A method that writes. The handler's answer is kept with the transaction.
    pub fn mutation<I, O>(
        group: &str,
        name: &str,
        action: &str,
        handler: impl Fn(&MethodContext, &mut Tx, I) -> Result<O> + Send + Sync + 'static,
    ) -> Self
    where
        I: DeserializeOwned + JsonSchema + Check + 'static,
        O: Serialize + JsonSchema,
    {
        let run = move |cx: &MethodContext, tx: &mut Tx, value: Value| {
            encode(&handler(cx, tx, input::decode(&value)?)?)
        };
        Self::new::<I, O>(
            group,
            name,
            MethodKind::Mutation,
            action,
            Handler::Mutation(Arc::new(run)),
        )
    }

    /// A method that answers with a stream of bytes.
    pub fn stream<I>(
        group: &str,
        name: &str,
        action: &str,
        handler: impl Fn(MethodContext, View, I) -> BoxFuture<'static, Result<ByteStream>>
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        I: DeserializeOwned + JsonSchema + Check + 'static,
    {
        let run = move |cx: MethodContext, view: View, value: Value| match input::decode(&value) {
            Ok(input) => handler(cx, view, input),
            Err(error) => Box::pin(std::future::ready(Err(error))) as BoxFuture<'static, _>,
        };
        Self::new::<I, String>(
            group,
            name,
            MethodKind::Stream,
            action,
            Handler::Stream(Arc::new(run)),
        )
    }

    /// A method that does something which is no transaction. It looks at
    /// [`MethodContext::dry_run`] itself.
    pub fn action<I, O>(
        group: &str,
        name: &str,
        action: &str,
        handler: impl Fn(MethodContext, I) -> BoxFuture<'static, Result<O>> + Send + Sync + 'static,
    ) -> Self
    where
        I: DeserializeOwned + JsonSchema + Check + 'static,
        O: Serialize + JsonSchema + 'static,
    {
        let run = move |cx: MethodContext, value: Value| {
            let begun = input::decode(&value).map(|input| handler(cx, input));
            let run = async move { encode(&begun?.await?) };
            Box::pin(run) as BoxFuture<'static, _>
        };
        let handler = Handler::Action(Arc::new(run));
        Self::new::<I, O>(group, name, MethodKind::Mutation, action, handler)
    }

    /// Says what it is for.
    #[must_use]
    pub fn summary(mut self, summary: &str) -> Self {
        summary.clone_into(&mut self.summary);
        self
    }

    /// Binds it to a verb and path.
    #[must_use]
    pub fn rest(mut self, verb: Verb, path: &str) -> Self {
        self.binding = Some(Binding { verb, path: path.to_owned() });
        self
    }

    /// Its answer is a list of records.
    #[must_use]
    pub fn list(mut self) -> Self {
        self.list = true;
        self
    }

    /// Its list can be watched.
    #[must_use]
    pub fn watched(mut self, how: Watched) -> Self {
        self.watched = Some(how);
        self
    }

    /// Its stream is of this media type; plain text otherwise.
    #[must_use]
    pub fn media(mut self, media: &'static str) -> Self {
        self.media = media;
        self
    }

    /// Is recorded in the audit chain before it answers, although it writes nothing; so is its refusal.
    /// On a full disk, where no record has room, it answers all the same, and the replica's log has who asked.
    #[must_use]
    pub fn audited(mut self) -> Self {
        self.audited = true;
        self
    }

    /// These fields of its input are secrets (`SEC-1`): their schema is `writeOnly`, so that no problem tells what they hold.
    #[must_use]
    pub fn secret(mut self, fields: &'static [&'static str]) -> Self {
        self.secret = fields;
        self
    }

    /// Also reads the state as it was (`?at=`): all that it looks at is in the view, in tables that their modules name in
    /// [`kept`](crate::Module::kept).
    #[must_use]
    pub fn past(mut self) -> Self {
        self.past = true;
        self
    }

    /// May be held for approval.
    #[must_use]
    pub fn destructive(mut self) -> Self {
        self.kind = MethodKind::Destructive;
        self
    }

    /// Says what an input acts on.
    #[must_use]
    pub fn on(mut self, resource: impl Fn(&Value) -> Resource + Send + Sync + 'static) -> Self {
        self.resource = Arc::new(resource);
        self
    }

    /// `group.name`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.group, self.name)
    }
}
