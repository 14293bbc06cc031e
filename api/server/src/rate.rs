//! How often somebody may ask: a token bucket for each principal, and for each address that presents wrong credentials.
//!
//! # Invariants
//! - `RATE-1` What one principal does takes nothing from another's bucket, and nothing that an address does keeps out
//!   whoever presents a right credential from there.
//! - `RATE-2` The memory is bounded, whatever names and addresses there are: a bucket that is full again is forgotten, which
//!   nobody can notice, and who finds no place for one shares the one of all who find none.
//! - `RATE-3` What was refused here leaves no audit record.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use palisade_contract::{Code, Error, Result};
use palisade_state::Rt;

use crate::{
    Limits,
    metrics::{Limited, Metrics},
};

/// Buckets of one kind.
const PLACES_MAX: usize = 16_384;
/// Full buckets are looked for at most this often.
const SWEEP: Duration = Duration::from_secs(1);
/// A request, in the unit in which buckets are filled: what a rate of one a second adds in a nanosecond is 1.
const ONE: u64 = 1_000_000_000;

/// So many on average, and so many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// What comes back each second.
    pub per_second: u32,
    /// What there is at most.
    pub burst: u32,
}

impl Rate {
    fn full(self) -> u64 {
        u64::from(self.burst.max(1)) * ONE
    }
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    level: u64,
    at: Duration,
    /// Requests that are being answered.
    held: usize,
}

impl Bucket {
    fn new(rate: Rate, now: Duration) -> Self {
        Self { level: rate.full(), at: now, held: 0 }
    }

    fn fill(&mut self, rate: Rate, now: Duration) {
        let nanos = u64::try_from(now.saturating_sub(self.at).as_nanos()).unwrap_or(u64::MAX);
        let more = nanos.saturating_mul(rate.per_second.into());
        self.level = self.level.saturating_add(more).min(rate.full());
        self.at = self.at.max(now);
    }

    /// Takes one, or says when there will be one.
    fn take(&mut self, rate: Rate, now: Duration) -> Result<(), Duration> {
        self.fill(rate, now);
        if let Some(left) = self.level.checked_sub(ONE) {
            self.level = left;
            return Ok(());
        }
        Err(Duration::from_nanos((ONE - self.level).div_ceil(rate.per_second.max(1).into())))
    }
}

/// Buckets of one rate.
#[derive(Debug)]
struct Table<K> {
    rate: Rate,
    places_max: usize,
    rows: BTreeMap<K, Bucket>,
    /// Of all who found no place.
    rest: Bucket,
    swept: Option<Duration>,
}

impl<K: Ord> Table<K> {
    fn new(rate: Rate, places_max: usize) -> Self {
        let rest = Bucket::new(rate, Duration::ZERO);
        Self { rate, places_max, rows: BTreeMap::new(), rest, swept: None }
    }

    /// The bucket of `key`, and whether it is its own. `RATE-2`
    fn bucket(&mut self, key: K, now: Duration) -> (&mut Bucket, bool) {
        let rate = self.rate;
        let is_known = self.rows.contains_key(&key);
        if !is_known && self.rows.len() >= self.places_max {
            self.sweep(now);
        }
        if is_known || self.rows.len() < self.places_max {
            (self.rows.entry(key).or_insert_with(|| Bucket::new(rate, now)), true)
        } else {
            (&mut self.rest, false)
        }
    }

    fn sweep(&mut self, now: Duration) {
        if self.swept.is_some_and(|last| now.saturating_sub(last) < SWEEP) {
            return;
        }
        self.swept = Some(now);
        let rate = self.rate;
        self.rows.retain(|_, bucket| {
            bucket.fill(rate, now);
            bucket.held > 0 || bucket.level < rate.full()
        });
    }
}

/// An address, as far as one sender cannot choose it: IPv6 hands out networks of 64 bits.
fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let network = u128::from(v6) & (u128::MAX << 64);
            IpAddr::V6(Ipv6Addr::from(network))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// All buckets of one replica.
pub(crate) struct Rates {
    rt: Rt,
    metrics: Metrics,
    held_max: usize,
    requests: Mutex<Table<String>>,
    denied: Mutex<Table<String>>,
    wrong: Mutex<Table<IpAddr>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request of a principal, until it is answered.
pub(crate) struct Pass {
    rates: Arc<Rates>,
    /// Whose bucket counts it; `None`: that of all who found no place.
    principal: Option<String>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut table = lock(&self.rates.requests);
        let bucket = match &self.principal {
            Some(principal) => table.rows.get_mut(principal),
            None => Some(&mut table.rest),
        };
        if let Some(bucket) = bucket {
            bucket.held = bucket.held.saturating_sub(1);
        }
    }
}

impl Rates {
    pub(crate) fn new(rt: Rt, limits: &Limits, metrics: Metrics) -> Arc<Self> {
        Self::with_places(rt, limits, metrics, PLACES_MAX)
    }

    fn with_places(rt: Rt, limits: &Limits, metrics: Metrics, places_max: usize) -> Arc<Self> {
        Arc::new(Self {
            rt,
            metrics,
            held_max: limits.principal_in_flight_max,
            requests: Mutex::new(Table::new(limits.principal_rate, places_max)),
            denied: Mutex::new(Table::new(limits.denied_rate, places_max)),
            wrong: Mutex::new(Table::new(limits.wrong_credentials_rate, places_max)),
        })
    }

    fn limited(&self, by: Limited, wait: Duration, detail: String, hint: &str) -> Error {
        self.metrics.limited(by);
        let mut error = Error::new(Code::RateLimited, detail).hint(hint);
        error.retry_after = Some(wait);
        error
    }

    /// Lets a request of `principal` go on.
    ///
    /// # Errors
    /// `RATE_LIMITED`: too often, or too many at once.
    pub(crate) fn admit(self: &Arc<Self>, principal: &str) -> Result<Pass> {
        let now = self.rt.now();
        let mut table = lock(&self.requests);
        let rate = table.rate;
        let (bucket, own) = table.bucket(principal.to_owned(), now);
        if bucket.held >= self.held_max {
            drop(table);
            let detail = format!(
                "this replica answers {} requests of {principal} already, which is its share",
                self.held_max
            );
            let hint = "wait for answers before asking more, or ask another replica too";
            return Err(self.limited(Limited::InFlight, Duration::from_secs(1), detail, hint));
        }
        let taken = bucket.take(rate, now);
        if taken.is_ok() {
            bucket.held += 1;
        }
        drop(table);
        match taken {
            Ok(()) => {
                let principal = own.then(|| principal.to_owned());
                Ok(Pass { rates: self.clone(), principal })
            }
            Err(wait) => {
                let detail = format!(
                    "{principal} asks this replica more than {} times a second",
                    rate.per_second
                );
                let hint = "ask less often, or watch instead of asking again; `[limits]` in replica.toml has the rates";
                Err(self.limited(Limited::Principal, wait, detail, hint))
            }
        }
    }

    /// Counts a denied write, which would have an audit record.
    ///
    /// # Errors
    /// `RATE_LIMITED`: it gets none (`RATE-3`).
    pub(crate) fn deny(&self, principal: &str) -> Result<()> {
        let now = self.rt.now();
        let mut table = lock(&self.denied);
        let rate = table.rate;
        let taken = table.bucket(principal.to_owned(), now).0.take(rate, now);
        drop(table);
        taken.map_err(|wait| {
            let detail = format!(
                "{principal} asks more than {} times a second for what it is not allowed",
                rate.per_second
            );
            let hint = "it is not allowed and asking again does not help: look at what is refused with ACCESS_DENIED";
            self.limited(Limited::Denied, wait, detail, hint)
        })
    }

    /// Counts a credential that this replica does not know.
    ///
    /// # Errors
    /// `RATE_LIMITED`: nobody is asked whether another one knows it.
    pub(crate) fn wrong(&self, from: IpAddr) -> Result<()> {
        let now = self.rt.now();
        let mut table = lock(&self.wrong);
        let rate = table.rate;
        let taken = table.bucket(origin(from), now).0.take(rate, now);
        drop(table);
        taken.map_err(|wait| {
            let detail = format!(
                "wrong credentials come from this address more than {} times a second",
                rate.per_second
            );
            let hint = "the credential is wrong, expired or revoked: stop whatever repeats it, and get another";
            self.limited(Limited::Address, wait, detail, hint)
        })
    }
}

#[cfg(test)]
mod tests;
