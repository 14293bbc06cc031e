//! The process driver and its shim, over real processes.

use std::{
    io::{Read, Write},
    net::TcpListener,
    os::unix::fs::{MetadataExt, PermissionsExt},
    sync::Arc,
    time::Duration,
};

use palisade_agent::driver::{Cause, Driver, Process, ProcessDriver, SignalName, Start, log::Next};
use palisade_proto::agent::{Port, Resources};

use crate::support::{Rig, alive, kill, parent_and_session, script, shim, start_ticks, until};

#[tokio::test]
async fn a_program_gets_its_ports_names_and_own_directories() {
    let rig = Rig::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut spec = script(
        "env",
        "echo $PORT/$PORT_WEB_1/$PALISADE_NODE/$PALISADE_INSTANCE/$PALISADE_WORKLOAD/$EXTRA; echo $TMPDIR; pwd; cat etc/conf; echo oops >&2",
    );
    spec.ports.push(Port { name: "web-1".into(), port: u32::from(port) });
    spec.env.insert("EXTRA".into(), "x".into());
    spec.files.insert("etc/conf".into(), b"hello\n".to_vec());
    rig.start(spec, 1).await;
    assert!(rig.end("env").await.success());
    let dir = rig.instance_dir("env");
    let expected =
        format!("{port}/{port}/node-1/env/web/x\n{0}/tmp\n{0}/work\nhello\n", dir.display());
    let log = rig.log("env", 0);
    assert!(log.starts_with(&expected), "{log}");
    assert!(log.ends_with("oops\n"));
}

#[tokio::test]
async fn neither_shim_nor_program_belongs_to_the_agents_session_or_is_its_child() {
    let rig = Rig::new();
    rig.start(script("own", "sleep 100"), 1).await;
    let pid = rig.pid("own").await;
    let shim_pid =
        u32::try_from(rig.file("own", "state.json")["shim"]["pid"].as_u64().unwrap()).unwrap();
    let me = std::process::id();
    let (my_session, (shim_parent, shim_session)) =
        (parent_and_session(me).1, parent_and_session(shim_pid));
    let (parent, session) = parent_and_session(pid);
    assert_ne!(shim_parent, me);
    assert_ne!(shim_session, my_session);
    assert_eq!(parent, shim_pid);
    assert_eq!(session, pid);
}

#[tokio::test]
async fn a_new_driver_adopts_what_an_old_one_started() {
    let rig = Rig::new();
    rig.start(script("adopt", "sleep 100"), 1).await;
    let before = rig.pid("adopt").await;
    let other = ProcessDriver::new(rig.dir.path().join("instances"), shim());
    let list = other.list().await.unwrap();
    assert_eq!(list.len(), 1);
    assert!(matches!(list[0].process, Process::Running { pid, .. } if pid == before));
    other.kill("adopt").await.unwrap();
    assert_eq!(rig.end("adopt").await.signal, 9);
}

#[tokio::test]
async fn starting_one_run_twice_at_once_makes_one_process() {
    let rig = Rig::new();
    let count = rig.dir.path().join("count");
    let text = format!("echo x >> {}; sleep 100", count.display());
    let starts = (0..4).map(|_| {
        let driver = ProcessDriver::new(rig.dir.path().join("instances"), shim());
        let start = Start {
            spec: script("once", &text),
            run: 1,
            restarts: 0,
            node: "n".into(),
            secrets: [].into(),
        };
        async move { driver.start(start).await }
    });
    let results = futures::future::join_all(starts).await;
    assert!(results.iter().any(Result::is_ok), "{results:?}");
    rig.start(script("once", &text), 1).await;
    until("the first line", async || std::fs::read_to_string(&count).ok()).await;
    rig.pid("once").await;
    assert_eq!(std::fs::read_to_string(&count).unwrap(), "x\n");
}

#[tokio::test]
async fn stop_asks_with_the_signal_and_records_that_it_was_asked() {
    let rig = Rig::new();
    rig.start(
        script("stop", "trap 'echo bye; exit 7' INT; echo up; while :; do sleep 0.02; done"),
        1,
    )
    .await;
    rig.log_has("stop", "up").await;
    rig.driver.stop("stop", SignalName::Int, Duration::from_secs(5)).await.unwrap();
    let end = rig.end("stop").await;
    assert_eq!((end.code, end.signal), (7, 0));
    let instance = rig.driver.inspect("stop").await.unwrap().unwrap();
    assert_eq!(instance.stop_asked.unwrap().grace, Duration::from_secs(5));
    assert!(rig.log("stop", 1).contains("bye"));
}

#[tokio::test]
async fn a_recycled_pid_is_not_signalled() {
    let rig = Rig::new();
    rig.start(script("reuse", "sleep 100"), 1).await;
    let real = rig.pid("reuse").await;
    // Who begins in the same tick of the kernel's clock is taken for the same, and no pid comes back that soon.
    let mut innocent = loop {
        let mut other = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        if start_ticks(other.id().into()) != start_ticks(real.into()) {
            break other;
        }
        other.kill().unwrap();
        other.wait().unwrap();
    };
    rig.edit("reuse", "state.json", |state| {
        state["process"]["pid"] = innocent.id().into();
        state["cgroups"] = serde_json::json!([]);
    });
    rig.driver.stop("reuse", SignalName::Term, Duration::ZERO).await.unwrap();
    rig.driver.kill("reuse").await.unwrap();
    assert!(innocent.try_wait().unwrap().is_none());
    innocent.kill().unwrap();
    innocent.wait().unwrap();
    kill(real);
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let rig = Rig::new();
    let mut missing = script("missing", "");
    missing.command = vec!["no-such-program".into()];
    missing.env.insert("PATH".into(), "/opt/a:/opt/b".into());
    let mut plain = script("plain", "");
    plain.files.insert("tool".into(), b"text".to_vec());
    plain.command = vec!["./tool".into()];
    let mut nowhere = script("nowhere", "true");
    nowhere.working_dir = "/no/such/dir".into();
    let mut nobody = script("nobody", "true");
    nobody.user = "no-such-user".into();
    let mut empty = script("empty", "");
    empty.command.clear();
    let mut interpreter = script("interpreter", "");
    interpreter.command = vec![rig.dir.path().join("tool").display().to_string()];
    std::fs::write(rig.dir.path().join("tool"), "#!/no/such/shell\n").unwrap();
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(rig.dir.path().join("tool"), mode).unwrap();
    let cases = [
        (missing, "COMMAND_NOT_FOUND", "/opt/a:/opt/b"),
        (plain, "COMMAND_NOT_EXECUTABLE", "chmod +x"),
        (nowhere, "WORKING_DIR_MISSING", "/no/such/dir"),
        (nobody, "USER_UNKNOWN", "no-such-user"),
        (empty, "INVALID_SPEC", "empty"),
        (interpreter, "COMMAND_NOT_FOUND", "interpreter"),
    ];
    for (spec, code, part) in cases {
        let id = spec.id.clone();
        rig.start(spec, 1).await;
        let Cause::NotStarted(problem) = rig.end(&id).await.cause else { panic!("{id} started") };
        assert_eq!(problem.code, code, "{problem}");
        assert!(problem.message.contains(part), "{problem}");
    }
}

#[tokio::test]
async fn a_taken_port_is_told_before_the_start() {
    let rig = Rig::new();
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = u32::from(listener.local_addr().unwrap().port());
    let mut spec = script("port", "sleep 100");
    spec.ports.push(Port { name: "http".into(), port });
    let start = Start { spec, run: 1, restarts: 0, node: "n".into(), secrets: [].into() };
    let problem = rig.driver.start(start).await.unwrap_err();
    assert_eq!(problem.code, "PORT_IN_USE");
    assert!(problem.message.contains(&port.to_string()));
}

#[tokio::test]
async fn files_outside_the_directory_are_refused() {
    let rig = Rig::new();
    for name in ["../x", "/etc/x", "a/../../x", ""] {
        let mut spec = script("files", "true");
        spec.files.insert(name.into(), vec![]);
        let start = Start { spec, run: 1, restarts: 0, node: "n".into(), secrets: [].into() };
        assert_eq!(rig.driver.start(start).await.unwrap_err().code, "INVALID_SPEC", "{name}");
    }
}

#[tokio::test]
async fn logs_rotate_and_are_tailed_and_followed() {
    let rig = Rig::new();
    let root = rig.dir.path().join("instances");
    let driver = ProcessDriver::with_log_limits(&root, shim(), 20_000, 3);
    let text =
        "i=0; while [ $i -lt 4000 ]; do i=$((i+1)); echo line $i; done; read x < go; echo last";
    let spec = script("logs", &format!("mkfifo go; {text}"));
    driver
        .start(Start { spec, run: 1, restarts: 0, node: "n".into(), secrets: [].into() })
        .await
        .unwrap();
    rig.log_has("logs", "line 4000\n").await;
    assert!(rig.log("logs", 3).ends_with("line 3998\nline 3999\nline 4000\n"));
    assert_eq!(rig.log("logs", 3).lines().count(), 3);
    let dir = rig.instance_dir("logs");
    assert!(dir.join("log.2").exists() && !dir.join("log.3").exists());
    let mut follow = rig.driver.logs("logs", 1).unwrap();
    assert!(matches!(follow.next_chunk().unwrap(), Next::Chunk(_)));
    assert_eq!(follow.next_chunk().unwrap(), Next::UpToDate);
    std::fs::write(dir.join("work/go"), "x\n").unwrap();
    let chunk = until("the last line", async || match follow.next_chunk().unwrap() {
        Next::Chunk(chunk) => Some(chunk),
        _ => None,
    })
    .await;
    assert_eq!(chunk.data, b"last\n");
    assert_eq!(rig.driver.logs("other", 1).unwrap_err().code, "INSTANCE_UNKNOWN");
}

#[tokio::test]
async fn a_program_survives_its_shim_and_gets_another() {
    let rig = Rig::new();
    rig.start(script("orphan", "while :; do echo tick; sleep 0.02; done"), 1).await;
    let pid = rig.pid("orphan").await;
    let shim_of = || rig.file("orphan", "state.json")["shim"]["pid"].as_u64().unwrap();
    let first = u32::try_from(shim_of()).unwrap();
    rig.log_has("orphan", "tick").await;
    kill(first);
    until("the shim's end", async || (!alive(first)).then_some(())).await;
    assert_eq!(rig.pid("orphan").await, pid, "the program goes on");
    until("another shim", async || {
        let _ = rig.driver.inspect("orphan").await;
        (shim_of() != u64::from(first)).then_some(())
    })
    .await;
    let seen = rig.log("orphan", 0).len();
    until("more output", async || (rig.log("orphan", 0).len() > seen).then_some(())).await;
    rig.driver.kill("orphan").await.unwrap();
    assert_eq!(rig.end("orphan").await.cause, Cause::Unknown);
}

#[tokio::test]
async fn a_launcher_whose_shim_is_not_its_parent_starts_nothing() {
    let rig = Rig::new();
    rig.start(script("late", "true"), 1).await;
    rig.end("late").await;
    let dir = rig.instance_dir("late");
    std::fs::remove_file(dir.join("state.json")).unwrap();
    let me = std::process::id().to_string();
    for told in [["1", "1"], [&me, "1"]] {
        let (mut report, launcher_end) = std::io::pipe().unwrap();
        let mut launcher = std::process::Command::new(shim().program)
            .arg("--dir")
            .arg(&dir)
            .args(["--stage", "launch", "--", told[0], told[1]])
            .stdin(launcher_end)
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut text = String::new();
        report.read_to_string(&mut text).unwrap();
        assert!(!launcher.wait().unwrap().success());
        assert!(text.contains("START_FAILED") && text.contains("is gone"), "{text}");
        assert!(!dir.join("state.json").exists(), "SHIM-2");
    }
}

#[tokio::test]
async fn a_program_whose_recorded_shim_is_the_first_process_is_found_ended() {
    let rig = Rig::new();
    rig.start(script("init", "sleep 100"), 1).await;
    let pid = rig.pid("init").await;
    let shim_pid = rig.file("init", "state.json")["shim"]["pid"].as_u64().unwrap();
    kill(u32::try_from(shim_pid).unwrap());
    kill(pid);
    rig.edit("init", "state.json", |state| {
        state["shim"]["pid"] = 1.into();
        state["shim"]["start_ticks"] = start_ticks(1).into();
    });
    until("the program's end", async || (!alive(pid)).then_some(())).await;
    assert_eq!(rig.end("init").await.cause, Cause::Unknown);
}

#[tokio::test]
async fn a_program_whose_shim_was_killed_and_that_ended_is_found_ended() {
    let rig = Rig::new();
    rig.start(script("gone", "sleep 100"), 1).await;
    let pid = rig.pid("gone").await;
    let shim_pid = rig.file("gone", "state.json")["shim"]["pid"].as_u64().unwrap();
    kill(u32::try_from(shim_pid).unwrap());
    kill(pid);
    assert_eq!(rig.end("gone").await.cause, Cause::Unknown);
}

#[tokio::test]
async fn what_a_program_leaves_behind_ends_with_it() {
    let rig = Rig::new();
    rig.start(script("left", "setsid sleep 300 & echo $!; sleep 300 & echo $!; exit 3"), 1).await;
    assert_eq!(rig.end("left").await.code, 3);
    for pid in rig.log("left", 0).lines().map(|line| line.parse::<u32>().unwrap()) {
        assert!(!alive(pid), "{pid}");
    }
}

#[tokio::test]
async fn a_run_of_another_boot_is_found_interrupted() {
    let rig = Rig::new();
    rig.start(script("boot", "exec sleep 100"), 1).await;
    let (pid, shim_pid) =
        (rig.pid("boot").await, rig.file("boot", "state.json")["shim"]["pid"].as_u64().unwrap());
    kill(u32::try_from(shim_pid).unwrap());
    let groups = rig.file("boot", "state.json")["cgroups"].clone();
    rig.edit("boot", "state.json", |state| {
        state["process"]["boot_id"] = "another-boot".into();
        state["shim"]["boot_id"] = "another-boot".into();
        state["cgroups"] = serde_json::json!([]);
    });
    assert_eq!(rig.end("boot").await.cause, Cause::Rebooted);
    assert!(alive(pid), "a number of another boot is signalled by nobody");
    kill(pid);
    until("its end", async || (!alive(pid)).then_some(())).await;
    for dir in groups.as_array().unwrap() {
        let _ = std::fs::remove_dir(dir.as_str().unwrap());
    }
}

#[tokio::test]
async fn limits_are_set_or_named_as_not_enforced() {
    let rig = Rig::new();
    let mut spec = script("limits", "sleep 100");
    spec.resources = Some(Resources {
        cpu_limit_milli: 500,
        memory_limit_bytes: 64 << 20,
        pids_max: 20,
        ..Resources::default()
    });
    rig.start(spec, 1).await;
    let state = rig.file("limits", "state.json");
    let isolation = rig.driver.isolation();
    let groups: Vec<String> = state["cgroups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|dir| dir.as_str().unwrap().to_owned())
        .collect();
    let read = |name: &str| {
        groups.iter().find_map(|dir| std::fs::read_to_string(format!("{dir}/{name}")).ok())
    };
    for (feature, names) in [
        ("cpu", ["cpu.max", "cpu.cfs_quota_us"]),
        ("memory", ["memory.max", "memory.limit_in_bytes"]),
        ("pids", ["pids.max", "pids.max"]),
    ] {
        let set = names.iter().find_map(|name| read(name));
        if isolation[feature] == "enforced" {
            let value = set.unwrap();
            let expected = ["50000", "67108864", "20"];
            assert!(expected.iter().any(|text| value.starts_with(text)), "{feature}: {value}");
        } else {
            let named = state["not_enforced"].to_string();
            assert!(named.contains(feature), "{feature}: {named}");
        }
    }
    assert!(rig.driver.usage("limits").await.unwrap().memory_bytes > 0);
}

#[tokio::test]
async fn a_program_that_uses_too_much_memory_is_told_so() {
    let rig = Rig::new();
    if rig.driver.isolation()["memory"] != "enforced" {
        return;
    }
    let mut spec = script("oom", "exec tail /dev/zero");
    spec.resources = Some(Resources { memory_limit_bytes: 16 << 20, ..Resources::default() });
    rig.start(spec, 1).await;
    let end = rig.end("oom").await;
    assert!(end.out_of_memory, "{end:?}");
}

#[tokio::test]
async fn a_user_is_taken_by_root_and_refused_otherwise() {
    let rig = Rig::new();
    let mut spec = script("user", "id -u; echo x > file; echo y > /dev/stdout");
    spec.user = "nobody".into();
    // The directory of a test is closed to others; the agent opens its own.
    chmod(rig.dir.path(), 0o711);
    rig.start(spec, 1).await;
    let end = rig.end("user").await;
    if rustix::process::geteuid().is_root() {
        assert!(end.success(), "{end:?} {}", rig.log("user", 0));
        assert_eq!(rig.log("user", 0), "65534\ny\n");
    } else {
        assert!(
            matches!(end.cause, Cause::NotStarted(problem) if problem.code == "USER_NEEDS_ROOT")
        );
    }
}

/// Says that a test proved nothing, past the capture of what tests print.
fn skipped(why: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

fn chmod(path: &std::path::Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[tokio::test]
async fn a_directory_that_its_user_may_not_enter_is_named_with_the_way_out() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root starts programs of other users");
    }
    let rig = Rig::new();
    chmod(rig.dir.path(), 0o700);
    let mut spec = script("closed", "true");
    spec.user = "nobody".into();
    rig.start(spec.clone(), 1).await;
    let Cause::NotStarted(problem) = rig.end("closed").await.cause else { panic!("it started") };
    assert_eq!(problem.code, "DIRECTORY_NOT_ENTERABLE");
    let dir = rig.dir.path().display().to_string();
    assert!(problem.message.contains(&format!("run `chmod o+x {dir}`")), "{problem}");
    assert!(!problem.message.contains("/bin/sh"), "{problem}");
    chmod(rig.dir.path(), 0o711);
    rig.start(spec, 2).await;
    assert!(rig.end("closed").await.success());
}

#[tokio::test]
async fn an_instances_directories_are_its_users_and_what_is_private_stays_so() {
    if !rustix::process::geteuid().is_root() {
        return skipped("only root starts programs of other users");
    }
    let rig = Rig::new();
    let mut spec = script("own", "true");
    spec.user = "nobody".into();
    spec.files.insert("conf/secret".into(), b"x".to_vec());
    rig.start(spec, 1).await;
    rig.end("own").await;
    let dir = rig.instance_dir("own");
    for path in [dir.parent().unwrap(), &dir] {
        assert_eq!(mode(path), 0o711, "{}", path.display());
    }
    for name in ["work", "tmp", "work/conf", "work/conf/secret"] {
        assert_eq!(std::fs::metadata(dir.join(name)).unwrap().uid(), 65534, "{name}");
    }
    assert_eq!((mode(&dir.join("work")), mode(&dir.join("tmp"))), (0o700, 0o700));
    for name in ["run.json", "state.json", "exit.json"] {
        assert_eq!(mode(&dir.join(name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn remove_refuses_what_runs_and_forgets_what_ended() {
    let rig = Rig::new();
    rig.start(script("rm", "sleep 100"), 1).await;
    assert_eq!(rig.driver.remove("rm").await.unwrap_err().code, "STILL_RUNNING");
    rig.driver.kill("rm").await.unwrap();
    rig.end("rm").await;
    rig.driver.remove("rm").await.unwrap();
    rig.driver.remove("rm").await.unwrap();
    assert!(rig.driver.inspect("rm").await.unwrap().is_none());
    assert!(!rig.instance_dir("rm").exists());
}

#[tokio::test]
async fn the_end_of_a_run_is_noticed_without_polling() {
    let rig = Rig::new();
    rig.start(script("notice", "read x < go || sleep 0.2; exit 4"), 1).await;
    let driver = Arc::new(rig.driver.clone());
    driver.ended("notice").await;
    let instance = driver.inspect("notice").await.unwrap().unwrap();
    assert!(matches!(instance.process, Process::Ended(end) if end.code == 4));
}

#[tokio::test]
async fn a_signal_reaches_the_process_alone_and_stops_nothing() {
    let rig = Rig::new();
    assert_eq!(rig.driver.signal("sig", SignalName::Hup).await, Ok(false), "there is none");
    let program = "trap 'echo parent has it' HUP; \
        (trap 'echo child has it' HUP; echo child; while :; do sleep 0.05; done) & \
        echo parent; while :; do sleep 0.05; done";
    rig.start(script("sig", program), 1).await;
    let before = rig.pid("sig").await;
    rig.log_has("sig", "parent\n").await;
    rig.log_has("sig", "child\n").await;
    assert_eq!(rig.driver.signal("sig", SignalName::Hup).await, Ok(true));
    rig.log_has("sig", "parent has it").await;
    assert_eq!(rig.pid("sig").await, before);
    assert!(rig.driver.inspect("sig").await.unwrap().unwrap().stop_asked.is_none());
    assert!(!rig.log("sig", 0).contains("child has it"));
    assert_eq!(rig.driver.signal("sig", SignalName::Kill).await, Ok(true));
    assert_eq!(rig.end("sig").await.signal, 9);
    assert_eq!(rig.driver.signal("sig", SignalName::Hup).await, Ok(false), "it has ended");
}
