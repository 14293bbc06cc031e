//! The OpenAPI 3.1 document, generated from the method table.

use std::collections::BTreeMap;

use palisade_contract::{Code, Handler, Method, MethodKind, Registry, Verb};
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::{
    envelope::{self, Route},
    lists, problem,
    rest::{BASE, http_method},
};

/// The document for all methods of a registry.
#[must_use]
pub fn document(registry: &Registry) -> Value {
    let mut routes = envelope::routes_of(registry);
    routes.sort_by(|a, b| a.id.cmp(&b.id));
    of_routes(routes.iter())
}

pub(crate) fn of_routes<'a>(routes: impl Iterator<Item = &'a Route>) -> Value {
    let mut generator = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .into_generator();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for route in routes {
        let input = (route.method.input)(&mut generator).to_value();
        let output = (route.method.output)(&mut generator).to_value();
        let verb = http_method(route.binding.verb).as_str().to_ascii_lowercase();
        let definitions = Value::Object(generator.definitions().clone());
        let place = paths.entry(format!("{BASE}{}", route.binding.path)).or_default();
        place.insert(verb, operation(route, &input, &output, &definitions));
    }
    let mut schemas = generator.take_definitions(true);
    schemas.insert("ProblemDocument".to_owned(), problem_schema());
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Palisade",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "security": [{ "token": [] }, { "certificate": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "parameters": parameters(),
            "responses": { "Problem": {
                "description": "Any error; `code` says which.",
                "content": { problem::MEDIA_TYPE: {
                    "schema": { "$ref": "#/components/schemas/ProblemDocument" },
                } },
            } },
            "securitySchemes": {
                "token": { "type": "http", "scheme": "bearer", "bearerFormat": "pal_…" },
                "certificate": { "type": "mutualTLS" },
            },
        },
    })
}

fn resolve<'a>(schema: &'a Value, definitions: &'a Value) -> &'a Value {
    schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|target| definitions.get(target.rsplit('/').next()?))
        .unwrap_or(schema)
}

fn operation(route: &Route, input: &Value, output: &Value, definitions: &Value) -> Value {
    let method = &route.method;
    let writes = matches!(method.kind, MethodKind::Mutation | MethodKind::Destructive);
    let in_path: Vec<&str> = route.parameters().collect();
    let resolved = resolve(input, definitions);
    let none = Map::new();
    let properties = resolved.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let mut list = vec![];
    for name in &in_path {
        let schema = properties.get(*name).cloned().unwrap_or_else(|| json!({"type": "string"}));
        list.push(json!({"name": name, "in": "path", "required": true, "schema": schema}));
    }
    let has_body = matches!(route.binding.verb, Verb::Post | Verb::Put | Verb::Patch);
    let body = body_schema(input, resolved, &in_path);
    if !has_body {
        let required = resolved.get("required").and_then(Value::as_array);
        for (name, schema) in
            properties.iter().filter(|(name, _)| !in_path.contains(&name.as_str()))
        {
            let required = required.is_some_and(|r| r.contains(&Value::String(name.clone())));
            list.push(json!({"name": name, "in": "query", "required": required, "schema": schema}));
        }
    }
    let mut shared = vec!["requestId"];
    shared.extend(match (writes, &method.handler) {
        (true, Handler::Action(_)) => &["idempotencyKey", "dryRun"][..],
        (true, _) => &["idempotencyKey", "ifMatch", "dryRun"],
        (false, _) => &["consistency", "atRevision"],
    });
    if method.list {
        shared.push("filter");
        if !properties.contains_key("cursor") {
            shared.push("sort");
        }
        shared.extend(["limit", "cursor"].iter().filter(|name| !properties.contains_key(**name)));
    }
    if method.past {
        shared.push("at");
    }
    if method.watched.is_some() {
        shared.extend(["watch", "lastEventId", "lastEventIdHeader"]);
    }
    list.extend(shared.iter().map(|n| json!({"$ref": format!("#/components/parameters/{n}")})));
    let mut operation = json!({
        "operationId": route.id,
        "summary": method.summary,
        "tags": [method.group],
        "x-palisade-action": method.action,
        "parameters": list,
        "responses": {
            "200": success(method, output, definitions),
            "default": { "$ref": "#/components/responses/Problem" },
        },
    });
    if method.kind == MethodKind::Destructive && matches!(method.handler, Handler::Mutation(_)) {
        operation["responses"]["202"] = held();
    }
    if let (true, Some(schema), Some(fields)) = (has_body, body, operation.as_object_mut()) {
        let content = json!({"application/json": {"schema": schema}});
        fields.insert("requestBody".to_owned(), json!({"content": content}));
    }
    operation
}

/// The input without what stands in the path; nothing when nothing is left.
fn body_schema(input: &Value, resolved: &Value, in_path: &[&str]) -> Option<Value> {
    let properties = resolved.get("properties").and_then(Value::as_object);
    let left = properties.map(|p| p.keys().filter(|n| !in_path.contains(&n.as_str())).count());
    if left == Some(0)
        || (left.is_none() && resolved.get("additionalProperties") == Some(&Value::Bool(false)))
    {
        return None;
    }
    if !properties.is_some_and(|p| p.keys().any(|name| in_path.contains(&name.as_str()))) {
        return Some(input.clone());
    }
    let mut body = resolved.clone();
    if let Some(properties) = body.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !in_path.contains(&name.as_str()));
    }
    if let Some(required) = body.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !name.as_str().is_some_and(|name| in_path.contains(&name)));
    }
    Some(body)
}

fn success(method: &Method, output: &Value, definitions: &Value) -> Value {
    if method.kind == MethodKind::Stream {
        let media = method.media.split(';').next().unwrap_or(method.media);
        let schema = match media {
            "application/octet-stream" => json!({"type": "string", "format": "binary"}),
            _ => json!({"type": "string"}),
        };
        let content = json!({media: {"schema": schema}});
        return json!({"description": "Bytes as they come.", "content": content});
    }
    let schema = if method.list { list_schema(output, definitions) } else { output.clone() };
    let mut content = json!({ "application/json": { "schema": schema } });
    if let (true, Some(content)) = (method.watched.is_some(), content.as_object_mut()) {
        let events = "With watch=true: events `put` (a record), `delete` (its id), `reset` (what was told is void, the \
                      list follows), `mark` (its id is where to go on) and `end` (a problem).";
        let schema = json!({"type": "string", "description": events});
        content.insert("text/event-stream".to_owned(), json!({ "schema": schema }));
    }
    json!({
        "description": "Done.",
        "headers": {
            "ETag": { "schema": { "type": "string" }, "description": "The record's revision." },
            "Palisade-Revision": {
                "schema": { "type": "integer" },
                "description": "The revision that the answer reflects.",
            },
        },
        "content": content,
    })
}

/// The answer of a destructive call that waits.
fn held() -> Value {
    let string = json!({ "type": "string" });
    json!({
        "description": "It waits for approval, and was not made: the record of what holds it, as `approvals.get` answers it.",
        "headers": {
            "ETag": { "schema": string, "description": "The record's revision." },
            "Location": { "schema": string, "description": "Where the record is." },
        },
        "content": { "application/json": { "schema": {
            "type": "object",
            "required": ["id", "state", "digest", "required"],
            "properties": {
                "id": string,
                "state": { "type": "string" },
                "digest": string,
                "required": { "type": "integer" },
            },
        } } },
    })
}

fn list_schema(output: &Value, definitions: &Value) -> Value {
    let resolved = resolve(output, definitions);
    let items = match resolved.get("type").and_then(Value::as_str) {
        Some("array") => resolved.clone(),
        _ => resolved
            .pointer("/properties/items")
            .cloned()
            .unwrap_or_else(|| json!({"type": "array"})),
    };
    let own = resolved.get("properties").and_then(Value::as_object);
    let mut properties = own.cloned().unwrap_or_default();
    properties.insert("items".to_owned(), items);
    properties.insert("revision".to_owned(), json!({ "type": "integer" }));
    properties.insert("nextCursor".to_owned(), json!({ "type": ["string", "null"] }));
    json!({
        "type": "object",
        "required": ["items", "revision", "nextCursor"],
        "properties": properties,
    })
}

fn parameters() -> Value {
    let query = |name: &str, schema: Value, description: &str| json!({"name": name, "in": "query", "schema": schema, "description": description});
    let head = |name: &str, description: &str| json!({"name": name, "in": "header", "schema": {"type": "string"}, "description": description});
    json!({
        "requestId": head("X-Request-Id", "Echoed; made when absent."),
        "idempotencyKey": head("Idempotency-Key", "A retry under the same key is answered, not applied again. Kept for 24 h."),
        "ifMatch": head("If-Match", "The revision that the record must have, as `\"42\"`."),
        "dryRun": query("dryRun", json!({"type": "boolean"}), "Only say what would be done."),
        "consistency": query("consistency", json!({"enum": ["linearizable", "local"]}), "`local` reads this replica at once."),
        "atRevision": query("atRevision", json!({"type": "integer"}), "Wait until the replica has this revision."),
        "at": query("at", json!({"type": "string"}), "The state as it was: at a revision, or at an RFC 3339 time by the cluster's clock."),
        "limit": query("limit", json!({"type": "integer", "minimum": 1, "maximum": envelope::LIMIT_MAX, "default": envelope::LIMIT_DEFAULT}), "Records at most."),
        "cursor": query("cursor", json!({"type": "string"}), "The `nextCursor` of the part before."),
        "filter": query("filter", json!({"type": "string", "maxLength": lists::FILTER_CHARS_MAX}), "Only the records that match: `status.phase = ready and not name in (a, b)`."),
        "sort": query("sort", json!({"type": "string", "maxLength": lists::ORDER_CHARS_MAX}), "By which fields, a `-` before what descends: `status.phase,-createdAt`."),
        "watch": query("watch", json!({"type": "boolean"}), "Go on with what changes in the list, as server-sent events."),
        "lastEventId": query("lastEventId", json!({"type": "string"}), "As the header `Last-Event-ID`, which counts before it."),
        "lastEventIdHeader": head("Last-Event-ID", "For a watch: the id of the last event that was seen; it goes on behind it."),
    })
}

fn problem_schema() -> Value {
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    json!({
        "type": "object",
        "required": ["type", "title", "status", "detail", "instance", "code", "requestId", "retryable"],
        "properties": {
            "type": { "type": "string" },
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "instance": { "type": "string" },
            "code": { "enum": codes },
            "requestId": { "type": "string" },
            "errors": { "type": "array", "items": {
                "type": "object",
                "properties": {
                    "pointer": { "type": "string" },
                    "message": { "type": "string" },
                },
            } },
            "retryable": { "type": "boolean" },
            "hint": { "type": "string" },
        },
    })
}
