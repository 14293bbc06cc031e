//! What the methods take.

use std::collections::BTreeSet;

use palisade_contract::{
    Check, Problems,
    id::{NAME_RULE, is_name},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::{
    http::url_problem,
    signature::{RULE, SigningKey},
};

/// Patterns of a filter at most, and characters of one.
const PATTERNS_MAX: usize = 32;
const PATTERN_MAX: usize = 256;
/// Characters of a description.
const DESCRIPTION_MAX: usize = 500;
/// Seconds for which two secrets are valid at once, at most.
const OVERLAP_MAX: u64 = 7 * 24 * 60 * 60;
/// Dead letters that one call names at most.
pub(super) const LETTERS_MAX: usize = 100;

fn overlap_default() -> u64 {
    24 * 60 * 60
}

/// Input of `subscriptions.create`. It has no `Debug`: `SEC-1`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateSubscription {
    /// Its name, unique within its tenant.
    pub name: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// Where its events are sent, `https://…`. This or `sink`.
    #[serde(default)]
    pub url: Option<String>,
    /// `<id>@<version>` of a sink that a module of this binary has.
    #[serde(default)]
    pub sink: Option<String>,
    /// Types of events, or what comes before a dot in them; none: all.
    #[serde(default)]
    pub types: Vec<String>,
    /// Subjects, or what comes before a slash in them; none: all.
    #[serde(default)]
    pub subjects: Vec<String>,
    /// Of the cluster's subscription: only events of this tenant; empty: only the cluster's own.
    #[serde(default)]
    pub of_tenant: Option<String>,
    /// What it is signed with: whsec_ and base64. This or `secretRef`. It is never answered.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    pub secret: Option<String>,
    /// The name of a secret of the same tenant that it is signed with.
    #[serde(default)]
    pub secret_ref: Option<String>,
}

/// Input of `subscriptions.update`: what is not named stays.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UpdateSubscription {
    /// Which.
    pub subscription: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// For people.
    #[serde(default)]
    pub description: Option<String>,
    /// Where its events are sent.
    #[serde(default)]
    pub url: Option<String>,
    /// Types of events; an empty list: all.
    #[serde(default)]
    pub types: Option<Vec<String>>,
    /// Subjects; an empty list: all.
    #[serde(default)]
    pub subjects: Option<Vec<String>>,
}

/// Input of the methods on one subscription.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct OneSubscription {
    /// Its name.
    pub subscription: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
}

/// Input of `subscriptions.list`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListSubscriptions {
    /// Only those of this tenant; empty: the cluster's.
    #[serde(default)]
    pub tenant: Option<String>,
}

/// Input of `subscriptions.rotate`. It has no `Debug`: `SEC-1`.
#[derive(Clone, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RotateSubscription {
    /// Which.
    pub subscription: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// The new secret. This or `secretRef`. It is never answered.
    #[serde(default)]
    #[schemars(extend("writeOnly" = true))]
    pub secret: Option<String>,
    /// The name of a secret of the same tenant.
    #[serde(default)]
    pub secret_ref: Option<String>,
    /// For so long the old one signs too; a day unless another time is given, a week at most.
    #[serde(default = "overlap_default")]
    pub overlap_seconds: u64,
}

/// Input of `deadLetters.drop`: what is dropped is named, so that what came later and nobody has looked at stays, also where the
/// call waits for approval first.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DropLetters {
    /// Of which subscription.
    pub subscription: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// Which, by their ids.
    #[serde(default)]
    pub letters: Vec<String>,
    /// So many that left by their age or number need be told of no more.
    #[serde(default)]
    pub lost: u64,
}

/// Input of `deadLetters.replay`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SomeLetters {
    /// Of which subscription.
    pub subscription: String,
    /// Whose it is; absent: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// Which, by their ids; none: all, as far as one call goes.
    #[serde(default)]
    pub letters: Vec<String>,
}

fn patterns(all: &[String], at: &str, problems: &mut Problems) {
    if all.len() > PATTERNS_MAX {
        problems.add(at, format!("must have at most {PATTERNS_MAX}"));
    }
    for (position, pattern) in all.iter().enumerate() {
        let is_word = |c: char| c.is_ascii_graphic() && c != '*';
        if pattern.is_empty() || pattern.len() > PATTERN_MAX || !pattern.chars().all(is_word) {
            let rule = "must be 1 to 256 visible ASCII characters without *: `instance` is about instance.failed too";
            problems.add(format!("{at}/{position}"), rule);
        }
    }
}

fn description(text: &str, at: &str, problems: &mut Problems) {
    if text.chars().count() > DESCRIPTION_MAX || text.chars().any(char::is_control) {
        let rule = format!("must have at most {DESCRIPTION_MAX} characters, on one line");
        problems.add(format!("{at}/description"), rule);
    }
}

fn url(text: &str, at: &str, problems: &mut Problems) {
    if let Some(problem) = url_problem(text) {
        problems.add(format!("{at}/url"), problem);
    }
}

fn secret(made: Option<&String>, named: Option<&String>, at: &str, problems: &mut Problems) {
    if made.is_some_and(|secret| SigningKey::parse(secret.as_bytes()).is_none()) {
        problems.add(format!("{at}/secret"), RULE);
    }
    if named.is_some_and(|name| !is_name(name)) {
        problems.add(format!("{at}/secretRef"), format!("must have {NAME_RULE}"));
    }
    if made.is_some() == named.is_some() {
        problems.add(at, "give one of secret and secretRef: the CLI makes a secret by itself");
    }
}

impl Check for CreateSubscription {
    fn check(&self, at: &str, problems: &mut Problems) {
        if !is_name(&self.name) {
            problems.add(format!("{at}/name"), format!("must have {NAME_RULE}"));
        }
        description(&self.description, at, problems);
        patterns(&self.types, &format!("{at}/types"), problems);
        patterns(&self.subjects, &format!("{at}/subjects"), problems);
        if self.of_tenant.is_some() && !self.tenant.is_empty() {
            let rule = "is for subscriptions of the cluster: a tenant's has that tenant's events";
            problems.add(format!("{at}/ofTenant"), rule);
        }
        match (&self.url, &self.sink) {
            (Some(text), None) => {
                url(text, at, problems);
                secret(self.secret.as_ref(), self.secret_ref.as_ref(), at, problems);
            }
            (None, Some(_)) if self.secret.is_some() || self.secret_ref.is_some() => {
                problems
                    .add(at, "a sink is given events by this process: there is nothing to sign");
            }
            (None, Some(_)) => {}
            _ => problems.add(at, "give one of url and sink"),
        }
    }
}

impl Check for UpdateSubscription {
    fn check(&self, at: &str, problems: &mut Problems) {
        description(self.description.as_deref().unwrap_or_default(), at, problems);
        patterns(self.types.as_deref().unwrap_or_default(), &format!("{at}/types"), problems);
        let subjects = self.subjects.as_deref().unwrap_or_default();
        patterns(subjects, &format!("{at}/subjects"), problems);
        if let Some(text) = &self.url {
            url(text, at, problems);
        }
    }
}

impl Check for OneSubscription {}

impl Check for ListSubscriptions {}

impl Check for RotateSubscription {
    fn check(&self, at: &str, problems: &mut Problems) {
        secret(self.secret.as_ref(), self.secret_ref.as_ref(), at, problems);
        if self.overlap_seconds > OVERLAP_MAX {
            problems.add(format!("{at}/overlapSeconds"), format!("must be at most {OVERLAP_MAX}"));
        }
    }
}

fn letters(named: &[String], at: &str, problems: &mut Problems) {
    if named.len() > LETTERS_MAX {
        problems.add(format!("{at}/letters"), format!("must name at most {LETTERS_MAX}"));
    }
}

impl Check for SomeLetters {
    fn check(&self, at: &str, problems: &mut Problems) {
        letters(&self.letters, at, problems);
    }
}

impl Check for DropLetters {
    fn check(&self, at: &str, problems: &mut Problems) {
        letters(&self.letters, at, problems);
        if self.letters.is_empty() && self.lost == 0 {
            let rule = "must name what is dropped, by the ids in the list: what came since was not looked at";
            problems.add(format!("{at}/letters"), rule);
        }
        let mut seen = BTreeSet::new();
        for (position, letter) in self.letters.iter().enumerate() {
            if !seen.insert(letter) {
                problems.add(format!("{at}/letters/{position}"), "is there already");
            }
        }
    }
}
