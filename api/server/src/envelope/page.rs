//! Lists: a limit, and a cursor that says after which record the next part begins.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use palisade_contract::{Error, Problem, Result};
use palisade_state::View;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Answer, Reply};

/// Records of a list when no limit is given.
pub const LIMIT_DEFAULT: usize = 1000;
/// Records of a list at most.
pub const LIMIT_MAX: usize = 10_000;

/// Which part of a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Records at most.
    pub limit: Option<usize>,
    /// Where the part before ended.
    pub cursor: Option<String>,
}

/// The last record that was answered, and how many came before it. The record is found by its id,
/// so that writes between two parts neither repeat nor skip what stays; its place counts when it
/// is gone.
#[derive(Serialize, Deserialize)]
struct Cursor {
    after: String,
    place: usize,
}

fn invalid(field: &str, message: impl Into<String>) -> Error {
    Error::invalid(vec![Problem { pointer: format!("/{field}"), message: message.into() }])
}

impl Page {
    fn start(&self, items: &[Value]) -> Result<usize> {
        let Some(text) = &self.cursor else {
            return Ok(0);
        };
        let cursor: Cursor = URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or_else(|| invalid("cursor", "is not one that a list was answered with"))?;
        let found = items.iter().position(|item| id_of(item) == Some(cursor.after.as_str()));
        Ok(found.map_or(cursor.place, |place| place + 1).min(items.len()))
    }

    fn limit(&self) -> Result<usize> {
        match self.limit {
            None => Ok(LIMIT_DEFAULT),
            Some(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            Some(_) => Err(invalid("limit", format!("must be 1 to {LIMIT_MAX}"))),
        }
    }
}

fn id_of(item: &Value) -> Option<&str> {
    item.get("id").or_else(|| item.get("name")).and_then(Value::as_str)
}

/// The record's own revision.
pub(super) fn etag_of(value: &Value) -> Option<u64> {
    value.get("revision").and_then(Value::as_u64)
}

/// The answer of a query: a record as it is, a list in its frame.
pub(super) fn answer(list: bool, value: Value, view: &View, page: &Page) -> Result<Answer> {
    let revision = view.revision();
    let (value, etag) = if list {
        (frame(value, revision, page)?, None)
    } else {
        let etag = etag_of(&value);
        (value, etag)
    };
    Ok(Answer { reply: Reply::Json(value), revision, etag, replayed: false })
}

/// A handler answers its records as an array, or as an object with `items`; one that has a
/// `nextCursor` too has cut its list itself.
fn frame(value: Value, revision: u64, page: &Page) -> Result<Value> {
    let mut fields = match value {
        Value::Array(items) => Map::from_iter([("items".to_owned(), Value::Array(items))]),
        Value::Object(fields) => fields,
        other => return Err(Error::internal(format!("a list method answered {other}"))),
    };
    if !fields.contains_key("nextCursor") {
        let Some(Value::Array(mut items)) = fields.remove("items") else {
            return Err(Error::internal("a list method answered no items"));
        };
        let start = page.start(&items)?;
        let end = start.saturating_add(page.limit()?).min(items.len());
        let more = end < items.len();
        items.truncate(end);
        let items = items.split_off(start);
        let next = match items.last().and_then(id_of).filter(|_| more) {
            Some(after) => encode(&Cursor { after: after.to_owned(), place: end })?,
            None if more => encode(&Cursor { after: String::new(), place: end })?,
            None => Value::Null,
        };
        fields.insert("items".to_owned(), Value::Array(items));
        fields.insert("nextCursor".to_owned(), next);
    }
    fields.insert("revision".to_owned(), revision.into());
    Ok(Value::Object(fields))
}

fn encode(cursor: &Cursor) -> Result<Value> {
    let bytes = serde_json::to_vec(cursor).map_err(Error::internal)?;
    Ok(Value::String(URL_SAFE_NO_PAD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(ids: &[&str]) -> Value {
        Value::Array(ids.iter().map(|id| json!({"id": id})).collect())
    }

    fn part(ids: &[&str], limit: usize, cursor: Option<&str>) -> (Vec<String>, Option<String>) {
        let page = Page { limit: Some(limit), cursor: cursor.map(str::to_owned) };
        let framed = frame(list(ids), 7, &page).unwrap();
        assert_eq!(framed["revision"], 7);
        let ids = framed["items"].as_array().unwrap().iter();
        let ids = ids.map(|item| item["id"].as_str().unwrap().to_owned()).collect();
        (ids, framed["nextCursor"].as_str().map(str::to_owned))
    }

    #[test]
    fn the_next_part_begins_after_the_last_record_although_one_before_it_is_gone() {
        let (first, next) = part(&["a", "b", "c", "d"], 2, None);
        assert_eq!(first, ["a", "b"]);
        let (second, end) = part(&["b", "c", "d"], 2, next.as_deref());
        assert_eq!(second, ["c", "d"]);
        assert_eq!(end, None);
    }

    #[test]
    fn a_cursor_whose_record_is_gone_goes_on_at_its_place() {
        let (_, next) = part(&["a", "b", "c"], 1, None);
        assert_eq!(part(&["b", "c"], 5, next.as_deref()).0, ["c"]);
    }

    #[test]
    fn a_made_up_cursor_and_a_limit_of_zero_are_refused() {
        let made_up = Page { limit: None, cursor: Some("x".to_owned()) };
        assert!(frame(list(&[]), 1, &made_up).is_err());
        let zero = Page { limit: Some(0), cursor: None };
        assert!(frame(list(&[]), 1, &zero).is_err());
    }
}
