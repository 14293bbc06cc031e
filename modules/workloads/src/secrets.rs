//! The secrets that workloads name: whether they are there, which version a node is told of, and who uses one.

use std::collections::{BTreeMap, BTreeSet};

use palisade_contract::{
    Code, Context, Error, Problems, Result, SecretRef,
    input::pointer_segment,
    secrets::{SecretUse, SecretUsers},
};
use palisade_state::{Tx, View};

use crate::{
    lookup::instances_of,
    records::{BY_SECRET, InstanceRow, VERSIONS, WORKLOADS, secret_key},
    spec::Spec,
};

/// Bytes of all secrets in one environment: Linux starts no process with much more (`execve(2)`, a quarter of the stack's limit).
const SECRETS_MAX: usize = 1024 * 1024;

/// Tells of each secret that a spec names and that is not there, and of more than a process can be given. Those that are belong to what the transaction has read.
///
/// # Errors
/// `UNSUPPORTED` where there are no secrets at all; a record cannot be read.
pub fn require(cx: &Context, tx: &mut Tx, spec: &Spec, problems: &mut Problems) -> Result<()> {
    let mut held = 0;
    for (variable, secret) in spec.task.secrets() {
        let port = cx.ports.secrets.filled().ok_or_else(|| {
            Error::new(Code::Unsupported, "this process knows no secrets: ask a replica")
        })?;
        match port.require(tx, &spec.tenant, secret) {
            Err(error) if error.code == Code::NotFound => {
                let at = format!("/task/env/{}/secret", pointer_segment(variable));
                problems.add(at, missing(&spec.tenant, &secret.secret));
            }
            other => other?,
        }
        let facts = port.facts(tx.view(), &spec.tenant, secret)?;
        held += facts.map_or(0, |facts| facts.bytes);
    }
    if held > SECRETS_MAX {
        let message = format!("the secrets in it hold {held} bytes, and {SECRETS_MAX} is the most");
        problems.add("/task/env", message);
    }
    Ok(())
}

fn missing(tenant: &str, name: &str) -> String {
    let (whose, flag) = match tenant {
        "" => ("the cluster".to_owned(), String::new()),
        tenant => (format!("tenant {tenant}"), format!(" --tenant {tenant}")),
    };
    format!(
        "{whose} has no secret {name:?}; `palisade secret set {name}{flag} --from-file FILE` makes it"
    )
}

/// What the variables of a spec that hold secrets mean at this view.
///
/// # Errors
/// A record cannot be read.
pub fn uses(cx: &Context, view: &View, spec: &Spec) -> Result<BTreeMap<String, SecretUse>> {
    let mut uses = BTreeMap::new();
    for (variable, secret) in spec.task.secrets() {
        let facts = match cx.ports.secrets.filled() {
            Some(port) => port.facts(view, &spec.tenant, secret)?,
            None => None,
        };
        let (version, revision) = facts.map_or((0, 0), |facts| (facts.version, facts.revision));
        let (tenant, secret) = (spec.tenant.clone(), secret.secret.clone());
        uses.insert(variable.clone(), SecretUse { tenant, secret, version, revision });
    }
    Ok(uses)
}

/// Who uses a secret: workloads whose newest spec names it, or that have an instance of one which does.
///
/// # Errors
/// A record cannot be read.
pub fn users(tx: &mut Tx, tenant: &str, secret: &SecretRef) -> Result<SecretUsers> {
    let mut naming: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for (key, _) in tx.by_index(&VERSIONS, BY_SECRET, &secret_key(tenant, &secret.secret))? {
        let Some((workload, version)) = key.split_once('/') else { continue };
        naming.entry(workload.to_owned()).or_default().extend(version.parse::<u64>());
    }
    let mut users = SecretUsers::default();
    for (id, versions) in naming {
        let Some(workload) = tx.get(&WORKLOADS, &id)? else { continue };
        let rows = instances_of(tx.view(), &workload.id)?;
        let uses = |row: &&InstanceRow| row.is_live() && versions.contains(&row.version);
        let rows: Vec<&InstanceRow> = rows.iter().filter(uses).collect();
        if rows.is_empty() && !versions.contains(&workload.version) {
            continue;
        }
        users.by.insert(format!("workload/{}", workload.spec.name));
        users.nodes.extend(rows.iter().filter_map(|row| row.node().cloned()));
    }
    Ok(users)
}
