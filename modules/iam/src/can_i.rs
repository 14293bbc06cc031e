//! The method `auth.canI`: whether the caller may do something, and why, without doing it.

use std::collections::BTreeSet;

use palisade_contract::{
    Check, Error, Method, MethodContext, Principal, Problem, Problems, Resource, Result, Verb,
    id::{NAME_RULE, is_name},
};
use palisade_state::View;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    access,
    catalogue::{Catalogue, Meant},
    rights::Rights,
};

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
        move |cx: &MethodContext, view: &View, input| {
            answer(&catalogue, view, &cx.principal, input)
        },
    )
    .summary("Says whether the caller may do something, and why.")
    .rest(Verb::Post, "/auth/can-i")
    .on(|_| Resource::cluster("principal", "self"))
}

fn answer(
    catalogue: &Catalogue,
    view: &View,
    principal: &Principal,
    input: CanI,
) -> Result<Answer> {
    let Meant { action, takes_tenant, kinds } = catalogue.find(&input.action)?;
    let OnWhat { kind, id, tenant } = input.resource;
    fits(&input.action, area(&action), &kinds, &kind)?;
    let tenant = match tenant {
        _ if !takes_tenant => String::new(),
        // As every call means it that takes a tenant and names none.
        None => principal.tenant.clone(),
        Some(named) => named,
    };
    let kind = if kind.is_empty() { area(&action).to_owned() } else { kind };
    let on = Resource::of_tenant(&kind, &id, &tenant);
    let of = if tenant.is_empty() { String::new() } else { format!(" of tenant {tenant}") };
    let rights = Rights::of(view, principal)?;
    Ok(match access::decide(principal, &rights, &action, &on) {
        Ok(()) => {
            let who = access::described(principal, &rights);
            let why = format!("{who} may {action} on {on}{of}");
            Answer { allowed: true, action, tenant, why, hint: None }
        }
        Err(refused) => {
            let why = format!("{}{of}", refused.detail);
            Answer { allowed: false, action, tenant, why, hint: refused.hint }
        }
    })
}

/// Refuses a kind of thing to which what was asked about is never done: the answer would be about nothing.
fn fits(asked: &str, area: &str, kinds: &BTreeSet<String>, kind: &str) -> Result<()> {
    let is_known = kinds.contains(kind) || kind == area || Some(kind) == area.strip_suffix('s');
    if kind.is_empty() || is_known {
        return Ok(());
    }
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let message = format!("{asked} is done to {}, not to {kind}", kinds.join(" or "));
    Err(Error::invalid(vec![Problem { pointer: "/resource/kind".to_owned(), message }]))
}

fn area(action: &str) -> &str {
    action.split(':').nth(1).unwrap_or_default()
}
