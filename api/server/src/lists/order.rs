//! The order of a list.

use std::cmp::Ordering;

use serde_json::Value;

use super::{
    ORDER_CHARS_MAX, ORDER_FIELDS_MAX,
    filter::{compare_numbers, resolve},
    known::Known,
    lexer::{Lexeme, lex},
};

/// By which fields records are ordered; those that are alike in them by their ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    fields: Vec<By>,
}

#[derive(Clone, Debug, PartialEq)]
struct By {
    path: Vec<String>,
    descending: bool,
}

impl Order {
    /// Reads `name,-createdAt`.
    ///
    /// # Errors
    /// What is wrong with it, as a sentence.
    pub fn read(text: &str, known: &Known) -> Result<Self, String> {
        if text.chars().count() > ORDER_CHARS_MAX {
            return Err(format!("is longer than {ORDER_CHARS_MAX} characters"));
        }
        let mut fields = vec![];
        for part in text.split(',').map(str::trim) {
            let (descending, name) = match part.strip_prefix('-') {
                Some(name) => (true, name),
                None => (false, part),
            };
            let path = match lex(name).as_deref() {
                Ok([token]) => match &token.is {
                    Lexeme::Word { path, .. } => path.clone(),
                    _ => return Err(format!("{part:?} is no field")),
                },
                _ => {
                    return Err(format!(
                        "{part:?} is no field: fields, separated by commas, a - before what descends"
                    ));
                }
            };
            known.find_value(&path)?;
            fields.push(By { path, descending });
        }
        if fields.len() > ORDER_FIELDS_MAX {
            return Err(format!("orders by more than {ORDER_FIELDS_MAX} fields"));
        }
        Ok(Self { fields })
    }

    /// What a record is ordered by: numbers, texts and flags; null where it has none, or a list of them.
    #[must_use]
    pub fn keys(&self, record: &Value) -> Vec<Value> {
        let key = |by: &By| {
            let mut found = vec![];
            resolve(record, &by.path, &mut found);
            match found.as_slice() {
                [only] if !only.is_object() => (*only).clone(),
                _ => Value::Null,
            }
        };
        self.fields.iter().map(key).collect()
    }

    /// How two records stand to each other by their keys and ids. What has no value comes last either way.
    #[must_use]
    pub fn compare(&self, one: (&[Value], &str), other: (&[Value], &str)) -> Ordering {
        let keys = one.0.iter().zip(other.0);
        let by_keys = self.fields.iter().zip(keys).map(|(by, (one, other))| {
            match (one.is_null(), other.is_null()) {
                (false, false) => {
                    let order = compare(one, other);
                    if by.descending { order.reverse() } else { order }
                }
                (one, other) => one.cmp(&other),
            }
        });
        by_keys.fold(Ordering::Equal, Ordering::then).then_with(|| one.1.cmp(other.1))
    }
}

/// Flags, then numbers, then texts.
fn compare(one: &Value, other: &Value) -> Ordering {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            compare_numbers(one, other).unwrap_or(Ordering::Equal)
        }
        (Value::String(one), Value::String(other)) => one.cmp(other),
        (Value::Bool(one), Value::Bool(other)) => one.cmp(other),
        (one, other) => rank(one).cmp(&rank(other)),
    }
}

fn rank(value: &Value) -> u8 {
    match value {
        Value::Bool(_) => 0,
        Value::Number(_) => 1,
        _ => 2,
    }
}
