//! The module on the kernel in memory, with keys in a directory of each test.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::{
    executor::block_on,
    future::{BoxFuture, ready},
};
use palisade_contract::{
    Code, Context, Error, MethodContext, Module, Principal, Registry, Result, SecretBytes,
    SecretRef,
    method::Handler,
    secrets::{Sealed, SecretKeys, SecretUsers},
};
use palisade_state::Tx;
use palisade_testing::Bench;
use serde_json::{Value, json};

use crate::{
    KeyState, SECRETS_MAX, SecretsModule,
    keyring::{Ask, KeyRing, file_name},
    lose_keys,
    port::Port,
    records::{RingRow, SECRETS, SecretRow, sealed_with},
    rotation::KEYS_KIND,
};

const CANARY: &str = "canary-5d1f0c";

/// Uses whatever secret is called `used`.
struct User;

impl Module for User {
    fn name(&self) -> &'static str {
        "user"
    }

    fn secret_users(&self, _: &mut Tx, tenant: &str, secret: &SecretRef) -> Result<SecretUsers> {
        let mut users = SecretUsers::default();
        if secret.secret == "used" && tenant == "acme" {
            users.by.insert("workload/web".to_owned());
        }
        Ok(users)
    }
}

/// Keys that are of no use any more after so many uses, as those of a process that was killed.
struct Cut {
    keys: Arc<KeyRing>,
    left: AtomicUsize,
}

impl Cut {
    fn take(&self) -> Result<()> {
        let less = |left: usize| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(Code::Unavailable, "the process was killed")),
        }
    }
}

impl SecretKeys for Cut {
    fn has(&self, id: &str) -> bool {
        self.keys.has(id)
    }

    fn make(&self) -> Result<String> {
        self.take()?;
        self.keys.make()
    }

    fn seal(&self, id: &str, bound_to: &[u8], plain: &SecretBytes) -> Result<Sealed> {
        self.take()?;
        self.keys.seal(id, bound_to, plain)
    }

    fn open(&self, id: &str, bound_to: &[u8], sealed: &Sealed) -> Result<SecretBytes> {
        self.take()?;
        self.keys.open(id, bound_to, sealed)
    }

    fn digest(&self, id: &str, text: &[u8]) -> Result<String> {
        self.keys.digest(id, text)
    }

    fn forget(&self, id: &str) -> Result<()> {
        self.keys.forget(id)
    }

    fn fetch(&self, wanted: Vec<String>) -> BoxFuture<'static, Result<usize>> {
        self.keys.fetch(wanted)
    }
}

struct Place {
    bench: Bench,
    module: SecretsModule,
    keys: Arc<KeyRing>,
    cut: Arc<Cut>,
    dir: tempfile::TempDir,
}

fn nobody() -> Ask {
    Arc::new(|| Box::pin(ready(vec![])))
}

impl Place {
    /// Before any key was made.
    fn bare() -> Self {
        let module = SecretsModule::default();
        let bench = Bench::new(&[&module]);
        let dir = tempfile::tempdir().unwrap();
        let keys = Arc::new(KeyRing::open(dir.path().to_owned(), nobody()).unwrap());
        let cut = Arc::new(Cut { keys: keys.clone(), left: AtomicUsize::new(usize::MAX) });
        bench.context.ports.secret_keys.fill(cut.clone()).unwrap();
        bench.context.ports.secrets.fill(Arc::new(Port(cut.clone()))).unwrap();
        let known = SecretsModule::default();
        let registry = Registry::new(vec![Arc::new(known), Arc::new(User)]).unwrap();
        module.bind(&registry);
        Self { bench, module, keys, cut, dir }
    }

    fn new() -> Self {
        let place = Self::bare();
        place.settle();
        assert!(RingRow::of(&place.bench.view()).unwrap().in_state(KeyState::Current).is_some());
        place
    }

    fn look(&self) {
        block_on(crate::look(&self.bench.context)).unwrap();
    }

    fn settle(&self) {
        for _ in 0..4 {
            self.look();
            self.bench.settle();
        }
    }

    fn call(&self, method: &str, input: &Value, if_match: Option<u64>) -> Result<Value> {
        call(&self.module, &self.bench.context, method, input, if_match)
    }

    fn set(&self, tenant: &str, name: &str, value: &str) -> Value {
        let input = json!({"secret": name, "tenant": tenant, "value": value});
        self.call("secrets.set", &input, None).unwrap()
    }

    fn open(&self, tenant: &str, name: &str) -> Result<String> {
        let port = self.bench.context.ports.secrets.get().unwrap();
        let opened =
            port.open(&self.bench.view(), tenant, &SecretRef { secret: name.to_owned() })?;
        Ok(String::from_utf8(opened.reveal().to_vec()).unwrap())
    }

    fn ring(&self) -> RingRow {
        RingRow::of(&self.bench.view()).unwrap()
    }

    fn states(&self) -> Vec<KeyState> {
        self.ring().keys.iter().map(|key| key.state).collect()
    }

    fn row(&self, tenant: &str, name: &str) -> SecretRow {
        SECRETS.get(&self.bench.view(), &SecretRow::key_of(tenant, name)).unwrap().unwrap().value
    }

    /// All rows, events and work, as text.
    fn all(&self) -> String {
        let view = self.bench.view();
        let mut all = String::new();
        for (table, _) in view.tables() {
            for (key, record) in view.rows(table, &[], None) {
                all += &String::from_utf8_lossy(key);
                all += &String::from_utf8_lossy(record.value());
            }
        }
        for (_, event) in view.events(0) {
            all += &format!("{event:?}");
        }
        all
    }
}

/// Calls a method as the envelope does once it has let somebody through.
fn call(
    module: &SecretsModule,
    cx: &Context,
    method: &str,
    input: &Value,
    if_match: Option<u64>,
) -> Result<Value> {
    let methods = module.methods();
    let method = methods.iter().find(|one| one.full_name() == method).unwrap();
    (method.validate)(input)?;
    let principal = Principal { name: "token/test".into(), roles: vec![], tenant: String::new() };
    let cx = MethodContext {
        context: cx.clone(),
        principal,
        request_id: String::new(),
        dry_run: false,
        if_match,
    };
    match &method.handler {
        Handler::Query(run) => run(&cx, &cx.context.store.view(), input.clone()),
        Handler::Mutation(run) => {
            let mut answer = Value::Null;
            let built = block_on(cx.context.commit(|tx: &mut Tx| {
                answer = run(&cx, tx, input.clone())?;
                Ok(())
            }));
            built.map(|_| answer)
        }
        _ => panic!("no such handler here"),
    }
}

#[test]
fn what_a_secret_holds_is_opened_by_the_port_and_is_nowhere_else() {
    let place = Place::new();
    assert_eq!(place.set("acme", "db", CANARY)["version"], 1);
    assert_eq!(place.set("acme", "db", &format!("{CANARY}-2"))["version"], 2);
    let binary = json!({"secret": "bin", "base64": "AP8="});
    assert_eq!(place.call("secrets.set", &binary, None).unwrap()["bytes"], 2);
    assert_eq!(place.open("acme", "db").unwrap(), format!("{CANARY}-2"));
    assert_eq!(place.open("", "db").unwrap_err().code, Code::NotFound);
    let shown =
        place.call("secrets.get", &json!({"secret": "db", "tenant": "acme"}), None).unwrap();
    assert_eq!((&shown["version"], &shown["keyVersion"]), (&json!(2), &json!(1)));
    let listed = place.call("secrets.list", &json!({"tenant": "acme"}), None).unwrap();
    let told = format!("{shown} {listed} {}", place.all());
    assert!(told.contains("secret.set") && !told.contains("canary"), "SEC-5: {told}");
}

#[test]
fn a_version_is_set_on_the_revision_that_was_named() {
    let place = Place::new();
    let input = json!({"secret": "db", "value": "a"});
    assert_eq!(
        place.call("secrets.set", &input, Some(7)).unwrap_err().code,
        Code::PreconditionFailed
    );
    place.call("secrets.set", &input, Some(0)).unwrap();
    assert_eq!(
        place.call("secrets.set", &input, Some(0)).unwrap_err().code,
        Code::PreconditionFailed
    );
    let shown = place.call("secrets.get", &json!({"secret": "db"}), None).unwrap();
    place.call("secrets.set", &input, shown["revision"].as_u64()).unwrap();
}

#[test]
fn a_record_that_was_moved_does_not_open() {
    let place = Place::new();
    place.set("acme", "db", CANARY);
    let row = place.row("acme", "db");
    let moved = [
        ("acme/web", SecretRow { name: "web".into(), ..row.clone() }),
        ("evil/db", SecretRow { tenant: "evil".into(), ..row.clone() }),
        ("acme/db", SecretRow { version: 2, ..row.clone() }),
    ];
    for (key, row) in moved {
        place.bench.commit(|tx| Ok(tx.put(&SECRETS, &key.to_owned(), &row)?));
        let (tenant, name) = key.split_once('/').unwrap();
        let refused = place.open(tenant, name).unwrap_err();
        assert_eq!(refused.code, Code::Internal, "SEC-4: {key}");
        assert!(!format!("{refused:?}").contains("canary"));
    }
    place.bench.commit(|tx| Ok(tx.put(&SECRETS, &"acme/db".to_owned(), &row)?));
    assert_eq!(place.open("acme", "db").unwrap(), CANARY);
}

#[test]
fn no_problem_of_an_input_repeats_it() {
    let place = Place::new();
    for input in [
        json!({"secret": "db", "value": 5_170_551}),
        json!({"secret": "db", "base64": [CANARY]}),
        json!({"secret": "db", "base64": CANARY}),
        json!({"secret": "db", "value": CANARY, "base64": CANARY}),
        json!({"secret": "db", "value": ""}),
        json!({"secret": "db", "value": CANARY.repeat(10_000)}),
        json!({"secret": "db", "valeu": CANARY}),
        json!({"secret": "no name!", "value": CANARY}),
        json!({"secret": "db"}),
    ] {
        let refused = place.call("secrets.set", &input, None).unwrap_err();
        assert_eq!(refused.code, Code::InvalidInput);
        let told = format!("{refused:?}");
        assert!(!told.contains("canary") && !told.contains("5170551"), "SEC-1: {told}");
    }
}

#[test]
fn nothing_is_sealed_with_a_key_before_each_voter_holds_it() {
    let place = Place::bare();
    let input = json!({"secret": "db", "value": CANARY});
    let set = |place: &Place| place.call("secrets.set", &input, None);
    let refused = set(&place).unwrap_err();
    assert!(refused.code == Code::Unavailable && refused.retryable);
    place.look();
    place.bench.settle();
    assert_eq!(place.states(), [KeyState::Pending]);
    // The replica that made it has not said so yet.
    place.bench.advance(60_000);
    place.bench.settle();
    assert_eq!(place.states(), [KeyState::Pending], "SEC-7");
    assert_eq!(set(&place).unwrap_err().code, Code::Unavailable);
    let found = place.module.self_check(&place.bench.context, &place.bench.view()).unwrap();
    assert_eq!(found[0].check, "secrets.rotation");
    place.settle();
    assert_eq!(place.states(), [KeyState::Current]);
    set(&place).unwrap();
    assert_eq!(place.module.self_check(&place.bench.context, &place.bench.view()).unwrap(), []);
}

#[test]
fn a_rotation_that_is_cut_off_anywhere_goes_on_and_leaves_what_was_set_meanwhile() {
    // To make a key is one use; each of 50 secrets is opened and sealed, 20 in a transaction.
    for cut in [0, 1, 2, 3, 30, 41, 42, 81, 82, 100, 101] {
        let place = Place::new();
        for n in 0..50 {
            place.set("acme", &format!("s{n}"), &format!("{CANARY}-{n}"));
        }
        let old = place.ring().keys[0].id.clone();
        place.call("secretKeys.rotate", &json!({}), None).unwrap();
        assert!(place.bench.view().work(KEYS_KIND, "ring").is_some());
        place.cut.left.store(cut, Ordering::Relaxed);
        let ended = catch_unwind(AssertUnwindSafe(|| place.settle()));
        assert_eq!(ended.is_err(), cut < 101, "cut {cut}");
        place.cut.left.store(usize::MAX, Ordering::Relaxed);
        place.set("acme", "s7", "another");
        place.call("secrets.remove", &json!({"secret": "s9", "tenant": "acme"}), None).unwrap();
        // Another process, with what is on the disk.
        let again = KeyRing::open(place.dir.path().to_owned(), nobody()).unwrap();
        assert!(place.ring().keys.iter().all(|key| !key.is_needed() || again.has(&key.id)));
        place.bench.advance(60_000);
        place.settle();
        place.settle();
        assert_eq!(place.states(), [KeyState::Dropped, KeyState::Current], "cut {cut}");
        assert!(!place.keys.has(&old) && !place.dir.path().join(file_name(&old)).exists());
        for n in (0..50).filter(|n| *n != 9) {
            let wanted = if n == 7 { "another".to_owned() } else { format!("{CANARY}-{n}") };
            assert_eq!(place.open("acme", &format!("s{n}")).unwrap(), wanted, "SEC-9");
        }
        assert!(!place.all().contains("canary"));
    }
}

#[test]
fn one_that_cannot_be_opened_holds_up_its_key_and_no_other_secret() {
    let place = Place::new();
    for name in ["a", "b", "c"] {
        place.set("", name, CANARY);
    }
    let old = place.ring().keys[0].id.clone();
    place.bench.commit(|tx| {
        let found = tx.scan(&SECRETS, b"")?;
        let (key, mut row) = found.into_iter().find(|(_, row)| row.name == "a").unwrap();
        row.sealed = "AAAA".to_owned();
        Ok(tx.put(&SECRETS, &key, &row)?)
    });
    place.call("secretKeys.rotate", &json!({}), None).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| place.settle())).is_err(), "it is said");
    assert_eq!(place.states(), [KeyState::Retiring, KeyState::Current]);
    let left = sealed_with(&place.bench.view()).unwrap();
    assert_eq!(left.get(&old), Some(&1), "the others are sealed anew");
    place.set("", "a", "another");
    place.bench.advance(60_000);
    place.settle();
    assert_eq!(place.states(), [KeyState::Dropped, KeyState::Current]);
}

#[test]
fn one_rotation_at_a_time() {
    let place = Place::new();
    place.call("secretKeys.rotate", &json!({}), None).unwrap();
    let refused = place.call("secretKeys.rotate", &json!({}), None).unwrap_err();
    assert!(refused.code == Code::Conflict && !refused.retryable);
    place.settle();
    place.call("secretKeys.rotate", &json!({}), None).unwrap();
    place.settle();
    assert_eq!(place.states(), [KeyState::Dropped, KeyState::Dropped, KeyState::Current]);
}

#[test]
fn a_replica_without_the_key_says_so_and_what_to_do() {
    let place = Place::new();
    place.set("", "db", CANARY);
    let id = place.ring().keys[0].id.clone();
    place.keys.forget(&id).unwrap();
    let refused = place.open("", "db").unwrap_err();
    assert_eq!(refused.code, Code::Unavailable);
    assert!(refused.hint.unwrap().contains(&file_name(&id)));
    let found = place.module.self_check(&place.bench.context, &place.bench.view()).unwrap();
    assert_eq!(found[0].check, "secrets.key-lacking");
    assert!(found[0].fix.contains(&file_name(&id)));
    // It stops saying that it holds it.
    place.look();
    let keys = place.call("secretKeys.list", &json!({}), None).unwrap();
    assert_eq!((&keys[0]["heldBy"], &keys[0]["lacking"]), (&json!([]), &json!([1])));
}

#[test]
fn a_key_that_nothing_is_sealed_with_yet_is_no_error_where_it_is_lacking() {
    let place = Place::new();
    place.call("secretKeys.rotate", &json!({}), None).unwrap();
    place.bench.settle();
    let pending = place.ring().in_state(KeyState::Pending).unwrap().id.clone();
    place.keys.forget(&pending).unwrap();
    let check = || place.module.self_check(&place.bench.context, &place.bench.view()).unwrap();
    assert_eq!(check(), []);
    place.bench.advance(60_000);
    assert_eq!(check()[0].check, "secrets.rotation");
}

#[test]
fn what_a_fork_cannot_open_is_told_and_can_be_set_again() {
    let place = Place::new();
    place.set("", "db", CANARY);
    let old = place.ring().keys[0].id.clone();
    place.bench.commit(lose_keys);
    place.keys.forget(&old).unwrap();
    place.settle();
    assert_eq!(place.states(), [KeyState::Lost, KeyState::Current]);
    let refused = place.open("", "db").unwrap_err();
    assert_eq!(refused.code, Code::InvalidState);
    assert!(refused.hint.unwrap().contains("set it again"));
    let found = place.module.self_check(&place.bench.context, &place.bench.view()).unwrap();
    assert_eq!((found[0].check.as_str(), found[0].count), ("secrets.lost", Some(1)));
    place.set("", "db", "new");
    assert_eq!(place.open("", "db").unwrap(), "new");
    assert_eq!(place.module.self_check(&place.bench.context, &place.bench.view()).unwrap(), []);
}

#[test]
fn a_secret_that_is_used_stays() {
    let place = Place::new();
    place.set("acme", "used", CANARY);
    place.set("", "used", CANARY);
    let refused = place.call("secrets.remove", &json!({"secret": "used", "tenant": "acme"}), None);
    let refused = refused.unwrap_err();
    assert!(refused.code == Code::InvalidState && refused.detail.contains("workload/web"), "SEC-6");
    let shown = place.call("secrets.get", &json!({"secret": "used", "tenant": "acme"}), None);
    assert_eq!(shown.unwrap()["usedBy"], json!(["workload/web"]));
    place.call("secrets.remove", &json!({"secret": "used"}), None).unwrap();
    assert_eq!(place.open("", "used").unwrap_err().code, Code::NotFound);
}

#[test]
fn a_tenant_has_so_many_secrets_and_they_go_with_it() {
    let place = Place::new();
    for n in 0..SECRETS_MAX {
        place.set("acme", &format!("s{n}"), "x");
    }
    let more = json!({"secret": "one-more", "tenant": "acme", "value": "x"});
    assert_eq!(place.call("secrets.set", &more, None).unwrap_err().code, Code::QuotaExceeded);
    place.set("acme", "s0", "another version is no other secret");
    place.set("acme2", "s0", "x");
    place.set("", "s0", "x");
    let cx = place.bench.context.clone();
    let mut passes = 0;
    loop {
        let mut left = palisade_contract::Sweep::Done;
        place.bench.commit(|tx| {
            left = place.module.tenant_deleted(&cx, tx, "acme")?;
            Ok(())
        });
        passes += 1;
        if left == palisade_contract::Sweep::Done {
            break;
        }
    }
    assert_eq!((passes, place.bench.view().count(SECRETS.name())), (3, 2));
}

#[test]
fn a_request_is_known_by_a_digest_that_needs_the_key() {
    let place = Place::new();
    let port = place.bench.context.ports.secrets.get().unwrap();
    let blind = |text: &str| port.blind(&place.bench.view(), text).unwrap();
    assert_eq!(blind(CANARY), blind(CANARY));
    assert_ne!(blind(CANARY), blind("other"));
    assert!(!blind(CANARY).contains("canary"));
}
