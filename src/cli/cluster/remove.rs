//! `palisade cluster remove`: takes a replica out for good.

use super::change;
use crate::{
    cli::Session,
    client::{BASE, Call},
    output::Outcome,
};

/// Flags of `cluster remove`.
#[derive(Debug, clap::Args)]
pub(super) struct Remove {
    /// Its id
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    replica: u64,
    /// Also when that puts the quorum at risk; without it the refusal says what is at risk
    #[arg(long)]
    force: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl Remove {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let path = format!("{BASE}/cluster/replicas/{}", self.replica);
        let call = Call::delete(path).query_some("force", self.force.then_some("true"));
        change(session, call, self.dry_run).await
    }
}
