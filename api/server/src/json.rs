//! Reading JSON strictly: a name that stands twice in an object is refused with its pointer, and
//! nesting is bounded (128 levels, serde_json's own limit), so that no body can exhaust the stack.

use std::fmt;

use palisade_contract::{
    error::{Code, Error, Problem, Result},
    input::pointer_segment,
};
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Marks the message of a duplicate, so that its pointer can be told apart from serde_json's text.
const DUPLICATE: &str = "duplicate name at ";

/// Parses one JSON document.
///
/// # Errors
/// `INVALID_INPUT` with the place.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let parsed = Strict { at: String::new() }
        .deserialize(&mut deserializer)
        .and_then(|value| deserializer.end().map(|()| value));
    parsed.map_err(|error| {
        let text = error.to_string();
        let Some(rest) = text.strip_prefix(DUPLICATE) else {
            return Error::new(Code::InvalidInput, format!("the body is not JSON: {text}"));
        };
        let pointer = rest.rsplit_once(" at line ").map_or(rest, |(pointer, _)| pointer);
        Error::invalid(vec![Problem {
            pointer: pointer.to_owned(),
            message: "stands twice in its object; keep one of them".to_owned(),
        }])
    })
}

struct Strict {
    at: String,
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, input: D) -> Result<Value, D::Error> {
        input.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = vec![];
        while let Some(item) =
            seq.next_element_seed(Strict { at: format!("{}/{}", self.at, items.len()) })?
        {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let here = format!("{}/{}", self.at, pointer_segment(&name));
            if fields.contains_key(&name) {
                return Err(A::Error::custom(format!("{DUPLICATE}{here}")));
            }
            let value = map.next_value_seed(Strict { at: here })?;
            fields.insert(name, value);
        }
        Ok(Value::Object(fields))
    }
}

/// The text of a value with the names of every object in byte order, for hashing.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Object(fields) => {
            let mut names: Vec<_> = fields.iter().collect();
            names.sort_by(|a, b| a.0.cmp(b.0));
            out.push('{');
            for (position, (name, value)) in names.into_iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                out.push_str(&Value::String(name.clone()).to_string());
                out.push(':');
                write(value, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ordinary_json_is_read_as_serde_json_reads_it() {
        let text = r#"{"a":[1,-2,3.5,true,null,"x\u00fc"],"b":{"c":18446744073709551615}}"#;
        assert_eq!(parse(text.as_bytes()).unwrap(), serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_name_that_stands_twice_is_pointed_at() {
        let refused = parse(br#"{"a":[{"x/y":1,"x/y":2}]}"#).unwrap_err();
        assert_eq!(refused.code, Code::InvalidInput);
        assert_eq!(refused.problems[0].pointer, "/a/0/x~1y");
    }

    #[test]
    fn deep_nesting_is_refused_and_does_not_overflow() {
        let refused = parse("[".repeat(200_000).as_bytes()).unwrap_err();
        assert!(refused.detail.contains("recursion limit"), "{}", refused.detail);
    }

    #[test]
    fn what_follows_the_document_is_refused() {
        assert!(parse(b"{} {}").is_err());
        assert!(parse(b"").is_err());
        assert!(parse(b"{\"a\":\xff}").is_err());
    }

    #[test]
    fn canonical_text_does_not_depend_on_the_order_of_names() {
        let one = parse(br#"{"b":1,"a":{"d":[1,{"z":0,"y":0}],"c":2}}"#).unwrap();
        assert_eq!(canonical(&one), r#"{"a":{"c":2,"d":[1,{"y":0,"z":0}]},"b":1}"#);
        assert_eq!(canonical(&json!("a\"b")), r#""a\"b""#);
    }
}
