//! SIGKILL at random moments: while it starts, recovers, writes, rotates, purges, or takes a snapshot.

use std::time::{Duration, Instant};

use super::{Campaign, Dice, Log, rounds};
use crate::support::files;

#[test]
fn nothing_acknowledged_is_lost_to_kills_at_random_moments() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("data");
    let _log = Log(&dir);
    let (rounds, begun) = (rounds(200), Instant::now());
    let mut dice = Dice(20_26);
    let mut campaign = Campaign::new();
    for round in 0..rounds {
        let mut writer = campaign.start(&dir);
        // Most are killed at work, and every fourth before or while it recovers.
        if round % 4 != 3 {
            campaign.recover(&mut writer, &dir);
        }
        std::thread::sleep(Duration::from_micros(dice.below(120_000)));
        writer.process.kill().unwrap();
        campaign.finish(writer, &dir);
    }
    let mut writer = campaign.start(&dir);
    campaign.recover(&mut writer, &dir);
    writer.process.kill().unwrap();
    campaign.finish(writer, &dir);
    let written: u64 = campaign.acked.iter().sum();
    println!(
        "{rounds} kills in {:?}: {} recoveries reported, {written} transactions acknowledged, term {}",
        begun.elapsed(),
        campaign.recoveries,
        campaign.term
    );
    assert!(campaign.recoveries > rounds * 3 / 4 && written > rounds, "the campaign did its work");
    let segments = files(&dir.join("log"), "seg");
    assert!(!segments[0].ends_with("00000001.seg"), "segments came and went: {segments:?}");
    // A third one when the last kill came before the oldest was removed.
    let snapshots = files(&dir.join("snapshots"), "snap");
    assert!((2..=3).contains(&snapshots.len()), "{snapshots:?}");
}
