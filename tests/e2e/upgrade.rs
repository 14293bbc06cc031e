//! Releases side by side: replicas are replaced one by one under writes, and an older program meets newer data.
//!
//! There is one binary; a debug build says that it is another release when it is told to.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use serde_json::Value;

use crate::support::{
    Api, Out, Replicas, list, number,
    replicas::{token, tokens},
    text, until,
};

const NEW: &str = "0.99.0";
const OLD: &str = env!("CARGO_PKG_VERSION");

fn upgrade(all: &Replicas) -> Out {
    let args = ["-o", "json", "--timeout", "5s", "cluster", "upgrade", "--to", NEW];
    all.home.palisade(&args)
}

/// The plan, once it is safe to go on.
#[track_caller]
fn safe(all: &Replicas) -> Value {
    until("a plan that is safe", || {
        let out = upgrade(all);
        (out.code == 0).then(|| out.json())
    })
}

fn status(all: &Replicas) -> Option<Value> {
    let out = all.home.palisade(&["-o", "json", "--timeout", "5s", "cluster", "status"]);
    (out.code == 0).then(|| out.json())
}

fn ids(plan: &Value) -> Vec<u64> {
    list(plan, "/order").iter().filter_map(Value::as_u64).collect()
}

/// Waits until the cluster knows what a replica runs.
#[track_caller]
fn reported(all: &Replicas, id: u64, version: &str) {
    until("a report of what it runs", || {
        let status = status(all)?;
        let is_it = |one: &Value| number(one, "/id") == id && text(one, "/version") == version;
        list(&status, "/members").iter().any(is_it).then_some(())
    });
}

/// Writes until it is told to stop; answers what was acknowledged.
fn write_on(api: &Api, stop: &AtomicBool, written: &AtomicU64) -> Vec<String> {
    let mut acknowledged = vec![];
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let name = format!("load-{number}");
        let done = api.post(number % 3, &tokens(), &name, &token(&name));
        if done.is_ok_and(|answer| answer.status < 300) {
            acknowledged.push(name);
            written.fetch_add(1, Ordering::SeqCst);
        }
        thread::sleep(std::time::Duration::from_millis(20));
    }
    acknowledged
}

/// Stops the writers also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Replaces the one whose turn it is; its id.
fn replace_next(all: &mut Replicas, replaced: &[u64]) -> u64 {
    let plan = safe(all);
    let next = number(&plan, "/next");
    assert!(!replaced.contains(&next), "{plan}");
    assert_eq!(number(&plan, "/format"), 1, "it waits for the last one: {plan}");
    if plan["transferFirst"] == true {
        assert_eq!(replaced.len(), 2, "the leader is last: {plan}");
        all.home.palisade(&["cluster", "transfer-leader"]).ok();
        return replace_next(all, replaced);
    }
    let index = usize::try_from(next).unwrap() - 1;
    all.stop(index);
    if replaced.is_empty() {
        let away = until("a plan that is not safe", || {
            let out = upgrade(all);
            (out.code == 4 && out.stderr.contains(&format!("replica {next} "))).then_some(out)
        });
        let shown: Value = serde_json::from_str(&away.stdout).unwrap();
        assert_eq!(shown["safe"], false, "{away:#?}");
    }
    all.spawn_rehearsing(index, &format!("{NEW}/2"));
    all.ready(index);
    reported(all, next, NEW);
    next
}

#[test]
fn three_replicas_are_upgraded_one_by_one_under_writes_and_the_older_program_is_refused() {
    let mut all = Replicas::start(3);
    (1..=3).for_each(|id| reported(&all, id, OLD));
    let before = safe(&all);
    let leads = |one: &&Value| text(one, "/role") == "leader";
    let led = list(&before, "/members").iter().find(leads).map(|one| number(one, "/id"));
    assert_eq!(ids(&before).last().copied(), led, "the leader is last: {before}");
    let (api, stop, written) = (all.api.clone(), AtomicBool::new(false), AtomicU64::new(0));
    let acknowledged = thread::scope(|scope| {
        let stopping = Stop(&stop);
        let writer = scope.spawn(|| write_on(&api, &stop, &written));
        let mut replaced = vec![];
        for _ in 0..3 {
            let begun = written.load(Ordering::SeqCst);
            let next = replace_next(&mut all, &replaced);
            replaced.push(next);
            until("writes meanwhile", || {
                (written.load(Ordering::SeqCst) > begun + 3).then_some(())
            });
        }
        let three: BTreeSet<u64> = replaced.into_iter().collect();
        assert_eq!(three, BTreeSet::from([1, 2, 3]));
        until("the newer format", || (number(&status(&all)?, "/format") == 2).then_some(()));
        let after = written.load(Ordering::SeqCst);
        until("writes in the newer format", || {
            (written.load(Ordering::SeqCst) > after + 3).then_some(())
        });
        drop(stopping);
        writer.join().unwrap()
    });
    let plan = safe(&all);
    assert!(plan["done"] == true && ids(&plan).is_empty(), "{plan}");
    let page = all.home.palisade(&["cluster", "upgrade", "--to", NEW]).ok().stdout;
    assert!(page.contains(&format!("every replica runs {NEW}")), "{page}");
    (0..3).for_each(|asked| {
        let names: BTreeSet<String> = all.names(asked).into_iter().collect();
        let lost: Vec<_> = acknowledged.iter().filter(|name| !names.contains(*name)).collect();
        assert!(lost.is_empty(), "lost at replica {}: {lost:?}", asked + 1);
    });
    older_is_refused(&mut all);
}

/// The older program on a replica that has seen the newer format.
fn older_is_refused(all: &mut Replicas) {
    let leader = all.leader(0);
    let old = (leader + 1) % 3;
    all.stop(old);
    let seen = all.log(old).len();
    all.spawn(old);
    assert_eq!(all.ends(old), 1, "{}", all.log(old));
    let said = all.log(old)[seen..].to_owned();
    for part in ["format to 2", "up to 1", &format!("runs {OLD}"), &format!("runs {NEW}")] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(!said.contains("panicked"), "{said}");
    all.write(leader, "without-the-older");
    all.spawn_rehearsing(old, &format!("{NEW}/2"));
    all.ready(old);
    until("what it missed", || {
        all.names(old).contains(&"without-the-older".to_owned()).then_some(())
    });
}

/// The CRC-32 of files' headers.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 }
        })
    })
}

/// Writes a file as a later release may write it, and sees that the program refuses it with both numbers.
#[track_caller]
fn newer_is_refused(all: &Replicas, file: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let whole = fs::read(file).unwrap();
    let mut newer = whole.clone();
    change(&mut newer);
    fs::write(file, &newer).unwrap();
    let path = file.to_str().unwrap();
    let out = all.refuses(0).ends(1);
    let out = out.says(&[path, "has format 2", "knows formats up to 1", "newer release"]);
    assert!(!out.stderr.contains("panicked") && !out.stderr.contains("repair"), "{out:#?}");
    assert_eq!(fs::read(file).unwrap(), newer, "it is left as it is");
    fs::write(file, whole).unwrap();
}

#[test]
fn an_older_program_refuses_newer_data_with_both_numbers_and_leaves_it_alone() {
    let mut all = Replicas::start(1);
    all.write(0, "kept");
    all.stop(0);
    newer_is_refused(&all, &all.segment(0), |bytes| {
        bytes[8] = 2;
        let crc = crc32(&bytes[..508]);
        bytes[508..512].copy_from_slice(&crc.to_le_bytes());
    });
    newer_is_refused(&all, &all.dir(0).join("data/identity.json"), |bytes| {
        *bytes = br#"{"format": 2, "somethingNew": true}"#.to_vec();
    });
    all.start_all();
    assert!(all.names(0).contains(&"kept".to_owned()));
}
