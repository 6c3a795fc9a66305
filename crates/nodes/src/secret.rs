//! Secrets in messages.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::Zeroizing;

/// Bytes that are cleared when they are dropped, and not shown. In messages they are Base64, which
/// the parser reads without copies of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    pub fn new(bytes: impl Into<Zeroizing<Vec<u8>>>) -> Self {
        Self(bytes.into())
    }

    pub fn bytes(&self) -> &Zeroizing<Vec<u8>> {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&Zeroizing::new(STANDARD.encode(&*self.0)))
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfText;
        impl Visitor<'_> for OfText {
            type Value = Secret;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a secret in Base64")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Secret, E> {
                let mut bytes = Zeroizing::new(vec![0; base64::decoded_len_estimate(text.len())]);
                // The error would name a character of the secret.
                let length = STANDARD
                    .decode_slice(text, &mut bytes)
                    .map_err(|_| E::custom("a secret is not in Base64"))?;
                bytes.truncate(length);
                Ok(Secret(bytes))
            }
        }
        deserializer.deserialize_str(OfText)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn secret_is_the_same_behind_a_message_and_is_not_shown() {
        for bytes in [&b""[..], b"\0\xffsecret\n", &[7; 1000]] {
            let secret = Secret::new(bytes.to_vec());
            let text = serde_json::to_string(&secret).unwrap();
            assert_eq!(serde_json::from_str::<Secret>(&text).unwrap(), secret);
            assert_eq!(format!("{secret:?}"), "Secret");
        }
        for wrong in ["\"*secret*\"", "\"abc\"", "7"] {
            let error = serde_json::from_str::<Secret>(wrong).unwrap_err().to_string();
            assert!(!error.contains('*'), "{error}");
        }
    }
}
