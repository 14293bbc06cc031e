//! `palisade subscription`: who is sent which events, and what could not be delivered.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    Session,
    access::words,
    approval::is_held,
    duration,
    node::print_change,
    session::{Narrow, Read},
    watch::{WatchFlag, watch},
};
use crate::{
    client::{Answer, BASE, Call, segment},
    edge,
    output::{self, Format, Outcome, Table, View, cell, number, text},
};

/// Flags of `subscription`.
#[derive(Debug, clap::Args)]
pub struct Subscription {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Send events that happen from now on to a URL, signed, or to a sink
    Create(Create),
    /// List subscriptions
    #[command(visible_alias = "list")]
    Ls {
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<String>,
        #[command(flatten)]
        read: Read,
        #[command(flatten)]
        narrow: Narrow,
        #[command(flatten)]
        flag: WatchFlag,
    },
    /// Show one subscription, and how it fares
    #[command(visible_alias = "get")]
    Show {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        read: Read,
    },
    /// Change where its events go, or which they are
    Update(Update),
    /// Remove it, with what waits for it and its dead letters
    #[command(visible_alias = "remove")]
    Rm(Change),
    /// Send nothing for now; what happens meanwhile is sent later
    Pause(Change),
    /// Go on after a pause or after its receiver wanted no more, and try at once what waits
    Resume(Change),
    /// Send it an event subscription.test
    Test(Change),
    /// Sign with a new secret, which is shown once; for a while with the old one too
    Rotate(Rotate),
    /// List what waits: what is tried again, and what comes behind it
    Deliveries(Rows),
    /// List what could not be delivered
    DeadLetters(Rows),
    /// Send dead letters again
    Replay(Letters),
    /// Drop dead letters
    Drop(Letters),
}

#[derive(Clone, Debug, clap::Args)]
struct One {
    /// Its name
    subscription: String,
    /// Whose it is
    #[arg(long)]
    tenant: Option<String>,
}

#[derive(Debug, clap::Args)]
struct Change {
    #[command(flatten)]
    one: One,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Create {
    #[command(flatten)]
    one: One,
    /// Where events are sent, https://…
    #[arg(long, required_unless_present = "sink", conflicts_with = "sink")]
    url: Option<String>,
    /// The sink that takes them, <id>@<version>
    #[arg(long)]
    sink: Option<String>,
    /// Only events of this type, or of all types before a dot: instance, node.lost; may be repeated
    #[arg(long = "type", value_name = "TYPE")]
    types: Vec<String>,
    /// Only events about this, or about all before a slash: workload/web, node; may be repeated
    #[arg(long = "subject", value_name = "SUBJECT")]
    subjects: Vec<String>,
    /// Of the cluster's subscription: only events of this tenant; an empty one: only the cluster's own
    #[arg(long, value_name = "TENANT", conflicts_with = "tenant")]
    of_tenant: Option<String>,
    /// Sign with this secret of the tenant [default: one that is made now and shown once]
    #[arg(long, value_name = "SECRET", conflicts_with = "sink")]
    secret_ref: Option<String>,
    /// What it is for
    #[arg(long, default_value = "", hide_default_value = true)]
    description: String,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Update {
    #[command(flatten)]
    one: One,
    /// Where events are sent
    #[arg(long)]
    url: Option<String>,
    /// Only events of these types from now on; an empty one: all
    #[arg(long = "type", value_name = "TYPE")]
    types: Option<Vec<String>>,
    /// Only events about these from now on; an empty one: all
    #[arg(long = "subject", value_name = "SUBJECT")]
    subjects: Option<Vec<String>>,
    /// What it is for
    #[arg(long)]
    description: Option<String>,
    /// Only at this revision of it, as `-o json` shows it
    #[arg(long, value_name = "REVISION")]
    if_match: Option<u64>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Rotate {
    #[command(flatten)]
    one: One,
    /// Sign with this secret of the tenant [default: one that is made now and shown once]
    #[arg(long, value_name = "SECRET")]
    secret_ref: Option<String>,
    /// For so long the old one signs too; 0 where it was lost to somebody
    #[arg(long, default_value = "1d", value_name = "DURATION", value_parser = duration)]
    overlap: std::time::Duration,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, clap::Args)]
struct Rows {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    narrow: Narrow,
    #[command(flatten)]
    flag: WatchFlag,
}

#[derive(Debug, clap::Args)]
struct Letters {
    #[command(flatten)]
    one: One,
    /// Ids, as `dead-letters` shows them
    #[arg(value_name = "LETTER", required_unless_present = "all", conflicts_with = "all")]
    letters: Vec<String>,
    /// All that there are
    #[arg(long)]
    all: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Dead letters that one call names at most.
const LETTERS_MAX: usize = 100;

/// A secret by Standard Webhooks, made here: the server keeps it sealed and never answers it.
fn new_secret() -> String {
    format!("whsec_{}", STANDARD.encode(edge::random_bytes::<32>()))
}

impl One {
    fn path(&self, rest: &str) -> String {
        format!("{BASE}/subscriptions/{}{rest}", segment(&self.subscription))
    }

    fn with_tenant(&self, mut input: Value) -> Value {
        if let Some(tenant) = &self.tenant {
            input["tenant"] = json!(tenant);
        }
        input
    }

    async fn post(
        &self,
        session: &Session,
        verb: &str,
        input: Value,
        dry_run: bool,
    ) -> Outcome<Answer> {
        let call = Call::post(self.path(verb)).json(self.with_tenant(input)).dry_run(dry_run);
        Ok(session.client()?.call(call).await?)
    }
}

impl Change {
    async fn run(self, session: &Session, verb: &str, done: &str) -> Outcome {
        let body = self.one.post(session, verb, json!({}), self.dry_run).await?.body;
        print_change::<Subscriptions>(session, &body, &self.one.subscription, done, self.dry_run)
    }

    async fn remove(self, session: &Session) -> Outcome {
        let call = Call::delete(self.one.path("")).query_some("tenant", self.one.tenant.as_ref());
        let answer = session.client()?.call(call.dry_run(self.dry_run)).await?;
        if is_held(session, &answer)? {
            return Ok(());
        }
        let name = &self.one.subscription;
        print_change::<Subscriptions>(session, &answer.body, name, "removed", self.dry_run)
    }
}

/// Prints what was done, and the secret that was made for it, which nobody is shown again.
fn print_made(
    session: &Session,
    mut record: Value,
    name: &str,
    done: &str,
    secret: Option<String>,
    dry_run: bool,
) -> Outcome {
    let Some(secret) = secret.filter(|_| !dry_run) else {
        return print_change::<Subscriptions>(session, &record, name, done, dry_run);
    };
    match session.format() {
        Format::Table | Format::Wide => {
            output::say(format!(
                "subscription/{name} {done}; what its receiver verifies with is shown this once:"
            ));
            output::data(format!("{secret}\n").as_bytes())
        }
        format => {
            record["secret"] = json!(secret);
            output::print_one::<Subscriptions>(format, &record)
        }
    }
}

impl Create {
    fn input(&self, secret: Option<&String>) -> Value {
        let mut input = json!({
            "name": self.one.subscription, "types": self.types, "subjects": self.subjects,
            "description": self.description,
        });
        let fields = [
            ("url", self.url.as_ref()),
            ("sink", self.sink.as_ref()),
            ("ofTenant", self.of_tenant.as_ref()),
            ("secretRef", self.secret_ref.as_ref()),
            ("secret", secret),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                input[field] = json!(value);
            }
        }
        self.one.with_tenant(input)
    }

    async fn run(self, session: &Session) -> Outcome {
        let is_signed = self.sink.is_none() && self.secret_ref.is_none();
        let secret = is_signed.then(new_secret);
        let call = Call::post(format!("{BASE}/subscriptions")).json(self.input(secret.as_ref()));
        let record = session.client()?.call(call.dry_run(self.dry_run)).await?.body;
        print_made(session, record, &self.one.subscription, "created", secret, self.dry_run)
    }
}

/// What a flag that was given says: an empty one is none at all.
fn given(words: Option<Vec<String>>) -> Option<Vec<String>> {
    words.map(|words| words.into_iter().filter(|word| !word.is_empty()).collect())
}

impl Update {
    async fn run(self, session: &Session) -> Outcome {
        let mut input = self.one.with_tenant(json!({}));
        for (field, value) in [("url", self.url), ("description", self.description)] {
            if let Some(value) = value {
                input[field] = json!(value);
            }
        }
        for (field, value) in [("types", given(self.types)), ("subjects", given(self.subjects))] {
            if let Some(value) = value {
                input[field] = json!(value);
            }
        }
        let mut call = Call::patch(self.one.path("")).json(input).dry_run(self.dry_run);
        if let Some(revision) = self.if_match {
            call = call.if_match(revision);
        }
        let body = session.client()?.call(call).await?.body;
        let name = &self.one.subscription;
        print_change::<Subscriptions>(session, &body, name, "updated", self.dry_run)
    }
}

impl Rotate {
    async fn run(self, session: &Session) -> Outcome {
        let secret = self.secret_ref.is_none().then(new_secret);
        let mut input = json!({ "overlapSeconds": self.overlap.as_secs() });
        match (&secret, &self.secret_ref) {
            (Some(secret), _) => input["secret"] = json!(secret),
            (None, named) => input["secretRef"] = json!(named),
        }
        let body = self.one.post(session, "/rotate", input, self.dry_run).await?.body;
        print_made(session, body, &self.one.subscription, "rotated", secret, self.dry_run)
    }
}

impl Rows {
    async fn run<V: View>(self, session: &Session, what: &str) -> Outcome {
        let call = Call::get(self.one.path(what)).query_some("tenant", self.one.tenant.as_ref());
        let call = self.narrow.say(call);
        if self.flag.watch {
            return watch::<V>(session, call).await;
        }
        let rows = session.client()?.list(call).await?;
        output::print_list::<V>(session.format(), &rows)
    }
}

impl Letters {
    async fn replay(self, session: &Session) -> Outcome {
        let mut handled = 0;
        loop {
            let input = json!({ "letters": self.letters });
            let answer =
                self.one.post(session, "/dead-letters/replay", input, self.dry_run).await?;
            let (now, left) = (number(&answer.body, "/handled"), number(&answer.body, "/left"));
            handled += now;
            // A call goes only so far; a dry run would go there again and again.
            if !self.all || now == 0 || left == 0 || self.dry_run {
                return self.print(session, "replayed", (handled, left));
            }
        }
    }

    /// Drops what is named, or what the list has now: a letter that comes meanwhile was not looked at.
    async fn drop(self, session: &Session) -> Outcome {
        let (letters, lost) =
            if self.all { self.seen(session).await? } else { (self.letters.clone(), 0) };
        let mut calls: Vec<Value> =
            letters.chunks(LETTERS_MAX).map(|some| json!({ "letters": some })).collect();
        if lost > 0 {
            match calls.last_mut() {
                Some(last) => last["lost"] = json!(lost),
                None => calls.push(json!({ "lost": lost })),
            }
        }
        let (mut handled, mut left, mut held) = (0, 0, false);
        for call in calls {
            let answer = self.one.post(session, "/dead-letters/drop", call, self.dry_run).await?;
            if is_held(session, &answer)? {
                held = true;
                continue;
            }
            handled += number(&answer.body, "/handled");
            left = number(&answer.body, "/left");
        }
        if held { Ok(()) } else { self.print(session, "dropped", (handled, left)) }
    }

    /// The letters that there are, and how many are known to have left.
    async fn seen(&self, session: &Session) -> Outcome<(Vec<String>, u64)> {
        let get = |what: &str| {
            Call::get(self.one.path(what)).query_some("tenant", self.one.tenant.as_ref())
        };
        let client = session.client()?;
        let lost = number(&client.call(get("")).await?.body, "/deadLettersLost");
        let letters = client.list(get("/dead-letters")).await?;
        let ids = letters.iter().filter_map(|letter| text(letter, "/id").map(str::to_owned));
        Ok((ids.collect(), lost))
    }

    fn print(&self, session: &Session, done: &str, (handled, left): (u64, u64)) -> Outcome {
        let note = if self.dry_run { " (dry run)" } else { "" };
        output::say(format!("{handled} {done}, {left} left{note}"));
        match session.format() {
            Format::Table | Format::Wide => Ok(()),
            format => {
                let all = json!({ "handled": handled, "left": left });
                output::data(output::render_value(format, &all)?.as_bytes())
            }
        }
    }
}

impl Subscription {
    /// Runs the verb.
    pub(super) async fn run(self, session: &Session) -> Outcome {
        match self.verb {
            Verb::Create(create) => create.run(session).await,
            Verb::Ls { tenant, read, narrow, flag } => {
                let call = read.get(format!("{BASE}/subscriptions")).query_some("tenant", tenant);
                let call = narrow.say(call);
                if flag.watch {
                    return watch::<Subscriptions>(session, call).await;
                }
                let all = narrow.ordered(session.client()?.list(call).await?);
                output::print_list::<Subscriptions>(session.format(), &all)
            }
            Verb::Show { one, read } => {
                let call = read.get(one.path("")).query_some("tenant", one.tenant.as_ref());
                let answer = session.client()?.call(call).await?;
                output::print_one::<Subscriptions>(session.format(), &answer.body)
            }
            Verb::Update(update) => update.run(session).await,
            Verb::Rm(change) => change.remove(session).await,
            Verb::Pause(change) => change.run(session, "/pause", "paused").await,
            Verb::Resume(change) => change.run(session, "/resume", "resumed").await,
            Verb::Test(change) => change.run(session, "/test", "is sent a test").await,
            Verb::Rotate(rotate) => rotate.run(session).await,
            Verb::Deliveries(rows) => rows.run::<Deliveries>(session, "/deliveries").await,
            Verb::DeadLetters(rows) => rows.run::<Dead>(session, "/dead-letters").await,
            Verb::Replay(letters) => letters.replay(session).await,
            Verb::Drop(letters) => letters.drop(session).await,
        }
    }
}

struct Subscriptions;

impl View for Subscriptions {
    const KIND: &'static str = "subscription";

    fn table(all: &[Value], wide: bool) -> Table {
        let mut heads =
            vec!["NAME", "TENANT", "STATE", "TO", "TYPES", "DELIVERED", "WAITING", "DEAD"];
        if wide {
            heads.extend(["SUBJECTS", "REASON", "LAST"]);
        }
        let mut table = Table::new(&heads);
        for one in all {
            let to =
                if text(one, "/url").is_some_and(|url| !url.is_empty()) { "/url" } else { "/sink" };
            let mut row = vec![
                cell(one, "/name"),
                cell(one, "/tenant"),
                cell(one, "/state"),
                cell(one, to),
                words(one, "/types"),
                cell(one, "/delivered"),
                cell(one, "/waiting"),
                cell(one, "/deadLetters"),
            ];
            if wide {
                row.extend([
                    words(one, "/subjects"),
                    cell(one, "/reason"),
                    cell(one, "/deliveredAt"),
                ]);
            }
            table.row(row);
        }
        table
    }
}

struct Deliveries;

impl View for Deliveries {
    const KIND: &'static str = "delivery";

    fn table(all: &[Value], _wide: bool) -> Table {
        let mut table = Table::new(&["EVENT", "TYPE", "SUBJECT", "ATTEMPTS", "RETRY IN", "ERROR"]);
        for one in all {
            let retry = match one.pointer("/retryInMs").and_then(Value::as_u64) {
                Some(ms) => format!("{} s", ms.div_ceil(1000)),
                None => "-".to_owned(),
            };
            table.row(vec![
                cell(one, "/event"),
                cell(one, "/type"),
                cell(one, "/subject"),
                cell(one, "/attempts"),
                retry,
                cell(one, "/error"),
            ]);
        }
        table
    }
}

struct Dead;

impl View for Dead {
    const KIND: &'static str = "dead-letter";

    fn table(all: &[Value], _wide: bool) -> Table {
        let heads = ["LETTER", "REASON", "TYPE", "SUBJECT", "ATTEMPTS", "SINCE", "ERROR"];
        let mut table = Table::new(&heads);
        for one in all {
            let id = text(one, "/id").and_then(|id| id.rsplit('/').next()).unwrap_or("-");
            table.row(vec![
                id.to_owned(),
                cell(one, "/reason"),
                cell(one, "/type"),
                cell(one, "/subject"),
                cell(one, "/attempts"),
                cell(one, "/deadAt"),
                cell(one, "/error"),
            ]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_of_standard_webhooks() {
        let (one, other) = (new_secret(), new_secret());
        assert_ne!(one, other);
        assert!(
            palisade_events::signature::SigningKey::parse(one.as_bytes()).is_some(),
            "{}",
            one.len()
        );
    }

    #[test]
    fn an_empty_type_is_all_types() {
        assert_eq!(given(None), None);
        assert_eq!(given(Some(vec![String::new()])), Some(vec![]));
        assert_eq!(given(Some(vec!["node".into()])), Some(vec!["node".to_owned()]));
    }

    #[test]
    fn subscriptions_and_what_waits_are_tables() {
        let all = [
            json!({"name": "pager", "tenant": "acme", "state": "failing", "url": "https://pager.test/x", "sink": "",
            "types": ["instance.failed"], "delivered": 7, "waiting": 2, "deadLetters": 0}),
        ];
        insta::assert_snapshot!(Subscriptions::table(&all, false).render(), @r"
        NAME   TENANT  STATE    TO                    TYPES            DELIVERED  WAITING  DEAD
        pager  acme    failing  https://pager.test/x  instance.failed  7          2        0
        ");
        let waits = [
            json!({"event": "cl_1-7", "type": "instance.failed", "subject": "instance/in_1", "attempts": 3,
            "retryInMs": 17_400, "error": "the receiver answered 500, with no word"}),
        ];
        insta::assert_snapshot!(Deliveries::table(&waits, false).render(), @r"
        EVENT   TYPE             SUBJECT        ATTEMPTS  RETRY IN  ERROR
        cl_1-7  instance.failed  instance/in_1  3         18 s      the receiver answered 500, with no word
        ");
        let dead = [
            json!({"id": "acme/sub_1/00000000000000000007", "reason": "exhausted", "type": "instance.failed",
            "subject": "instance/in_1", "attempts": 85, "deadAt": "2026-11-30T02:10:00.000Z", "error": "no"}),
        ];
        insta::assert_snapshot!(Dead::table(&dead, false).render(), @r"
        LETTER                REASON     TYPE             SUBJECT        ATTEMPTS  SINCE                     ERROR
        00000000000000000007  exhausted  instance.failed  instance/in_1  85        2026-11-30T02:10:00.000Z  no
        ");
    }
}
