//! `palisade version`.

use std::time::Duration;

use serde_json::{Value, json};

use super::Session;
use crate::{
    client::{BASE, Call},
    output::{self, Format, Outcome, cell},
};

/// How long the server may take; the client's version does not wait longer.
const SERVER_LIMIT: Duration = Duration::from_secs(2);

/// This program's version.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Flags of `version`.
#[derive(Debug, clap::Args)]
pub struct Version {
    /// Do not ask the server
    #[arg(long)]
    client: bool,
}

impl Version {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        let server = if self.client { None } else { Some(server(session).await) };
        if matches!(session.format(), Format::Json | Format::Yaml) {
            let value = json!({
                "client": {"version": VERSION},
                "server": server.as_ref().and_then(|server| server.as_ref().ok()),
            });
            return output::data(output::render_value(session.format(), &value)?.as_bytes());
        }
        output::data(format!("client {VERSION}\n").as_bytes())?;
        match server {
            Some(Ok(server)) => {
                output::data(format!("server {}\n", cell(&server, "/version")).as_bytes())
            }
            Some(Err(why)) => {
                output::say(format!("server unknown: {}", why.detail));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

async fn server(session: &Session) -> Outcome<Value> {
    let client = session.client_within(SERVER_LIMIT)?;
    Ok(client.call(Call::get(format!("{BASE}/version")).local()).await?.body)
}
