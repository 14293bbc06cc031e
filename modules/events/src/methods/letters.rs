//! Dead letters: looked at, sent again, or dropped.

use palisade_contract::{Code, Error, Method, MethodContext, Problem, Result, Verb, Watched};
use palisade_state::Tx;
use serde_json::json;

use super::{
    DropLetters, Handled, READ, SomeLetters, WRITE,
    change::{full, has_room},
    dead,
    inputs::LETTERS_MAX,
    not_found, on,
};
use crate::{
    deliver::SUBSCRIBERS,
    records::{
        DeliveryRow, LETTERS, LetterRow, PROGRESS, ProgressRow, QUEUE, SUBSCRIPTIONS,
        SubscriptionRow, key_of, letters,
    },
};

/// Bytes of data that one call writes back at most.
const BYTES_MAX: u64 = 384 * 1024;

pub(super) fn methods() -> Vec<Method> {
    vec![
        Method::listing("deadLetters", "list", READ, dead)
            .summary("Lists what could not be delivered to a subscription.")
            .rest(Verb::Get, "/subscriptions/{subscription}/dead-letters")
            .watched(Watched::Records)
            .on(on),
        Method::mutation("deadLetters", "replay", WRITE, replay)
            .summary(
                "Sends dead letters again: those that are named, or all, as far as one call goes.",
            )
            .rest(Verb::Post, "/subscriptions/{subscription}/dead-letters/replay")
            .on(on),
        Method::mutation("deadLetters", "drop", WRITE, drop_letters)
            .summary("Drops the dead letters that are named.")
            .rest(Verb::Post, "/subscriptions/{subscription}/dead-letters/drop")
            .destructive()
            .on(on),
    ]
}

/// What a call is about.
struct Chosen {
    row: SubscriptionRow,
    letters: Vec<(String, LetterRow)>,
    /// All that there are.
    all: u64,
}

fn owner(tx: &mut Tx, tenant: &str, name: &str) -> Result<SubscriptionRow> {
    tx.get(&SUBSCRIPTIONS, &key_of(tenant, name))?.ok_or_else(|| not_found(name))
}

/// The letters that a caller names.
fn named(tx: &mut Tx, row: SubscriptionRow, names: &[String]) -> Result<Chosen> {
    let all = crate::records::count(tx.view(), LETTERS.name(), &row.rows());
    let (mut letters, mut problems) = (vec![], vec![]);
    for (position, named) in names.iter().enumerate() {
        let number = named.rsplit('/').next().unwrap_or_default();
        let id = format!("{}/{number}", row.rows());
        match tx.get(&LETTERS, &id)? {
            Some(letter) => letters.push((id, letter)),
            None => problems.push(Problem {
                pointer: format!("/letters/{position}"),
                message: "is no dead letter of this subscription: `palisade subscription dead-letters` shows all"
                    .to_owned(),
            }),
        }
    }
    if problems.is_empty() {
        Ok(Chosen { row, letters, all })
    } else {
        Err(Error::invalid(problems))
    }
}

/// What is replayed: the letters that are named, or all that can be, as far as one call goes.
fn choose(tx: &mut Tx, input: &SomeLetters) -> Result<Chosen> {
    let row = owner(tx, &input.tenant, &input.subscription)?;
    if !input.letters.is_empty() {
        return named(tx, row, &input.letters);
    }
    let found = letters(tx.view(), &row.rows())?;
    let all = found.len() as u64;
    let letters = found.into_iter().filter(|(_, letter)| letter.delivery.is_some());
    Ok(Chosen { row, letters: letters.take(LETTERS_MAX).collect(), all })
}

fn told(cx: &MethodContext, tx: &mut Tx, kind: &str, row: &SubscriptionRow, count: u64) {
    let data = json!({ "subscription": row.name, "count": count, "by": cx.principal.name });
    tx.publish(kind, &row.tenant, format!("subscription/{}", row.name), &data);
}

fn replay(cx: &MethodContext, tx: &mut Tx, input: SomeLetters) -> Result<Handled> {
    let view = tx.view().clone();
    let chosen = choose(tx, &input)?;
    if chosen.letters.is_empty() {
        return Ok(Handled { handled: 0, left: chosen.all });
    }
    let mut room = has_room(&view, &chosen.row)?;
    let (mut handled, mut bytes) = (0, 0);
    for (id, letter) in chosen.letters {
        let Some(delivery) = letter.delivery else {
            let detail =
                format!("dead letter {id} is a gap: what happened is not known here any more");
            return Err(Error::new(Code::InvalidState, detail).hint(
                "read what there is with `palisade event ls --from`, on a replica whose history has it, and drop the letter",
            ));
        };
        bytes += delivery.event.bytes;
        // EVT-5
        match room.with(&delivery) {
            None if handled == 0 => return Err(full(&chosen.row)),
            Some(left) if handled == 0 || bytes <= BYTES_MAX => room = left,
            _ => break,
        }
        let again = DeliveryRow {
            attempts: 0,
            first_at: 0,
            last_at: 0,
            due: 0,
            since_ms: view.clock().wall_ms,
            ..delivery
        };
        tx.put(&QUEUE, &again.key(), &again)?;
        tx.delete(&LETTERS, &id)?;
        handled += 1;
    }
    if handled > 0 {
        tx.enqueue(SUBSCRIBERS, &chosen.row.key())?;
        told(cx, tx, "subscription.replayed", &chosen.row, handled);
    }
    Ok(Handled { handled, left: chosen.all.saturating_sub(handled) })
}

fn drop_letters(cx: &MethodContext, tx: &mut Tx, input: DropLetters) -> Result<Handled> {
    let row = owner(tx, &input.tenant, &input.subscription)?;
    let chosen = named(tx, row, &input.letters)?;
    let handled = chosen.letters.len() as u64;
    for (id, _) in chosen.letters {
        tx.delete(&LETTERS, &id)?;
    }
    let key = chosen.row.key();
    if input.lost > 0
        && let Some(progress) = tx.get(&PROGRESS, &key)?
    {
        let letters_lost = progress.letters_lost.saturating_sub(input.lost);
        tx.put(&PROGRESS, &key, &ProgressRow { letters_lost, ..progress })?;
    }
    if handled > 0 {
        told(cx, tx, "subscription.dropped", &chosen.row, handled);
    }
    Ok(Handled { handled, left: chosen.all.saturating_sub(handled) })
}
