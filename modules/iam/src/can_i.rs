//! The method `auth.canI`: whether the caller may do something, and why, without doing it.

use std::sync::{Arc, OnceLock};

use palisade_contract::{
    Check, Error, Method, MethodContext, Principal, Problem, Problems, Registry, Resource, Result,
    Verb, fields,
    id::{NAME_RULE, is_name},
    input::nearest,
};
use palisade_state::View;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::access;

/// A tenant that is nobody's, to see whether a method is about the tenant that its input names.
const SOMEBODY: &str = "somebody";

/// A method that there is, and what authorization must know of it.
#[derive(Clone, Debug)]
struct Known {
    name: String,
    action: String,
    takes_tenant: bool,
}

/// The methods of all modules, once the process is put together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalogue(Arc<OnceLock<Vec<Known>>>);

impl Catalogue {
    /// Notes the methods that there are; the first registry counts.
    pub fn bind(&self, registry: &Registry) {
        let mut known = vec![];
        for module in registry.modules() {
            let plugin = module.plugin().map(|id| format!("{id}:")).unwrap_or_default();
            known.extend(module.methods().into_iter().map(|method| Known {
                name: format!("{plugin}{}", method.full_name()),
                takes_tenant: fields::names(&method).contains("tenant")
                    && (method.resource)(&json!({ "tenant": SOMEBODY })).tenant == SOMEBODY,
                action: method.action,
            }));
        }
        let _ = self.0.set(known);
    }

    /// The action that is meant, and whether it can be done on a tenant's things.
    fn find(&self, asked: &str) -> Result<(String, bool)> {
        let known = self.0.get().map(Vec::as_slice).unwrap_or_default();
        let meant = |one: &&Known| one.action == asked || one.name == asked;
        let found: Vec<&Known> = known.iter().filter(meant).collect();
        if let Some(first) = found.first() {
            return Ok((first.action.clone(), found.iter().any(|one| one.takes_tenant)));
        }
        let all = known.iter().flat_map(|one| [one.action.as_str(), one.name.as_str()]);
        let near =
            nearest(asked, all).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
        let message = format!("must be an action or a method that there is{near}");
        Err(Error::invalid(vec![Problem { pointer: "/action".to_owned(), message }]))
    }
}

/// Input of `auth.canI`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CanI {
    /// `compute:<area>:<verb>`, or a method such as `nodes.cordon`.
    pub action: String,
    /// On what; absent: on anything of its kind.
    #[serde(default)]
    pub resource: OnWhat,
}

/// What somebody would act on.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct OnWhat {
    /// Such as `node`.
    pub kind: String,
    /// Its id or name; empty: any.
    pub id: String,
    /// Whose it is; absent: the tenant that the caller is bound to, or the cluster.
    pub tenant: Option<String>,
}

impl Check for CanI {
    fn check(&self, at: &str, problems: &mut Problems) {
        let tenant = self.resource.tenant.as_deref().unwrap_or_default();
        if !tenant.is_empty() && !is_name(tenant) {
            problems.add(format!("{at}/resource/tenant"), format!("must have {NAME_RULE}"));
        }
    }
}

/// Whether somebody may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Whether it would be allowed now. Nothing is promised: roles may change, and the thing need not be there.
    pub allowed: bool,
    /// The action that was meant.
    pub action: String,
    /// Whose thing it would be; empty: the cluster's.
    pub tenant: String,
    /// Who may or may not, with which roles, do what.
    pub why: String,
    /// What a person could do about it.
    pub hint: Option<String>,
}

/// The method.
pub(crate) fn method(catalogue: Catalogue) -> Method {
    Method::query(
        "auth",
        "canI",
        "compute:auth:read",
        move |cx: &MethodContext, _: &View, input| answer(&catalogue, &cx.principal, input),
    )
    .summary("Says whether the caller may do something, and why.")
    .rest(Verb::Post, "/auth/can-i")
    .on(|_| Resource::cluster("principal", "self"))
}

fn answer(catalogue: &Catalogue, principal: &Principal, input: CanI) -> Result<Answer> {
    let (action, takes_tenant) = catalogue.find(&input.action)?;
    let OnWhat { kind, id, tenant } = input.resource;
    let tenant = match tenant {
        _ if !takes_tenant => String::new(),
        // As every call means it that takes a tenant and names none.
        None => principal.tenant.clone(),
        Some(named) => named,
    };
    let kind = if kind.is_empty() { area(&action).to_owned() } else { kind };
    let on = Resource::of_tenant(&kind, &id, &tenant);
    let of = if tenant.is_empty() { String::new() } else { format!(" of tenant {tenant}") };
    Ok(match access::authorize(principal, &action, &on) {
        Ok(()) => {
            let why = format!("{} may {action} on {on}{of}", access::described(principal));
            Answer { allowed: true, action, tenant, why, hint: None }
        }
        Err(refused) => {
            let why = format!("{}{of}", refused.detail);
            Answer { allowed: false, action, tenant, why, hint: refused.hint }
        }
    })
}

fn area(action: &str) -> &str {
    action.split(':').nth(1).unwrap_or_default()
}
