//! Which events a subscription is about.
//!
//! # Invariants
//! - `EVT-6` What subscriptions themselves bring about (`subscription.…`) is sent to none, so that none feeds itself or another.
//! - `EVT-7` A tenant's subscription is sent that tenant's events and no other's.

use palisade_state::outbox::Event;

use crate::records::SubscriptionRow;

/// What the types of this module's events begin with.
pub(crate) const OWN: &str = "subscription.";

/// Whether `text` is `pattern`, or begins with it up to a `separator`.
fn is_below(text: &str, pattern: &str, separator: char) -> bool {
    text.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with(separator))
}

fn any(patterns: &[String], text: &str, separator: char) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| is_below(text, pattern, separator))
}

/// Whether a subscription asks for an event.
pub(crate) fn wants(row: &SubscriptionRow, event: &Event) -> bool {
    let is_in_reach = match (row.tenant.as_str(), &row.of_tenant) {
        ("", None) => true,
        ("", Some(tenant)) => event.tenant.as_ref() == tenant,
        (own, _) => event.tenant.as_ref() == own,
    };
    is_in_reach
        && !event.kind.starts_with(OWN)
        && any(&row.types, &event.kind, '.')
        && any(&row.subjects, &event.subject, '/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{event, row};

    #[test]
    fn a_filter_is_about_whole_words() {
        let asks = |types: &[&str], subjects: &[&str], kind: &str, subject: &str| {
            let words = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect();
            let row = SubscriptionRow {
                types: words(types),
                subjects: words(subjects),
                ..row("acme", "p")
            };
            wants(&row, &event("acme", kind, subject))
        };
        assert!(asks(&[], &[], "instance.failed", "instance/in_1"));
        assert!(asks(&["instance"], &[], "instance.failed", "instance/in_1"));
        assert!(asks(&["node", "instance.failed"], &[], "instance.failed", "instance/in_1"));
        assert!(!asks(&["inst"], &[], "instance.failed", "instance/in_1"));
        assert!(!asks(&["instance.failed"], &[], "instance.fail", "instance/in_1"));
        assert!(asks(&[], &["workload/web"], "workload.applied", "workload/web"));
        assert!(!asks(&[], &["workload/web"], "workload.applied", "workload/web-2"));
        assert!(asks(&[], &["workload"], "workload.applied", "workload/web-2"));
    }

    #[test]
    fn a_tenant_is_sent_its_own_and_the_cluster_what_it_asks_for() {
        let own = row("acme", "p");
        assert!(wants(&own, &event("acme", "a.b", "a/b")), "EVT-7");
        assert!(!wants(&own, &event("other", "a.b", "a/b")), "EVT-7");
        assert!(!wants(&own, &event("", "a.b", "a/b")), "EVT-7");
        let all = row("", "p");
        assert!(wants(&all, &event("acme", "a.b", "a/b")) && wants(&all, &event("", "a.b", "a/b")));
        let of_one = SubscriptionRow { of_tenant: Some("acme".into()), ..row("", "p") };
        assert!(wants(&of_one, &event("acme", "a.b", "a/b")));
        assert!(!wants(&of_one, &event("", "a.b", "a/b")));
        let of_none = SubscriptionRow { of_tenant: Some(String::new()), ..row("", "p") };
        assert!(!wants(&of_none, &event("acme", "a.b", "a/b")));
        assert!(wants(&of_none, &event("", "a.b", "a/b")));
    }

    #[test]
    fn what_subscriptions_bring_about_is_sent_to_none() {
        for owner in ["", "acme"] {
            let told = event("acme", "subscription.disabled", "subscription/p");
            assert!(!wants(&row(owner, "p"), &told) && !wants(&row(owner, "q"), &told), "EVT-6");
        }
    }
}
