//! Which server is next, and how long to wait before it.

use std::time::Duration;

use crate::port::Runtime;

/// The first round over all servers is quick: a lost replica has others beside it.
const QUICK_MS_MAX: u64 = 100;
const BASE_MS: u64 = 250;
const PAUSE_MS_MAX: u64 = 15_000;

/// The known servers, in turn.
#[derive(Clone, Debug)]
pub struct Servers {
    list: Vec<String>,
    next: usize,
    failures: u32,
}

impl Servers {
    /// Begins with the first.
    #[must_use]
    pub fn new(list: Vec<String>) -> Self {
        Self { list, next: 0, failures: 0 }
    }

    /// The next one; after the last comes the first.
    pub fn turn(&mut self) -> Option<String> {
        let server = self.list.get(self.next % self.list.len().max(1))?.clone();
        self.next = (self.next + 1) % self.list.len();
        Some(server)
    }

    /// A session was opened: the count begins anew.
    pub fn opened(&mut self) {
        self.failures = 0;
    }

    /// The last one again.
    pub fn stay(&mut self) {
        let count = self.list.len().max(1);
        self.next = (self.next + count - 1) % count;
    }

    /// Other servers from now on; the turn goes to the one after the current.
    pub fn replace(&mut self, list: Vec<String>) {
        let count = self.list.len().max(1);
        let current = self.list.get((self.next + count - 1) % count).cloned();
        let place = list.iter().position(|server| Some(server) == current.as_ref());
        self.next = place.map_or(0, |place| (place + 1) % list.len().max(1));
        self.list = list;
    }

    /// How long to wait now: hardly at all while there are servers not tried yet, then longer
    /// each round, never all nodes at once.
    pub fn pause(&mut self, rt: &dyn Runtime) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let round = (self.failures as usize - 1) / self.list.len().max(1);
        let ms = match u32::try_from(round).unwrap_or(u32::MAX) {
            0 => rt.random() % QUICK_MS_MAX,
            round => {
                let doubled = BASE_MS.saturating_mul(1 << round.min(16)).min(PAUSE_MS_MAX);
                doubled / 2 + rt.random() % (doubled / 2)
            }
        };
        Duration::from_millis(ms)
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;

    use super::*;

    struct Dice;

    impl Runtime for Dice {
        fn now(&self) -> Duration {
            Duration::ZERO
        }
        fn wall_ms(&self) -> u64 {
            0
        }
        fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::ready(()))
        }
        fn spawn(&self, _: &'static str, _: BoxFuture<'static, ()>) {}
        fn random(&self) -> u64 {
            u64::MAX
        }
    }

    fn three() -> Servers {
        Servers::new(["a", "b", "c"].map(str::to_owned).to_vec())
    }

    #[test]
    fn a_round_over_all_servers_is_quick_and_later_ones_are_slower() {
        let mut servers = three();
        let pauses: Vec<u128> = (0..30).map(|_| servers.pause(&Dice).as_millis()).collect();
        assert!(pauses[..3].iter().all(|ms| *ms < 100), "{pauses:?}");
        assert!(pauses[3] >= 250 && pauses[3] <= 500, "{pauses:?}");
        assert!(pauses.iter().all(|ms| *ms <= 15_000));
        assert!(pauses[29] >= 7_500);
        servers.opened();
        assert!(servers.pause(&Dice).as_millis() < 100);
    }

    #[test]
    fn the_next_server_is_another_one() {
        let mut servers = three();
        let turns: Vec<_> = (0..4).filter_map(|_| servers.turn()).collect();
        assert_eq!(turns, ["a", "b", "c", "a"]);
        servers.stay();
        assert_eq!(servers.turn().as_deref(), Some("a"));
    }

    #[test]
    fn a_new_list_keeps_the_turn() {
        let mut servers = three();
        servers.turn();
        servers.replace(["c", "a", "d"].map(str::to_owned).to_vec());
        assert_eq!(servers.turn().as_deref(), Some("d"));
        servers.replace(Vec::new());
        assert_eq!(servers.turn(), None);
    }
}
