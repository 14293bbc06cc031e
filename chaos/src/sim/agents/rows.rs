//! The rows of the product's tables as the checks read them: by their stored form, without the product's own types.

use palisade_state::View;
use serde_json::Value;

/// A table's rows that can be read.
pub(crate) fn all(view: &View, table: &str) -> Vec<(String, Value)> {
    let read = view.rows(table, b"", None).filter_map(|(key, record)| {
        let key = String::from_utf8_lossy(key.as_slice()).into_owned();
        Some((key, serde_json::from_slice(record.value()).ok()?))
    });
    read.collect()
}

/// The newest change to any of these tables, and how many rows they have.
pub(crate) fn newest(view: &View, tables: &[&str]) -> (u64, usize) {
    let mut newest = (0, 0);
    for table in tables {
        for (_, record) in view.rows(table, b"", None) {
            newest.0 = newest.0.max(record.stamp().modified_rev);
        }
        newest.1 += view.count(table);
    }
    newest
}

/// A number behind a pointer; 0 when there is none.
pub(crate) fn number(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

/// A text behind a pointer; empty when there is none.
pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}
