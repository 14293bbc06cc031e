//! The methods `secrets.*` and `secretKeys.*`. None of them answers what a secret holds.
//!
//! # Invariants
//! - `SEC-5` The replica that takes a value seals it before anything is proposed; what is proposed, answered, published and recorded
//!   has the name and the version alone.
//! - `SEC-6` A secret that is used is not removed.

use std::{collections::BTreeSet, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use palisade_contract::{
    Check, Code, Error, Method, MethodContext, Problems, Resource, Result, SecretBytes, SecretRef,
    Verb, Watched,
    id::{NAME_RULE, is_name},
    method::Records,
    secrets::{SECRET_BYTES_MAX, SecretUsers},
    time::rfc3339,
};
use palisade_state::{Tx, Versioned, View};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    Modules,
    port::{current, keys, not_found},
    records::{RingRow, SECRETS, SecretRow, count_of},
    rotation,
    spread::SPREAD_KIND,
};

/// Secrets that one tenant, or the cluster itself, has at most.
pub const SECRETS_MAX: usize = 256;

/// Input of `secrets.set`. It has no `Debug`: `SEC-1`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetSecret {
    /// Its name, unique within its tenant.
    pub secret: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// What it holds, as text. This or `base64`. It is never answered.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    pub value: Option<String>,
    /// What it holds, as bytes.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    pub base64: Option<String>,
}

impl SetSecret {
    /// What it is to hold; `None`: it is not said, or not in one way.
    fn content(&self) -> Option<Vec<u8>> {
        match (&self.value, &self.base64) {
            (Some(text), None) => Some(text.clone().into_bytes()),
            (None, Some(text)) => STANDARD.decode(text).ok(),
            _ => None,
        }
    }
}

impl Check for SetSecret {
    fn check(&self, at: &str, problems: &mut Problems) {
        if !is_name(&self.secret) {
            problems.add(format!("{at}/secret"), format!("must have {NAME_RULE}"));
        }
        let field = if self.base64.is_some() { "base64" } else { "value" };
        match self.content() {
            None if self.value.is_some() == self.base64.is_some() => {
                problems.add(at, "give one of value and base64");
            }
            None => problems.add(format!("{at}/base64"), "must be base64, with padding"),
            Some(content) if content.is_empty() => {
                problems.add(format!("{at}/{field}"), "must not be empty");
            }
            Some(content) if content.len() > SECRET_BYTES_MAX => {
                let rule = format!("must have at most {SECRET_BYTES_MAX} bytes");
                problems.add(format!("{at}/{field}"), rule);
            }
            Some(_) => {}
        }
    }
}

/// Input of `secrets.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListSecrets {
    /// Only those of this tenant; empty: the cluster's.
    #[serde(default)]
    pub tenant: Option<String>,
}

impl Check for ListSecrets {}

/// Input of the methods on one secret.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneSecret {
    /// Its name.
    pub secret: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
}

impl Check for OneSecret {}

/// A secret, without what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretRecord {
    /// `<tenant>/<name>`.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whose it is; empty: the cluster's.
    pub tenant: String,
    /// 1, 2, 3 …
    pub version: u64,
    /// The version of the cluster's key that it is sealed with; 0: of one that is not known any more.
    pub key_version: u64,
    /// How many bytes it holds.
    pub bytes: u64,
    /// Who uses it.
    pub used_by: BTreeSet<String>,
    /// Who set this version.
    pub set_by: String,
    /// When its first version was set.
    pub created_at: String,
    /// When this version was set.
    pub set_at: String,
    /// The revision of its record; 0 in the answer to the call that changes it, whose own revision is the answer's.
    pub revision: u64,
}

/// The methods, in the order of their documentation.
pub(crate) fn methods(modules: &Arc<Modules>) -> Vec<Method> {
    let text = |value: &Value, field: &str| {
        value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let on = move |value: &Value| {
        Resource::of_tenant("secret", &text(value, "secret"), &text(value, "tenant"))
    };
    let (read, write) = ("compute:secrets:read", "compute:secrets:write");
    let known = || modules.clone();
    let (of_set, of_list, of_get, of_remove) = (known(), known(), known(), known());
    let mut methods = vec![
        Method::mutation("secrets", "set", write, move |cx: &MethodContext, tx: &mut Tx, input| {
            set(&of_set, cx, tx, input)
        })
        .summary("Makes a secret, or a new version of it. What it holds is never answered.")
        .rest(Verb::Put, "/secrets/{secret}")
        .secret(&["value", "base64"])
        .on(on),
        Method::listing("secrets", "list", read, {
            move |_: &MethodContext, view, input, after: &str| {
                list(of_list.clone(), view, input, after)
            }
        })
        .summary("Lists the secrets, without what they hold.")
        .rest(Verb::Get, "/secrets")
        .watched(Watched::Records)
        .on(on),
        Method::query("secrets", "get", read, move |_: &MethodContext, view: &View, input| {
            get(&of_get, view, input)
        })
        .summary("Shows a secret, without what it holds.")
        .rest(Verb::Get, "/secrets/{secret}")
        .on(on),
        Method::mutation(
            "secrets",
            "remove",
            write,
            move |cx: &MethodContext, tx: &mut Tx, input| remove(&of_remove, cx, tx, input),
        )
        .summary("Removes a secret that nothing refers to.")
        .rest(Verb::Delete, "/secrets/{secret}")
        .destructive()
        .on(on),
    ];
    methods.extend(rotation::methods());
    methods
}

fn record(modules: &Modules, view: &View, row: &SecretRow, revision: u64) -> Result<SecretRecord> {
    let key = RingRow::of(view)?.version_of(&row.key).map_or(0, |key| key.version);
    Ok(SecretRecord {
        id: row.id(),
        name: row.name.clone(),
        tenant: row.tenant.clone(),
        version: row.version,
        key_version: key,
        bytes: row.bytes as u64,
        used_by: users(modules, &mut Tx::new(view.clone()), row)?.by,
        set_by: row.set_by.clone(),
        created_at: rfc3339(row.created_at_ms),
        set_at: rfc3339(row.set_at_ms),
        revision,
    })
}

fn users(modules: &Modules, tx: &mut Tx, row: &SecretRow) -> Result<SecretUsers> {
    modules.users(tx, &row.tenant, &SecretRef { secret: row.name.clone() })
}

fn set(
    modules: &Modules,
    cx: &MethodContext,
    tx: &mut Tx,
    input: SetSecret,
) -> Result<SecretRecord> {
    let content = SecretBytes::new(input.content().unwrap_or_default());
    let key = SecretRow::key_of(&input.tenant, &input.secret);
    let before = tx.get_versioned(&SECRETS, &key)?;
    cx.check_if_match(before.as_ref().map_or(0, |before| before.stamp.modified_rev))?;
    cx.context.ports.tenant_open(tx, &input.tenant)?;
    let view = tx.view().clone();
    if before.is_none() && count_of(&view, &input.tenant) >= SECRETS_MAX {
        return Err(too_many(&input.tenant));
    }
    let sealer = current(tx)?;
    let bytes = content.reveal().len();
    let (version, created_at_ms) =
        before.map_or((1, view.clock().wall_ms), |b| (b.value.version + 1, b.value.created_at_ms));
    let row = SecretRow {
        name: input.secret,
        tenant: input.tenant,
        version,
        set_after: view.revision(),
        key: String::new(),
        nonce: String::new(),
        sealed: String::new(),
        bytes,
        set_by: cx.principal.name.clone(),
        created_at_ms,
        set_at_ms: view.clock().wall_ms,
    };
    // SEC-5
    let sealed = keys(&cx.context)?.seal(&sealer, &row.bound_to(&view, &sealer), &content)?;
    let row = row.with(&sealer, &sealed);
    tx.put(&SECRETS, &key, &row)?;
    told(cx, tx, "secret.set", &row);
    tx.enqueue(SPREAD_KIND, &key)?;
    record(modules, &view, &row, 0)
}

pub(crate) fn too_many(tenant: &str) -> Error {
    let whose =
        if tenant.is_empty() { "the cluster".to_owned() } else { format!("tenant {tenant}") };
    let detail = format!("{whose} has {SECRETS_MAX} secrets, and no more are kept of it");
    let error = Error::new(Code::QuotaExceeded, detail);
    error.hint("remove some that nothing refers to: `palisade secret ls` shows who uses each")
}

fn told(cx: &MethodContext, tx: &mut Tx, kind: &str, row: &SecretRow) {
    let data = json!({
        "secret": row.name, "tenant": row.tenant, "version": row.version, "by": cx.principal.name,
    });
    tx.publish(kind, &row.tenant, format!("secret/{}", row.name), &data);
}

fn list<'a>(
    modules: Arc<Modules>,
    view: &'a View,
    input: ListSecrets,
    after: &str,
) -> Result<Records<'a, SecretRecord>> {
    let wanted = move |row: &SecretRow| input.tenant.as_ref().is_none_or(|t| *t == row.tenant);
    Ok(Box::new(SECRETS.behind(view, after).filter_map(move |found| match found {
        Ok((_, Versioned { value, stamp })) => {
            wanted(&value).then(|| record(&modules, view, &value, stamp.modified_rev))
        }
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

fn get(modules: &Modules, view: &View, input: OneSecret) -> Result<SecretRecord> {
    let found = SECRETS.get(view, &SecretRow::key_of(&input.tenant, &input.secret))?;
    let found = found.ok_or_else(|| not_found(&input.secret))?;
    record(modules, view, &found.value, found.stamp.modified_rev)
}

fn remove(
    modules: &Modules,
    cx: &MethodContext,
    tx: &mut Tx,
    input: OneSecret,
) -> Result<SecretRecord> {
    let key = SecretRow::key_of(&input.tenant, &input.secret);
    let found = tx.get_versioned(&SECRETS, &key)?.ok_or_else(|| not_found(&input.secret))?;
    cx.check_if_match(found.stamp.modified_rev)?;
    // SEC-6: who begins to use it meanwhile changes what was read here.
    let used = users(modules, tx, &found.value)?.by;
    if !used.is_empty() {
        let all: Vec<&str> = used.iter().map(String::as_str).take(10).collect();
        let more = if used.len() > all.len() { " and others" } else { "" };
        let detail = format!("secret {} is used by {}{more}", input.secret, all.join(", "));
        return Err(Error::new(Code::InvalidState, detail)
            .hint("apply them without it, or remove them, first"));
    }
    tx.delete(&SECRETS, &key)?;
    told(cx, tx, "secret.removed", &found.value);
    record(modules, &tx.view().clone(), &found.value, 0)
}
