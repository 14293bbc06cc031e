//! What secrets hold, on its way into a workload's environment: from process to process by their environments, which only their user and
//! root can read, and never through a file.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt, fs,
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    sync::Arc,
};

use super::{Problem, RunConfig, RunState};

/// Before the name of a variable on its way, so that none of them (`LD_PRELOAD`) means anything to the agent's own processes.
const PREFIX: &str = "PALISADE_SECRET_";

/// What a secret holds. Not shown by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(Arc<[u8]>);

impl SecretValue {
    /// These bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.into())
    }

    /// The bytes. Whoever takes them keeps `SEC-12`.
    #[must_use]
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }
}

/// `SEC-12`
impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

/// Refuses what cannot be in an environment.
pub(super) fn check(secrets: &BTreeMap<String, SecretValue>) -> Result<(), Problem> {
    match secrets.iter().find(|(_, value)| value.reveal().contains(&0)) {
        None => Ok(()),
        Some((variable, _)) => Err(Problem::new(
            "SECRET_NOT_USABLE",
            format!("what {variable} is to hold has a zero byte, which no environment can hold"),
        )),
    }
}

/// The variables with which the shim is started.
pub(super) fn for_shim(
    secrets: &BTreeMap<String, SecretValue>,
) -> impl Iterator<Item = (String, OsString)> {
    secrets.iter().map(|(variable, value)| {
        (format!("{PREFIX}{variable}"), OsStr::from_bytes(value.reveal()).to_owned())
    })
}

/// The variables of a run that hold secrets, as this process was given them by the shim.
pub(crate) fn given(config: &RunConfig) -> Result<BTreeMap<String, OsString>, Problem> {
    collect(config, |variable| std::env::var_os(format!("{PREFIX}{variable}")))
}

/// The same of a run that goes on, from its shim, or from the workload itself when its shim was replaced.
pub(crate) fn of_run(
    config: &RunConfig,
    state: Option<&RunState>,
) -> Result<BTreeMap<String, OsString>, Problem> {
    if config.secret_env.is_empty() {
        return Ok(BTreeMap::new());
    }
    let state = state.filter(|state| state.run == config.run);
    let ids = state.into_iter().flat_map(|state| [&state.shim, &state.process]);
    let environments: Vec<Vec<u8>> = ids
        .filter(|id| id.alive())
        .filter_map(|id| fs::read(format!("/proc/{}/environ", id.pid)).ok())
        .collect();
    collect(config, |variable| {
        let found = |name: &str| environments.iter().find_map(|all| find(all, name));
        found(&format!("{PREFIX}{variable}")).or_else(|| found(variable))
    })
}

fn collect(
    config: &RunConfig,
    find: impl Fn(&str) -> Option<OsString>,
) -> Result<BTreeMap<String, OsString>, Problem> {
    let one = |variable: &String| match find(variable) {
        Some(value) => Ok((variable.clone(), value)),
        None => Err(Problem::new(
            "SECRET_MISSING",
            format!("what the variable {variable} is to hold did not come with it"),
        )),
    };
    config.secret_env.iter().map(one).collect()
}

/// The value of a variable in an environment as `/proc` shows it.
fn find(environment: &[u8], name: &str) -> Option<OsString> {
    environment.split(|byte| *byte == 0).find_map(|pair| {
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(OsString::from_vec(value.to_vec()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environment = b"AB=1\0B=two=2\0C=\0";
        assert_eq!(find(environment, "B").unwrap(), "two=2");
        assert_eq!(find(environment, "C").unwrap(), "");
        assert_eq!(find(environment, "A"), None);
    }
}
