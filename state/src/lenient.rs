//! Reading what the next release may have added to: fields that a type does not know are passed over, in every struct of
//! it, also where the type refuses them.
//!
//! What users send is read strictly, for a field that is misspelt must not be lost; the same types are kept in tables, and
//! there an older replica meets what a newer one has written. What is buffered by serde itself (untagged and internally
//! tagged enums) is read by its own rules: a struct in one that refuses what it does not know gets no field.

use serde::{
    Deserialize,
    de::{
        self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
        VariantAccess, Visitor, value::StrDeserializer,
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Value};

/// Reads `T`.
///
/// # Errors
/// It is none, whatever is passed over.
pub(crate) fn read<'de, T: Deserialize<'de>>(value: &'de Value) -> Result<T, Error> {
    T::deserialize(Lenient(value))
}

#[derive(Clone, Copy)]
struct Lenient<'de>(&'de Value);

impl<'de> Deserializer<'de> for Lenient<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                let mut left = Items(items.iter());
                let read = visitor.visit_seq(&mut left)?;
                // Of an array nothing is passed over.
                match left.0.len() {
                    0 => Ok(read),
                    _ => Err(de::Error::invalid_length(items.len(), &"fewer elements")),
                }
            }
            Value::Object(fields) => visitor.visit_map(Fields::new(fields, None)),
            other => other.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(fields) => visitor.visit_map(Fields::new(fields, Some(known))),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Object(fields) if fields.len() == 1 => {
                let variant = fields.iter().next().map(|(name, content)| Variant { name, content });
                visitor.visit_enum(variant.ok_or_else(|| de::Error::custom("no variant"))?)
            }
            other => other.deserialize_enum(name, variants, visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Items<'de>(std::slice::Iter<'de, Value>);

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.0.next().map(|item| seed.deserialize(Lenient(item))).transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// The entries of an object: of a struct those that it knows, of a map all.
struct Fields<'de> {
    left: serde_json::map::Iter<'de>,
    known: Option<&'static [&'static str]>,
    value: Option<&'de Value>,
}

impl<'de> Fields<'de> {
    fn new(
        fields: &'de serde_json::Map<String, Value>,
        known: Option<&'static [&'static str]>,
    ) -> Self {
        Self { left: fields.iter(), known, value: None }
    }
}

impl<'de> MapAccess<'de> for Fields<'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let known = self.known;
        let is_known = |name: &str| known.is_none_or(|known| known.contains(&name));
        let Some((name, value)) = self.left.find(|(name, _)| is_known(name.as_str())) else {
            return Ok(None);
        };
        self.value = Some(value);
        seed.deserialize(Name(name)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let value = self.value.take().ok_or_else(|| de::Error::custom("a value without a name"))?;
        seed.deserialize(Lenient(value))
    }
}

/// The name of an entry; a map may have numbers there.
struct Name<'de>(&'de str);

macro_rules! number {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            match serde_json::from_str::<serde_json::Number>(self.0) {
                Ok(number) => Value::Number(number).$method(visitor),
                Err(_) => visitor.visit_borrowed_str(self.0),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Name<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_borrowed_str(self.0)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let text: StrDeserializer<'de, Error> = self.0.into_deserializer();
        text.deserialize_enum(name, variants, visitor)
    }

    number! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16 deserialize_u32
        deserialize_u64 deserialize_f32 deserialize_f64
    }

    forward_to_deserialize_any! {
        bool i128 u128 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct identifier
        ignored_any
    }
}

/// A variant of an enum with its content.
struct Variant<'de> {
    name: &'de str,
    content: &'de Value,
}

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Error;
    type Variant = Content<'de>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Content<'de>), Error> {
        Ok((seed.deserialize(Name(self.name))?, Content(self.content)))
    }
}

struct Content<'de>(&'de Value);

impl<'de> VariantAccess<'de> for Content<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Deserialize::deserialize(Lenient(self.0))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(Lenient(self.0))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Error> {
        Lenient(self.0).deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        Lenient(self.0).deserialize_struct("", known, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Whole {
        #[serde(rename = "aName", alias = "old")]
        name: String,
        #[serde(default)]
        inner: Option<Inner>,
        many: Vec<Inner>,
        by_number: BTreeMap<u64, Inner>,
        by_kind: BTreeMap<Kind, (i8, f64)>,
        shape: Shape,
        wrapped: Wrapped,
        anything: Value,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Inner {
        flag: bool,
        #[serde(default)]
        letter: Option<char>,
    }

    #[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    enum Kind {
        One,
        Other,
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    enum Shape {
        Plain,
        Holds(Inner),
        Pair(u8, Inner),
        Fields { inner: Inner },
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Wrapped(Inner);

    fn inner() -> Inner {
        Inner { flag: true, letter: Some('é') }
    }

    fn whole(shape: Shape) -> Value {
        let whole = Whole {
            name: "n".to_owned(),
            inner: Some(inner()),
            many: vec![inner(), Inner { flag: false, letter: None }],
            by_number: [(7, inner()), (u64::MAX, inner())].into(),
            by_kind: [(Kind::One, (-3, 0.5)), (Kind::Other, (1, 2.0))].into(),
            shape,
            wrapped: Wrapped(inner()),
            anything: json!({"a": [1, null, {"b": "c"}]}),
        };
        serde_json::to_value(whole).unwrap()
    }

    fn shapes() -> Vec<Shape> {
        let fields = Shape::Fields { inner: inner() };
        vec![Shape::Plain, Shape::Holds(inner()), Shape::Pair(2, inner()), fields]
    }

    #[test]
    fn what_is_as_it_should_be_is_read_as_by_anybody() {
        for shape in shapes() {
            let value = whole(shape);
            let strict: Whole = serde_json::from_str(&value.to_string()).unwrap();
            assert_eq!(read::<Whole>(&value).unwrap(), strict, "{value}");
        }
        let by_old_name = whole(Shape::Plain).to_string().replace("aName", "old");
        let value: Value = serde_json::from_str(&by_old_name).unwrap();
        assert_eq!(read::<Whole>(&value).unwrap().name, "n");
    }

    #[test]
    fn what_is_not_known_is_passed_over_in_every_struct() {
        let places = [
            "",
            "/inner",
            "/many/0",
            "/many/1",
            "/by_number/7",
            "/wrapped",
            "/shape/Holds",
            "/shape/Pair/1",
            "/shape/Fields",
            "/shape/Fields/inner",
        ];
        for whole in shapes().into_iter().map(whole) {
            let before = read::<Whole>(&whole).unwrap();
            for place in places {
                let mut grown = whole.clone();
                let Some(at) = grown.pointer_mut(place) else { continue };
                at["later"] = json!({"x": [1]});
                assert!(serde_json::from_value::<Whole>(grown.clone()).is_err(), "{place}");
                assert_eq!(read::<Whole>(&grown).unwrap(), before, "{place}");
            }
        }
    }

    #[test]
    fn what_is_wrong_is_an_error_all_the_same() {
        let of = |at: &str, value: Value| {
            let mut whole = whole(Shape::Plain);
            *whole.pointer_mut(at).unwrap() = value;
            read::<Whole>(&whole).unwrap_err().to_string()
        };
        assert!(of("/aName", json!(1)).contains("expected a string"));
        assert!(of("/many/0/flag", json!("x")).contains("expected a boolean"));
        assert!(of("/many/0", json!({})).contains("missing field `flag`"));
        assert!(of("/shape", json!("Later")).contains("unknown variant"));
        assert!(of("/by_number", json!({"x": {"flag": true}})).contains("invalid type"));
        assert!(of("/by_kind", json!({"One": [300, 1]})).contains("300"));
        assert!(of("/by_kind", json!({"One": [3, 1, 2]})).contains("invalid length 3"));
        assert!(of("/shape", json!({"Pair": [1, inner(), 2]})).contains("invalid length 3"));
    }
}
