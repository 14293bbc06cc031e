//! The methods `tenants.*`.

use palisade_contract::{
    Check, Code, Error, Method, MethodContext, Problems, Resource, Result, Verb, Watched,
    id::{NAME_RULE, is_name},
    time::rfc3339,
};
use palisade_state::{Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::{
    SWEEP_KIND, port, quota,
    records::{Deletion, Quotas, State, Suspension, TENANTS, TenantRow},
    shown::{self, TenantRecord, UsageRecord},
};

/// The most of a quota: whole numbers up to here are exact in JSON.
const QUOTA_MAX: u64 = 1 << 53;
/// The most threads of a quota.
const CPUS_MAX: f64 = 1_000_000_000.0;
/// Characters of a reason.
const REASON_MAX: usize = 500;

/// What to change about quotas: a number is the new one, null takes the quota away, and what is absent stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NewQuotas {
    /// Workloads.
    #[serde(default, deserialize_with = "said")]
    pub workloads: Option<Option<u64>>,
    /// Instances, as workloads want them.
    #[serde(default, deserialize_with = "said")]
    pub instances: Option<Option<u64>>,
    /// Threads that their instances ask for, such as 0.5.
    #[serde(default, deserialize_with = "said")]
    pub cpu: Option<Option<f64>>,
    /// Bytes of memory that their instances ask for.
    #[serde(default, deserialize_with = "said")]
    pub memory: Option<Option<u64>>,
}

/// A null is something else than nothing.
fn said<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::<T>::deserialize(deserializer).map(Some)
}

impl Check for NewQuotas {
    fn check(&self, at: &str, problems: &mut Problems) {
        let numbers =
            [("workloads", self.workloads), ("instances", self.instances), ("memory", self.memory)];
        for (name, number) in numbers {
            if number.flatten().is_some_and(|number| number > QUOTA_MAX) {
                problems.add(format!("{at}/{name}"), format!("must be 0 to {QUOTA_MAX}"));
            }
        }
        if self.cpu.flatten().is_some_and(|cpu| !(0.0..=CPUS_MAX).contains(&cpu)) {
            problems.add(format!("{at}/cpu"), format!("must be 0 to {CPUS_MAX}"));
        }
    }
}

impl NewQuotas {
    fn onto(&self, quotas: Quotas) -> Quotas {
        Quotas {
            workloads: self.workloads.unwrap_or(quotas.workloads),
            instances: self.instances.unwrap_or(quotas.instances),
            cpu_milli: self.cpu.map_or(quotas.cpu_milli, |cpu| cpu.map(milli)),
            memory_bytes: self.memory.unwrap_or(quotas.memory_bytes),
        }
    }
}

/// Thousandths of a number of threads that was checked.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is from 0 to a billion"
)]
fn milli(cpu: f64) -> u64 {
    (cpu * 1000.0).round() as u64
}

/// Input of `tenants.create`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateTenant {
    /// Its name, which no tenant ever had.
    pub name: String,
    /// What it may have; what is absent: as much as there is.
    #[serde(default)]
    pub quotas: NewQuotas,
}

impl Check for CreateTenant {
    fn check(&self, at: &str, problems: &mut Problems) {
        if !is_name(&self.name) {
            problems.add(format!("{at}/name"), format!("must have {NAME_RULE}"));
        }
        self.quotas.check(&format!("{at}/quotas"), problems);
    }
}

/// Input of `tenants.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListTenants {
    /// Only this one.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only those in this state; absent: all but those of which nothing is left.
    #[serde(default)]
    pub state: Option<State>,
}

impl Check for ListTenants {}

/// Input of the methods on one tenant.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneTenant {
    /// Its name.
    pub tenant: String,
}

impl Check for OneTenant {}

/// Input of `tenants.update`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdateTenant {
    /// Its name.
    pub tenant: String,
    /// What to change about its quotas.
    pub quotas: NewQuotas,
}

impl Check for UpdateTenant {
    fn check(&self, at: &str, problems: &mut Problems) {
        self.quotas.check(&format!("{at}/quotas"), problems);
    }
}

/// Input of `tenants.suspend`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SuspendTenant {
    /// Its name.
    pub tenant: String,
    /// Why, which its people are told.
    #[serde(default)]
    pub reason: String,
}

impl Check for SuspendTenant {
    fn check(&self, at: &str, problems: &mut Problems) {
        if self.reason.chars().count() > REASON_MAX || self.reason.chars().any(char::is_control) {
            let rule = format!("must have at most {REASON_MAX} characters, and none of control");
            problems.add(format!("{at}/reason"), rule);
        }
    }
}

/// Input of `tenants.remove`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RemoveTenant {
    /// Its name.
    pub tenant: String,
    /// Also one that has workloads, which are stopped and removed with it.
    #[serde(default)]
    pub force: bool,
}

impl Check for RemoveTenant {}

/// The methods, in the order of their documentation.
pub(crate) fn methods() -> Vec<Method> {
    let text = |value: &Value, field: &str| {
        value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    // A tenant is read by its people. What it is granted is the cluster's, so that nobody grants it to himself.
    let own = move |value: &Value| {
        let tenant = text(value, "tenant");
        Resource::of_tenant("tenant", &tenant, &tenant)
    };
    let granted = move |value: &Value| Resource::cluster("tenant", &text(value, "tenant"));
    let (read, write) = ("compute:tenants:read", "compute:tenants:write");
    vec![
        Method::mutation("tenants", "create", write, create)
            .summary("Makes a tenant.")
            .rest(Verb::Post, "/tenants")
            .on(move |value| Resource::cluster("tenant", &text(value, "name"))),
        Method::query("tenants", "list", read, list)
            .summary("Lists the tenants.")
            .rest(Verb::Get, "/tenants")
            .list()
            .watched(Watched::Records)
            .on(own),
        Method::query("tenants", "get", read, get)
            .summary("Shows a tenant.")
            .rest(Verb::Get, "/tenants/{tenant}")
            .on(own),
        Method::query("tenants", "usage", read, usage)
            .summary("Shows what a tenant takes of its quotas, and what is left.")
            .rest(Verb::Get, "/tenants/{tenant}/usage")
            .on(own),
        Method::mutation("tenants", "update", write, update)
            .summary("Changes what a tenant may have; what it has already it keeps.")
            .rest(Verb::Patch, "/tenants/{tenant}")
            .on(granted),
        Method::mutation("tenants", "suspend", write, suspend)
            .summary("Keeps a tenant's people from changing anything; what it has goes on.")
            .rest(Verb::Post, "/tenants/{tenant}/suspend")
            .on(granted),
        Method::mutation("tenants", "resume", write, resume)
            .summary("Lets a suspended tenant's people change things again.")
            .rest(Verb::Post, "/tenants/{tenant}/resume")
            .on(granted),
        Method::mutation("tenants", "remove", write, remove)
            .summary(
                "Deletes a tenant with all that it has. One that has workloads is deleted by force alone.",
            )
            .rest(Verb::Delete, "/tenants/{tenant}")
            .destructive()
            .on(granted),
    ]
}

fn create(cx: &MethodContext, tx: &mut Tx, input: CreateTenant) -> Result<TenantRecord> {
    cx.check_if_match(0)?;
    if let Some(row) = tx.get(&TENANTS, &input.name)? {
        return Err(taken(&row));
    }
    let mut row = TenantRow::new(&input.name, &cx.principal.name, tx.view().clock().wall_ms);
    row.quotas = input.quotas.onto(Quotas::default());
    write(cx, tx, &row, "tenant.created")
}

fn taken(row: &TenantRow) -> Error {
    let name = &row.name;
    let error = match row.state {
        State::Active | State::Suspended => {
            Error::new(Code::Conflict, format!("there is a tenant {name:?} already"))
                .hint("choose another name, or change that one: `palisade tenant set-quota`")
        }
        State::Deleting | State::Deleted => Error::new(
            Code::Conflict,
            format!("the name {name:?} was that of a tenant that was deleted, and is not used again"),
        )
        .hint("choose another name: events and audit records of the old one bear this one, and would be the new one's"),
    };
    // The same request would find the same tenant.
    Error { retryable: false, ..error }
}

fn list(cx: &MethodContext, view: &View, input: ListTenants) -> Result<Vec<TenantRecord>> {
    let is_wanted = |row: &TenantRow| {
        input.tenant.as_ref().is_none_or(|tenant| *tenant == row.name)
            && match input.state {
                Some(state) => state == row.state,
                None => row.state != State::Deleted,
            }
    };
    let all = TENANTS.all(view)?.into_iter();
    all.filter(|(_, found)| is_wanted(&found.value))
        .map(|(_, found)| shown(cx, view, &found.value, found.stamp.modified_rev))
        .collect()
}

fn shown(cx: &MethodContext, view: &View, row: &TenantRow, revision: u64) -> Result<TenantRecord> {
    shown::tenant(view, row, cx.principal.tenant.is_empty(), revision)
}

fn found(view: &View, tenant: &str) -> Result<Versioned<TenantRow>> {
    TENANTS.get(view, &tenant.to_owned())?.ok_or_else(|| port::not_found(tenant))
}

fn get(cx: &MethodContext, view: &View, input: OneTenant) -> Result<TenantRecord> {
    let found = found(view, &input.tenant)?;
    shown(cx, view, &found.value, found.stamp.modified_rev)
}

fn usage(_: &MethodContext, view: &View, input: OneTenant) -> Result<UsageRecord> {
    shown::usage(view, &found(view, &input.tenant)?.value)
}

/// A tenant in a transaction, at the revision that `If-Match` names.
fn held(cx: &MethodContext, tx: &mut Tx, tenant: &str) -> Result<Versioned<TenantRow>> {
    let found = tx.get_versioned(&TENANTS, &tenant.to_owned())?;
    let found = found.ok_or_else(|| port::not_found(tenant))?;
    cx.check_if_match(found.stamp.modified_rev)?;
    Ok(found)
}

/// A tenant that is neither being deleted nor was.
fn living(cx: &MethodContext, tx: &mut Tx, tenant: &str) -> Result<Versioned<TenantRow>> {
    let found = held(cx, tx, tenant)?;
    match &found.value.deleted {
        None => Ok(found),
        Some(deleted) => Err(Error::new(
            Code::InvalidState,
            format!("tenant {tenant} was deleted at {} by {}", rfc3339(deleted.at_ms), deleted.by),
        )
        .hint("a deletion cannot be taken back")),
    }
}

fn write(cx: &MethodContext, tx: &mut Tx, row: &TenantRow, kind: &str) -> Result<TenantRecord> {
    tx.put(&TENANTS, &row.name, row)?;
    let reason = row.suspended.as_ref().map(|suspended| suspended.reason.as_str());
    let data = json!({
        "tenant": row.name, "state": row.state, "quotas": row.quotas, "by": cx.principal.name,
        "reason": reason,
    });
    tx.publish(kind, &row.name, format!("tenant/{}", row.name), &data);
    shown(cx, tx.view(), row, 0)
}

fn update(cx: &MethodContext, tx: &mut Tx, input: UpdateTenant) -> Result<TenantRecord> {
    let found = living(cx, tx, &input.tenant)?;
    let quotas = input.quotas.onto(found.value.quotas);
    if quotas == found.value.quotas {
        return shown(cx, tx.view(), &found.value, found.stamp.modified_rev);
    }
    write(cx, tx, &TenantRow { quotas, ..found.value }, "tenant.updated")
}

fn suspend(cx: &MethodContext, tx: &mut Tx, input: SuspendTenant) -> Result<TenantRecord> {
    let found = living(cx, tx, &input.tenant)?;
    let is_so =
        found.value.suspended.as_ref().is_some_and(|suspended| suspended.reason == input.reason);
    if is_so {
        return shown(cx, tx.view(), &found.value, found.stamp.modified_rev);
    }
    let at_ms = tx.view().clock().wall_ms;
    let by = cx.principal.name.clone();
    let suspended = Some(Suspension { by, reason: input.reason, at_ms });
    let row = TenantRow { state: State::Suspended, suspended, ..found.value };
    write(cx, tx, &row, "tenant.suspended")
}

fn resume(cx: &MethodContext, tx: &mut Tx, input: OneTenant) -> Result<TenantRecord> {
    let found = living(cx, tx, &input.tenant)?;
    if found.value.state == State::Active {
        return shown(cx, tx.view(), &found.value, found.stamp.modified_rev);
    }
    let row = TenantRow { state: State::Active, suspended: None, ..found.value };
    write(cx, tx, &row, "tenant.resumed")
}

fn remove(cx: &MethodContext, tx: &mut Tx, input: RemoveTenant) -> Result<TenantRecord> {
    let found = held(cx, tx, &input.tenant)?;
    if found.value.deleted.is_some() {
        return shown(cx, tx.view(), &found.value, found.stamp.modified_rev);
    }
    let used = quota::used_in(tx, &input.tenant)?;
    if used.workloads > 0 && !input.force {
        let of = if used.workloads == 1 { "workload" } else { "workloads" };
        return Err(Error::new(
            Code::InvalidState,
            format!(
                "tenant {} has {} {of} with {} instances, which would be stopped and removed with it",
                input.tenant, used.workloads, used.instances
            ),
        )
        .hint("remove them first, or delete it with --force: that cannot be taken back"));
    }
    let clock = tx.view().clock();
    let deleted = Some(Deletion {
        by: cx.principal.name.clone(),
        at_ms: clock.wall_ms,
        at_logical_ms: clock.now_ms,
    });
    let row = TenantRow { state: State::Deleting, deleted, ..found.value };
    tx.enqueue(SWEEP_KIND, &row.name)?;
    write(cx, tx, &row, "tenant.deleting")
}
