//! Commands over the sessions of agents: what goes down, what comes up, and what becomes of it when a session breaks.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use palisade_commands::CommandsModule;
use palisade_contract::{
    CommandId, CommandKind, CommandRequest, CommandState, Context, Module, Nothing, Registry,
    command::Command,
};
use palisade_proto::agent::{
    Command as Wire, CommandOutcome, CommandQuery, CommandUpdate, Hello, down::Msg,
    up::Msg as UpMsg,
};
use palisade_state::{Store, Tx};
use serde_json::json;

use crate::{
    gateway::record_session,
    support::{
        World,
        agent::{self, Node, Session},
        until, world,
    },
};

struct Acme;

impl Module for Acme {
    fn name(&self) -> &'static str {
        "acme"
    }

    fn command_kinds(&self) -> Vec<CommandKind> {
        let minute = Duration::from_mins(1);
        vec![
            CommandKind::new::<Nothing>("acme.paint", "paint", minute),
            CommandKind::new::<Nothing>("acme.look", "look", minute).retry_safe(),
        ]
    }
}

/// A server with the module of commands, and a node that has joined.
struct Place {
    world: World,
    cx: Context,
    node: Node,
    _module: CommandsModule,
}

async fn place() -> Place {
    let world = world().await;
    let mut cx = Context::new(world.rt.clone(), world.store.clone());
    cx.ports = world.ports.clone();
    let module = CommandsModule::default();
    module.bind(&Registry::new(vec![Arc::new(Acme)]).unwrap());
    module.start(&cx).await.unwrap();
    let node = agent::joined(&world).await;
    Place { world, cx, node, _module: module }
}

impl Place {
    fn enqueue(&self, kind: &str, key: &str) -> CommandId {
        let request = CommandRequest::new(&self.node.id, kind, json!({}), key);
        let mut tx = Tx::new(self.world.store.memory.view());
        let commands = self.cx.ports.commands.get().unwrap();
        let id = commands.enqueue(&self.cx, &mut tx, &request).unwrap().id;
        assert!(self.world.store.memory.apply(tx.build().unwrap().into()).unwrap().is_applied());
        id
    }

    fn row(&self, key: &str) -> Command {
        let view = self.world.store.memory.view();
        let commands = self.cx.ports.commands.get().unwrap();
        commands.by_key(&view, &self.node.id, key).unwrap().unwrap()
    }

    async fn becomes(&self, key: &str, state: CommandState) {
        until(state.word(), || self.row(key).state == state).await;
    }

    async fn session(&self) -> Session {
        let hello = Hello { takes_commands: true, ..Hello::default() };
        agent::open(&self.world, &self.node, hello).await.unwrap()
    }

    /// The session breaks, and state knows of it.
    async fn breaks(&self, session: Session) {
        drop(session);
        let is_closed = || {
            let nodes = self.world.ports.nodes.get().unwrap();
            let view = self.world.store.memory.view();
            nodes.find(&view, self.node.id.as_str()).unwrap().unwrap().session.is_none()
        };
        until("the session is closed", is_closed).await;
    }
}

async fn sent(session: &mut Session) -> Wire {
    match session.next().await {
        Some(Msg::Command(command)) => command,
        other => panic!("no command: {other:?}"),
    }
}

async fn asked(session: &mut Session) -> CommandQuery {
    match session.next().await {
        Some(Msg::CommandQuery(query)) => query,
        other => panic!("no question: {other:?}"),
    }
}

async fn taken(session: &mut Session, id: &CommandId) {
    match session.next().await {
        Some(Msg::CommandTaken(taken)) => assert_eq!(taken.id, id.as_str()),
        other => panic!("not taken: {other:?}"),
    }
}

async fn says(session: &mut Session, id: &CommandId, outcome: CommandOutcome) {
    let update = CommandUpdate {
        id: id.to_string(),
        outcome: outcome.into(),
        code: "CODE".to_owned(),
        data: b"{\"coats\":2}".to_vec(),
        ..CommandUpdate::default()
    };
    session.send(UpMsg::CommandUpdate(update)).await;
}

#[tokio::test]
async fn a_command_goes_down_once_it_is_noted_and_is_taken_once_its_end_is() {
    let place = place().await;
    let mut session = place.session().await;
    let id = place.enqueue("acme.paint", "a");
    let command = sent(&mut session).await;
    assert_eq!((command.id.as_str(), command.kind.as_str()), (id.as_str(), "acme.paint"));
    assert_eq!((command.lane.as_str(), command.timeout_ms), ("paint", 60_000));
    assert!(!command.retry_safe && command.fence.unwrap().index > 0);
    let row = place.row("a");
    assert_eq!((row.state, row.sending.unwrap().times), (CommandState::Sent, 1), "GATE-6");
    says(&mut session, &id, CommandOutcome::CommandRunning).await;
    place.becomes("a", CommandState::Running).await;
    says(&mut session, &id, CommandOutcome::CommandSucceeded).await;
    taken(&mut session, &id).await;
    let row = place.row("a");
    assert_eq!(row.state, CommandState::Succeeded, "GATE-7");
    assert_eq!(row.result.unwrap().data, json!({"coats": 2}));
    says(&mut session, &id, CommandOutcome::CommandFailed).await;
    taken(&mut session, &id).await;
    assert_eq!(place.row("a").state, CommandState::Succeeded, "a second end is none");
}

#[tokio::test]
async fn what_waits_goes_down_in_order_when_the_agent_comes() {
    let place = place().await;
    let first = place.enqueue("acme.paint", "a");
    let second = place.enqueue("acme.paint", "b");
    let mut session = place.session().await;
    assert_eq!(sent(&mut session).await.id, first.as_str());
    assert_eq!(session.beat(1).await, [], "its lane is busy");
    says(&mut session, &first, CommandOutcome::CommandFailed).await;
    taken(&mut session, &first).await;
    assert_eq!(place.row("a").state, CommandState::Failed);
    assert_eq!(place.row("a").result.unwrap().code, "CODE");
    assert_eq!(sent(&mut session).await.id, second.as_str());
}

#[tokio::test]
async fn an_agent_that_takes_no_commands_is_sent_none() {
    let place = place().await;
    place.enqueue("acme.paint", "a");
    let mut session = agent::open(&place.world, &place.node, Hello::default()).await.unwrap();
    for seq in 1..5 {
        assert_eq!(session.beat(seq).await, []);
    }
    assert_eq!(place.row("a").state, CommandState::Pending);
}

#[tokio::test]
async fn what_is_retry_safe_is_sent_again_over_the_next_session() {
    let place = place().await;
    let mut session = place.session().await;
    let id = place.enqueue("acme.look", "a");
    let first = sent(&mut session).await;
    place.breaks(session).await;
    let mut session = place.session().await;
    let again = sent(&mut session).await;
    assert_eq!(again.id, id.as_str());
    assert!(again.fence.unwrap().index > first.fence.unwrap().index, "a later session outranks");
    assert_eq!(place.row("a").sending.unwrap().times, 2);
}

#[tokio::test]
async fn of_what_is_not_the_agent_is_asked_and_it_is_sent_again_only_if_it_never_began() {
    let place = place().await;
    let mut session = place.session().await;
    let id = place.enqueue("acme.paint", "a");
    let first = sent(&mut session).await;
    place.breaks(session).await;
    let mut session = place.session().await;
    let query = asked(&mut session).await;
    assert_eq!(query.id, id.as_str());
    assert!(query.fence.unwrap().index > first.fence.unwrap().index);
    assert_eq!(session.beat(1).await, [], "and nothing is sent");
    assert_eq!(place.row("a").sending.unwrap().times, 1);
    says(&mut session, &id, CommandOutcome::CommandUnknown).await;
    assert_eq!(sent(&mut session).await.id, id.as_str());
    assert_eq!(place.row("a").sending.unwrap().times, 2);
}

#[tokio::test]
async fn what_the_agent_still_does_is_not_sent_again() {
    let place = place().await;
    let mut session = place.session().await;
    let id = place.enqueue("acme.paint", "a");
    sent(&mut session).await;
    place.breaks(session).await;
    let mut session = place.session().await;
    asked(&mut session).await;
    says(&mut session, &id, CommandOutcome::CommandRunning).await;
    place.becomes("a", CommandState::Running).await;
    assert_eq!(session.beat(1).await, []);
    says(&mut session, &id, CommandOutcome::CommandSucceeded).await;
    taken(&mut session, &id).await;
    assert_eq!(place.row("a").sending.unwrap().times, 1);
}

#[tokio::test]
async fn an_end_that_is_said_at_the_next_session_is_taken() {
    let place = place().await;
    let mut session = place.session().await;
    let id = place.enqueue("acme.paint", "a");
    sent(&mut session).await;
    place.breaks(session).await;
    let mut session = place.session().await;
    says(&mut session, &id, CommandOutcome::CommandSucceeded).await;
    loop {
        match session.next().await {
            // It may have been asked meanwhile.
            Some(Msg::CommandQuery(_)) => {}
            Some(Msg::CommandTaken(taken)) => break assert_eq!(taken.id, id.as_str()),
            other => panic!("not taken: {other:?}"),
        }
    }
    assert_eq!(place.row("a").state, CommandState::Succeeded);
}

#[tokio::test]
async fn an_end_is_not_taken_before_it_could_be_written() {
    let place = place().await;
    let mut session = place.session().await;
    let id = place.enqueue("acme.paint", "a");
    sent(&mut session).await;
    place.world.store.quorum_lost.store(true, Ordering::SeqCst);
    says(&mut session, &id, CommandOutcome::CommandSucceeded).await;
    assert_eq!(session.beat(1).await, [], "GATE-7");
    place.world.store.quorum_lost.store(false, Ordering::SeqCst);
    taken(&mut session, &id).await;
    assert_eq!(place.row("a").state, CommandState::Succeeded);
}

#[tokio::test]
async fn a_command_that_was_noted_without_an_answer_is_sent_once() {
    let place = place().await;
    let mut session = place.session().await;
    session.beat(1).await;
    place.world.store.lose_answers.store(1, Ordering::SeqCst);
    let id = place.enqueue("acme.paint", "a");
    assert_eq!(sent(&mut session).await.id, id.as_str());
    for seq in 2..5 {
        assert_eq!(session.beat(seq).await, []);
    }
    assert_eq!(place.row("a").sending.unwrap().times, 1);
}

#[tokio::test]
async fn an_end_that_is_said_over_a_session_that_was_just_replaced_is_not_taken() {
    let place = place().await;
    let mut session = place.session().await;
    let id = place.enqueue("acme.paint", "a");
    sent(&mut session).await;
    let node = place.node.id.clone();
    *place.world.store.before_next.lock().unwrap() = Some(Box::new(move |memory| {
        record_session(memory, &node, 2);
    }));
    says(&mut session, &id, CommandOutcome::CommandSucceeded).await;
    let Some(Msg::Goodbye(_)) = session.next().await else { panic!("no goodbye") };
    assert_eq!(place.row("a").state, CommandState::Sent, "GATE-7");
}
