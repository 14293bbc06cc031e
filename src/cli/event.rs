//! `palisade event` and `palisade audit`: what happened, and who did it.

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Session,
    audit::{self, Export, Verify},
    watch,
};
use crate::{
    client::{BASE, Call},
    output::{self, Exit, Failure, Format, Outcome, Table, View, cell, number, text},
};

/// Records that are asked for at once, of a list that may be long.
const PAGE: u64 = 1000;

/// Flags of `event`.
#[derive(Debug, clap::Args)]
pub struct Event {
    #[command(subcommand)]
    verb: EventVerb,
}

#[derive(Debug, Subcommand)]
enum EventVerb {
    /// List events, oldest first
    #[command(visible_alias = "list")]
    Ls(Window),
    /// Print the newest events, and then each that happens
    #[command(visible_alias = "watch")]
    Tail(Tail),
}

/// How events are followed.
#[derive(Debug, clap::Args)]
struct Tail {
    /// Begin with so many of the newest
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    last: u64,
    /// Show only this tenant's [default: the tenant that you are bound to]
    #[arg(long)]
    tenant: Option<String>,
    /// Only those that match, such as 'tenant = acme'; fields as in -o json
    #[arg(long, value_name = "EXPRESSION", value_parser = super::session::short)]
    filter: Option<String>,
}

/// Flags of `audit`.
#[derive(Debug, clap::Args)]
pub struct Audit {
    #[command(subcommand)]
    verb: AuditVerb,
}

#[derive(Debug, Subcommand)]
enum AuditVerb {
    /// List audit records, oldest first
    #[command(visible_alias = "list")]
    Ls(Window),
    /// Print the newest records, and then each that is written
    #[command(visible_alias = "watch")]
    Tail(Tail),
    /// Write the chain to a file or stdout, with what it takes to verify it elsewhere
    Export(Export),
    /// Check that no record was altered, taken out or put in: of an export or of the cluster
    Verify(Verify),
    /// Print the key with which exports are verified
    Key,
    /// List the signed checkpoints of the chain
    Checkpoints,
}

#[derive(Debug, clap::Args)]
struct Window {
    /// Begin at this sequence number; 0: the oldest that is kept [default: the newest]
    #[arg(long, value_name = "SEQ")]
    from: Option<u64>,
    /// Show so many of the newest
    #[arg(long, value_name = "COUNT", conflicts_with = "from")]
    last: Option<u64>,
    /// Show only this tenant's [default: the tenant that you are bound to]
    #[arg(long)]
    tenant: Option<String>,
    /// Only those that match, such as 'tenant = acme', of all in memory unless --from or --last is given; fields as in -o json
    #[arg(long, value_name = "EXPRESSION", value_parser = super::session::short)]
    filter: Option<String>,
}

impl Window {
    async fn read(&self, session: &Session, what: &str) -> Outcome<Vec<Value>> {
        let is_of_all = self.filter.is_some() && self.last.is_none();
        let from = self.from.or(is_of_all.then_some(0));
        let call = Call::get(format!("{BASE}/{what}"))
            .query_some("from", from)
            .query_some("limit", self.last.or(from.map(|_| PAGE)))
            .query_some("filter", self.filter.as_ref())
            .query_some("tenant", self.tenant.as_ref());
        Ok(session.client()?.list(call).await?)
    }
}

impl Tail {
    async fn follow<V: View>(&self, session: &Session, what: &str) -> Outcome {
        let call = Call::get(format!("{BASE}/{what}"))
            .query("limit", self.last)
            .query_some("filter", self.filter.as_ref())
            .query_some("tenant", self.tenant.as_ref());
        watch::tail::<V>(session, call).await
    }
}

impl Event {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            EventVerb::Ls(window) => {
                let events = window.read(session, "events").await?;
                output::print_list::<Events>(session.format(), &events)
            }
            EventVerb::Tail(tail) => tail.follow::<Events>(session, "events").await,
        }
    }
}

impl Audit {
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            AuditVerb::Ls(window) => {
                let records = window.read(session, "audit").await?;
                output::print_list::<Records>(session.format(), &records)
            }
            AuditVerb::Tail(tail) => tail.follow::<Records>(session, "audit").await,
            AuditVerb::Export(export) => export.run(session).await,
            AuditVerb::Verify(file) if file.offline(session.format())? => Ok(()),
            AuditVerb::Verify(_) => verify(session).await,
            AuditVerb::Key => audit::key(session).await,
            AuditVerb::Checkpoints => audit::checkpoints(session).await,
        }
    }
}

async fn verify(session: &Session) -> Outcome {
    // Whoever is bound to a tenant sees no whole chain, and is refused here.
    session.client()?.call(Call::get(format!("{BASE}/audit/verify"))).await?;
    let window = Window { from: Some(0), last: None, tenant: None, filter: None };
    let records = window.read(session, "audit").await?;
    let checked = check_chain(&records)?;
    match session.format() {
        Format::Json | Format::Yaml => {
            output::data(output::render_value(session.format(), &checked)?.as_bytes())
        }
        _ => {
            output::say(format!(
                "{} records, {} to {}: dense and chained, each hash is right",
                records.len(),
                cell(&checked, "/first"),
                cell(&checked, "/last"),
            ));
            output::data(format!("{}\n", cell(&checked, "/head")).as_bytes())
        }
    }
}

/// Computes each record's hash anew and follows the chain.
fn check_chain(records: &[Value]) -> Outcome<Value> {
    let mut before: Option<&Value> = None;
    for record in records {
        let seq = number(record, "/seq");
        let broken = |why: &str| {
            Failure::new(Exit::Error, format!("the audit chain is broken at record {seq}: {why}"))
                .hint("a record was altered, taken out or put in: keep this replica's directory, and ask another with --addr")
        };
        if let Some(before) = before {
            if number(before, "/seq") + 1 != seq {
                return Err(broken(&format!("it follows record {}", number(before, "/seq"))));
            }
            if text(before, "/hash") != text(record, "/prevHash") {
                return Err(broken("it does not name the hash of the record before"));
            }
        }
        match super::chain::hash(record) {
            Some(hash) if text(record, "/hash") == Some(hash.as_str()) => {}
            Some(_) => return Err(broken("its hash is not the hash of what it says")),
            None => return Err(broken("it is not complete")),
        }
        before = Some(record);
    }
    Ok(json!({
        "records": records.len(),
        "first": records.first().map_or(0, |record| number(record, "/seq")),
        "last": before.map_or(0, |record| number(record, "/seq")),
        "head": before.map_or(String::new(), |record| cell(record, "/hash")),
    }))
}

struct Events;

impl View for Events {
    const KIND: &'static str = "event";

    fn table(events: &[Value], wide: bool) -> Table {
        let mut header = vec!["SEQ", "TIME", "KIND", "SUBJECT"];
        if wide {
            header.extend(["TENANT", "DATA"]);
        }
        let mut table = Table::new(&header);
        for event in events {
            let mut row = vec![
                cell(event, "/seq"),
                cell(event, "/at"),
                cell(event, "/kind"),
                cell(event, "/subject"),
            ];
            if wide {
                row.extend([cell(event, "/tenant"), cell(event, "/data")]);
            }
            table.row(row);
        }
        table
    }

    fn name(event: &Value) -> &str {
        text(event, "/kind").unwrap_or("-")
    }
}

struct Records;

impl View for Records {
    const KIND: &'static str = "record";

    fn table(records: &[Value], wide: bool) -> Table {
        let mut header = vec!["SEQ", "TIME", "ACTOR", "METHOD", "RESOURCE", "OUTCOME"];
        if wide {
            header.extend(["REVISION", "REQUEST", "HASH"]);
        }
        let mut table = Table::new(&header);
        for record in records {
            let mut row = vec![
                cell(record, "/seq"),
                cell(record, "/at"),
                cell(record, "/actor"),
                cell(record, "/method"),
                cell(record, "/resource"),
                cell(record, "/outcome"),
            ];
            if wide {
                row.extend(
                    ["/revision", "/requestId", "/hash"].map(|pointer| cell(record, pointer)),
                );
            }
            table.row(row);
        }
        table
    }

    fn name(record: &Value) -> &str {
        text(record, "/requestId").unwrap_or("-")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> Vec<Value> {
        let mut before = hex::encode([0; 32]);
        let mut records = Vec::new();
        for seq in 1..=3_u64 {
            let mut record = json!({
                "seq": seq, "revision": seq * 10, "at": "2026-01-01T00:00:00.123Z", "actor": "token/a",
                "method": "nodes.cordon", "resource": "node/n", "tenant": "", "outcome": "ok",
                "requestId": format!("req_{seq}"), "prevHash": before,
            });
            before = crate::cli::chain::hash(&record).unwrap();
            record["hash"] = json!(before);
            records.push(record);
        }
        records
    }

    #[test]
    fn an_untouched_chain_is_good() {
        assert_eq!(check_chain(&chain()).unwrap()["records"], 3);
        assert_eq!(check_chain(&chain()[1..]).unwrap()["first"], 2);
    }

    #[test]
    fn an_altered_record_and_a_missing_one_are_found() {
        let mut altered = chain();
        altered[1]["actor"] = json!("token/b");
        let failure = check_chain(&altered).unwrap_err();
        assert!(failure.detail.contains("at record 2: its hash is not"), "{failure}");
        let mut missing = chain();
        missing.remove(1);
        let failure = check_chain(&missing).unwrap_err();
        assert!(failure.detail.contains("at record 3: it follows record 1"), "{failure}");
    }
}
