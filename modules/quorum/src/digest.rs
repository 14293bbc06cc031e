//! What somebody approves, as one number: a batch that changes has another.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::records::{BatchRow, HeldCall};

/// SHA-256 of a value, hex. The fields of objects are in the order of their names, so that equal values are the same text.
pub(crate) fn of(value: &Value) -> String {
    hex::encode(Sha256::digest(value.to_string()))
}

/// What is approved of a batch: which one it is, whose, what it does and why.
pub(crate) fn of_batch(row: &BatchRow) -> String {
    of(&json!({
        "id": row.id, "tenant": row.tenant, "createdBy": row.created_by, "reason": row.reason,
        "scope": row.scope, "calls": row.calls, "commands": row.commands, "seen": row.seen,
    }))
}

/// Who wants what: the same wish is held once.
pub(crate) fn of_wish(who: &str, tenant: &str, calls: &[HeldCall]) -> String {
    of(&json!({ "who": who, "tenant": tenant, "calls": calls }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_in_which_fields_were_written_is_no_difference() {
        let one: Value = serde_json::from_str(r#"{"a": 1, "b": {"c": 2, "d": 3}}"#).unwrap();
        let other: Value = serde_json::from_str(r#"{"b": {"d": 3, "c": 2}, "a": 1}"#).unwrap();
        assert_eq!(of(&one), of(&other));
        assert_ne!(of(&one), of(&json!({"a": 1})));
    }
}
