//! What was, who did it, and an export of the audit chain that is verified where no cluster is.

use std::fs;

use serde_json::Value;

use crate::support::{Out, Replicas, list, number, text, until};

fn count_at(cluster: &Replicas, at: &str) -> u64 {
    let shown = cluster.home.palisade(&["-o", "json", "workload", "show", "web", "--at", at]);
    number(&shown.json(), "/count")
}

fn history(cluster: &Replicas) -> Vec<Value> {
    let told = cluster.home.palisade(&["-o", "json", "history", "workload", "web"]).json();
    list(&told, "").to_vec()
}

/// The changes that somebody asked for by a call.
fn asked_for(changes: &[Value]) -> Vec<&Value> {
    let is_call = |change: &&Value| change.pointer("/by/0").is_some();
    changes.iter().filter(is_call).collect()
}

#[test]
fn what_a_workload_was_and_who_changed_it_is_told_and_the_export_is_verified_without_a_cluster() {
    let mut cluster = Replicas::start(1);
    let spec = cluster
        .home
        .write("web.yaml", "name: web\ncount: 2\ntask:\n  command: [/bin/sleep, \"1000\"]\n");
    let apply = ["workload", "apply", "-f", spec.to_str().unwrap(), "--no-wait"];
    cluster.home.palisade(&apply).ok();
    cluster.home.palisade(&["workload", "scale", "web", "5", "--no-wait"]).ok();
    let changes = until("a history with both changes", || {
        let changes = history(&cluster);
        (asked_for(&changes).len() == 2).then_some(changes)
    });
    let told = asked_for(&changes);
    assert_eq!(text(told[0], "/by/0/method"), "workloads.apply");
    assert_eq!(text(told[1], "/by/0/method"), "workloads.scale");
    assert!(text(told[1], "/by/0/actor").starts_with("token/"), "{told:?}");
    let differs = list(told[1], "/differences").iter();
    let count = differs.into_iter().find(|one| text(one, "/pointer") == "/spec/count").unwrap();
    assert_eq!((number(count, "/before"), number(count, "/after")), (2, 5));
    let (first, scaled) = (number(told[0], "/revision"), number(told[1], "/revision"));
    let (made_at, scaled_at) = (text(told[0], "/at"), text(told[1], "/at"));
    let is_told = |cluster: &Replicas| {
        assert_eq!(count_at(cluster, &first.to_string()), 2);
        assert_eq!(count_at(cluster, &(scaled - 1).to_string()), 2);
        assert_eq!(count_at(cluster, &scaled.to_string()), 5);
        until("a time that is over", || {
            let args = ["workload", "show", "web", "--at", scaled_at];
            (cluster.home.palisade(&args).code == 0).then_some(())
        });
        assert_eq!(count_at(cluster, scaled_at), 5);
        if made_at < scaled_at {
            assert_eq!(count_at(cluster, made_at), 2);
        }
    };
    is_told(&cluster);
    let before = (first - 1).to_string();
    cluster.home.palisade(&["workload", "show", "web", "--at", &before]).ends(3);
    let future = ["workload", "show", "web", "--at", "2199-01-01T00:00:00Z"];
    cluster.home.palisade(&future).ends(2).says(&["not over"]);
    cluster.stop(0);
    cluster.spawn(0);
    cluster.ready(0);
    is_told(&cluster);
    exported(cluster);
}

fn verify(cluster: &Replicas, file: &str) -> Out {
    cluster.home.palisade(&["-o", "json", "audit", "verify", file, "--key", "audit.key"])
}

fn exported(mut cluster: Replicas) {
    let home = cluster.home.path().to_owned();
    cluster.home.palisade(&["audit", "export", "--out", "audit.ndjson"]).ok();
    let piped = cluster.home.palisade(&["audit", "export"]).ok().stdout;
    cluster.home.write("piped.ndjson", &piped);
    cluster.home.write("audit.key", cluster.home.palisade(&["audit", "key"]).ok().stdout);
    let whole = fs::read_to_string(home.join("audit.ndjson")).unwrap();
    // As if it had broken off: it is gone on with.
    fs::write(home.join("audit.ndjson"), &whole[..whole.len() * 2 / 3]).unwrap();
    cluster.home.palisade(&["audit", "export", "--out", "audit.ndjson"]).ok();
    cluster.home.write("whole.ndjson", &whole);
    // Where there is no cluster.
    cluster.stop(0);
    for file in ["audit.ndjson", "piped.ndjson", "whole.ndjson"] {
        let report = verify(&cluster, file).ok().json();
        assert_eq!(number(&report, "/first"), 1, "{file}: {report}");
        assert!(number(&report, "/last") >= 3, "{file}: {report}");
    }
    let lines: Vec<&str> = whole.lines().collect();
    let altered = whole.replacen("workloads.scale", "workloads.sca1e", 1);
    // A record: of a checkpoint nobody misses anything.
    let at = lines.iter().position(|line| line.contains("workloads.scale")).unwrap();
    let without: Vec<&str> = [&lines[..at], &lines[at + 1..]].concat();
    for (name, text) in [
        ("altered", altered),
        ("middle", without.join("\n") + "\n"),
        ("head", lines[..1].join("\n") + "\n" + &lines[2..].join("\n") + "\n"),
        ("tail", lines[..lines.len() - 1].join("\n") + "\n"),
    ] {
        cluster.home.write(name, text);
        let refused = verify(&cluster, name).ends(1);
        assert!(refused.stderr.contains("line "), "{name}: {refused:?}");
        assert!(refused.stderr.contains("record "), "{name}: {refused:?}");
    }
    let other = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k";
    cluster.home.palisade(&["audit", "verify", "whole.ndjson", "--key", other]).ends(1);
    cluster.home.palisade(&["audit", "verify", "whole.ndjson"]).ends(2);
}
