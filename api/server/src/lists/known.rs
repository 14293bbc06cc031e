//! Which fields the records of a list can have, by the schema of its answer.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::{
    Method,
    fields::{NESTING_MAX, resolve},
    input::nearest,
};
use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::Value;

use super::{filter::Literal, lexer::Op};

/// A place in a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    fields: BTreeMap<String, Known>,
    /// What fields have that are not among them; absent: there are no others.
    others: Option<Box<Known>>,
    /// Anything can be here.
    anything: bool,
    is_text: bool,
    is_number: bool,
    is_flag: bool,
    /// The only texts that can be here; empty: others can.
    words: BTreeSet<String>,
    /// Some of its texts are not among `words`.
    other_words: bool,
}

impl Known {
    /// Of the records of a list method.
    #[must_use]
    pub fn of(method: &Method) -> Self {
        let mut generator: SchemaGenerator = SchemaSettings::draft2020_12().into_generator();
        let schema = (method.output)(&mut generator).to_value();
        let definitions = Value::Object(generator.take_definitions(true));
        let mut known = Self::default();
        let schema = resolve(&schema, &definitions);
        // A list that cuts itself answers its records in a frame.
        let items = schema.pointer("/properties/items").unwrap_or(schema);
        known.learn(items, &definitions, 0);
        known
    }

    /// Anything at all.
    #[cfg(test)]
    pub(crate) fn anything() -> Self {
        Self { anything: true, ..Self::default() }
    }

    fn learn(&mut self, schema: &Value, definitions: &Value, depth: usize) {
        let schema = resolve(schema, definitions);
        if depth > NESTING_MAX || *schema == Value::Bool(true) {
            self.anything = true;
            return;
        }
        for part in ["allOf", "anyOf", "oneOf"] {
            for of in schema.get(part).and_then(Value::as_array).into_iter().flatten() {
                self.learn(of, definitions, depth + 1);
            }
        }
        if let Some(items) = schema.get("items") {
            self.learn(items, definitions, depth + 1);
        }
        for (name, of) in schema.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            self.fields.entry(name.clone()).or_default().learn(of, definitions, depth + 1);
        }
        match schema.get("additionalProperties") {
            None | Some(Value::Bool(false)) => {}
            Some(of) => self.others.get_or_insert_default().learn(of, definitions, depth + 1),
        }
        self.learn_kind(schema);
    }

    fn learn_kind(&mut self, schema: &Value) {
        let words = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        let words: Vec<&str> = words.chain(schema.get("const")).filter_map(Value::as_str).collect();
        let names = match schema.get("type") {
            Some(Value::String(name)) => vec![name.as_str()],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            _ => vec![],
        };
        self.is_number |= names.iter().any(|name| matches!(*name, "integer" | "number"));
        self.is_flag |= names.contains(&"boolean");
        if !words.is_empty() {
            self.is_text = true;
            self.words.extend(words.into_iter().map(str::to_owned));
        } else if names.contains(&"string") {
            self.is_text = true;
            self.other_words = true;
        }
        let is_plain = ["properties", "additionalProperties", "anyOf", "oneOf", "allOf"];
        let says_nothing = schema.as_object().is_some_and(|fields| {
            names.is_empty()
                && !fields.contains_key("enum")
                && !fields.contains_key("const")
                && !is_plain.iter().any(|name| fields.contains_key(*name))
        });
        let is_open =
            names.contains(&"object") && !is_plain.iter().any(|name| schema.get(name).is_some());
        self.anything |= says_nothing || is_open;
    }

    /// The place that a path leads to.
    ///
    /// # Errors
    /// `LIST-1`: no record has it, with the nearest that some have.
    pub(super) fn find(&self, path: &[String]) -> Result<&Self, String> {
        let mut here = self;
        for (depth, name) in path.iter().enumerate() {
            if here.anything {
                return Ok(here);
            }
            here = match (here.fields.get(name), &here.others) {
                (Some(field), _) => field,
                (None, Some(others)) if !name.is_empty() => others,
                _ => return Err(here.unknown(path, depth)),
            };
        }
        Ok(here)
    }

    fn is_leaf(&self) -> bool {
        self.anything || self.is_text || self.is_number || self.is_flag
    }

    /// The same, for an order: only values have one.
    ///
    /// # Errors
    /// As [`Known::find`], and of what has parts.
    pub(super) fn find_value(&self, path: &[String]) -> Result<&Self, String> {
        let here = self.find(path)?;
        if here.is_leaf() { Ok(here) } else { Err(here.no_value(&path.join("."))) }
    }

    fn no_value(&self, whole: &str) -> String {
        if self.fields.is_empty() {
            return format!("{whole} is no value: add a dot and the name of what is in it");
        }
        let names: Vec<String> = self.fields.keys().map(|name| format!("{whole}.{name}")).collect();
        format!("{whole} is not a value but has parts: {}", names.join(", "))
    }

    /// Where else a field of this name is.
    fn elsewhere(&self, name: &str, depth: usize) -> Option<String> {
        if depth > 3 {
            return None;
        }
        self.fields.iter().find_map(|(part, of)| {
            if of.fields.contains_key(name) {
                return Some(format!("{part}.{name}"));
            }
            of.elsewhere(name, depth + 1).map(|rest| format!("{part}.{rest}"))
        })
    }

    fn unknown(&self, path: &[String], depth: usize) -> String {
        let whole = path.join(".");
        let before = path.iter().take(depth).map(|part| format!("{part}.")).collect::<String>();
        let names: Vec<&str> = self.fields.keys().map(String::as_str).collect();
        let name = path.get(depth).map_or("", String::as_str);
        if name.is_empty() {
            return format!("{whole:?} lacks a name beside a dot");
        }
        let near = nearest(name, names.iter().copied()).map(str::to_owned);
        match near.or_else(|| self.elsewhere(name, 0)) {
            _ if names.is_empty() => format!(
                "no record has a field {whole}: {} has no parts",
                before.trim_end_matches('.')
            ),
            Some(near) => format!("no record has a field {whole}; did you mean {before}{near}?"),
            None => {
                format!("no record has a field {whole}; there are {before}{{{}}}", names.join(", "))
            }
        }
    }

    /// Whether what is here can be compared so.
    ///
    /// # Errors
    /// `LIST-1`: it can never be.
    pub(super) fn admits(&self, field: &str, op: Op, value: &Literal) -> Result<(), String> {
        let is_equality = matches!(op, Op::Equal | Op::NotEqual);
        if !self.is_leaf() && !value.is_null() {
            return Err(self.no_value(field));
        }
        if value.is_null() {
            return if is_equality {
                Ok(())
            } else {
                Err("null is compared by = and != only; put it in quotes for the text".to_owned())
            };
        }
        if self.anything {
            return Ok(());
        }
        if op == Op::Contains {
            return if self.is_text {
                Ok(())
            } else {
                Err(format!("{field} is no text: ~ looks for a part of one"))
            };
        }
        let is_number = self.is_number && value.number().is_some();
        let is_flag =
            self.is_flag && is_equality && ["true", "false"].contains(&value.text.as_str());
        if is_number || is_flag && !value.is_quoted {
            return Ok(());
        }
        if !self.is_text {
            let what = match (self.is_number, self.is_flag) {
                (true, _) => "a number",
                (_, true) if is_equality => "true or false",
                _ => "true or false, which are compared by = and !=",
            };
            return Err(format!("{field} is {what}; {:?} is not", value.text));
        }
        if is_equality && !self.other_words && !self.words.contains(&value.text) {
            let words: Vec<&str> = self.words.iter().map(String::as_str).collect();
            let near = nearest(&value.text, words.iter().copied());
            let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
            return Err(format!("{field} is one of {}{near}", words.join(", ")));
        }
        Ok(())
    }
}
