//! A tiny module.

use futures::{StreamExt, stream};
use palisade_contract::{
    Catalog, Check, Error, Method, MethodContext, Module, Nothing, Problems, Resource, Result,
    Verb, Watched,
    method::{ByteStream, Records},
};
use palisade_state::{Declared, Table, Tx, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub static WIDGETS: Table<String, Widget> = Table::new("widgets", &[]);

#[derive(Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Widget {
    pub name: String,
    pub size_limit: u32,
}

#[derive(Serialize, JsonSchema)]
struct WidgetRecord {
    #[serde(flatten)]
    widget: Widget,
    revision: u64,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Put {
    widget: String,
    size_limit: u32,
    #[serde(default)]
    name: Option<String>,
}

impl Check for Put {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.size_limit > 100 {
            problems.add(format!("{at}/sizeLimit"), "must be at most 100");
        }
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct One {
    widget: String,
}

impl Check for One {}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Filter {
    #[serde(default)]
    at_least: Option<u32>,
}

impl Check for Filter {}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Create {
    name: String,
}

impl Check for Create {}

fn put(cx: &MethodContext, tx: &mut Tx, input: Put) -> Result<WidgetRecord> {
    let before = tx.get_versioned(&WIDGETS, &input.widget)?;
    if let Some(before) = &before {
        cx.check_if_match(before.stamp.modified_rev)?;
    }
    let _ = input.name;
    let widget = Widget { name: input.widget, size_limit: input.size_limit };
    tx.put(&WIDGETS, &widget.name, &widget)?;
    tx.publish("widget.put", "", format!("widget/{}", widget.name), &serde_json::json!({}));
    Ok(WidgetRecord { widget, revision: 0 })
}

fn create(_: &MethodContext, tx: &mut Tx, input: Create) -> Result<WidgetRecord> {
    if tx.get(&WIDGETS, &input.name)?.is_some() {
        return Err(Error::new(palisade_contract::Code::Conflict, "there is one already"));
    }
    let widget = Widget { name: input.name, size_limit: 1 };
    tx.put(&WIDGETS, &widget.name, &widget)?;
    Ok(WidgetRecord { widget, revision: 0 })
}

fn remove(_: &MethodContext, tx: &mut Tx, input: One) -> Result<String> {
    tx.delete(&WIDGETS, &input.widget)?;
    Ok(input.widget)
}

fn get(_: &MethodContext, view: &View, input: One) -> Result<WidgetRecord> {
    let found = WIDGETS.get(view, &input.widget)?;
    let found = found.ok_or_else(|| Error::not_found("widget", &input.widget))?;
    Ok(WidgetRecord { widget: found.value, revision: found.stamp.modified_rev })
}

fn list<'a>(
    _: &'a MethodContext,
    view: &'a View,
    input: Filter,
    after: &str,
) -> Result<Records<'a, Widget>> {
    let wanted = move |w: &Widget| input.at_least.is_none_or(|least| w.size_limit >= least);
    Ok(Box::new(WIDGETS.behind(view, after).filter_map(move |row| match row {
        Ok((_, found)) => wanted(&found.value).then_some(Ok(found.value)),
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
    widget: String,
    code: String,
}

impl Check for Fail {}

/// Writes, and fails all the same.
fn fail(_: &MethodContext, tx: &mut Tx, input: Fail) -> Result<String> {
    let widget = Widget { name: input.widget, size_limit: 99 };
    tx.put(&WIDGETS, &widget.name, &widget)?;
    tx.publish("widget.put", "", format!("widget/{}", widget.name), &serde_json::json!({}));
    let code = palisade_contract::Code::parse(&input.code);
    let code = code.ok_or_else(|| Error::not_found("code", &input.code))?;
    Err(Error::new(code, "it fails as it was told").hint("tell it something else"))
}

fn on(input: &serde_json::Value) -> Resource {
    Resource::cluster("widget", input["widget"].as_str().unwrap_or_default())
}

pub struct Widgets;

impl Module for Widgets {
    fn name(&self) -> &'static str {
        "widgets"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![WIDGETS.declared()]
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec!["compute:widgets:read", "compute:widgets:write"],
            resource_types: vec!["widget"],
        }
    }

    fn methods(&self) -> Vec<Method> {
        let (read, write) = ("compute:widgets:read", "compute:widgets:write");
        vec![
            Method::listing("widgets", "list", read, list)
                .rest(Verb::Get, "/widgets")
                .watched(Watched::Records)
                .on(on),
            Method::mutation("widgets", "remove", write, remove)
                .rest(Verb::Delete, "/widgets/{widget}")
                .destructive()
                .on(on),
            Method::query("widgets", "get", read, get).rest(Verb::Get, "/widgets/{widget}").on(on),
            Method::mutation("widgets", "put", write, put)
                .rest(Verb::Put, "/widgets/{widget}")
                .on(on),
            Method::mutation("widgets", "create", write, create)
                .rest(Verb::Post, "/widgets")
                .on(on),
            Method::query("widgets", "boom", read, |_, _, _: Nothing| -> Result<String> {
                panic!("a handler's defect")
            })
            .rest(Verb::Get, "/boom"),
            Method::query("widgets", "leak", read, |_, _, _: Nothing| -> Result<String> {
                Err(Error::internal("the secret is 42"))
            })
            .rest(Verb::Get, "/leak"),
            Method::mutation("widgets", "fail", write, fail)
                .rest(Verb::Post, "/widgets/{widget}/fail")
                .on(on),
            Method::stream("widgets", "stream", read, |_, _, _: Nothing| {
                let chunks = stream::iter(["one\n", "two\n"]).map(|text| Ok(text.into()));
                let stream: ByteStream = Box::pin(chunks);
                Box::pin(std::future::ready(Ok(stream)))
            })
            .rest(Verb::Get, "/stream"),
        ]
    }
}
