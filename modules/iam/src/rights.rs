//! What somebody may: roles, each held in a place.
//!
//! # Invariants
//! - `IAM-4` Nobody gives away what he does not have: a role, a binding or a credential that allows more than whoever
//!   makes it may there himself is refused. Whoever is cluster-admin may everything, and so may give everything.
//! - `IAM-7` Nobody takes away what he could not give: not by removing a binding, a principal or a role, by disabling a
//!   principal, by narrowing a role, or by revoking a token. What is one's own one may always give up.
//! - `IAM-5` A principal that belongs to a tenant holds roles in that tenant and nowhere else, and whoever is bound to a
//!   tenant binds that tenant's principals and nobody else's.

use palisade_contract::{Code, Error, Principal, Result};
use palisade_state::View;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    records::{CUSTOM_ROLES, PrincipalRow, ROLE_BINDINGS, RoleRow},
    roles::{Role, is_for_everybody, reaches},
};

/// What names of principals begin with when they are used as a [`Principal`]'s.
const USER: &str = "user/";

/// A role, and where it is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The role.
    pub role: String,
    /// The tenant on whose things; empty: everywhere.
    pub tenant: String,
}

/// What a role allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Allows {
    /// What is built in.
    BuiltIn(Role),
    /// These actions.
    Custom(RoleRow),
}

impl Allows {
    /// The role of this name.
    pub fn find(view: &View, name: &str) -> Result<Option<Self>> {
        if let Some(role) = Role::parse(name) {
            return Ok(Some(Self::BuiltIn(role)));
        }
        let custom = CUSTOM_ROLES.get(view, &name.to_owned())?;
        Ok(custom.map(|found| Self::Custom(found.value)))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::BuiltIn(role) => role.word(),
            Self::Custom(row) => &row.name,
        }
    }

    fn may(&self, tenant: &str, action: &str, owner: &str) -> bool {
        match self {
            Self::BuiltIn(role) => role.may(tenant, action, owner),
            Self::Custom(row) => {
                reaches(tenant, action, owner)
                    && (is_for_everybody(action) || row.actions.iter().any(|one| one == action))
            }
        }
    }
}

/// All that somebody may.
#[derive(Clone, Debug)]
pub(crate) struct Rights(Vec<(Allows, String)>);

impl Rights {
    /// Of whoever calls: the roles that its credential says, and those that it is bound to.
    pub fn of(view: &View, principal: &Principal) -> Result<Self> {
        let mut rights = Self::built_in(&principal.roles, &principal.tenant);
        if let Some(name) = principal.name.strip_prefix(USER) {
            rights.bind(view, name)?;
        }
        Ok(rights)
    }

    /// Of a principal, as its row and its bindings say.
    pub fn of_row(view: &View, row: &PrincipalRow) -> Result<Self> {
        let mut rights = Self::built_in(&row.roles, &row.tenant);
        rights.bind(view, &row.name)?;
        debug_assert!(
            row.tenant.is_empty() || rights.0.iter().all(|(_, place)| *place == row.tenant),
            "IAM-5"
        );
        Ok(rights)
    }

    /// Of roles that a credential names: those of a token of its own.
    pub fn built_in(roles: &[String], tenant: &str) -> Self {
        let roles = roles.iter().filter_map(|word| Role::parse(word));
        Self(roles.map(|role| (Allows::BuiltIn(role), tenant.to_owned())).collect())
    }

    fn bind(&mut self, view: &View, name: &str) -> Result<()> {
        for (_, found) in ROLE_BINDINGS.with_prefix(view, prefix(name).as_bytes())? {
            // A role that a binding names is there: none is removed that is bound.
            if let Some(allows) = Allows::find(view, &found.value.role)? {
                debug_assert_eq!(found.value.principal, name, "names have no dot");
                self.0.push((allows, found.value.tenant));
            }
        }
        Ok(())
    }

    /// Whether they allow an action on a thing of `owner` (empty: the cluster's).
    pub fn may(&self, action: &str, owner: &str) -> bool {
        self.0.iter().any(|(allows, tenant)| allows.may(tenant, action, owner))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The tenants in which they are held, in order; the empty one stands for everywhere.
    pub fn tenants(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self.0.iter().map(|(_, tenant)| tenant.as_str()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Each role, and where it is held.
    pub fn held(&self) -> Vec<Held> {
        let one = |(allows, tenant): &(Allows, String)| Held {
            role: allows.name().to_owned(),
            tenant: tenant.clone(),
        };
        self.0.iter().map(one).collect()
    }

    /// `viewer, operator within tenant acme`.
    pub fn words(&self) -> String {
        if self.0.is_empty() {
            return "no role".to_owned();
        }
        let together = self.0.chunk_by(|one, next| one.1 == next.1).map(|same| {
            let names: Vec<&str> = same.iter().map(|(allows, _)| allows.name()).collect();
            match same.first().map_or("", |(_, tenant)| tenant) {
                "" => names.join(", "),
                tenant => format!("{} within tenant {tenant}", names.join(", ")),
            }
        });
        together.collect::<Vec<_>>().join("; ")
    }

    /// Why whoever has these may not give a role away in `tenant` (empty: everywhere); `None`: he may.
    fn lack(&self, given: &Allows, tenant: &str) -> Option<String> {
        match given {
            // What a built-in role allows grows with what there is, so that only one that grows with it is enough.
            Allows::BuiltIn(role) => {
                let is_enough = |(allows, place): &(Allows, String)| match allows {
                    Allows::BuiltIn(Role::TenantAdmin) if place.is_empty() => false,
                    Allows::BuiltIn(own) => own >= role && (place.is_empty() || place == tenant),
                    Allows::Custom(_) => false,
                };
                (!self.0.iter().any(is_enough)).then(|| format!("hold the role {}", role.word()))
            }
            Allows::Custom(row) => {
                let beyond = row.actions.iter().find(|action| !self.may(action, tenant));
                beyond.map(|action| format!("do {action}"))
            }
        }
    }

    /// Refuses that whoever has these gives `given` away in `tenant`. `IAM-4`
    pub fn give(&self, who: &Principal, given: &Allows, tenant: &str) -> Result<()> {
        self.own(who, given, tenant, "give").map_err(|refused| {
            refused.hint("nobody gives away what he does not have: ask a cluster-admin, or choose a role that allows less")
        })
    }

    /// Refuses that whoever has these takes `taken`, which somebody holds in `tenant`, away from him. `IAM-7`
    pub fn take(&self, who: &Principal, taken: &Allows, tenant: &str) -> Result<()> {
        self.own(who, taken, tenant, "take away").map_err(|refused| {
            refused.hint("nobody takes away what he could not give: ask a cluster-admin")
        })
    }

    /// Refuses what is done with a role that allows more than these do.
    fn own(&self, who: &Principal, role: &Allows, tenant: &str, verb: &str) -> Result<()> {
        let Some(lack) = self.lack(role, tenant) else { return Ok(()) };
        let place = match tenant {
            "" => "in the whole cluster".to_owned(),
            tenant => format!("in tenant {tenant}"),
        };
        let (who, role) = (&who.name, role.name());
        let detail =
            format!("{who} may not {verb} the role {role} {place}: it may not {lack} there itself");
        Err(Error::new(Code::AccessDenied, detail))
    }

    /// Refuses that whoever has these takes all `others` away. `IAM-7`
    pub fn take_all(&self, who: &Principal, others: &Self) -> Result<()> {
        others.0.iter().try_for_each(|(allows, tenant)| self.take(who, allows, tenant))
    }

    /// Refuses that whoever has these gets hold of all `others`, with a token or a certificate. `IAM-4`
    pub fn give_all(&self, who: &Principal, others: &Self) -> Result<()> {
        others.0.iter().try_for_each(|(allows, tenant)| self.give(who, allows, tenant))
    }
}

/// Whether whoever calls is this principal.
pub(crate) fn is_self(who: &Principal, name: &str) -> bool {
    who.name.strip_prefix(USER) == Some(name)
}

/// What the ids of a principal's bindings begin with.
pub(crate) fn prefix(principal: &str) -> String {
    format!("{principal}.")
}

/// The principal of a row, as methods are told of it. It is bound to its own tenant, or else to the one in which it holds
/// all its roles.
pub(crate) fn principal_of(view: &View, row: PrincipalRow) -> Result<Principal> {
    let tenant = if row.tenant.is_empty() {
        match Rights::of_row(view, &row)?.tenants().as_slice() {
            [one] => (*one).to_owned(),
            _ => String::new(),
        }
    } else {
        row.tenant
    };
    // Roles of a row without a tenant are held everywhere, so that the tenant is empty where there are any.
    Ok(Principal { name: format!("{USER}{}", row.name), roles: row.roles, tenant })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::ROLES;

    const PLACES: [&str; 3] = ["", "acme", "other"];
    const ACTIONS: [&str; 10] = [
        "compute:api-tokens:write",
        "compute:auth:read",
        "compute:cluster:backup",
        "compute:instances:logs",
        "compute:nodes:read",
        "compute:role-bindings:write",
        "compute:roles:read",
        "compute:widgets:paint",
        "compute:workloads:remove",
        "compute:workloads:scale",
    ];

    fn custom(actions: &[&str]) -> Allows {
        Allows::Custom(RoleRow {
            name: "custom".to_owned(),
            actions: actions.iter().copied().map(str::to_owned).collect(),
            description: String::new(),
            created_by: String::new(),
            created_at_ms: 0,
        })
    }

    /// Every built-in role, one of each action, one of all that a tenant's admin can do, and one of everything.
    fn every() -> Vec<Allows> {
        let mut all: Vec<Allows> = ROLES.into_iter().map(Allows::BuiltIn).collect();
        all.extend(ACTIONS.iter().map(|action| custom(&[action])));
        let tenants = |action: &&str| Role::TenantAdmin.may("acme", action, "acme");
        all.push(custom(&ACTIONS.into_iter().filter(tenants).collect::<Vec<_>>()));
        all.push(custom(&ACTIONS));
        all
    }

    #[test]
    fn whatever_can_be_given_away_is_had() {
        let somebody = Principal { name: "user/x".into(), roles: vec![], tenant: String::new() };
        let mut given_away = 0;
        for own in every() {
            for place in PLACES {
                let rights = Rights(vec![(own.clone(), place.to_owned())]);
                for given in every() {
                    for to in PLACES {
                        if rights.give(&somebody, &given, to).is_err() {
                            continue;
                        }
                        given_away += 1;
                        for action in ACTIONS {
                            for owner in ["", "acme", "other", "third"] {
                                assert!(
                                    !given.may(to, action, owner) || rights.may(action, owner),
                                    "IAM-4: {own:?} in {place:?} gives {given:?} in {to:?}: {action} on {owner:?}"
                                );
                            }
                        }
                    }
                }
            }
        }
        assert!(given_away > 100, "{given_away}");
    }

    #[test]
    fn a_role_that_grows_is_not_given_by_whoever_has_what_it_is_today() {
        let somebody = Principal { name: "user/x".into(), roles: vec![], tenant: String::new() };
        let all = Rights(vec![(custom(&ACTIONS), String::new())]);
        for role in ROLES {
            let refused = all.give(&somebody, &Allows::BuiltIn(role), "acme").unwrap_err();
            assert_eq!(refused.code, Code::AccessDenied);
            assert!(refused.detail.contains("user/x may not give the role"), "{refused}");
        }
        let admin = Rights::built_in(&["cluster-admin".to_owned()], "");
        for role in every() {
            assert!(admin.give(&somebody, &role, "").is_ok() || role.name() == "tenant-admin");
            assert!(admin.give(&somebody, &role, "acme").is_ok(), "{role:?}");
        }
    }

    #[test]
    fn a_custom_role_allows_its_actions_and_what_everybody_may() {
        let scaler = Rights(vec![(custom(&["compute:workloads:scale"]), "acme".to_owned())]);
        let may: Vec<(&str, &str)> = ACTIONS
            .into_iter()
            .flat_map(|action| ["", "acme", "other"].map(|owner| (action, owner)))
            .filter(|(action, owner)| scaler.may(action, owner))
            .collect();
        let mut expected: Vec<(&str, &str)> = ["compute:auth:read", "compute:roles:read"]
            .into_iter()
            .flat_map(|action| ["", "acme", "other"].map(|owner| (action, owner)))
            .collect();
        expected.push(("compute:workloads:scale", "acme"));
        assert_eq!(may, expected);
    }

    #[test]
    fn rights_are_told_by_where_they_are_held() {
        let words = |rights: &[(Allows, &str)]| {
            Rights(rights.iter().map(|(a, t)| (a.clone(), (*t).to_owned())).collect()).words()
        };
        let (viewer, operator) = (Allows::BuiltIn(Role::Viewer), Allows::BuiltIn(Role::Operator));
        assert_eq!(words(&[]), "no role");
        assert_eq!(words(&[(viewer.clone(), ""), (operator.clone(), "")]), "viewer, operator");
        assert_eq!(
            words(&[(operator, "acme"), (viewer, "b")]),
            "operator within tenant acme; viewer within tenant b"
        );
    }
}
