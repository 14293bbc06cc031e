//! Growing, shrinking and moving the control plane, with real processes.

use std::{
    path::PathBuf,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::Value;

use crate::support::{
    Replicas,
    agents::Agent,
    http::{Api, BASE},
    list, number, procs, text, until,
};

/// A replica that joins.
pub(crate) struct Newcomer {
    pub(crate) dir: PathBuf,
    id: u64,
    addr: String,
    child: Option<Child>,
}

impl Newcomer {
    /// Makes its directory.
    pub(crate) fn enrol(all: &Replicas, name: &str, more: &[&str]) -> Self {
        let (peer, api) = all.spare_ports();
        let advertise = format!("127.0.0.1:{peer},{api}");
        let mut args = vec!["-o", "json", "cluster", "join", name, "--advertise", &advertise];
        args.extend(more);
        let joined = all.home.palisade(&args).json();
        let dir = all.home.path().join(name);
        let addr = format!("127.0.0.1:{api}");
        Self { dir, id: number(&joined, "/replica"), addr, child: None }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.with_extension("log")).unwrap_or_default()
    }

    pub(crate) fn serve(&mut self, all: &Replicas) {
        let log = std::fs::File::create(self.dir.with_extension("log")).unwrap();
        let dir = self.dir.to_str().unwrap();
        let mut command = all.home.command(&["serve", "--stop-with-stdin", "--dir", dir]);
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
    }

    /// Waits until every replica that runs knows it as a voter.
    #[track_caller]
    pub(crate) fn votes(&mut self, all: &Replicas) {
        until("a new voter", || {
            let child = self.child.as_mut().expect("it runs");
            assert!(child.try_wait().unwrap().is_none(), "it ended:\n{}", self.log());
            voters(&status(all)?).contains(&self.id).then_some(())
        });
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("== newcomer\n{}", self.log());
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn status(all: &Replicas) -> Option<Value> {
    let out = all.home.palisade(&["-o", "json", "--timeout", "5s", "cluster", "status"]);
    (out.code == 0).then(|| out.json())
}

fn voters(status: &Value) -> Vec<u64> {
    let members = list(status, "/members").iter();
    members.filter(|one| one["voter"] == true).map(|one| number(one, "/id")).collect()
}

fn leader(all: &Replicas) -> u64 {
    until("a leader", || status(all)?.get("leader").and_then(Value::as_u64))
}

#[track_caller]
fn events(all: &Replicas) -> Vec<String> {
    let out = all.home.palisade(&["-o", "json", "event", "ls"]).json();
    list(&out, "").iter().map(|event| text(event, "/kind").to_owned()).collect()
}

#[test]
fn a_replica_joins_and_another_is_removed() {
    let mut all = Replicas::start(3);
    all.write(0, "before");
    let mut new = Newcomer::enrol(&all, "fourth", &[]);
    assert!(!new.dir.join("pki/ca.key").exists(), "JOIN-1: no secret comes over REST");
    let dir = new.dir.to_str().unwrap();
    all.home
        .palisade(&["cluster", "join", dir, "--advertise", "127.0.0.1:1,2"])
        .ends(4)
        .says(&["is not empty"]);
    new.serve(&all);
    until("a learner", || {
        let status = status(&all)?;
        list(&status, "/members").iter().any(|one| number(one, "/id") == new.id).then_some(())
    });
    new.votes(&all);
    use std::os::unix::fs::MetadataExt as _;
    for key in ["ca.key", "backup.key"] {
        let mode = std::fs::metadata(new.dir.join("pki").join(key)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    let through = ["--addr", &new.addr, "-o", "json", "api-token", "ls"];
    let names = all.home.palisade(&through).ok().stdout;
    assert!(names.contains("before"), "{names}");

    // The leader leaves: it hands over, says so, and never comes back.
    all.home.palisade(&["cluster", "transfer-leader", "1"]).ok();
    let (gone, index) = (1, 0);
    all.home.palisade(&["cluster", "remove", &gone.to_string()]).ok();
    assert_eq!(all.ends(index), 4, "{}", all.log(index));
    assert!(all.log(index).contains("was removed from cluster"), "{}", all.log(index));
    all.refuses(index).ends(4).says(&[
        "was removed from cluster",
        "palisade cluster join",
        "palisade cluster repair",
    ]);
    let dir = all.dir(index);
    let shown = all.home.palisade(&["cluster", "repair", dir.to_str().unwrap()]).ends(2);
    let (why, how) = ("removed: replica 1 was removed", "as one more replica");
    assert!(shown.stdout.contains(why) && shown.stdout.contains(how), "{shown:#?}");
    let other = (index + 1) % 3;
    all.write(other, "after");
    assert_eq!(voters(&status(&all).unwrap()).len(), 3);
    let kinds = until("all events", || {
        let kinds = events(&all);
        kinds.contains(&"replica.removed".to_owned()).then_some(kinds)
    });
    assert!(kinds.contains(&"replica.promoted".to_owned()), "{kinds:?}");
    let audit = all.home.palisade(&["-o", "json", "audit", "ls"]).ok().stdout;
    for method in ["cluster.addReplica", "cluster.removeReplica"] {
        assert!(audit.contains(method), "{method}: {audit}");
    }
}

#[test]
fn a_dead_replica_is_replaced_under_load_and_nothing_is_lost() {
    let mut all = Replicas::start(3);
    let dead = usize::try_from(leader(&all)).unwrap() - 1;
    let through = (dead + 1) % 3;
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (stop, api) = (stop.clone(), Api::of_context(&all.home.context_file()));
        std::thread::spawn(move || {
            let mut acknowledged = vec![];
            for number in 0.. {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                let name = format!("load-{number}");
                let (path, body) =
                    (crate::support::replicas::tokens(), crate::support::replicas::token(&name));
                if api
                    .post(through, &path, &name, &body)
                    .is_ok_and(|answer| answer.code().is_empty())
                {
                    acknowledged.push(name);
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            acknowledged
        })
    };
    all.kill(dead);
    let id = (dead + 1).to_string();
    let mut new = Newcomer::enrol(&all, "replacement", &["--replace", &id]);
    new.serve(&all);
    new.votes(&all);
    until("the dead one is out", || {
        let now = voters(&status(&all)?);
        (now.len() == 3 && !now.contains(&(dead as u64 + 1))).then_some(())
    });
    stop.store(true, Ordering::Release);
    let acknowledged = writer.join().unwrap();
    assert!(acknowledged.len() > 20, "{}", acknowledged.len());
    let answer = all.home.palisade(&["--addr", &new.addr, "-o", "json", "api-token", "ls"]).json();
    let known: Vec<&str> = list(&answer, "").iter().map(|token| text(token, "/name")).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|name| !known.contains(&name.as_str())).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    // The dead one wakes up and is told.
    all.spawn(dead);
    assert_eq!(all.ends(dead), 4, "{}", all.log(dead));
    assert!(all.log(dead).contains("took its place"), "{}", all.log(dead));
}

#[test]
fn leadership_moves_a_replica_is_drained_and_wrong_requests_are_refused() {
    let mut all = Replicas::start(3);
    let cluster = |args: &[&str]| {
        let mut line = vec!["cluster"];
        line.extend(args);
        all.home.palisade(&line)
    };
    cluster(&["transfer-leader", "99"]).ends(3).says(&["no replica 99", "1, 2, 3"]);
    cluster(&["remove", "99"]).ends(3).says(&["no replica 99"]);
    cluster(&["drain", "99"]).ends(3);
    cluster(&["set-address", "99", "127.0.0.1:1,2"]).ends(3);
    cluster(&["set-address", "2", "127.0.0.1:1"]).ends(2);
    cluster(&["join", "there", "--advertise", "127.0.0.1:1"]).ends(2);
    let taken = all.peer_addr(0);
    let taken = format!("{taken},9");
    cluster(&["join", "there", "--advertise", &taken]).ends(2).says(&["replica 1 has the address"]);
    let mut stranger = all.home.command(&["cluster", "remove", "2"]);
    stranger.env("PALISADE_TOKEN", "pal_nobody_00000000000000000000000000000000");
    crate::support::finish(&mut stranger).ends(5);

    let old = leader(&all);
    let next = old % 3 + 1;
    cluster(&["transfer-leader", &next.to_string(), "--dry-run"]).ok();
    assert_eq!(leader(&all), old, "a dry run does nothing");
    let said = cluster(&["transfer-leader", &next.to_string()]).ok().stdout;
    assert_eq!(said, format!("replica {next} leads\n"));
    until("the new leader", || (leader(&all) == next).then_some(()));

    cluster(&["drain", &next.to_string()]).ok();
    until("a drained replica without leadership and leases", || {
        let shards = all.api.get(0, &format!("{BASE}/cluster/shards")).ok()?.json();
        let owner = next.to_string();
        let owned = list(&shards, "/owners").iter().any(|one| text(one, "/owner") == owner);
        (leader(&all) != next && !owned).then_some(())
    });
    let shown = cluster(&["status"]).ok().stdout;
    assert!(shown.contains("drained"), "{shown}");
    cluster(&["transfer-leader", &next.to_string()]).ends(4).says(&["is drained", "undrain"]);
    cluster(&["undrain", &next.to_string()]).ok();
    until("leases again", || {
        let shards = all.api.get(0, &format!("{BASE}/cluster/shards")).ok()?.json();
        let owner = next.to_string();
        list(&shards, "/owners").iter().any(|one| text(one, "/owner") == owner).then_some(())
    });

    let now = leader(&all);
    let (dead, living) = (now % 3 + 1, (now + 1) % 3 + 1);
    all.kill(usize::try_from(dead).unwrap() - 1);
    until("a replica that is missed", || {
        let status = status(&all)?;
        let missed =
            |one: &Value| number(one, "/id") == dead && one["lastAckMs"].as_u64() > Some(2_500);
        list(&status, "/members").iter().any(missed).then_some(())
    });
    all.home
        .palisade(&["cluster", "remove", &living.to_string()])
        .ends(4)
        .says(&["only 1 would answer and 2 must", "--force"]);
}

#[test]
fn a_replica_that_moved_is_found_at_its_new_address() {
    let mut all = Replicas::start(3);
    let moved = 1;
    all.stop(moved);
    let (peer, api) = all.spare_ports();
    let file = all.dir(moved).join("replica.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let lines = config.lines().map(|line| match line.split_once('=') {
        Some((key, _)) if key.trim() == "peerListen" => {
            format!("peerListen = \"127.0.0.1:{peer}\"")
        }
        Some((key, _)) if key.trim() == "apiListen" => format!("apiListen = \"127.0.0.1:{api}\""),
        _ => line.to_owned(),
    });
    std::fs::write(&file, lines.collect::<Vec<_>>().join("\n")).unwrap();
    all.spawn_with(moved, &["--advertise", &format!("127.0.0.1:{peer},{api}")]);
    let pid = all.pid(moved);
    until("a new record", || {
        assert!(procs::alive(pid), "{}", all.log(moved));
        let status = status(&all)?;
        let is_new = |one: &Value| {
            number(one, "/id") == 2 && text(one, "/peerAddr") == format!("127.0.0.1:{peer}")
        };
        list(&status, "/members").iter().any(is_new).then_some(())
    });
    all.home.palisade(&["cluster", "transfer-leader", "2"]).ok();
    all.home.palisade(&["--addr", &format!("127.0.0.1:{api}"), "node", "ls"]).ok();
    all.write(0, "after");
}

#[test]
fn an_address_that_is_set_from_elsewhere_is_where_a_replica_is_found() {
    let mut all = Replicas::start(3);
    let index = 2;
    all.home.palisade(&["cluster", "transfer-leader", "1"]).ok();
    all.stop(index);
    let (peer, api) = all.spare_ports();
    let to = format!("127.0.0.1:{peer},{api}");
    all.home.palisade(&["cluster", "set-address", "3", &to, "--dry-run"]).ok();
    let record = |all: &Replicas| {
        let status = status(all)?;
        let third = list(&status, "/members").iter().find(|one| number(one, "/id") == 3)?.clone();
        Some((text(&third, "/peerAddr").to_owned(), text(&third, "/apiAddr").to_owned()))
    };
    let before = until("the record", || record(&all));
    assert_eq!(before.0, all.peer_addr(index), "a dry run does nothing");
    all.home.palisade(&["cluster", "set-address", "3", &to]).ok();
    let now = (format!("127.0.0.1:{peer}"), format!("127.0.0.1:{api}"));
    until("the new record", || (record(&all)? == now).then_some(()));
    all.write(0, "while-it-moves");
    // It listens there, and says nothing of it itself: the record alone leads to it.
    let file = all.dir(index).join("replica.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, moved(&config, (&now.0, &now.1), &[])).unwrap();
    all.api.addrs[index].clone_from(&now.1);
    all.spawn(index);
    all.ready(index);
    until("what it missed", || {
        all.names(index).contains(&"while-it-moves".to_owned()).then_some(())
    });
    until("its turn to lead", || {
        (all.home.palisade(&["cluster", "transfer-leader", "3"]).code == 0).then_some(())
    });
    all.write(index, "led-by-it");
    let audit = all.home.palisade(&["-o", "json", "audit", "ls"]).ok().stdout;
    assert!(audit.contains("cluster.setAddress"), "{audit}");
}

#[test]
fn a_removal_that_leaves_one_is_made_when_it_is_forced() {
    let mut all = Replicas::start(3);
    all.write(0, "before");
    let remove = |all: &Replicas, id: &str, more: &[&str]| {
        let mut line = vec!["cluster", "remove", id];
        line.extend(more);
        all.home.palisade(&line)
    };
    all.home.palisade(&["cluster", "transfer-leader", "1"]).ok();
    remove(&all, "3", &[]).ok();
    assert_eq!(all.ends(2), 4, "{}", all.log(2));
    until("two voters", || (voters(&status(&all)?) == [1, 2]).then_some(()));
    remove(&all, "2", &[]).ends(4).says(&["--force"]);
    assert_eq!(voters(&status(&all).unwrap()), [1, 2], "a refusal changes nothing");
    remove(&all, "2", &["--force"]).ok();
    assert_eq!(all.ends(1), 4, "{}", all.log(1));
    until("one voter", || (voters(&status(&all)?) == [1]).then_some(()));
    all.write(0, "alone");
    let last = remove(&all, "1", &["--force"]).says(&["is the last voter"]);
    assert_ne!(last.code, 0, "{last:#?}");
    let names = all.names(0);
    assert!(
        ["before", "alone"].iter().all(|name| names.contains(&(*name).to_owned())),
        "{names:?}"
    );
    all.refuses(1).ends(4).says(&["was removed from cluster"]);
}

/// A replica's configuration with other addresses: where it listens, and where it looks for the others.
fn moved(config: &str, listen: (&str, &str), moves: &[(String, String)]) -> String {
    let lines = config.lines().map(|line| match line.split_once('=') {
        Some((key, _)) if key.trim() == "peerListen" => format!("peerListen = \"{}\"", listen.0),
        Some((key, _)) if key.trim() == "apiListen" => format!("apiListen = \"{}\"", listen.1),
        _ => moves.iter().fold(line.to_owned(), |line, (from, to)| {
            line.replace(&format!("\"{from}\""), &format!("\"{to}\""))
        }),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn all_replicas_at_new_addresses_find_each_other_again() {
    let mut all = Replicas::start(3);
    // Its ports alone are wanted.
    let there = Replicas::prepare(3, None);
    (0..6).for_each(|number| all.write(number % 3, &format!("before-{number}")));
    (0..3).for_each(|index| all.stop(index));
    let new: Vec<(String, String)> =
        (0..3).map(|index| (there.peer_addr(index), there.api.addrs[index].clone())).collect();
    let moves: Vec<_> = (0..3)
        .flat_map(|index| {
            let (peer, api) = new[index].clone();
            [(all.peer_addr(index), peer), (all.api.addrs[index].clone(), api)]
        })
        .collect();
    for (index, (peer, api)) in new.iter().enumerate() {
        let file = all.dir(index).join("replica.toml");
        let config = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, moved(&config, (peer, api), &moves)).unwrap();
        let port = api.rsplit_once(':').unwrap().1;
        all.spawn_with(index, &["--advertise", &format!("{peer},{port}")]);
    }
    all.api.addrs = new.iter().map(|(_, api)| api.clone()).collect();
    (0..3).for_each(|index| all.ready(index));
    let addrs = all.api.addrs.join(",");
    let args = ["--addr", &addrs, "-o", "json", "--timeout", "5s", "cluster", "status"];
    until("records of all three", || {
        let out = all.home.palisade(&args);
        let status = (out.code == 0).then(|| out.json())?;
        let is_new = |one: &Value| {
            let id = usize::try_from(number(one, "/id")).unwrap();
            (text(one, "/peerAddr"), text(one, "/apiAddr")) == (&new[id - 1].0, &new[id - 1].1)
        };
        list(&status, "/members").iter().all(is_new).then_some(())
    });
    (0..3).for_each(|index| all.write(index, &format!("after-{index}")));
    until("all writes on all of them", || {
        let has = |names: &[String], word: &str, count: usize| {
            (0..count).all(|number| names.contains(&format!("{word}-{number}")))
        };
        (0..3)
            .all(|index| {
                let names = all.names(index);
                has(&names, "before", 6) && has(&names, "after", 3)
            })
            .then_some(())
    });
    // Now without the hints: the records alone lead.
    (0..3).for_each(|index| all.stop(index));
    (0..3).for_each(|index| all.spawn(index));
    (0..3).for_each(|index| all.ready(index));
    all.write(1, "again");
}

/// The replica that holds the session of the one node, while it is ready.
fn holder(all: &Replicas) -> Option<u64> {
    let out = all.home.palisade(&["-o", "json", "node", "ls"]);
    let nodes: Value = serde_json::from_str(&out.stdout).ok()?;
    let node = nodes.as_array()?.first()?.clone();
    (text(&node, "/status/phase") == "ready").then_some(())?;
    node.pointer("/status/replica").and_then(Value::as_u64)
}

#[test]
fn agents_leave_a_drained_replica_and_their_instances_do_not_notice() {
    let all = Replicas::start(3);
    let agent = Agent::start(&all);
    let pid = Agent::sleeper(&all);
    let before = until("a session", || holder(&all));
    all.home.palisade(&["cluster", "drain", &before.to_string()]).ok();
    until("a session elsewhere", || holder(&all).filter(|now| *now != before));
    let now = until("a session that stays", || holder(&all));
    assert_ne!(now, before);
    assert!(procs::alive(pid), "its instance was not restarted");
    // Only those that are not drained are gone to, whoever else is drained then.
    all.home.palisade(&["cluster", "drain", &now.to_string()]).ok();
    let left = 6 - before - now;
    until("a session with the one that is left", || (holder(&all)? == left).then_some(()));
    all.home.palisade(&["cluster", "undrain", &before.to_string()]).ok();
    all.home.palisade(&["cluster", "undrain", &now.to_string()]).ok();
    assert!(procs::alive(pid), "its instance was not restarted");
    all.home.palisade(&["workload", "rm", "sleep"]).ok();
    drop(agent);
}
