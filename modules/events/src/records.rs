//! What is stored of subscriptions, of what waits to be delivered, and of what was not.

use palisade_contract::{Result, SecretRef};
use palisade_state::{Table, View, key::after_prefix};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Subscriptions by `<tenant>/<name>`.
pub(crate) const SUBSCRIPTIONS: Table<String, SubscriptionRow> = Table::new("subscriptions", &[]);
/// How far each is, by the same key.
pub(crate) const PROGRESS: Table<String, ProgressRow> = Table::new("subscription_progress", &[]);
/// What waits, by `<tenant>/<id of the subscription>/<number>`.
pub(crate) const QUEUE: Table<String, DeliveryRow> = Table::new("subscription_deliveries", &[]);
/// What was given up, by the key that it had there.
pub(crate) const LETTERS: Table<String, LetterRow> = Table::new("subscription_dead_letters", &[]);

/// A subscription, as somebody asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SubscriptionRow {
    /// Another one of the same name is another subscription.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Whose it is; empty: the cluster's.
    #[serde(default)]
    pub tenant: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// Where its events go. This or `sink`.
    #[serde(default)]
    pub url: String,
    /// `<id>@<version>` of a sink.
    #[serde(default)]
    pub sink: String,
    /// Types, or what comes before a dot in them; none: all.
    #[serde(default)]
    pub types: Vec<String>,
    /// Subjects, or what comes before a slash in them; none: all.
    #[serde(default)]
    pub subjects: Vec<String>,
    /// Of the cluster's subscription: only events of this tenant; empty: only the cluster's own.
    #[serde(default)]
    pub of_tenant: Option<String>,
    /// What it is signed with, the newest first: two at most.
    #[serde(default)]
    pub signing: Vec<SigningRow>,
    /// The number of the next secret that is kept for it.
    #[serde(default)]
    pub next_secret: u64,
    /// Somebody wants nothing sent for now.
    #[serde(default)]
    pub paused: bool,
    /// Who made it.
    #[serde(default)]
    pub created_by: String,
    /// Wall-clock milliseconds.
    pub created_at_ms: u64,
}

/// One of the secrets that a subscription signs with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SigningRow {
    /// Its name among the tenant's secrets.
    pub secret: String,
    /// It is kept for this subscription alone, and goes with it.
    #[serde(default)]
    pub own: bool,
    /// Logical milliseconds until which it is used; `None`: it is the newest.
    #[serde(default)]
    pub until_ms: Option<u64>,
}

impl SigningRow {
    pub fn reference(&self) -> SecretRef {
        SecretRef { secret: self.secret.clone() }
    }

    pub fn is_used(&self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until| now_ms < until)
    }
}

/// The key of the subscription of this name.
pub(crate) fn key_of(tenant: &str, name: &str) -> String {
    format!("{tenant}/{name}")
}

impl SubscriptionRow {
    pub fn key(&self) -> String {
        key_of(&self.tenant, &self.name)
    }

    /// What begins the keys of its rows. A later subscription of the same name has others.
    pub fn rows(&self) -> String {
        key_of(&self.tenant, &self.id)
    }

    /// Where its events go, without what may be secret in a URL: its host.
    pub fn destination(&self) -> String {
        if self.url.is_empty() {
            return format!("sink {}", self.sink);
        }
        let host = self.url.parse::<http::Uri>().ok().and_then(|url| url.host().map(str::to_owned));
        host.unwrap_or_else(|| "its URL".to_owned())
    }
}

/// How far a subscription is. Only its own runs write it, but for what `resume` clears.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProgressRow {
    /// The subscription's id.
    pub id: String,
    /// The subscription's key.
    #[serde(default)]
    pub subscription: String,
    /// Every event up to this one was delivered, waits, is a dead letter, or was not asked for.
    pub cursor: u64,
    /// Its receiver said that it wants no more.
    #[serde(default)]
    pub disabled: Option<StoppedRow>,
    /// What waits cannot be sent from here: it cannot be signed, or there is no such sink.
    #[serde(default)]
    pub blocked: Option<StoppedRow>,
    /// Wall-clock milliseconds of the first attempt that failed since one did not.
    #[serde(default)]
    pub failing_since_ms: Option<u64>,
    /// What went wrong last.
    #[serde(default)]
    pub last_error: String,
    /// Logical milliseconds of the last success; `None`: there was none.
    #[serde(default)]
    pub success_at: Option<u64>,
    /// Logical milliseconds of the last success after several subjects had failed: what failed before is due at once.
    #[serde(default)]
    pub recovered_at: u64,
    /// Logical milliseconds before which the receiver wants nothing.
    #[serde(default)]
    pub hold_until: u64,
    /// Of a receiver that is down: how often it was tried since, and logical milliseconds before which it is not again.
    #[serde(default)]
    pub probes: u32,
    /// See above; 0: it was not tried yet.
    #[serde(default)]
    pub probe_at: u64,
    /// Logical milliseconds until which its receiver is among the slow ones.
    #[serde(default)]
    pub slow_until: u64,
    /// Wall-clock milliseconds of the last success; 0: none.
    #[serde(default)]
    pub delivered_at_ms: u64,
    /// Events that were delivered.
    #[serde(default)]
    pub delivered: u64,
    /// Attempts that failed.
    #[serde(default)]
    pub failed: u64,
    /// Dead letters that left by their age or their number, without anybody having asked.
    #[serde(default)]
    pub letters_lost: u64,
}

/// Why a subscription is sent nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoppedRow {
    /// In a sentence.
    pub reason: String,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
}

/// An event as it is kept while it waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeptEvent {
    /// The id that it is sent with: on every attempt the same.
    pub id: String,
    /// The source that it is sent with.
    pub source: String,
    /// Its type.
    pub kind: String,
    /// Whose it is.
    #[serde(default)]
    pub tenant: String,
    /// What it is about.
    #[serde(default)]
    pub subject: String,
    /// Its number; 0: it has none.
    #[serde(default)]
    pub seq: u64,
    /// The revision that published it.
    #[serde(default)]
    pub revision: u64,
    /// Wall-clock milliseconds.
    pub at_ms: u64,
    /// What there is to say of it.
    #[serde(default)]
    pub data: Option<Value>,
    /// Bytes of data that were left out.
    #[serde(default)]
    pub left_out_bytes: u64,
    /// Bytes of data.
    #[serde(default)]
    pub bytes: u64,
}

/// An event that waits for a subscription.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeliveryRow {
    /// What its key begins with.
    pub subscription: String,
    /// What is sent.
    pub event: KeptEvent,
    /// Attempts that failed.
    #[serde(default)]
    pub attempts: u32,
    /// Logical milliseconds of the first attempt.
    #[serde(default)]
    pub first_at: u64,
    /// Logical milliseconds of the last attempt.
    #[serde(default)]
    pub last_at: u64,
    /// Logical milliseconds before which it is not tried.
    #[serde(default)]
    pub due: u64,
    /// What went wrong in the last attempt.
    #[serde(default)]
    pub error: String,
    /// Wall-clock milliseconds since when it waits.
    pub since_ms: u64,
}

impl DeliveryRow {
    pub fn key(&self) -> String {
        format!("{}/{}", self.subscription, self.number())
    }

    /// By what rows of a subscription are ordered: numbers, then what has none, as it was made.
    fn number(&self) -> String {
        if self.event.seq == 0 {
            return format!("x-{}", self.event.id);
        }
        format!("{:020}", self.event.seq)
    }
}

/// Why something is a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "DeadLetterReason")]
pub enum Reason {
    /// It was tried for as long as is tried.
    Exhausted,
    /// The events left memory and history before they could be read: what they were is not known here any more.
    Gap,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LetterRow {
    /// What its key begins with.
    pub subscription: String,
    /// Why.
    pub reason: Reason,
    /// What waited.
    #[serde(default)]
    pub delivery: Option<DeliveryRow>,
    /// Of a gap: the first number and the last.
    #[serde(default)]
    pub gap: Option<(u64, u64)>,
    /// Logical milliseconds at which it was given up.
    pub dead_at: u64,
    /// The same by the wall clock.
    pub dead_at_ms: u64,
}

impl LetterRow {
    pub fn key(&self) -> String {
        match (&self.delivery, self.gap) {
            (Some(delivery), _) => delivery.key(),
            (None, gap) => {
                format!("{}/{:020}-gap", self.subscription, gap.unwrap_or_default().0)
            }
        }
    }
}

/// What begins the keys of a subscription's rows.
fn prefix_of(rows: &str) -> String {
    format!("{rows}/")
}

/// How many rows of a subscription a table has.
pub(crate) fn count(view: &View, table: &str, rows: &str) -> u64 {
    let prefix = prefix_of(rows);
    view.rows(table, prefix.as_bytes(), after_prefix(prefix.as_bytes()).as_deref()).count() as u64
}

/// All that waits for a subscription, in order.
pub(crate) fn waiting(view: &View, rows: &str) -> Result<Vec<DeliveryRow>> {
    let rows = QUEUE.with_prefix(view, prefix_of(rows).as_bytes())?;
    Ok(rows.into_iter().map(|(_, row)| row.value).collect())
}

/// The keys of a subscription's dead letters, the oldest event first.
pub(crate) fn letters(view: &View, rows: &str) -> Result<Vec<(String, LetterRow)>> {
    let rows = LETTERS.with_prefix(view, prefix_of(rows).as_bytes())?;
    Ok(rows.into_iter().map(|(key, row)| (key, row.value)).collect())
}

/// A subscription and how far it is.
pub(crate) fn subscription(
    view: &View,
    key: &str,
) -> Result<Option<(SubscriptionRow, ProgressRow)>> {
    let Some(found) = SUBSCRIPTIONS.get(view, &key.to_owned())? else { return Ok(None) };
    let progress = PROGRESS.get(view, &key.to_owned())?.map(|row| row.value);
    let of_it = progress.filter(|progress| progress.id == found.value.id).unwrap_or_default();
    Ok(Some((found.value, of_it)))
}
