//! The methods `apiTokens.*` and `auth.whoami`. The caller makes a token's secret and sends its hash
//! alone.

use std::sync::Arc;

use palisade_contract::{
    Check, Code, Error, Method, MethodContext, Principal, Problem, Problems, Resource, Result,
    Verb, Watched,
    id::{NAME_RULE, is_name},
    input::{Nothing, nearest},
};
use palisade_state::{Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    principals::not_found,
    records::{
        API_TOKENS, PRINCIPALS, Revocation, TOKEN_USES, TokenRow, is_sha256_hex, mint_id, rfc3339,
    },
    rights::{Held, Rights, is_self},
    roles::{ROLES, Role},
    standing::hand_of,
    uses::Uses,
    ways,
};

const TTL_SECONDS_MAX: u64 = 366 * 24 * 60 * 60;
/// Logical milliseconds for which a token is remembered after its end.
const KEPT_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// Tokens that one creation forgets at most.
const FORGET_MAX: usize = 100;
/// Tokens looked at for that: from a random place on, so that all are looked at in time.
const LOOK_MAX: usize = 200;
/// Valid tokens of one principal.
const OF_ONE_MAX: usize = 64;

/// Input of `apiTokens.create`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateToken {
    /// SHA-256 of the secret's 32 bytes (not of their text), in lower-case hexadecimal.
    pub secret_sha256: String,
    /// What to call it; unique among tokens that are not revoked.
    pub name: String,
    /// Its roles: viewer, operator, tenant-admin, cluster-admin. A principal's token has none of its own.
    #[serde(default)]
    pub roles: Vec<String>,
    /// The principal as whom it lets in, with what that one may at the time; absent: it stands for itself.
    #[serde(default)]
    pub principal: Option<String>,
    /// The tenant to bind it to; absent: none. A principal's token has its principal's.
    #[serde(default)]
    pub tenant: Option<String>,
    /// How long it is valid; absent: until it is revoked.
    #[serde(default)]
    pub ttl_seconds: Option<u64>,
}

impl Check for CreateToken {
    fn check(&self, at: &str, problems: &mut Problems) {
        if !is_sha256_hex(&self.secret_sha256) {
            problems.add(
                format!("{at}/secretSha256"),
                "must be 64 lower-case hexadecimal digits: the SHA-256 of the secret's 32 bytes",
            );
        }
        if !is_name(&self.name) {
            problems.add(format!("{at}/name"), format!("must have {NAME_RULE}"));
        }
        if self.tenant.as_ref().is_some_and(|tenant| !is_name(tenant)) {
            problems.add(format!("{at}/tenant"), format!("must have {NAME_RULE}"));
        }
        if self.ttl_seconds.is_some_and(|ttl| !(1..=TTL_SECONDS_MAX).contains(&ttl)) {
            problems.add(format!("{at}/ttlSeconds"), format!("must be 1 to {TTL_SECONDS_MAX}"));
        }
        if self.principal.is_some() {
            if !self.roles.is_empty() {
                problems.add(
                    format!("{at}/roles"),
                    "must be absent: a principal's token may what its principal may",
                );
            }
        } else if self.roles.is_empty() {
            problems.add(
                format!("{at}/roles"),
                "must name at least one role, or the principal whose it is",
            );
        }
        for (position, word) in self.roles.iter().enumerate() {
            self.check_role(word, &format!("{at}/roles/{position}"), problems);
        }
    }
}

impl CreateToken {
    fn check_role(&self, word: &str, at: &str, problems: &mut Problems) {
        let known = || ROLES.into_iter().map(Role::word);
        match Role::parse(word) {
            Some(Role::TenantAdmin) if self.tenant.is_none() => {
                problems.add(at, "tenant-admin needs a tenant");
            }
            Some(Role::ClusterAdmin) if self.tenant.is_some() => {
                problems.add(at, "cluster-admin cannot be bound to a tenant; use tenant-admin");
            }
            Some(_) => {}
            None => {
                let all = known().collect::<Vec<_>>().join(", ");
                let near = nearest(word, known())
                    .map_or(String::new(), |near| format!("; did you mean {near:?}?"));
                problems.add(at, format!("must be one of {all}{near}"));
            }
        }
    }
}

/// Input of `apiTokens.list`.
pub type ListTokens = Nothing;

/// Input of `apiTokens.revoke`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeToken {
    /// Its id or name.
    pub token: String,
}

impl Check for RevokeToken {}

/// An API token as REST shows it; without its secret, which the cluster never had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    /// Its id: the part of its text between `pal_` and the secret.
    pub id: String,
    /// What its maker calls it.
    pub name: String,
    /// Its roles; none: it has its principal's.
    pub roles: Vec<String>,
    /// The tenant that it is bound to, or that its principal belongs to; empty: none.
    pub tenant: String,
    /// The principal as whom it lets in; empty: it stands for itself.
    pub principal: String,
    /// `active`, `expired` or `revoked`.
    pub status: String,
    /// When it was used last, as far as the replica that answers knows, to the minute; absent: never.
    pub last_used_at: Option<String>,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: String,
    /// When it ends; absent: not by itself.
    pub expires_at: Option<String>,
    /// When it was revoked, and by whom.
    pub revoked: Option<String>,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision
    /// is the answer's.
    pub revision: u64,
}

/// Who the caller is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Whoami {
    /// `token/<id>` or `user/<name>`.
    pub name: String,
    /// Its roles, each once, wherever it holds them.
    pub roles: Vec<String>,
    /// The tenant that it is bound to; empty: none.
    pub tenant: String,
    /// Each role, and where it is held.
    pub holds: Vec<Held>,
}

/// The methods, in the order of their documentation.
pub(crate) fn methods(uses: &Arc<Uses>) -> Vec<Method> {
    let uses = uses.clone();
    let on = |value: &Value| {
        let id = value.get("token").or_else(|| value.get("name"));
        // Tokens are the cluster's, whomever they let in: a tenant makes none for itself.
        Resource::cluster("api-token", id.and_then(Value::as_str).unwrap_or_default())
    };
    vec![
        Method::mutation("apiTokens", "create", "compute:api-tokens:write", create)
            .summary("Makes an API token; the caller keeps its secret.")
            .rest(Verb::Post, "/api-tokens")
            .on(on),
        Method::query(
            "apiTokens",
            "list",
            "compute:api-tokens:read",
            move |_: &MethodContext, view: &View, _: ListTokens| list(&uses, view),
        )
        .summary("Lists the API tokens, without secrets.")
        .rest(Verb::Get, "/api-tokens")
        .list()
        .watched(Watched::Records)
        .on(on),
        Method::mutation("apiTokens", "revoke", "compute:api-tokens:write", revoke)
            .summary("Takes an API token back, at once.")
            .rest(Verb::Delete, "/api-tokens/{token}")
            .on(on),
        Method::query("auth", "whoami", "compute:auth:read", whoami)
            .summary("Says who the caller is and which roles it has.")
            .rest(Verb::Get, "/auth/whoami")
            .on(|_| Resource::cluster("principal", "self")),
    ]
}

fn whoami(cx: &MethodContext, view: &View, _input: Nothing) -> Result<Whoami> {
    let Principal { name, tenant, .. } = cx.principal.clone();
    let holds = Rights::of(view, &cx.principal)?.held();
    let mut roles: Vec<String> = vec![];
    for held in &holds {
        if !roles.contains(&held.role) {
            roles.push(held.role.clone());
        }
    }
    Ok(Whoami { name, roles, tenant, holds })
}

/// The tenant that a new token is of, if whoever makes it may give away what it lets do. `IAM-4`
fn given(cx: &MethodContext, tx: &mut Tx, input: &CreateToken) -> Result<String> {
    let own = Rights::of(tx.view(), &cx.principal)?;
    let Some(name) = &input.principal else {
        let tenant = input.tenant.clone().unwrap_or_default();
        own.give_all(&cx.principal, &Rights::built_in(&input.roles, &tenant))?;
        return Ok(tenant);
    };
    let principal = tx.get(&PRINCIPALS, name)?.ok_or_else(|| not_found(name))?;
    if input.tenant.as_ref().is_some_and(|tenant| *tenant != principal.tenant) {
        let message = format!("must be absent, or the tenant that {name} belongs to");
        return Err(Error::invalid(vec![Problem { pointer: "/tenant".to_owned(), message }]));
    }
    if principal.disabled {
        return Err(Error::new(Code::InvalidState, format!("principal {name} is disabled"))
            .hint(format!("let it in again first: `palisade principal enable {name}`")));
    }
    own.give_all(&cx.principal, &Rights::of_row(tx.view(), &principal)?)?;
    if tx.by_index(&API_TOKENS, "principal", name)?.len() >= OF_ONE_MAX {
        let detail = format!("principal {name} has {OF_ONE_MAX} tokens, which is the most");
        return Err(Error::new(Code::TooLarge, detail)
            .hint("revoke those that are not used: `palisade api-token ls` shows their last use"));
    }
    Ok(principal.tenant)
}

fn create(cx: &MethodContext, tx: &mut Tx, input: CreateToken) -> Result<TokenRecord> {
    let clock = tx.view().clock();
    let tenant = given(cx, tx, &input)?;
    if let Some((taken, _)) = tx.by_index(&API_TOKENS, "name", &input.name)?.into_iter().next() {
        let error = Error::new(
            Code::Conflict,
            format!("there is an API token {:?} already, with id {taken}", input.name),
        )
        .hint("choose another name, or revoke that one first");
        // The same request would find the same token.
        return Err(Error { retryable: false, ..error });
    }
    cx.context.ports.tenant_open(tx, &tenant)?;
    let id = mint_id(&*cx.context.rt);
    if tx.get(&API_TOKENS, &id)?.is_some() {
        return Err(Error::new(Code::Conflict, "a new id was taken already").hint("try again"));
    }
    let ttl_ms = input.ttl_seconds.map(|ttl| ttl.saturating_mul(1000));
    let row = TokenRow {
        id: id.clone(),
        secret_sha256: input.secret_sha256,
        name: input.name,
        roles: input.roles,
        tenant,
        principal: input.principal.unwrap_or_default(),
        created_by: cx.principal.name.clone(),
        makers: hand_of(tx, &cx.principal.name)?,
        created_at_ms: clock.wall_ms,
        ttl_ms,
        expires_ms: ttl_ms.map(|ttl_ms| clock.now_ms.saturating_add(ttl_ms)),
        revoked: None,
    };
    tx.put(&API_TOKENS, &id, &row)?;
    forget_old(tx, &id)?;
    let data = json!({
        "token": id, "name": row.name, "roles": row.roles, "principal": row.principal,
        "by": row.created_by,
    });
    tx.publish("api-token.created", &row.tenant, format!("api-token/{id}"), &data);
    Ok(record(&row, clock.now_ms, 0, None))
}

/// Forgets some tokens that ended long ago.
fn forget_old(tx: &mut Tx, newest: &str) -> Result<()> {
    let now_ms = tx.view().clock().now_ms;
    let ended_ms = |row: &TokenRow| {
        row.revoked.as_ref().map(|revoked| revoked.at_logical_ms).or(row.expires_ms)
    };
    let view = tx.view();
    let mut old: Vec<String> = vec![];
    let behind = API_TOKENS.page(view, newest.as_bytes(), None);
    for found in behind.chain(API_TOKENS.page(view, &[], None)).take(LOOK_MAX) {
        let (id, found) = found?;
        let ended_ms = ended_ms(&found.value);
        let is_old = ended_ms.is_some_and(|at| at.saturating_add(KEPT_MS) <= now_ms);
        if id != newest && is_old && old.len() < FORGET_MAX && !old.contains(&id) {
            old.push(id);
        }
    }
    for id in old {
        tx.delete(&API_TOKENS, &id)?;
        tx.delete(&TOKEN_USES, &id)?;
    }
    Ok(())
}

fn list(uses: &Uses, view: &View) -> Result<Vec<TokenRecord>> {
    let now_ms = view.clock().now_ms;
    let one = |(id, found): (String, Versioned<TokenRow>)| {
        let used_ms = uses.shown(view, &id)?;
        Ok(record(&found.value, now_ms, found.stamp.modified_rev, used_ms))
    };
    API_TOKENS.all(view)?.into_iter().map(one).collect()
}

fn find(tx: &mut Tx, id_or_name: &str) -> Result<Versioned<TokenRow>> {
    if let Some(found) = tx.get_versioned(&API_TOKENS, &id_or_name.to_owned())? {
        return Ok(found);
    }
    let named = if is_name(id_or_name) {
        tx.by_index(&API_TOKENS, "name", id_or_name)?.into_iter().next()
    } else {
        None
    };
    let found = match named {
        Some((id, _)) => tx.get_versioned(&API_TOKENS, &id)?,
        None => None,
    };
    found.ok_or_else(|| {
        Error::not_found("API token", id_or_name).hint("`palisade api-token ls` shows all")
    })
}

fn revoke(cx: &MethodContext, tx: &mut Tx, input: RevokeToken) -> Result<TokenRecord> {
    let found = find(tx, &input.token)?;
    cx.check_if_match(found.stamp.modified_rev)?;
    let now_ms = tx.view().clock().now_ms;
    let row = found.value;
    if row.revoked.is_some() {
        return Ok(record(&row, now_ms, found.stamp.modified_rev, None));
    }
    take(cx, tx, &row)?;
    let is_way = ways::is_one(tx, &row, 0)?;
    let row = revoke_row(cx, tx, row)?;
    if is_way {
        ways::keep_one(tx, &format!("API token {}", row.id))?;
    }
    Ok(record(&row, now_ms, 0, None))
}

/// Refuses that whoever calls takes away what a valid token lets its holder do. `IAM-7`
fn take(cx: &MethodContext, tx: &mut Tx, row: &TokenRow) -> Result<()> {
    let is_own =
        cx.principal.name == format!("token/{}", row.id) || is_self(&cx.principal, &row.principal);
    if is_own || !row.is_valid(tx.view().clock().now_ms) {
        return Ok(());
    }
    let its = match row.principal.as_str() {
        "" => Rights::built_in(&row.roles, &row.tenant),
        name => match tx.get(&PRINCIPALS, &name.to_owned())? {
            Some(principal) => Rights::of_row(tx.view(), &principal)?,
            None => return Ok(()),
        },
    };
    Rights::of(tx.view(), &cx.principal)?.take_all(&cx.principal, &its)
}

/// Takes a token back that has not been taken back.
pub(crate) fn revoke_row(cx: &MethodContext, tx: &mut Tx, mut row: TokenRow) -> Result<TokenRow> {
    let clock = tx.view().clock();
    row.revoked = Some(Revocation {
        by: cx.principal.name.clone(),
        at_ms: clock.wall_ms,
        at_logical_ms: clock.now_ms,
    });
    tx.put(&API_TOKENS, &row.id.clone(), &row)?;
    let data = json!({"token": row.id, "name": row.name, "by": cx.principal.name});
    tx.publish("api-token.revoked", &row.tenant, format!("api-token/{}", row.id), &data);
    Ok(row)
}

fn record(row: &TokenRow, now_ms: u64, revision: u64, used_ms: Option<u64>) -> TokenRecord {
    let status = match &row.revoked {
        Some(_) => "revoked",
        None if !row.is_valid(now_ms) => "expired",
        None => "active",
    };
    TokenRecord {
        id: row.id.clone(),
        name: row.name.clone(),
        roles: row.roles.clone(),
        tenant: row.tenant.clone(),
        principal: row.principal.clone(),
        status: status.to_owned(),
        last_used_at: used_ms.map(rfc3339),
        created_by: row.created_by.clone(),
        created_at: rfc3339(row.created_at_ms),
        expires_at: row.ttl_ms.map(|ttl_ms| rfc3339(row.created_at_ms.saturating_add(ttl_ms))),
        revoked: row
            .revoked
            .as_ref()
            .map(|revoked| format!("{} ({})", rfc3339(revoked.at_ms), revoked.by)),
        revision,
    }
}
