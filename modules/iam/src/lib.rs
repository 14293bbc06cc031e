//! Who calls, and what they may do: API tokens, client certificates and roles.
//!
//! # Invariants
//! - `IAM-1` Whatever is wrong with a credential, the answer is the same.
//! - `IAM-2` Of a token's secret only the SHA-256 is known to the cluster.
//! - `IAM-3` While the token of any cluster-admin is valid, nothing that is revoked, removed, disabled or unbound takes the
//!   last of them.
//!
//! `IAM-4` and `IAM-5` are in `rights.rs`, `IAM-6` is in `uses.rs`.

mod access;
mod bindings;
mod can_i;
mod catalogue;
mod custom_roles;
mod findings;
mod methods;
mod principals;
mod records;
mod rights;
mod roles;
mod standing;
mod teardown;
mod uses;
mod ways;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, sync::Arc};

use futures::future::BoxFuture;
use palisade_contract::{
    Catalog, Code, Context, Error, Finding, Method, Migration, Module, Principal, Resource, Result,
    Sweep,
    ports::{Access, Credential},
};
use palisade_state::{Declared, Tx, View};

pub use bindings::{BindingRecord, CreateBinding, ListBindings, NameBinding};
pub use can_i::{Answer, CanI, OnWhat};
pub use custom_roles::{CreateRole, ListRoles, NameRole, RoleRecord, UpdateRole};
pub use methods::{CreateToken, ListTokens, RevokeToken, TokenRecord, Whoami};
pub use principals::{
    CreatePrincipal, GetPrincipal, ListPrincipals, PrincipalRecord, RemovePrincipal,
    UpdatePrincipal,
};
pub use records::{PRINCIPALS, PrincipalRow};
pub use rights::Held;
pub use roles::{ROLES, Role, may};

/// The first cluster-admin token, of which `palisade init` showed the secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    /// Its id: the part of its text between `pal_` and the secret.
    pub token_id: String,
    /// SHA-256 of the secret's 32 bytes, in lower-case hexadecimal.
    pub secret_sha256: String,
}

/// The module `iam`.
pub struct Iam {
    bootstrap: Option<Bootstrap>,
    port: Arc<Port>,
    catalogue: catalogue::Catalogue,
}

/// What fills `ports.access`.
#[derive(Default)]
struct Port {
    uses: Arc<uses::Uses>,
}

impl Iam {
    /// The module. Without a bootstrap it makes no first token.
    #[must_use]
    pub fn new(bootstrap: impl Into<Option<Bootstrap>>) -> Self {
        Self {
            bootstrap: bootstrap.into(),
            port: Arc::default(),
            catalogue: catalogue::Catalogue::default(),
        }
    }

    /// Tells it of all methods, so that it can answer what somebody may.
    pub fn bind(&self, registry: &palisade_contract::Registry) {
        self.catalogue.bind(registry);
    }

    /// The port that it fills at its start.
    #[must_use]
    pub fn access(&self) -> Arc<dyn Access> {
        self.port.clone()
    }
}

impl Module for Iam {
    fn name(&self) -> &'static str {
        "iam"
    }

    fn tables(&self) -> Vec<Declared> {
        vec![
            records::API_TOKENS.declared(),
            records::TOKEN_USES.declared(),
            PRINCIPALS.declared(),
            records::CUSTOM_ROLES.declared(),
            records::ROLE_BINDINGS.declared(),
        ]
    }

    fn migrations(&self) -> Vec<Migration> {
        let Some(bootstrap) = self.bootstrap.clone() else { return vec![] };
        vec![Migration {
            name: "iam/0001_bootstrap",
            run: Arc::new(move |tx: &mut Tx| first_token(tx, &bootstrap)),
        }]
    }

    fn methods(&self) -> Vec<Method> {
        let mut methods = methods::methods(&self.port.uses);
        methods.extend(principals::methods());
        methods.extend(bindings::methods());
        methods.extend(custom_roles::methods(&self.catalogue));
        methods.push(can_i::method(self.catalogue.clone()));
        methods
    }

    fn catalog(&self) -> Catalog {
        Catalog {
            actions: vec![
                "compute:api-tokens:read",
                "compute:api-tokens:write",
                "compute:auth:read",
                "compute:principals:read",
                "compute:principals:write",
                "compute:role-bindings:read",
                "compute:role-bindings:write",
                "compute:roles:read",
                "compute:roles:write",
            ],
            resource_types: vec!["api-token", "principal", "role", "role-binding"],
        }
    }

    fn self_check(&self, _cx: &Context, view: &View) -> Result<Vec<Finding>> {
        findings::all(&self.catalogue, view)
    }

    fn tenants_in_use(&self, view: &View) -> Result<BTreeSet<String>> {
        teardown::in_use(view)
    }

    fn tenant_deleted(&self, _cx: &Context, tx: &mut Tx, tenant: &str) -> Result<Sweep> {
        teardown::removed(tx, tenant)
    }

    fn start<'a>(&'a self, cx: &'a Context) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match cx.ports.access.get() {
                // Started before; a port of somebody else's is a mistake of the composition.
                Ok(filled) if same(filled, &self.port) => Ok(()),
                _ => {
                    cx.ports.access.fill(self.port.clone())?;
                    let (cx, uses) = (cx.clone(), self.port.uses.clone());
                    let rt = cx.rt.clone();
                    rt.spawn("last uses of tokens", Box::pin(async move { uses.keep(&cx).await }));
                    Ok(())
                }
            }
        })
    }

    fn stop(&self) -> BoxFuture<'_, Result<()>> {
        self.port.uses.end();
        Box::pin(std::future::ready(Ok(())))
    }
}

fn same(filled: &Arc<dyn Access>, own: &Arc<Port>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(filled), Arc::as_ptr(own))
}

impl Access for Port {
    fn authenticate(&self, view: &View, credential: &Credential) -> Result<Principal> {
        access::authenticate(view, &self.uses, credential)
    }

    fn authorize(
        &self,
        view: &View,
        principal: &Principal,
        action: &str,
        resource: &Resource,
    ) -> Result<()> {
        access::authorize(view, principal, action, resource)
    }

    fn standing(&self, tx: &mut Tx, name: &str) -> Result<Principal> {
        standing::standing(tx, name)
    }

    fn able(&self, view: &View, action: &str, resource: &Resource) -> Result<Vec<String>> {
        standing::able(view, action, resource)
    }

    fn makers(&self, tx: &mut Tx, name: &str) -> Result<BTreeSet<String>> {
        standing::makers(tx, name)
    }
}

fn first_token(tx: &mut Tx, bootstrap: &Bootstrap) -> Result<()> {
    let Bootstrap { token_id, secret_sha256 } = bootstrap;
    if !records::is_token_id(token_id) || !records::is_sha256_hex(secret_sha256) {
        return Err(Error::new(
            Code::InvalidConfig,
            "the bootstrap token is malformed: its id or the SHA-256 of its secret cannot be read",
        )
        .hint("look at bootstrap.json in the replica's directory; `palisade init` writes it"));
    }
    if tx.get(&records::API_TOKENS, token_id)?.is_some() {
        return Ok(());
    }
    put_admin(tx, bootstrap, "bootstrap", "init")
}

/// Writes a cluster-admin token, as an operator with the cluster's own files may: `restore` makes a
/// way in for whoever has nothing but a backup and its key.
///
/// # Errors
/// The transaction cannot hold it.
pub fn put_admin(tx: &mut Tx, token: &Bootstrap, name: &str, by: &str) -> Result<()> {
    let Bootstrap { token_id, secret_sha256 } = token;
    let row = records::TokenRow {
        id: token_id.clone(),
        secret_sha256: secret_sha256.clone(),
        name: name.to_owned(),
        roles: vec![Role::ClusterAdmin.word().to_owned()],
        tenant: String::new(),
        principal: String::new(),
        created_by: by.to_owned(),
        makers: BTreeSet::new(),
        created_at_ms: tx.view().clock().wall_ms,
        ttl_ms: None,
        expires_ms: None,
        revoked: None,
    };
    Ok(tx.put(&records::API_TOKENS, token_id, &row)?)
}
