//! The methods `roleBindings.*`: who holds which role where.

use palisade_contract::{
    Check, Code, Error, Method, MethodContext, Problem, Problems, Resource, Result, Verb, Watched,
    time::rfc3339,
};
use palisade_state::{Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    custom_roles::unknown,
    principals::{check_name, not_found},
    records::{BindingRow, CUSTOM_ROLES, PRINCIPALS, PrincipalRow, ROLE_BINDINGS},
    rights::{Allows, Rights, is_self, prefix},
    roles::Role,
    ways,
};

/// Bindings that one principal has at most: each call of its looks at all of them.
const BINDINGS_MAX: usize = 64;

const READ: &str = "compute:role-bindings:read";
const WRITE: &str = "compute:role-bindings:write";

/// Input of `roleBindings.create`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateBinding {
    /// Who is to hold it.
    pub principal: String,
    /// The role, built in or not.
    pub role: String,
    /// On whose things; absent: its own tenant's, or the whole cluster's for a principal that belongs to none.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for CreateBinding {
    fn check(&self, at: &str, problems: &mut Problems) {
        check_name(&self.principal, &format!("{at}/principal"), problems);
        check_name(&self.role, &format!("{at}/role"), problems);
        if let Some(tenant) = self.tenant.as_ref().filter(|tenant| !tenant.is_empty()) {
            check_name(tenant, &format!("{at}/tenant"), problems);
        }
    }
}

/// Input of `roleBindings.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListBindings {
    /// Only those in this tenant.
    #[serde(default)]
    pub tenant: Option<String>,
    /// Only those of this principal.
    #[serde(default)]
    pub principal: Option<String>,
    /// Only those of this role.
    #[serde(default)]
    pub role: Option<String>,
}

impl Check for ListBindings {}

/// Input of `roleBindings.get` and `roleBindings.remove`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NameBinding {
    /// Its id.
    pub binding: String,
    /// The tenant in which it must be.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for NameBinding {}

/// A binding as REST shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BindingRecord {
    /// `<principal>.<role>`, and `.<tenant>` behind it where it is in one.
    pub id: String,
    /// Who holds it.
    pub principal: String,
    /// The role.
    pub role: String,
    /// On whose things; empty: everybody's and the cluster's.
    pub tenant: String,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: String,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision
    /// is the answer's.
    pub revision: u64,
}

/// The methods, in the order of their documentation.
pub(crate) fn methods() -> Vec<Method> {
    let on = |value: &Value| {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
        let id = match text("binding") {
            "" => text("principal"),
            id => id,
        };
        Resource::of_tenant("role-binding", id, text("tenant"))
    };
    vec![
        Method::mutation("roleBindings", "create", WRITE, create)
            .summary("Lets a principal hold a role, in a tenant or in the whole cluster.")
            .rest(Verb::Post, "/role-bindings")
            .on(on),
        Method::query("roleBindings", "list", READ, list)
            .summary("Lists who holds which role where.")
            .rest(Verb::Get, "/role-bindings")
            .list()
            .watched(Watched::Records)
            .on(on),
        Method::query("roleBindings", "get", READ, get)
            .summary("Shows a binding.")
            .rest(Verb::Get, "/role-bindings/{binding}")
            .on(on),
        Method::mutation("roleBindings", "remove", WRITE, remove)
            .summary("Takes a role from a principal, at once.")
            .rest(Verb::Delete, "/role-bindings/{binding}")
            .on(on),
    ]
}

fn wrong(field: &str, message: impl Into<String>) -> Error {
    Error::invalid(vec![Problem { pointer: format!("/{field}"), message: message.into() }])
}

/// The tenant in which a principal is to be bound, or why it cannot be. `IAM-5`
fn place(own: &Rights, asked: &str, principal: Option<PrincipalRow>) -> Option<Result<String>> {
    let principal = principal?;
    let belongs = principal.tenant;
    if belongs == asked {
        return Some(Ok(belongs));
    }
    // Whoever is bound to a tenant learns nothing of others' principals, not even that they are there.
    if !own.may(WRITE, "") {
        return None;
    }
    Some(match (belongs.as_str(), asked) {
        ("", asked) => Ok(asked.to_owned()),
        (_, "") => Ok(belongs),
        (belongs, _) => {
            let name = principal.name;
            Err(wrong(
                "tenant",
                format!("{name} belongs to tenant {belongs} and is bound there alone"),
            ))
        }
    })
}

/// The role that is meant, if it can be held in `tenant`. Of one that is not built in, the row is part of what the kernel
/// checks, so that it is not removed meanwhile.
fn role(tx: &mut Tx, name: &str, tenant: &str) -> Result<Allows> {
    match Role::parse(name) {
        Some(Role::TenantAdmin) if tenant.is_empty() => {
            Err(wrong("role", "tenant-admin needs a tenant"))
        }
        Some(Role::ClusterAdmin) if !tenant.is_empty() => {
            Err(wrong("role", "cluster-admin cannot be held in a tenant; use tenant-admin"))
        }
        Some(role) => Ok(Allows::BuiltIn(role)),
        None => match tx.get(&CUSTOM_ROLES, &name.to_owned())? {
            Some(row) => Ok(Allows::Custom(row)),
            None => Err(wrong("role", unknown(tx.view(), name)?)),
        },
    }
}

fn create(cx: &MethodContext, tx: &mut Tx, input: CreateBinding) -> Result<BindingRecord> {
    let own = Rights::of(tx.view(), &cx.principal)?;
    let principal = tx.get(&PRINCIPALS, &input.principal)?;
    let tenant = place(&own, input.tenant.as_deref().unwrap_or_default(), principal);
    let tenant = tenant.ok_or_else(|| not_found(&input.principal))??;
    let role = role(tx, &input.role, &tenant)?;
    own.give(&cx.principal, &role, &tenant)?;
    cx.context.ports.tenant_open(tx, &tenant)?;
    let row = BindingRow {
        principal: input.principal,
        role: input.role,
        tenant,
        created_by: cx.principal.name.clone(),
        created_at_ms: tx.view().clock().wall_ms,
    };
    let id = row.id();
    if let Some(Versioned { value, stamp }) = tx.get_versioned(&ROLE_BINDINGS, &id)? {
        return Ok(record(&value, stamp.modified_rev));
    }
    if tx.scan(&ROLE_BINDINGS, prefix(&row.principal).as_bytes())?.len() >= BINDINGS_MAX {
        let detail = format!("{} holds {BINDINGS_MAX} roles, which is the most", row.principal);
        return Err(Error::new(Code::TooLarge, detail)
            .hint("take one from it that it does not need, or make a role of several"));
    }
    tx.put(&ROLE_BINDINGS, &id, &row)?;
    told(cx, tx, "role-binding.created", &row);
    Ok(record(&row, 0))
}

fn told(cx: &MethodContext, tx: &mut Tx, kind: &str, row: &BindingRow) {
    let by = &cx.principal.name;
    let data =
        json!({"principal": row.principal, "role": row.role, "tenant": row.tenant, "by": by});
    tx.publish(kind, &row.tenant, format!("role-binding/{}", row.id()), &data);
}

fn list(_cx: &MethodContext, view: &View, input: ListBindings) -> Result<Vec<BindingRecord>> {
    let is = |wanted: &Option<String>, own: &String| wanted.as_ref().is_none_or(|one| one == own);
    let mut all = ROLE_BINDINGS.all(view)?;
    all.retain(|(_, Versioned { value, .. })| {
        is(&input.tenant, &value.tenant)
            && is(&input.principal, &value.principal)
            && is(&input.role, &value.role)
    });
    Ok(all.iter().map(|(_, found)| record(&found.value, found.stamp.modified_rev)).collect())
}

fn named(
    found: Option<Versioned<BindingRow>>,
    input: &NameBinding,
) -> Result<Versioned<BindingRow>> {
    let is_meant = |found: &Versioned<BindingRow>| {
        input.tenant.as_ref().is_none_or(|tenant| *tenant == found.value.tenant)
    };
    found.filter(is_meant).ok_or_else(|| {
        Error::not_found("role binding", &input.binding).hint("`palisade binding ls` shows all")
    })
}

fn get(_cx: &MethodContext, view: &View, input: NameBinding) -> Result<BindingRecord> {
    let found = named(ROLE_BINDINGS.get(view, &input.binding)?, &input)?;
    Ok(record(&found.value, found.stamp.modified_rev))
}

fn remove(cx: &MethodContext, tx: &mut Tx, input: NameBinding) -> Result<BindingRecord> {
    let found = named(tx.get_versioned(&ROLE_BINDINGS, &input.binding)?, &input)?;
    cx.check_if_match(found.stamp.modified_rev)?;
    let row = found.value;
    if !is_self(&cx.principal, &row.principal)
        && let Some(taken) = Allows::find(tx.view(), &row.role)?
    {
        Rights::of(tx.view(), &cx.principal)?.take(&cx.principal, &taken, &row.tenant)?;
    }
    tx.delete(&ROLE_BINDINGS, &input.binding)?;
    if row.role == Role::ClusterAdmin.word() {
        ways::keep_one(tx, &format!("binding {}", input.binding))?;
    }
    told(cx, tx, "role-binding.removed", &row);
    Ok(record(&row, 0))
}

fn record(row: &BindingRow, revision: u64) -> BindingRecord {
    BindingRecord {
        id: row.id(),
        principal: row.principal.clone(),
        role: row.role.clone(),
        tenant: row.tenant.clone(),
        created_by: row.created_by.clone(),
        created_at: rfc3339(row.created_at_ms),
        revision,
    }
}
