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
const GUARDED_AREAS: [&str; 9] = [
    "join-tokens",
    "api-tokens",
    "auth",
    "iam",
    "principals",
    "cluster",
    "audit",
    "system",
    "tenants",
];

/// Actions that everybody may who has a role, also who is bound to a tenant, because what they tell is no
/// tenant's and no secret: who the caller is and what it may, which version answers, and how to trust the cluster.
const FOR_EVERYBODY: [&str; 3] =
    ["compute:auth:read", "compute:version:read", "compute:trust:read"];

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
            Self::Operator | Self::TenantAdmin => reads || !GUARDED_AREAS.contains(&area),
            Self::ClusterAdmin => true,
        }
    }
}

/// Whether somebody with these roles, bound to `tenant` (empty: to none), may do `action` on a
/// thing of `owner` (empty: the cluster's).
///
/// Whoever is bound to a tenant acts on what is that tenant's and on nothing else; the role
/// tenant-admin means nothing without a tenant. Roles that do not exist allow nothing.
#[must_use]
pub fn may(roles: &[String], tenant: &str, action: &str, owner: &str) -> bool {
    let parts: Vec<&str> = action.split(':').collect();
    let &["compute", area, verb] = parts.as_slice() else { return false };
    let within = tenant.is_empty() || tenant == owner || FOR_EVERYBODY.contains(&action);
    within
        && roles
            .iter()
            .filter_map(|word| Role::parse(word))
            .filter(|role| *role != Role::TenantAdmin || !tenant.is_empty())
            .any(|role| role.includes(area, verb))
}
