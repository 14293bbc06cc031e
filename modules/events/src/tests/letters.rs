//! Dead letters: how many are kept, for how long, and which are dropped.

use std::time::Duration;

use palisade_contract::Code;
use serde_json::{Value, json};

use super::{
    waits,
    world::{World, answer},
};
use crate::{
    deliver::LETTERS_MAX,
    records::{DeliveryRow, LETTERS, LetterRow, QUEUE, Reason, SUBSCRIPTIONS},
    schedule::{LETTER_MS, TOTAL_MS},
};

/// A subscription whose receiver takes nothing.
fn world() -> World {
    let world = World::new();
    world.subscribe("pager", json!({"types": ["node"]}));
    world.receivers.answer(|_| answer(400));
    world
}

fn rows(world: &World) -> String {
    let row = SUBSCRIPTIONS.get(&world.view(), &"/pager".to_owned()).unwrap().unwrap();
    row.value.rows()
}

/// A letter with so many bytes, which was given up at this time.
fn letter(rows: &str, seq: u64, dead_at: u64, bytes: u64) -> LetterRow {
    let mut delivery = DeliveryRow { subscription: rows.to_owned(), ..waits(seq, "a") };
    delivery.event.bytes = bytes;
    LetterRow {
        subscription: rows.to_owned(),
        reason: Reason::Exhausted,
        delivery: Some(delivery),
        gap: None,
        dead_at,
        dead_at_ms: dead_at,
    }
}

/// These letters are there, and an event of this number is tried for the last time.
fn with_letters(world: &World, letters: &[LetterRow], seq: u64, bytes: u64) {
    let rows = rows(world);
    world.leap(TOTAL_MS + 10);
    let mut last = DeliveryRow {
        subscription: rows,
        attempts: 80,
        first_at: 1,
        last_at: 1,
        ..waits(seq, "a")
    };
    last.event.bytes = bytes;
    world.bench.commit(|tx| {
        for letter in letters {
            tx.put(&LETTERS, &letter.key(), letter)?;
        }
        tx.put(&QUEUE, &last.key(), &last)?;
        Ok(tx.enqueue("event-subscribers", "/pager")?)
    });
    world.bench.settle();
}

fn numbers(world: &World) -> Vec<u64> {
    let number = |letter: &Value| {
        letter["id"].as_str().unwrap().rsplit('/').next().unwrap().parse().unwrap()
    };
    world.listed("deadLetters.list", "pager").iter().map(number).collect()
}

#[test]
fn the_oldest_letters_leave_when_there_are_too_many() {
    let world = world();
    let rows = rows(&world);
    // The first number is not the oldest letter.
    let old: Vec<LetterRow> = (1..=LETTERS_MAX as u64)
        .map(|seq| letter(&rows, seq, if seq == 7 { 1 } else { 2 }, 2))
        .collect();
    with_letters(&world, &old, 5_000, 2);
    let kept = numbers(&world);
    assert_eq!(kept.len(), LETTERS_MAX, "EVT-5");
    assert!(!kept.contains(&7) && kept.contains(&1) && kept.contains(&5_000), "EVT-5");
    assert_eq!(world.shown("pager")["deadLettersLost"], 1);
}

#[test]
fn the_oldest_letters_leave_when_they_are_too_large() {
    let world = world();
    let rows = rows(&world);
    let large: Vec<LetterRow> = (1..=64).map(|seq| letter(&rows, seq, seq, 256 * 1024)).collect();
    with_letters(&world, &large, 100, 256 * 1024 + 1);
    let kept = numbers(&world);
    assert_eq!((kept.len(), kept[0]), (63, 3), "EVT-5: 16 MiB");
    assert_eq!(world.shown("pager")["deadLettersLost"], 2);
}

#[test]
fn old_letters_leave_and_that_is_told() {
    let world = world();
    let rows = rows(&world);
    world.bench.commit(|tx| {
        let letter = letter(&rows, 1, 1, 2);
        Ok(tx.put(&LETTERS, &letter.key(), &letter)?)
    });
    let hour = 3_600_000;
    let pass_an_hour = |world: &World| {
        for _ in 0..61 {
            world.bench.jobs("outbox-dispatch").tick();
            world.bench.advance(60_000);
        }
    };
    world.leap(LETTER_MS - 2 * hour);
    pass_an_hour(&world);
    assert_eq!(numbers(&world), [1]);
    world.leap(hour);
    pass_an_hour(&world);
    assert!(numbers(&world).is_empty());
    assert_eq!(world.shown("pager")["deadLettersLost"], 1);
    assert_eq!(world.findings(), ["subscriptions.dead-letters"]);
    let known = |lost: u64| json!({"subscription": "pager", "lost": lost});
    world.done("deadLetters.drop", known(1));
    assert_eq!(world.shown("pager")["deadLettersLost"], 0);
    assert!(world.findings().is_empty());
    world.done("deadLetters.drop", known(7));
    assert_eq!(world.shown("pager")["deadLettersLost"], 0);
}

#[test]
fn what_is_dropped_is_what_was_looked_at() {
    let world = world();
    let rows = rows(&world);
    let old: Vec<LetterRow> = (1..=2).map(|seq| letter(&rows, seq, seq, 2)).collect();
    with_letters(&world, &old, 3, 2);
    let all = json!({"subscription": "pager"});
    let refused = world.call("deadLetters.drop", all.clone()).unwrap_err();
    assert_eq!(
        (refused.code, refused.problems[0].pointer.as_str()),
        (Code::InvalidInput, "/letters"),
        "what came since the list was read was not looked at"
    );
    let twice = json!({"subscription": "pager", "letters": ["00000000000000000001", "00000000000000000001"]});
    assert_eq!(world.call("deadLetters.drop", twice).unwrap_err().code, Code::InvalidInput);
    let seen = json!({"subscription": "pager", "letters": [old[0].key(), old[1].key()]});
    assert_eq!(world.done("deadLetters.drop", seen), json!({"handled": 2, "left": 1}));
    assert_eq!(numbers(&world), [3], "it came later");
    world.receivers.answer(|_| answer(204));
    assert_eq!(world.done("deadLetters.replay", all), json!({"handled": 1, "left": 0}));
    world.pass(Duration::from_secs(5), Duration::from_secs(1));
    assert_eq!(world.receivers.take().last().map(|got| got.id.clone()), Some("cl_1-3".to_owned()));
}

#[test]
fn a_replay_fills_the_queue_no_further_than_that() {
    let world = world();
    let rows = rows(&world);
    world.done("subscriptions.pause", json!({"subscription": "pager"}));
    world.bench.commit(|tx| {
        let mut large = DeliveryRow { subscription: rows.clone(), ..waits(1, "a") };
        large.event.bytes = 16 * 1024 * 1024 - 10;
        tx.put(&QUEUE, &large.key(), &large)?;
        for (seq, bytes) in [(2, 8), (3, 3)] {
            let letter = letter(&rows, seq, seq, bytes);
            tx.put(&LETTERS, &letter.key(), &letter)?;
        }
        Ok(())
    });
    let all = json!({"subscription": "pager"});
    assert_eq!(world.done("deadLetters.replay", all.clone()), json!({"handled": 1, "left": 1}));
    let refused = world.call("deadLetters.replay", all).unwrap_err();
    assert_eq!(refused.code, Code::InvalidState, "EVT-5");
    assert_eq!(numbers(&world), [3], "EVT-3: it stays a letter");
}
