//! Destructive calls that wait, from the command line and over REST.

use crate::support::{
    Out, Replicas,
    http::{BASE, tls},
    text,
};

/// A cluster whose tenant `acme` asks for approvals, and people of it.
struct Acme {
    cluster: Replicas,
}

impl Acme {
    fn new() -> Self {
        let acme = Self { cluster: Replicas::start(1) };
        acme.admin(&["tenant", "create", "acme"]).ok();
        for (name, role) in [("ada", "operator"), ("bob", "operator"), ("tess", "tenant-admin")] {
            let token = acme.token(name);
            let create = ["api-token", "create", name, "--role", role, "--tenant", "acme"];
            acme.admin(&[&create[..], &["--out", &token]].concat()).ok();
        }
        let spec = "name: web\ncount: 1\ntask:\n  command: [/bin/true]\n";
        let file = acme.cluster.home.write("web.yaml", spec);
        acme.who("ada", &["workload", "apply", "--no-wait", "-f", file.to_str().unwrap()]).ok();
        acme.who("tess", &["approval", "policy", "set", "acme", "--require", "1=1"]).ok();
        acme
    }

    fn token(&self, name: &str) -> String {
        self.cluster.home.path().join(format!("{name}.token")).to_str().unwrap().to_owned()
    }

    fn admin(&self, args: &[&str]) -> Out {
        self.cluster.home.palisade(args)
    }

    fn who(&self, name: &str, args: &[&str]) -> Out {
        self.cluster.home.palisade(&[args, &["--api-token-file", &self.token(name)]].concat())
    }
}

#[test]
fn a_removal_waits_until_somebody_else_approves_it() {
    let acme = Acme::new();
    let next = ["waits for 1 more operator of tenant acme", "palisade approval approve ap_"];
    let held = acme.who("ada", &["-o", "json", "workload", "rm", "web"]).says(&next).json();
    let (id, digest) = (text(&held, "/id").to_owned(), text(&held, "/digest").to_owned());
    assert_eq!(text(&held, "/state"), "held");
    let approve = ["approval", "approve", &id, "--digest", &digest];
    let again = acme.who("ada", &["-o", "json", "workload", "rm", "web"]).ok().json();
    assert_eq!(text(&again, "/id"), id, "it is held once");
    acme.who("ada", &["workload", "show", "web"]).ok();
    acme.who("ada", &approve).ends(5).says(&["it asked for it"]);
    acme.who("bob", &["approval", "approve", &id, "--digest", "00"]).ends(4);
    acme.admin(&["--timeout", "1s", "approval", "wait", &id]).ends(7);
    // Not on a terminal, nobody is asked: it is shown, and not approved.
    let shown = acme.who("bob", &["approval", "approve", &id]).ends(2);
    shown.says(&["workloads.remove", "workload/web", "--digest is missing"]);
    let approved = acme.who("bob", &approve).ok();
    assert!(approved.stdout.contains("approved and released"), "{}", approved.stdout);
    acme.who("ada", &["approval", "wait", &id]).ok();
    let shown = acme.who("ada", &["-o", "json", "workload", "ls"]).json();
    assert!(shown.as_array().unwrap().iter().all(|one| one["status"]["phase"] != "healthy"));
    let audit = acme.admin(&["-o", "json", "audit", "ls", "--tenant", "acme"]).ok().stdout;
    assert!(audit.contains("\"held\""), "{audit}");
}

#[test]
fn a_call_that_is_held_is_accepted_over_rest_and_says_where_it_waits() {
    let acme = Acme::new();
    let mut api = acme.cluster.api.clone();
    api.token = std::fs::read_to_string(acme.token("ada")).unwrap().trim().to_owned();
    let send = |api: &crate::support::http::Api| {
        let key = [("Idempotency-Key", "once")];
        api.send(0, "DELETE", &format!("{BASE}/workloads/web"), &key, b"").unwrap()
    };
    let first = send(&api);
    assert_eq!(first.status, 202, "{first:#?}");
    let id = text(&first.json(), "/id").to_owned();
    let again = send(&api);
    assert_eq!((again.status, text(&again.json(), "/id")), (202, id.as_str()), "QUO-6");
    acme.who("bob", &["approval", "reject", &id, "--reason", "web is used"]).ok();
    acme.who("ada", &["approval", "wait", &id]).ends(5).says(&["web is used"]);
    acme.who("ada", &["workload", "show", "web"]).ok();
}

#[test]
fn nobody_lets_himself_off() {
    let acme = Acme::new();
    let off = ["approval", "policy", "set", "acme", "--off"];
    let held = acme.who("tess", &[&["-o", "json"], &off[..]].concat()).ok().json();
    assert_eq!(text(&held, "/state"), "held", "QUO-6");
    acme.who("ada", &off).ends(5);
    let mode = || {
        let shown = acme.who("ada", &["-o", "json", "approval", "policy", "show", "acme"]).json();
        text(&shown, "/mode").to_owned()
    };
    assert_eq!(mode(), "on");
    let of_it = [text(&held, "/id"), "--digest", text(&held, "/digest")];
    acme.who("bob", &[&["approval", "approve"], &of_it[..]].concat()).ok();
    assert_eq!(mode(), "off");
}

#[test]
fn the_clusters_own_policy_is_never_there_for_good() {
    let cluster = Replicas::start(1);
    let home = &cluster.home;
    let set = |args: &[&str]| {
        home.palisade(&[&["-o", "json", "approval", "policy", "set"], args].concat())
    };
    let mode = || {
        let shown = home.palisade(&["-o", "json", "approval", "policy", "show"]).json();
        text(&shown, "/mode").to_owned()
    };
    set(&["--require", "1=3"]).ok();
    let held = set(&["--off"]).says(&["waits for 1 more operator of the cluster"]).json();
    assert_eq!((text(&held, "/state"), mode().as_str()), ("held", "on"), "QUO-6");
    // Whoever has the CA's key is somebody else than whoever has a token.
    let dir = cluster.dir(0);
    let file = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let certify = ["principal", "certify", "admin", "--no-enrol", "--out", &file("admin.crt")];
    home.palisade(&[&certify[..], &["--dir", dir.to_str().unwrap()]].concat()).ok();
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let ca = std::fs::read_to_string(dir.join("pki/ca.pem")).unwrap();
    let mut admin = cluster.api.clone();
    admin.tls = tls(&ca, Some((&read(&file("admin.crt")), &read(&file("admin.key")))));
    let path = format!("{BASE}/approvals/{}/approve", text(&held, "/id"));
    let approve = format!("{{\"digest\": \"{}\"}}", text(&held, "/digest"));
    let released = admin.by_certificate(0, "POST", &path, &approve).unwrap().done();
    assert_eq!((text(&released, "/state"), mode().as_str()), ("released", "off"));
    // Where nobody else is let in it is not held.
    set(&["--require", "1=1"]).ok();
    home.palisade(&["principal", "disable", "admin"]).ok();
    let done = set(&["--off"]).ok().json();
    assert_eq!((text(&done, "/mode"), mode().as_str()), ("off", "off"));
}
