//! The checker against histories of the literature, against all orders tried one by one, and its
//! speed.

mod brute;
mod published;
mod random;
mod sizes;

use super::*;

/// Reads a table of operations, one a line: client, call, return (`-`: never), what, answer.
///
/// What: `read`, `write 1`, `delete`, `cas 1 2` (values; `_` is nothing), `casv 5 2` (version 5).
/// Answer: `ok`, `ok v5`, `1`, `1 v5`, `_` (reads), `mismatch`, `failed`, `unknown`.
fn table(text: &str) -> Vec<Op> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(row).collect()
}

fn row(line: &str) -> Op {
    let (left, right) = line.split_once("->").expect("a row has an arrow");
    let words: Vec<&str> = left.split_whitespace().collect();
    let answer: Vec<&str> = right.split_whitespace().collect();
    let number = |word: &str| word.parse::<u64>().expect(line);
    let maybe = |word: &str| (word != "_").then(|| number(word));
    let what = match words[3..] {
        ["read"] => What::Read,
        ["write", value] => What::Write { value: number(value) },
        ["delete"] => What::Delete,
        ["cas", old, new] => {
            What::Swap { expected: Expected::Value(maybe(old)), value: number(new) }
        }
        ["casv", version, new] => {
            What::Swap { expected: Expected::Version(number(version)), value: number(new) }
        }
        _ => panic!("{line}"),
    };
    let version = answer.get(1).map(|word| number(word.strip_prefix('v').expect(line)));
    let outcome = match answer[0] {
        "mismatch" => Outcome::Mismatch,
        "failed" => Outcome::Failed,
        "unknown" => Outcome::Unknown,
        "ok" => Outcome::Ok { value: None, version },
        value => Outcome::Ok { value: maybe(value), version },
    };
    Op {
        client: u32::try_from(number(words[0])).expect(line),
        key: "x".into(),
        call: number(words[1]),
        ret: (words[2] != "-").then(|| number(words[2])),
        what,
        outcome,
    }
}

fn judge(ops: &[Op]) -> Verdict {
    check_key(ops.to_vec(), Budget::default())
}
