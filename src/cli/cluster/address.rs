//! `palisade cluster set-address`: where a replica is reached now.

use serde_json::json;

use super::change;
use crate::{
    cli::Session,
    client::{BASE, Call},
    output::Outcome,
};

/// Flags of `cluster set-address`.
#[derive(Debug, clap::Args)]
pub(super) struct SetAddress {
    /// Its id
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    replica: u64,
    /// Where it is reached
    #[arg(value_name = "HOST:PEERPORT,APIPORT", value_parser = crate::join::advertised)]
    address: crate::init::NewReplica,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

impl SetAddress {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let member = self.address.member();
        let body = json!({ "peerAddr": member.peer_addr, "apiAddr": member.api_addr });
        let path = format!("{BASE}/cluster/replicas/{}/address", self.replica);
        change(session, Call::put(path).json(body), self.dry_run).await
    }
}
