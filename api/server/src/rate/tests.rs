use palisade_state::step::StepRuntime;

use super::*;

const SMALL: Rate = Rate { per_second: 4, burst: 8 };

fn limits() -> Limits {
    Limits {
        principal_rate: SMALL,
        denied_rate: SMALL,
        wrong_credentials_rate: SMALL,
        principal_in_flight_max: 3,
        ..Limits::default()
    }
}

fn rates(limits: &Limits, places_max: usize) -> (Arc<StepRuntime>, Arc<Rates>) {
    let rt = StepRuntime::new(1);
    let rates = Rates::with_places(rt.clone(), limits, Metrics::default(), places_max);
    (rt, rates)
}

/// How many of `tries` are let through.
fn through(rates: &Arc<Rates>, who: &str, tries: usize) -> usize {
    (0..tries).filter(|_| rates.admit(who).is_ok()).count()
}

#[test]
fn a_flood_gets_its_burst_and_then_its_rate() {
    let (rt, rates) = rates(&limits(), 100);
    assert_eq!(through(&rates, "a", 100), 8);
    rt.advance(Duration::from_secs(1));
    assert_eq!(through(&rates, "a", 100), 4);
    rt.advance(Duration::from_millis(250));
    assert_eq!(through(&rates, "a", 100), 1);
    rt.advance(Duration::from_secs(3600));
    assert_eq!(through(&rates, "a", 100), 8, "a pause saves up a burst and no more");
}

#[test]
fn one_flood_does_not_touch_another_principal() {
    let (_rt, rates) = rates(&limits(), 100);
    assert_eq!(through(&rates, "a", 10_000), 8);
    assert_eq!(through(&rates, "b", 8), 8);
}

#[test]
fn it_is_told_when_there_is_room_again_and_then_there_is() {
    let (rt, rates) = rates(&limits(), 100);
    through(&rates, "a", 8);
    rt.advance(Duration::from_millis(100));
    let Err(refused) = rates.admit("a") else { panic!("let through") };
    assert_eq!((refused.code, refused.retryable), (Code::RateLimited, true));
    let wait = refused.retry_after.unwrap();
    assert_eq!(wait, Duration::from_millis(150));
    rt.advance(wait - Duration::from_nanos(1));
    assert!(rates.admit("a").is_err());
    rt.advance(Duration::from_nanos(1));
    assert!(rates.admit("a").is_ok());
}

#[test]
fn a_principal_has_its_share_of_what_is_answered_at_once() {
    let (_rt, rates) = rates(&limits(), 100);
    let mut held: Vec<Pass> = (0..3).map(|_| rates.admit("a").unwrap()).collect();
    let Err(refused) = rates.admit("a") else { panic!("a fourth at once") };
    assert!(refused.detail.contains("its share"), "{refused}");
    assert!(rates.admit("b").is_ok());
    held.pop();
    assert!(rates.admit("a").is_ok());
}

#[test]
fn many_names_cannot_make_it_grow_and_those_that_ask_keep_their_own() {
    let (rt, rates) = rates(&limits(), 100);
    let held = rates.admit("a").unwrap();
    for n in 0..100_000 {
        let _ = rates.admit(&format!("n{n}"));
    }
    assert_eq!(lock(&rates.requests).rows.len(), 100);
    assert_eq!(through(&rates, "a", 100), 7, "its bucket is still its own");
    rt.advance(Duration::from_secs(2));
    assert_eq!(through(&rates, "b", 100), 8, "those that are full again have made room");
    assert_eq!(lock(&rates.requests).rows.len(), 2, "one that is answered keeps its place");
    drop(held);
    assert_eq!(lock(&rates.requests).rows.get("a").unwrap().held, 0);
}

#[test]
fn who_finds_no_place_shares_the_rest() {
    let (_rt, rates) = rates(&limits(), 1);
    let _own = rates.admit("a").unwrap();
    let shared: Vec<Pass> = (0..3).map(|n| rates.admit(&format!("n{n}")).unwrap()).collect();
    assert!(rates.admit("another").is_err());
    drop(shared);
    assert_eq!(lock(&rates.requests).rest.held, 0);
    assert_eq!(lock(&rates.requests).rows.get("a").unwrap().held, 1);
}

#[test]
fn one_network_of_ipv6_is_one_sender() {
    let (_rt, rates) = rates(&limits(), 100);
    let wrong = |address: &str| rates.wrong(address.parse().unwrap()).is_ok();
    for n in 0..8 {
        assert!(wrong(&format!("2001:db8::{n}")));
    }
    assert!(!wrong("2001:db8::ffff:1:2:3"));
    assert!(wrong("2001:db8:0:1::1"));
    for _ in 0..8 {
        assert!(wrong("192.0.2.1"));
    }
    assert!(!wrong("::ffff:192.0.2.1"), "the same address in another dress");
    assert!(wrong("192.0.2.2"));
}

#[test]
fn addresses_cannot_make_it_grow_either() {
    let (rt, rates) = rates(&limits(), 100);
    for n in 0..10_000_u32 {
        let _ = rates.wrong(IpAddr::from(n.to_be_bytes()));
        let _ = rates.deny(&format!("p{n}"));
    }
    assert_eq!(lock(&rates.wrong).rows.len(), 100);
    assert_eq!(lock(&rates.denied).rows.len(), 100);
    rt.advance(Duration::from_secs(2));
    rates.wrong("192.0.2.1".parse().unwrap()).unwrap();
    assert_eq!(lock(&rates.wrong).rows.len(), 1);
}

#[test]
fn what_is_denied_has_a_rate_of_its_own() {
    let (_rt, rates) = rates(&limits(), 100);
    assert_eq!((0..100).filter(|_| rates.deny("a").is_ok()).count(), 8);
    assert_eq!(through(&rates, "a", 8), 8, "what it may do is not touched");
}
