use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::lists::{DEPTH_MAX, Order};

fn record() -> Value {
    json!({
        "id": "nd_1", "name": "web-1", "schedulable": true, "count": 3, "load": 0.5, "gone": null,
        "createdAt": "2026-11-30T02:10:00.000Z",
        "status": { "phase": "ready", "restarts": 18_446_744_073_709_551_615_u64 },
        "labels": { "zone": "eu", "example.org/disk": "ssd" },
        "ports": [ { "name": "http", "number": 80 }, { "name": "admin", "number": 8080 } ],
        "tags": ["a", "b"],
    })
}

fn matches(filter: &str) -> bool {
    Filter::read(filter, &Known::anything())
        .unwrap_or_else(|e| panic!("{filter}: {e}"))
        .matches(&record())
}

#[test]
fn conditions_say_what_they_mean() {
    let yes = [
        "name = web-1",
        "name == 'web-1'",
        "not name = web-2",
        "name != web-2 and count = 3",
        "name = web-2 or count >= 3 and count < 4",
        "(name = web-2 or count = 3) and schedulable = true",
        "status.phase in (lost, ready)",
        "status.phase not in (lost, joining)",
        "labels.zone = eu",
        "labels.\"example.org/disk\" = ssd",
        "labels.missing = null",
        "gone = null",
        "name != null",
        "missing != x",
        "ports.number = 8080",
        "ports.name ~ adm",
        "tags = b",
        "createdAt > 2026-11-30",
        "createdAt < \"2026-11-30T02:10:00.001Z\"",
        "load < 1",
        "count = 3.0",
        "status.restarts = 18446744073709551615",
        "status.restarts > 18446744073709551614",
        "NOT (name = web-2) AND count IN (1,2,3)",
    ];
    let no = [
        "name = web-2",
        "name = WEB-1",
        "schedulable = false",
        "schedulable = 'true'",
        "count = '3'",
        "count > abc",
        "missing = x",
        "missing < 1",
        "tags = c",
        "labels = eu",
        "name = null",
        "gone != null",
        "status.restarts = 18446744073709551614",
        "not (name = web-1 or name = web-2)",
    ];
    let wrong: Vec<_> = yes.iter().filter(|filter| !matches(filter)).collect();
    assert!(wrong.is_empty(), "do not match: {wrong:?}");
    let wrong: Vec<_> = no.iter().filter(|filter| matches(filter)).collect();
    assert!(wrong.is_empty(), "match: {wrong:?}");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let told = |filter: &str| Filter::read(filter, &Known::anything()).unwrap_err();
    assert_eq!(told(""), "character 1: a condition is missing, such as name = web");
    assert_eq!(told("name"), "character 5: name is compared with nothing: add = VALUE");
    assert_eq!(told("name ="), "character 7: a value is missing behind =");
    assert_eq!(told("name = 'web"), "character 8: the ' here is not closed");
    assert_eq!(told("(name = web"), "character 12: the ( at character 1 is not closed");
    assert_eq!(
        told("name = web count = 3"),
        "character 12: count is too much here: conditions are joined by and, or"
    );
    assert_eq!(
        told("name ! web"),
        "character 6: is no comparison; there are = != < <= > >= ~ and in (…)"
    );
    assert_eq!(told("name = a;"), "character 9: ';' has no meaning here: put texts in quotes");
    assert_eq!(told("name in web"), "character 9: expected ( behind in, found web");
    assert_eq!(
        told("name < null"),
        "character 8: null is compared by = and != only; put it in quotes for the text"
    );
    let long = format!("name = {}", "x".repeat(1_000));
    assert_eq!(told(&long), "is longer than 1000 characters");
}

#[test]
fn depth_is_bounded_and_length_is_not_depth() {
    let nested = |deep: usize| format!("{}a = 1{}", "(".repeat(deep), ")".repeat(deep));
    let read = |filter: &str| Filter::read(filter, &Known::anything());
    assert!(read(&nested(DEPTH_MAX)).is_ok());
    assert!(read(&nested(DEPTH_MAX + 1)).unwrap_err().contains("within each other"), "LIST-2");
    assert!(read(&"not ".repeat(DEPTH_MAX + 1).to_string()).is_err());
    let wide = vec!["a = 1"; 100].join(" or ");
    assert!(read(&wide).is_ok());
}

fn literal() -> impl Strategy<Value = Literal> {
    prop_oneof![
        "[a-z0-9.-]{1,8}".prop_map(|text| Literal { text, is_quoted: false }),
        ".{0,8}".prop_map(|text| Literal { text, is_quoted: true }),
    ]
}

fn expression() -> impl Strategy<Value = Expr> {
    let op = prop_oneof![
        Just(Op::Equal),
        Just(Op::NotEqual),
        Just(Op::Less),
        Just(Op::LessOrEqual),
        Just(Op::Greater),
        Just(Op::GreaterOrEqual),
        Just(Op::Contains),
    ];
    let path = proptest::collection::vec("x[a-z_-]{0,4}", 1..4);
    let test = (path.clone(), op, literal()).prop_map(|(path, op, value)| Expr::Test {
        path,
        op,
        values: vec![value],
    });
    let among = (path, any::<bool>(), proptest::collection::vec(literal(), 2..4)).prop_map(
        |(path, is, values)| {
            let op = if is { Op::Equal } else { Op::NotEqual };
            Expr::Test { path, op, values }
        },
    );
    prop_oneof![test, among].prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 2..4).prop_map(Expr::Any),
            proptest::collection::vec(inner.clone(), 2..4).prop_map(Expr::All),
            inner.prop_map(|part| Expr::Not(Box::new(part))),
        ]
    })
}

fn written_value(value: &Literal) -> String {
    if !value.is_quoted {
        return value.text.clone();
    }
    format!("'{}'", value.text.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn written(expression: &Expr) -> String {
    let joined = |parts: &[Expr], word: &str| {
        parts.iter().map(|part| format!("({})", written(part))).collect::<Vec<_>>().join(word)
    };
    match expression {
        Expr::Any(parts) => joined(parts, " or "),
        Expr::All(parts) => joined(parts, " and "),
        Expr::Not(part) => format!("not ({})", written(part)),
        Expr::Test { path, op, values } => match (op, values.as_slice()) {
            (op, [only]) => format!("{} {op} {}", path.join("."), written_value(only)),
            (op, values) => {
                let not = if *op == Op::NotEqual { "not " } else { "" };
                let values: Vec<String> = values.iter().map(written_value).collect();
                format!("{} {not}in ({})", path.join("."), values.join(", "))
            }
        },
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_as_it_was_meant(expression in expression()) {
        let text = written(&expression);
        // `null` has a meaning of its own, and keywords are no values without quotes.
        let read = Filter::read(&text, &Known::anything());
        match read {
            Ok(filter) => prop_assert_eq!(filter.expression, expression, "{}", text),
            Err(why) => prop_assert!(
                why.contains("null is compared") || why.contains("longer than") || why.contains("within each other"),
                "{}: {}", text, why
            ),
        }
    }

    #[test]
    fn no_text_is_a_danger(text in "\\PC{0,60}") {
        let _ = Filter::read(&text, &Known::anything());
        let _ = Order::read(&text, &Known::anything());
    }

    #[test]
    fn what_looks_like_a_filter_is_no_danger(words in proptest::collection::vec(
        prop_oneof![Just("("), Just(")"), Just("not"), Just("and"), Just("or"), Just("in"), Just(","), Just("="), Just("~"),
            Just("a"), Just("a.b"), Just("'x'"), Just("1"), Just("null")], 0..40)) {
        let filter = Filter::read(&words.join(" "), &Known::anything());
        if let Ok(filter) = filter {
            let _ = filter.matches(&record());
        }
    }
}

fn ordered(by: &str, records: &[Value]) -> Vec<String> {
    let order = Order::read(by, &Known::anything()).unwrap();
    let id = |record: &Value| record["id"].as_str().unwrap().to_owned();
    let mut keyed: Vec<_> = records.iter().map(|record| (order.keys(record), id(record))).collect();
    keyed.sort_by(|one, other| order.compare((&one.0, &one.1), (&other.0, &other.1)));
    keyed.into_iter().map(|(_, id)| id).collect()
}

#[test]
fn an_order_is_by_value_then_by_id_and_what_is_missing_comes_last() {
    let records = [
        json!({"id": "a", "n": 10}),
        json!({"id": "b", "n": 9}),
        json!({"id": "c"}),
        json!({"id": "d", "n": 9}),
    ];
    assert_eq!(ordered("n", &records), ["b", "d", "a", "c"]);
    assert_eq!(ordered("-n", &records), ["a", "b", "d", "c"]);
    assert_eq!(ordered("-n,-id", &records), ["a", "d", "b", "c"]);
    assert!(Order::read("a,b,c,d,e", &Known::anything()).unwrap_err().contains("more than 4"));
    assert!(Order::read(&"a".repeat(101), &Known::anything()).unwrap_err().contains("100"));
    assert!(Order::read("", &Known::anything()).is_err());
    assert!(Order::read("a b", &Known::anything()).is_err());
}

mod known {
    use std::collections::BTreeMap;

    use palisade_contract::{Check, Method, MethodContext, node::NodePhase};
    use palisade_state::View;
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    impl Check for Nothing {}

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    struct Part {
        phase: NodePhase,
        restarts: Option<u32>,
        is_up: bool,
    }

    #[derive(Serialize, JsonSchema)]
    #[serde(rename_all = "camelCase")]
    struct Shown {
        id: String,
        status: Option<Part>,
        parts: Vec<Part>,
        labels: BTreeMap<String, String>,
        free: Value,
    }

    fn of_nodes() -> Known {
        let list = |_: &MethodContext, _: &View, _: Nothing| Ok(Vec::<Shown>::new());
        Known::of(&Method::query("nodes", "list", "compute:nodes:read", list))
    }

    fn refused(filter: &str) -> String {
        match Filter::read(filter, &of_nodes()) {
            Err(why) => why,
            Ok(_) => panic!("LIST-1: {filter} is taken"),
        }
    }

    #[test]
    fn fields_that_records_have_are_taken() {
        for filter in [
            "status.phase = ready",
            "parts.isUp = true",
            "labels.anything = x",
            "free.at.any.depth > 3",
            "status.restarts >= 3",
            "status.phase < s",
            "status.restarts = null",
            "status != null",
            "labels = null",
        ] {
            Filter::read(filter, &of_nodes()).unwrap_or_else(|why| panic!("{filter}: {why}"));
        }
    }

    #[test]
    fn what_no_record_can_have_is_refused_with_what_is_near() {
        assert_eq!(
            refused("staus.phase = ready"),
            "character 1: no record has a field staus.phase; did you mean status?"
        );
        assert_eq!(
            refused("status.phse = ready"),
            "character 1: no record has a field status.phse; did you mean status.phase?"
        );
        assert!(refused("status = ready").contains("has parts: status.isUp, status.phase"));
        assert_eq!(
            refused("phase = ready"),
            "character 1: no record has a field phase; did you mean parts.phase?"
        );
        assert!(refused("labels. = 1").contains("lacks a name"));
        assert!(refused("labels = x").contains("add a dot"));
        assert!(refused("id.x = 1").contains("id has no parts"));
        let phase = refused("id = a and status.phase = raedy");
        assert!(phase.starts_with("character 27: status.phase is one of "), "{phase}");
        assert!(phase.ends_with("did you mean ready?"), "{phase}");
        assert_eq!(
            refused("status.restarts > many"),
            "character 19: status.restarts is a number; \"many\" is not"
        );
        assert!(refused("parts.isUp > false").contains("compared by = and !="));
        assert!(refused("status.restarts ~ 1").contains("is no text"));
        assert!(Order::read("staus", &of_nodes()).is_err());
    }
}
