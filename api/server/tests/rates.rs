//! Rates: a flood is told to wait, and nobody else notices.

use std::sync::atomic::Ordering;

use palisade_api::{Limits, Rate};
use palisade_state::Store;
use serde_json::json;

use crate::support::{Options, World, client::Answer, world_with};

const SMALL: Rate = Rate { per_second: 1, burst: 3 };
/// More than any burst here.
const FLOOD: usize = 200;

async fn limited(change: impl FnOnce(&mut Limits)) -> World {
    let mut limits = Limits::default();
    change(&mut limits);
    world_with(Options { limits, ..Options::default() }).await
}

async fn ask(world: &World, token: &str, path: &str) -> Answer {
    world.call("GET", path).header("authorization", &format!("Bearer {token}")).send().await
}

/// The first answer with this status, of so many requests.
async fn flooded(world: &World, token: &str, path: &str) -> Answer {
    for _ in 0..FLOOD {
        let answer = ask(world, token, path).await;
        if answer.status == 429 {
            return answer;
        }
    }
    panic!("{FLOOD} requests were let through");
}

#[tokio::test]
async fn a_flood_of_one_principal_is_told_to_wait_and_another_goes_on() {
    let world = limited(|limits| limits.principal_rate = SMALL).await;
    let refused = flooded(&world, "pal_viewer", "/api/compute/widgets").await;
    assert_eq!(refused.code(), "RATE_LIMITED");
    assert_eq!(refused.header("retry-after"), "1", "a token a second");
    let problem = refused.json();
    assert_eq!(problem["retryable"], true);
    assert!(problem["detail"].as_str().unwrap().contains("token/viewer"), "{problem}");
    assert!(problem["hint"].as_str().unwrap().contains("[limits]"), "{problem}");
    assert_eq!(ask(&world, "pal_admin", "/api/compute/widgets").await.status, 200);
}

#[tokio::test]
async fn what_is_beside_the_methods_is_counted_too() {
    let world = limited(|limits| limits.principal_rate = SMALL).await;
    flooded(&world, "pal_viewer", "/openapi.json").await;
    flooded(&world, "pal_viewer", "/metrics").await;
    for _ in 0..20 {
        assert_eq!(world.call("GET", "/healthz").send().await.status, 200, "health is nobody's");
    }
}

#[tokio::test]
async fn denied_writes_fill_the_audit_chain_no_faster_than_their_rate() {
    let world = limited(|limits| limits.denied_rate = SMALL).await;
    let write = |token: &'static str| {
        world
            .call("PUT", "/api/compute/widgets/a")
            .header("authorization", &format!("Bearer {token}"))
            .json(&json!({"sizeLimit": 1}))
            .send()
    };
    let (mut denied, mut limited) = (0, 0);
    for _ in 0..FLOOD {
        match write("pal_viewer").await.code().as_str() {
            "ACCESS_DENIED" => denied += 1,
            "RATE_LIMITED" => limited += 1,
            other => panic!("{other}"),
        }
        if limited == 5 {
            break;
        }
    }
    assert!(denied >= 3 && limited == 5, "{denied} denied, {limited} limited");
    let view = world.store.memory.view();
    assert_eq!(view.audit(0).count(), denied, "each that was told so has its record");
    assert_eq!(ask(&world, "pal_viewer", "/api/compute/widgets").await.status, 200);
    assert_eq!(write("pal_admin").await.status, 200);
}

#[tokio::test]
async fn a_flood_of_wrong_credentials_is_not_asked_of_the_quorum_and_right_ones_are_let_in() {
    let world = limited(|limits| limits.wrong_credentials_rate = SMALL).await;
    let refused = flooded(&world, "pal_wrong", "/api/compute/widgets").await;
    assert!(refused.json()["detail"].as_str().unwrap().contains("this address"));
    world.store.quorum_lost.store(true, Ordering::SeqCst);
    flooded(&world, "pal_wrong", "/api/compute/widgets").await;
    world.store.quorum_lost.store(false, Ordering::SeqCst);
    assert_eq!(ask(&world, "pal_viewer", "/api/compute/widgets").await.status, 200);
    let nothing = world.call("GET", "/api/compute/widgets").send().await;
    assert_eq!(nothing.status, 401, "who presents nothing costs nothing");
}

#[tokio::test]
async fn refusals_are_counted_by_code_and_by_bucket() {
    let world = limited(|limits| limits.principal_rate = SMALL).await;
    flooded(&world, "pal_viewer", "/api/compute/widgets").await;
    ask(&world, "pal_wrong", "/api/compute/widgets").await;
    let metrics = ask(&world, "pal_admin", "/metrics").await;
    let text = String::from_utf8_lossy(&metrics.body).into_owned();
    for line in [
        "palisade_api_requests_limited_total{by=\"principal\"} 1",
        "palisade_api_requests_refused_total{code=\"RATE_LIMITED\"} 1",
        "palisade_api_requests_refused_total{code=\"UNAUTHENTICATED\"} 1",
    ] {
        assert!(text.contains(line), "{text}");
    }
}
