//! Commands to agents, with real processes: a ping, a signal, and an agent that was killed meanwhile.

use crate::support::{Dev, list, number, procs, text, until};

#[test]
fn an_agent_answers_and_an_instance_gets_its_signal_once() {
    let dev = Dev::start();
    dev.nodes_ready();
    let answered = dev.palisade(&["node", "ping", "node-1", "node-2"]).ok().stdout;
    for node in ["node-1", "node-2"] {
        assert!(answered.contains(&format!("node/{node} answered in ")), "{answered}");
    }
    dev.palisade(&["node", "ping", "nobody"]).ends(3).says(&["no node \"nobody\""]);

    let spec = "name: listens\ntask:\n  command: [sh, -c, \"trap 'echo has HUP' HUP; echo is up; while :; do sleep 0.1; done\"]\n";
    let path = dev.home.write("listens.yaml", spec);
    dev.palisade(&["workload", "apply", "-f", path.to_str().unwrap()]).ok();
    let log = || dev.palisade(&["instance", "logs", "listens-1"]).ok().stdout;
    until("the program listens", || log().contains("is up").then_some(()));
    let told = dev.palisade(&["instance", "signal", "listens-1", "HUP"]).ok().stdout;
    assert_eq!(told, "instance/listens-1 got HUP\n");
    until("the signal", || log().contains("has HUP").then_some(()));
    assert_eq!(log().matches("has HUP").count(), 1);
    dev.palisade(&["instance", "signal", "listens-1", "SEGV"]).ends(2).says(&["/signal"]);

    // What was sent is to be seen, with what became of it.
    let sent = dev.json(&["command", "ls", "--kind", "instance.signal"]);
    let [signal] = list(&sent, "") else { panic!("{sent:#}") };
    assert_eq!((text(signal, "/state"), number(signal, "/sent")), ("succeeded", 1));
    let shown = dev.json(&["command", "show", text(signal, "/id")]);
    assert_eq!(text(&shown, "/payload/signal"), "HUP");
    dev.palisade(&["command", "cancel", text(signal, "/id")]).ends(4).says(&["is succeeded"]);

    // The agent's next life takes commands as the one before did, and repeats none.
    let node = text(signal, "/nodeName").to_owned();
    let agent = node.replace("node-", "agent-");
    let pid = dev.pid(&agent).expect("it runs");
    procs::kill(pid);
    dev.replaced(&agent, pid);
    until("the agent answers again", || {
        (dev.palisade(&["node", "ping", &node]).code == 0).then_some(())
    });
    assert_eq!(log().matches("has HUP").count(), 1);
    dev.palisade(&["workload", "rm", "listens"]).ok();
}
