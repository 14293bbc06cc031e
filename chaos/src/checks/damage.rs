//! `damage`: a replica whose data was damaged while it was down recovers, or refuses and says which
//! file; one that refused comes back by a repair.

use super::{Verdict, json};
use crate::history::{Became, Damaged, History};

/// Its id.
pub(super) const ID: &str = "damage";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    // Where nothing was damaged there is nothing to keep, and the fault's absence is told by itself.
    let mut verdict = Verdict { subjects: 1, ..Verdict::default() };
    verdict.subjects += history.damaged.len() as u64;
    for damaged in &history.damaged {
        for wrong in wrong(damaged) {
            let message =
                format!("{}, {} in {}: {wrong}", damaged.replica, damaged.what, damaged.file);
            verdict.add(ID, message, vec![json(damaged)]);
        }
    }
    verdict
}

fn wrong(damaged: &Damaged) -> Vec<&'static str> {
    let mut wrong = Vec::new();
    match damaged.became {
        Became::Ready => {}
        Became::Stuck => wrong.push("it neither served nor refused"),
        Became::Refused { .. } => {
            if !names(damaged) {
                wrong.push("it refused and did not say which file");
            }
        }
    }
    if damaged.rejoined == Some(false) {
        wrong.push("it was not brought back by a repair");
    }
    wrong
}

/// Whether what was said names the file, or says that the log lacks what was confirmed.
fn names(damaged: &Damaged) -> bool {
    let name = damaged.file.rsplit('/').next().unwrap_or(&damaged.file);
    damaged.said.iter().any(|line| line.contains(name) || line.contains("confirmed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged() -> Damaged {
        Damaged {
            at: 1,
            replica: "replica 2".into(),
            file: "data/log/00000001.seg".into(),
            what: "a bit flipped at byte 9".into(),
            became: Became::Refused { status: "exit status: 1".into() },
            said: vec!["log file /x/data/log/00000001.seg is damaged at byte 9".into()],
            rejoined: Some(true),
        }
    }

    fn violations(damaged: Damaged) -> usize {
        judge(&History { damaged: vec![damaged], ..History::default() }).violations.len()
    }

    #[test]
    fn one_that_refuses_by_name_and_is_repaired_passes() {
        assert_eq!(violations(damaged()), 0);
        assert_eq!(violations(Damaged { became: Became::Ready, rejoined: None, ..damaged() }), 0);
    }

    #[test]
    fn one_that_refuses_without_a_name_is_found() {
        assert_eq!(violations(Damaged { said: vec!["I will not".into()], ..damaged() }), 1);
    }

    #[test]
    fn one_that_neither_serves_nor_refuses_is_found() {
        assert_eq!(violations(Damaged { became: Became::Stuck, rejoined: None, ..damaged() }), 1);
    }

    #[test]
    fn one_that_is_not_repaired_is_found() {
        assert_eq!(violations(Damaged { rejoined: Some(false), ..damaged() }), 1);
    }
}
