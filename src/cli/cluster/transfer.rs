//! `palisade cluster transfer-leader`.

use serde_json::json;

use super::change;
use crate::{
    cli::Session,
    client::{BASE, Call},
    output::Outcome,
};

/// Flags of `cluster transfer-leader`.
#[derive(Debug, clap::Args)]
pub(super) struct Transfer {
    /// The id of the voter that is to lead; absent: whichever is best
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    to: Option<u64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Transfer {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let path = format!("{BASE}/cluster/transfer-leader");
        change(session, Call::post(path).json(json!({ "to": self.to })), self.dry_run).await
    }
}
