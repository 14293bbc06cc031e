//! What a release keeps in its tables is read by the next one, and the other way round: `tests/golden/tables-*.jsonl` has
//! rows of each release, a line each.
//!
//! `PALISADE_GOLDEN=write cargo test -p palisade --lib tables` writes the file of this release when it is missing. One that
//! is there is never replaced, once its release is out.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Once,
};

use palisade_audit::AuditSinks;
use palisade_contract::{Module, Registry, node_spec::NODE_SPECS};
use palisade_scheduler::migrate::LEDGER;
use palisade_state::{Declared, cursor::CURSORS, roster};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::tenants::{World, admin, furnished};

/// The rows of each release, oldest first; the last one has some of every table there is.
const RELEASES: [&str; 1] = ["tables-0.1.0.jsonl"];
/// How many rows of a table are kept.
const SOME: usize = 4;

/// A row.
#[derive(Serialize, Deserialize)]
struct Row {
    table: String,
    /// In hex: not every key is text.
    key: String,
    value: Value,
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// All tables: those of modules, and the runtime's own.
fn tables(registry: &Registry) -> BTreeMap<&'static str, Declared> {
    let own = [CURSORS.declared(), LEDGER.declared(), NODE_SPECS.declared()];
    // That module is there when a plugin has a sink.
    let sinks = AuditSinks::new(vec![]).tables();
    let all = registry.declared().into_iter().chain(roster::tables()).chain(own).chain(sinks);
    all.map(|table| (table.name(), table)).collect()
}

/// Rows of tables that nobody writes where there is no agent, no receiver and no other replica: written by hand, as this
/// release has them.
const RARE: &str = include_str!("rare.jsonl");

/// A workload with everything that one can have.
fn whole_spec() -> Value {
    json!({
        "workload": "whole", "name": "whole", "tenant": "victim-corp", "count": 1, "driver": "process",
        "task": {
            "command": ["/bin/true"], "args": ["-x"], "user": "nobody", "workingDir": "/tmp", "files": {"a.txt": "a"},
            "env": {"A": "b", "PASSWORD": {"secret": "ledger-password"}},
        },
        "ports": [{"name": "http", "port": 8080}],
        "resources": {"cpumem": {"cpu-request": 0.5, "memory-request": "64MB"}},
        "placement": {"strategy": "auto", "labels": {"a": "b"}, "includes": ["vault-1"], "excludes": ["attic-1"]},
        "health": {
            "http": {"port": "http", "path": "/h"}, "interval": "1s", "timeout": "1s", "startPeriod": "1s",
            "healthyThreshold": 2, "unhealthyThreshold": 2,
        },
        "restart": {"mode": "always", "backoffInitial": "1s", "backoffMax": "2s"},
        "update": {"maxSurge": 1, "maxUnavailable": 0, "healthDeadline": "1m"},
        "stopSignal": "SIGTERM", "stopGrace": "3s", "labels": {"l": "m"},
    })
}

/// With some of everything that can be made here.
fn furnish(world: &World) {
    world.done(&admin(), "workloads.apply", &whole_spec());
    let role =
        json!({"name": "restarter", "description": "d", "actions": ["compute:workloads:read"]});
    world.done(&admin(), "roles.create", &role);
    world.settle();
}

fn rows_of(world: &World) -> Vec<Row> {
    let view = world.view();
    let mut rows = vec![];
    for (table, _) in view.tables().filter(|(table, _)| !table.contains('#')) {
        rows.extend(view.rows(table, &[], None).take(SOME).map(|(key, record)| Row {
            table: table.to_string(),
            key: hex::encode(&key[..]),
            value: serde_json::from_slice(record.value()).unwrap(),
        }));
    }
    rows.extend(parsed(RARE));
    rows
}

fn parsed(lines: &str) -> Vec<Row> {
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn read(name: &str) -> Vec<Row> {
    parsed(&fs::read_to_string(golden(name)).unwrap())
}

/// Where `now` lacks something that `before` has.
fn lacks(before: &Value, now: &Value, at: &str) -> Vec<String> {
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            let of = |(name, value): (&String, &Value)| match now.get(name) {
                Some(now) => lacks(value, now, &format!("{at}/{name}")),
                None => vec![format!("{at}/{name}")],
            };
            before.iter().flat_map(of).collect()
        }
        (Value::Array(before), Value::Array(now)) if before.len() == now.len() => {
            let pairs = before.iter().zip(now).enumerate();
            pairs.flat_map(|(n, (a, b))| lacks(a, b, &format!("{at}/{n}"))).collect()
        }
        (before, now) if before == now => vec![],
        _ => vec![format!("{at} is {now}, and was {before}")],
    }
}

/// The rows of this release.
fn newest() -> Vec<Row> {
    static WRITTEN: Once = Once::new();
    let name = RELEASES[RELEASES.len() - 1];
    WRITTEN.call_once(|| {
        let file = golden(name);
        if std::env::var_os("PALISADE_GOLDEN").is_some() && !file.exists() {
            let world = furnished();
            furnish(&world);
            let line = |row: Row| serde_json::to_string(&row).unwrap() + "\n";
            fs::write(&file, rows_of(&world).into_iter().map(line).collect::<String>()).unwrap();
        }
    });
    read(name)
}

#[test]
fn the_rows_of_each_release_are_read_and_lose_nothing() {
    let tables = tables(&World::new().registry);
    newest();
    let mut amiss = vec![];
    for release in RELEASES {
        for Row { table, key, value } in read(release) {
            let Some(declared) = tables.get(table.as_str()) else {
                amiss.push(format!("{release}: nobody reads table {table}"));
                continue;
            };
            let text = value.to_string();
            match declared.read(&hex::decode(&key).unwrap(), text.as_bytes()) {
                Ok(now) => {
                    let now = serde_json::from_slice(&now).unwrap();
                    amiss.extend(
                        lacks(&value, &now, "").iter().map(|at| format!("{release}: {table} {at}")),
                    );
                }
                Err(error) => {
                    amiss.push(format!("{release}: {table}: {error}: {:?}", error.source))
                }
            }
        }
    }
    assert!(amiss.is_empty(), "{amiss:#?}");
}

#[test]
fn the_newest_rows_are_of_every_table() {
    let world = World::new();
    let there: BTreeSet<String> = newest().into_iter().map(|row| row.table).collect();
    let all = tables(&world.registry);
    let lacking: Vec<_> = all.keys().filter(|table| !there.contains(**table)).collect();
    assert!(lacking.is_empty(), "no row is kept of {lacking:?}");
}

/// Where an object is a map by names of its own, in which what is added is another entry, and what gets no field in a minor
/// release: a reference to a secret, which serde buffers.
const MAPS: [&str; 9] = [
    "/allocations",
    "/env",
    "/env/PASSWORD",
    "/failures",
    "/files",
    "/instances",
    "/isolation",
    "/labels",
    "/ports",
];

/// With a field that the next release may add, wherever there is an object.
fn grown(value: &Value) -> Vec<(String, Value)> {
    fn paths(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.push(at.to_owned());
                fields.iter().for_each(|(name, value)| {
                    paths(
                        value,
                        &format!("{at}/{}", name.replace('~', "~0").replace('/', "~1")),
                        found,
                    );
                });
            }
            Value::Array(items) => items
                .iter()
                .enumerate()
                .for_each(|(n, value)| paths(value, &format!("{at}/{n}"), found)),
            _ => {}
        }
    }
    let mut found = vec![];
    paths(value, "", &mut found);
    let with = |at: String| {
        let mut value = value.clone();
        value.pointer_mut(&at).unwrap()["addedLater"] = json!({"is": 1});
        (at, value)
    };
    found.into_iter().map(with).collect()
}

#[test]
fn what_the_next_release_adds_is_passed_over() {
    let world = World::new();
    let tables = tables(&world.registry);
    let mut amiss = BTreeSet::new();
    for Row { table, key, value } in newest() {
        let key = hex::decode(&key).unwrap();
        for (at, grown) in grown(&value) {
            let read = tables[table.as_str()].read(&key, grown.to_string().as_bytes());
            if let Err(error) = read
                && !MAPS.iter().any(|map| at.ends_with(map))
            {
                let why = error.source.map(|source| source.to_string()).unwrap_or_default();
                amiss.insert(format!("{table} {at}: {why}"));
            }
        }
    }
    assert!(amiss.is_empty(), "{amiss:#?}");
}
