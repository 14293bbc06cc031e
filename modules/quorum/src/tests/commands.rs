//! Batches of commands.

use palisade_contract::Code;
use serde_json::json;

use super::world::World;

#[test]
fn commands_wait_with_their_batch_and_are_sent_with_it() {
    let world = World::new();
    world.policy(&[(1, 1), (2, 2)]);
    let batch = world.batch(&["acme.reboot", "acme.wipe"]).unwrap();
    assert!(batch.held);
    assert_eq!((batch.required, batch.size), (2, 2));
    let id = batch.batch_id;
    let first = world.put_in(&id, "acme.reboot", "a").unwrap();
    let second = world.put_in(&id, "acme.wipe", "b").unwrap();
    assert_eq!(world.get(&id)["commands"], json!([first.id, second.id]));
    world.approve("bob", &id).unwrap();
    assert_eq!(world.command_state(&first), "held", "QUO-1");
    world.approve("carol", &id).unwrap();
    assert_eq!([&first, &second].map(|one| world.command_state(one)), ["pending", "pending"]);
    let late = world.put_in(&id, "acme.reboot", "c").unwrap_err();
    assert_eq!(late.code, Code::InvalidState, "QUO-5: nobody has approved that");
}

#[test]
fn a_command_is_in_the_scope_of_its_batch() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.batch(&["acme.reboot"]).unwrap().batch_id;
    let refused = world.put_in(&id, "acme.wipe", "a").unwrap_err();
    assert_eq!(refused.code, Code::AccessDenied, "QUO-5");
    assert!(refused.detail.contains("acme.wipe on node/"), "{refused}");
    assert_eq!(world.put_in("ap_none", "acme.wipe", "a").unwrap_err().code, Code::NotFound);
}

#[test]
fn what_is_put_in_later_was_not_approved() {
    let world = World::new();
    world.policy(&[(1, 2)]);
    let id = world.batch(&["acme.reboot", "acme.wipe"]).unwrap().batch_id;
    world.put_in(&id, "acme.reboot", "a").unwrap();
    world.approve("bob", &id).unwrap();
    let second = world.put_in(&id, "acme.wipe", "b").unwrap();
    let shown = world.approve("carol", &id).unwrap();
    assert_eq!(
        (shown["state"].clone(), shown["approved"].clone()),
        (json!("held"), json!(1)),
        "QUO-5"
    );
    assert_eq!(shown["approvals"][0]["why"], "the batch was another then");
    assert_eq!(world.command_state(&second), "held");
    assert_eq!(world.approve("bob", &id).unwrap()["state"], "released", "he has seen it now");
}

#[test]
fn where_nobody_is_asked_commands_do_not_wait() {
    let world = World::new();
    let batch = world.batch(&["acme.reboot"]).unwrap();
    assert!(!batch.held);
    assert_eq!(batch.required, 0);
    let sent = world.put_in(&batch.batch_id, "acme.reboot", "a").unwrap();
    assert_eq!(world.command_state(&sent), "pending");
    assert!(world.put_in(&batch.batch_id, "acme.wipe", "b").is_err(), "QUO-5");
}

#[test]
fn an_end_takes_back_what_is_held() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let ended = |end: &dyn Fn(&str)| {
        let id = world.batch(&["acme.reboot"]).unwrap().batch_id;
        let command = world.put_in(&id, "acme.reboot", &id).unwrap();
        end(&id);
        assert_eq!(world.command_state(&command), "cancelled", "QUO-3: {}", world.state(&id));
        world.state(&id)
    };
    let reject = |id: &str| drop(world.as_who("bob", "approvals.reject", &json!({"approval": id})));
    assert_eq!(ended(&reject), "rejected");
    let back = |id: &str| drop(world.as_who("ada", "approvals.withdraw", &json!({"approval": id})));
    assert_eq!(ended(&back), "withdrawn");
    let fails = |id: &str| {
        world.unbind("ada");
        world.approve("bob", id).unwrap();
        let bound = json!({"principal": "ada", "role": "operator", "tenant": "acme"});
        world.call("roleBindings.create", &bound);
    };
    assert_eq!(ended(&fails), "failed");
    let expires = |_: &str| world.pass(24 * 60 * 60);
    assert_eq!(ended(&expires), "expired");
}

#[test]
fn a_command_that_is_gone_fails_the_release_of_all() {
    let world = World::new();
    world.policy(&[(1, 1)]);
    let id = world.batch(&["acme.reboot", "acme.wipe"]).unwrap().batch_id;
    let first = world.put_in(&id, "acme.reboot", "a").unwrap();
    let second = world.put_in(&id, "acme.wipe", "b").unwrap();
    let commands = world.cx.ports.commands.get().unwrap();
    world.commit(|tx| commands.cancel(tx, &second.id, "no more")).unwrap();
    assert_eq!(world.approve("bob", &id).unwrap()["state"], "failed");
    assert_eq!(world.command_state(&first), "cancelled", "QUO-2");
}
