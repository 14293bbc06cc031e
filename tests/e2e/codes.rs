//! Errors that an operator meets, each over REST and from the command line: status, document, exit code, and that nothing
//! has changed. What no input provokes is in `api/server/tests/codes.rs` and `src/output/exit.rs`; `NO_QUORUM` and
//! `NO_SPACE` are in `failover.rs` and `full_disk.rs`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::support::{
    Out, Replicas, Slot,
    http::{Answer, Api, BASE},
    text, until,
};

/// A replica that has a tenant `acme` with room for one workload, which it has, a tenant `idle` that is suspended, and a
/// role `reader`.
struct World {
    cluster: Replicas,
    /// Who operates `acme`.
    operator: Api,
    /// The same one's token, as the command line takes it.
    token: String,
}

/// What provokes one code.
struct Case {
    code: &'static str,
    status: u16,
    exit: i32,
    rest: fn(&World) -> Answer,
    /// `None`: the command line never asks for that.
    cli: Option<fn(&World) -> Out>,
    /// In what it prints.
    says: &'static [&'static str],
}

/// Nobody works at it: what does not run needs no place.
const WEB: &str = "count: 1\nwanted: offline\ntask:\n  command: [/bin/true]\n";

impl World {
    fn new() -> Self {
        let cluster = Replicas::start(1);
        let admin = |args: &[&str]| cluster.home.palisade(args).ok();
        admin(&["tenant", "create", "acme", "--workloads", "1"]);
        admin(&["tenant", "create", "idle"]);
        admin(&["tenant", "suspend", "idle", "--reason", "the bill of May"]);
        admin(&["role", "create", "reader", "--action", "compute:workloads:read"]);
        let file = |name: &str| cluster.home.path().join(name).to_str().unwrap().to_owned();
        for tenant in ["acme", "idle"] {
            let create = ["api-token", "create", tenant, "--role", "operator", "--tenant", tenant];
            admin(&[&create[..], &["--out", &file(tenant)]].concat());
        }
        let token = file("acme");
        let mut operator = cluster.api.clone();
        operator.token = std::fs::read_to_string(&token).unwrap().trim().to_owned();
        let world = Self { cluster, operator, token };
        let file = world.cluster.home.write("web.yaml", format!("name: web\n{WEB}"));
        world.operator(&["workload", "apply", "-f", file.to_str().unwrap()]).ok();
        until("the key of secrets, which the cluster makes by itself", || {
            let keys = world.cluster.api.list(0, "/secret-keys");
            keys.iter().any(|key| text(key, "/state") == "current").then_some(())
        });
        world
    }

    fn admin(&self, args: &[&str]) -> Out {
        self.cluster.home.palisade(args)
    }

    fn operator(&self, args: &[&str]) -> Out {
        self.admin(&[args, &["--api-token-file", &self.token]].concat())
    }

    /// Applies a file as the operator of a tenant.
    fn apply(&self, tenant: &str, spec: &str) -> Out {
        let home = &self.cluster.home;
        let (token, file) = (home.path().join(tenant), home.write("spec.yaml", spec));
        let (token, file) = (token.to_str().unwrap(), file.to_str().unwrap());
        let args = ["workload", "apply", "--no-wait", "-f", file, "--api-token-file", token];
        self.admin(&args)
    }

    fn put(&self, api: &Api, name: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let path = format!("{BASE}/workloads/{name}");
        let mut body = body.clone();
        if body.is_object() {
            body["name"] = json!(name);
        }
        api.send(0, "PUT", &path, headers, body.to_string().as_bytes()).unwrap()
    }

    fn of_idle(&self) -> Api {
        let token = std::fs::read_to_string(self.cluster.home.path().join("idle")).unwrap();
        Api { token: token.trim().to_owned(), ..self.operator.clone() }
    }

    /// All that could have changed, with its revisions. (When a token was used last is no change of the cluster's.)
    fn state(&self) -> Vec<Value> {
        let lists = ["workloads", "instances", "tenants", "roles", "role-bindings", "principals"];
        let more = ["join-tokens", "secrets", "secret-keys", "nodes", "commands", "approvals"];
        let more = [&more[..], &["approval-policies", "events"]].concat();
        let all = lists.iter().chain(&more);
        all.flat_map(|list| self.cluster.api.list(0, &format!("/{list}"))).collect()
    }
}

fn spec(count: i64) -> Value {
    json!({"count": count, "wanted": "offline", "task": {"command": ["/bin/true"]}})
}

fn role(actions: &[&str]) -> Vec<u8> {
    json!({ "actions": actions }).to_string().into_bytes()
}

const CASES: &[Case] = &[
    Case {
        code: "INVALID_INPUT",
        status: 400,
        exit: 2,
        rest: |world| world.put(&world.operator, "web", &[], &spec(-1)),
        cli: Some(|world| world.apply("acme", "name: web\ncount: -1\ntask:\n  command: [x]\n")),
        says: &["/count"],
    },
    Case {
        code: "UNAUTHENTICATED",
        status: 401,
        exit: 5,
        rest: |world| {
            let nobody = Api { token: "pal_nobody_knows".to_owned(), ..world.operator.clone() };
            world.put(&nobody, "web", &[], &spec(2))
        },
        cli: Some(|world| {
            let file = world.cluster.home.write("nobody", "pal_nobody_knows");
            let token = ["--api-token-file", file.to_str().unwrap()];
            world.admin(&[&["workload", "scale", "web", "2"][..], &token].concat())
        }),
        says: &["token"],
    },
    Case {
        code: "ACCESS_DENIED",
        status: 403,
        exit: 5,
        rest: |world| {
            let path = format!("{BASE}/tenants/acme");
            world.operator.send(0, "PATCH", &path, &[], br#"{"quotas": {}}"#).unwrap()
        },
        cli: Some(|world| world.operator(&["tenant", "set-quota", "acme", "--workloads", "9"])),
        says: &["compute:"],
    },
    Case {
        code: "NOT_FOUND",
        status: 404,
        exit: 3,
        rest: |world| {
            let path = format!("{BASE}/workloads/nothing/scale");
            world.operator.post(0, &path, "nothing", &json!({"count": 2})).unwrap()
        },
        cli: Some(|world| world.operator(&["workload", "scale", "nothing", "2"])),
        says: &["nothing"],
    },
    Case {
        code: "CONFLICT",
        status: 409,
        exit: 4,
        rest: |world| {
            let path = format!("{BASE}/tenants");
            world.cluster.api.post(0, &path, "again", &json!({"name": "acme"})).unwrap()
        },
        cli: Some(|world| world.admin(&["tenant", "create", "acme"])),
        says: &["acme"],
    },
    Case {
        code: "PRECONDITION_FAILED",
        status: 412,
        exit: 4,
        rest: |world| {
            let (path, body) = (format!("{BASE}/roles/reader"), role(&["compute:nodes:read"]));
            world.cluster.api.send(0, "PATCH", &path, &[("If-Match", "\"1\"")], &body).unwrap()
        },
        cli: Some(|world| {
            let action = ["--action", "compute:nodes:read", "--if-match", "1"];
            world.admin(&[&["role", "update", "reader"][..], &action].concat())
        }),
        says: &["revision"],
    },
    Case {
        code: "IDEMPOTENCY_MISMATCH",
        status: 422,
        exit: 4,
        rest: |world| {
            let key = [("Idempotency-Key", "used")];
            world.put(&world.operator, "web", &key, &spec(1)).done();
            world.put(&world.operator, "web", &key, &spec(2))
        },
        cli: None,
        says: &[],
    },
    Case {
        code: "QUOTA_EXCEEDED",
        status: 409,
        exit: 8,
        rest: |world| world.put(&world.operator, "more", &[], &spec(1)),
        cli: Some(|world| world.apply("acme", &format!("name: more\n{WEB}"))),
        says: &["workloads: 1 used"],
    },
    Case {
        code: "INVALID_STATE",
        status: 409,
        exit: 4,
        rest: |world| world.put(&world.of_idle(), "more", &[], &spec(1)),
        cli: Some(|world| world.apply("idle", &format!("name: more\n{WEB}"))),
        says: &["the bill of May"],
    },
    Case {
        code: "TOO_LARGE",
        status: 413,
        exit: 1,
        rest: |world| world.put(&world.operator, "web", &[], &json!("x".repeat(1024 * 1024))),
        cli: Some(|world| {
            // Longer as JSON than in the file: of a file over the limit nothing is sent.
            let large = "\\x01".repeat(200_000);
            let file = format!("name: web\n{WEB}  files:\n    large: \"{large}\"\n");
            world.apply("acme", &file)
        }),
        says: &["1048576"],
    },
    Case {
        code: "UNSUPPORTED",
        status: 405,
        exit: 1,
        rest: |world| {
            let path = format!("{BASE}/workloads/web");
            world.operator.send(0, "PATCH", &path, &[], b"{}").unwrap()
        },
        cli: None,
        says: &[],
    },
    Case {
        code: "UNAVAILABLE",
        status: 503,
        exit: 6,
        rest: |world| {
            let path = format!("{BASE}/workloads?atRevision=999999999");
            world.operator.get(0, &path).unwrap()
        },
        cli: Some(|world| {
            let nobody = ["--addr", "127.0.0.1:1", "--timeout", "1s"];
            world.operator(&[&["workload", "scale", "web", "2"][..], &nobody].concat())
        }),
        says: &["127.0.0.1:1"],
    },
];

#[test]
fn each_error_has_its_status_and_its_exit_code_and_nothing_has_changed() {
    let world = World::new();
    let mut before = world.state();
    for case in CASES {
        let code = case.code;
        let answer = (case.rest)(&world);
        assert_eq!((answer.status, answer.code().as_str()), (case.status, code), "{answer:#?}");
        let problem = answer.json();
        assert_eq!(problem["status"], case.status, "{problem}");
        assert!(!text(&problem, "/requestId").is_empty(), "{problem}");
        if let Some(cli) = case.cli {
            let said = cli(&world).ends(case.exit).says(case.says);
            assert_eq!(said.stdout, "", "{code}: what failed prints no data");
        }
        if code == "IDEMPOTENCY_MISMATCH" {
            // What went before was a write.
            before = world.state();
        }
        let after = world.state();
        let other: Vec<&Value> = after.iter().filter(|record| !before.contains(record)).collect();
        assert!(after == before, "{code} changed something: {other:#?}");
    }
    let provoked: BTreeSet<&str> = CASES.iter().map(|case| case.code).collect();
    assert_eq!(provoked.len(), CASES.len(), "each code once");
}

#[test]
fn who_asks_too_often_is_told_when_to_come_back() {
    let mut cluster = Replicas::prepare(1, Some(Slot::take()));
    let config = cluster.dir(0).join("replica.toml");
    let limits = "\n[limits]\nwrongCredentials = { perSecond = 1, burst = 1 }\n";
    let with_limits = std::fs::read_to_string(&config).unwrap() + limits;
    std::fs::write(&config, with_limits).unwrap();
    cluster.start_all();
    let nobody = Api { token: "pal_nobody_knows".to_owned(), ..cluster.api.clone() };
    let path = format!("{BASE}/nodes");
    let answer = until("an empty bucket", || {
        Some(nobody.get(0, &path).unwrap()).filter(|answer| answer.status != 401)
    });
    assert_eq!((answer.status, answer.code().as_str()), (429, "RATE_LIMITED"), "{answer:#?}");
    assert_eq!(answer.json()["retryable"], true);
    cluster.home.palisade(&["node", "ls"]).ok();
}
