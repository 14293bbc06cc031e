//! A tenant's life from the command line: made with a quota, used until it says stop, suspended, and deleted.

use serde_json::json;

use crate::support::{Out, Replicas, http::BASE, list, text};

/// A cluster with the tenant `acme`, and a token of an operator in it.
struct Acme {
    cluster: Replicas,
    token: String,
}

impl Acme {
    fn new(quotas: &[&str]) -> Self {
        let cluster = Replicas::start(1);
        let mut create = vec!["tenant", "create", "acme"];
        create.extend_from_slice(quotas);
        cluster.home.palisade(&create).ok();
        let token = cluster.home.path().join("acme.token").to_str().unwrap().to_owned();
        let create = ["api-token", "create", "ops", "--role", "operator", "--tenant", "acme"];
        cluster.home.palisade(&[&create[..], &["--out", &token]].concat()).ok();
        Self { cluster, token }
    }

    fn admin(&self, args: &[&str]) -> Out {
        self.cluster.home.palisade(args)
    }

    fn operator(&self, args: &[&str]) -> Out {
        self.cluster.home.palisade(&[args, &["--api-token-file", &self.token]].concat())
    }

    fn apply(&self, name: &str, count: u32) -> Out {
        let spec = format!("name: {name}\ncount: {count}\ntask:\n  command: [/bin/true]\n");
        let file = self.cluster.home.write(&format!("{name}.yaml"), spec);
        self.operator(&["workload", "apply", "--no-wait", "-f", file.to_str().unwrap()])
    }
}

#[test]
fn a_quota_is_said_with_what_is_used_asked_and_allowed() {
    let acme = Acme::new(&["--instances", "3"]);
    acme.apply("web", 2).ok();
    let refused = acme.apply("more", 2).ends(8);
    refused.says(&[
        "instances: 2 used, 2 more asked for, 3 allowed",
        "palisade tenant set-quota acme --instances 4",
    ]);
    let mut api = acme.cluster.api.clone();
    api.token = std::fs::read_to_string(&acme.token).unwrap().trim().to_owned();
    let body = json!({"name": "more", "count": 2, "task": {"command": ["/bin/true"]}});
    let path = format!("{BASE}/workloads/more");
    let answer = api.send(0, "PUT", &path, &[], body.to_string().as_bytes()).unwrap();
    assert_eq!((answer.status, answer.code().as_str()), (409, "QUOTA_EXCEEDED"), "{answer:#?}");
    assert_eq!(acme.operator(&["workload", "scale", "web", "4", "--no-wait"]).code, 8);
    let usage = acme.operator(&["tenant", "usage", "acme"]).ok().stdout;
    let row = usage.lines().find(|line| line.starts_with("instances")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["instances", "2", "3", "1"]);
    // Nobody allows himself more.
    acme.operator(&["tenant", "set-quota", "acme", "--instances", "9"]).ends(5);
    acme.admin(&["tenant", "set-quota", "acme", "--instances", "4"]).ok();
    acme.apply("more", 2).ok();
    let shown = acme.admin(&["-o", "json", "tenant", "ls"]).json();
    assert_eq!(shown[0]["used"]["instances"], 4);
}

#[test]
fn a_tenant_is_suspended_and_deleted_with_all_that_it_has() {
    let acme = Acme::new(&[]);
    acme.apply("web", 2).ok();
    acme.admin(&["tenant", "suspend", "acme", "--reason", "the bill of May"]).ok();
    acme.apply("more", 1).ends(4).says(&["suspended: the bill of May"]);
    acme.operator(&["workload", "ls"]).ok();
    acme.admin(&["tenant", "resume", "acme"]).ok();
    acme.apply("more", 1).ok();
    acme.admin(&["tenant", "rm", "acme"])
        .ends(4)
        .says(&["2 workloads with 3 instances", "--force"]);
    let deleted = acme.admin(&["-o", "json", "tenant", "rm", "acme", "--force"]).ok().json();
    assert_eq!(text(&deleted, "/state"), "deleted");
    assert!(list(&acme.admin(&["-o", "json", "workload", "ls"]).json(), "").is_empty());
    acme.operator(&["workload", "ls"]).ends(5);
    acme.admin(&["tenant", "create", "acme"]).ends(4).says(&["not used again"]);
    let events = acme.admin(&["event", "ls", "--tenant", "acme"]).ok().stdout;
    assert!(events.contains("tenant.torn-down"), "{events}");
    acme.admin(&["tenant", "show", "nobody"]).ends(3);
}

#[test]
fn of_many_who_apply_at_once_no_more_get_in_than_the_quota_allows() {
    let acme = Acme::new(&["--workloads", "3"]);
    let mut api = acme.cluster.api.clone();
    api.token = std::fs::read_to_string(&acme.token).unwrap().trim().to_owned();
    let apply = &|name: String| loop {
        let body = json!({"name": name, "task": {"command": ["/bin/true"]}}).to_string();
        let path = format!("{BASE}/workloads/{name}");
        let answer = api.send(0, "PUT", &path, &[], body.as_bytes()).unwrap();
        match (answer.status, answer.code().as_str()) {
            (200..300, _) => return true,
            (409, "QUOTA_EXCEEDED") => return false,
            // Others were faster, too often: nothing was applied.
            (409, "CONFLICT") => {}
            _ => panic!("{answer:#?}"),
        }
    };
    let let_in = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|n| scope.spawn(move || apply(format!("web-{n}")))).collect();
        all.into_iter().map(|one| one.join().unwrap()).filter(|is_in| *is_in).count()
    });
    assert_eq!(let_in, 3);
    let workloads = acme.operator(&["-o", "json", "workload", "ls"]).json();
    assert_eq!(list(&workloads, "").len(), 3);
}

#[test]
fn of_two_tenants_workloads_with_one_name_each_is_meant_by_its_tenant() {
    let acme = Acme::new(&[]);
    let admin = |args: &[&str]| acme.admin(args);
    admin(&["tenant", "create", "other"]).ok();
    let spec = acme.cluster.home.write("web.yaml", "name: web\ntask:\n  command: [/bin/true]\n");
    let spec = spec.to_str().unwrap();
    for tenant in ["acme", "other"] {
        admin(&["workload", "apply", "--no-wait", "--tenant", tenant, "-f", spec]).ok();
    }
    let scale = ["workload", "scale", "web", "2", "--no-wait"];
    admin(&scale).ends(4).says(&["of several tenants", "name the tenant"]);
    admin(&[&scale[..], &["--tenant", "other"]].concat()).ok();
    let shown = admin(&["-o", "json", "workload", "ls", "--tenant", "other"]).json();
    assert_eq!((list(&shown, "").len(), &shown[0]["count"]), (1, &json!(2)));
    let diff = |tenant| admin(&["workload", "diff", "--tenant", tenant, "-f", spec]).ok().stdout;
    assert!(diff("other").contains("/count: 2 → 1"), "{}", diff("other"));
    assert_eq!(diff("acme"), "workload/web is like that\n");
    admin(&["workload", "diff", "--exit-code", "--tenant", "other", "-f", spec]).ends(1);

    // Errors say what is meant, as JSON too, and what the verb could do.
    let problem = |args: &[&str], exit: i32| -> serde_json::Value {
        let out = admin(&[&["-o", "json"], args].concat()).ends(exit);
        serde_json::from_str(out.stderr.lines().last().unwrap()).unwrap()
    };
    let refused = problem(&["workload", "show", "web"], 4);
    assert_eq!((text(&refused, "/code"), &refused["exitCode"]), ("CONFLICT", &json!(4)));
    let refused = problem(&["workload", "apply", "-f", "nowhere.yaml"], 3);
    assert_eq!((refused.get("code"), &refused["exitCode"]), (None, &json!(3)));
    assert!(text(&problem(&["workload", "aply"], 2), "/detail").contains("'apply'"));
    let past = ["workload", "show", "web", "--tenant", "acme", "--at", "1"];
    admin(&past).ends(3).says(&["no workload \"web\" at revision 1"]);
    let gone = admin(&["tenant", "rm", "nosuch"]).ends(3);
    assert!(!gone.stderr.contains("tenant create"), "{gone:#?}");
}
