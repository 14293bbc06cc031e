//! Specs that cannot be: each is refused with what is wrong, and nothing is lost.

use serde_json::{Value, json};

use crate::support::{Dev, Out, http::BASE, list, text};

#[track_caller]
fn apply(dev: &Dev, bytes: impl AsRef<[u8]>) -> Out {
    let path = dev.home.write("spec.yaml", bytes);
    dev.palisade(&["workload", "apply", "-f", path.to_str().unwrap()])
}

fn counted(count: &str) -> String {
    format!("name: bad\ncount: {count}\ntask: {{command: [sleep, '9']}}\n")
}

#[test]
fn a_bad_spec_is_refused_with_what_is_wrong_and_changes_nothing() {
    let dev = Dev::start();
    let kept = dev.hello(1);
    apply(&dev, "name: bad\ncuont: 1\ntask: {comand: [sleep], command: [sleep, '9']}\n")
        .ends(2)
        .says(&[
            "/cuont: unknown field \"cuont\"; did you mean \"count\"?",
            "/task/comand: unknown field \"comand\"; did you mean \"command\"?",
        ]);
    apply(&dev, counted("0")).ends(2).says(&["/count: must be at least 1, is 0"]);
    apply(&dev, counted("-1")).ends(2).says(&["/count: must be at least 1, is -1"]);
    apply(&dev, counted("1000000000000"))
        .ends(2)
        .says(&["/count: must be at most", "is 1000000000000"]);
    apply(&dev, b"name: \xff\xfe\n").ends(2).says(&["not UTF-8", "offset 6"]);
    apply(&dev, "").ends(2).says(&["is empty"]);
    apply(&dev, "name: [\n").ends(2).says(&["not valid YAML", ":2:"]);
    let large = dev.home.write("large.yaml", "");
    std::fs::File::options().write(true).open(&large).unwrap().set_len(50 << 20).unwrap();
    dev.palisade(&["workload", "apply", "-f", large.to_str().unwrap()])
        .ends(2)
        .says(&["52428800", "limit"]);
    dev.palisade(&["workload", "apply", "-f", "nowhere.yaml"]).ends(3).says(&["nowhere.yaml"]);
    dev.palisade(&["workload", "scale", "hello", "0"]).ends(2).says(&["/count", "at least 1"]);
    dev.palisade(&["workload", "scale", "hello", "1000000000000"]).ends(2).says(&["at most"]);
    dev.palisade(&["workload", "scale", "hello", "--", "-1"]).ends(2);
    dev.palisade(&["workload", "scale", "nothing", "2"]).ends(3).says(&["no workload \"nothing\""]);
    over_rest(&dev);
    assert_eq!(list(&dev.json(&["workload", "ls"]), "").len(), 1, "only hello is there");
    assert_eq!(dev.instances(), kept);
}

fn over_rest(dev: &Dev) {
    let api = dev.api();
    let path = format!("{BASE}/workloads/bad");
    let put = |body: &[u8]| api.send(0, "PUT", &path, &[], body).unwrap();
    let spec = |count: Value| json!({"name": "bad", "count": count, "task": {"command": ["true"]}});
    for count in
        [json!(0), json!(-1), json!(1_000_000_000_000_u64), json!(1.5), json!("3"), json!(null)]
    {
        let answer = put(spec(count).to_string().as_bytes());
        assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID_INPUT"), "{answer:#?}");
        let problem = answer.json();
        assert_eq!(text(&problem, "/errors/0/pointer"), "/count", "{problem}");
        assert!(
            !text(&problem, "/requestId").is_empty() && problem["retryable"] == false,
            "{problem}"
        );
    }
    let mut unknown = spec(json!(1));
    unknown["laebls"] = json!({});
    let problem = put(unknown.to_string().as_bytes()).json();
    assert!(text(&problem, "/errors/0/message").contains("did you mean \"labels\""), "{problem}");
    for body in
        [b"{".as_slice(), b"[]", b"null", b"{\"name\": \"\xff\"}", b"{\"name\":1,\"name\":2}"]
    {
        let answer = put(body);
        assert_eq!((answer.status, answer.code().as_str()), (400, "INVALID_INPUT"), "{answer:#?}");
    }
    let mut other = spec(json!(1));
    other["name"] = json!("good");
    let answer = put(other.to_string().as_bytes());
    assert_eq!(answer.code(), "INVALID_INPUT", "the name in the path is another: {answer:#?}");
}

#[test]
fn a_workload_that_no_node_can_hold_says_why_for_each_node() {
    let dev = Dev::start();
    let spec = "name: big\ncount: 2\ntask: {command: [sleep, '9']}\n\
        resources: {cpumem: {cpu-request: 512}}\n";
    apply(&dev, spec).ends(8).says(&[
        "no node can take 2 of 2",
        "node-1: needs 512 CPUs",
        "node-2: needs 512 CPUs",
    ]);
    let record = dev.json(&["workload", "show", "big"]);
    assert_eq!(text(&record, "/status/phase"), "pending", "{record}");
    assert_eq!(list(&record, "/status/misfits").len(), 2, "{record}");
    // It is kept, and starts when it fits.
    apply(&dev, spec.replace("512", "0.1").replace("'9'", "'999'")).ok();
    assert!(dev.instances().iter().all(|one| one.phase == "healthy"));
    dev.palisade(&["workload", "rm", "big"]).ok();
}
