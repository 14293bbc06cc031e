//! Certificates under running servers: the CA is replaced, and keys are refused, with real processes.

use std::{
    fs,
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use palisade_api::pki::Authority;
use serde_json::{Value, json};

use crate::{
    membership::Newcomer,
    support::{
        Api, Replicas,
        agents::Agent,
        http::{BASE, connect, tls},
        lacks_tool, list, number,
        replicas::{token, tokens},
        skipped, text, until,
    },
    tokens::{create, join},
};

fn ca(all: &Replicas, index: usize) -> String {
    fs::read_to_string(all.dir(index).join("pki/ca.pem")).unwrap()
}

fn rotation(all: &Replicas) -> Option<Value> {
    let out = all.home.palisade(&["-o", "json", "pki", "status"]);
    (out.code == 0).then(|| out.json()["rotation"].clone())
}

/// Waits until a replacement of the CA is in this phase.
#[track_caller]
fn is(all: &Replicas, number_of: u64, phase: &str) {
    until(&format!("replacement {number_of} is {phase}"), || {
        let rotation = rotation(all)?;
        let is_it = number(&rotation, "/number") == number_of && text(&rotation, "/phase") == phase;
        is_it.then_some(())
    });
}

/// Waits until it has gone through all its phases, at the pace of its agents.
#[track_caller]
fn ends(all: &Replicas, number_of: u64) {
    until("the new CA issues", || {
        let rotation = rotation(all)?;
        matches!(text(&rotation, "/phase"), "issuing" | "dropping" | "idle").then_some(())
    });
    until("no certificate is of the old CA", || {
        let rotation = rotation(all)?;
        matches!(text(&rotation, "/phase"), "dropping" | "idle").then_some(())
    });
    is(all, number_of, "idle");
}

/// Whether the `openssl` of this machine, which trusts only the CA in `file`, connects to the API; `None`: it has none, and that is
/// said.
fn openssl_connects(addr: &str, file: &Path) -> Option<Result<(), String>> {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", addr, "-verify_return_error", "-verify_ip", "127.0.0.1"]);
    let output = match command.arg("-CAfile").arg(file).stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            lacks_tool("openssl");
            skipped("openssl is not installed: the order of the chain was not looked at");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let told =
        [output.stdout, output.stderr].map(|told| String::from_utf8_lossy(&told).into_owned());
    let is_believed = output.status.success() && told[0].contains("Verify return code: 0 (ok)");
    Some(if is_believed { Ok(()) } else { Err(told.concat()) })
}

/// Writes through all replicas in turn; what was not answered is asked again under its key, as is documented, and whatever
/// else went wrong is told.
struct Writer {
    stop: Arc<AtomicBool>,
    running: JoinHandle<(Vec<String>, Vec<String>)>,
}

impl Writer {
    fn start(api: Api) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let running = std::thread::spawn(move || {
            let (mut written, mut failed) = (vec![], vec![]);
            for number in 0.. {
                if stopped.load(Ordering::Acquire) {
                    break;
                }
                let name = format!("w{number}");
                let written_so = until("a write", || {
                    match api.post(number % api.addrs.len(), &tokens(), &name, &token(&name)) {
                        Ok(answer) if answer.status < 300 => Some(Ok(())),
                        Ok(answer) if answer.code() == "UNAVAILABLE" => None,
                        other => Some(Err(format!("{name}: {other:?}"))),
                    }
                });
                match written_so {
                    Ok(()) => written.push(name),
                    Err(error) => failed.push(error),
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            (written, failed)
        });
        Self { stop, running }
    }

    /// What was written. That nothing failed is asserted.
    #[track_caller]
    fn end(self) -> Vec<String> {
        self.stop.store(true, Ordering::Release);
        let (written, failed) = self.running.join().unwrap();
        assert_eq!(failed, Vec::<String>::new(), "of {} writes", written.len());
        written
    }
}

#[test]
fn the_ca_is_replaced_under_running_servers() {
    let all = Replicas::start(3);
    let _agent = Agent::start(&all);
    Agent::comes_back(&all);
    let pid = until("an instance", || {
        let spec = crate::support::example("sleep.toml");
        all.home.palisade(&["workload", "apply", "-f", spec.to_str().unwrap()]).ok();
        Agent::pids(&all.home).into_iter().next()
    });
    let (old, old_key) = (ca(&all, 0), fs::read(all.dir(0).join("pki/ca.key")).unwrap());
    let early = create(&all, "early-token", &[]);
    let writer = Writer::start(all.api.clone());
    let began = all.home.palisade(&["pki", "rotate"]).ok();
    assert!(began.stdout.contains("replacement 1 is adding"), "{began:?}");
    all.home.palisade(&["pki", "rotate"]).ends(4).says(&["on its way"]);
    ends(&all, 1);
    let written = writer.end();
    assert!(written.len() > 20, "{}", written.len());
    let names = all.names(2);
    assert!(written.iter().all(|name| names.contains(name)));
    let new = ca(&all, 0);
    assert_ne!(new, old);
    assert!((1..3).all(|index| ca(&all, index) == new));
    // Agent and instance are what they were.
    Agent::comes_back(&all);
    assert_eq!(Agent::pids(&all.home), [pid]);
    // Who trusts the old CA, or the new one alone, comes in, and a context learns of the new one.
    let mut api = all.api.clone();
    for index in 0..3 {
        for ca in [&old, &new] {
            api.tls = tls(ca, None);
            api.get(index, &format!("{BASE}/auth/whoami")).unwrap().done();
        }
    }
    // So do clients by OpenSSL, which look for issuers in another way.
    for (name, ca) in [("old.pem", &old), ("new.pem", &new)] {
        let file = all.home.path().join(name);
        fs::write(&file, ca).unwrap();
        for addr in &all.api.addrs {
            let Some(told) = openssl_connects(addr, &file) else { break };
            told.unwrap_or_else(|why| panic!("by {name} to {addr}: {why}"));
        }
    }
    join(&all, "late", &early.file, &early.pin).ok();
    all.home.palisade(&["context", "refresh"]).ok();
    let context = fs::read_to_string(all.home.context_file()).unwrap();
    assert!(context.contains(new.trim()), "{context}");
    assert!(!context.contains(old.trim()), "{context}");
    let listed = all.home.palisade(&["-o", "json", "pki", "ls"]).json();
    assert_eq!(list(&listed, "").len(), 4, "{listed}");
    let issuers: Vec<_> = list(&listed, "").iter().map(|one| text(one, "/issuer")).collect();
    assert!(issuers.iter().all(|issuer| *issuer == issuers[0]), "{issuers:?}");
    for index in 0..3 {
        for entry in fs::read_dir(all.dir(index).join("pki")).unwrap() {
            let path = entry.unwrap().path();
            assert_ne!(
                fs::read(&path).unwrap(),
                old_key,
                "the old CA's key is in {}",
                path.display()
            );
        }
    }
    // A certificate that the old CA made opens nothing any more.
    let stale = Authority::from_pem(&old, &String::from_utf8(old_key).unwrap()).unwrap();
    let now_ms = jiff::Timestamp::now().as_millisecond().unsigned_abs();
    let stale = stale.issue_operator("admin", Duration::from_secs(3600), now_ms).unwrap();
    let stale = tls(&new, Some((&stale.cert_pem, &stale.key_pem)));
    let api = Api { tls: stale, ..all.api.clone() };
    assert!(api.get_by_certificate(1, &format!("{BASE}/auth/whoami")).is_err());
    let found = all.home.palisade(&["-o", "json", "doctor"]).stdout;
    assert!(!found.contains("\"pki."), "{found}");
    all.home.palisade(&["workload", "rm", "sleep"]).ok();
    until("the instance's end", || Agent::pids(&all.home).is_empty().then_some(()));
}

#[test]
fn a_replacement_is_held_up_by_a_voter_that_is_away_and_a_backup_and_a_new_replica_fit_in() {
    let mut all = Replicas::start(3);
    let old = ca(&all, 0);
    all.stop(2);
    all.home.palisade(&["pki", "rotate"]).ok();
    is(&all, 1, "trusting");
    let waits = until("only one is waited for", || {
        let rotation = rotation(&all)?;
        (number(&rotation, "/waiting") == 1).then_some(rotation)
    });
    assert_eq!(text(&waits, "/waitsFor/0/id"), "replica/3");
    all.home.palisade(&["pki", "advance"]).ends(4).says(&["replica/3"]);
    // A backup is made in the middle, and a fourth replica joins.
    until("a backup by a replica that has the keys of secrets", || {
        (all.home.palisade(&["cluster", "backup", "middle.backup"]).code == 0).then_some(())
    });
    let mut fourth = Newcomer::enrol(&all, "fourth", &[]);
    fourth.serve(&all);
    fourth.votes(&all);
    let has_next = || fourth.dir.join("pki/next.key").exists();
    until("the new replica has the new CA's key", || has_next().then_some(()));
    assert_eq!(text(&rotation(&all).unwrap(), "/phase"), "trusting");
    // One of those that have it is killed and comes back; then the one that was away.
    all.kill(0);
    all.spawn(0);
    all.ready(0);
    assert_eq!(ca(&all, 0), old);
    all.spawn(2);
    all.ready(2);
    ends(&all, 1);
    let new = ca(&all, 0);
    assert_ne!(new, old);
    assert_eq!(fs::read_to_string(fourth.dir.join("pki/ca.pem")).unwrap(), new);
    assert!(!all.dir(0).join("pki/next.key").exists());
    // All start again with what is on their disks.
    all.kill(1);
    all.spawn(1);
    all.ready(1);
    drop(fourth);
    (0..3).for_each(|index| all.stop(index));
    // What the backup holds goes on where it was, in other replicas.
    let key = all.dir(0).join("pki/backup.key");
    let mut args = vec!["cluster", "restore", "middle.backup", "--dir", "restored", "--key"];
    args.push(key.to_str().unwrap());
    let named = all.named(3);
    args.extend(named.iter().map(String::as_str));
    all.home.palisade(&args).ok();
    all.move_to("restored", 3);
    assert_eq!(ca(&all, 0), old);
    all.start_all();
    ends(&all, 1);
    assert_eq!(ca(&all, 1), new);
}

/// The certificate chain and the key of the agent in a directory.
fn identity_of(dir: &Path) -> (String, String) {
    let identity: Value =
        serde_json::from_str(&fs::read_to_string(dir.join("identity.json")).unwrap()).unwrap();
    let chain = list(&identity, "/chain").iter().map(|der| {
        let der = der.as_str().unwrap();
        format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n")
    });
    (chain.collect(), text(&identity, "/keyPem").to_owned())
}

#[test]
fn a_node_that_is_revoked_is_sent_away_and_its_copy_is_refused_everywhere() {
    let all = Replicas::start(3);
    let _agent = Agent::start(&all);
    Agent::comes_back(&all);
    let stolen = all.home.path().join("stolen");
    let copied =
        Command::new("cp").arg("-r").arg(all.home.path().join("node")).arg(&stolen).status();
    assert!(copied.unwrap().success());
    let nodes = all.home.palisade(&["-o", "json", "node", "ls"]).json();
    let node = text(&nodes, "/0/name").to_owned();
    let (chain, key) = identity_of(&stolen);
    let live = tls(&ca(&all, 0), Some((&chain, &key)));
    // A connection that is there, and says nothing.
    let mut held = connect(&all.api.addrs[1], &live).unwrap();
    all.home.palisade(&["pki", "revoke", "--node", &node, "--reason", "stolen"]).ok();
    let agent_log = || fs::read_to_string(all.home.path().join("agent.log")).unwrap_or_default();
    until("the agent hears of it", || agent_log().contains("revoked this node").then_some(()));
    until("the node is not ready any more", || {
        let nodes = all.home.palisade(&["-o", "json", "node", "ls"]).json();
        (text(&nodes, "/0/status/phase") != "ready").then_some(())
    });
    let mut bytes = [0; 64];
    assert!(!matches!(held.read(&mut bytes), Ok(1..)), "the connection that was there ends");
    // The thief runs an agent with what he has: no replica takes it.
    let log = fs::File::create(all.home.path().join("thief.log")).unwrap();
    let mut thief = all.home.command(&["agent", "run", "--data-dir", "stolen"]);
    thief.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut thief = thief.spawn().unwrap();
    let said = || fs::read_to_string(all.home.path().join("thief.log")).unwrap_or_default();
    until("the refusals of all replicas", || {
        let told = said();
        let of = |addr: &String| {
            told.lines().any(|line| line.contains(addr) && line.contains("was revoked"))
        };
        all.api.addrs.iter().all(of).then_some(())
    });
    assert!(!said().contains("session open"), "{}", said());
    crate::support::procs::terminate(thief.id().into());
    thief.wait().unwrap();
    let listed = all.home.palisade(&["pki", "revocations"]).ok().stdout;
    assert!(listed.contains("stolen") && listed.contains("node/"), "{listed}");
    // The machine comes back with a key of its own once the node is removed.
    all.home.palisade(&["node", "rm", &node, "--force"]).ok();
}

/// Shows a certificate to a replica; what that answers.
fn whoami(all: &Replicas, index: usize, (chain, key): (&str, &str)) -> (u16, String) {
    let mut api = all.api.clone();
    api.tls = tls(&ca(all, 0), Some((chain, key)));
    let answer = api.get_by_certificate(index, &format!("{BASE}/auth/whoami")).unwrap();
    (answer.status, text(&answer.json(), "/detail").to_owned())
}

#[test]
fn a_client_certificate_that_is_revoked_or_out_of_its_time_is_refused_in_words() {
    let all = Replicas::start(3);
    let palisade = |args: &[&str]| all.home.palisade(args);
    palisade(&["principal", "create", "ops"]).ok();
    palisade(&["binding", "create", "ops", "viewer"]).ok();
    let read = |name: &str| fs::read_to_string(all.home.path().join(name)).unwrap();
    let dir = all.dir(0).to_str().unwrap().to_owned();
    palisade(&["principal", "certify", "ops", "--dir", &dir, "--out", "ops.crt"]).ok();
    let (chain, key) = (read("ops.crt"), read("ops.key"));
    assert_eq!(whoami(&all, 1, (&chain, &key)).0, 200);
    // It watches a list through another replica than the one that is told.
    let mut watch = connect(&all.api.addrs[2], &tls(&ca(&all, 0), Some((&chain, &key)))).unwrap();
    let head = format!("GET {BASE}/roles?watch=true HTTP/1.1\r\nHost: x\r\n\r\n");
    watch.write_all(head.as_bytes()).unwrap();
    let mut seen = vec![0; 16];
    watch.read_exact(&mut seen).unwrap();
    assert!(seen.starts_with(b"HTTP/1.1 200"));
    palisade(&["pki", "revoke", "--cert", "ops.crt", "--dry-run"]).ok();
    assert_eq!(whoami(&all, 0, (&chain, &key)).0, 200);
    palisade(&["pki", "revoke", "--cert", "ops.crt", "--reason", "laptop lost"]).ok();
    for index in 0..3 {
        until("the refusal by each replica", || {
            (whoami(&all, index, (&chain, &key)).0 == 401).then_some(())
        });
    }
    // Its end is without a farewell, or with one; that it ends is what counts.
    let _ = watch.read_to_end(&mut seen);
    // The same CA has made these, for another time than now.
    let ca_key = fs::read_to_string(all.dir(0).join("pki/ca.key")).unwrap();
    let authority = Authority::from_pem(&ca(&all, 0), &ca_key).unwrap();
    let now_ms = jiff::Timestamp::now().as_millisecond().unsigned_abs();
    let (day, hour) = (Duration::from_secs(24 * 3600), Duration::from_secs(3600));
    let made = |at_ms: u64| authority.issue_operator("admin", hour, at_ms).unwrap();
    let day_ms = u64::try_from(day.as_millis()).unwrap();
    let (over, early) = (made(now_ms - day_ms), made(now_ms + day_ms));
    for index in 0..3 {
        let (status, detail) = whoami(&all, index, (&over.cert_pem, &over.key_pem));
        assert!(status == 401 && detail.contains("user/admin ended at 20"), "PKI-7: {detail}");
        let (status, detail) = whoami(&all, index, (&early.cert_pem, &early.key_pem));
        assert!(status == 401 && detail.contains("is valid only from 20"), "PKI-7: {detail}");
    }
    // A token beside it does not help: the certificate is what the connection was made with.
    let mut api = all.api.clone();
    api.tls = tls(&ca(&all, 0), Some((&over.cert_pem, &over.key_pem)));
    assert_eq!(api.get(0, &format!("{BASE}/roles")).unwrap().status, 401);
}

#[test]
fn a_replica_whose_key_was_stolen_makes_another_one_and_the_stolen_one_opens_nothing() {
    let all = Replicas::start(3);
    let file = |name: &str| fs::read_to_string(all.dir(1).join("pki").join(name)).unwrap();
    let (chain, key) = (file("replica.pem"), file("replica.key"));
    let is_taken = |index: usize| {
        let identity = tls(&ca(&all, 0), Some((&chain, &key)));
        let Ok(mut stream) = connect(&all.peer_addr(index), &identity) else { return false };
        let _ = stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0");
        let mut buffer = [0; 9];
        stream.read_exact(&mut buffer).is_ok()
    };
    assert!(is_taken(0) && is_taken(2));
    let body = json!({"replica": 2, "reason": "disk sold"});
    let path = format!("{BASE}/pki/revocations");
    let answer = all.api.post(0, &path, "revoke", &body).unwrap().done();
    assert_eq!(text(&answer, "/revocations/0/status"), "waiting");
    until("another key", || (file("replica.key") != key).then_some(()));
    until("the stolen key is refused", || (!is_taken(0) && !is_taken(2)).then_some(()));
    // It is a member as before.
    all.write(1, "after");
    all.home.palisade(&["cluster", "transfer-leader", "2"]).ok();
    all.write(1, "led-by-it");
}
