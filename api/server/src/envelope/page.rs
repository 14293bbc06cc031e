//! Lists: a limit, a filter and an order, and a cursor that says after which record the next part begins.
//!
//! # Invariants
//! - `PAGE-1` A cursor is answered by the cluster that it came from, at its revision or a later one, or refused by
//!   name: never with the records of another cluster, of this one before a restore, or of an earlier time.
//! - `PAGE-2` A cursor goes on in the list, in the order, and with the filter, of the part before, or is refused.
//! - `PAGE-3` Of a list that is made record by record, without an order, no more are made than are looked at.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use palisade_contract::{Error, MethodContext, Problem, Result, method::Records};
use palisade_state::{StoreError, View};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::{Answer, Reply, Route};
use crate::{
    json,
    lists::{Filter, Order},
};

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
    /// What its records are narrowed by; absent: nothing.
    pub filter: Option<String>,
    /// What they are ordered by; absent: by their ids.
    pub sort: Option<String>,
}

/// The last record that was answered, by its id and what it was ordered by, so that what stays is neither repeated nor
/// left out although it is gone; of which cluster, and up to which entry of its log.
#[derive(Serialize, Deserialize)]
struct Cursor {
    after: String,
    cluster: String,
    applied: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<Value>,
    /// `PAGE-2`: the list, the filter and the order.
    #[serde(default)]
    query: String,
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

/// What is wanted of a list, read.
pub(crate) struct Wanted {
    limit: usize,
    cursor: Option<Cursor>,
    pub(crate) filter: Option<Filter>,
    /// Nothing but their ids when none was asked for.
    order: Order,
    is_ordered: bool,
    query: String,
}

impl Page {
    /// Reads what is wanted of the list of a method.
    ///
    /// # Errors
    /// Each of the four that is wrong.
    pub(crate) fn read(&self, route: &Route) -> Result<Wanted> {
        let filter = self
            .filter
            .as_ref()
            .map(|text| Filter::read(text, route.known()).map_err(|why| invalid("filter", why)));
        let order = self
            .sort
            .as_ref()
            .map(|text| Order::read(text, route.known()).map_err(|why| invalid("sort", why)));
        let (filter, order) = (filter.transpose()?, order.transpose()?);
        if route.fields.contains_key("cursor") {
            // It cuts its list itself, and knows its own cursors.
            return Self::default().wanted(&route.id, filter, order);
        }
        self.wanted(&route.id, filter, order)
    }

    fn wanted(&self, list: &str, filter: Option<Filter>, order: Option<Order>) -> Result<Wanted> {
        let digest = Sha256::digest(json::canonical(&json!([list, self.filter, self.sort])));
        let query = hex::encode(digest.get(..8).unwrap_or_default());
        let (limit, cursor) = (self.limit()?, self.cursor()?);
        let is_ordered = order.is_some();
        let order = order.unwrap_or_default();
        let wanted = Wanted { limit, cursor, filter, order, is_ordered, query };
        if let Some(cursor) = &wanted.cursor
            && cursor.query != wanted.query
        {
            let why = "is of another list, or of this one with another filter or sort: go on with the same, or begin without a cursor";
            return Err(invalid("cursor", why));
        }
        Ok(wanted)
    }

    fn cursor(&self) -> Result<Option<Cursor>> {
        let Some(text) = &self.cursor else { return Ok(None) };
        let cursor = URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .ok_or_else(|| invalid("cursor", "is not one that a list was answered with"))?;
        Ok(Some(cursor))
    }

    fn limit(&self) -> Result<usize> {
        match self.limit {
            None => Ok(LIMIT_DEFAULT),
            Some(limit) if (1..=LIMIT_MAX).contains(&limit) => Ok(limit),
            Some(_) => Err(invalid("limit", format!("must be 1 to {LIMIT_MAX}"))),
        }
    }
}

impl Wanted {
    fn takes(&self, record: &Value) -> bool {
        self.filter.as_ref().is_none_or(|filter| filter.matches(record))
    }

    /// Where the next part begins, among all records that are taken, in their order.
    fn start(&self, items: &[(Vec<Value>, Value)]) -> usize {
        let Some(cursor) = &self.cursor else { return 0 };
        let at = (cursor.keys.as_slice(), cursor.after.as_str());
        items.partition_point(|(keys, item)| {
            self.order.compare((keys, id_of(item).unwrap_or_default()), at).is_le()
        })
    }

    /// The part of a list of which all records are there.
    fn part(&self, items: Vec<Value>, source: &Source<'_>) -> Result<(Vec<Value>, Value)> {
        let mut items: Vec<(Vec<Value>, Value)> = items
            .into_iter()
            .filter(|item| self.takes(item))
            .map(|item| (self.order.keys(&item), item))
            .collect();
        items.sort_by(|(one_keys, one), (other_keys, other)| {
            let id = |item| id_of(item).unwrap_or_default();
            self.order.compare((one_keys, id(one)), (other_keys, id(other)))
        });
        let start = self.start(&items);
        let end = start.saturating_add(self.limit).min(items.len());
        let is_more = end < items.len();
        items.truncate(end);
        let items = items.split_off(start);
        let next = match items.last() {
            Some((keys, last)) if is_more => self.next(last, keys.clone(), source)?,
            _ => Value::Null,
        };
        Ok((items.into_iter().map(|(_, item)| item).collect(), next))
    }

    /// `PAGE-3`: the part of a list that is made as it is taken.
    fn taken(
        &self,
        records: Records<'_, Value>,
        source: &Source<'_>,
    ) -> Result<(Vec<Value>, Value)> {
        let mut items: Vec<Value> = vec![];
        let mut next = Value::Null;
        for record in records {
            let record = record?;
            if !self.takes(&record) {
                continue;
            }
            if items.len() == self.limit {
                if let Some(last) = items.last() {
                    next = self.next(last, vec![], source)?;
                }
                break;
            }
            items.push(record);
        }
        Ok((items, next))
    }

    fn next(&self, last: &Value, keys: Vec<Value>, source: &Source<'_>) -> Result<Value> {
        let after = id_of(last).unwrap_or_default().to_owned();
        let (cluster, applied) = (source.cluster.to_owned(), source.applied);
        let cursor = Cursor { after, cluster, applied, keys, query: self.query.clone() };
        let bytes = serde_json::to_vec(&cursor).map_err(Error::internal)?;
        Ok(Value::String(URL_SAFE_NO_PAD.encode(bytes)))
    }
}

fn id_of(item: &Value) -> Option<&str> {
    item.get("id").or_else(|| item.get("name")).and_then(Value::as_str)
}

/// The record's own revision.
pub(super) fn etag_of(value: &Value) -> Option<u64> {
    value.get("revision").and_then(Value::as_u64)
}

/// The answer of a query that is no list.
pub(super) fn record(value: Value, view: &View, page: &Page) -> Result<Answer> {
    let given = [("filter", &page.filter), ("sort", &page.sort)];
    if let Some((name, _)) = given.into_iter().find(|(_, given)| given.is_some()) {
        return Err(invalid(name, "is for lists: leave it out"));
    }
    let etag = etag_of(&value);
    Ok(Answer {
        reply: Reply::Json(value),
        revision: view.revision(),
        etag,
        replayed: false,
        held: false,
    })
}

/// The answer of a query that is a list, which is made record by record where the method can.
pub(super) fn list(
    route: &Route,
    cx: &MethodContext,
    view: &View,
    input: Value,
    page: &Page,
    run: impl FnOnce(Value) -> Result<Value>,
) -> Result<Answer> {
    let wanted = page.read(route)?;
    let source = Source::from(view);
    if let Some(cursor) = &wanted.cursor {
        source.admit(cursor)?;
    }
    let value = match &route.method.records {
        Some(records) if !wanted.is_ordered => {
            let after = wanted.cursor.as_ref().map(|cursor| cursor.after.as_str());
            let (items, next) =
                wanted.taken(records(cx, view, input, after.unwrap_or_default())?, &source)?;
            framed(items, next, &source)
        }
        _ => frame(run(input)?, &source, &wanted)?,
    };
    Ok(Answer {
        reply: Reply::Json(value),
        revision: source.revision,
        etag: None,
        replayed: false,
        held: false,
    })
}

fn framed(items: Vec<Value>, next: Value, source: &Source<'_>) -> Value {
    json!({ "items": items, "nextCursor": next, "revision": source.revision })
}

/// A handler answers its records as an array, or as an object with `items`; one that has a
/// `nextCursor` too has cut its list itself.
fn frame(value: Value, source: &Source<'_>, wanted: &Wanted) -> Result<Value> {
    let mut fields = match value {
        Value::Array(items) => Map::from_iter([("items".to_owned(), Value::Array(items))]),
        Value::Object(fields) => fields,
        other => return Err(Error::internal(format!("a list method answered {other}"))),
    };
    let Some(Value::Array(mut items)) = fields.remove("items") else {
        return Err(Error::internal("a list method answered no items"));
    };
    if fields.contains_key("nextCursor") {
        if wanted.is_ordered {
            return Err(invalid("sort", "this list is in the order of its numbers: leave it out"));
        }
        items.retain(|item| wanted.takes(item));
    } else {
        let next;
        (items, next) = wanted.part(items, source)?;
        fields.insert("nextCursor".to_owned(), next);
    }
    fields.insert("items".to_owned(), Value::Array(items));
    fields.insert("revision".to_owned(), source.revision.into());
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn list(ids: &[&str]) -> Value {
        Value::Array(ids.iter().map(|id| json!({"id": id})).collect())
    }

    fn framed_by(page: &Page, list: Value, source: &Source<'_>) -> Result<Value> {
        let wanted = page.wanted("pets.list", None, None)?;
        wanted.cursor.as_ref().map_or(Ok(()), |cursor| source.admit(cursor))?;
        frame(list, source, &wanted)
    }

    const HERE: Source<'static> = Source { cluster: "cl_1", revision: 7, applied: 9 };

    fn part(ids: &[&str], limit: usize, cursor: Option<&str>) -> (Vec<String>, Option<String>) {
        let page =
            Page { limit: Some(limit), cursor: cursor.map(str::to_owned), ..Page::default() };
        let framed = framed_by(&page, list(ids), &HERE).unwrap();
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
    fn a_cursor_whose_record_is_gone_goes_on_behind_it_and_leaves_nothing_out() {
        let (_, next) = part(&["a", "b", "c"], 1, None);
        assert_eq!(part(&["b", "c"], 5, next.as_deref()).0, ["b", "c"]);
    }

    #[test]
    fn a_made_up_cursor_and_a_limit_of_zero_are_refused() {
        let made_up = Page { cursor: Some("x".to_owned()), ..Page::default() };
        assert!(framed_by(&made_up, list(&[]), &HERE).is_err());
        let zero = Page { limit: Some(0), ..Page::default() };
        assert!(framed_by(&zero, list(&[]), &HERE).is_err());
    }

    fn next_from(there: &Source<'_>, cursor: Option<&str>) -> Result<Value> {
        let page = Page { limit: Some(1), cursor: cursor.map(str::to_owned), ..Page::default() };
        Ok(framed_by(&page, list(&["a", "b", "c"]), there)?["nextCursor"].clone())
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

    #[test]
    fn a_cursor_goes_on_with_the_same_filter_and_sort_alone() {
        let page = |filter: Option<&str>, cursor: Option<&str>| Page {
            limit: Some(1),
            cursor: cursor.map(str::to_owned),
            filter: filter.map(str::to_owned),
            sort: None,
        };
        let ids = list(&["a", "b", "c"]);
        let first = framed_by(&page(Some("id != a"), None), ids.clone(), &HERE).unwrap();
        let cursor = first["nextCursor"].as_str().unwrap();
        assert!(framed_by(&page(Some("id != a"), Some(cursor)), ids.clone(), &HERE).is_ok());
        let elsewhere = page(Some("id != a"), Some(cursor)).wanted("toys.list", None, None);
        assert_eq!(elsewhere.err().unwrap().problems[0].pointer, "/cursor", "PAGE-2: another list");
        for other in [None, Some("id != b")] {
            let refused = framed_by(&page(other, Some(cursor)), ids.clone(), &HERE).unwrap_err();
            assert_eq!(refused.problems[0].pointer, "/cursor", "PAGE-2: {refused:?}");
        }
    }

    #[test]
    fn parts_in_an_order_neither_repeat_nor_skip_what_stays_although_their_last_record_goes() {
        let known = crate::lists::Known::anything();
        let order = || Order::read("-n", &known).ok();
        let items = |numbers: &[u64]| -> Value {
            numbers.iter().map(|n| json!({"id": format!("i{n}"), "n": n})).collect()
        };
        let page = Page { limit: Some(2), sort: Some("-n".to_owned()), ..Page::default() };
        let wanted = page.wanted("pets.list", None, order()).unwrap();
        let first = frame(items(&[1, 2, 3, 4, 5]), &HERE, &wanted).unwrap();
        assert_eq!(first["items"], items(&[5, 4]));
        let page = Page { cursor: first["nextCursor"].as_str().map(str::to_owned), ..page };
        let wanted = page.wanted("pets.list", None, order()).unwrap();
        let second = frame(items(&[1, 2, 3, 5, 6]), &HERE, &wanted).unwrap();
        assert_eq!(second["items"], items(&[3, 2]));
    }

    #[test]
    fn a_part_of_a_list_that_is_made_as_it_is_taken_costs_what_it_has() {
        let made = std::cell::Cell::new(0);
        let behind = |after: u64| -> Records<'_, Value> {
            Box::new((after..10_000).map(|n| {
                made.set(made.get() + 1);
                Ok(json!({"id": format!("{n:05}")}))
            }))
        };
        let mut page = Page { limit: Some(100), ..Page::default() };
        let mut seen = 0;
        for part in 0..100 {
            let wanted = page.wanted("pets.list", None, None).unwrap();
            let (items, next) = wanted.taken(behind(part * 100), &HERE).unwrap();
            seen += items.len();
            page.cursor = next.as_str().map(str::to_owned);
        }
        assert_eq!((seen, page.cursor), (10_000, None));
        assert!(made.get() < 10_200, "PAGE-3: {} were made", made.get());
    }
}
