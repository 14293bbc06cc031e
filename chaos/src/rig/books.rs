//! Reads the books of a cluster that has come to rest.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::Rig;
use crate::{
    books::{self, Books, Copy, PlacesSeen, Records},
    clock::{self, Clock},
    http::{BASE, Request, Tried},
};

const LIMIT: Duration = Duration::from_secs(20);
/// Heartbeats and sessions are written too: so long copies are read until nothing was in between, and
/// until what was placed last is known as placed by its instance, which is a step of its own.
const SETTLED_LIMIT: Duration = Duration::from_secs(30);
const RECORDS_MAX: u32 = 1000;
const LISTS: [&str; 5] = ["workloads", "instances", "nodes", "join-tokens", "api-tokens"];

impl Rig {
    /// Reads everything.
    pub(crate) async fn books(&self) -> Result<Books> {
        let list = async |path: &str| self.http.list(&format!("{BASE}/{path}"), LIMIT).await;
        // From the oldest on that is in memory.
        let numbered = async |name: &str| {
            self.http.list_by(&format!("{BASE}/{name}?from=0"), RECORDS_MAX, LIMIT).await
        };
        let mut found = Books {
            events: numbered("events").await?.iter().filter_map(books::event).collect(),
            audit: numbered("audit").await?.iter().filter_map(books::audit).collect(),
            ..Books::default()
        };
        let verified = Request::get(format!("{BASE}/audit/verify"));
        let verified = self.http.ask(&verified, LIMIT).await?;
        found.audit_verifies = verified.body.get("ok").and_then(Value::as_bool);
        for node in list("nodes").await? {
            found.held.extend(books::held(&node));
        }
        self.copies(&mut found).await;
        Ok(found)
    }

    /// Each replica's own copy, at one index. What is left out could not be read at one index.
    async fn copies(&self, found: &mut Books) {
        let clock = Clock::start();
        loop {
            found.copies.clear();
            let mut first = None;
            for place in self.places() {
                let Some((copy, records)) = self.copy(place).await else { break };
                // All of one index, so that books and instances belong together.
                found.places = books::places(&records);
                let id = self.seats.get(place).and_then(super::Seat::id).unwrap_or(0);
                let at = *first.get_or_insert(copy.applied);
                if copy.applied != at {
                    break;
                }
                found.copies.insert(id, copy);
            }
            let is_whole = found.copies.len() == self.places().len();
            let settled = found.places.iter().all(PlacesSeen::agree);
            if is_whole && (settled || clock.elapsed() > SETTLED_LIMIT) {
                return;
            }
            if clock.elapsed() > 2 * SETTLED_LIMIT {
                break;
            }
            clock::sleep_ms(100).await;
        }
        found.copies.clear();
        found.places.clear();
    }

    /// What one replica serves from its own copy; none: it applied something in between.
    async fn copy(&self, place: usize) -> Option<(Copy, Records)> {
        let before = self.status(place, LIMIT).await?.applied;
        let mut copy = Copy { applied: before, ..Copy::default() };
        let mut all = Records::new();
        for list in LISTS {
            let mut records = Vec::new();
            let mut cursor = String::new();
            loop {
                let path = format!("{BASE}/{list}?consistency=local&limit=5000{cursor}");
                let Tried::Done(answer) = self.http.once(place, &Request::get(path), LIMIT).await
                else {
                    return None;
                };
                records.extend(answer.body.get("items")?.as_array()?.iter().cloned());
                match answer.body.get("nextCursor").and_then(Value::as_str) {
                    Some(next) if !next.is_empty() => cursor = format!("&cursor={next}"),
                    _ => break,
                }
            }
            copy.lists.insert(list.to_owned(), books::hash(&records));
            all.insert(list, records);
        }
        (self.status(place, LIMIT).await?.applied == before).then_some((copy, all))
    }
}
