//! `palisade agent plan`: what convergence would do now, from what is on disk.

use std::{fmt::Write as _, path::Path, time::Duration};

use crate::{
    config::{Config, ConfigError, Layout},
    converge::{Observed, Policy, Seen, Track, plan},
    driver::{Problem, Process, ProcessDriver, ShimCommand},
    fence::Fence,
    identity::{Identity, IdentityError},
    spec::{FileSpecStore, SpecError, instance},
};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The identity cannot be read.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The stored spec cannot be read.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The instances cannot be listed.
    #[error("cannot list the instances")]
    Driver(#[source] Problem),
}

/// What the agent in `data_dir` would do, as lines for a person. Changes nothing. The back-off
/// that a running agent has in its memory is not known here.
///
/// # Errors
/// When what is on disk cannot be read.
pub fn describe(data_dir: &Path) -> Result<String, PlanError> {
    let config = Config::load(data_dir)?;
    let layout = Layout::new(&config.data_dir);
    let mut text = String::new();
    match Identity::load(data_dir)? {
        Some(identity) => {
            let _ = writeln!(text, "node        {} ({})", identity.node_name, identity.node_id);
        }
        None => text.push_str("node        not joined\n"),
    }
    let Some(spec) = FileSpecStore::new(layout.spec()).read()? else {
        text.push_str("spec        none accepted yet: nothing is started and nothing is stopped\n");
        return Ok(text);
    };
    let _ = writeln!(
        text,
        "spec        generation {}, fence {}, {} instances",
        spec.generation,
        Fence::of(spec.fence.as_ref()),
        spec.instances.len()
    );
    let driver = ProcessDriver::new(layout.instances(), ShimCommand::current());
    let mut observed = Observed::new();
    for one in driver.look().map_err(PlanError::Driver)? {
        let mut track = Track::default();
        if let Some(wanted) = instance(&spec, &one.id) {
            track.follow(wanted.spec_version);
            track.saw(&one, &Policy::of(wanted), Duration::ZERO);
            track.next_try = None;
        }
        let state = match &one.process {
            Process::Prepared => "prepared, never started".to_owned(),
            Process::Running { pid, .. } => format!("running, process {pid}"),
            Process::Ended(end) => format!("ended, code {}, signal {}", end.code, end.signal),
        };
        let _ = writeln!(text, "seen        {}  {state}, run {}", one.id, one.run);
        observed.insert(one.id.clone(), Seen { instance: Some(one), track });
    }
    let actions = plan(Some(&spec), &observed, Duration::ZERO);
    if actions.is_empty() {
        text.push_str("plan        nothing to do\n");
    }
    for action in actions {
        let _ = writeln!(text, "plan        {action}");
    }
    Ok(text)
}
