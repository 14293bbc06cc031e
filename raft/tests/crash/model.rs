//! What the writers of a campaign write: each its own rows, one transaction after the other, so that what a replica
//! holds says exactly how far each of them got.

use palisade_state::{Command, Txn, View, command::Write};

pub const WRITERS: usize = 4;
const SLOTS: u64 = 40;

/// How far each writer got.
pub type Counts = [u64; WRITERS];

pub fn text(counts: &Counts) -> String {
    counts.map(|count| count.to_string()).join(",")
}

pub fn counts(text: &str) -> Option<Counts> {
    let counts: Vec<u64> =
        text.split(',').map(|count| count.parse().ok()).collect::<Option<_>>()?;
    counts.try_into().ok()
}

fn key(writer: usize, slot: u64) -> String {
    format!("{writer}/{slot:02}")
}

fn last(writer: usize) -> String {
    format!("{writer}/last")
}

/// What transaction `number` leaves in its slot: every seventh deletes.
fn content(writer: usize, number: u64) -> Option<Vec<u8>> {
    let mut value = format!("{writer}:{number}:").into_bytes();
    value.resize(20 + (number as usize * 37) % 1500, number as u8);
    (!number.is_multiple_of(7)).then_some(value)
}

/// A writer's transaction `number`, which counts from 1.
pub fn transaction(writer: usize, number: u64) -> Command {
    let slot = key(writer, number % SLOTS);
    let write = |key: String, value| Write { table: "t".into(), key: key.into(), value };
    let writes = vec![
        write(slot, content(writer, number)),
        write(last(writer), Some(number.to_string().into_bytes())),
    ];
    Txn { writes, ..Txn::default() }.into()
}

fn row(view: &View, key: &str) -> Option<Vec<u8>> {
    view.row("t", key.as_bytes()).map(|row| row.value().to_vec())
}

/// How far each writer got, as `view` has it; everything before must be there, and nothing else.
pub fn read(view: &View) -> Result<Counts, String> {
    let mut counts = [0; WRITERS];
    for (writer, count) in counts.iter_mut().enumerate() {
        let text = row(view, &last(writer)).unwrap_or_else(|| b"0".to_vec());
        let number: u64 = String::from_utf8_lossy(&text).parse().map_err(|_| "not a number")?;
        for slot in 0..SLOTS {
            let newest = (1..=number).rev().take(SLOTS as usize).find(|n| n % SLOTS == slot);
            let expected = newest.and_then(|newest| content(writer, newest));
            if row(view, &key(writer, slot)) != expected {
                return Err(format!(
                    "writer {writer} got to {number}, and slot {slot} is not as {newest:?} left it"
                ));
            }
        }
        *count = number;
    }
    Ok(counts)
}

/// What is missing of what was acknowledged.
pub fn missing(found: &Counts, acked: &Counts) -> Option<String> {
    (0..WRITERS).find(|writer| found[*writer] < acked[*writer]).map(|writer| {
        format!("writer {writer} is at {}, acknowledged was {}", found[writer], acked[writer])
    })
}
