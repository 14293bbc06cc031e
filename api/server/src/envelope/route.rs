//! Methods with what REST must know of them: where they are, and of which types their fields are.

use std::{collections::BTreeMap, sync::OnceLock};

use palisade_contract::{
    Binding, Method, Registry,
    fields::{self, NESTING_MAX, resolve},
    registry::binding_of,
};
use serde_json::Value;

use crate::lists::Known;

/// What a text from a path or query is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// As it stands.
    Text,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// A list of texts, by repetition.
    List,
}

impl FieldKind {
    /// Reads a text; what cannot be read stays a text, for validation to refuse it by its pointer.
    #[must_use]
    pub fn read(self, text: &str) -> Value {
        let read = match self {
            Self::Text => None,
            Self::Integer => text
                .parse::<u64>()
                .map(Value::from)
                .or_else(|_| text.parse::<i64>().map(Value::from))
                .ok(),
            Self::Number => text.parse::<f64>().ok().map(Value::from),
            Self::Boolean => match text {
                "true" | "" => Some(Value::Bool(true)),
                "false" => Some(Value::Bool(false)),
                _ => None,
            },
            Self::List => Some(Value::Array(vec![Value::String(text.to_owned())])),
        };
        read.unwrap_or_else(|| Value::String(text.to_owned()))
    }
}

/// A method and its place.
#[derive(Debug)]
pub struct Route {
    /// `group.name`; a plugin's is `<plugin>:group.name`.
    pub id: String,
    /// The method.
    pub method: Method,
    /// Where it is.
    pub binding: Binding,
    /// The fields of its input.
    pub fields: BTreeMap<String, FieldKind>,
    known: OnceLock<Known>,
}

impl Route {
    /// A method at its place.
    pub(crate) fn new(id: String, method: Method, binding: Binding) -> Self {
        let fields = fields(&method);
        Self { id, method, binding, fields, known: OnceLock::new() }
    }

    /// The fields that its records can have, when it is a list.
    pub(crate) fn known(&self) -> &Known {
        self.known.get_or_init(|| Known::of(&self.method))
    }

    /// The names of the parameters in its path, in order.
    pub fn parameters(&self) -> impl Iterator<Item = &str> {
        self.binding
            .path
            .split('/')
            .filter_map(|segment| segment.strip_prefix('{')?.strip_suffix('}'))
    }
}

/// The methods of all modules, in order.
pub(crate) fn routes(registry: &Registry) -> Vec<Route> {
    let mut routes = vec![];
    for module in registry.modules() {
        for method in module.methods() {
            let id = match module.plugin() {
                Some(plugin) => format!("{plugin}:{}", method.full_name()),
                None => method.full_name(),
            };
            let binding = binding_of(&**module, &method);
            routes.push(Route::new(id, method, binding));
        }
    }
    routes
}

fn fields(method: &Method) -> BTreeMap<String, FieldKind> {
    let mut found = BTreeMap::new();
    fields::visit(method, &mut |name, schema, definitions| {
        found.insert(name.to_owned(), kind(schema, definitions, 0).unwrap_or(FieldKind::Text));
    });
    found
}

fn kind(schema: &Value, definitions: &Value, depth: usize) -> Option<FieldKind> {
    if depth > NESTING_MAX {
        return None;
    }
    let schema = resolve(schema, definitions);
    let of_type = |name: &str| match name {
        "string" => Some(FieldKind::Text),
        "integer" => Some(FieldKind::Integer),
        "number" => Some(FieldKind::Number),
        "boolean" => Some(FieldKind::Boolean),
        "array" => Some(FieldKind::List),
        _ => None,
    };
    match schema.get("type") {
        Some(Value::String(name)) => of_type(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).find_map(of_type),
        _ => ["anyOf", "oneOf", "allOf"]
            .iter()
            .filter_map(|part| schema.get(part)?.as_array())
            .flatten()
            .find_map(|of| kind(of, definitions, depth + 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use palisade_contract::{Check, MethodContext};
    use palisade_state::View;
    use schemars::JsonSchema;
    use serde::Deserialize;

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    #[expect(dead_code, reason = "a shape")]
    struct Input {
        node: palisade_contract::NodeId,
        tail_lines: Option<u32>,
        follow: bool,
        tags: Vec<String>,
    }

    impl Check for Input {}

    #[test]
    fn texts_are_read_as_the_schema_says() {
        let handler = |_: &MethodContext, _: &View, _: Input| Ok(String::new());
        let fields = fields(&Method::query("a", "b", "compute:a:read", handler));
        assert_eq!(fields["node"], FieldKind::Text);
        assert_eq!(fields["tailLines"], FieldKind::Integer);
        assert_eq!(fields["follow"], FieldKind::Boolean);
        assert_eq!(fields["tags"], FieldKind::List);
        assert_eq!(FieldKind::Integer.read("7"), Value::from(7));
        assert_eq!(FieldKind::Integer.read("x"), Value::from("x"));
    }
}
