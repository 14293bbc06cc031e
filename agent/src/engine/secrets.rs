//! What the secrets of this node's instances hold, in memory only: an agent that is started again asks anew.
//!
//! # Invariants
//! - `SEC-12` What a secret holds is in no file of the agent, and in none of its logs: it goes into the environment of the shim, and from
//!   there into the workload's.
//! - `SEC-13` No instance is started before what its spec names is here: neither without it, nor with an earlier version.

use std::{collections::BTreeMap, time::Duration};

use palisade_proto::agent::{InstanceSpec, NodeSpec, Secret, SecretUse, SecretsWanted, Wanted, up};

use super::Engine;
use crate::driver::{Problem, SecretValue};

/// Secrets of one question.
const ASK_MAX: usize = 256;
const PAUSE_FIRST: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// How long nothing is said of one that is on its way.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tenant and name.
type Key = (String, String);

fn key(secret: &SecretUse) -> Key {
    (secret.tenant.clone(), secret.name.clone())
}

/// What is here of one secret.
enum Have {
    /// What it holds, as it was asked for at this revision.
    Value(u64, SecretValue),
    /// Why it did not come when it was asked for at this revision.
    Refusal(u64, Problem),
}

/// See the module.
#[derive(Default)]
pub(super) struct Secrets {
    have: BTreeMap<Key, Have>,
    /// Since when something is lacking.
    since: Option<Duration>,
    ask_at: Duration,
    pause: Option<Duration>,
}

impl Secrets {
    /// Another spec, or another session: what is lacking is asked for at once.
    pub(super) fn ask_anew(&mut self) {
        self.ask_at = Duration::ZERO;
        self.pause = None;
    }

    /// Forgets what no instance of the spec names any more.
    pub(super) fn follow(&mut self, spec: &NodeSpec) {
        let named = |of: &Key| uses(spec).any(|one| one.tenant == of.0 && one.name == of.1);
        self.have.retain(|of, _| named(of));
        self.since = None;
        self.ask_anew();
    }

    /// Takes an answer.
    pub(super) fn take(&mut self, secret: Secret) {
        let Some(asked) = secret.asked else { return };
        let have = if secret.code.is_empty() {
            Have::Value(asked.revision, SecretValue::new(secret.value))
        } else {
            let whose = if asked.tenant.is_empty() { "the cluster" } else { &asked.tenant };
            let (name, message) = (&asked.name, secret.message);
            let code = secret.code;
            let message = format!("the secret {name} of {whose} did not come: {message} ({code})");
            Have::Refusal(asked.revision, Problem::new("SECRET_REFUSED", message))
        };
        // What came before stays of no use: it was of another version.
        self.have.insert(key(&asked), have);
    }

    fn value(&self, secret: &SecretUse) -> Option<&SecretValue> {
        match self.have.get(&key(secret))? {
            Have::Value(revision, value) if *revision == secret.revision => Some(value),
            _ => None,
        }
    }

    fn lacking(&self, spec: Option<&NodeSpec>) -> Vec<SecretUse> {
        let lacks = |one: &&SecretUse| self.value(one).is_none();
        let lacking = spec.into_iter().flat_map(uses).filter(lacks);
        lacking
            .map(|one| (key(one), one.clone()))
            .collect::<BTreeMap<_, _>>()
            .into_values()
            .collect()
    }

    /// When something is due although nothing happens.
    pub(super) fn due(&self, now: Duration) -> Option<Duration> {
        // What is told once its time has come is no reason to wake again and again.
        let told_at = self.since? + PATIENCE;
        Some(if told_at > now { self.ask_at.min(told_at) } else { self.ask_at })
    }

    /// What an instance's variables hold, by name.
    pub(super) fn of(&self, spec: &InstanceSpec) -> BTreeMap<String, SecretValue> {
        let value = |(variable, secret): (&String, &SecretUse)| {
            Some((variable.clone(), self.value(secret)?.clone()))
        };
        spec.secret_env.iter().filter_map(value).collect()
    }

    /// `SEC-13` Whether an instance can be started; if not, what is to be said of it, once there is something.
    pub(super) fn ready(&self, spec: &InstanceSpec, now: Duration) -> Result<(), Option<Problem>> {
        if spec.secret_env.is_empty() && spec.driver.ends_with(".secrets") {
            let why =
                "the replica that sent its spec left its secrets out: it is of an earlier release";
            return Err(Some(Problem::new("SECRET_REFUSED", why)));
        }
        let Some(lacking) = spec.secret_env.values().find(|one| self.value(one).is_none()) else {
            return Ok(());
        };
        if let Some(Have::Refusal(revision, problem)) = self.have.get(&key(lacking))
            && *revision == lacking.revision
        {
            return Err(Some(problem.clone()));
        }
        let is_late = self.since.is_some_and(|since| now >= since + PATIENCE);
        let why = format!(
            "the secret {} is only in the memory of agents and replicas, and no replica has answered yet: the agent asks again",
            lacking.name
        );
        Err(is_late.then(|| Problem::new("SECRET_AWAITED", why)))
    }
}

/// What the instances of a spec that are to run name.
fn uses(spec: &NodeSpec) -> impl Iterator<Item = &SecretUse> {
    let up = spec.instances.iter().filter(|instance| instance.wanted() != Wanted::Offline);
    up.flat_map(|instance| instance.secret_env.values())
}

impl Engine {
    /// Asks the attached session for what is lacking, at a slower and slower pace.
    pub(super) fn ask_for_secrets(&mut self, now: Duration) {
        let lacking = self.secrets.lacking(self.spec.as_ref());
        if lacking.is_empty() {
            self.secrets.since = None;
            return;
        }
        self.secrets.since.get_or_insert(now);
        if now < self.secrets.ask_at {
            return;
        }
        for some in lacking.chunks(ASK_MAX) {
            let wanted = SecretsWanted { secrets: some.to_vec() };
            self.reporter.send(up::Msg::SecretsWanted(wanted));
        }
        let pause = self.secrets.pause.unwrap_or(PAUSE_FIRST);
        self.secrets.ask_at = now + pause;
        self.secrets.pause = Some((pause * 2).min(PAUSE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn spec(revision: u64) -> NodeSpec {
        let named = SecretUse { tenant: "acme".into(), name: "db".into(), revision };
        let instance = InstanceSpec {
            id: "in_1".into(),
            secret_env: [("DB".to_owned(), named)].into(),
            ..InstanceSpec::default()
        };
        NodeSpec { instances: vec![instance], ..NodeSpec::default() }
    }

    fn answered(spec: &NodeSpec, value: &str, code: &str) -> Secret {
        Secret {
            asked: uses(spec).next().cloned(),
            value: value.into(),
            code: code.to_owned(),
            message: String::new(),
        }
    }

    #[test]
    fn nothing_is_started_without_the_version_that_its_spec_names() {
        let mut secrets = Secrets::default();
        let (one, two) = (spec(1), spec(2));
        secrets.follow(&one);
        assert_eq!(secrets.lacking(Some(&one)).len(), 1);
        assert_eq!(secrets.ready(&one.instances[0], NOW), Err(None), "SEC-13");
        secrets.take(answered(&one, "canary", ""));
        assert_eq!(secrets.ready(&one.instances[0], NOW), Ok(()));
        assert_eq!(secrets.of(&one.instances[0])["DB"].reveal(), b"canary");
        // Another version.
        secrets.follow(&two);
        assert_eq!(secrets.ready(&two.instances[0], NOW), Err(None), "SEC-13");
        assert!(secrets.of(&two.instances[0]).is_empty());
        secrets.take(answered(&two, "", "UNAVAILABLE"));
        let said = secrets.ready(&two.instances[0], NOW).unwrap_err().unwrap();
        assert!(said.code == "SECRET_REFUSED" && said.message.contains("db of acme"));
        secrets.take(answered(&two, "other", ""));
        assert_eq!(secrets.of(&two.instances[0])["DB"].reveal(), b"other");
        // What is not named any more is forgotten.
        secrets.follow(&NodeSpec::default());
        assert_eq!(secrets.lacking(Some(&two)).len(), 1);
    }

    #[test]
    fn what_is_waited_for_leaves_the_engine_its_rest() {
        let since = Some(NOW);
        let secrets = Secrets { since, ask_at: NOW + PAUSE_MAX, ..Secrets::default() };
        assert_eq!(Secrets::default().due(NOW), None);
        assert_eq!(secrets.due(NOW), Some(NOW + PATIENCE));
        assert_eq!(secrets.due(NOW + PATIENCE), Some(NOW + PAUSE_MAX));
        let said = secrets.ready(&spec(1).instances[0], NOW + PATIENCE).unwrap_err().unwrap();
        assert_eq!(said.code, "SECRET_AWAITED");
    }

    #[test]
    fn a_spec_whose_secrets_an_earlier_release_left_out_starts_nothing() {
        let stripped = InstanceSpec { driver: "process.secrets".into(), ..InstanceSpec::default() };
        let said = Secrets::default().ready(&stripped, NOW).unwrap_err().unwrap();
        assert_eq!(said.code, "SECRET_REFUSED", "SEC-13");
    }

    #[test]
    fn what_is_here_is_not_shown() {
        let shown = format!("{:?}", SecretValue::new(b"canary".to_vec()));
        assert!(!shown.contains("canary") && !shown.contains("99, 97"), "SEC-12: {shown}");
    }
}
