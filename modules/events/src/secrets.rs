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
/// One is not there, cannot be opened on this replica, or is no signing secret.
pub(crate) fn keys(cx: &Context, view: &View, row: &SubscriptionRow) -> Result<Vec<SigningKey>> {
    let now_ms = view.clock().now_ms;
    let used = row.signing.iter().filter(|signing| signing.is_used(now_ms));
    let open = |signing: &SigningRow| {
        let secret = port(cx)?.open(view, &row.tenant, &signing.reference())?;
        SigningKey::of(&secret).ok_or_else(|| unusable(&signing.secret))
    };
    used.map(open).collect()
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
        Named::Reference(name) => {
            let signing = SigningRow { secret: name.to_owned(), own: false, until_ms: None };
            secrets.require(tx, &row.tenant, &signing.reference())?;
            let content = secrets.open(tx.view(), &row.tenant, &signing.reference())?;
            SigningKey::of(&content).ok_or_else(|| {
                let problem = Problem {
                    pointer: "/secretRef".to_owned(),
                    message: format!("secret {name} {RULE}"),
                };
                Error::invalid(vec![problem])
            })?;
            signing
        }
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
