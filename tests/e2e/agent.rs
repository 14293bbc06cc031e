//! An agent dies; its instances do not.

use crate::support::{Dev, probe::Probe, procs, until};

#[test]
fn a_killed_agent_ends_no_instance_and_its_next_life_adopts_them() {
    let dev = Dev::start();
    let instances = dev.hello(3);
    let probe = Probe::start(&instances);
    for agent in ["agent-1", "agent-2"] {
        let pid = dev.pid(agent).expect("it runs");
        procs::kill(pid);
        let seen = probe.answers();
        until("answers while the agent is away", || (probe.answers() > seen + 6).then_some(()));
        dev.replaced(agent, pid);
    }
    // Logs come from the agents: when all can be had, both have a session again.
    until("both agents at work", || {
        let tails = instances.iter().map(|one| dev.palisade(&["instance", "logs", &one.name]));
        tails.into_iter().all(|out| out.code == 0 && out.stdout.contains("listening")).then_some(())
    });
    dev.nodes_ready();
    assert_eq!(dev.instances(), instances, "same processes, no restarts, healthy");
    // And they are the agents' own again: they can be stopped.
    dev.palisade(&["workload", "scale", "hello", "5"]).ok();
    for instance in &instances {
        assert!(dev.instances().contains(instance), "{instance:?}");
    }
    probe.end();
    dev.palisade(&["workload", "rm", "hello"]).ok();
    for instance in &instances {
        assert!(!procs::alive(instance.pid), "{instance:?}");
    }
}
