//! What became of a record, change by change: which revision, when, what differs, and who asked for it.
//!
//! # Invariants
//! - `PAST-2` Of a change nothing is said that is not known: who made it is absent where the audit chain of then is not
//!   kept here, what was before is absent where it is not, and the revision from which on all is known is named.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use palisade_state::{Stamp, Table, View, audit::AuditRecord, key::Key};
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    approvals::audited_subjects,
    context::MethodContext,
    error::{Code, Error, Result},
    input::pointer_segment,
    past::{History, Life, Lives, Wanted},
    time::rfc3339,
};

/// Changes that are answered at most: the newest ones.
const CHANGES_MAX: usize = 200;
/// Differences that are told of one change.
const DIFFERENCES_MAX: usize = 200;

/// What kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Became {
    /// It was made.
    Created,
    /// It was changed.
    Changed,
    /// It went.
    Removed,
}

/// A field that differs.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Difference {
    /// Where in the stored record, a JSON pointer.
    pub pointer: String,
    /// What was there; null: nothing.
    pub before: Value,
    /// What is there; null: nothing.
    pub after: Value,
}

/// A call that made a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct By {
    /// Who called.
    pub actor: String,
    /// Which method.
    pub method: String,
    /// The request.
    pub request_id: String,
    /// Its record in the audit chain.
    pub audit_seq: u64,
}

/// A change of a record.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The record's id.
    pub id: String,
    /// The revision that made it.
    pub revision: u64,
    /// When, by the cluster's clock; absent: not known here.
    pub at: Option<String>,
    /// What kind of change.
    pub what: Became,
    /// The number of the record's version: 1, 2, 3 …; of the last one where it went.
    pub version: u64,
    /// The calls that asked for it, none where the control plane made it by itself; absent: not known here.
    pub by: Option<Vec<By>>,
    /// What differs from the version before; absent: that one is not known here.
    pub differences: Option<Vec<Difference>>,
}

/// A range of revisions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unknown {
    /// The first.
    pub from: u64,
    /// The last.
    pub to: u64,
}

/// What became of a record.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Changes {
    /// Oldest first; the newest 200.
    pub items: Vec<Change>,
    /// There are older ones.
    pub older: bool,
    /// What ended before this revision is not known to the replica that answers.
    pub known_from: u64,
    /// Nor what ended in these.
    pub unknown: Vec<Unknown>,
}

/// How records of a table are found and told apart.
pub struct Subject<V> {
    /// Their kind, such as `workload`.
    pub kind: &'static str,
    /// A record's id.
    pub id: fn(&V) -> String,
    /// Its name.
    pub name: fn(&V) -> String,
    /// Whose it is.
    pub tenant: fn(&V) -> String,
}

/// One version, ended or not.
struct Version {
    stamp: Stamp,
    value: Vec<u8>,
    ended_rev: Option<u64>,
}

impl<V: Serialize + DeserializeOwned + 'static> Subject<V> {
    /// What became of the record of this id, or of those of this name, of a tenant or of any.
    ///
    /// # Errors
    /// `NOT_FOUND` where none was; `CONFLICT` where several tenants have one; or it is not known here.
    pub async fn changes<K: Key + 'static>(
        self,
        cx: &MethodContext,
        table: &'static Table<K, V>,
        asked: &str,
        tenant: Option<String>,
    ) -> Result<Changes> {
        let history = cx.context.ports.history.get();
        let history =
            history.map_err(|_| Error::new(Code::Unsupported, "this process keeps no history"))?;
        let is_one = self.wanted(table, asked, tenant);
        let found = history.lives(table.name(), is_one.clone()).await?;
        let (view, known_from) = (found.view.clone(), found.from_revision);
        let unknown =
            found.gaps.iter().map(|(from, to)| Unknown { from: *from, to: *to }).collect();
        let versions = versions(table.name(), found, &*is_one);
        let names = self.names(table, asked, &versions)?;
        if names.is_empty() {
            return Err(Error::not_found(self.kind, asked).hint(format!(
                "no {} of this name or id was there since revision {known_from}, from which on this replica knows",
                self.kind
            )));
        }
        let mut items = vec![];
        for (key, versions) in versions {
            let newest = versions.last().map_or(&[][..], |last| &last.value);
            let id = (self.id)(&table.read_value(&key, newest)?);
            items.extend(told(&id, &versions)?);
        }
        items.sort_by_key(|change| change.revision);
        let older = items.len() > CHANGES_MAX;
        let mut items = items.split_off(items.len().saturating_sub(CHANGES_MAX));
        let revisions = items.iter().map(|change| change.revision).collect();
        let times = history.times(revisions).await?;
        for (change, at) in items.iter_mut().zip(times) {
            change.at = at.map(rfc3339);
            let audited = audited(&**history, &view, change.revision).await?;
            change.by = audited.and_then(|all| self.by(all, &names, &cx.principal.tenant));
        }
        Ok(Changes { items, older, known_from, unknown })
    }

    fn wanted<K: Key + 'static>(
        &self,
        table: &'static Table<K, V>,
        asked: &str,
        tenant: Option<String>,
    ) -> Wanted {
        let (id, name, tenant_of) = (self.id, self.name, self.tenant);
        let asked = asked.to_owned();
        Arc::new(move |key: &[u8], value: &[u8]| {
            table.read_value(key, value).is_ok_and(|record| {
                (id(&record) == asked || name(&record) == asked)
                    && tenant.as_ref().is_none_or(|tenant| *tenant == tenant_of(&record))
            })
        })
    }

    /// Under which names and ids these are known.
    fn names<K: Key>(
        &self,
        table: &Table<K, V>,
        asked: &str,
        versions: &BTreeMap<Vec<u8>, Vec<Version>>,
    ) -> Result<BTreeSet<String>> {
        let (mut names, mut tenants) = (BTreeSet::new(), BTreeSet::new());
        for (key, versions) in versions {
            for version in versions {
                let record = table.read_value(key, &version.value)?;
                names.extend([(self.id)(&record), (self.name)(&record)]);
                tenants.insert((self.tenant)(&record));
            }
        }
        if tenants.len() > 1 {
            let kind = self.kind;
            let message = format!("there is more than one {kind} {asked:?}, of several tenants");
            return Err(Error::new(Code::Conflict, message).hint("name the tenant, or use the id"));
        }
        Ok(names)
    }

    /// Whether an audit record of this resource, or of a batch with it, is about it.
    fn is_about(&self, resource: &str, names: &BTreeSet<String>) -> bool {
        let alone = resource.split(" of tenant ").next();
        alone.into_iter().chain(audited_subjects(resource)).any(|about| {
            let named = about.strip_prefix(self.kind).and_then(|rest| rest.strip_prefix('/'));
            named.is_some_and(|named| names.contains(named))
        })
    }

    /// Those of the records at a revision that are about it. Whoever is bound to a tenant sees that one's.
    fn by(
        &self,
        records: Vec<AuditRecord>,
        names: &BTreeSet<String>,
        bound: &str,
    ) -> Option<Vec<By>> {
        let mut calls = vec![];
        for record in records {
            let body = record.body.unwrap_or_default();
            if body.outcome != "ok" || !self.is_about(&body.resource, names) {
                continue;
            }
            if !bound.is_empty() && body.tenant != bound {
                return None;
            }
            let (actor, method, request_id) = (body.actor, body.method, body.request_id);
            calls.push(By { actor, method, request_id, audit_seq: record.seq });
        }
        Some(calls)
    }
}

/// The versions that are wanted, of each key, oldest first: those that have ended, and those that are there.
fn versions(
    table: &str,
    found: Lives,
    is_wanted: &(dyn Fn(&[u8], &[u8]) -> bool + Send + Sync),
) -> BTreeMap<Vec<u8>, Vec<Version>> {
    let mut versions = BTreeMap::<Vec<u8>, Vec<Version>>::new();
    for Life { key, stamp, value, ended_rev } in found.lives {
        let version = Version { stamp, value, ended_rev: Some(ended_rev) };
        versions.entry(key).or_default().push(version);
    }
    for (key, record) in found.view.rows(table, &[], None) {
        let (stamp, value) = (record.stamp(), record.value());
        if !is_wanted(key, value) {
            continue;
        }
        let known = versions.entry(key.to_vec()).or_default();
        // One that has ended since the view is among those that have.
        if known.iter().all(|version| version.stamp != stamp) {
            known.push(Version { stamp, value: value.to_vec(), ended_rev: None });
        }
    }
    for all in versions.values_mut() {
        all.sort_by_key(|version| version.stamp.modified_rev);
    }
    versions
}

/// The changes that versions of one record, oldest first, are told as.
fn told(id: &str, versions: &[Version]) -> Result<Vec<Change>> {
    let change = |revision, what, version| Change {
        id: id.to_owned(),
        revision,
        at: None,
        what,
        version,
        by: None,
        differences: None,
    };
    let read = |version: &Version| serde_json::from_slice::<Value>(&version.value);
    let mut changes = vec![];
    let mut before: Option<&Version> = None;
    for version in versions {
        let Stamp { created_rev, modified_rev, version: number } = version.stamp;
        let what = if created_rev == modified_rev { Became::Created } else { Became::Changed };
        let mut made = change(modified_rev, what, number);
        let adjoins = |before: &&Version| before.ended_rev == Some(modified_rev);
        if let (Became::Changed, Some(before)) = (what, before.filter(adjoins)) {
            let (old, new) = (read(before), read(version));
            let mut differences = vec![];
            let (old, new) = (old.map_err(Error::internal)?, new.map_err(Error::internal)?);
            differ(&old, &new, &mut String::new(), &mut differences);
            made.differences = Some(differences);
        }
        changes.push(made);
        before = Some(version);
    }
    let mut gone = vec![];
    for (at, version) in versions.iter().enumerate() {
        let follows = versions.get(at + 1).map(|next| next.stamp);
        let Some(ended_rev) = version.ended_rev else { continue };
        // What follows in a later life, or nothing: it was deleted then.
        if follows.is_none_or(|next| next.created_rev >= ended_rev) {
            gone.push(change(ended_rev, Became::Removed, version.stamp.version));
        }
    }
    changes.extend(gone);
    Ok(changes)
}

/// The fields that differ, as pointers, at most 200 of them.
#[must_use]
pub fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = vec![];
    differ(before, after, &mut String::new(), &mut found);
    found
}

fn differ(before: &Value, after: &Value, at: &mut String, found: &mut Vec<Difference>) {
    if before == after || found.len() >= DIFFERENCES_MAX {
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        let (before, after) = (before.clone(), after.clone());
        found.push(Difference { pointer: at.clone(), before, after });
        return;
    };
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let length = at.len();
        at.push('/');
        at.push_str(&pointer_segment(name));
        let of = |fields: &serde_json::Map<String, Value>| fields.get(name).cloned();
        differ(&of(old).unwrap_or_default(), &of(new).unwrap_or_default(), at, found);
        at.truncate(length);
    }
}

/// The audit records of a revision, if it is certain which there are.
async fn audited(
    history: &dyn History,
    view: &View,
    revision: u64,
) -> Result<Option<Vec<AuditRecord>>> {
    let last = view.last_audit();
    let in_memory = view.first_audit().unwrap_or(last + 1);
    let first = history.reach().audit.map_or(in_memory, |(first, _)| first.min(in_memory));
    // The first record of a later revision than the one before.
    let (mut low, mut high) = (first, last + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match record(history, view, middle).await? {
            Some(record) if record.revision < revision => low = middle + 1,
            Some(_) => high = middle,
            None => return Ok(None),
        }
    }
    // Of a revision with which the chain begins here, some may be missing.
    if low == first && first > 1 {
        return Ok(None);
    }
    let mut found = vec![];
    for seq in low..=last {
        match record(history, view, seq).await? {
            Some(record) if record.revision == revision => found.push(record),
            Some(_) => break,
            None => return Ok(None),
        }
    }
    Ok(Some(found))
}

async fn record(history: &dyn History, view: &View, seq: u64) -> Result<Option<AuditRecord>> {
    let in_memory = view.audit(seq).next().filter(|record| record.seq == seq).cloned();
    if in_memory.is_some() {
        return Ok(in_memory);
    }
    let found = history.audit(seq, 1).await?.into_iter().next();
    Ok(found.filter(|record| record.seq == seq))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn version(stamp: (u64, u64, u64), value: &Value, ended_rev: Option<u64>) -> Version {
        let (created_rev, modified_rev, version) = stamp;
        let stamp = Stamp { created_rev, modified_rev, version };
        Version { stamp, value: value.to_string().into_bytes(), ended_rev }
    }

    fn seen(versions: &[Version]) -> Vec<(u64, Became, Option<usize>)> {
        let told = told("x", versions).unwrap();
        let mut seen: Vec<_> = told
            .iter()
            .map(|change| (change.revision, change.what, change.differences.as_ref().map(Vec::len)))
            .collect();
        seen.sort_by_key(|change| change.0);
        seen
    }

    #[test]
    fn a_life_is_made_changed_and_removed_and_begins_again() {
        let versions = [
            version((3, 3, 1), &json!({"a": 1}), Some(5)),
            version((3, 5, 2), &json!({"a": 2, "b": 1}), Some(7)),
            version((9, 9, 1), &json!({"a": 1}), None),
        ];
        let expected = [
            (3, Became::Created, None),
            (5, Became::Changed, Some(2)),
            (7, Became::Removed, None),
            (9, Became::Created, None),
        ];
        assert_eq!(seen(&versions), expected);
    }

    #[test]
    fn what_is_removed_and_made_in_one_revision_is_both() {
        let versions =
            [version((3, 3, 1), &json!({}), Some(5)), version((5, 5, 1), &json!({}), None)];
        assert_eq!(seen(&versions)[1..].len(), 2);
    }

    #[test]
    fn nothing_is_said_of_what_was_before_where_it_is_not_known() {
        // The version that ended at 8 is missing: it was in a gap.
        let versions = [
            version((3, 5, 2), &json!({"a": 1}), Some(7)),
            version((3, 8, 4), &json!({"a": 3}), None),
        ];
        let expected = [(5, Became::Changed, None), (8, Became::Changed, None)];
        assert_eq!(seen(&versions), expected);
    }

    #[test]
    fn differences_are_named_by_pointers() {
        let mut found = vec![];
        let before = json!({"spec": {"count": 1, "env": {"a/b": "x"}, "list": [1]}, "gone": true});
        let after = json!({"spec": {"count": 3, "env": {"a/b": "y"}, "list": [1]}, "new": null});
        differ(&before, &after, &mut String::new(), &mut found);
        let pointers: Vec<_> = found.iter().map(|one| one.pointer.as_str()).collect();
        assert_eq!(pointers, ["/gone", "/spec/count", "/spec/env/a~1b"]);
        assert_eq!((&found[1].before, &found[1].after), (&json!(1), &json!(3)));
    }
}
