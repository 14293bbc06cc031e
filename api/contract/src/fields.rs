//! The fields of a method's input, as its JSON Schema has them.

use std::collections::BTreeSet;

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;

use crate::method::Method;

/// Schemas are not looked into deeper than this; they may be recursive.
pub const NESTING_MAX: usize = 16;

/// What a schema that may be a reference stands for.
#[must_use]
pub fn resolve<'a>(schema: &'a Value, definitions: &'a Value) -> &'a Value {
    schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|target| definitions.get(target.rsplit('/').next()?))
        .unwrap_or(schema)
}

/// Visits each field with its name, its schema and the definitions that schema may refer to.
pub fn visit(method: &Method, visit: &mut dyn FnMut(&str, &Value, &Value)) {
    let mut generator: SchemaGenerator = SchemaSettings::draft2020_12().into_generator();
    let schema = (method.input)(&mut generator).to_value();
    let definitions = Value::Object(generator.take_definitions(true));
    properties(&schema, &definitions, 0, visit);
}

/// The names of all fields.
#[must_use]
pub fn names(method: &Method) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    visit(method, &mut |name, _, _| {
        found.insert(name.to_owned());
    });
    found
}

/// Visits the properties of an object schema, those of its parts among them.
fn properties(
    schema: &Value,
    definitions: &Value,
    depth: usize,
    visit: &mut dyn FnMut(&str, &Value, &Value),
) {
    if depth > NESTING_MAX {
        return;
    }
    let schema = resolve(schema, definitions);
    for (name, of) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        visit(name, of, definitions);
    }
    for part in ["allOf", "anyOf", "oneOf"] {
        for of in schema.get(part).and_then(Value::as_array).into_iter().flatten() {
            properties(of, definitions, depth + 1, visit);
        }
    }
}
