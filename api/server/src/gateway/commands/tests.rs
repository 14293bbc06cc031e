use palisade_contract::{CommandState, NodeId, command::Sending};

use super::*;

fn session(n: u8) -> SessionId {
    SessionId::parse(&format!("ss_{n:026}")).unwrap()
}

/// A command that was sent over this session, if over any.
fn command(sent_over: Option<u8>, retry_safe: bool) -> Command {
    let state = if sent_over.is_some() { CommandState::Sent } else { CommandState::Pending };
    let sending = sent_over.map(|n| Sending {
        session: session(n),
        fence: Fence::NONE,
        times: 1,
        deadline_ms: 1,
    });
    Command {
        id: CommandId::parse(&format!("cm_{:026}", 1)).unwrap(),
        node: NodeId::parse(&format!("nd_{:026}", 1)).unwrap(),
        tenant: String::new(),
        kind: "k".to_owned(),
        lane: "l".to_owned(),
        seq: 1,
        key: "key".to_owned(),
        payload: Value::Null,
        batch: None,
        state,
        created_by: String::new(),
        created_at_ms: 0,
        not_after_ms: 1,
        expires_ms: 1,
        timeout_ms: 1,
        retry_safe,
        self_terminating: false,
        sending,
        finished_ms: None,
        finished_at_ms: None,
        result: None,
    }
}

fn act(handover: &Handover, sent_over: Option<u8>, retry_safe: bool) -> Act {
    handover.act(&command(sent_over, retry_safe), &session(1))
}

#[test]
fn what_is_done_about_a_command_depends_on_over_which_session_it_was_sent() {
    let mut handover = Handover::new(true, Fence::NONE);
    let id = command(None, false).id;
    for retry_safe in [false, true] {
        assert_eq!(act(&handover, None, retry_safe), Act::Mark, "GATE-6: noted before it is sent");
        assert_eq!(act(&handover, Some(1), retry_safe), Act::Tell);
    }
    assert_eq!(act(&handover, Some(2), true), Act::Mark);
    assert_eq!(act(&handover, Some(2), false), Act::Ask, "GATE-6: asked before it is sent again");
    handover.told.insert(id.clone());
    for sent_over in [1, 2] {
        assert_eq!(act(&handover, Some(sent_over), false), Act::Wait, "the agent knows of it");
    }
    handover.told.remove(&id);
    handover.unknown.insert(id.clone());
    assert_eq!(act(&handover, Some(2), false), Act::Mark, "it never began");
    handover.skipped.insert(id);
    assert_eq!(act(&handover, Some(2), false), Act::Wait);
    handover.again();
    assert_eq!(act(&handover, Some(2), false), Act::Mark, "until something changes");
}
