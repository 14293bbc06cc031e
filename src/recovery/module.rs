//! The module `backup`: a backup of the whole cluster as one stream.

use std::sync::Arc;

use futures::future::BoxFuture;
use palisade_contract::{
    Catalog, Code, Context, Error, Finding, Method, MethodContext, Module, Nothing, Reconciler,
    Resource, Result, Severity, Verb, method::ByteStream,
};
use palisade_raft::backup::{BackupError, BackupHead, BackupKey, Encoder};
use palisade_state::{Declared, View};
use tokio::sync::mpsc;

use super::{
    Source,
    schedule::{self, Schedule},
};
use crate::{edge, output::failure::chain};

const BACKUP: &str = "compute:cluster:backup";
const READ: &str = "compute:backups:read";
/// Pieces of a backup that wait for a slow reader; each is a chunk.
const WAITING_MAX: usize = 4;

/// The module `backup`.
pub struct Backups {
    source: Option<Source>,
}

impl Backups {
    /// The module; without a source it makes no backup.
    #[must_use]
    pub fn new(source: Option<Source>) -> Self {
        Self { source }
    }
}

/// Why encoding ended early.
enum Ended {
    Gone,
    Failed(BackupError),
}

impl From<BackupError> for Ended {
    fn from(error: BackupError) -> Self {
        Self::Failed(error)
    }
}

impl From<serde_json::Error> for Ended {
    fn from(error: serde_json::Error) -> Self {
        Self::Failed(error.into())
    }
}

fn unusable(error: &BackupError) -> Error {
    if let BackupError::Unfit(_) = error {
        return Error::new(Code::Unavailable, chain(error));
    }
    Error::new(Code::InvalidConfig, format!("this replica cannot make a backup: {}", chain(error)))
        .hint(
            "every replica needs the same 32 random bytes in its pki/backup.key (mode 0600): copy the file from \
             another replica, or make one and copy it to all",
        )
}

/// Encodes on a thread of its own, as fast as the reader takes it.
fn encoded(head: BackupHead, view: View) -> ByteStream {
    let (pieces, taken) = mpsc::channel::<Result<Vec<u8>>>(WAITING_MAX);
    edge::thread(move || {
        let sink = |bytes| pieces.blocking_send(Ok(bytes)).map_err(|_| Ended::Gone);
        match Encoder::encode::<Ended>(head, &view, sink) {
            Ok(()) => {}
            Err(Ended::Gone) => tracing::info!("a backup was given up by whoever asked for it"),
            Err(Ended::Failed(error)) => {
                tracing::error!(error = chain(&error), "a backup failed");
                let _ = pieces.blocking_send(Err(Error::internal(error)));
            }
        }
    });
    Box::pin(futures::stream::unfold(taken, |mut taken| async move {
        let piece = taken.recv().await?;
        Some((piece, taken))
    }))
}

fn backup(source: Option<Source>, cx: MethodContext) -> BoxFuture<'static, Result<ByteStream>> {
    Box::pin(async move {
        let source = source.ok_or_else(|| {
            Error::new(Code::Unsupported, "this process makes no backups: ask a replica")
        })?;
        // Whatever consistency was asked for: a backup misses nothing that was acknowledged before it.
        let view = cx.context.store.linearizable().await?;
        let status = cx.context.store.status();
        let head = source.head(&status, &view, cx.context.rt.wall_ms());
        let head = head.map_err(|error| unusable(&error))?;
        tracing::info!(revision = view.revision(), by = cx.principal.name, "a backup begins");
        Ok(encoded(head, view))
    })
}

impl Module for Backups {
    fn name(&self) -> &'static str {
        "backup"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![schedule::SCHEDULED.declared()]
    }

    fn catalog(&self) -> Catalog {
        Catalog { actions: vec![BACKUP, READ], resource_types: vec![] }
    }

    fn methods(&self) -> Vec<Method> {
        let source = self.source.clone();
        let schedule = source.as_ref().and_then(|source| source.schedule().cloned());
        vec![
            Method::query("cluster", "backups", READ, move |_, view: &View, _: Nothing| {
                schedule::backed(view, schedule.as_ref())
            })
            .summary("When the last scheduled backup was made, and what went wrong since.")
            .rest(Verb::Get, "/cluster/backups")
            .on(|_| Resource::cluster("cluster", "")),
            Method::stream("cluster", "backup", BACKUP, move |cx, _, _: Nothing| {
                backup(source.clone(), cx)
            })
            .summary("A backup of everything, as one file; what it holds is checked with `palisade cluster backup --inspect`.")
            .rest(Verb::Get, "/cluster/backup")
            .media("application/octet-stream")
            .audited()
            .on(|_| Resource::cluster("cluster", "")),
        ]
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        let source = self.source.as_ref();
        let Some((source, config)) = source.and_then(|source| Some((source, source.schedule()?)))
        else {
            return vec![];
        };
        vec![Arc::new(Schedule { source: source.clone(), config: config.clone() })]
    }

    fn self_check(&self, cx: &Context, view: &View) -> Result<Vec<Finding>> {
        let Some(source) = &self.source else { return Ok(vec![]) };
        let mut found = match source.schedule() {
            Some(config) => schedule::findings(view, config)?,
            None => vec![],
        };
        let Err(error) = BackupKey::load(source.key_file()) else { return Ok(found) };
        found.push(Finding {
            check: "backup.key".to_owned(),
            severity: Severity::Warning,
            message: format!(
                "replica {} can make no backup: {}",
                cx.store.replica(),
                chain(&error)
            ),
            fix: "copy pki/backup.key (32 bytes, mode 0600) from another replica, or make one and copy it to all"
                .to_owned(),
            count: None,
        });
        Ok(found)
    }
}
