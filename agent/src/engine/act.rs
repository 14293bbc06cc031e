//! Performing actions: each in a task of its own, with its result back as an input.

use std::time::Duration;

use futures::future::BoxFuture;

use super::{Engine, Input, driver_name};
use crate::{
    converge::{Action, KILL_AGAIN, Policy},
    driver::{Problem, Start},
};

type Work = BoxFuture<'static, Result<(), Problem>>;

impl Engine {
    /// Begins an action; its result arrives as [`Input::Done`].
    pub(super) fn perform(&mut self, action: Action, now: Duration) {
        match &action {
            Action::Wait { .. } => return,
            Action::Refuse { id, problem } => return self.refuse(id, problem),
            _ => {}
        }
        let id = action.id().to_owned();
        let work = match self.work(&action, now) {
            Ok(work) => work,
            Err(problem) => {
                self.failed(&id, problem, now);
                return;
            }
        };
        tracing::info!(%action, "acting");
        self.observed.entry(id.clone()).or_default().track.busy = true;
        let inputs = self.to_self.clone();
        let task = async move {
            let problem = work.await.err();
            let _ = inputs.send(Input::Done(id, problem)).await;
        };
        self.parts.rt.spawn("act on an instance", Box::pin(task));
    }

    fn work(&mut self, action: &Action, now: Duration) -> Result<Work, Problem> {
        let id = action.id();
        if let (Action::Start { .. }, Some(spec)) = (action, self.instance_spec(id)) {
            // The spec decides for a new run, whoever ran the one before.
            let name = driver_name(spec);
            self.driver_of.insert(id.to_owned(), name);
        }
        let driver = self.driver(id).ok_or_else(|| {
            let name = self.driver_of.get(id).map_or("", String::as_str);
            Problem::new("DRIVER_UNKNOWN", format!("this node has no driver `{name}`"))
        })?;
        match action {
            Action::Start { run, .. } => {
                let spec = self.instance_spec(id).cloned();
                let spec = spec.ok_or_else(|| Problem::new("NOT_WANTED", "it is not wanted"))?;
                let before = self.observed.get(id).and_then(|seen| seen.instance.as_ref());
                let restarts = match before {
                    Some(before) if before.spec_version == spec.spec_version => {
                        // A stop that was asked for is no restart.
                        let by_itself = u32::from(before.stop_asked.is_none());
                        before.restarts.saturating_add(by_itself)
                    }
                    _ => 0,
                };
                let node = self.parts.node.clone();
                let secrets = self.secrets.of(&spec);
                Ok(driver.start(Start { spec, run: *run, restarts, node, secrets }))
            }
            Action::Stop { signal, grace, .. } => {
                self.observed.entry(id.to_owned()).or_default().track.kill_at = Some(now + *grace);
                Ok(driver.stop(id, *signal, *grace))
            }
            Action::Kill { .. } => {
                let again = now + KILL_AGAIN;
                self.observed.entry(id.to_owned()).or_default().track.kill_at = Some(again);
                Ok(driver.kill(id))
            }
            Action::Remove { .. } => Ok(driver.remove(id)),
            Action::Wait { .. } | Action::Refuse { .. } => Ok(Box::pin(async { Ok(()) })),
        }
    }

    /// The action is over: what is there now, and what went wrong.
    pub(super) async fn done(&mut self, id: &str, problem: Option<Problem>, now: Duration) {
        if let Some(seen) = self.observed.get_mut(id) {
            seen.track.busy = false;
        }
        let Some(driver) = self.driver(id) else { return };
        match driver.inspect(id).await {
            Ok(instance) => self.saw(driver.name(), id.to_owned(), instance, now),
            Err(problem) => tracing::error!(instance = id, %problem, "cannot inspect"),
        }
        if let Some(problem) = problem {
            self.failed(id, problem, now);
        }
    }

    fn failed(&mut self, id: &str, problem: Problem, now: Duration) {
        tracing::warn!(instance = id, code = %problem.code, reason = %problem.message, "action failed");
        let policy = Policy::of(&self.instance_spec(id).cloned().unwrap_or_default());
        let seen = self.observed.entry(id.to_owned()).or_default();
        // A stop that failed is begun again.
        seen.track.kill_at = None;
        seen.track.failed(&policy, now);
        seen.track.problem = Some(problem);
        self.reporter.changed();
    }

    pub(super) fn refuse(&mut self, id: &str, problem: &Problem) {
        let seen = self.observed.entry(id.to_owned()).or_default();
        if seen.track.problem.as_ref() != Some(problem) {
            tracing::warn!(instance = id, code = %problem.code, reason = %problem.message, "refused");
            seen.track.problem = Some(problem.clone());
            self.reporter.changed();
        }
    }
}
