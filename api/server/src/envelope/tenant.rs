//! Whose things a call is about, and whether their tenant lets its people write.
//!
//! # Invariants
//! - `TEN-9` Who acts by a right that he holds in a tenant writes nothing while it is not active, whatever module the
//!   method is of.

use palisade_contract::{Context, MethodKind, Principal, Result};
use palisade_state::{Tx, View};
use serde_json::Value;

use super::Route;

/// The field of an input that says whose things it is about.
const TENANT: &str = "tenant";

/// The input of somebody who is bound to a tenant: that one is meant where none is named.
pub(crate) fn within(route: &Route, mut input: Value, principal: &Principal) -> Value {
    if !principal.tenant.is_empty()
        && route.fields.contains_key(TENANT)
        && let Value::Object(fields) = &mut input
    {
        let named = fields.entry(TENANT).or_insert(Value::Null);
        if named.is_null() {
            *named = principal.tenant.clone().into();
        }
    }
    input
}

/// Whether a method of this kind may be called now, as far as that tenant goes.
///
/// # Errors
/// `INVALID_STATE`, or there is no such tenant.
pub(super) fn lets(context: &Context, kind: MethodKind, tenant: &str, view: &View) -> Result<()> {
    match kind {
        MethodKind::Query | MethodKind::Stream => Ok(()),
        MethodKind::Mutation | MethodKind::Destructive => {
            context.ports.tenant_writable(&mut Tx::new(view.clone()), tenant)
        }
    }
}
