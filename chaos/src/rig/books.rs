//! Reads the books of a cluster that has come to rest.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::Rig;
use crate::{
    books::{self, Books, Copy, Listed, PlacesSeen, Records},
    clock::{self, Clock},
    http::{BASE, Request, Tried},
};

const LIMIT: Duration = Duration::from_secs(20);
/// Heartbeats and sessions are written too: so long copies are read until nothing was in between, and
/// until what was placed last is known as placed by its instance, which is a step of its own.
const SETTLED_LIMIT: Duration = Duration::from_secs(30);
const RECORDS_MAX: u32 = 1000;
/// Read at one applied index.
const SHORT: [&str; 3] = ["workloads", "instances", "nodes"];
/// Too long, after a long run, to be read before the next heartbeat is applied: read at one revision.
const LONG: [&str; 2] = ["join-tokens", "api-tokens"];

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
        self.long_copies(&mut found).await;
        Ok(found)
    }

    fn id_of(&self, place: usize) -> u64 {
        self.seats.get(place).and_then(super::Seat::id).unwrap_or(0)
    }

    /// Each replica's own copy of what is short, at one index. What is left out could not be read at one index.
    async fn copies(&self, found: &mut Books) {
        let clock = Clock::start();
        loop {
            found.copies.clear();
            let mut first = None;
            for place in self.places() {
                let Some((applied, copy, records)) = self.copy(place).await else { break };
                // All of one index, so that books and instances belong together.
                found.places = books::places(&records);
                if applied != *first.get_or_insert(applied) {
                    break;
                }
                found.copies.insert(self.id_of(place), copy);
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

    /// What is long, of all replicas at one revision. What is left out could not be read at one.
    async fn long_copies(&self, found: &mut Books) {
        for list in LONG {
            let clock = Clock::start();
            while clock.elapsed() < SETTLED_LIMIT {
                let reads = self.places().into_iter().map(|place| self.long(place, list));
                let read = futures::future::join_all(reads).await;
                let ats: Vec<_> =
                    read.iter().map(|read| read.as_ref().map(|read| read.at)).collect();
                if ats.iter().all(|at| at.is_some() && *at == ats[0]) {
                    for (place, listed) in self.places().into_iter().zip(read) {
                        let lists = &mut found.copies.entry(self.id_of(place)).or_default().lists;
                        lists.extend(listed.map(|listed| (list.to_owned(), listed)));
                    }
                    break;
                }
                clock::sleep_ms(100).await;
            }
        }
    }

    async fn long(&self, place: usize, list: &str) -> Option<Listed> {
        let (at, mut records) = self.own_list(place, list).await?;
        // What the clock makes of a record is not in it.
        for record in records.iter_mut().filter_map(Value::as_object_mut) {
            record.remove("status");
        }
        Some(Listed { at, hash: books::hash(&records) })
    }

    /// A list from a replica's own copy, and its revision.
    async fn own_list(&self, place: usize, list: &str) -> Option<(u64, Vec<Value>)> {
        let (mut records, mut cursor, mut at) = (Vec::new(), String::new(), None);
        loop {
            let path = format!("{BASE}/{list}?consistency=local&limit=5000{cursor}");
            let Tried::Done(answer) = self.http.once(place, &Request::get(path), LIMIT).await
            else {
                return None;
            };
            let revision = answer.body.get("revision")?.as_u64()?;
            if revision != *at.get_or_insert(revision) {
                return None;
            }
            records.extend(answer.body.get("items")?.as_array()?.iter().cloned());
            match answer.body.get("nextCursor").and_then(Value::as_str) {
                Some(next) if !next.is_empty() => cursor = format!("&cursor={next}"),
                _ => return Some((revision, records)),
            }
        }
    }

    /// What one replica serves of what is short from its own copy, and its index; none: it applied something in between.
    async fn copy(&self, place: usize) -> Option<(u64, Copy, Records)> {
        let at = self.status(place, LIMIT).await?.applied;
        let (mut copy, mut all) = (Copy::default(), Records::new());
        for list in SHORT {
            let (_, records) = self.own_list(place, list).await?;
            let hash = books::hash(&records);
            copy.lists.insert(list.to_owned(), Listed { at, hash });
            all.insert(list, records);
        }
        (self.status(place, LIMIT).await?.applied == at).then_some((at, copy, all))
    }
}
