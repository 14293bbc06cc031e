//! The methods `joinTokens.*`. The caller makes the secret and sends its hash alone, so that no
//! secret reaches a log, an audit record, an idempotency record or state.

use palisade_contract::{
    Check, Code, Error, Method, MethodContext, NodeId, Problems, Resource, Result, Verb, Watched,
    id::{NAME_RULE, is_name},
    method::Records,
};
use palisade_state::{Tx, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    identity::ProductUuid,
    records::{Expect, JOIN_TOKENS, Revocation, TokenRow, rfc3339},
    token,
};

const TTL_SECONDS: u64 = 2 * 60 * 60;
const TTL_SECONDS_MAX: u64 = 24 * 60 * 60;
const USES_MAX: u32 = 1000;
/// Logical milliseconds for which a token is remembered after its end.
const KEPT_MS: u64 = 7 * 24 * 60 * 60 * 1000;
/// Tokens that one creation forgets at most.
const FORGET_MAX: usize = 100;
/// Tokens looked at for that: from a random place on, so that all are looked at in time.
const LOOK_MAX: usize = 200;

/// Input of `joinTokens.create`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateToken {
    /// SHA-256 of the secret's 32 bytes (not of their text), in lower-case hexadecimal.
    pub secret_sha256: String,
    /// The pool that its nodes join.
    #[serde(default = "default_pool")]
    pub pool: String,
    /// The tenant of its nodes; absent: the cluster.
    #[serde(default)]
    pub tenant: Option<String>,
    /// How long it is valid.
    #[serde(default = "default_ttl")]
    pub ttl_seconds: u64,
    /// How many nodes it makes at most.
    #[serde(default = "default_uses")]
    pub uses: u32,
    /// Who may redeem it; absent: whoever has it.
    #[serde(default)]
    pub expect: Option<Expect>,
}

fn default_pool() -> String {
    "default".to_owned()
}

fn default_ttl() -> u64 {
    TTL_SECONDS
}

fn default_uses() -> u32 {
    1
}

impl Check for CreateToken {
    fn check(&self, at: &str, problems: &mut Problems) {
        if !token::is_sha256_hex(&self.secret_sha256) {
            problems.add(
                format!("{at}/secretSha256"),
                "must be 64 lower-case hexadecimal digits: the SHA-256 of the secret's 32 bytes",
            );
        }
        if !is_name(&self.pool) {
            problems.add(format!("{at}/pool"), format!("must have {NAME_RULE}"));
        }
        if self.tenant.as_ref().is_some_and(|tenant| !is_name(tenant)) {
            problems.add(format!("{at}/tenant"), format!("must have {NAME_RULE}"));
        }
        if !(1..=TTL_SECONDS_MAX).contains(&self.ttl_seconds) {
            problems.add(format!("{at}/ttlSeconds"), format!("must be 1 to {TTL_SECONDS_MAX}"));
        }
        if !(1..=USES_MAX).contains(&self.uses) {
            problems.add(format!("{at}/uses"), format!("must be 1 to {USES_MAX}"));
        }
        if let Some(expect) = &self.expect {
            check_expect(expect, self.uses, &format!("{at}/expect"), problems);
        }
    }
}

fn check_expect(expect: &Expect, uses: u32, at: &str, problems: &mut Problems) {
    if let Some(text) = &expect.product_uuid {
        let pointer = format!("{at}/productUuid");
        match ProductUuid::parse(text) {
            None => problems.add(pointer, "must be a UUID, as `dmidecode -s system-uuid` shows it"),
            Some(uuid) if !uuid.identifies() => {
                problems
                    .add(pointer, "is a constant that many boards share: it identifies no machine");
            }
            Some(_) if uses > 1 => problems.add(pointer, "names one machine, so uses must be 1"),
            Some(_) => {}
        }
    }
    let is_address = |text: &String| text.parse::<std::net::IpAddr>().is_ok();
    if expect.address.as_ref().is_some_and(|address| !is_address(address)) {
        problems.add(format!("{at}/address"), "must be an IP address");
    }
}

/// Input of `joinTokens.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListTokens {
    /// Only tokens whose nodes are this tenant's.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for ListTokens {}

/// Input of `joinTokens.revoke`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeToken {
    /// Its id.
    pub token: String,
    /// The tenant that it must belong to.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for RevokeToken {}

/// A join token as REST shows it; without its secret, which the cluster never had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TokenRecord {
    /// Its id: the part of its text between the dots.
    pub id: String,
    /// The pool that its nodes join.
    pub pool: String,
    /// The tenant of its nodes; empty: the cluster.
    pub tenant: String,
    /// `active`, `used`, `expired` or `revoked`.
    pub status: String,
    /// How many nodes it makes at most.
    pub uses: u32,
    /// The nodes that it made.
    pub nodes: Vec<NodeId>,
    /// Who may redeem it.
    pub expect: Expect,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: String,
    /// When it ends.
    pub expires_at: String,
    /// When it was revoked, and by whom or why.
    pub revoked: Option<String>,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision
    /// is the answer's.
    pub revision: u64,
}

/// The methods, in the order of their documentation.
pub(crate) fn methods() -> Vec<Method> {
    let on = |value: &Value| {
        let text = |field| value.get(field).and_then(Value::as_str).unwrap_or_default();
        Resource::of_tenant("join-token", text("token"), text("tenant"))
    };
    vec![
        Method::mutation("joinTokens", "create", "compute:join-tokens:write", create)
            .summary("Makes a token with which a machine can join; the caller keeps its secret.")
            .rest(Verb::Post, "/join-tokens")
            .on(on),
        Method::listing("joinTokens", "list", "compute:join-tokens:read", list)
            .summary("Lists the join tokens, without secrets.")
            .rest(Verb::Get, "/join-tokens")
            .watched(Watched::Records)
            .on(on),
        Method::mutation("joinTokens", "revoke", "compute:join-tokens:write", revoke)
            .summary("Takes a join token back; nodes that it made stay.")
            .rest(Verb::Delete, "/join-tokens/{token}")
            .on(on),
    ]
}

fn create(cx: &MethodContext, tx: &mut Tx, input: CreateToken) -> Result<TokenRecord> {
    cx.context.ports.tenant_open(tx, input.tenant.as_deref().unwrap_or_default())?;
    let clock = tx.view().clock();
    let id = token::mint_id(&*cx.context.rt);
    if tx.get(&JOIN_TOKENS, &id)?.is_some() {
        return Err(Error::new(Code::Conflict, "a new id was taken already").hint("try again"));
    }
    let ttl_ms = input.ttl_seconds.saturating_mul(1000);
    let row = TokenRow {
        id: id.clone(),
        secret_sha256: input.secret_sha256,
        pool: input.pool,
        tenant: input.tenant.unwrap_or_default(),
        uses: input.uses,
        expect: input.expect.unwrap_or_default(),
        created_by: cx.principal.name.clone(),
        created_at_ms: clock.wall_ms,
        ttl_ms,
        expires_ms: clock.now_ms.saturating_add(ttl_ms),
        revoked: None,
        redemptions: vec![],
        replay: None,
    };
    tx.put(&JOIN_TOKENS, &id, &row)?;
    forget_old(tx, &id)?;
    Ok(record(&row, clock.now_ms, 0))
}

/// Forgets some tokens that ended long ago.
fn forget_old(tx: &mut Tx, newest: &str) -> Result<()> {
    let now_ms = tx.view().clock().now_ms;
    let view = tx.view();
    let mut old: Vec<String> = vec![];
    let behind = JOIN_TOKENS.page(view, newest.as_bytes(), None);
    for found in behind.chain(JOIN_TOKENS.page(view, &[], None)).take(LOOK_MAX) {
        let (id, found) = found?;
        let is_old = found.value.expires_ms.saturating_add(KEPT_MS) <= now_ms;
        if id != newest && is_old && old.len() < FORGET_MAX && !old.contains(&id) {
            old.push(id);
        }
    }
    for id in old {
        tx.delete(&JOIN_TOKENS, &id)?;
    }
    Ok(())
}

fn list<'a>(
    _cx: &'a MethodContext,
    view: &'a View,
    input: ListTokens,
    after: &str,
) -> Result<Records<'a, TokenRecord>> {
    let now_ms = view.clock().now_ms;
    Ok(Box::new(JOIN_TOKENS.behind(view, after).filter_map(move |row| match row {
        Ok((_, found)) if within(input.tenant.as_ref(), &found.value) => {
            Some(Ok(record(&found.value, now_ms, found.stamp.modified_rev)))
        }
        Ok(_) => None,
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

fn within(tenant: Option<&String>, row: &TokenRow) -> bool {
    tenant.is_none_or(|tenant| *tenant == row.tenant)
}

fn revoke(cx: &MethodContext, tx: &mut Tx, input: RevokeToken) -> Result<TokenRecord> {
    let found = tx.get_versioned(&JOIN_TOKENS, &input.token)?;
    let found = found.filter(|found| within(input.tenant.as_ref(), &found.value));
    let found = found.ok_or_else(|| {
        Error::not_found("join token", &input.token)
            .hint("`palisade token ls` shows all; a token's id is the part between its dots")
    })?;
    cx.check_if_match(found.stamp.modified_rev)?;
    let clock = tx.view().clock();
    let mut row = found.value;
    if row.revoked.is_some() {
        return Ok(record(&row, clock.now_ms, found.stamp.modified_rev));
    }
    row.revoked = Some(Revocation { by: cx.principal.name.clone(), at_ms: clock.wall_ms });
    tx.put(&JOIN_TOKENS, &row.id.clone(), &row)?;
    let data = json!({"token": row.id, "by": cx.principal.name});
    tx.publish("join.token.revoked", &row.tenant, format!("join-token/{}", row.id), &data);
    Ok(record(&row, clock.now_ms, 0))
}

fn record(row: &TokenRow, now_ms: u64, revision: u64) -> TokenRecord {
    let status = match () {
        () if row.revoked.is_some() => "revoked",
        () if token::is_used_up(row) => "used",
        () if now_ms >= row.expires_ms => "expired",
        () => "active",
    };
    TokenRecord {
        id: row.id.clone(),
        pool: row.pool.clone(),
        tenant: row.tenant.clone(),
        status: status.to_owned(),
        uses: row.uses,
        nodes: row.redemptions.iter().map(|redemption| redemption.node.clone()).collect(),
        expect: row.expect.clone(),
        created_by: row.created_by.clone(),
        created_at: rfc3339(row.created_at_ms),
        expires_at: rfc3339(row.created_at_ms.saturating_add(row.ttl_ms)),
        revoked: row
            .revoked
            .as_ref()
            .map(|revoked| format!("{} ({})", rfc3339(revoked.at_ms), revoked.by)),
        revision,
    }
}
