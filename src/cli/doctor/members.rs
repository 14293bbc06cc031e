//! What is wrong with where the replicas are, and with a change of who they are.

use serde_json::Value;

use super::finding;
use crate::{
    cli::{
        cluster::{Change, listed},
        survey::{Seen, Survey, members},
    },
    output::{number, text},
};

/// Whether a given address is none of the cluster's, as whoever knows most says.
pub(super) fn is_stale(all: &Survey, one: &Seen) -> bool {
    let Some(best) = all.best().and_then(Seen::status) else { return false };
    let is_of_it = one.status().is_some() && one.cluster() == text(best, "/cluster");
    one.is_given && !is_of_it && !members(best).is_empty() && !has(best, one.address.host_port())
}

fn has(status: &Value, place: &str) -> bool {
    members(status).iter().any(|member| text(member, "/apiAddr") == Some(place))
}

/// Findings about the addresses, which `context` named, and the members behind them.
pub(super) fn findings(all: &Survey, context: Option<&str>) -> Vec<Value> {
    let mut findings: Vec<Value> = two_clusters(all).into_iter().chain(change(all)).collect();
    findings.extend(context.and_then(|context| stale(all, context)));
    findings
}

/// A change of the voters that waits for somebody.
fn change(all: &Survey) -> Option<Value> {
    let best = all.best()?.status()?;
    let cluster = text(best, "/cluster")?;
    let change = Change::of(best)?;
    let away: Vec<u64> =
        change.all().into_iter().filter(|id| !all.answered(cluster, *id)).collect();
    if away.is_empty() {
        return None;
    }
    let away = listed(&away);
    Some(finding(
        "cluster.change",
        "warning",
        &format!("{change} is under way, and replica {away} does not answer"),
        &format!("start replica {away}: the change ends by itself once enough of them answer"),
    ))
}

/// Requests would go to either.
fn two_clusters(all: &Survey) -> Option<Value> {
    let clusters = all.clusters();
    if clusters.len() < 2 {
        return None;
    }
    let places = |cluster: &&str| {
        let of_it = all.0.iter().filter(|seen| seen.cluster() == Some(cluster));
        let places: Vec<&str> = of_it.map(|seen| seen.address.host_port()).collect();
        format!("{cluster} at {}", places.join(", "))
    };
    let places: Vec<String> = clusters.iter().map(places).collect();
    let best = all.best().and_then(Seen::cluster).unwrap_or_default();
    Some(finding(
        "context.clusters",
        "error",
        &format!("the addresses belong to {} clusters: {}", clusters.len(), places.join("; ")),
        &format!(
            "{best} is the newest: stop what is left of the others for good, then `palisade context refresh`; or make \
             a context for each, if they are meant to be"
        ),
    ))
}

/// Addresses that lead nowhere, and members that are not among them.
fn stale(all: &Survey, context: &str) -> Option<Value> {
    let best = all.best()?.status()?;
    // More than one cluster is said by itself; which of the addresses are old then depends.
    if all.clusters().len() != 1 || members(best).is_empty() {
        return None;
    }
    let given: Vec<&str> =
        all.0.iter().filter(|seen| seen.is_given).map(|seen| seen.address.host_port()).collect();
    let old: Vec<&str> = all
        .0
        .iter()
        .filter(|seen| is_stale(all, seen))
        .map(|seen| seen.address.host_port())
        .collect();
    // Under another name, perhaps.
    let reached: Vec<u64> =
        all.0.iter().filter(|seen| seen.is_given).filter_map(Seen::replica).collect();
    let lacking: Vec<String> = members(best)
        .iter()
        .filter_map(|member| Some((number(member, "/id"), text(member, "/apiAddr")?)))
        .filter(|(_, place)| !place.is_empty() && !given.contains(place))
        .filter(|(id, _)| !reached.contains(id))
        .map(|(id, place)| format!("replica {id} at {place}"))
        .collect();
    let mut what = vec![];
    if !old.is_empty() {
        what.push(format!("has {}, where no member is reached", old.join(", ")));
    }
    if !lacking.is_empty() {
        what.push(format!("lacks {}", lacking.join(", ")));
    }
    if what.is_empty() {
        return None;
    }
    Some(finding(
        "context.stale",
        "warning",
        &format!("the context {context} {}", what.join(", and ")),
        &format!(
            "`palisade --context {context} context refresh` asks the cluster where its replicas are"
        ),
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        cli::survey::tests::{seen, silent},
        output::cell,
    };

    fn checks(findings: &[Value]) -> Vec<String> {
        findings.iter().map(|one| cell(one, "/check")).collect()
    }

    #[test]
    fn a_context_that_leads_to_all_members_is_good() {
        let all = Survey(vec![seen(1, "c", Some(1), &[1, 2]), silent(2)]);
        assert!(findings(&all, Some("x")).is_empty());
        assert!(!is_stale(&all, &all.0[1]), "a member that does not answer");
    }

    #[test]
    fn an_address_under_which_a_member_answers_is_not_old_whatever_its_name() {
        let mut named = seen(1, "c", Some(1), &[1, 2]);
        named.address = crate::client::Address::parse("replica-1.example:7401").unwrap();
        let all = Survey(vec![named, seen(2, "c", Some(1), &[1, 2])]);
        assert!(findings(&all, Some("x")).is_empty(), "{:?}", findings(&all, Some("x")));
        assert!(all.not_asked().is_empty(), "nobody is asked twice");
    }

    #[test]
    fn a_context_with_old_addresses_is_named_with_what_mends_it() {
        let mut joined = seen(4, "c", Some(1), &[1, 4]);
        joined.is_given = false;
        let all = Survey(vec![seen(1, "c", Some(1), &[1, 4]), silent(3), joined]);
        assert!(is_stale(&all, &all.0[1]));
        let found = findings(&all, Some("x"));
        assert_eq!(checks(&found), ["context.stale"]);
        let message = cell(&found[0], "/message");
        assert_eq!(
            message,
            "the context x has 127.0.0.1:7403, where no member is reached, and lacks replica 4 at 127.0.0.1:7404"
        );
        assert!(cell(&found[0], "/fix").contains("palisade --context x context refresh"));
        assert!(findings(&all, None).is_empty(), "a flag gave them");
    }

    #[test]
    fn addresses_of_two_clusters_are_an_error_that_names_both() {
        let all = Survey(vec![seen(1, "cl_old", Some(1), &[1]), seen(2, "cl_new", Some(2), &[2])]);
        let found = findings(&all, Some("x"));
        assert_eq!(checks(&found), ["context.clusters"]);
        assert_eq!(found[0]["severity"], "error");
        let message = cell(&found[0], "/message");
        assert!(
            message.contains("cl_new at 127.0.0.1:7402; cl_old at 127.0.0.1:7401"),
            "{message}"
        );
    }

    #[test]
    fn a_change_that_waits_for_somebody_is_said_and_one_that_passes_is_not() {
        let mut one = seen(2, "c", None, &[1, 2, 3]);
        if let Ok(Value::Object(status)) = &mut one.said {
            status.insert("change".to_owned(), json!({"from": [1, 2, 3], "to": [1, 2]}));
            status.insert("term".to_owned(), json!(9));
        }
        let mut all = Survey(vec![silent(1), one, seen(3, "c", None, &[1, 2, 3])]);
        let found = findings(&all, Some("x"));
        assert_eq!(checks(&found), ["cluster.change"]);
        assert_eq!(
            cell(&found[0], "/message"),
            "a change of the voters from 1, 2, 3 to 1, 2 is under way, and replica 1 does not answer"
        );
        all.0[0] = seen(1, "c", None, &[1, 2, 3]);
        assert!(findings(&all, Some("x")).is_empty());
    }
}
