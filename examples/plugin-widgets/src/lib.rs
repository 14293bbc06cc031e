//! Widgets that expire: a plugin with a table, methods, an event, a periodic reconciler, a migration, a self-check and a
//! tenant's teardown.

use std::{sync::Arc, time::Duration};

use futures::future::{BoxFuture, FutureExt};
use palisade_contract::{
    Catalog, Check, Context, Error, Finding, Method, MethodContext, Migration, Module, Periodic,
    Problems, ReconcileContext, Reconciler, Resource, Result, Run, Severity, ShardBy, Sweep, Verb,
    Watched, method::Records,
};
use palisade_state::{Declared, Index, Table, Tx, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const WIDGETS: Table<String, Widget> = Table::new(
    "plg_acme_widgets",
    &[Index { name: "tenant", keys: |widget: &Widget| vec![widget.tenant.clone()] }],
);
const MANY: usize = 10_000;

/// A row. Fields that come later have defaults, so that older rows are still read.
#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Widget {
    /// `<tenant>/<name>`, its key.
    id: String,
    tenant: String,
    #[serde(default)]
    colour: String,
    /// By the cluster's clock.
    expires_at_ms: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Put {
    widget: String,
    /// Whose it is; filled in for who is bound to a tenant.
    #[serde(default)]
    tenant: String,
    colour: String,
    ttl_seconds: u64,
}

impl Check for Put {
    fn check(&self, at: &str, problems: &mut Problems) {
        if !palisade_contract::id::is_name(&self.widget) {
            problems.add(format!("{at}/widget"), palisade_contract::id::NAME_RULE);
        }
        if !self.tenant.is_empty() && !palisade_contract::id::is_name(&self.tenant) {
            problems.add(format!("{at}/tenant"), palisade_contract::id::NAME_RULE);
        }
        if !(1..=86_400).contains(&self.ttl_seconds) {
            problems.add(format!("{at}/ttlSeconds"), "must be 1 to 86400");
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct One {
    widget: String,
    #[serde(default)]
    tenant: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Which {
    #[serde(default)]
    tenant: Option<String>,
}

impl Check for One {}
impl Check for Which {}

fn put(_: &MethodContext, tx: &mut Tx, input: Put) -> Result<Widget> {
    let Put { widget, tenant, colour, ttl_seconds } = input;
    let expires_at_ms = tx.view().clock().now_ms + ttl_seconds * 1000;
    let widget = Widget { id: format!("{tenant}/{widget}"), tenant, colour, expires_at_ms };
    tx.put(&WIDGETS, &widget.id, &widget)?;
    let about = format!("widget/{}", widget.id);
    tx.publish("acme.widget.put", &widget.tenant, about, &json!({ "colour": widget.colour }));
    Ok(widget)
}

fn get(_: &MethodContext, view: &View, input: One) -> Result<Widget> {
    let found = WIDGETS.get(view, &format!("{}/{}", input.tenant, input.widget))?;
    Ok(found.ok_or_else(|| Error::not_found("widget", &input.widget))?.value)
}

fn list<'a>(
    _: &'a MethodContext,
    view: &'a View,
    input: Which,
    after: &str,
) -> Result<Records<'a, Widget>> {
    let wanted = move |widget: &Widget| input.tenant.as_ref().is_none_or(|t| *t == widget.tenant);
    Ok(Box::new(WIDGETS.behind(view, after).filter_map(move |row| match row {
        Ok((_, row)) => wanted(&row.value).then_some(Ok(row.value)),
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

/// Takes away what has expired; one worker of the cluster runs it at a time, fenced by its lease.
struct Expiry;

impl Reconciler for Expiry {
    fn name(&self) -> &'static str {
        "acme.widgets"
    }

    fn shard_by(&self) -> ShardBy {
        ShardBy::None
    }

    fn periodic(&self) -> Vec<Periodic> {
        vec![Periodic { key: "expired".to_owned(), every: Duration::from_secs(1) }]
    }

    fn run<'a>(&'a self, cx: &'a ReconcileContext, _key: &'a str) -> BoxFuture<'a, Result<Run>> {
        let expire = |tx: &mut Tx| {
            let now_ms = tx.view().clock().now_ms;
            for (id, widget) in tx.scan(&WIDGETS, b"")? {
                if widget.expires_at_ms <= now_ms {
                    tx.delete(&WIDGETS, &id)?;
                    let about = format!("widget/{id}");
                    tx.publish("acme.widget.expired", &widget.tenant, about, &json!({}));
                }
            }
            Ok(())
        };
        // What it writes and the end of the run commit together.
        async move { cx.finish(expire).await.map(|_| Run::Done) }.boxed()
    }
}

/// Widgets that expire.
pub struct AcmeWidgets;

impl Module for AcmeWidgets {
    fn name(&self) -> &'static str {
        "acme-widgets"
    }

    fn plugin(&self) -> Option<&'static str> {
        Some("acme")
    }

    fn tables(&self) -> Vec<Declared> {
        vec![WIDGETS.declared()]
    }

    fn migrations(&self) -> Vec<Migration> {
        // Widgets had no colour once.
        let grey = |tx: &mut Tx| {
            for (id, widget) in tx.scan(&WIDGETS, b"")? {
                if widget.colour.is_empty() {
                    tx.put(&WIDGETS, &id, &Widget { colour: "grey".to_owned(), ..widget })?;
                }
            }
            Ok(())
        };
        vec![Migration { name: "acme-widgets/0001_grey", run: Arc::new(grey) }]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec!["compute:acme:read", "compute:acme:write"],
            resource_types: vec!["widget"],
        }
    }

    fn methods(&self) -> Vec<Method> {
        let on = |input: &Value| {
            let text = |field| input.get(field).and_then(Value::as_str).unwrap_or_default();
            Resource::of_tenant("widget", text("widget"), text("tenant"))
        };
        vec![
            Method::mutation("widgets", "put", "compute:acme:write", put)
                .summary("Makes a widget, or gives it another colour and time.")
                .rest(Verb::Put, "/widgets/{widget}")
                .on(on),
            Method::query("widgets", "get", "compute:acme:read", get)
                .summary("Shows a widget.")
                .rest(Verb::Get, "/widgets/{widget}")
                .on(on),
            Method::listing("widgets", "list", "compute:acme:read", list)
                .summary("Lists the widgets.")
                .rest(Verb::Get, "/widgets")
                .watched(Watched::Records)
                .on(on),
        ]
    }

    fn reconcilers(&self) -> Vec<Arc<dyn Reconciler>> {
        vec![Arc::new(Expiry)]
    }

    fn self_check(&self, _: &Context, view: &View) -> Result<Vec<Finding>> {
        let count = view.count(WIDGETS.name());
        let many = Finding {
            check: "acme.widgets.many".to_owned(),
            severity: Severity::Warning,
            message: format!(
                "there are {count} widgets, and each run of acme.widgets looks at all"
            ),
            fix: "give widgets a shorter ttlSeconds".to_owned(),
            count: Some(count as u64),
        };
        Ok(if count > MANY { vec![many] } else { vec![] })
    }

    fn tenant_deleted(&self, _: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        let rows = tx.by_index(&WIDGETS, "tenant", tenant)?;
        for (id, _) in rows.iter().take(100) {
            tx.delete(&WIDGETS, id)?;
        }
        Ok(if rows.len() > 100 { Sweep::Again } else { Sweep::Done })
    }
}
