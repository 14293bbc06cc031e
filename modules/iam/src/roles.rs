//! The built-in roles: which actions each may do, as one pure function.

/// A built-in role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Reads everything.
    Viewer,
    /// Everything but tokens, access and the cluster itself.
    Operator,
    /// What an operator may, within its tenant.
    TenantAdmin,
    /// Everything.
    ClusterAdmin,
}

/// All of them, by how much they may.
pub const ROLES: [Role; 4] = [Role::Viewer, Role::Operator, Role::TenantAdmin, Role::ClusterAdmin];

/// Areas that operators may only read: who gets in, and what the cluster is made of.
const GUARDED_AREAS: [&str; 14] = [
    "join-tokens",
    "api-tokens",
    "auth",
    "iam",
    "principals",
    "role-bindings",
    "roles",
    "cluster",
    "audit",
    "system",
    "tenants",
    "secret-keys",
    "quorum-policy",
    "pki",
];

/// Of those, what the admin of a tenant may change within it.
const TENANT_ADMINS_AREAS: [&str; 2] = ["role-bindings", "quorum-policy"];

/// Actions that everybody may who has a role, also who is bound to a tenant, because what they tell is no
/// tenant's and no secret: who the caller is and what it may, which roles there are, which version answers, and how to
/// trust the cluster.
const FOR_EVERYBODY: [&str; 4] =
    ["compute:auth:read", "compute:roles:read", "compute:version:read", "compute:trust:read"];

impl Role {
    /// Its name.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::TenantAdmin => "tenant-admin",
            Self::ClusterAdmin => "cluster-admin",
        }
    }

    /// What it is for.
    #[must_use]
    pub fn summary(self) -> &'static str {
        match self {
            Self::Viewer => "reads everything, logs too",
            Self::Operator => "changes everything but who may what and the cluster itself",
            Self::TenantAdmin => "what an operator may, and who may what, within its tenant",
            Self::ClusterAdmin => "everything",
        }
    }

    /// The role of this name.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        ROLES.into_iter().find(|role| role.word() == word)
    }

    /// Whether it includes an action, wherever.
    fn includes(self, area: &str, verb: &str) -> bool {
        let reads = matches!(verb, "read" | "list" | "logs");
        match self {
            Self::Viewer => reads,
            Self::Operator => reads || !GUARDED_AREAS.contains(&area),
            Self::TenantAdmin => {
                Self::Operator.includes(area, verb) || TENANT_ADMINS_AREAS.contains(&area)
            }
            Self::ClusterAdmin => true,
        }
    }

    /// Whether whoever holds it in `tenant` (empty: everywhere) may do `action` on a thing of `owner` (empty: the
    /// cluster's). The role tenant-admin means nothing without a tenant.
    pub(crate) fn may(self, tenant: &str, action: &str, owner: &str) -> bool {
        let parts: Vec<&str> = action.split(':').collect();
        let &["compute", area, verb] = parts.as_slice() else { return false };
        reaches(tenant, action, owner)
            && (self != Self::TenantAdmin || !tenant.is_empty())
            && self.includes(area, verb)
    }
}

/// Whether what is held in `tenant` reaches a thing of `owner`: whoever is bound to a tenant acts on what is that
/// tenant's and on nothing else.
pub(crate) fn reaches(tenant: &str, action: &str, owner: &str) -> bool {
    tenant.is_empty() || tenant == owner || is_for_everybody(action)
}

/// Whether whoever has any role may do it.
pub(crate) fn is_for_everybody(action: &str) -> bool {
    FOR_EVERYBODY.contains(&action)
}

/// Whether somebody with these built-in roles, bound to `tenant` (empty: to none), may do `action` on a
/// thing of `owner` (empty: the cluster's). Roles that do not exist allow nothing.
#[must_use]
pub fn may(roles: &[String], tenant: &str, action: &str, owner: &str) -> bool {
    roles.iter().filter_map(|word| Role::parse(word)).any(|role| role.may(tenant, action, owner))
}
