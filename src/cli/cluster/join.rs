//! `palisade cluster join`: the directory of a new replica, made on the machine where it is to run.

use std::path::PathBuf;

use palisade_api::pki;
use serde_json::{Value, json};

use crate::{
    cli::Session,
    client::{BASE, Call},
    init::NewReplica,
    join::{self, Enrolled},
    output::{self, Exit, Failure, Format, Outcome, cell, number},
    replica_dir::MemberConfig,
};

/// Flags of `cluster join`.
#[derive(Debug, clap::Args)]
pub(super) struct Join {
    /// Where the replica's directory is made; empty, or not there yet
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where the other replicas, operators and agents will reach it
    #[arg(long, value_name = "HOST:PEERPORT,APIPORT", value_parser = join::advertised)]
    advertise: NewReplica,
    /// Where it listens, if not there; an IP
    #[arg(long, value_name = "IP:PEERPORT,APIPORT", value_parser = join::listening)]
    listen: Option<NewReplica>,
    /// The member whose place it takes: that one is removed when this one votes
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    replace: Option<u64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

fn pki_failure(error: &pki::PkiError) -> Failure {
    Failure::caused("cannot make the replica's key", error)
}

impl Join {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        if !self.dry_run {
            join::claim_dir(&self.dir)?;
        }
        let requested = pki::request_replica().map_err(|error| pki_failure(&error))?;
        let member = self.advertise.member();
        let body = json!({
            "csr": requested.csr_pem, "peerAddr": member.peer_addr, "apiAddr": member.api_addr,
            "replace": self.replace,
        });
        let call = Call::post(format!("{BASE}/cluster/replicas")).json(body);
        let added = session.client()?.call(call.dry_run(self.dry_run)).await?.body;
        if self.dry_run {
            return output::data(format!("{} (dry run)\n", cell(&added, "/note")).as_bytes());
        }
        let enrolled = enrolled(&added)?;
        let listen = self.listen.as_ref().unwrap_or(&self.advertise);
        let config =
            join::plain_config(listen.listen(listen.peer_port), listen.listen(listen.api_port));
        join::write_joining(&self.dir, &enrolled, &requested.key_pem, member, config)?;
        let (id, dir) = (enrolled.identity.replica, self.dir.display());
        match session.format() {
            Format::Json | Format::Yaml => {
                let value = json!({ "replica": id.0, "cluster": enrolled.identity.cluster, "dir": dir.to_string() });
                output::data(output::render_value(session.format(), &value)?.as_bytes())
            }
            _ => {
                output::say(format!(
                    "replica {id} may join cluster {} within a day; run it here, and it votes once it has caught up:",
                    enrolled.identity.cluster
                ));
                output::data(format!("palisade serve --dir {dir}\n").as_bytes())
            }
        }
    }
}

/// What the cluster answers to an enrolment.
pub(super) fn enrolled(added: &Value) -> Outcome<Enrolled> {
    let text = |pointer: &str| {
        let found = added.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
        found.map(str::to_owned).ok_or_else(|| {
            Failure::new(
                Exit::Error,
                format!("the cluster's answer has no {pointer}: it may be of another release"),
            )
        })
    };
    let members = added.get("members").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let member = |member: &Value| MemberConfig {
        id: number(member, "/id"),
        peer_addr: cell(member, "/peerAddr"),
        api_addr: cell(member, "/apiAddr"),
    };
    let (cluster, lineage) = (text("/cluster")?, text("/lineage")?);
    let epoch = number(added, "/epoch");
    Ok(Enrolled {
        identity: join::identity(&cluster, &lineage, epoch, number(added, "/id")),
        cert_pem: text("/certPem")?,
        ca_pem: text("/caPem")?,
        members: members.iter().map(member).collect(),
    })
}
