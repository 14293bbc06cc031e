//! Secrets for agents: opened when an agent asks for what its node's spec names, and sent over its session.
//!
//! # Invariants
//! - `SEC-11` A node gets what its spec names and nothing else, over a session that it has.

use std::collections::BTreeSet;

use palisade_contract::{
    Code, Error, NodeId, Result, SecretBytes, SecretRef, node_spec::NODE_SPECS, ports::Ports,
};
use palisade_proto::agent::{Secret, SecretUse, SecretsWanted};
use palisade_state::View;

/// What one agent may have asked for and not been answered yet; it asks again for the rest.
const WANTED_MAX: usize = 1024;

/// Bytes of a name or a tenant: no secret is called by a longer one.
const NAME_BYTES_MAX: usize = 63;

/// What an agent waits for: names, never what they hold.
#[derive(Debug, Default)]
pub(super) struct Wanted(BTreeSet<(String, String, u64)>);

impl Wanted {
    pub(super) fn ask(&mut self, wanted: SecretsWanted) {
        let room = WANTED_MAX.saturating_sub(self.0.len());
        let is_name = |one: &SecretUse| one.name.len().max(one.tenant.len()) <= NAME_BYTES_MAX;
        let asked = wanted.secrets.into_iter().filter(is_name).take(room);
        self.0.extend(asked.map(|one| (one.tenant, one.name, one.revision)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn next(&mut self) -> Option<SecretUse> {
        let (tenant, name, revision) = self.0.pop_first()?;
        Some(SecretUse { tenant, name, revision })
    }
}

/// The answer to an agent's question: what the secret holds, or why not.
pub(super) fn answer(ports: &Ports, view: &View, node: &NodeId, asked: SecretUse) -> Secret {
    match open(ports, view, node, &asked) {
        Ok(value) => Secret {
            value: value.reveal().to_vec(),
            asked: Some(asked),
            code: String::new(),
            message: String::new(),
        },
        Err(error) => {
            tracing::warn!(%node, secret = asked.name, tenant = asked.tenant, code = %error.code, reason = error.detail, "an agent does not get a secret");
            Secret {
                asked: Some(asked),
                value: vec![],
                code: error.code.to_string(),
                message: error.detail,
            }
        }
    }
}

/// `SEC-11`
fn open(ports: &Ports, view: &View, node: &NodeId, asked: &SecretUse) -> Result<SecretBytes> {
    let record = NODE_SPECS.get(view, &node.key())?;
    let instances = record.iter().flat_map(|record| record.value.spec.instances.values());
    let mut named = instances.flat_map(|instance| instance.secret_env.values());
    if !named.any(|one| one.tenant == asked.tenant && one.secret == asked.name) {
        let why = "the spec of this node, as this replica knows it, does not name the secret";
        return Err(Error::new(Code::AccessDenied, why));
    }
    let secret = SecretRef { secret: asked.name.clone() };
    ports.secrets.get()?.open(view, &asked.tenant, &secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_secret_can_be_called_is_not_looked_for() {
        let one = |tenant: &str, name: &str| SecretUse {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            revision: 1,
        };
        let mut wanted = Wanted::default();
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        wanted
            .ask(SecretsWanted { secrets: vec![one("", &long), one(&long, "db"), one("", "db")] });
        assert_eq!(wanted.next().map(|one| one.name), Some("db".to_owned()));
        assert!(wanted.is_empty());
    }
}
