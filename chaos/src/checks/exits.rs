//! `exits`: no replica and no agent ends by itself; one that is told to end, or removed, ends with the
//! exit code that says so.

use super::{Verdict, json};
use crate::history::History;

/// Its id.
pub(super) const ID: &str = "exits";

/// See the module documentation.
pub(super) fn judge(history: &History) -> Verdict {
    let mut verdict = Verdict { subjects: 1, ..Verdict::default() };
    for exit in &history.exits {
        // What was expected of one that was told to is in its status.
        let how = if exit.status.contains(", when it was ") { "with" } else { "by itself:" };
        let message = format!("{} ended {how} {}", exit.process, exit.status);
        verdict.add(ID, message, vec![json(exit)]);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Exit;

    #[test]
    fn a_process_that_ended_by_itself_is_found() {
        let exit = Exit {
            at: 1,
            process: "replica 1".into(),
            status: "exit status: 101".into(),
            log: vec![],
        };
        let verdict = judge(&History { exits: vec![exit], ..History::default() });
        assert_eq!(verdict.violations[0].message, "replica 1 ended by itself: exit status: 101");
        assert_eq!(judge(&History::default()).violations, []);
    }
}
