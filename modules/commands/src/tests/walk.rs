//! Random walks: whatever happens in whatever order, the invariants hold.

use std::collections::BTreeMap;

use super::*;

/// Numbers that follow from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n as u64).unwrap()
    }
}

/// What was seen of each command so far.
#[derive(Default)]
struct Seen {
    finished: BTreeMap<CommandId, Command>,
    times: BTreeMap<CommandId, u32>,
    fence: Fence,
}

impl Seen {
    fn look(&mut self, world: &World, unknown: bool) {
        let now_ms = world.bench.view().clock().now_ms;
        let rows = rows::COMMANDS.all(&world.bench.view()).unwrap();
        let rows: Vec<Command> = rows.into_iter().map(|(_, found)| found.value).collect();
        for lane in ["paint", "look"] {
            let of_lane: Vec<&Command> = rows.iter().filter(|row| row.lane == lane).collect();
            let flying: Vec<_> = of_lane.iter().filter(|row| row.state.is_in_flight()).collect();
            assert!(flying.len() <= 1, "CMD-1: {flying:?}");
        }
        for row in &rows {
            if row.state.is_finished() {
                let before = self.finished.entry(row.id.clone()).or_insert_with(|| row.clone());
                assert_eq!(before, row, "CMD-2");
            }
            let Some(sending) = &row.sending else { continue };
            let times = self.times.insert(row.id.clone(), sending.times).unwrap_or_default();
            if sending.times > times {
                assert!(sending.fence >= self.fence, "CMD-4");
                self.fence = sending.fence;
                let could_go = |other: &&Command| {
                    other.lane == row.lane
                        && other.seq < row.seq
                        && other.state == CommandState::Pending
                        && other.expires_ms > now_ms
                };
                let skipped = rows.iter().filter(could_go).count();
                assert!(times > 0 || skipped == 0, "CMD-3: {row:?}");
                assert!(times == 0 || row.retry_safe || unknown, "CMD-5: {row:?}");
            }
        }
    }
}

fn walk(seed: u64) -> usize {
    let (world, mut dice, mut seen) = (World::new(), Dice(seed), Seen::default());
    let mut ids: Vec<CommandId> = vec![];
    for n in 0..150 {
        let id = |dice: &mut Dice| (!ids.is_empty()).then(|| ids[dice.below(ids.len())].clone());
        let session = u8::try_from(dice.below(4)).unwrap();
        let (index, mut unknown) = (u64::from(session) + n / 50, false);
        match dice.below(8) {
            0 | 1 => {
                let key = dice.below(60).to_string();
                let request = if dice.below(2) == 0 {
                    paint(&world.node, &key)
                } else {
                    look(&world.node, &key)
                };
                let life = Duration::from_secs(dice.below(40) as u64);
                let batch = (dice.below(5) == 0).then(|| "b".to_owned());
                let request = CommandRequest { batch, ..request.not_after(life) };
                ids.push(world.enqueue(&request));
            }
            2 | 3 => {
                if let Some(id) = id(&mut dice) {
                    unknown = dice.below(3) == 0;
                    world.send_as(&id, session, index, unknown);
                }
            }
            4 => {
                let due = world.due();
                if let Some(id) = due.first() {
                    world.send(id, session, index);
                }
            }
            5 => {
                if let Some(id) = id(&mut dice) {
                    let answers = [done(), Answer::Running, Answer::Unknown];
                    world.answer(&id, &answers[dice.below(3)]);
                }
            }
            6 => {
                if let Some(id) = id(&mut dice) {
                    let _ = world.commit(|tx| world.port.cancel(tx, &id, ""));
                    let _ = world.commit(|tx| world.port.release(tx, &id));
                }
            }
            _ => world.pass(dice.below(8_000) as u64),
        }
        seen.look(&world, unknown);
    }
    seen.finished.len()
}

#[test]
fn the_invariants_hold_on_random_walks() {
    let seeds = std::env::var("PALISADE_COMMAND_WALKS").ok().and_then(|n| n.parse().ok());
    let finished: usize = (0..seeds.unwrap_or(40)).map(walk).sum();
    assert!(finished > 100, "{finished} commands came to an end");
}
