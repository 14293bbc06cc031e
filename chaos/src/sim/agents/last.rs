//! The last wish: a place for one more while none is open, and then one machine that opens, with nothing else going on.
//!
//! Whoever waits must be told of it by that one change: no other comes that would.

use std::{sync::atomic::Ordering, time::Duration};

use palisade_state::View;
use serde_json::json;

use super::{
    super::{chores, nodes::now, runtime::world_sleep},
    judge,
    users::{User, spec},
};

/// How long the others may take to finish, and all of it to come to rest.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(200);
const NAME: &str = "last";

impl User {
    /// Closes all machines, asks for a place, and opens one machine when everything rests.
    pub(super) async fn last_wish(&mut self) {
        if !self.rests(|user| user.working.load(Ordering::Relaxed) == 1).await {
            return;
        }
        let names: Vec<String> =
            self.fleet.machines().map(|machine| machine.name.clone()).collect();
        for name in &names {
            let key = format!("close-{name}");
            self.insist("nodes.cordon", json!({ "node": name }), &key).await;
        }
        self.insist("workloads.apply", spec(NAME, 1, 100, 16 << 20, 0), NAME).await;
        let waits = |user: &Self| {
            user.newest()
                .is_some_and(|view| !chores::has_work(&view) && judge::is_waiting(&view, NAME))
        };
        if !self.rests(waits).await {
            return;
        }
        let open = self.newest().and_then(|view| {
            let machines = self.fleet.machines();
            let with_room =
                machines.filter(|machine| judge::has_room(machine, &view, 100, 16 << 20));
            with_room.map(|machine| machine.name.clone()).next()
        });
        if let Some(name) = open {
            self.insist("nodes.uncordon", json!({ "node": name }), "open").await;
        }
    }

    /// Waits until it has been so for a second; false when that takes too long.
    async fn rests(&self, is: impl Fn(&Self) -> bool) -> bool {
        let begun = now();
        let mut since = now();
        while now() < begun + PATIENCE {
            if !is(self) {
                since = now();
            } else if now() >= since + Duration::from_secs(1) {
                return true;
            }
            world_sleep(LOOK).await;
        }
        false
    }

    /// The newest state that any replica serves.
    pub(super) fn newest(&self) -> Option<View> {
        let views = self.world.ids().into_iter().filter_map(|id| self.world.view(id));
        views.max_by_key(|view| view.applied().index)
    }
}
