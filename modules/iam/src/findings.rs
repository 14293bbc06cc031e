//! What an operator could mend.

use palisade_contract::{Finding, Result, Severity};
use palisade_state::View;

use crate::{catalogue::Catalogue, records::CUSTOM_ROLES, ways};

/// Logical milliseconds before the end of the last way in at which to say so.
const EXPIRING_MS: u64 = 7 * 24 * 60 * 60 * 1000;

/// All of it.
pub(crate) fn all(catalogue: &Catalogue, view: &View) -> Result<Vec<Finding>> {
    let mut all = admins(view)?;
    all.extend(roles(catalogue, view)?);
    Ok(all)
}

fn admins(view: &View) -> Result<Vec<Finding>> {
    let now_ms = view.clock().now_ms;
    let admins = ways::all(view)?;
    let finding = |check: &str, severity, message: String| {
        Finding {
        check: check.to_owned(),
        severity,
        message,
        fix: "make one that lasts: `palisade api-token create NAME --role cluster-admin`; if no token is left, \
              with a certificate: `palisade principal certify admin --no-enrol`, on the machine of a replica"
            .to_owned(),
        count: None,
    }
    };
    let lasting = admins
        .iter()
        .any(|row| row.expires_ms.is_none_or(|at| at.saturating_sub(now_ms) > EXPIRING_MS));
    Ok(match admins.len() {
        0 => vec![finding(
            "api-tokens.no-admin",
            Severity::Warning,
            "no valid API token has the role cluster-admin".to_owned(),
        )],
        _ if !lasting => vec![finding(
            "api-tokens.admin-expiring",
            Severity::Warning,
            "every API token with the role cluster-admin ends within 7 days".to_owned(),
        )],
        _ => vec![],
    })
}

/// Roles that allow what nobody can do: a plugin has gone, or another release has other actions.
fn roles(catalogue: &Catalogue, view: &View) -> Result<Vec<Finding>> {
    let mut all = vec![];
    for (name, found) in CUSTOM_ROLES.all(view)? {
        let unknown = found.value.actions.iter().find(|action| catalogue.wrong(action).is_some());
        let Some(action) = unknown else { continue };
        all.push(Finding {
            check: "roles.unknown-action".to_owned(),
            severity: Severity::Info,
            message: format!("role {name} allows {action}, which no module of this replica knows"),
            fix: format!("say what it is to allow: `palisade role update {name} --action …`"),
            count: None,
        });
    }
    Ok(all)
}
