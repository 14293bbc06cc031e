use std::collections::BTreeMap;

use palisade_contract::{
    Code,
    tenants::{Amounts, Charging},
};
use palisade_state::{Tx, Verdict};
use proptest::prelude::*;
use serde_json::json;

use super::world::{World, amounts};
use crate::quota;

#[test]
fn what_is_over_a_quota_is_refused_with_each_quota_and_what_to_do() {
    let world = World::new();
    world.create("acme", json!({"instances": 4, "cpu": 1.5, "workloads": 5}));
    world.charge("acme", "workload/a", amounts(3), Charging::Asked).unwrap();
    let refused = world.charge("acme", "workload/b", amounts(2), Charging::Asked).unwrap_err();
    assert_eq!(refused.code, Code::QuotaExceeded);
    assert_eq!(
        refused.detail,
        "this exceeds quotas of tenant acme: instances: 3 used, 2 more asked for, 4 allowed; \
         cpu: 1.5 used, 1 more asked for, 1.5 allowed"
    );
    let hint = refused.hint.unwrap();
    assert!(hint.contains("palisade tenant set-quota acme --instances 5 --cpu 2.5"), "{hint}");
    assert!(!refused.retryable);
    let usage = world.call("tenants.usage", json!({"tenant": "acme"})).unwrap();
    assert_eq!(usage["used"]["instances"], 3, "a refusal takes nothing");
    assert_eq!(usage["left"]["instances"], 1);
    assert_eq!(usage["left"]["cpu"], 0.0);
    assert_eq!(usage["left"]["memory"], json!(null));
}

#[test]
fn a_tenant_over_a_lowered_quota_can_shrink_and_not_grow() {
    let world = World::new();
    world.create("acme", json!({"instances": 8}));
    world.charge("acme", "workload/a", amounts(8), Charging::Asked).unwrap();
    let lower = json!({"tenant": "acme", "quotas": {"instances": 2}});
    world.call("tenants.update", lower).unwrap();
    world.charge("acme", "workload/a", amounts(6), Charging::Asked).unwrap();
    let grown = world.charge("acme", "workload/a", amounts(7), Charging::Asked).unwrap_err();
    assert_eq!(grown.code, Code::QuotaExceeded);
    world.charge("acme", "workload/a", Amounts::default(), Charging::Asked).unwrap();
    assert_eq!(quota::used(&world.view(), "acme").unwrap(), Amounts::default());
}

#[test]
fn the_cluster_itself_has_no_quota() {
    let world = World::new();
    world.charge("", "workload/a", amounts(9_999), Charging::Asked).unwrap();
    assert_eq!(world.view().count("tenant_charges"), 0);
}

/// `TEN-5`
#[test]
fn of_two_that_fit_alone_and_not_together_one_is_applied() {
    let world = World::new();
    world.create("acme", json!({"instances": 3}));
    let view = world.view();
    let built = |subject: &str| {
        let mut tx = Tx::new(view.clone());
        world.cx.ports.charge(&mut tx, "acme", subject, amounts(2), Charging::Asked).unwrap();
        tx.build().unwrap()
    };
    let (first, second) = (built("workload/a"), built("workload/b"));
    assert!(world.store.apply(first.into()).unwrap().is_applied());
    let outcome = world.store.apply(second.into()).unwrap();
    assert!(matches!(outcome.verdict, Some(Verdict::Conflict(_))), "{outcome:?}");
    let again = world.charge("acme", "workload/b", amounts(2), Charging::Asked).unwrap_err();
    assert_eq!(again.code, Code::QuotaExceeded);
    assert_eq!(quota::used(&world.view(), "acme").unwrap().instances, 2);
}

#[test]
fn a_charge_that_was_built_under_a_higher_quota_is_not_applied_under_a_lower_one() {
    let world = World::new();
    world.create("acme", json!({"instances": 3}));
    let mut tx = Tx::new(world.view());
    world.cx.ports.charge(&mut tx, "acme", "workload/a", amounts(2), Charging::Asked).unwrap();
    let lower = json!({"tenant": "acme", "quotas": {"instances": 1}});
    world.call("tenants.update", lower).unwrap();
    let outcome = world.store.apply(tx.build().unwrap().into()).unwrap();
    assert!(matches!(outcome.verdict, Some(Verdict::Conflict(_))), "{outcome:?}");
}

#[test]
fn no_sum_overflows_whatever_is_asked_for() {
    let world = World::new();
    world.create("acme", json!({}));
    let all = Amounts { workloads: 1, instances: 1, cpu_milli: u64::MAX, memory_bytes: u64::MAX };
    let mut refused = 0;
    for number in 0..80 {
        let asked = world.charge("acme", &format!("workload/{number}"), all, Charging::Asked);
        refused += usize::from(asked.is_err_and(|error| error.code == Code::QuotaExceeded));
    }
    assert_eq!(refused, 16, "64 of the largest are as much as a tenant may have");
    for number in 0..80 {
        let subject = format!("workload/{number}");
        world.charge("acme", &subject, Amounts::default(), Charging::Settled).unwrap();
    }
    assert_eq!(quota::used(&world.view(), "acme").unwrap(), Amounts::default());
}

#[derive(Clone, Debug)]
enum Step {
    Charge { subject: u8, instances: u64, how: Charging },
    Release(u8),
    Quota(Option<u64>),
}

fn step() -> impl Strategy<Value = Step> {
    let how = prop_oneof![4 => Just(Charging::Asked), 1 => Just(Charging::Settled)];
    prop_oneof![
        6 => (0_u8..5, 0_u64..6, how)
            .prop_map(|(subject, instances, how)| Step::Charge { subject, instances, how }),
        2 => (0_u8..5).prop_map(Step::Release),
        1 => proptest::option::of(0_u64..12).prop_map(Step::Quota),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// `TEN-4`, `TEN-5`
    #[test]
    fn usage_is_a_naive_count_and_nothing_over_a_quota_is_let_in(steps in proptest::collection::vec(step(), 1..40)) {
        let world = World::new();
        world.create("acme", json!({"instances": 6}));
        world.create("acme-2", json!({"instances": 0}));
        let (mut quota, mut held) = (Some(6), BTreeMap::<u8, u64>::new());
        for step in steps {
            match step {
                Step::Quota(new) => {
                    let input = json!({"tenant": "acme", "quotas": {"instances": new}});
                    world.call("tenants.update", input).unwrap();
                    quota = new;
                }
                Step::Release(subject) => {
                    let name = format!("workload/{subject}");
                    world.charge("acme", &name, Amounts::default(), Charging::Settled).unwrap();
                    held.remove(&subject);
                }
                Step::Charge { subject, instances, how } => {
                    let before = held.get(&subject).copied().unwrap_or(0);
                    let all: u64 = held.values().sum();
                    let after = all - before + instances;
                    let fits = after <= all || quota.is_none_or(|quota| after <= quota);
                    let name = format!("workload/{subject}");
                    let asked = world.charge("acme", &name, amounts(instances), how);
                    prop_assert_eq!(asked.is_ok(), fits || how == Charging::Settled);
                    if asked.is_ok() {
                        held.insert(subject, instances);
                    }
                }
            }
            let view = world.view();
            let naive = held.values().fold(Amounts::default(), |sum, one| quota::plus(sum, amounts(*one)));
            prop_assert_eq!(quota::used(&view, "acme").unwrap(), naive);
            prop_assert_eq!(quota::sum(&view, "acme").unwrap(), naive);
            prop_assert_eq!(quota::used(&view, "acme-2").unwrap(), Amounts::default());
        }
    }
}
