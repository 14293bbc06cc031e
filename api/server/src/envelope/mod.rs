//! The envelope: the steps that every call passes, whatever its transport.
//!
//! Authenticate → find the method → parse and validate → authorize → idempotency → handler →
//! commit with the audit record → answer.
//!
//! # Invariants
//! - `ENV-1` A handler runs only for a principal that may do the method's action on what the input
//!   names.
//! - `ENV-2` Each mutation that is not refused for its rate (`RATE-3`) leaves one audit record: with its writes when it is applied, by itself
//!   when it is refused or is an action, whose effect is not in a transaction.
//! - `ENV-3` Queries never write.
//! - `ENV-4` A write is answered within [`WRITE_BUDGET`] of the envelope's own time: the read before it, the commit, and the
//!   record of a refusal share it.

mod action;
mod held;
mod page;
mod past;
mod record;
mod route;
mod tenant;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use palisade_contract::{
    Code, Context, Error, Handler, MethodContext, MethodKind, Principal, Registry, Resource,
    Result, When, id, method::ByteStream, ports::Credential, tenants::whose_leave,
};
use palisade_state::{
    StoreError, Tx, View,
    command::{AuditDraft, Idempotency},
    commit::Committed,
    past::Kept,
    port::timeout,
};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    Limits, json,
    metrics::Metrics,
    problem,
    propose::{Once, WRITE_BUDGET, commit_once},
    rate::Rates,
};

pub use page::{LIMIT_DEFAULT, LIMIT_MAX, Page};
pub(crate) use route::routes as routes_of;
pub use route::{FieldKind, Route};
pub(crate) use tenant::within;

/// Of what an audit record says it is about: a name that is refused may be as long as a request.
const RECORDED_CHARS_MAX: usize = 512;

const NO_QUORUM: StoreError = StoreError::NoQuorum { waited_ms: 5_000 };

/// How new a read must be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Contains every write acknowledged before.
    #[default]
    Linearizable,
    /// What this replica has, at once.
    Local,
    /// At least this revision.
    AtRevision(u64),
}

/// Who calls.
#[derive(Clone, Debug)]
pub enum Caller {
    /// Whoever presents this.
    Credential(Credential),
    /// Code of this process, under a name of its own. Authorized like anybody else.
    Internal(Principal),
}

/// What a caller may say beside the input.
#[derive(Clone, Debug, Default)]
pub struct CallOptions {
    /// For logs, audit and the problem document; minted when empty.
    pub request_id: String,
    /// The caller's `Idempotency-Key`.
    pub idempotency_key: Option<String>,
    /// Only say what would be done.
    pub dry_run: bool,
    /// The revision that `If-Match` names.
    pub if_match: Option<u64>,
    /// How new a read must be.
    pub consistency: Consistency,
    /// Which part of a list.
    pub page: Page,
    /// The moment whose state is read; absent: the present.
    pub at: Option<When>,
}

/// What is answered.
pub enum Reply {
    /// A JSON document.
    Json(Value),
    /// Bytes as they come.
    Stream(ByteStream),
}

/// An answer.
pub struct Answer {
    /// What is answered.
    pub reply: Reply,
    /// The revision that it reflects.
    pub revision: u64,
    /// The record's own revision, when it has one.
    pub etag: Option<u64>,
    /// It was answered to an earlier call under the same key.
    pub replayed: bool,
    /// It is the record of what holds the call, which was not made (`QUO-6`).
    pub held: bool,
}

impl Answer {
    /// One without an entity tag, given for the first time, to a call that was made.
    fn new(reply: Reply, revision: u64) -> Self {
        Self { reply, revision, etag: None, replayed: false, held: false }
    }
}

/// A caller that is known, and the view on which it was.
#[derive(Clone)]
pub struct Authenticated {
    /// Who calls.
    pub principal: Principal,
    /// The view that the call reads.
    pub view: View,
    /// How long it took to have the view: of a write's time, so much is spent.
    pub spent: Duration,
}

/// All methods, behind the steps.
pub struct Envelope {
    context: Context,
    routes: BTreeMap<String, Arc<Route>>,
    metrics: Metrics,
    rates: Arc<Rates>,
    /// The tables that can be read as they were.
    kept: Vec<Kept>,
}

impl Envelope {
    /// Over the methods of all modules.
    ///
    /// # Errors
    /// `INVALID_CONFIG` when two methods have one id.
    pub fn new(
        registry: &Registry,
        context: Context,
        metrics: Metrics,
        limits: &Limits,
    ) -> Result<Self> {
        let mut routes = BTreeMap::new();
        for route in route::routes(registry) {
            let id = route.id.clone();
            if routes.insert(id.clone(), Arc::new(route)).is_some() {
                return Err(Error::new(
                    Code::InvalidConfig,
                    format!("method {id} is registered twice"),
                ));
            }
        }
        let rates = Rates::new(context.rt.clone(), limits, metrics.clone());
        Ok(Self { context, routes, metrics, rates, kept: registry.kept() })
    }

    /// How often somebody may ask.
    pub(crate) fn rates(&self) -> &Arc<Rates> {
        &self.rates
    }

    /// The ports.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// What is counted.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// All methods by id.
    pub fn routes(&self) -> impl Iterator<Item = &Arc<Route>> {
        self.routes.values()
    }

    /// A method by id.
    ///
    /// # Errors
    /// `NOT_FOUND`, with the nearest one.
    pub fn find(&self, method: &str) -> Result<&Arc<Route>> {
        self.routes.get(method).ok_or_else(|| {
            let error = Error::not_found("method", method);
            match palisade_contract::input::nearest(method, self.routes.keys().map(String::as_str))
            {
                Some(near) => error.hint(format!("did you mean {near}?")),
                None => error,
            }
        })
    }

    /// Calls a method from within the process: the same steps as over REST.
    ///
    /// # Errors
    /// What any of the steps refused.
    pub async fn call(
        &self,
        method: &str,
        input: Value,
        caller: Caller,
        options: CallOptions,
    ) -> Result<Answer> {
        let who = self.authenticate(caller, options.consistency).await?;
        let route = self.find(method)?.clone();
        self.run(&route, input, who, options).await
    }

    /// The first step: who calls, on a view as new as was asked for.
    ///
    /// # Errors
    /// `UNAUTHENTICATED`, or the view cannot be had.
    pub async fn authenticate(
        &self,
        caller: Caller,
        consistency: Consistency,
    ) -> Result<Authenticated> {
        let Context { store, rt, .. } = &self.context;
        let begun = rt.now();
        let view = match consistency {
            Consistency::Local => store.view(),
            Consistency::Linearizable => {
                let read = timeout(&**rt, WRITE_BUDGET, store.linearizable()).await;
                read.unwrap_or(Err(NO_QUORUM))?
            }
            Consistency::AtRevision(revision) => store.at_revision(revision).await?,
        };
        let spent = rt.now().saturating_sub(begun);
        let principal = match caller {
            Caller::Internal(principal) => principal,
            Caller::Credential(credential) => {
                self.check_key(&view, &credential)?;
                self.context.ports.access.get()?.authenticate(&view, &credential)?
            }
        };
        Ok(Authenticated { principal, view, spent })
    }

    /// `PKI-3`
    fn check_key(&self, view: &View, credential: &Credential) -> Result<()> {
        let (Credential::Certificate { key, .. }, Some(certificates)) =
            (credential, self.context.ports.certificates.filled())
        else {
            return Ok(());
        };
        if certificates.is_revoked(view, key)? {
            // In the words of every wrong credential.
            return Err(Error::new(
                Code::Unauthenticated,
                "the credential is wrong, expired or revoked",
            )
            .hint("a cluster-admin sees with `palisade pki revocations` what was revoked"));
        }
        Ok(())
    }

    /// The steps after the method was found.
    ///
    /// # Errors
    /// What any of the steps refused.
    pub async fn run(
        &self,
        route: &Route,
        input: Value,
        who: Authenticated,
        mut options: CallOptions,
    ) -> Result<Answer> {
        if options.request_id.is_empty() {
            options.request_id = id::mint(&*self.context.rt, "req");
        }
        let (request_id, name) = (options.request_id.clone(), route.id.clone());
        let actor = who.principal.name.clone();
        let ended = self.steps(route, input, who, options).await;
        let code = match &ended {
            Ok(_) => "OK",
            Err(error) => {
                problem::log(error, &name, &request_id);
                error.code.as_str()
            }
        };
        self.metrics.count(&name, code);
        tracing::debug!(request_id, actor, method = name, code, "call");
        ended
    }

    async fn steps(
        &self,
        route: &Route,
        input: Value,
        who: Authenticated,
        options: CallOptions,
    ) -> Result<Answer> {
        let method = &route.method;
        let input = within(route, input, &who.principal);
        (method.validate)(&input)?;
        action::check_conditions(method, &options)?;
        let resource = (method.resource)(&input);
        let Authenticated { principal, view, spent } = who;
        let deadline = self.context.rt.now() + WRITE_BUDGET.saturating_sub(spent);
        let access = &**self.context.ports.access.get()?;
        let by_leave_of = whose_leave(access, &view, &principal, &method.action, &resource);
        let allowed = access
            .authorize(&view, &principal, &method.action, &resource)
            .and_then(|()| tenant::lets(&self.context, method.kind, &by_leave_of, &view));
        let call = Call { route, principal, resource, view, options, deadline };
        if let Err(denied) = allowed {
            if call.is_recorded() {
                self.rates.deny(&call.principal.name)?;
            }
            self.audit_refusal(&call, &denied).await;
            return Err(denied);
        }
        let cx = call.method_context(&self.context);
        match &method.handler {
            Handler::Read(run) => {
                let (view, page) = (&call.view, &call.options.page);
                let value = run(cx.clone(), view.clone(), input.clone()).await?;
                if method.list {
                    return page::list(route, &cx, view, input, page, |_| Ok(value));
                }
                page::record(value, view, page)
            }
            Handler::Query(run) => {
                let (view, page) = (&self.view_of(&call).await?, &call.options.page);
                if method.list {
                    return page::list(route, &cx, view, input, page, |input| {
                        run(&cx, view, input)
                    });
                }
                let value =
                    run(&cx, view, input).map_err(|error| past::told(&call, view, error))?;
                page::record(value, view, page)
            }
            Handler::Stream(run) => {
                let revision = call.view.revision();
                if method.audited {
                    self.record_read(&call).await?;
                }
                let stream = run(cx, call.view, input).await?;
                Ok(Answer::new(Reply::Stream(stream), revision))
            }
            Handler::Action(run) => self.act(&call, cx, input, &**run).await,
            Handler::Mutation(run) => {
                let build = |tx: &mut Tx| {
                    // TEN-9: again, as part of what is read, for a tenant that is suspended at this moment.
                    self.context.ports.tenant_writable(tx, &by_leave_of)?;
                    held::make_or_hold(&cx, tx, (route, &input, &call.resource), &**run)
                };
                if call.options.dry_run {
                    return dry_run(&call.view, build);
                }
                let ended = self.mutate(&call, &input, build).await;
                if let Err(refused) = &ended {
                    self.audit_refusal(&call, refused).await;
                }
                ended
            }
        }
    }

    /// The input as a request is known by: `SEC-1`, what is secret is in it as a keyed digest.
    fn blinded(&self, call: &Call<'_>, input: &Value) -> Result<Value> {
        let mut input = input.clone();
        for field in call.route.method.secret {
            if let Some(Value::String(text)) = input.get_mut(*field) {
                let secrets = self.context.ports.secrets.filled().ok_or_else(|| {
                    Error::new(Code::Unsupported, "this process takes no secrets: ask a replica")
                })?;
                *text = secrets.blind(&call.view, text)?;
            }
        }
        Ok(input)
    }

    async fn mutate(
        &self,
        call: &Call<'_>,
        input: &Value,
        build: impl Fn(&mut Tx) -> Result<Value> + Send + Sync,
    ) -> Result<Answer> {
        let key = call.options.idempotency_key.as_deref();
        let input = &self.blinded(call, input)?;
        let once = Once {
            may_be_known: key.is_some(),
            key: match key {
                Some(key) => call.key(key, input),
                None => call.key(&id::mint(&*self.context.rt, "once"), input),
            },
        };
        let draft = call.audit("ok");
        let committed = commit_once(&self.context, call.view.clone(), once, call.deadline, |tx| {
            let value = build(tx)?;
            tx.respond(serde_json::to_vec(&value).map_err(Error::internal)?);
            let mut draft = draft.clone();
            if held::is_held(&value) {
                "held".clone_into(&mut draft.outcome);
            }
            if draft.tenant.is_empty() {
                // Who is bound to none may change a tenant's thing by its id, and not say whose it is.
                tx.tenant_told().clone_into(&mut draft.tenant);
            }
            tx.audit(draft);
            Ok(())
        })
        .await?;
        answered(committed)
    }
}

/// One call on its way through the steps.
struct Call<'a> {
    route: &'a Route,
    principal: Principal,
    resource: Resource,
    view: View,
    options: CallOptions,
    /// Until when it may write.
    deadline: Duration,
}

impl Call<'_> {
    /// Whether it leaves an audit record, also when it is refused.
    fn is_recorded(&self) -> bool {
        let method = &self.route.method;
        let writes = matches!(method.kind, MethodKind::Mutation | MethodKind::Destructive);
        (method.audited || writes) && !self.options.dry_run
    }

    fn method_context(&self, context: &Context) -> MethodContext {
        MethodContext {
            context: context.clone(),
            principal: self.principal.clone(),
            request_id: self.options.request_id.clone(),
            dry_run: self.options.dry_run,
            if_match: self.options.if_match,
        }
    }

    /// What keeps the answer under the caller's key.
    fn key(&self, key: &str, input: &Value) -> Idempotency {
        Idempotency {
            scope: format!("{} {}", self.principal.name, self.route.id),
            key: key.to_owned(),
            request_hash: request_hash(&self.route.id, input),
        }
    }

    /// The record is the tenant's whose thing it is about; what somebody who is bound to another tenant was refused
    /// is that one's.
    fn audit(&self, outcome: &str) -> AuditDraft {
        let (bound, owner) = (&self.principal.tenant, &self.resource.tenant);
        let is_strange = !bound.is_empty() && !owner.is_empty() && bound != owner;
        let of = if is_strange { format!(" of tenant {owner}") } else { String::new() };
        AuditDraft {
            actor: self.principal.name.clone(),
            method: self.route.id.clone(),
            resource: format!("{}{of}", self.resource).chars().take(RECORDED_CHARS_MAX).collect(),
            tenant: if bound.is_empty() { owner.clone() } else { bound.clone() },
            outcome: outcome.to_owned(),
            request_id: self.options.request_id.clone(),
        }
    }
}

/// What ties an idempotency key to its request.
fn request_hash(method: &str, input: &Value) -> Vec<u8> {
    let mut hasher = Sha256::new();
    hasher.update(method.as_bytes());
    hasher.update(b"\n");
    hasher.update(json::canonical(input).as_bytes());
    hasher.finalize().to_vec()
}

fn dry_run(view: &View, build: impl Fn(&mut Tx) -> Result<Value>) -> Result<Answer> {
    let mut tx = Tx::new(view.clone());
    let value = build(&mut tx)?;
    tx.build()?;
    let revision = view.revision();
    Ok(Answer::new(Reply::Json(value), revision))
}

/// The kept response of a mutation. A `revision` of 0 in it stands for the revision at which it was
/// applied, which no handler can know.
fn answered(committed: Committed) -> Result<Answer> {
    let Committed { revision, response, replayed } = committed;
    let kept: Value = serde_json::from_slice(&response).map_err(Error::internal)?;
    let (mut value, held) = held::answer(kept);
    if let Some(own) = value.get_mut("revision")
        && own.as_u64() == Some(0)
    {
        *own = revision.into();
    }
    let etag = page::etag_of(&value);
    Ok(Answer { reply: Reply::Json(value), revision, etag, replayed, held })
}
