//! CLOCK-1 and CLOCK-2: logical time only grows, by little, and only by the leader of the entry's
//! own term; wall time never goes back.

use palisade_state::{
    Machine, Position,
    command::{Entry, FORMAT, Kind, Tick},
    limits::CLOCK_STEP_MS_MAX,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn time_is_the_sum_of_what_leaders_of_their_own_term_said(
        steps in prop::collection::vec((0..30_000_u64, 0..2_000_u64, 0..4_u64, any::<bool>()), 1..60),
    ) {
        let mut machine = Machine::default();
        let (mut term, mut now, mut wall) = (5, 0, 0);
        for (n, (delta_ms, wall_ms, behind, election)) in steps.into_iter().enumerate() {
            term += u64::from(election);
            let proposer_term = term - behind;
            let commands = vec![Kind::Tick(Tick {}).into()];
            let entry = Entry { format: FORMAT, proposer_term, delta_ms, wall_ms, commands };
            let outcomes = machine.apply(Position { term, index: n as u64 + 1 }, entry).unwrap();
            machine.publish();
            prop_assert_eq!(outcomes[0].is_applied(), behind == 0, "CLOCK-2, for ticks");
            if behind == 0 {
                now += delta_ms.min(CLOCK_STEP_MS_MAX);
                wall = wall.max(wall_ms);
            }
            let clock = machine.published().view().clock();
            prop_assert_eq!((clock.now_ms, clock.wall_ms), (now, wall), "CLOCK-1, CLOCK-2");
        }
    }
}

#[test]
fn entries_come_in_order_or_not_at_all() {
    let mut machine = Machine::default();
    let tick = |term| Entry {
        format: FORMAT,
        proposer_term: term,
        commands: vec![Kind::Tick(Tick {}).into()],
        ..Entry::default()
    };
    machine.apply(Position { term: 2, index: 5 }, tick(2)).unwrap();
    assert!(machine.apply(Position { term: 2, index: 5 }, tick(2)).is_err());
    assert!(machine.apply(Position { term: 2, index: 4 }, tick(2)).is_err());
    assert!(machine.apply(Position { term: 1, index: 6 }, tick(1)).is_err());
    assert!(machine.pass(Position { term: 1, index: 6 }).is_err());
    assert_eq!(machine.applied(), Position { term: 2, index: 5 });
    machine.pass(Position { term: 3, index: 6 }).unwrap();
}
