//! Changes of the members, and the roll of binaries, while clients work.

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Injected, LOOK, Taken, Tools, place, ready, take, take_seat};
use crate::{
    clock::{self, Clock},
    history::Exit,
    http::{BASE, Request},
    rig::{self, Member, Rig, Seat},
};

/// So long the cluster may be without a quorum while something is asked.
const ASK_LIMIT: Duration = Duration::from_secs(45);
/// A learner must have answered for ten seconds before it votes.
const VOTES_SOON: Duration = Duration::from_secs(14);
const VOTES_LIMIT: Duration = Duration::from_secs(60);
const ENDS_LIMIT: Duration = Duration::from_secs(20);
const AGAIN_MS: u64 = 500;

/// Calls the product's command line until it does what it is asked.
async fn call(rig: &Rig, args: &[std::ffi::OsString]) -> Result<Value> {
    let clock = Clock::start();
    loop {
        match rig.binary.run(&rig.context_file(), args).await {
            Ok(text) => return serde_json::from_str(&text).context("that is no JSON"),
            Err(error) if clock.elapsed() > ASK_LIMIT => return Err(error),
            Err(error) => tracing::debug!(error = format!("{error:#}"), "asked again"),
        }
        clock::sleep_ms(AGAIN_MS).await;
    }
}

async fn post(rig: &Rig, path: &str, body: Value) -> Result<Value> {
    let clock = Clock::start();
    loop {
        // A refusal stays under its key: each try has one of its own.
        let key = format!("members-{}", clock::unix_micros());
        let request = Request::post(format!("{BASE}/cluster/{path}"), key, body.clone());
        match rig.http.ask(&request, ASK_LIMIT).await {
            Ok(answer) => return Ok(answer.body),
            Err(error) if clock.elapsed() > ASK_LIMIT => return Err(error),
            Err(_) => clock::sleep_ms(AGAIN_MS).await,
        }
    }
}

/// The voters, as the leader knows them; `None` while they change, too: until that is over a majority of those before is
/// needed as well, and who is gone already is one of them.
pub(crate) async fn voters(rig: &Rig) -> Option<Vec<u64>> {
    let request = Request::get(format!("{BASE}/cluster"));
    let answer = rig.http.ask(&request, Duration::from_secs(5)).await.ok()?;
    let changes = answer.body.get("change").is_some_and(|change| !change.is_null());
    (!changes).then(|| rig::voters(&answer.body))
}

/// Waits until each replica of the cluster votes. One that lost what it had and has not come back yet, whatever that took, is the
/// one that may be lost: a second one would be the majority of three.
pub(super) async fn all_vote(rig: &Rig) -> Result<()> {
    let whole = clock::poll(VOTES_LIMIT, 4 * LOOK, || async {
        let voters = voters(rig).await?;
        let mut seated: Vec<u64> = rig.seats.iter().filter_map(Seat::id).collect();
        seated.sort_unstable();
        (voters == seated).then_some(())
    });
    whole.await.context("not every replica votes, and so no other one may lose what it has")
}

/// While one leader after the other falls nobody gets to vote: after a while the other faults wait.
///
/// Nobody who asks may hold a seat: another fault may wait for it, and this one for that.
pub(super) async fn until_votes(tools: &Tools, seat: &Seat) -> Result<()> {
    if votes_within(tools, seat, VOTES_SOON).await.is_some() {
        return Ok(());
    }
    let _calm = tools.rig.calm.write().await;
    let voted = votes_within(tools, seat, VOTES_LIMIT).await;
    voted.ok_or_else(|| seat.member.complaint("joined and does not vote"))
}

async fn votes_within(tools: &Tools, seat: &Seat, limit: Duration) -> Option<()> {
    let voted = clock::poll(limit, 4 * LOOK, || async {
        let voters = voters(&tools.rig).await?;
        voters.contains(&seat.id()?).then_some(())
    });
    voted.await
}

fn id_of(answer: &Value) -> Result<u64> {
    answer.get("replica").and_then(Value::as_u64).context("the answer names no replica")
}

fn wipe(dir: &Path) -> Result<()> {
    if dir.exists() {
        std::fs::remove_dir_all(dir).context("cannot remove a replica's directory")?;
    }
    Ok(())
}

/// The replica that an operator is told to take back: one that was let in by a call whose answer was
/// lost, and with it the key.
fn to_take_back(said: &str) -> Option<u64> {
    let (before, _) = said.split_once("` takes that back")?;
    before.rsplit_once("palisade cluster remove ")?.1.parse().ok()
}

async fn take_back(rig: &Rig, id: u64) {
    let key = format!("take-back-{id}-{}", clock::unix_micros());
    let request = Request::delete(format!("{BASE}/cluster/replicas/{id}"), key);
    if let Err(error) = rig.http.ask(&request, ASK_LIMIT).await {
        tracing::debug!(error = format!("{error:#}"), id, "a replica was not taken back");
    }
}

/// Lets a new replica sit at a seat, in the place of another one or as one more.
async fn join(tools: &Tools, seat: &Seat, replace: Option<u64>) -> Result<()> {
    wipe(&seat.dir)?;
    let args = rig::join_replica(&seat.dir, &seat.advertise.flag(), &seat.listen.flag(), replace);
    let clock = Clock::start();
    let answer = loop {
        match tools.rig.binary.run(&tools.rig.context_file(), &args).await {
            Ok(text) => break serde_json::from_str(&text).context("that is no JSON")?,
            Err(error) if clock.elapsed() > ASK_LIMIT => return Err(error),
            Err(error) => {
                // What a try that failed left would be in the way, here and in the cluster.
                wipe(&seat.dir)?;
                if let Some(id) = to_take_back(&format!("{error:#}")) {
                    take_back(&tools.rig, id).await;
                }
            }
        }
        clock::sleep_ms(AGAIN_MS).await;
    };
    seat.seat(Some(id_of(&answer)?));
    seat.member.start()
}

/// Repairs a replica that refuses to start, and starts it under its new id.
pub(super) async fn repair(tools: &Tools, seat: &Seat) -> Result<()> {
    let answer = call(&tools.rig, &rig::repair(&seat.dir)).await?;
    seat.seat(Some(id_of(&answer)?));
    seat.member.start()
}

/// One joins at the free seat; then another one is removed.
pub(super) async fn change(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let rig = &tools.rig;
    let _one_at_a_time = rig.loss.lock().await;
    all_vote(rig).await?;
    let free =
        rig.seats.iter().find(|seat| seat.id().is_none()).context("there is no free seat")?;
    injected.begin(tools, [&free.member]);
    {
        let _guard = free.busy.lock().await;
        join(tools, free, None).await?;
    }
    // From here on it may be killed like the others.
    until_votes(tools, free).await?;
    let joined = free.id().unwrap_or(0);
    let leaver = place(rig, injected.planned.target).await?;
    let seat = rig.seats.get(leaver).context("there is no such seat")?;
    let taken = take_seat(seat).await?;
    injected.hit.push(seat.member.name.clone());
    let (left, wrong) = remove(tools, &taken).await?;
    injected.wrong = wrong;
    injected.note = format!("{joined} joined, {left} was removed");
    Ok(())
}

/// Removes whoever sits there, and sees it end by itself.
async fn remove(tools: &Tools, taken: &Taken<'_>) -> Result<(u64, Option<Exit>)> {
    let (rig, seat) = (&tools.rig, taken.seat);
    let id = seat.id().context("nobody sits there")?;
    seat.member.tend(true);
    let clock = Clock::start();
    // It may be refused while too few of the others answer.
    loop {
        let key = format!("remove-{id}-{}", clock::unix_micros());
        let request = Request::delete(format!("{BASE}/cluster/replicas/{id}"), key);
        match rig.http.ask(&request, ASK_LIMIT).await {
            Ok(_) => break,
            Err(error) if clock.elapsed() > ASK_LIMIT => {
                seat.member.tend(false);
                return Err(error);
            }
            Err(_) => clock::sleep_ms(AGAIN_MS).await,
        }
    }
    let ended = clock::poll(ENDS_LIMIT, LOOK, || async { seat.member.ended() }).await;
    seat.seat(None);
    if ended.is_none() {
        // It has not heard of it, as one that is cut off does not.
        let _ = seat.member.kill();
    }
    seat.member.tend(false);
    let wrong = ended.filter(|status| status.code() != Some(4));
    let what = |status| format!("{status}, when it was removed, which is to be 4");
    Ok((id, wrong.map(|status| wrong_exit(tools, &seat.member, what(status)))))
}

fn wrong_exit(tools: &Tools, member: &Member, status: String) -> Exit {
    Exit { at: tools.clock.micros(), process: member.name.clone(), status, log: member.log_tail() }
}

/// One is lost with its data, and another one takes its place.
pub(super) async fn replace(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let rig = &tools.rig;
    let _one_at_a_time = rig.loss.lock().await;
    all_vote(rig).await?;
    let taken = take(rig, injected.planned.target).await?;
    let seat = taken.seat;
    let old = seat.id().context("nobody sits there")?;
    injected.begin(tools, [&seat.member]);
    seat.member.tend(true);
    seat.member.kill()?;
    let joined = join(tools, seat, Some(old)).await;
    seat.member.tend(false);
    drop(taken);
    joined?;
    until_votes(tools, seat).await?;
    injected.note = format!("{} in the place of {old}", seat.id().unwrap_or(0));
    Ok(())
}

/// Another one leads.
pub(super) async fn transfer(tools: &Tools, injected: &mut Injected) -> Result<()> {
    injected.began_ms = tools.clock.millis();
    let answer = post(&tools.rig, "transfer-leader", serde_json::json!({})).await?;
    let leader = id_of(&answer)?;
    injected.note = format!("to replica {leader}");
    let seat = tools.rig.seats.iter().find(|seat| seat.id() == Some(leader));
    injected.hit = seat.map(|seat| seat.member.name.clone()).into_iter().collect();
    Ok(())
}

/// One is drained for some time.
pub(super) async fn drain(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let rig = &tools.rig;
    let taken = take(rig, injected.planned.target).await?;
    let id = taken.seat.id().context("nobody sits there")?;
    injected.begin(tools, [&taken.seat.member]);
    let path = format!("replicas/{id}/drain");
    let drained = post(rig, &path, serde_json::json!({})).await;
    clock::sleep_ms(injected.planned.lasts_ms).await;
    // Whether or not it is known to be drained, it is not left so.
    post(rig, &path, serde_json::json!({"undo": true})).await?;
    drained.map(drop)
}

/// Each is stopped in order and started with the next binary.
pub(super) async fn roll(tools: &Tools, injected: &mut Injected) -> Result<()> {
    let rig = &tools.rig;
    injected.began_ms = tools.clock.millis();
    let mut slow = 0;
    for place in rig.places() {
        let seat = rig.seats.get(place).context("there is no such seat")?;
        let Ok(taken) = take_seat(seat).await else { continue };
        let member = &taken.seat.member;
        injected.hit.push(member.name.clone());
        // One that another fault has just started has nothing yet that it could end in order.
        if !ready(rig, &[taken.seat]).await {
            tracing::warn!(member = %member.name, "is not ready and is rolled all the same");
        }
        member.tend(true);
        member.terminate()?;
        let ended = clock::poll(ENDS_LIMIT, LOOK, || async { member.ended() }).await;
        if ended.is_none() {
            slow += 1;
            member.kill()?;
        }
        member.relaunch(|launch| launch.program = tools.next.path().to_owned());
        member.start()?;
        member.tend(false);
        if let Some(status) = ended.filter(|status| !status.success()) {
            let what = format!("{status}, when it was told to end, which is to be 0");
            injected.wrong = Some(wrong_exit(tools, member, what));
        }
        if !ready(rig, &[taken.seat]).await {
            tracing::warn!(member = %member.name, "is not ready after it was rolled");
        }
    }
    injected.note = format!(
        "to {}{}",
        tools.next.path().display(),
        if slow > 0 { format!("; {slow} did not end within 20 s") } else { String::new() }
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_names_a_replica_to_take_back_is_understood() {
        let said = "error: replica 604, which may join and has not come yet, has the address \
            10.77.0.1:10081: `palisade cluster remove 604` takes that back\nhint: write HOST";
        assert_eq!(to_take_back(said), Some(604));
        assert_eq!(to_take_back("error: no replica of 3 answered within 10 s"), None);
    }
}
