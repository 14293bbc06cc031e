//! The secrets that subscriptions sign with: those that others set, and those that are kept for one alone.

use palisade_contract::{
    Code, Context, Error, Problem, Result, SecretBytes,
    secrets::{KeptSecret, Secrets},
};
use palisade_state::{Tx, View};

use crate::{
    records::{SigningRow, SubscriptionRow},
    signature::{RULE, SigningKey},
};

/// What a caller names to sign with.
#[derive(Clone, Copy)]
pub(crate) enum Named<'a> {
    /// A secret of the same tenant.
    Reference(&'a str),
    /// One that it made.
    Own(&'a str),
}

fn port(cx: &Context) -> Result<&dyn Secrets> {
    let port = cx.ports.secrets.filled().map(|port| &**port);
    port.ok_or_else(|| {
        Error::new(Code::Unsupported, "this process keeps no secrets: ask a replica")
    })
}

fn unusable(name: &str) -> Error {
    Error::new(Code::InvalidState, format!("secret {name} cannot sign: it {RULE}"))
        .hint("set it anew with `palisade secret set`, or have one made with `palisade subscription rotate`")
}

/// `EVT-1` The keys that sign what a subscription is sent now.
///
/// # Errors
/// One is not there, cannot be opened on this replica, or is no signing secret. Of one that was replaced only the second counts:
/// with what is no signing secret any more nobody signs.
pub(crate) fn keys(cx: &Context, view: &View, row: &SubscriptionRow) -> Result<Vec<SigningKey>> {
    let now_ms = view.clock().now_ms;
    let secrets = port(cx)?;
    let mut keys = vec![];
    for signing in row.signing.iter().filter(|signing| signing.is_used(now_ms)) {
        let opened = secrets.open(view, &row.tenant, &signing.reference());
        let key = opened
            .and_then(|secret| SigningKey::of(&secret).ok_or_else(|| unusable(&signing.secret)));
        match key {
            Ok(key) => keys.push(key),
            Err(error) if signing.until_ms.is_some() && is_over(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(keys)
}

/// Whether it is no matter of this replica and this moment that a secret does not sign.
fn is_over(error: &Error) -> bool {
    matches!(error.code, Code::InvalidState | Code::NotFound)
}

/// Whether what a caller names is the newest of a subscription's secrets already.
///
/// # Errors
/// It is no signing secret, or a record cannot be read.
pub(crate) fn signs_already(
    cx: &Context,
    tx: &mut Tx,
    row: &SubscriptionRow,
    named: Named<'_>,
) -> Result<bool> {
    let Named::Reference(name) = named else { return Ok(false) };
    if row.signing.first().is_none_or(|newest| newest.own || newest.secret != name) {
        return Ok(false);
    }
    referred(cx, tx, row, name)?;
    Ok(true)
}

/// A secret that others set, if it can sign.
fn referred(cx: &Context, tx: &mut Tx, row: &SubscriptionRow, name: &str) -> Result<SigningRow> {
    let signing = SigningRow { secret: name.to_owned(), own: false, until_ms: None };
    let secrets = port(cx)?;
    secrets.require(tx, &row.tenant, &signing.reference())?;
    let content = secrets.open(tx.view(), &row.tenant, &signing.reference())?;
    SigningKey::of(&content).map(|_| signing).ok_or_else(|| {
        let message = format!("secret {name} {RULE}");
        Error::invalid(vec![Problem { pointer: "/secretRef".to_owned(), message }])
    })
}

/// Makes what a caller names the newest of a subscription's secrets.
///
/// # Errors
/// It is not there, is no signing secret, or cannot be kept.
pub(crate) fn sign_with(
    cx: &Context,
    tx: &mut Tx,
    row: &mut SubscriptionRow,
    named: Named<'_>,
    by: &str,
) -> Result<()> {
    let secrets = port(cx)?;
    let newest = match named {
        Named::Reference(name) => referred(cx, tx, row, name)?,
        Named::Own(text) => {
            row.next_secret += 1;
            let name = format!("subscription.{}.{}", row.name, row.next_secret);
            let content = SecretBytes::new(text.as_bytes().to_vec());
            let (tenant, content) = (row.tenant.as_str(), &content);
            secrets.keep(tx, &KeptSecret { tenant, name: &name, content, by })?;
            SigningRow { secret: name, own: true, until_ms: None }
        }
    };
    row.signing.insert(0, newest);
    Ok(())
}

/// Takes those of a subscription's secrets away that are not to stay.
///
/// # Errors
/// A record cannot be read.
pub(crate) fn retain(
    cx: &Context,
    tx: &mut Tx,
    row: &mut SubscriptionRow,
    stays: impl Fn(&SigningRow) -> bool,
) -> Result<()> {
    for gone in row.signing.iter().filter(|signing| !stays(signing) && signing.own) {
        port(cx)?.discard(tx, &row.tenant, &gone.secret)?;
    }
    row.signing.retain(stays);
    Ok(())
}
