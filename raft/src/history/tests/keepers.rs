//! The writer over a real directory: opened again, damaged, foreign, newer.
#![allow(clippy::disallowed_methods, reason = "these tests run on the real clock and disk")]

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use palisade_state::{ReplicaId, Rt, step::StepRuntime};

use super::{World, put, write};
use crate::{
    Disk, Identity, TokioRuntime,
    history::{
        History, HistoryError, HistorySizes, RangeOf, Running, Shared, StartHistory,
        feed::Feed,
        keeper::{Keeper, Parts},
        shelf::{Changes, MemShelf, Pair, Shelf, ShelfError, Shelved},
        start,
    },
};

fn identity() -> Identity {
    Identity { cluster: "c1".into(), lineage: "l1".into(), epoch: 0, replica: ReplicaId(1) }
}

fn begin(data: &Path, world: &World, identity: Identity) -> (History, Option<Running>) {
    let rt: Rt = Arc::new(TokioRuntime::current().unwrap());
    start(StartHistory {
        rt,
        disk: Disk::real(),
        data: data.to_owned(),
        identity: Arc::new(identity),
        published: world.published(),
        feed: world.feed.clone(),
        sizes: HistorySizes { linger: Duration::from_millis(1), ..HistorySizes::default() },
        reserve_bytes: 0,
    })
}

/// The world goes on with a new queue, as after a restart.
fn restart(mut world: World) -> World {
    let feed = Arc::new(Feed::new(1 << 20));
    world.feeder = super::Feeder::new(feed.clone(), true);
    world.feed = feed;
    world
}

async fn end(history: &History, running: Option<Running>) {
    history.close();
    running.unwrap().ended().await;
}

async fn eventually(what: &str, mut look: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !look() {
        assert!(begun.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn durable(history: &History, audit: u64) {
    eventually("it is durable", || history.durable().is_some_and(|durable| durable.audit >= audit))
        .await;
}

/// A history of 300 records on the disk, and the world behind it.
async fn written(data: &Path) -> World {
    let mut world = World::new();
    let (history, running) = begin(data, &world, identity());
    world.tell(300);
    for n in 0..50 {
        world.apply(vec![write(vec![put("t", "k", &n.to_string())])], true);
    }
    durable(&history, 300).await;
    end(&history, running).await;
    assert!(history.status().audit.is_none(), "it is closed");
    restart(world)
}

fn aside(data: &Path) -> usize {
    let names = std::fs::read_dir(data).unwrap().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().contains("aside")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_durable_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = written(dir.path()).await;
    let (history, running) = begin(dir.path(), &world, identity());
    world.tell(10);
    durable(&history, 310).await;
    let page = history.audit(295, 100).await.unwrap();
    assert_eq!(page.items.len(), 16);
    let rows =
        history.at(320, RangeOf { table: "t", limit: 10, ..RangeOf::default() }).await.unwrap();
    assert_eq!(rows[0].value, b"19");
    let past = history.versions("t", b"k").await.unwrap();
    assert_eq!((past.versions.len(), past.gaps.len()), (49, 0));
    let refused = history.at(9999, RangeOf { table: "t", ..RangeOf::default() }).await;
    assert_eq!(refused, Err(HistoryError::NotReached { revision: 9999, current: 360 }));
    assert_eq!(history.status().findings, Vec::<String>::new());
    assert_eq!(aside(dir.path()), 0);
    end(&history, running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_nobody_told_of_are_a_gap_that_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = written(dir.path()).await;
    for _ in 0..5 {
        world.apply(vec![write(vec![put("t", "k", "lost")])], false);
    }
    let (history, running) = begin(dir.path(), &world, identity());
    world.apply(vec![write(vec![put("t", "k", "after")])], true);
    eventually("it is known", || !history.status().gaps.is_empty()).await;
    let refused = history.at(340, RangeOf { table: "t", ..RangeOf::default() }).await;
    assert_eq!(refused, Err(HistoryError::Missing { revision: 340, from: 351, to: 355 }));
    let rows = history.at(355, RangeOf { table: "t", limit: 9, ..RangeOf::default() }).await;
    assert_eq!(rows.unwrap()[0].value, b"lost");
    end(&history, running).await;
}

/// The files below a directory, but for the store's largest.
fn beside_the_store(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(beside_the_store(&path));
        } else if !path.ends_with("store/db") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Damages what a file holds.
fn hurt(file: &Path, case: usize) -> String {
    let mut bytes = std::fs::read(file).unwrap();
    let at = (case * 7919 + 13) * 4099 % crate::disk::data_end(&bytes).max(1);
    let what = match case % 4 {
        0 => {
            bytes.truncate(at);
            "cut"
        }
        1 => {
            bytes.iter_mut().skip(at).take(4096).for_each(|byte| *byte = 0);
            "zeroed"
        }
        2 => {
            bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << (case / 4 % 8));
            "a bit flipped"
        }
        _ => {
            bytes.iter_mut().skip(at).take(64).for_each(|byte| *byte ^= 0xff);
            "overwritten"
        }
    };
    std::fs::write(file, bytes).unwrap();
    format!("case {case}: {} at {at}: {what}", file.display())
}

/// What a history of which one file was damaged comes to: all of the window is there, or it is a newer release's and says
/// so.
async fn reads_all_or_says_why(history: &History, data: &Path, last: u64, what: &str) {
    let is_newer = || history.status().findings.iter().any(|found| found.contains("has format"));
    eventually(what, || {
        is_newer() || history.durable().is_some_and(|durable| durable.audit >= last)
    })
    .await;
    let (mut next, mut seen) = (Some(0), 0);
    while let Some(from) = next.filter(|_| !is_newer()) {
        match history.audit(from, 1000).await {
            Ok(page) => {
                seen += page.items.len();
                next = page.next;
            }
            Err(_) => {
                eventually(what, || aside(data) > 0).await;
                durable(history, last).await;
                (seen, next) = (0, Some(0));
            }
        }
    }
    assert!(is_newer() || seen as u64 == last, "{what}: {seen} of {last} are there");
    if aside(data) > 0 {
        let found = || history.status().findings.iter().any(|found| found.contains("set aside"));
        eventually(&format!("{what}: a finding"), found).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_store_is_set_aside_and_begun_anew_from_the_window() {
    // Whatever is done to any of its files: a clean start or a finding, and never the end of anything.
    let dir = tempfile::tempdir().unwrap();
    let mut world = written(dir.path()).await;
    let others = beside_the_store(&dir.path().join("history"));
    let named = |name: &str| others.iter().any(|path| path.ends_with(name));
    assert!(named("about.json") && named("reached") && named("store/conf"), "{others:?}");
    let mut anew = 0;
    let cases = std::env::var("PALISADE_DAMAGE_CASES").ok().and_then(|n| n.parse().ok());
    for case in 0..cases.unwrap_or(48_usize) {
        let data = tempfile::tempdir().unwrap();
        copy(&dir.path().join("history"), &data.path().join("history"));
        let other = others[case / 8 % others.len()].strip_prefix(dir.path()).unwrap();
        let file = if case % 2 == 0 { Path::new("history/store/db") } else { other };
        let what = hurt(&data.path().join(file), case / 2);
        let (history, running) = begin(data.path(), &world, identity());
        world.tell(1);
        reads_all_or_says_why(&history, data.path(), world.view().last_audit(), &what).await;
        anew += aside(data.path());
        end(&history, running).await;
        world = restart(world);
    }
    println!("{anew} of the damaged stores were set aside, the others had lost nothing");
    assert!(anew > 0, "none of the damage was found");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_history_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = written(dir.path()).await;
    let about = dir.path().join("history/about.json");
    std::fs::write(&about, r#"{"format":7,"somethingNew":true}"#).unwrap();
    let (history, running) = begin(dir.path(), &world, identity());
    world.tell(1);
    eventually("it says so", || !history.status().findings.is_empty()).await;
    let found = history.status().findings.remove(0);
    assert!(found.contains("has format 7") && found.contains("knows formats up to 1"), "{found}");
    assert!(matches!(history.audit(0, 1).await, Err(HistoryError::Unavailable(_))));
    end(&history, running).await;
    assert_eq!(aside(dir.path()), 0);
    assert!(std::fs::read_to_string(&about).unwrap().contains("somethingNew"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_of_another_lineage_or_another_past_is_set_aside() {
    let dir = tempfile::tempdir().unwrap();
    let world = written(dir.path()).await;
    let other = Identity { lineage: "l2".into(), ..identity() };
    let (history, running) = begin(dir.path(), &world, other);
    eventually("it is set aside", || aside(dir.path()) == 1).await;
    durable(&history, 300).await;
    eventually("a finding", || history.status().findings.iter().any(|f| f.contains("set aside")))
        .await;
    end(&history, running).await;

    let mut past = World::new();
    past.apply(vec![write(vec![])], false);
    let (history, running) =
        begin(dir.path(), &past, Identity { lineage: "l2".into(), ..identity() });
    past.tell(301);
    eventually("it is set aside", || aside(dir.path()) == 2).await;
    durable(&history, 301).await;
    assert_eq!(
        history.audit(0, 1000).await.unwrap().items[0],
        *past.view().audit(0).next().unwrap()
    );
    end(&history, running).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_in_use_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let world = written(dir.path()).await;
    let store = dir.path().join("history/store");
    let held = crate::history::sled_shelf::SledShelf::open(&store).unwrap();
    let (history, running) = begin(dir.path(), &world, identity());
    eventually("it waits", || !history.status().findings.is_empty()).await;
    drop(held);
    durable(&history, 300).await;
    assert_eq!(aside(dir.path()), 0);
    end(&history, running).await;
}

/// A shelf that may be full, or broken.
#[derive(Default)]
struct Moody {
    shelf: MemShelf,
    mood: Mutex<Option<ShelfError>>,
}

impl Moody {
    fn becomes(&self, mood: Option<ShelfError>) {
        *self.mood.lock().unwrap() = mood;
    }
}

impl Shelf for Moody {
    fn get(&self, key: &[u8]) -> Shelved<Option<Vec<u8>>> {
        self.shelf.get(key)
    }

    fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> Shelved<Vec<Pair>> {
        self.shelf.scan(from, to, limit)
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Shelved<Option<Pair>> {
        self.shelf.last(from, to)
    }

    fn write(&self, changes: Changes) -> Shelved<()> {
        let mood = self.mood.lock().unwrap().clone();
        mood.map_or(Ok(()), Err)?;
        self.shelf.write(changes)
    }

    fn sync(&self) -> Shelved<()> {
        self.shelf.sync()
    }
}

/// A writer over such a shelf whose clock is stepped, and what it shares.
fn keeper(world: &World, shelf: Arc<Moody>) -> (Keeper, Arc<Shared>, Arc<StepRuntime>) {
    let (rt, shared) = (StepRuntime::new(1), Arc::new(Shared::default()));
    let parts = Parts {
        feed: world.feed.clone(),
        shared: shared.clone(),
        published: world.published(),
        rt: rt.clone(),
        disk: Disk::real(),
        place: None,
        sizes: HistorySizes { linger: Duration::ZERO, ..HistorySizes::default() },
        reserve_bytes: 0,
    };
    (Keeper::over(parts, shelf).unwrap(), shared, rt)
}

fn durable_audit(shared: &Shared) -> Option<u64> {
    shared.durable.lock().unwrap().map(|durable| durable.audit)
}

#[test]
fn versions_that_found_no_room_are_written_later() {
    let mut world = World::new();
    let shelf = Arc::new(Moody::default());
    let (mut keeper, shared, rt) = keeper(&world, shelf.clone());
    for n in 0..10 {
        world.apply(vec![write(vec![put("t", "k", &n.to_string())])], true);
    }
    shelf.becomes(Some(ShelfError::Full));
    keeper.turn();
    assert_eq!(shared.findings.lock().unwrap().len(), 1, "it waits");
    for n in 10..20 {
        world.apply(vec![write(vec![put("t", "k", &n.to_string())])], true);
    }
    rt.advance(Duration::from_secs(1));
    keeper.turn();
    shelf.becomes(None);
    rt.advance(Duration::from_secs(1));
    keeper.turn();
    let reader = shared.reader.lock().unwrap().clone().unwrap();
    let past = reader.versions("t", b"k").unwrap();
    assert_eq!((past.versions.len(), past.gaps.len()), (19, 0), "none is missing");
    assert!(shared.findings.lock().unwrap().is_empty());
}

#[test]
fn a_history_that_is_lost_has_nothing_durable() {
    let mut world = World::new();
    let shelf = Arc::new(Moody::default());
    let (mut keeper, shared, rt) = keeper(&world, shelf.clone());
    assert_eq!(durable_audit(&shared), None, "nobody knows yet");
    world.tell(5);
    keeper.turn();
    assert_eq!(durable_audit(&shared), Some(5));
    shelf.becomes(Some(ShelfError::Full));
    world.tell(1);
    keeper.turn();
    assert_eq!(durable_audit(&shared), Some(5), "it only waits");
    shelf.becomes(Some(ShelfError::Broken("on purpose".to_owned())));
    rt.advance(Duration::from_secs(1));
    keeper.turn();
    assert_eq!(durable_audit(&shared), Some(0));
}
