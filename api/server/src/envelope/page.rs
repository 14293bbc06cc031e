//! Lists: a limit, and a cursor that says after which record the next part begins.
//!
//! # Invariants
//! - `PAGE-1` A cursor is answered by the cluster that it came from, at its revision or a later one, or refused by
//!   name: never with the records of another cluster, of this one before a restore, or of an earlier time.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use palisade_contract::{Error, Problem, Result};
use palisade_state::{StoreError, View};
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

/// The last record that was answered, and how many came before it, of which cluster and up to which
/// entry of its log. The record is found by its id, so that writes between two parts neither repeat
/// nor skip what stays; its place counts when it is gone.
#[derive(Serialize, Deserialize)]
struct Cursor {
    after: String,
    place: usize,
    cluster: String,
    applied: u64,
}

/// What a list is read from.
struct Source<'a> {
    cluster: &'a str,
    revision: u64,
    applied: u64,
}

impl<'a> From<&'a View> for Source<'a> {
    fn from(view: &'a View) -> Self {
        let cluster = view.formation().map(|formation| formation.cluster.as_str());
        let (revision, applied) = (view.revision(), view.applied().index);
        Self { cluster: cluster.unwrap_or_default(), revision, applied }
    }
}

impl Source<'_> {
    /// `PAGE-1`.
    fn admit(&self, cursor: &Cursor) -> Result<()> {
        if cursor.cluster != self.cluster {
            let theirs: String = cursor.cluster.chars().take(100).collect();
            let why = format!(
                "is of cluster {theirs}, this is {}: read the list again, without a cursor",
                self.cluster
            );
            return Err(invalid("cursor", why));
        }
        if cursor.applied > self.applied {
            return Err(
                StoreError::NotReached { revision: cursor.applied, current: self.applied }.into()
            );
        }
        Ok(())
    }
}

fn invalid(field: &str, message: impl Into<String>) -> Error {
    Error::invalid(vec![Problem { pointer: format!("/{field}"), message: message.into() }])
}

impl Page {
    fn start(&self, items: &[Value], source: &Source<'_>) -> Result<usize> {
        let Some(text) = &self.cursor else {
            return Ok(0);
        };
        let cursor: Cursor = URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or_else(|| invalid("cursor", "is not one that a list was answered with"))?;
        source.admit(&cursor)?;
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
        (frame(value, &view.into(), page)?, None)
    } else {
        let etag = etag_of(&value);
        (value, etag)
    };
    Ok(Answer { reply: Reply::Json(value), revision, etag, replayed: false })
}

/// A handler answers its records as an array, or as an object with `items`; one that has a
/// `nextCursor` too has cut its list itself.
fn frame(value: Value, source: &Source<'_>, page: &Page) -> Result<Value> {
    let mut fields = match value {
        Value::Array(items) => Map::from_iter([("items".to_owned(), Value::Array(items))]),
        Value::Object(fields) => fields,
        other => return Err(Error::internal(format!("a list method answered {other}"))),
    };
    if !fields.contains_key("nextCursor") {
        let Some(Value::Array(mut items)) = fields.remove("items") else {
            return Err(Error::internal("a list method answered no items"));
        };
        let start = page.start(&items, source)?;
        let end = start.saturating_add(page.limit()?).min(items.len());
        let more = end < items.len();
        items.truncate(end);
        let items = items.split_off(start);
        let next = if more {
            let after = items.last().and_then(id_of).unwrap_or_default().to_owned();
            let (cluster, applied) = (source.cluster.to_owned(), source.applied);
            encode(&Cursor { after, place: end, cluster, applied })?
        } else {
            Value::Null
        };
        fields.insert("items".to_owned(), Value::Array(items));
        fields.insert("nextCursor".to_owned(), next);
    }
    fields.insert("revision".to_owned(), source.revision.into());
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

    const HERE: Source<'static> = Source { cluster: "cl_1", revision: 7, applied: 9 };

    fn part(ids: &[&str], limit: usize, cursor: Option<&str>) -> (Vec<String>, Option<String>) {
        let page = Page { limit: Some(limit), cursor: cursor.map(str::to_owned) };
        let framed = frame(list(ids), &HERE, &page).unwrap();
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
        assert!(frame(list(&[]), &HERE, &made_up).is_err());
        let zero = Page { limit: Some(0), cursor: None };
        assert!(frame(list(&[]), &HERE, &zero).is_err());
    }

    fn next_from(there: &Source<'_>, cursor: Option<&str>) -> Result<Value> {
        let page = Page { limit: Some(1), cursor: cursor.map(str::to_owned) };
        Ok(frame(list(&["a", "b", "c"]), there, &page)?["nextCursor"].clone())
    }

    #[test]
    fn a_cursor_of_another_cluster_is_refused_and_both_are_named() {
        let there = Source { cluster: "cl_2", revision: 7, applied: 9 };
        let cursor = next_from(&there, None).unwrap();
        assert!(next_from(&there, cursor.as_str()).is_ok());
        let refused = next_from(&HERE, cursor.as_str()).unwrap_err();
        let [problem] = refused.problems.as_slice() else { panic!("{refused:?}") };
        assert_eq!(problem.pointer, "/cursor");
        assert!(problem.message.contains("of cluster cl_2, this is cl_1"), "PAGE-1: {problem:?}");
    }

    #[test]
    fn a_cursor_is_not_answered_from_before_it() {
        let cursor = next_from(&HERE, None).unwrap();
        let behind = Source { applied: HERE.applied - 1, ..HERE };
        let refused = next_from(&behind, cursor.as_str()).unwrap_err();
        assert!(refused.retryable, "PAGE-1: {refused:?}");
        let ahead = Source { applied: HERE.applied + 1, ..HERE };
        assert!(next_from(&ahead, cursor.as_str()).is_ok());
    }
}
