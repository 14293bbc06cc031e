//! The context `dev` of a cluster that still runs is not taken away silently.

use std::{path::Path, time::Duration};

use super::{CONTEXT, layout::Layout, start::own_context};
use crate::{
    context_file::{Context, Contexts},
    edge,
    output::{Exit, Failure, Outcome, human},
};

const CONNECT_LIMIT: Duration = Duration::from_millis(500);

/// Refuses when the context leads to another cluster that answers.
pub(super) async fn check(layout: &Layout, context_file: &Path, replace: bool) -> Outcome {
    let contexts = Contexts::load(context_file)?;
    let Some(other) = contexts.get(CONTEXT).filter(|_| !replace) else { return Ok(()) };
    if own_context(layout).is_ok_and(|own| own.addrs == other.addrs) {
        return Ok(());
    }
    let Some(addr) = answering(other).await else { return Ok(()) };
    Err(Failure::new(
        Exit::Conflict,
        format!(
            "the context {CONTEXT:?} in {} leads to another cluster, which runs: {addr} answers",
            context_file.display()
        ),
    )
    .hint(format!(
        "`{}` points it here; with another PALISADE_CONTEXT_FILE both are kept: \
         `PALISADE_CONTEXT_FILE={} {}`",
        layout.command("--replace-context"),
        human::shell(&layout.root().join("contexts.toml")),
        layout.command(""),
    )))
}

/// The first address at which something accepts a connection.
async fn answering(context: &Context) -> Option<&str> {
    for addr in &context.addrs {
        let place = addr.strip_prefix("https://").unwrap_or(addr);
        let connect = tokio::net::TcpStream::connect(place);
        if matches!(edge::within(CONNECT_LIMIT, connect).await, Some(Ok(_))) {
            return Some(addr);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context_file::Secret;

    fn context(port: u16) -> Contexts {
        let context = Context {
            name: CONTEXT.into(),
            addrs: vec![format!("https://127.0.0.1:{port}")],
            ca_pem: "PEM".into(),
            token: Secret::new("pal_a_b"),
        };
        Contexts { current: Some(CONTEXT.into()), contexts: vec![context] }
    }

    #[tokio::test]
    async fn a_running_clusters_context_is_taken_only_when_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let (layout, file) = (Layout::new(&dir.path().join("b")), dir.path().join("contexts"));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        context(listener.local_addr().unwrap().port()).save(&file).unwrap();
        let refused = check(&layout, &file, false).await.unwrap_err();
        assert_eq!(refused.exit, Exit::Conflict);
        assert!(refused.hint.unwrap().contains("--replace-context --dir"));
        check(&layout, &file, true).await.unwrap();
        drop(listener);
        check(&layout, &file, false).await.unwrap();
    }
}
