//! Growing, shrinking and moving a cluster.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use palisade_raft::{
    Change, Joining, ManageError, Managed, Member, MembershipTuning, Replica, StartError,
    TokioRuntime, Tuning, Why, join,
};
use palisade_state::{
    ReplicaId, Store,
    port::{MemberStatus, PendingJoin},
    roster,
};

use crate::support::{Cluster, eventually, holds, tuning, write};

pub fn quick() -> Tuning {
    let membership = MembershipTuning {
        check: Duration::from_millis(50),
        answer_within: Duration::from_millis(600),
        promote_after: Duration::from_millis(300),
        learner_timeout: Duration::from_secs(3),
        ..MembershipTuning::default()
    };
    Tuning { membership, ..tuning() }
}

fn free_addr() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

pub fn member(replica: &Replica, id: u64) -> Option<MemberStatus> {
    replica.status().members.into_iter().find(|member| member.id.0 == id)
}

fn voters(replica: &Replica) -> Vec<u64> {
    let members = replica.status().members.into_iter();
    members.filter(|member| member.voter).map(|member| member.id.0).collect()
}

fn remove(id: u64, force: bool) -> Change {
    Change::Remove { replica: ReplicaId(id), force }
}

async fn change(replica: &Replica, change: Change) -> Result<Managed, ManageError> {
    replica.manage(change, false).await
}

async fn why(replica: &Replica, asked: Change) -> Why {
    change(replica, asked).await.expect_err("it is refused").why
}

fn enrolment(key: &str, addr: SocketAddr, replaces: Option<u64>) -> Change {
    Change::Enrol {
        key: key.into(),
        peer_addr: addr.to_string(),
        api_addr: format!("api-{key}:1"),
        replaces: replaces.map(ReplicaId),
    }
}

/// What a replica says of itself when it joins.
pub fn joining(cluster: &Cluster, id: u64) -> Joining {
    let members = cluster.members().into_iter().filter(|member| member.id.0 != id).collect();
    Joining {
        rt: Arc::new(TokioRuntime::current().unwrap()),
        identity: cluster.identity(id),
        tls: cluster.issue(id),
        members,
        advertise: (String::new(), String::new()),
    }
}

pub async fn knock(cluster: &Cluster, id: u64) -> palisade_raft::Secrets {
    let joins = join(joining(cluster, id));
    tokio::time::timeout(Duration::from_secs(20), joins).await.unwrap().unwrap()
}

/// Enrols a replica; it does not run yet.
pub async fn enrol(cluster: &mut Cluster, key: &str, replaces: Option<u64>) -> u64 {
    let addr = free_addr();
    let via = cluster.replicas().next().unwrap();
    let id = change(&via, enrolment(key, addr, replaces)).await.unwrap().replica.0;
    cluster.add(id, addr);
    id
}

/// Enrols and starts a replica.
pub async fn joined(cluster: &mut Cluster, key: &str, replaces: Option<u64>) -> u64 {
    let id = enrol(cluster, key, replaces).await;
    knock(cluster, id).await;
    cluster.start(id).await;
    cluster.replica(id).join().await.unwrap();
    id
}

pub async fn votes(cluster: &Cluster, id: u64) {
    let replicas: Vec<_> = cluster.replicas().collect();
    eventually("it votes", || {
        replicas.iter().all(|replica| voters(replica).contains(&id)).then_some(())
    })
    .await;
}

fn events(replica: &Replica, id: u64) -> Vec<String> {
    let view = replica.view();
    let subject = format!("replica/{id}");
    view.events(0)
        .filter(|(_, event)| *event.subject == subject)
        .map(|(_, event)| event.kind.to_string())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_joins_as_a_learner_and_votes_once_it_has_caught_up() {
    let mut cluster = Cluster::formed(quick()).await;
    write(cluster.replica(1).as_ref(), "before", b"v").await.unwrap();
    let id = joined(&mut cluster, "k4", None).await;
    assert!(id > 3, "its id is a log index: {id}");
    assert!(holds(&cluster.replica(id).view(), "before"));
    votes(&cluster, id).await;
    write(cluster.replica(id).as_ref(), "from-it", b"v").await.unwrap();
    let leader = cluster.replica(cluster.leader().await);
    eventually("it is told", || (events(&leader, id).len() == 2).then_some(())).await;
    assert_eq!(events(&leader, id), ["replica.joining", "replica.promoted"]);
    drop(leader);

    // What the members were is in the log, whatever a replica was started with.
    for id in [1, 2, 3, id] {
        cluster.kill(id);
    }
    for id in [1, 2, 3, id] {
        cluster.start(id).await;
    }
    cluster.leader().await;
    assert!(holds(&cluster.replica(id).linearizable().await.unwrap(), "from-it"));
    assert_eq!(voters(&cluster.replica(1)), [1, 2, 3, id]);
    cluster.same_state().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_enrolled_once_and_no_two_keys_get_one_id() {
    let cluster = Cluster::formed(quick()).await;
    let replicas: Vec<_> = cluster.replicas().collect();
    let enrolling = (0..6).map(|number| {
        let replica = replicas[number % 3].clone();
        let asked = enrolment(&format!("k{}", number / 2), free_addr(), None);
        async move { (number / 2, change(&replica, asked).await.unwrap().replica) }
    });
    let mut given = futures::future::join_all(enrolling).await;
    given.sort();
    given.dedup();
    assert_eq!(given.len(), 3, "the same key, the same id: {given:?}");
    let mut ids: Vec<_> = given.iter().map(|(_, id)| id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 3, "ROSTER-1: {given:?}");
}

/// The only one that may join, once it is `id`.
async fn shown_as_pending(replica: &Replica, id: ReplicaId) -> PendingJoin {
    eventually("it is shown", || match replica.status().pending.as_slice() {
        [only] if only.id == id => Some(only.clone()),
        _ => None,
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_join_is_shown_and_keeps_its_addresses_for_itself() {
    let mut cluster = Cluster::formed(quick()).await;
    let leader = cluster.replica(cluster.leader().await);
    let addr = free_addr();
    let id = change(&leader, enrolment("k4", addr, Some(3))).await.unwrap().replica;
    let pending = shown_as_pending(&leader, id).await;
    assert_eq!(pending.replaces, Some(ReplicaId(3)));
    assert_eq!(pending.peer_addr, addr.to_string());

    let refused = change(&leader, enrolment("k5", addr, None)).await.unwrap_err();
    assert_eq!(refused.why, Why::Address);
    assert!(refused.detail.contains(&format!("cluster remove {id}`")), "{refused}");
    let again = change(&leader, enrolment("k4", addr, Some(3))).await.unwrap();
    assert_eq!(again.replica, id, "the same key");

    // It leaves its place to another one.
    let instead = enrolment("k5", addr, Some(id.0));
    let dry = leader.manage(instead.clone(), true).await.unwrap();
    assert!(dry.note.contains(&format!("instead of replica {id}")), "{}", dry.note);
    let other = change(&leader, instead).await.unwrap().replica;
    let pending = shown_as_pending(&leader, other).await;
    assert_eq!(pending.replaces, Some(ReplicaId(3)), "in the place of the same member");
    assert!(roster::is_removed(&leader.view(), id));

    cluster.add(other.0, addr);
    knock(&cluster, other.0).await;
    eventually("it has come", || leader.status().pending.is_empty().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_waits_for_a_dead_replica_is_shown_until_it_is_back() {
    let mut cluster = Cluster::formed(quick()).await;
    let (leader, dead) = (cluster.leader().await, cluster.follower().await);
    let living = (1..=3).find(|id| *id != leader && *id != dead).unwrap();
    let replica = cluster.replica(leader);
    assert_eq!(replica.status().change, None);
    cluster.kill(dead);
    let forced = tokio::spawn({
        let replica = replica.clone();
        async move { change(&replica, remove(living, true)).await }
    });
    let shown = eventually("it is shown", || replica.status().change).await;
    let ids = |ids: Vec<ReplicaId>| ids.into_iter().map(|id| id.0).collect::<Vec<_>>();
    assert_eq!(ids(shown.from), [1, 2, 3]);
    let mut left = vec![leader, dead];
    left.sort_unstable();
    assert_eq!(ids(shown.to), left);

    cluster.start(dead).await;
    drop(forced.await.unwrap());
    eventually("it is over", || {
        let status = cluster.replica(dead).status();
        (status.change.is_none() && status.members.len() == 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_stalls_is_given_up_while_another_joins() {
    let mut cluster = Cluster::formed(quick()).await;
    let stalled = enrol(&mut cluster, "stalled", None).await;
    // It says hello and then never runs.
    knock(&cluster, stalled).await;
    let leader = cluster.replica(cluster.leader().await);
    eventually("a learner", || member(&leader, stalled).filter(|m| !m.voter)).await;
    let other = joined(&mut cluster, "other", None).await;
    votes_among(&cluster, &[1, 2, 3, other], other).await;
    eventually("it is given up", || member(&leader, stalled).is_none().then_some(())).await;
    eventually("it is told", || {
        events(&leader, stalled).contains(&"replica.stalled".to_owned()).then_some(())
    })
    .await;
    // It comes after all, and is told.
    cluster.start(stalled).await;
    let told = eventually("it hears of it", || cluster.replica(stalled).fault()).await;
    assert!(told.contains("no progress"), "{told}");
}

async fn votes_among(cluster: &Cluster, on: &[u64], id: u64) {
    for on in on {
        let replica = cluster.replica(*on);
        eventually("it votes", || voters(&replica).contains(&id).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_replica_says_so_and_never_starts_again() {
    let mut cluster = Cluster::formed(quick()).await;
    let (leader, gone) = (cluster.leader().await, cluster.follower().await);
    let done = change(&cluster.replica(gone), remove(gone, false)).await.unwrap();
    assert!(done.note.contains("2 voters remain, 0 of which may fail"), "{}", done.note);
    let removed = cluster.replica(gone);
    let told = eventually("it hears of it", || removed.fault()).await;
    assert!(told.contains("was removed from cluster"), "{told}");
    assert!(removed.is_barred());
    assert!(write(removed.as_ref(), "k", b"v").await.is_err(), "it does not serve");
    cluster.stop(gone).await;
    match cluster.try_start(gone).await {
        Err(StartError::Removed(told)) => assert!(told.contains("palisade cluster join"), "{told}"),
        other => panic!("{other:?}"),
    }
    let leader = cluster.replica(leader);
    assert!(roster::is_removed(&leader.view(), ReplicaId(gone)));
    write(leader.as_ref(), "after", b"v").await.unwrap();
    let again = change(&leader, remove(gone, false)).await.unwrap();
    assert!(
        again.note.contains("never comes back"),
        "removing twice is no mistake: {}",
        again.note
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_was_away_when_it_was_removed_hears_of_it_when_it_is_back() {
    let mut cluster = Cluster::formed(quick()).await;
    let (leader, gone) = (cluster.leader().await, cluster.follower().await);
    cluster.kill(gone);
    let leader = cluster.replica(leader);
    change(&leader, remove(gone, false)).await.unwrap();
    eventually("the farewell is given up or waits", || Some(())).await;
    cluster.start(gone).await;
    let told = eventually("it hears of it", || cluster.replica(gone).fault()).await;
    assert!(told.contains("was removed"), "{told}");
    assert!(cluster.dir(gone).join("removed.json").exists(), "MEMBER-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_replica_is_replaced_in_one_step() {
    let mut cluster = Cluster::formed(quick()).await;
    let (leader, dead) = (cluster.leader().await, cluster.follower().await);
    cluster.kill(dead);
    let id = joined(&mut cluster, "k4", Some(dead)).await;
    votes(&cluster, id).await;
    let leader = cluster.replica(leader);
    eventually("the dead one is out", || (!voters(&leader).contains(&dead)).then_some(())).await;
    assert_eq!(voters(&leader).len(), 3);
    eventually("it is marked", || {
        roster::is_removed(&leader.view(), ReplicaId(dead)).then_some(())
    })
    .await;
    write(leader.as_ref(), "after", b"v").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_is_replaced_by_handing_over_first() {
    let mut cluster = Cluster::formed(quick()).await;
    let old = cluster.leader().await;
    let id = joined(&mut cluster, "k4", Some(old)).await;
    let other = if old == 1 { 2 } else { 1 };
    let other = cluster.replica(other);
    eventually("it is replaced", || {
        let now = voters(&other);
        (now.contains(&id) && !now.contains(&old)).then_some(())
    })
    .await;
    eventually("it hears of it", || cluster.replica(old).fault()).await;
    write(other.as_ref(), "after", b"v").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_puts_the_quorum_at_risk_is_refused_without_force() {
    let mut cluster = Cluster::formed(quick()).await;
    let (leader, dead) = (cluster.leader().await, cluster.follower().await);
    let living = (1..=3).find(|id| *id != leader && *id != dead).unwrap();
    cluster.kill(dead);
    let replica = cluster.replica(leader);
    // At once: that it answered a moment ago says nothing (`MEMBER-8`).
    let refused = change(&replica, remove(living, false)).await.unwrap_err();
    assert_eq!(refused.why, Why::AtRisk);
    assert!(refused.detail.contains("only 1 would answer and 2 must"), "{refused}");
    assert!(refused.detail.contains("--force"), "{refused}");
    assert_eq!(voters(&replica).len(), 3, "nothing was changed");
    assert_eq!(why(&replica, remove(99, false)).await, Why::UnknownReplica);

    change(&replica, remove(dead, false)).await.unwrap();
    let refused = change(&replica, remove(living, false)).await.unwrap_err();
    assert!(refused.detail.contains("one voter would remain"), "{refused}");
    change(&replica, remove(living, true)).await.unwrap();
    assert_eq!(why(&replica, remove(leader, true)).await, Why::LastVoter);
    write(replica.as_ref(), "alone", b"v").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_removes_itself_by_handing_over_first() {
    let cluster = Cluster::formed(quick()).await;
    let old = cluster.leader().await;
    let dry = cluster.replica(old).manage(remove(old, false), true).await.unwrap();
    assert!(dry.note.contains("would be removed"), "{}", dry.note);
    assert!(cluster.replica(old).is_leader(), "a dry run does nothing");
    change(&cluster.replica(old), remove(old, false)).await.unwrap();
    eventually("it hears of it", || cluster.replica(old).fault()).await;
    let others = (1..=3).filter(|id| *id != old).collect::<Vec<_>>();
    let other = cluster.replica(others[0]);
    write(other.as_ref(), "after", b"v").await.unwrap();
    assert_eq!(voters(&other), others);
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_goes_where_it_is_sent_and_nowhere_else() {
    let mut cluster = Cluster::formed(quick()).await;
    let transfer = |to: Option<u64>| Change::TransferLeader { to: to.map(ReplicaId) };
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let third = (1..=3).find(|id| *id != leader && *id != follower).unwrap();
    let done = change(&cluster.replica(third), transfer(Some(follower))).await.unwrap();
    assert_eq!(done.replica, ReplicaId(follower));
    assert_eq!(cluster.leader().await, follower);
    let done = change(&cluster.replica(follower), transfer(None)).await.unwrap();
    assert_ne!(done.replica, ReplicaId(follower));
    assert_eq!(cluster.leader().await, done.replica.0);

    let replica = cluster.replica(third);
    assert_eq!(why(&replica, transfer(Some(99))).await, Why::UnknownReplica);
    let learner = enrol(&mut cluster, "k4", None).await;
    assert_eq!(why(&replica, transfer(Some(learner))).await, Why::NotAVoter);
    knock(&cluster, learner).await;
    assert_eq!(why(&replica, transfer(Some(learner))).await, Why::NotAVoter);
    let leader = cluster.leader().await;
    let dead = (1..=3).find(|id| *id != leader && *id != third).unwrap_or(third);
    if dead != third {
        cluster.kill(dead);
        let asked = cluster.replica(leader);
        eventually("it is missed", || {
            member(&asked, dead)?.last_ack_ms.is_none_or(|ms| ms > 700).then_some(())
        })
        .await;
        assert_eq!(why(&asked, transfer(Some(dead))).await, Why::NotHealthy);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_replica_does_not_lead() {
    let cluster = Cluster::formed(quick()).await;
    let old = cluster.leader().await;
    let drain = |id, undo| Change::Drain { replica: ReplicaId(id), undo };
    change(&cluster.replica(old), drain(old, false)).await.unwrap();
    let replica = cluster.replica(old);
    eventually("another leads", || (!replica.is_leader()).then_some(())).await;
    let new = cluster.leader().await;
    assert!(member(&replica, old).unwrap().drained);
    let to_old = Change::TransferLeader { to: Some(ReplicaId(old)) };
    assert_eq!(why(&replica, to_old.clone()).await, Why::Drained);
    let third = (1..=3).find(|id| *id != old && *id != new).unwrap();
    change(&replica, drain(third, false)).await.unwrap();
    assert_eq!(why(&replica, drain(new, false)).await, Why::AtRisk, "nobody would be left");
    change(&replica, drain(old, true)).await.unwrap();
    change(&replica, to_old).await.unwrap();
    assert_eq!(cluster.leader().await, old);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_moved_says_where_it_is() {
    let mut cluster = Cluster::formed(quick()).await;
    let moved = cluster.follower().await;
    cluster.stop(moved).await;
    let node = cluster.node_mut(moved);
    node.addr = free_addr();
    node.neighbours.advertise = Some((node.addr.to_string(), "new-api:1".into()));
    let addr = node.addr.to_string();
    cluster.start(moved).await;
    for replica in cluster.replicas() {
        eventually("its record is new", || {
            let member = member(&replica, moved)?;
            (member.peer_addr == addr && member.api_addr == "new-api:1").then_some(())
        })
        .await;
    }
    write(cluster.replica(moved).as_ref(), "k", b"v").await.unwrap();
    let to = Change::TransferLeader { to: Some(ReplicaId(moved)) };
    let leader = cluster.replica(cluster.leader().await);
    eventually("it answers there", || {
        member(&leader, moved)?.last_ack_ms.is_some_and(|ms| ms < 500).then_some(())
    })
    .await;
    change(&leader, to).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_all_moved_find_each_other_by_their_hints() {
    let mut cluster = Cluster::formed(quick()).await;
    write(cluster.replica(1).as_ref(), "before", b"v").await.unwrap();
    let old = cluster.members();
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        cluster.node_mut(id).addr = free_addr();
    }
    let hints = cluster.members();
    for id in 1..=3 {
        let node = cluster.node_mut(id);
        node.neighbours.hints.clone_from(&hints);
        node.neighbours.advertise = Some((node.addr.to_string(), format!("moved-{id}:1")));
        cluster.start(id).await;
    }
    let view = cluster.replica(2).linearizable().await;
    assert!(holds(&view.unwrap(), "before"), "ADDR-1");
    let all: Vec<_> = cluster.replicas().collect();
    eventually("all records are new", || {
        let moved = |replica: &Arc<Replica>| {
            let members = replica.status().members;
            members.iter().zip(&hints).all(|(m, hint)| {
                m.peer_addr == hint.peer_addr && m.api_addr == format!("moved-{}:1", m.id)
            })
        };
        all.iter().all(moved).then_some(())
    })
    .await;
    drop(all);
    // The records are right now, and the hints are old.
    for id in 1..=3 {
        cluster.kill(id);
    }
    for id in 1..=3 {
        let node = cluster.node_mut(id);
        node.neighbours.hints.clone_from(&old);
        node.neighbours.advertise = None;
        cluster.start(id).await;
    }
    assert!(holds(&cluster.replica(3).linearizable().await.unwrap(), "before"), "ADDR-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_set_for_a_replica_and_never_twice() {
    let cluster = Cluster::formed(quick()).await;
    let replica = cluster.replica(1);
    let set = |id, peer: &str, api: &str| Change::SetAddress {
        replica: ReplicaId(id),
        peer_addr: peer.into(),
        api_addr: api.into(),
    };
    change(&replica, set(2, "", "elsewhere:2")).await.unwrap();
    eventually("it is noted", || (member(&replica, 2)?.api_addr == "elsewhere:2").then_some(()))
        .await;
    let taken = cluster.node(3).addr.to_string();
    assert_eq!(why(&replica, set(2, &taken, "")).await, Why::Address);
    assert_eq!(why(&replica, set(42, "a:1", "")).await, Why::UnknownReplica);
    for anywhere in ["0.0.0.0:1", "[::]:1"] {
        assert_eq!(why(&replica, set(2, anywhere, "")).await, Why::Address);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_for_members_and_a_stranger_is_not_heard() {
    let mut cluster = Cluster::formed(quick()).await;
    write(cluster.replica(1).as_ref(), "k", b"v").await.unwrap();
    let id = enrol(&mut cluster, "k4", None).await;
    let secrets = knock(&cluster, id).await;
    assert_eq!(secrets, [("ca.key".to_owned(), b"secret".to_vec())]);

    // A certificate of the cluster's own CA, and an id that state never gave.
    let members: Vec<Member> = cluster.members().into_iter().take(3).collect();
    let stranger = Joining {
        rt: Arc::new(TokioRuntime::current().unwrap()),
        identity: cluster.identity(4),
        tls: cluster.issue(4),
        members,
        advertise: (String::new(), String::new()),
    };
    let refused = tokio::time::timeout(Duration::from_secs(2), join(stranger)).await;
    assert!(refused.is_err(), "it is kept waiting at the door, and given nothing");
}
