//! `palisade cluster drain` and `undrain`.

use serde_json::json;

use super::change;
use crate::{
    cli::Session,
    client::{BASE, Call},
    output::Outcome,
};

/// Flags of both.
#[derive(Debug, clap::Args)]
pub(super) struct Drain {
    /// Its id
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    replica: u64,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Drain {
    pub(super) async fn run(self, session: &Session, undo: bool) -> Outcome {
        let path = format!("{BASE}/cluster/replicas/{}/drain", self.replica);
        change(session, Call::post(path).json(json!({ "undo": undo })), self.dry_run).await
    }
}
