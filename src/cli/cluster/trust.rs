//! `palisade cluster trust`: by what agents recognise this cluster.

use crate::{
    cli::Session,
    client::{BASE, Call},
    output::{self, Format, Outcome},
};

/// Prints lineage, CA and pins.
pub(super) async fn run(session: &Session) -> Outcome {
    let client = session.client()?;
    let trust = client.call(Call::get(format!("{BASE}/cluster/trust"))).await?.body;
    let format = match session.format() {
        Format::Json => Format::Json,
        _ => Format::Yaml,
    };
    output::data(output::render_value(format, &trust)?.as_bytes())
}
