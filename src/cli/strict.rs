//! What is refused before or while a document is parsed: nesting without end, and keys twice.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The deepest nesting that is parsed: a parser may take time that grows with its square.
pub(super) const DEPTH_MAX: usize = 64;

/// A value in which no object has a key twice.
#[derive(Debug)]
pub(super) struct Strict(pub Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Whole).map(Self)
    }
}

struct Whole;

impl<'de> Visitor<'de> for Whole {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value with texts as keys")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(Self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("the key `{key}` is there twice")));
            }
            let Strict(value) = entries.next_value()?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// The key of an error that says that it is there twice.
pub(super) fn twice(reason: &str) -> Option<&str> {
    reason.split_once("the key `")?.1.split_once("` is there twice").map(|(key, _)| key)
}

/// The line of the second `key:` from the line `from` on that is as far to the right as the first.
/// Lines begin with 1; `from` when there is none, as in `{a: 1, a: 2}`.
pub(super) fn second(text: &str, key: &str, from: usize) -> usize {
    let mut first = None;
    for (number, line) in (1..).zip(text.lines()).skip(from.saturating_sub(1)) {
        let indent = line.len() - line.trim_start_matches([' ', '-']).len();
        let word = line[indent..].split(':').next().unwrap_or("").trim();
        if word.trim_matches(['"', '\'']) != key || !line[indent..].contains(':') {
            continue;
        }
        match first {
            None => first = Some(indent),
            Some(column) if column == indent => return number,
            Some(_) => {}
        }
    }
    from
}

/// Where brackets are nested deeper than [`DEPTH_MAX`]: line and column, both from 1. Quotes,
/// comments and brackets within plain text do not count.
pub(super) fn too_deep(text: &str) -> Option<(usize, usize)> {
    let mut depth = 0_usize;
    let mut quote = None;
    for (number, line) in (1..).zip(text.lines()) {
        if quote.is_none() && line.starts_with("---") {
            depth = 0;
        }
        // Whether a value may begin here, and whether the character before is a blank.
        // A tag or an anchor stands before its value and ends with a blank.
        let (mut begins, mut blank, mut skip, mut property) = (true, true, false, false);
        for (column, c) in (1..).zip(line.chars()) {
            if skip {
                skip = false;
                continue;
            }
            match (quote, c) {
                (Some('"'), '\\') => skip = true,
                (Some(open), c) if c == open => (quote, begins) = (None, false),
                (Some(_), _) => {}
                (None, c) if property => property = !c.is_whitespace(),
                (None, '#') if blank => break,
                (None, '!' | '&') if begins => property = true,
                (None, '"' | '\'') if begins => quote = Some(c),
                (None, '[' | '{') if begins || depth > 0 => {
                    depth += 1;
                    begins = true;
                    if depth > DEPTH_MAX {
                        return Some((number, column));
                    }
                }
                (None, ']' | '}') => (depth, begins) = (depth.saturating_sub(1), false),
                (None, ':' | ',' | '-' | '?') => begins = true,
                (None, c) => begins = begins && c.is_whitespace(),
            }
            blank = c.is_whitespace();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_without_end_is_found_with_its_place() {
        assert_eq!(too_deep(&format!("name: a\nx: {}", "[".repeat(10_000))), Some((2, 68)));
        assert_eq!(too_deep(&"[\n".repeat(65)), Some((65, 1)));
        assert_eq!(too_deep(&format!("x: &a {}", "[".repeat(65))), Some((1, 71)));
        assert_eq!(too_deep(&format!("it's: {}", "[".repeat(65))), Some((1, 71)));
    }

    #[test]
    fn what_is_text_is_no_nesting() {
        let many = "[".repeat(100);
        for text in [
            format!("x: \"{many}\""),
            format!("x: '{many}'"),
            format!("# {many}"),
            format!("x: \"\\\"{many}\""),
            format!("x: a{many}"),
            "x: [1, 2]\n".repeat(200),
        ] {
            assert_eq!(too_deep(&text), None, "{text}");
        }
    }

    #[test]
    fn the_second_of_two_keys_is_found() {
        let text = "a: 1\nenv:\n  a: 2\nb: 3\n\"a\": 4\n";
        assert_eq!(second(text, "a", 1), 5);
        assert_eq!(second("{a: 1, a: 2}", "a", 1), 1);
        assert_eq!(twice("x: the key `a` is there twice at line 1"), Some("a"));
    }
}
