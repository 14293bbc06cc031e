//! Lists over REST: filters, orders and the parts of them.

use serde_json::{Value, json};

use crate::support::{World, world};

async fn widgets() -> World {
    let world = world().await;
    for (name, size) in [("a", 3), ("b", 10), ("c", 1), ("d", 3), ("e", 7)] {
        let path = format!("/widgets/{name}");
        let body = json!({"sizeLimit": size});
        let put = world.api("PUT", &path).json(&body).header("idempotency-key", name).send().await;
        assert_eq!(put.status, 200, "{put:?}");
    }
    world
}

async fn names(world: &World, query: &str) -> (Vec<String>, Option<String>) {
    let answer = world.api("GET", &format!("/widgets?{query}")).send().await;
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    let body = answer.json();
    let names = body["items"].as_array().unwrap().iter();
    let names = names.map(|item| item["name"].as_str().unwrap().to_owned()).collect();
    (names, body["nextCursor"].as_str().map(str::to_owned))
}

#[tokio::test]
async fn a_list_is_narrowed_and_ordered_by_fields_of_its_records() {
    let world = widgets().await;
    let cases = [
        ("filter=sizeLimit%20%3E%203", vec!["b", "e"]),
        ("filter=sizeLimit%20%3D%203%20or%20name%20in%20(c)", vec!["a", "c", "d"]),
        ("sort=sizeLimit", vec!["c", "a", "d", "e", "b"]),
        ("sort=-sizeLimit,-name", vec!["b", "e", "d", "a", "c"]),
        ("sort=-sizeLimit&filter=sizeLimit%3C10&atLeast=3", vec!["e", "a", "d"]),
    ];
    for (query, expected) in cases {
        assert_eq!(names(&world, query).await.0, expected, "{query}");
    }
}

#[tokio::test]
async fn parts_of_a_narrowed_and_ordered_list_are_the_whole_of_it() {
    let world = widgets().await;
    for query in ["limit=1&filter=sizeLimit%3C10", "limit=2&sort=-sizeLimit&filter=sizeLimit%3C10"]
    {
        let whole = names(&world, query.split_once('&').unwrap().1).await.0;
        let (mut all, mut cursor) = names(&world, query).await;
        while let Some(next) = cursor {
            let more;
            (more, cursor) = names(&world, &format!("{query}&cursor={next}")).await;
            all.extend(more);
        }
        assert_eq!(all, whole, "{query}");
    }
}

async fn refused(world: &World, path: &str) -> Value {
    let answer = world.api("GET", path).send().await;
    assert_eq!(answer.status, 400, "{path}: {answer:?}");
    answer.json()["errors"][0].clone()
}

#[tokio::test]
async fn what_cannot_match_is_refused_with_its_place_and_what_is_near() {
    let world = widgets().await;
    let wrong = refused(&world, "/widgets?filter=sizeLimt%20%3E%203").await;
    assert_eq!(wrong["pointer"], "/filter");
    assert_eq!(
        wrong["message"],
        "character 1: no record has a field sizeLimt; did you mean sizeLimit?"
    );
    assert_eq!(refused(&world, "/widgets?sort=sise").await["pointer"], "/sort");
    assert_eq!(refused(&world, "/widgets?sort=name&sort=name").await["pointer"], "/sort");
    assert_eq!(refused(&world, "/widgets/a?filter=name%3Da").await["pointer"], "/filter");
    assert_eq!(refused(&world, "/events?sort=seq").await["pointer"], "/sort");
    assert_eq!(refused(&world, "/widgets?watch=true&sort=name").await["pointer"], "/sort");
    let (_, cursor) = names(&world, "limit=1&sort=name").await;
    let other = format!("/widgets?limit=1&sort=-name&cursor={}", cursor.unwrap());
    assert_eq!(refused(&world, &other).await["pointer"], "/cursor");
    assert_eq!(refused(&world, "/widgets?watch=true&filter=nome%3Da").await["pointer"], "/filter");
}

#[tokio::test]
async fn events_are_narrowed_and_keep_their_cursors() {
    let world = widgets().await;
    let path = "/events?from=0&limit=2&filter=subject%20%3D%20widget%2Fd";
    let mut found = vec![];
    let mut path_now = path.to_owned();
    loop {
        let body = world.api("GET", &path_now).send().await.json();
        found.extend(body["items"].as_array().unwrap().clone());
        match body["nextCursor"].as_str() {
            Some(next) => path_now = format!("{}&cursor={next}", path.replace("from=0&", "")),
            None => break,
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["subject"], "widget/d");
}
