//! What secrets hold, on its way into real processes, and where it is not found.

use std::{collections::BTreeMap, fs, path::Path};

use palisade_agent::driver::{Driver, SecretValue, Start};
use palisade_proto::agent::{InstanceSpec, SecretUse};

use crate::support::{Rig, kill, script, until};

const CANARY: &str = "canary-7d01";

fn with_secret(id: &str, text: &str, variable: &str) -> InstanceSpec {
    let mut spec = script(id, text);
    spec.driver = "process.secrets".into();
    spec.secret_env
        .insert(variable.into(), SecretUse { name: "db".into(), ..SecretUse::default() });
    spec
}

async fn start(
    rig: &Rig,
    spec: InstanceSpec,
    value: &[u8],
) -> Result<(), palisade_agent::driver::Problem> {
    let secrets: BTreeMap<String, SecretValue> = spec
        .secret_env
        .keys()
        .map(|name| (name.clone(), SecretValue::new(value.to_vec())))
        .collect();
    let start = Start { spec, run: 1, restarts: 0, node: "n".into(), secrets };
    rig.driver.start(start).await
}

/// The files below a directory that hold the text.
fn holding(dir: &Path, text: &str) -> Vec<String> {
    let mut found = vec![];
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(holding(&path, text));
        } else if kind.is_file()
            && String::from_utf8_lossy(&fs::read(&path).unwrap()).contains(text)
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[tokio::test]
async fn the_workload_alone_gets_a_secret_and_no_file_has_it() {
    let rig = Rig::new();
    let text = "test \"$DB\" = canary\"-\"7d01 && echo it is right; env | grep -c PALISADE_SECRET; sleep 100";
    start(&rig, with_secret("one", text, "DB"), CANARY.as_bytes()).await.unwrap();
    rig.log_has("one", "it is right\n0\n").await;
    assert_eq!(holding(rig.dir.path(), CANARY), Vec::<String>::new(), "SEC-12");
    // A check of its health runs in the same environment, also once its shim was replaced.
    let check = || {
        rig.driver.exec("one", ["sh", "-c", "test $DB = canary-7d01"].map(str::to_owned).to_vec())
    };
    assert_eq!(check().await.unwrap(), 0);
    let shim = rig.file("one", "state.json")["shim"]["pid"].as_u64().unwrap();
    kill(u32::try_from(shim).unwrap());
    until("another shim", async || {
        rig.driver.list().await.unwrap();
        (rig.file("one", "state.json")["shim"]["pid"].as_u64() != Some(shim)).then_some(())
    })
    .await;
    assert_eq!(check().await.unwrap(), 0);
    rig.driver.kill("one").await.unwrap();
    rig.end("one").await;
}

#[tokio::test]
async fn a_secret_means_nothing_to_the_processes_between() {
    let rig = Rig::new();
    let library = rig.dir.path().join("evil.so").display().to_string();
    let text = "echo $LD_PRELOAD; sleep 100";
    start(&rig, with_secret("pre", text, "LD_PRELOAD"), library.as_bytes()).await.unwrap();
    rig.log_has("pre", &library).await;
    // The loader of a process that it meant something to would have said so.
    let said = fs::read_to_string(rig.instance_dir("pre").join("shim.log")).unwrap();
    assert!(!said.contains("LD_PRELOAD"), "{said}");
    rig.driver.kill("pre").await.unwrap();
    rig.end("pre").await;
}

#[tokio::test]
async fn what_cannot_be_in_an_environment_or_did_not_come_is_told() {
    let rig = Rig::new();
    let refused = start(&rig, with_secret("zero", "true", "DB"), b"a\0b").await.unwrap_err();
    assert_eq!(refused.code, "SECRET_NOT_USABLE");
    let spec = with_secret("none", "true", "DB");
    let start = Start { spec, run: 1, restarts: 0, node: "n".into(), secrets: [].into() };
    rig.driver.start(start).await.unwrap();
    let end = rig.end("none").await;
    assert!(format!("{:?}", end.cause).contains("SECRET_MISSING"), "{end:?}");
}
