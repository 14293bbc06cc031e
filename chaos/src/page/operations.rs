//! The operations of a violation, each as a bar from its call to its end.

use serde_json::Value;

use super::svg::{self, LEFT, RIGHT, WIDTH};

const ROW: f64 = 30.0;
/// More are only listed.
const DRAWN_MAX: usize = 40;

struct Drawn {
    client: u64,
    invoked: u64,
    /// None: nobody knows whether it has ended.
    ended: Option<u64>,
    words: String,
}

/// Draws those of the evidence that are operations. All moments are as far from each other, since it
/// is their order that counts. Answers whether there is a drawing.
pub(super) fn draw(out: &mut String, evidence: &[Value]) -> bool {
    let mut drawn: Vec<Drawn> = evidence.iter().filter_map(operation).collect();
    if drawn.is_empty() || drawn.len() > DRAWN_MAX {
        return false;
    }
    drawn.sort_by_key(|operation| operation.invoked);
    let mut moments: Vec<u64> =
        drawn.iter().flat_map(|one| [Some(one.invoked), one.ended]).flatten().collect();
    moments.sort_unstable();
    moments.dedup();
    let room = WIDTH - LEFT - RIGHT;
    let x = |moment: u64| {
        let place = moments.partition_point(|other| *other < moment) as f64;
        LEFT + place / moments.len() as f64 * room
    };
    let height = drawn.len() as f64 * ROW;
    svg::begin(out, height, "The operations in their order (not to scale)");
    for (row, one) in (0..).map(f64::from).zip(&drawn) {
        let (y, from) = (row * ROW, x(one.invoked));
        let until = one.ended.map_or(WIDTH - RIGHT, &x);
        let class = if one.ended.is_some() { "op" } else { "op open" };
        svg::label(out, (LEFT - 6.0, y + 14.0), "end", &format!("client {}", one.client));
        let times = match one.ended {
            Some(ended) => format!("{} to {} µs", one.invoked, ended),
            None => format!("from {} µs, without an answer", one.invoked),
        };
        svg::rect(out, (from, y + 16.0), ((until - from).max(4.0), 8.0), class, &times);
        // From the left edge of the bar, or up to the right edge of the drawing.
        if from > LEFT + room * 0.6 {
            svg::label(out, (WIDTH - RIGHT, y + 12.0), "end", &one.words);
        } else {
            svg::label(out, (from, y + 12.0), "start", &one.words);
        }
    }
    svg::end(out);
    true
}

fn operation(item: &Value) -> Option<Drawn> {
    let number = |name: &str| item.get(name).and_then(Value::as_u64);
    let word = |value: Option<&Value>| match value {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let action = item.get("action")?;
    let outcome = item.get("outcome")?.as_str()?;
    let mut words = word(action.get("do"));
    for name in ["name", "register", "key", "at", "value"] {
        if let Some(value) = action.get(name) {
            let value = word(Some(value));
            words = match name {
                "at" => format!("{words} version {value} for"),
                _ => format!("{words} {value}"),
            };
        }
    }
    let seen = match outcome {
        "ok" => match number("value") {
            Some(value) => format!("saw {value}"),
            None => "ok".into(),
        },
        "refused" => format!("refused {}", word(item.get("code"))),
        _ => "no answer".into(),
    };
    let version =
        number("version").map_or(String::new(), |version| format!(" (version {version})"));
    Some(Drawn {
        client: number("client")?,
        invoked: number("invoked")?,
        ended: if outcome == "unknown" { None } else { number("ended") },
        words: format!("{words} → {seen}{version}"),
    })
}
