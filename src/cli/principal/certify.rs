//! `palisade principal certify`: a client certificate, made with the cluster's CA where its key is.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use palisade_api::pki::{self, Authority};
use serde_json::json;

use super::{Principals, enrol, path_of};
use crate::{
    cli::{Session, duration, node::print_change},
    client::Call,
    context_file::write_private,
    edge,
    output::{self, Failure, Format, Outcome},
};

/// What to make, and where.
#[derive(Debug, clap::Args)]
pub(super) struct Certify {
    /// Its name
    principal: String,
    /// The directory of a replica of this cluster, where the CA's key is
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The new file for the certificate and, beside it with the ending .key, for its key (mode 0600)
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How long it is good
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = duration)]
    ttl: Duration,
    /// Ask no replica and enrol nothing: for admin, who is let in with any key until one is enrolled
    #[arg(long)]
    no_enrol: bool,
}

fn refused(error: &pki::PkiError) -> Failure {
    Failure::caused("the certificate cannot be made", error)
        .hint("run it on the machine of a replica, as the user whose the replica's directory is")
}

impl Certify {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let key_path = self.out.with_extension("key");
        for path in [&self.out, &key_path] {
            if path.exists() {
                return Err(Failure::usage(format!("{} exists already", path.display()))
                    .hint("give another --out; nothing is written over"));
            }
        }
        let client = if self.no_enrol { None } else { Some(session.client()?) };
        if let Some(client) = &client {
            // Before anything is made: whether there is such a principal.
            client.call(Call::get(path_of(&self.principal))).await?;
        }
        let key = self.make(&key_path)?;
        let mut record = match &client {
            Some(client) => enrol(client, &self.principal, vec![key], false, false).await?,
            None => json!({"name": self.principal, "keys": [key]}),
        };
        match session.format() {
            Format::Table | Format::Wide => {
                if client.is_some() {
                    print_change::<Principals>(
                        session,
                        &record,
                        &self.principal,
                        "changed",
                        false,
                    )?;
                }
                output::say(format!(
                    "its certificate is in {}, the key in {} (mode 0600)",
                    self.out.display(),
                    key_path.display()
                ));
                Ok(())
            }
            format => {
                record["certificateFile"] = json!(self.out.display().to_string());
                record["keyFile"] = json!(key_path.display().to_string());
                output::print_one::<Principals>(format, &record)
            }
        }
    }

    /// Makes both files; answers the SHA-256 of the key.
    fn make(&self, key_path: &Path) -> Outcome<String> {
        let pki_dir = self.dir.join("pki");
        let authority = Authority::load(&pki_dir.join("ca.pem"), &pki_dir.join("ca.key"));
        let authority = authority.map_err(|error| refused(&error))?;
        let issued = authority
            .issue_operator(&self.principal, self.ttl, edge::wall_ms())
            .map_err(|error| refused(&error))?;
        let files = [(self.out.as_path(), &issued.cert_pem), (key_path, &issued.key_pem)];
        for (path, pem) in files {
            write_private(path, pem.as_bytes()).map_err(|error| {
                Failure::caused(format!("cannot write {}", path.display()), &error)
            })?;
        }
        super::key_of(&self.out)
    }
}
