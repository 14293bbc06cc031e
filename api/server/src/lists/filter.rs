//! Filters: what they say, and whether a record matches.
//!
//! A field is a path (`status.phase`). Where it leads into a list, one element that matches is enough. `null` is what a
//! record does not have or has as null. Numbers are compared as numbers, everything else as text, so moments are in
//! order; a field that is compared with what it is not does not match, and with `!=` it does.

use std::cmp::Ordering;

use serde_json::{Number, Value};

use super::{
    FILTER_CHARS_MAX,
    known::Known,
    lexer::{Fault, Op, lex},
    parser,
};

/// A filter that was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    expression: Expr,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Any(Vec<Expr>),
    All(Vec<Expr>),
    Not(Box<Expr>),
    Test { path: Vec<String>, op: Op, values: Vec<Literal> },
}

/// A value as it was written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Literal {
    pub(super) text: String,
    pub(super) is_quoted: bool,
}

impl Literal {
    pub(super) fn is_null(&self) -> bool {
        !self.is_quoted && self.text == "null"
    }

    pub(super) fn number(&self) -> Option<Number> {
        if self.is_quoted { None } else { self.text.parse().ok() }
    }

    fn equals(&self, value: &Value) -> bool {
        match value {
            Value::Bool(is) => !self.is_quoted && self.text == is.to_string(),
            _ => self.order(value) == Some(Ordering::Equal),
        }
    }

    /// How a value stands to this one.
    fn order(&self, value: &Value) -> Option<Ordering> {
        match value {
            Value::Number(number) => compare_numbers(number, &self.number()?),
            Value::String(text) if !self.is_null() => Some(text.as_str().cmp(&self.text)),
            _ => None,
        }
    }
}

/// Whole numbers exactly, others as floats.
pub(super) fn compare_numbers(one: &Number, other: &Number) -> Option<Ordering> {
    match (one.as_i128(), other.as_i128()) {
        (Some(one), Some(other)) => Some(one.cmp(&other)),
        _ => one.as_f64()?.partial_cmp(&other.as_f64()?),
    }
}

impl Filter {
    /// Reads a filter over records that have these fields.
    ///
    /// # Errors
    /// What is wrong with it, at which character, as a sentence.
    pub fn read(text: &str, known: &Known) -> Result<Self, String> {
        if text.chars().count() > FILTER_CHARS_MAX {
            return Err(format!("is longer than {FILTER_CHARS_MAX} characters"));
        }
        let told = |Fault { at, what }: Fault| format!("character {at}: {what}");
        let tokens = lex(text).map_err(told)?;
        let expression = parser::parse(tokens, text.chars().count(), known).map_err(told)?;
        Ok(Self { expression })
    }

    /// Whether a record matches.
    #[must_use]
    pub fn matches(&self, record: &Value) -> bool {
        self.expression.matches(record)
    }
}

impl Expr {
    fn matches(&self, record: &Value) -> bool {
        match self {
            Self::Any(parts) => parts.iter().any(|part| part.matches(record)),
            Self::All(parts) => parts.iter().all(|part| part.matches(record)),
            Self::Not(part) => !part.matches(record),
            Self::Test { path, op, values } => {
                let mut found = vec![];
                resolve(record, path, &mut found);
                test(&found, *op, values)
            }
        }
    }
}

/// What a path leads to.
pub(super) fn resolve<'a>(value: &'a Value, path: &[String], found: &mut Vec<&'a Value>) {
    match (value, path.split_first()) {
        (Value::Array(items), _) => items.iter().for_each(|item| resolve(item, path, found)),
        (Value::Object(fields), Some((first, rest))) => {
            if let Some(value) = fields.get(first) {
                resolve(value, rest, found);
            }
        }
        (Value::Null, _) | (_, Some(_)) => {}
        (value, None) => found.push(value),
    }
}

fn test(found: &[&Value], op: Op, values: &[Literal]) -> bool {
    let is_equal = |literal: &Literal| {
        if literal.is_null() {
            found.is_empty()
        } else {
            found.iter().any(|value| literal.equals(value))
        }
    };
    let compares = |fits: fn(Ordering) -> bool| {
        values.iter().any(|literal| found.iter().filter_map(|value| literal.order(value)).any(fits))
    };
    match op {
        Op::Equal => values.iter().any(is_equal),
        Op::NotEqual => !values.iter().any(is_equal),
        Op::Less => compares(Ordering::is_lt),
        Op::LessOrEqual => compares(Ordering::is_le),
        Op::Greater => compares(Ordering::is_gt),
        Op::GreaterOrEqual => compares(Ordering::is_ge),
        Op::Contains => values.iter().any(|literal| {
            let mut texts = found.iter().filter_map(|value| value.as_str());
            texts.any(|text| text.contains(&literal.text))
        }),
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
