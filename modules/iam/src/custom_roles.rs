//! The methods `roles.*`: which roles there are, and what each allows.
//!
//! Roles are the cluster's, and everybody may read them: whoever binds somebody within a tenant must know what he gives.

use palisade_contract::{
    Check, Code, Error, Method, MethodContext, Problems, Resource, Result, Verb, Watched,
    input::{Nothing, nearest},
    time::rfc3339,
};
use palisade_state::{Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    catalogue::Catalogue,
    principals::{check_description, check_name},
    records::{CUSTOM_ROLES, ROLE_BINDINGS, RoleRow},
    rights::{Allows, Rights},
    roles::{ROLES, Role},
};

/// Actions that one role allows at most.
const ACTIONS_MAX: usize = 256;

const READ: &str = "compute:roles:read";
const WRITE: &str = "compute:roles:write";

/// Input of `roles.create`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateRole {
    /// Its name.
    pub name: String,
    /// What it allows: actions of the catalog, such as `compute:workloads:scale`.
    pub actions: Vec<String>,
    /// What it is for.
    #[serde(default)]
    pub description: String,
}

impl Check for CreateRole {
    fn check(&self, at: &str, problems: &mut Problems) {
        check_name(&self.name, &format!("{at}/name"), problems);
        if Role::parse(&self.name).is_some() {
            problems.add(format!("{at}/name"), format!("{} is built in", self.name));
        }
        check_description(&self.description, at, problems);
        check_count(&self.actions, at, problems);
    }
}

fn check_count(actions: &[String], at: &str, problems: &mut Problems) {
    if !(1..=ACTIONS_MAX).contains(&actions.len()) {
        problems.add(format!("{at}/actions"), format!("must be 1 to {ACTIONS_MAX} actions"));
    }
}

/// Input of `roles.list`.
pub type ListRoles = Nothing;

/// Input of `roles.get` and `roles.remove`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NameRole {
    /// Its name.
    pub role: String,
}

impl Check for NameRole {}

/// Input of `roles.update`. What is absent stays as it is.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdateRole {
    /// Its name.
    pub role: String,
    /// What it allows, all of it.
    #[serde(default)]
    pub actions: Option<Vec<String>>,
    /// What it is for.
    #[serde(default)]
    pub description: Option<String>,
}

impl Check for UpdateRole {
    fn check(&self, at: &str, problems: &mut Problems) {
        if let Some(actions) = &self.actions {
            check_count(actions, at, problems);
        }
        check_description(self.description.as_deref().unwrap_or_default(), at, problems);
    }
}

/// A role as REST shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RoleRecord {
    /// Its name.
    pub name: String,
    /// Nobody can change it.
    pub built_in: bool,
    /// What it is for.
    pub description: String,
    /// What it allows; of a built-in one, what that comes to in this version, with these modules.
    pub actions: Vec<String>,
    /// Who made it; empty: it is built in.
    pub created_by: String,
    /// When; absent: it is built in.
    pub created_at: Option<String>,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision
    /// is the answer's, and of one that is built in.
    pub revision: u64,
}

/// The methods, in the order of their documentation.
pub(crate) fn methods(catalogue: &Catalogue) -> Vec<Method> {
    let on = |value: &Value| {
        let name = value.get("role").or_else(|| value.get("name"));
        Resource::cluster("role", name.and_then(Value::as_str).unwrap_or_default())
    };
    let known = || catalogue.clone();
    let (of_create, of_list, of_get, of_update) = (known(), known(), known(), known());
    vec![
        Method::mutation(
            "roles",
            "create",
            WRITE,
            move |cx: &MethodContext, tx: &mut Tx, input| create(&of_create, cx, tx, input),
        )
        .summary("Makes a role of actions.")
        .rest(Verb::Post, "/roles")
        .on(on),
        Method::query(
            "roles",
            "list",
            READ,
            move |_: &MethodContext, view: &View, _: ListRoles| list(&of_list, view),
        )
        .summary("Lists the roles, those that are built in before the others.")
        .rest(Verb::Get, "/roles")
        .list()
        .watched(Watched::Records)
        .on(on),
        Method::query("roles", "get", READ, move |_: &MethodContext, view: &View, input| {
            get(&of_get, view, input)
        })
        .summary("Shows a role.")
        .rest(Verb::Get, "/roles/{role}")
        .on(on),
        Method::mutation(
            "roles",
            "update",
            WRITE,
            move |cx: &MethodContext, tx: &mut Tx, input| update(&of_update, cx, tx, input),
        )
        .summary("Changes what a role allows, at once and for whoever holds it.")
        .rest(Verb::Patch, "/roles/{role}")
        .on(on),
        Method::mutation("roles", "remove", WRITE, remove)
            .summary("Removes a role that nobody holds.")
            .rest(Verb::Delete, "/roles/{role}")
            .on(on),
    ]
}

/// That there is no role of this name, with the near one.
pub(crate) fn unknown(view: &View, name: &str) -> Result<String> {
    let custom = CUSTOM_ROLES.all(view)?;
    let built_in = ROLES.into_iter().map(|role| -> &str { role.word() });
    let known = built_in.chain(custom.iter().map(|(name, _)| name.as_str()));
    let near =
        nearest(name, known).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
    Ok(format!("there is no role {name:?}{near}"))
}

/// The actions in order, each once, if there are all of them.
fn known_actions(catalogue: &Catalogue, mut actions: Vec<String>) -> Result<Vec<String>> {
    let mut problems = Problems::default();
    for (position, action) in actions.iter().enumerate() {
        if let Some(wrong) = catalogue.wrong(action) {
            problems.add(format!("/actions/{position}"), wrong);
        }
    }
    problems.into_result()?;
    actions.sort_unstable();
    actions.dedup();
    Ok(actions)
}

/// Writes a role that whoever calls may give away everywhere, since it may be bound everywhere. `IAM-4`
fn put(cx: &MethodContext, tx: &mut Tx, kind: &str, row: &RoleRow) -> Result<RoleRecord> {
    let own = Rights::of(tx.view(), &cx.principal)?;
    own.give(&cx.principal, &Allows::Custom(row.clone()), "")?;
    tx.put(&CUSTOM_ROLES, &row.name, row)?;
    told(cx, tx, kind, row);
    Ok(record(row, 0))
}

fn told(cx: &MethodContext, tx: &mut Tx, kind: &str, row: &RoleRow) {
    let data = json!({"role": row.name, "actions": row.actions, "by": cx.principal.name});
    tx.publish(kind, "", format!("role/{}", row.name), &data);
}

fn create(
    catalogue: &Catalogue,
    cx: &MethodContext,
    tx: &mut Tx,
    input: CreateRole,
) -> Result<RoleRecord> {
    let actions = known_actions(catalogue, input.actions)?;
    if tx.get(&CUSTOM_ROLES, &input.name)?.is_some() {
        let detail = format!("there is a role {:?} already", input.name);
        let error = Error::new(Code::Conflict, detail)
            .hint("choose another name, or change that one: `palisade role update`");
        // The same request would find the same role.
        return Err(Error { retryable: false, ..error });
    }
    let row = RoleRow {
        name: input.name,
        actions,
        description: input.description,
        created_by: cx.principal.name.clone(),
        created_at_ms: tx.view().clock().wall_ms,
    };
    put(cx, tx, "role.created", &row)
}

fn list(catalogue: &Catalogue, view: &View) -> Result<Vec<RoleRecord>> {
    let mut all: Vec<RoleRecord> =
        ROLES.into_iter().map(|role| built_in(catalogue, role)).collect();
    let custom = CUSTOM_ROLES.all(view)?;
    all.extend(custom.iter().map(|(_, found)| record(&found.value, found.stamp.modified_rev)));
    Ok(all)
}

fn get(catalogue: &Catalogue, view: &View, input: NameRole) -> Result<RoleRecord> {
    if let Some(role) = Role::parse(&input.role) {
        return Ok(built_in(catalogue, role));
    }
    let found = CUSTOM_ROLES.get(view, &input.role)?.ok_or_else(|| not_found(&input.role))?;
    Ok(record(&found.value, found.stamp.modified_rev))
}

fn not_found(name: &str) -> Error {
    Error::not_found("role", name).hint("`palisade role ls` shows all")
}

/// A role that can be changed.
fn find(tx: &mut Tx, name: &str) -> Result<Versioned<RoleRow>> {
    if Role::parse(name).is_some() {
        let detail = format!("{name} is built in: nobody can change or remove it");
        return Err(Error::new(Code::InvalidState, detail)
            .hint("make a role of your own: `palisade role create`"));
    }
    tx.get_versioned(&CUSTOM_ROLES, &name.to_owned())?.ok_or_else(|| not_found(name))
}

fn update(
    catalogue: &Catalogue,
    cx: &MethodContext,
    tx: &mut Tx,
    input: UpdateRole,
) -> Result<RoleRecord> {
    let Versioned { value: before, stamp } = find(tx, &input.role)?;
    cx.check_if_match(stamp.modified_rev)?;
    let mut row = before.clone();
    if let Some(actions) = input.actions {
        row.actions = known_actions(catalogue, actions)?;
    }
    row.description = input.description.unwrap_or(row.description);
    if row == before {
        return Ok(record(&row, stamp.modified_rev));
    }
    let lost = before.actions.iter().filter(|action| !row.actions.contains(action));
    let lost = RoleRow { actions: lost.cloned().collect(), ..before };
    Rights::of(tx.view(), &cx.principal)?.take(&cx.principal, &Allows::Custom(lost), "")?;
    put(cx, tx, "role.changed", &row)
}

fn remove(cx: &MethodContext, tx: &mut Tx, input: NameRole) -> Result<RoleRecord> {
    let Versioned { value: row, stamp } = find(tx, &input.role)?;
    cx.check_if_match(stamp.modified_rev)?;
    let held = tx.by_index(&ROLE_BINDINGS, "role", &row.name)?;
    if let Some((first, _)) = held.first() {
        let more = match held.len() {
            1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let detail = format!("role {} is held: by the binding {first}{more}", row.name);
        return Err(Error::new(Code::InvalidState, detail).hint(format!(
            "`palisade binding ls --role {}` shows who holds it; remove those bindings first",
            row.name
        )));
    }
    let own = Rights::of(tx.view(), &cx.principal)?;
    own.take(&cx.principal, &Allows::Custom(row.clone()), "")?;
    tx.delete(&CUSTOM_ROLES, &row.name)?;
    told(cx, tx, "role.removed", &row);
    Ok(record(&row, 0))
}

fn built_in(catalogue: &Catalogue, role: Role) -> RoleRecord {
    // The place of a tenant's admin is its tenant; what others may does not depend on the place.
    let place = if role == Role::TenantAdmin { "its-own" } else { "" };
    let actions = catalogue.actions().filter(|action| role.may(place, action, place));
    RoleRecord {
        name: role.word().to_owned(),
        built_in: true,
        description: role.summary().to_owned(),
        actions: actions.map(str::to_owned).collect(),
        created_by: String::new(),
        created_at: None,
        revision: 0,
    }
}

fn record(row: &RoleRow, revision: u64) -> RoleRecord {
    RoleRecord {
        name: row.name.clone(),
        built_in: false,
        description: row.description.clone(),
        actions: row.actions.clone(),
        created_by: row.created_by.clone(),
        created_at: Some(rfc3339(row.created_at_ms)),
        revision,
    }
}
