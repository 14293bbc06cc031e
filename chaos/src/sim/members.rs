//! Changes of the control plane's members during everything else, as an operator makes them.

use std::{sync::Arc, time::Duration};

use futures::FutureExt;
use palisade_raft::Change;
use palisade_state::{ReplicaId, Store, port::MemberStatus};

use super::{runtime::world_sleep, world::World};
use crate::random::Random;

fn addresses(name: &str) -> (String, String) {
    (format!("{name}:1"), format!("{name}:2"))
}

/// Asks any replica for a change; what it answered, in a word.
async fn change(world: &World, random: &mut Random, change: Change) -> Option<ReplicaId> {
    let ids = world.ids();
    let via = ids.get(random.index(ids.len())).copied()?;
    let told = format!("{change:?}");
    let asked =
        world.ask(via, move |replica| async move { replica.manage(change, false).await }.boxed());
    let answer = asked.await;
    world.nodes.tell(|| format!("through replica {via}: {told}: {answer:?}"));
    world.nodes.note(&[9, via, u64::from(matches!(answer, Some(Ok(_))))]);
    answer?.ok().map(|managed| managed.replica)
}

/// Puts a new replica into an old one's place.
pub(crate) async fn replace(world: Arc<World>, mut random: Random) {
    let ids = world.ids();
    if !world.has_place() {
        return;
    }
    let victim = ids.get(random.index(ids.len())).copied().unwrap_or(1);
    put_in_place_of(world, victim, random, 5).await;
}

/// Enrols a replica in another one's place; an operator tries that so often.
pub(crate) async fn put_in_place_of(
    world: Arc<World>,
    victim: u64,
    mut random: Random,
    tries: u32,
) {
    let victim = Some(ReplicaId(victim));
    let key = random.hex64();
    let (peer_addr, api_addr) = addresses(&format!("new-{}", key.get(..8).unwrap_or_default()));
    let enrol = |replaces| Change::Enrol {
        key: key.clone(),
        peer_addr: peer_addr.clone(),
        api_addr: api_addr.clone(),
        replaces,
    };
    for _ in 0..tries {
        if let Some(id) = change(&world, &mut random, enrol(victim)).await {
            world.add(id.0, &peer_addr);
            return;
        }
        world_sleep(Duration::from_secs(1)).await;
    }
}

/// Has another replica lead, or takes one out of service for a while.
pub(crate) async fn shift(world: Arc<World>, mut random: Random) {
    let ids = world.ids();
    let id = ids.get(random.index(ids.len())).copied().map(ReplicaId);
    if random.coin() {
        let to = if random.coin() { id } else { None };
        change(&world, &mut random, Change::TransferLeader { to }).await;
        return;
    }
    let Some(replica) = id else { return };
    change(&world, &mut random, Change::Drain { replica, undo: false }).await;
    world_sleep(Duration::from_millis(random.within(500, 6_000))).await;
    for _ in 0..10 {
        let undone = change(&world, &mut random, Change::Drain { replica, undo: true }).await;
        if undone.is_some() {
            return;
        }
        world_sleep(Duration::from_secs(1)).await;
    }
}

/// The members by the word of whoever leads.
pub(crate) fn members(world: &World) -> Option<Vec<MemberStatus>> {
    let leader = world.leader()?;
    let (life, replica) = world.running(leader)?;
    Some(world.nodes.within(life, || replica.status()).members)
}
