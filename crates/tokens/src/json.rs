//! JSON from untrusted sources (RFC 8259). Depth and number of values are limited. Objects with
//! duplicate names are refused, because two parsers may use different ones of the values (RFC 8725
//! section 2.4).

use std::cell::Cell;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// Maximum nesting depth of arrays and objects.
const DEEPEST: u32 = 8;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(f64),
    String(String),
    Array(Vec<Self>),
    Object(Object),
}

/// An object; its members keep their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Object(Vec<(String, Value)>);

impl Object {
    /// Parses a text that consists of one object with up to `most` values.
    pub(crate) fn parse(text: &[u8], most: usize) -> Result<Self, String> {
        let left = Cell::new(most);
        let mut json = serde_json::Deserializer::from_slice(text);
        let value = Reader { depth: 0, left: &left }.deserialize(&mut json);
        let value = value.and_then(|value| json.end().map(|()| value)).map_err(|e| e.to_string())?;
        match value {
            Value::Object(object) => Ok(object),
            _ => Err("it is no object".into()),
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(crate) fn string(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::String(text)) => Some(text),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    depth: u32,
    /// Number of further values that are allowed.
    left: &'a Cell<usize>,
}

impl Reader<'_> {
    fn deeper<E: serde::de::Error>(self) -> Result<Self, E> {
        if self.depth >= DEEPEST {
            return Err(E::custom(format!("it is nested more than {DEEPEST} deep")));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let left =
            self.left.get().checked_sub(1).ok_or_else(|| D::Error::custom("it has too many values"))?;
        self.left.set(left);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let reader = self.deeper()?;
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(reader)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let reader = self.deeper()?;
        let mut object = Object::default();
        while let Some(name) = access.next_key::<String>()? {
            if object.get(&name).is_some() {
                let name = crate::shown::shown(&name);
                return Err(A::Error::custom(format!("{name} occurs twice")));
            }
            object.0.push((name, access.next_value_seed(reader)?));
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn error(text: &str) -> String {
        Object::parse(text.as_bytes(), 10).unwrap_err()
    }

    #[test]
    fn parse_duplicate_name_fails() {
        let object = Object::parse(br#"{"a":"b","n":1,"l":[true,null]}"#, 10).unwrap();
        assert_eq!(object.string("a"), Some("b"));
        assert_eq!(object.get("n"), Some(&Value::Number(1.0)));
        assert_eq!(object.get("l"), Some(&Value::Array(vec![Value::Bool(true), Value::Null])));
        assert!(error(r#"{"a":1,"a":2}"#).contains("\"a\" occurs twice"));
        assert!(error(r#"{"a":1,"\u0061":2}"#).contains("twice"));
        assert!(error(r#"{"x":{"a":1,"a":2}}"#).contains("twice"));
        assert!(error("[]").contains("no object"));
        assert!(error("{} {}").contains("trailing"));
        assert!(!error("{").is_empty() && !error("").is_empty());
        assert!(Object::parse(b"{\"a\":\"\xff\"}", 10).is_err());
    }

    #[test]
    fn parse_too_deep_or_large_fails() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(7), "]".repeat(7));
        assert!(Object::parse(deep.as_bytes(), 10).is_ok());
        let deeper = format!("{{\"a\":{}{}}}", "[".repeat(8), "]".repeat(8));
        assert!(error(&deeper).contains("nested"));
        assert!(error(&format!("{{\"a\":{}", "[".repeat(100_000))).contains("nested"));
        assert!(error("{\"a\":[1,2,3,4,5,6,7,8,9]}").contains("too many"));
    }
}
