//! A plan is its seed's, and faults have names.

use std::time::Duration;

use super::faults::{Fault, plan};

#[test]
fn a_plan_is_its_seeds() {
    let length = Duration::from_secs(60);
    let first = plan(7, length, &Fault::ALL, 3);
    assert_eq!(first, plan(7, length, &Fault::ALL, 3));
    assert_ne!(first, plan(8, length, &Fault::ALL, 3));
    assert!(first.len() > 10 && first.iter().all(|planned| planned.at < length));
    assert_eq!(plan(7, length, &[], 3), []);
}

#[test]
fn every_fault_has_its_name() {
    for fault in Fault::ALL {
        assert_eq!(Fault::parse(fault.name()), Some(fault));
    }
}
