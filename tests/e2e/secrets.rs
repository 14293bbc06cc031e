//! Secrets from the command line to the process that uses them, with a canary that no file may hold.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::support::{Dev, list, number, procs, text, until};

const CANARY: &str = "canary-c0ffee-51";
const SPEC: &str = r#"
name = "uses"
count = 2

[task]
command = ["sh", "-c", "echo \"got $(printf %s \"$DB\" | sha256sum | cut -c1-12)\"; exec sleep 1000"]
env = { DB = { secret = "db" }, MODE = "fast" }
"#;

/// What the program writes of a value.
fn got(value: &str) -> String {
    use sha2::Digest as _;
    let sum: String =
        sha2::Sha256::digest(value).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("got {}", &sum[..12])
}

/// The files below a directory that hold the text, or the text in base64.
fn holding(dir: &Path, text: &str) -> Vec<PathBuf> {
    use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
    let encoded = STANDARD_NO_PAD.encode(text);
    // The last characters depend on what follows.
    let encoded = &encoded.as_bytes()[..encoded.len() - 2];
    let has = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let mut found = vec![];
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(holding(&path, text));
        } else if kind.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            if has(&bytes, text.as_bytes()) || has(&bytes, encoded) {
                found.push(path);
            }
        }
    }
    found
}

fn set(dev: &Dev, value: &str) {
    let file = dev.home.write("value", value);
    let set = || dev.palisade(&["secret", "set", "db", "--from-file", file.to_str().unwrap()]);
    until("the cluster's first key", || (set().code == 0).then_some(()));
    fs::remove_file(file).unwrap();
}

fn log(dev: &Dev, instance: &str) -> String {
    dev.palisade(&["instance", "logs", instance]).ok().stdout
}

#[test]
fn a_process_gets_its_secret_and_no_file_of_replicas_and_agents_has_it() {
    let dev = Dev::start();
    dev.nodes_ready();
    let spec = dev.home.write("uses.toml", SPEC);
    let apply = || dev.palisade(&["workload", "apply", "-f", spec.to_str().unwrap()]);
    apply().ends(2).says(&["/task/env/DB/secret", "palisade secret set db --from-file FILE"]);
    set(&dev, CANARY);
    apply().ok();
    for instance in ["uses-1", "uses-2"] {
        until("the process has it", || log(&dev, instance).contains(&got(CANARY)).then_some(()));
    }
    let refused = dev.palisade(&["secret", "rm", "db"]);
    refused.ends(4).says(&["db is used by workload/uses"]);
    assert_eq!(text(&dev.json(&["secret", "show", "db"]), "/usedBy/0"), "workload/uses");

    // A new version restarts nothing; who is started again has it.
    let before = dev.instances();
    let next = format!("{CANARY}-2");
    set(&dev, &next);
    dev.palisade(&["secret", "rotate-key"]).ok();
    procs::kill(before[0].pid);
    until("the restarted process has the new one", || {
        log(&dev, "uses-1").contains(&got(&next)).then_some(())
    });
    let after = dev.instances();
    assert_eq!((after[1].pid, after[1].restarts), (before[1].pid, 0), "it goes on as it was");
    assert!(!log(&dev, "uses-2").contains(&got(&next)));

    // An agent that was started again has nothing in memory and asks.
    let agent = after[1].node.replace("node-", "agent-");
    let pid = dev.pid(&agent).expect("it runs");
    procs::kill(pid);
    dev.replaced(&agent, pid);
    procs::kill(after[1].pid);
    until("the new agent's process has it", || {
        log(&dev, "uses-2").contains(&got(&next)).then_some(())
    });

    let bundle = dev.home.path().join("bundle.json");
    dev.palisade(&["support", "bundle", "--out", bundle.to_str().unwrap()]).ok();
    dev.palisade(&["audit", "export", "--out", dev.home.path().join("audit").to_str().unwrap()])
        .ok();
    assert_eq!(holding(dev.home.path(), CANARY), Vec::<PathBuf>::new(), "SEC-12");

    dev.palisade(&["workload", "rm", "uses"]).ok();
    until("nobody uses it", || (dev.palisade(&["secret", "rm", "db"]).code == 0).then_some(()));
    assert!(list(&dev.json(&["secret", "ls"]), "").is_empty());
    let keys = dev.json(&["secret", "keys"]);
    let versions: Vec<u64> = list(&keys, "").iter().map(|key| number(key, "/version")).collect();
    assert!(versions.contains(&2), "{keys:#}");
}
