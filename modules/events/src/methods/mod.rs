//! The methods `subscriptions.*` and `deadLetters.*`.
//!
//! # Invariants
//! - `EVT-9` A subscription begins with what happens after it was made.

mod change;
mod inputs;
mod letters;
mod shown;

use std::sync::Arc;

use palisade_contract::{
    Error, Method, MethodContext, Resource, Result, Verb, Watched, method::Records,
};
use palisade_state::{Tx, View};
use serde_json::Value;

pub(crate) use self::{
    inputs::{
        CreateSubscription, DropLetters, ListSubscriptions, OneSubscription, RotateSubscription,
        SomeLetters, UpdateSubscription,
    },
    shown::{DeliveryRecord, Handled, LetterRecord, SubscriptionRecord},
};
use crate::{
    Sinks,
    records::{LETTERS, PROGRESS, ProgressRow, QUEUE, SUBSCRIPTIONS, SubscriptionRow, key_of},
};

const READ: &str = "compute:subscriptions:read";
const WRITE: &str = "compute:subscriptions:write";

fn on(value: &Value) -> Resource {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let name = if text("subscription").is_empty() { text("name") } else { text("subscription") };
    Resource::of_tenant("subscription", name, text("tenant"))
}

/// The methods, in the order of their documentation.
pub(crate) fn methods(sinks: &Arc<Sinks>) -> Vec<Method> {
    let mut methods = reading();
    methods.extend(changing(sinks));
    methods.extend(letters::methods());
    methods
}

fn reading() -> Vec<Method> {
    vec![
        Method::listing("subscriptions", "list", READ, list)
            .summary("Lists the subscriptions to events.")
            .rest(Verb::Get, "/subscriptions")
            .watched(Watched::Records)
            .on(on),
        Method::query("subscriptions", "get", READ, get)
            .summary("Shows a subscription, and how it fares.")
            .rest(Verb::Get, "/subscriptions/{subscription}")
            .on(on),
        Method::listing("subscriptions", "deliveries", READ, deliveries)
            .summary("Lists the events that wait for a subscription: what is tried again, and what waits behind it.")
            .rest(Verb::Get, "/subscriptions/{subscription}/deliveries")
            .watched(Watched::Records)
            .on(on),
    ]
}

fn changing(sinks: &Arc<Sinks>) -> Vec<Method> {
    let known = sinks.clone();
    let create = move |cx: &MethodContext, tx: &mut Tx, input: CreateSubscription| {
        change::create(&known, cx, tx, input)
    };
    let of_one = "/subscriptions/{subscription}";
    vec![
        Method::mutation("subscriptions", "create", WRITE, create)
            .summary("Subscribes a URL or a sink to events that happen from now on.")
            .rest(Verb::Post, "/subscriptions")
            .secret(&["secret"])
            .on(on),
        Method::mutation("subscriptions", "update", WRITE, change::update)
            .summary("Changes where a subscription's events go, or which they are.")
            .rest(Verb::Patch, of_one)
            .on(on),
        Method::mutation("subscriptions", "remove", WRITE, change::remove)
            .summary("Removes a subscription, with what waits for it and its dead letters.")
            .rest(Verb::Delete, of_one)
            .destructive()
            .on(on),
        Method::mutation("subscriptions", "pause", WRITE, change::pause)
            .summary("Sends nothing for now. What happens meanwhile is sent later.")
            .rest(Verb::Post, "/subscriptions/{subscription}/pause")
            .on(on),
        Method::mutation("subscriptions", "resume", WRITE, change::resume)
            .summary("Goes on with a subscription that was paused or disabled, and tries at once what waits.")
            .rest(Verb::Post, "/subscriptions/{subscription}/resume")
            .on(on),
        Method::mutation("subscriptions", "test", WRITE, change::test)
            .summary("Sends an event subscription.test to a subscription, and to no other.")
            .rest(Verb::Post, "/subscriptions/{subscription}/test")
            .on(on),
        Method::mutation("subscriptions", "rotate", WRITE, change::rotate)
            .summary("Signs with another secret; for a while with the one before too.")
            .rest(Verb::Post, "/subscriptions/{subscription}/rotate")
            .secret(&["secret"])
            .on(on),
    ]
}

pub(crate) fn not_found(name: &str) -> Error {
    Error::not_found("subscription", name).hint("`palisade subscription ls` shows all")
}

fn progress_of(view: &View, row: &SubscriptionRow) -> Result<ProgressRow> {
    let found = PROGRESS.get(view, &row.key())?.map(|found| found.value);
    Ok(found.filter(|progress| progress.id == row.id).unwrap_or_default())
}

fn list<'a>(
    _: &'a MethodContext,
    view: &'a View,
    input: ListSubscriptions,
    after: &str,
) -> Result<Records<'a, SubscriptionRecord>> {
    let wanted =
        move |row: &SubscriptionRow| input.tenant.as_ref().is_none_or(|t| *t == row.tenant);
    Ok(Box::new(SUBSCRIPTIONS.behind(view, after).filter_map(move |found| match found {
        Ok((_, found)) if !wanted(&found.value) => None,
        Ok((_, found)) => Some(progress_of(view, &found.value).map(|progress| {
            shown::record(view, &found.value, &progress, found.stamp.modified_rev)
        })),
        Err(corrupt) => Some(Err(corrupt.into())),
    })))
}

fn find(view: &View, tenant: &str, name: &str) -> Result<(SubscriptionRow, u64)> {
    let found = SUBSCRIPTIONS.get(view, &key_of(tenant, name))?;
    let found = found.ok_or_else(|| not_found(name))?;
    Ok((found.value, found.stamp.modified_rev))
}

fn get(_: &MethodContext, view: &View, input: OneSubscription) -> Result<SubscriptionRecord> {
    let (row, revision) = find(view, &input.tenant, &input.subscription)?;
    Ok(shown::record(view, &row, &progress_of(view, &row)?, revision))
}

/// Where a list of a subscription's rows begins: behind `after`, or at the first.
fn begin(rows: &str, after: &str) -> String {
    let first = format!("{rows}/");
    if after < first.as_str() { first } else { after.to_owned() }
}

fn deliveries<'a>(
    _: &'a MethodContext,
    view: &'a View,
    input: OneSubscription,
    after: &str,
) -> Result<Records<'a, DeliveryRecord>> {
    let rows = find(view, &input.tenant, &input.subscription)?.0.rows();
    let all = QUEUE.behind(view, &begin(&rows, after));
    let its = all.take_while(move |found| {
        found.as_ref().map_or(true, |(_, found)| found.value.subscription == rows)
    });
    Ok(Box::new(its.map(move |found| Ok(shown::delivery(view, &found?.1.value)))))
}

fn dead<'a>(
    _: &'a MethodContext,
    view: &'a View,
    input: OneSubscription,
    after: &str,
) -> Result<Records<'a, LetterRecord>> {
    let rows = find(view, &input.tenant, &input.subscription)?.0.rows();
    let all = LETTERS.behind(view, &begin(&rows, after));
    let its = all.take_while(move |found| {
        found.as_ref().map_or(true, |(_, found)| found.value.subscription == rows)
    });
    Ok(Box::new(its.map(|found| Ok(shown::letter(&found?.1)))))
}
