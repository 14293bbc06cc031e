//! Reading input strictly: every problem at once, each with its JSON Pointer, and for an unknown
//! field the nearest known one.

use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::{Code, Error, Problem, Result};

/// Problems found so far.
#[derive(Debug, Default)]
pub struct Problems {
    found: Vec<Problem>,
}

/// Problems reported at most; the rest would not be read.
const PROBLEMS_MAX: usize = 50;

impl Problems {
    /// Notes one.
    pub fn add(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        if self.found.len() < PROBLEMS_MAX {
            self.found.push(Problem { pointer: pointer.into(), message: message.into() });
        }
    }

    /// `Ok` when there is none.
    ///
    /// # Errors
    /// `INVALID_INPUT` with all of them.
    pub fn into_result(self) -> Result<()> {
        if self.found.is_empty() { Ok(()) } else { Err(Error::invalid(self.found)) }
    }
}

/// What the types alone cannot say of an input.
pub trait Check {
    /// Notes every problem; `at` is the pointer of `self`.
    fn check(&self, _at: &str, _problems: &mut Problems) {}
}

/// The input of a method that takes none.
#[derive(Clone, Copy, Debug, Default, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

impl Check for Nothing {}

/// Reads a value as `I`.
///
/// # Errors
/// `INVALID_INPUT` with every problem that the schema or [`Check`] found.
pub fn decode<I: DeserializeOwned + JsonSchema + Check>(value: &Value) -> Result<I> {
    let schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<I>();
    let mut problems = Problems::default();
    Walker { root: schema.as_value() }.walk(schema.as_value(), value, "", &mut problems);
    problems.into_result()?;
    let input: I = serde_json::from_value(value.clone()).map_err(|error| {
        Error::invalid(vec![Problem { pointer: String::new(), message: error.to_string() }])
    })?;
    let mut problems = Problems::default();
    input.check("", &mut problems);
    problems.into_result()?;
    Ok(input)
}

/// The schema of `I`, inlined into a generator's definitions.
pub fn schema_of<I: JsonSchema>(generator: &mut SchemaGenerator) -> schemars::Schema {
    generator.subschema_for::<I>()
}

/// Escapes one segment of a JSON Pointer (RFC 6901).
#[must_use]
pub fn pointer_segment(segment: &str) -> String {
    segment.replace('~', "~0").replace('/', "~1")
}

/// Walks a value beside the part of JSON Schema that schemars writes.
struct Walker<'a> {
    root: &'a Value,
}

impl Walker<'_> {
    fn resolve<'s>(&'s self, schema: &'s Value) -> &'s Value {
        match schema.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix('#')) {
            Some(pointer) => {
                self.root.pointer(pointer).map_or(schema, |target| self.resolve(target))
            }
            None => schema,
        }
    }

    fn walk(&self, schema: &Value, value: &Value, at: &str, problems: &mut Problems) {
        let schema = self.resolve(schema);
        for combinator in ["oneOf", "anyOf"] {
            if let Some(options) = schema.get(combinator).and_then(Value::as_array) {
                self.any_of(options, value, at, problems);
                return;
            }
        }
        if let Some(all) = schema.get("allOf").and_then(Value::as_array) {
            for part in all {
                self.walk(part, value, at, problems);
            }
        }
        if !has_type(schema, value) {
            let is = if is_secret(schema) { "something else".to_owned() } else { describe(value) };
            problems.add(at, format!("must be {}, is {is}", type_words(schema)));
            return;
        }
        self.constants(schema, value, at, problems);
        match value {
            Value::Object(fields) => self.object(schema, fields, at, problems),
            Value::Array(items) => {
                if let Some(of) = schema.get("items") {
                    for (position, item) in items.iter().enumerate() {
                        self.walk(of, item, &format!("{at}/{position}"), problems);
                    }
                }
            }
            _ => {}
        }
    }

    fn constants(&self, schema: &Value, value: &Value, at: &str, problems: &mut Problems) {
        if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
            && !allowed.contains(value)
        {
            let words: Vec<String> = allowed.iter().map(ToString::to_string).collect();
            problems
                .add(at, format!("must be one of {}, is {}", words.join(", "), describe(value)));
        }
        if let Some(constant) = schema.get("const")
            && constant != value
        {
            problems.add(at, format!("must be {constant}, is {}", describe(value)));
        }
        if let Some(number) = value.as_f64() {
            if let Some(least) = schema.get("minimum").and_then(Value::as_f64)
                && number < least
            {
                problems.add(at, format!("must be at least {least}, is {value}"));
            }
            if let Some(most) = schema.get("maximum").and_then(Value::as_f64)
                && number > most
            {
                problems.add(at, format!("must be at most {most}, is {value}"));
            }
        }
    }

    /// Takes the first option that has no problem; else tells of the one that comes nearest.
    fn any_of(&self, options: &[Value], value: &Value, at: &str, problems: &mut Problems) {
        let mut best: Option<Problems> = None;
        for option in options {
            let mut tried = Problems::default();
            self.walk(option, value, at, &mut tried);
            if tried.found.is_empty() {
                return;
            }
            let deeper = |p: &Problems| p.found.iter().map(|f| f.pointer.len()).max().unwrap_or(0);
            if best.as_ref().is_none_or(|b| deeper(&tried) > deeper(b)) {
                best = Some(tried);
            }
        }
        let strings: Vec<String> = options
            .iter()
            .map(|o| self.resolve(o))
            .flat_map(|o| {
                o.get("const")
                    .into_iter()
                    .chain(o.get("enum").and_then(Value::as_array).into_iter().flatten())
            })
            .map(ToString::to_string)
            .collect();
        if strings.len() > 1 && !value.is_object() {
            problems
                .add(at, format!("must be one of {}, is {}", strings.join(", "), describe(value)));
            return;
        }
        if let Some(wanted) = self.types(options, value) {
            problems.add(at, format!("must be of type {wanted}, is {}", describe(value)));
            return;
        }
        for problem in best.unwrap_or_default().found {
            problems.add(problem.pointer, problem.message);
        }
    }

    /// The types of all options, when there are several and the value is of none of them.
    fn types(&self, options: &[Value], value: &Value) -> Option<String> {
        let options: Vec<&Value> = options.iter().map(|option| self.resolve(option)).collect();
        if options.iter().any(|option| has_type(option, value) || is_secret(option)) {
            return None;
        }
        let types = options.iter().filter_map(|option| option.get("type")?.as_str());
        let types: Vec<&str> = types.filter(|name| *name != "null").collect();
        (types.len() > 1).then(|| types.join(" or "))
    }

    fn object(
        &self,
        schema: &Value,
        fields: &Map<String, Value>,
        at: &str,
        problems: &mut Problems,
    ) {
        let none = Map::new();
        let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let extra = schema.get("additionalProperties");
        for (name, value) in fields {
            let here = format!("{at}/{}", pointer_segment(name));
            match (known.get(name), extra) {
                (Some(of), _) => self.walk(of, value, &here, problems),
                (None, Some(Value::Bool(false))) => problems.add(here, unknown_field(name, known)),
                (None, Some(of @ Value::Object(_))) => self.walk(of, value, &here, problems),
                (None, _) => {}
            }
        }
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) {
                problems.add(format!("{at}/{}", pointer_segment(name)), "is required and missing");
            }
        }
    }
}

fn unknown_field(name: &str, known: &Map<String, Value>) -> String {
    let shown: String = name.chars().take(64).flat_map(char::escape_debug).collect();
    match nearest(name, known.keys().map(String::as_str)) {
        Some(near) => format!("unknown field \"{shown}\"; did you mean {near:?}?"),
        None => {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            format!("unknown field \"{shown}\"; known fields: {}", names.join(", "))
        }
    }
}

/// The known word nearest to `word`, if one is near at all.
pub fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let folded = |text: &str| text.replace(['-', '_'], "").to_lowercase();
    known
        .map(|candidate| (strsim::jaro_winkler(&folded(word), &folded(candidate)), candidate))
        .filter(|(score, _)| *score > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

fn has_type(schema: &Value, value: &Value) -> bool {
    let is = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
        }
        "number" => value.is_number(),
        _ => true,
    };
    match schema.get("type") {
        Some(Value::String(name)) => is(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(is),
        _ => true,
    }
}

fn type_words(schema: &Value) -> String {
    match schema.get("type") {
        Some(Value::String(name)) => format!("of type {name}"),
        Some(Value::Array(names)) => {
            let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
            format!("of type {}", names.join(" or "))
        }
        _ => "something else".to_owned(),
    }
}

/// What is there must not be repeated.
fn is_secret(schema: &Value) -> bool {
    schema.get("writeOnly") == Some(&Value::Bool(true))
}

/// A value in a few words, for messages; long ones are cut.
fn describe(value: &Value) -> String {
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::String(text) if text.chars().count() > 64 => {
            format!("a string of {} characters", text.chars().count())
        }
        other => other.to_string(),
    }
}

/// Parses JSON.
///
/// # Errors
/// `INVALID_INPUT` with the line and column.
pub fn parse_json(bytes: &[u8]) -> Result<Value> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::new(Code::InvalidInput, format!("the body is not JSON: {error}")))
}
