//! Actions: what is done beside the log, and answered again under its key.
//!
//! # Invariants
//! - `ACT-1` A request under a key that was noted for a different one (another method or input) is refused before it does
//!   anything. The same request twice at once is made twice (`ACT-2`).
//! - `ACT-2` An action whose answer was kept under a key is not made again under it. One that was made by a process which
//!   ended before the answer was kept is made again by a retry, which an action must bear: it does no more than once.

use futures::future::BoxFuture;
use palisade_contract::{Code, Error, Handler, Method, MethodContext, Problem, Result, id};
use palisade_state::command::Idempotency;
use serde_json::Value;

use super::{Answer, Call, CallOptions, Envelope, Reply, past};
use crate::propose::{Once, WRITE_BUDGET, commit_once, known};

type Run = dyn Fn(MethodContext, Value) -> BoxFuture<'static, Result<Value>> + Send + Sync;

/// Refuses a condition that nobody would look at.
pub(super) fn check_conditions(method: &Method, options: &CallOptions) -> Result<()> {
    if options.at.is_some() {
        past::check(method)?;
    }
    if options.if_match.is_none() || !matches!(method.handler, Handler::Action(_)) {
        return Ok(());
    }
    let message =
        "If-Match is not for this method: what it acts on is no record and has no revision";
    Err(Error::invalid(vec![Problem { pointer: String::new(), message: message.to_owned() }])
        .hint("leave the header out; look at `GET /api/compute/cluster` first, and at the answer afterwards"))
}

impl Envelope {
    pub(super) async fn act(
        &self,
        call: &Call<'_>,
        cx: MethodContext,
        input: Value,
        run: &Run,
    ) -> Result<Answer> {
        let key = call.options.idempotency_key.as_deref().filter(|_| !call.options.dry_run);
        let key = key.map(|key| call.key(key, &input));
        let ended = match self.begin(call, key.as_ref()).await {
            Ok(Some(kept)) => return Ok(kept),
            Ok(None) => run(cx, input).await,
            Err(refused) => Err(refused),
        };
        match ended {
            Err(refused) => {
                self.audit_refusal(call, &refused).await;
                Err(refused)
            }
            Ok(value) if call.options.dry_run => Ok(self.acted(value, false)),
            Ok(value) => self.keep(call, key, value).await,
        }
    }

    fn acted(&self, value: Value, replayed: bool) -> Answer {
        let revision = self.context.store.view().revision();
        Answer { reply: Reply::Json(value), revision, etag: None, replayed, held: false }
    }

    /// Notes that a request under this key has come, and finds what was answered to it before. `ACT-1`
    async fn begin(&self, call: &Call<'_>, key: Option<&Idempotency>) -> Result<Option<Answer>> {
        let Some(key) = key else { return Ok(None) };
        let begun = Idempotency { scope: format!("{} begun", key.scope), ..key.clone() };
        let once = Once { may_be_known: false, key: begun };
        let noted = commit_once(&self.context, call.view.clone(), once, call.deadline, |_| Ok(()));
        match noted.await.map_err(Error::from) {
            Ok(noted) if !noted.replayed => return Ok(None),
            Ok(_) => {}
            // Leadership must be movable away from a full disk. Nothing was noted, and nothing is kept.
            Err(error) if error.code == Code::NoSpace => {
                tracing::warn!(method = %call.route.id, "there is no room to note the key of an action");
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        match known(&self.context, key.clone(), call.deadline).await? {
            Some(kept) => {
                let value = serde_json::from_slice(&kept.response).map_err(Error::internal)?;
                Ok(Some(self.acted(value, true)))
            }
            None => Ok(None),
        }
    }

    /// Records an action that was made, and keeps its answer under its key in the same transaction. It has happened, whether
    /// that can be told or not.
    async fn keep(
        &self,
        call: &Call<'_>,
        key: Option<Idempotency>,
        value: Value,
    ) -> Result<Answer> {
        let minted = || Idempotency {
            scope: "audit".to_owned(),
            key: id::mint(&*self.context.rt, "once"),
            request_hash: vec![],
        };
        let once = Once { may_be_known: false, key: key.unwrap_or_else(minted) };
        let (draft, response) = (call.audit("ok"), value.to_string().into_bytes());
        // Its own time: the action has taken as long as it took.
        let deadline = self.context.rt.now() + WRITE_BUDGET;
        let kept = commit_once(&self.context, self.context.store.view(), once, deadline, |tx| {
            tx.respond(response.clone());
            tx.audit(draft.clone());
            Ok(())
        });
        match kept.await {
            Ok(kept) if kept.replayed => {
                let value = serde_json::from_slice(&kept.response).map_err(Error::internal)?;
                Ok(self.acted(value, true))
            }
            Ok(_) => Ok(self.acted(value, false)),
            Err(error) => {
                let (request_id, error) = (&call.options.request_id, Error::from(error));
                tracing::error!(%request_id, %error, "an action could not be audited");
                Ok(self.acted(value, false))
            }
        }
    }
}
