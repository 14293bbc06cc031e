//! Records of the audit chain that stand by themselves: of refusals and of reads.

use std::time::Duration;

use palisade_contract::{Code, Error, Result, id};
use palisade_state::command::{AuditDraft, Idempotency};

use super::{Call, Envelope};
use crate::propose::{Once, commit_once};

impl Envelope {
    /// `ENV-2`. The refusal is answered even when it cannot be recorded.
    pub(super) async fn audit_refusal(&self, call: &Call<'_>, refused: &Error) {
        let transient = matches!(
            refused.code,
            Code::NoQuorum | Code::Unavailable | Code::NoSpace | Code::RateLimited
        );
        if !call.is_recorded() || transient {
            return;
        }
        if let Err(error) = self.record(call.audit(refused.code.as_str()), call.deadline).await {
            let request_id = &call.options.request_id;
            tracing::warn!(%request_id, %error, "a refused mutation could not be audited");
        }
    }

    /// Records a read. On a full disk there is no room for its record, and a backup is wanted most: it is in this
    /// replica's log then.
    pub(super) async fn record_read(&self, call: &Call<'_>) -> Result<()> {
        match self.record(call.audit("ok"), call.deadline).await {
            Err(error) if error.code == Code::NoSpace => {
                let (actor, method) = (&call.principal.name, &call.route.id);
                let request_id = &call.options.request_id;
                tracing::warn!(%request_id, %actor, %method, %error, "a read could not be audited");
                Ok(())
            }
            other => other,
        }
    }

    /// Appends one record to the audit chain, with nothing else in its transaction.
    async fn record(&self, draft: AuditDraft, deadline: Duration) -> Result<()> {
        let once = Once {
            may_be_known: false,
            key: Idempotency {
                scope: "audit".to_owned(),
                key: id::mint(&*self.context.rt, "once"),
                request_hash: vec![],
            },
        };
        commit_once(&self.context, self.context.store.view(), once, deadline, |tx| {
            tx.audit(draft.clone());
            Ok(())
        })
        .await?;
        Ok(())
    }
}
