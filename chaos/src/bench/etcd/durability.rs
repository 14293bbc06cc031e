//! What was acknowledged is there after SIGKILL of all members in the middle of the work.
//!
//! The kernel of the machine survives, so that this does not tell a flush from a write; how many
//! writes share one flush of the disk is told with each figure.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, anyhow};
use futures::future::join;

use super::{
    Pair,
    client::{Client, Failure},
    cluster::{Cluster, Side},
    load::{self, Keys, Plan, Steps},
    report::{Goal, Line, Round},
};
use crate::{bench::Better, clock};

const BEFORE_KILL: Duration = Duration::from_millis(1000);
const AFTER_KILL: Duration = Duration::from_millis(200);
const CLIENTS: usize = 64;
const PREFIX: &str = "durable";

/// Writes, and remembers what was acknowledged.
struct Remembering {
    keys: Keys,
    acknowledged: Vec<Vec<u8>>,
}

impl Steps for Remembering {
    async fn step(&mut self, client: &mut Client) -> Result<u64, Failure> {
        let row = self.keys.row();
        let key = row.0.clone();
        client.put(row).await?;
        self.acknowledged.push(key);
        Ok(1)
    }
}

/// Kills all members of each side in the middle of the work.
pub(super) async fn measure(pair: &Pair) -> Result<Vec<Line>> {
    let mut lost = [None, None];
    let mut all = 0;
    for (slot, side) in lost.iter_mut().zip([Side::Ours, Side::Etcd]) {
        let Some(cluster) = pair.side(side) else { continue };
        let (acknowledged, gone) = one(cluster).await?;
        eprintln!(
            "  SIGKILL of all              {:<8} {acknowledged} writes were acknowledged, {gone} are lost",
            side.name()
        );
        if side == Side::Ours {
            all = acknowledged;
        }
        *slot = Some(gone as f64);
    }
    let [ours, peer] = lost;
    let round = Round { ours: ours.unwrap_or(0.0), peer, foreign: 0.0 };
    let what = "acknowledged writes lost by SIGKILL of all three";
    let line = Line::new(what, "writes", &[round], Goal::ValueAtMost(0.0), Better::Lower);
    Ok(vec![line.with("acknowledged", all)])
}

/// How many writes were acknowledged, and how many of them are not there.
async fn one(cluster: &Cluster) -> Result<(usize, usize)> {
    let (leader, _) = cluster.until_settled().await?;
    let plan = Plan { clients: CLIENTS, warm: Duration::ZERO, measured: BEFORE_KILL + AFTER_KILL };
    let make = |number| Remembering { keys: Keys::new(PREFIX, number), acknowledged: Vec::new() };
    let killed = async {
        clock::sleep(BEFORE_KILL).await;
        cluster.kill_all();
    };
    let (done, ()) = join(load::closed_loop(cluster, leader, plan, make), killed).await;
    let (_, steps) = done?;
    cluster.start_all()?;
    let (leader, _) = cluster.until_settled().await?;
    let mut client = cluster.client(leader).await?;
    let there = everything(&mut client).await.map_err(|failure| anyhow!("{failure}"))?;
    let acknowledged: Vec<Vec<u8>> =
        steps.into_iter().flat_map(|steps| steps.acknowledged).collect();
    Ok((acknowledged.len(), missing(&acknowledged, &there)))
}

fn missing(acknowledged: &[Vec<u8>], there: &BTreeSet<Vec<u8>>) -> usize {
    acknowledged.iter().filter(|key| !there.contains(*key)).count()
}

/// All keys that are there.
async fn everything(client: &mut Client) -> Result<BTreeSet<Vec<u8>>, Failure> {
    let mut there = BTreeSet::new();
    let mut start = format!("{PREFIX}/").into_bytes();
    let end = format!("{PREFIX}0").into_bytes();
    loop {
        let (keys, more) = client.keys(&start, &end).await?;
        let last = keys.last().map(|key| key.to_vec());
        there.extend(keys.iter().map(|key| key.to_vec()));
        match last {
            // The next possible key.
            Some(mut last) if more => {
                last.push(0);
                start = last;
            }
            _ => return Ok(there),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_and_is_not_there_is_missing() {
        let there = BTreeSet::from([b"a".to_vec(), b"c".to_vec()]);
        assert_eq!(missing(&[b"a".to_vec(), b"b".to_vec()], &there), 1);
        assert_eq!(missing(&[b"c".to_vec()], &there), 0);
    }
}
