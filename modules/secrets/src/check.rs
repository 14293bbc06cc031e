//! What an operator could mend about secrets and their keys.

use palisade_contract::{Context, Finding, Result, Severity};
use palisade_state::View;

use crate::{
    keyring::file_name,
    records::{KeyRow, KeyState, RingRow, sealed_with},
    rotation::{holders, voters},
};

/// Logical milliseconds for which a rotation may go on before it is told.
const SLOW_MS: u64 = 60 * 1000;

pub(crate) fn findings(cx: &Context, view: &View) -> Result<Vec<Finding>> {
    let ring = RingRow::of(view)?;
    let mut found = vec![];
    let Some(keys) = cx.ports.secret_keys.filled() else { return Ok(found) };
    // Nothing is sealed with one that is pending: for that one, `secrets.rotation` says who is waited for.
    let opens = |key: &&KeyRow| key.is_needed() && key.state != KeyState::Pending;
    for key in ring.keys.iter().filter(opens).filter(|key| !keys.has(&key.id)) {
        found.push(Finding {
            check: "secrets.key-lacking".to_owned(),
            severity: Severity::Error,
            message: format!(
                "replica {} lacks the key of secrets {} (version {}): it opens and seals nothing with it",
                cx.store.replica(),
                key.id,
                key.version
            ),
            fix: format!(
                "it asks the other replicas by itself; if it goes on, copy pki/{} (mode 0600) from another replica into \
                 its directory and start it again",
                file_name(&key.id)
            ),
            count: None,
        });
    }
    unfinished(cx, view, &ring, &mut found)?;
    lost(view, &ring, &mut found)?;
    Ok(found)
}

fn unfinished(cx: &Context, view: &View, ring: &RingRow, found: &mut Vec<Finding>) -> Result<()> {
    let is_slow =
        |key: &&KeyRow| view.clock().now_ms.saturating_sub(key.made_at_logical_ms) >= SLOW_MS;
    if let Some(pending) = ring.in_state(KeyState::Pending).filter(is_slow) {
        let holders = holders(view, &pending.id)?;
        let lacking: Vec<String> = voters(cx)
            .into_iter()
            .filter(|voter| !holders.contains(voter))
            .map(|voter| voter.to_string())
            .collect();
        found.push(Finding {
            check: "secrets.rotation".to_owned(),
            severity: Severity::Warning,
            message: format!(
                "key {} of secrets is not used yet: replica {} does not hold it",
                pending.version,
                lacking.join(", ")
            ),
            fix: "start it, or take it out with `palisade cluster remove` if it is gone for good"
                .to_owned(),
            count: Some(lacking.len() as u64),
        });
    }
    let retiring = ring.in_state(KeyState::Retiring);
    if let (Some(retiring), Some(_)) = (retiring, ring.in_state(KeyState::Current).filter(is_slow))
    {
        let left = sealed_with(view)?.get(&retiring.id).copied().unwrap_or(0);
        found.push(Finding {
            check: "secrets.rotation".to_owned(),
            severity: Severity::Warning,
            message: format!(
                "{left} secrets are still sealed with key {}, which is to be dropped",
                retiring.version
            ),
            fix: "it goes on by itself; if the number stays, the replicas' logs say why (`secrets.keys`)".to_owned(),
            count: Some(left),
        });
    }
    Ok(())
}

fn lost(view: &View, ring: &RingRow, found: &mut Vec<Finding>) -> Result<()> {
    let is_known = |id: &str| ring.version_of(id).is_some_and(KeyRow::is_needed);
    let counts = sealed_with(view)?;
    let lost: u64 = counts.iter().filter(|(id, _)| !is_known(id)).map(|(_, count)| count).sum();
    if lost > 0 {
        found.push(Finding {
            check: "secrets.lost".to_owned(),
            severity: Severity::Error,
            message: format!("{lost} secrets are sealed with keys that this cluster does not have"),
            fix: "set each again with `palisade secret set`: what they held is not in a fork, or in a backup without its keys"
                .to_owned(),
            count: Some(lost),
        });
    }
    Ok(())
}
