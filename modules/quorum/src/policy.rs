//! Policies: what each tenant asks to be approved, and by how many.

use std::sync::Arc;

use palisade_contract::{
    Check, Error, Method, MethodContext, Problems, Resource, Result, Verb, Watched,
    approvals::Scoped,
    id::{NAME_RULE, is_name},
    input::nearest,
    method::Records,
    time::rfc3339,
};
use palisade_state::{Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    batch::CALLS_MAX,
    known::Known,
    records::{POLICIES, PolicyRow, policy_key},
};

/// What stands for the cluster itself where a tenant is named; no tenant is called so.
pub(crate) const CLUSTER: &str = "_";
/// How long what is held waits, unless a policy says otherwise: a day.
const LIFE_SECONDS: u64 = 24 * 60 * 60;
/// The longest and the shortest that it can wait.
pub(crate) const LIFE_SECONDS_MAX: u64 = 30 * 24 * 60 * 60;
pub(crate) const LIFE_SECONDS_MIN: u64 = 60;
/// Thresholds of a policy.
const THRESHOLDS_MAX: usize = 16;
/// Operators that a policy can ask for.
pub(crate) const REQUIRED_MAX: u32 = 16;
/// The largest size that a threshold can be about: no batch is larger.
const SIZE_MAX: u32 = CALLS_MAX as u32;

/// Whether a tenant asks for approvals.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// Nothing is held.
    #[default]
    Off,
    /// What is destructive is held.
    On,
}

/// From a size on so many must approve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Threshold {
    /// Things in the batch, at least.
    pub size: u32,
    /// Distinct operators who must approve then.
    pub required: u32,
}

/// The method that sets a policy. Where one is on it is always covered, so that nobody lets himself off.
pub(crate) const SET: &str = "approvalPolicies.set";

/// What a policy asks for that says no more: 1, from five things on 2, from twenty on 3.
pub(crate) const DEFAULT: [Threshold; 3] = [
    Threshold { size: 1, required: 1 },
    Threshold { size: 5, required: 2 },
    Threshold { size: 20, required: 3 },
];

/// Input of `approvalPolicies.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListPolicies {
    /// Only this tenant's.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for ListPolicies {}

/// Input of `approvalPolicies.get`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OnePolicy {
    /// Whose; `_`: the cluster's own.
    pub tenant: String,
}

impl Check for OnePolicy {}

/// Input of `approvalPolicies.set`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetPolicy {
    /// Whose; `_`: the cluster's own.
    pub tenant: String,
    /// Whether anything is held.
    pub mode: PolicyMode,
    /// From which size on how many must approve, sizes rising from 1; absent: 1, from five things on 2, from twenty on 3.
    #[serde(default)]
    pub thresholds: Option<Vec<Threshold>>,
    /// Of which methods and kinds of commands; absent or empty: of all that are destructive.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// How long what is held waits; absent: a day.
    #[serde(default)]
    pub life_seconds: Option<u64>,
}

impl Check for SetPolicy {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.tenant != CLUSTER && !is_name(&self.tenant) {
            let rule = format!("must have {NAME_RULE}, or be {CLUSTER} for the cluster itself");
            problems.add(format!("{at}/tenant"), rule);
        }
        if let Some(thresholds) = &self.thresholds {
            check_thresholds(thresholds, &format!("{at}/thresholds"), problems);
        }
        let life = LIFE_SECONDS_MIN..=LIFE_SECONDS_MAX;
        if self.life_seconds.is_some_and(|seconds| !life.contains(&seconds)) {
            let rule = format!("must be {LIFE_SECONDS_MIN} to {LIFE_SECONDS_MAX}");
            problems.add(format!("{at}/lifeSeconds"), rule);
        }
    }
}

fn check_thresholds(thresholds: &[Threshold], at: &str, problems: &mut Problems) {
    if thresholds.is_empty() || thresholds.len() > THRESHOLDS_MAX {
        problems.add(at, format!("must be 1 to {THRESHOLDS_MAX} thresholds"));
    }
    if thresholds.first().is_some_and(|first| first.size != 1) {
        problems.add(format!("{at}/0/size"), "must be 1: each batch has a threshold");
    }
    for (position, one) in thresholds.iter().enumerate() {
        if !(1..=SIZE_MAX).contains(&one.size) {
            problems.add(format!("{at}/{position}/size"), format!("must be 1 to {SIZE_MAX}"));
        }
        if !(1..=REQUIRED_MAX).contains(&one.required) {
            let rule = format!("must be 1 to {REQUIRED_MAX}");
            problems.add(format!("{at}/{position}/required"), rule);
        }
    }
    for (position, pair) in thresholds.windows(2).enumerate() {
        let [one, next] = pair else { continue };
        if next.size <= one.size {
            problems.add(format!("{at}/{}/size", position + 1), "must be more than the one before");
        }
        if next.required < one.required {
            let rule = "must not be less than the one before: what is larger asks for no fewer";
            problems.add(format!("{at}/{}/required", position + 1), rule);
        }
    }
}

/// A policy as REST shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyRecord {
    /// The tenant's name; `_`: the cluster itself.
    pub id: String,
    /// Whose it is; empty: the cluster's.
    pub tenant: String,
    /// Whether anything is held.
    pub mode: PolicyMode,
    /// From which size on how many must approve.
    pub thresholds: Vec<Threshold>,
    /// Of which methods and kinds of commands; none: of all that are destructive.
    pub kinds: Vec<String>,
    /// How long what is held waits.
    pub life_seconds: u64,
    /// Who set it; empty: nobody has.
    pub set_by: String,
    /// When.
    pub set_at: Option<String>,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision is the answer's, and
    /// where nobody has set it.
    pub revision: u64,
}

impl PolicyRow {
    /// What holds where nobody has set a policy.
    pub fn unset(tenant: &str) -> Self {
        Self {
            tenant: tenant.to_owned(),
            mode: PolicyMode::Off,
            thresholds: DEFAULT.to_vec(),
            kinds: vec![],
            life_seconds: LIFE_SECONDS,
            set_by: String::new(),
            set_at_ms: 0,
        }
    }

    /// A tenant's, as part of what the transaction has read.
    pub fn of(tx: &mut Tx, tenant: &str) -> Result<Self> {
        let row = tx.get(&POLICIES, &policy_key(tenant))?;
        Ok(row.unwrap_or_else(|| Self::unset(tenant)))
    }

    /// Whether it is about a method or a kind of command.
    pub fn covers(&self, kind: &str) -> bool {
        let is_own = kind == SET;
        self.mode == PolicyMode::On
            && (is_own || self.kinds.is_empty() || self.kinds.iter().any(|one| one == kind))
    }

    /// How many must approve what is in this scope.
    pub fn required(&self, scope: &[Scoped]) -> u32 {
        let covered = scope.iter().filter(|one| self.covers(&one.kind)).count();
        self.required_of(u32::try_from(covered).unwrap_or(u32::MAX))
    }

    /// How many must approve so many things.
    pub fn required_of(&self, size: u32) -> u32 {
        let fitting = self.thresholds.iter().filter(|one| one.size <= size);
        fitting.map(|one| one.required).max().unwrap_or(0)
    }

    /// Whether anything that it holds would be held no more, or for fewer, by another.
    pub fn is_weakened_by(&self, next: &Self) -> bool {
        if self.mode == PolicyMode::Off {
            return false;
        }
        let drops = |kind: &String| !next.covers(kind);
        let narrows = match self.kinds.as_slice() {
            [] => !next.kinds.is_empty(),
            some => some.iter().any(drops),
        };
        let sizes = self.thresholds.iter().chain(&next.thresholds).map(|one| one.size);
        let lowers = |size: u32| next.required_of(size) < self.required_of(size);
        next.mode == PolicyMode::Off || narrows || sizes.into_iter().any(lowers)
    }

    fn record(&self, revision: u64) -> PolicyRecord {
        let is_set = !self.set_by.is_empty();
        PolicyRecord {
            id: policy_key(&self.tenant),
            tenant: self.tenant.clone(),
            mode: self.mode,
            thresholds: self.thresholds.clone(),
            kinds: self.kinds.clone(),
            life_seconds: self.life_seconds,
            set_by: self.set_by.clone(),
            set_at: is_set.then(|| rfc3339(self.set_at_ms)),
            revision,
        }
    }
}

impl SetPolicy {
    /// The policy that it asks for.
    pub(crate) fn row(self, by: &str, at_ms: u64) -> PolicyRow {
        PolicyRow {
            mode: self.mode,
            thresholds: self.thresholds.unwrap_or_else(|| DEFAULT.to_vec()),
            kinds: self.kinds,
            life_seconds: self.life_seconds.unwrap_or(LIFE_SECONDS),
            set_by: by.to_owned(),
            set_at_ms: at_ms,
            ..PolicyRow::unset(tenant_of(&self.tenant))
        }
    }
}

/// The tenant that a path names.
fn tenant_of(name: &str) -> &str {
    if name == CLUSTER { "" } else { name }
}

/// The methods `approvalPolicies.*`.
pub(crate) fn methods(known: &Arc<Known>) -> Vec<Method> {
    let on = |value: &Value| {
        let named = value.get("tenant").and_then(Value::as_str).unwrap_or_default();
        Resource::of_tenant("approval-policy", named, tenant_of(named))
    };
    let (read, write) = ("compute:quorum-policy:read", "compute:quorum-policy:write");
    let known = known.clone();
    vec![
        Method::listing("approvalPolicies", "list", read, list)
            .summary(
                "Lists the policies that were set: what is held for approval, and for how many.",
            )
            .rest(Verb::Get, "/approval-policies")
            .watched(Watched::Records)
            .on(on),
        Method::query("approvalPolicies", "get", read, get)
            .summary("Shows what a tenant asks to be approved; off where nobody has said.")
            .rest(Verb::Get, "/approval-policies/{tenant}")
            .on(on),
        Method::mutation("approvalPolicies", "set", write, {
            move |cx: &MethodContext, tx: &mut Tx, input| set(&known, cx, tx, input)
        })
        .summary(
            "Says what a tenant asks to be approved. What is held already stays as it is; a tenant's own admin who asks for \
             less is held himself, and so is whoever asks for less of the cluster's own.",
        )
        .rest(Verb::Put, "/approval-policies/{tenant}")
        .destructive()
        .on(on),
    ]
}

fn list<'a>(
    _: &'a MethodContext,
    view: &'a View,
    input: ListPolicies,
    after: &str,
) -> Result<Records<'a, PolicyRecord>> {
    let wanted = move |row: &PolicyRow| input.tenant.as_ref().is_none_or(|t| *t == row.tenant);
    Ok(Box::new(POLICIES.behind(view, after).filter_map(move |found| match found {
        Ok((_, Versioned { value, stamp })) => {
            wanted(&value).then(|| Ok(value.record(stamp.modified_rev)))
        }
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

fn get(_: &MethodContext, view: &View, input: OnePolicy) -> Result<PolicyRecord> {
    let tenant = tenant_of(&input.tenant);
    Ok(match POLICIES.get(view, &policy_key(tenant))? {
        Some(found) => found.value.record(found.stamp.modified_rev),
        None => PolicyRow::unset(tenant).record(0),
    })
}

fn set(known: &Known, cx: &MethodContext, tx: &mut Tx, input: SetPolicy) -> Result<PolicyRecord> {
    let mut problems = Problems::default();
    for (position, kind) in input.kinds.iter().enumerate() {
        if input.kinds.iter().take(position).any(|one| one == kind) {
            problems.add(format!("/kinds/{position}"), "is there already");
        } else if !known.kinds().any(|one| one == kind) {
            let near = nearest(kind, known.kinds())
                .map_or(String::new(), |near| format!("; did you mean {near:?}?"));
            let rule = format!(
                "must be a destructive method, such as workloads.remove, or a kind of command{near}"
            );
            problems.add(format!("/kinds/{position}"), rule);
        }
    }
    problems.into_result()?;
    let tenant = tenant_of(&input.tenant).to_owned();
    cx.context.ports.tenant_open(tx, &tenant)?;
    let key = policy_key(&tenant);
    let before = tx.get_versioned(&POLICIES, &key)?;
    let revision = before.as_ref().map_or(0, |before| before.stamp.modified_rev);
    cx.check_if_match(revision)?;
    let row = input.row(&cx.principal.name, tx.view().clock().wall_ms);
    if let Some(before) = before.map(|before| before.value)
        && (PolicyRow { set_by: row.set_by.clone(), set_at_ms: row.set_at_ms, ..before.clone() })
            == row
    {
        return Ok(before.record(revision));
    }
    tx.put(&POLICIES, &key, &row)?;
    let data = json!({
        "tenant": tenant, "mode": row.mode, "thresholds": row.thresholds, "kinds": row.kinds,
        "lifeSeconds": row.life_seconds, "by": row.set_by,
    });
    tx.publish("approval-policy.set", &tenant, format!("approval-policy/{key}"), &data);
    Ok(row.record(0))
}

/// Refuses a number of approvals that cannot be asked for.
pub(crate) fn check_required(required: Option<u32>, at: &str, problems: &mut Problems) {
    if required.is_some_and(|required| !(1..=REQUIRED_MAX).contains(&required)) {
        problems.add(at, format!("must be 1 to {REQUIRED_MAX}"));
    }
}

/// Refuses a life that is too short or too long.
pub(crate) fn check_life(seconds: Option<u64>, at: &str, problems: &mut Problems) {
    if seconds.is_some_and(|life| !(LIFE_SECONDS_MIN..=LIFE_SECONDS_MAX).contains(&life)) {
        problems.add(at, format!("must be {LIFE_SECONDS_MIN} to {LIFE_SECONDS_MAX}"));
    }
}

/// The refusal of a port's caller that says it wrongly.
pub(crate) fn wrong(pointer: &str, message: impl Into<String>) -> Error {
    Error::invalid(vec![palisade_contract::Problem {
        pointer: pointer.to_owned(),
        message: message.into(),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(mode: PolicyMode, thresholds: &[(u32, u32)], kinds: &[&str]) -> PolicyRow {
        let one = |(size, required): &(u32, u32)| Threshold { size: *size, required: *required };
        PolicyRow {
            mode,
            thresholds: thresholds.iter().map(one).collect(),
            kinds: kinds.iter().copied().map(str::to_owned).collect(),
            ..PolicyRow::unset("acme")
        }
    }

    #[test]
    fn a_policy_is_weaker_when_anything_is_asked_of_fewer() {
        let on =
            |thresholds: &[(u32, u32)], kinds: &[&str]| policy(PolicyMode::On, thresholds, kinds);
        let off = policy(PolicyMode::Off, &[(1, 9)], &[]);
        let now = on(&[(1, 1), (5, 2)], &["a", "b"]);
        for weaker in [
            &off,
            &on(&[(1, 1)], &["a", "b"]),
            &on(&[(1, 1), (6, 2)], &["a", "b"]),
            &on(&[(1, 1), (5, 2)], &["a", "c"]),
        ] {
            assert!(now.is_weakened_by(weaker), "{weaker:?}");
        }
        for no_weaker in [
            &now,
            &on(&[(1, 2)], &["a", "b"]),
            &on(&[(1, 1), (3, 2)], &["a", "b"]),
            &on(&[(1, 1), (5, 2)], &["a", "b", "c"]),
            &on(&[(1, 1), (5, 2)], &[]),
        ] {
            assert!(!now.is_weakened_by(no_weaker), "{no_weaker:?}");
        }
        assert!(on(&[(1, 1)], &[]).is_weakened_by(&on(&[(1, 1)], &["a"])), "all were asked for");
        assert!(!off.is_weakened_by(&on(&[(1, 1)], &[])));
    }

    #[test]
    fn the_largest_threshold_that_fits_counts() {
        let policy = policy(PolicyMode::On, &[(1, 1), (5, 2), (20, 3)], &[]);
        let required: Vec<u32> =
            [0, 1, 4, 5, 19, 20, 100].into_iter().map(|size| policy.required_of(size)).collect();
        assert_eq!(required, [0, 1, 1, 2, 2, 3, 3]);
    }
}
