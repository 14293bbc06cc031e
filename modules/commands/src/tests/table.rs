//! The transition table, row by row.

use palisade_contract::CommandState;

use crate::life::{STEPS, Step, next};

/// From which state a step leads where; whatever is not here is not possible.
const TABLE: [(CommandState, Step, CommandState); 16] = {
    use CommandState::{
        Cancelled, Expired, Failed, Held, Pending, Running, Sent, Succeeded, TimedOut,
    };
    [
        (Held, Step::Release, Pending),
        (Held, Step::Expire, Expired),
        (Held, Step::Cancel, Cancelled),
        (Pending, Step::Send, Sent),
        (Pending, Step::Expire, Expired),
        (Pending, Step::Cancel, Cancelled),
        (Sent, Step::Resend, Sent),
        (Sent, Step::Begin, Running),
        (Sent, Step::Succeed, Succeeded),
        (Sent, Step::Fail, Failed),
        (Sent, Step::TimeOut, TimedOut),
        (Running, Step::Resend, Sent),
        (Running, Step::Begin, Running),
        (Running, Step::Succeed, Succeeded),
        (Running, Step::Fail, Failed),
        (Running, Step::TimeOut, TimedOut),
    ]
};

#[test]
fn each_step_leads_where_the_table_says_and_nowhere_else() {
    for state in CommandState::ALL {
        for step in STEPS {
            let row = TABLE.iter().find(|(from, by, _)| (*from, *by) == (state, step));
            assert_eq!(next(state, step), row.map(|(.., to)| *to), "{state:?} {step:?}");
        }
    }
}

#[test]
fn a_finished_command_takes_no_step_and_is_the_only_one_that_takes_none() {
    for state in CommandState::ALL {
        let moves = STEPS.iter().any(|step| next(state, *step).is_some());
        assert_eq!(moves, !state.is_finished(), "{state:?}");
    }
}

#[test]
fn states_are_written_as_their_words() {
    for state in CommandState::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), state.word());
    }
}
