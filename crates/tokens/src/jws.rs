//! Parses the outer form of a token, JWS compact serialization (RFC 7515 section 3.1), without
//! verifying it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::error::TokenError;
use crate::json::{Object, Value};
use crate::secret::{InvalidToken, LONGEST_TOKEN};
use crate::shown::shown;

/// Maximum number of values in a header.
const HEADER_VALUES: usize = 64;
/// Maximum number of values in the claims; most are groups.
const CLAIM_VALUES: usize = 2000;
/// Maximum length of a key's name, in bytes.
pub(crate) const LONGEST_KEY_NAME: usize = 256;

/// Signature algorithms (RFC 7518 section 3.1, RFC 8037): the asymmetric ones that issuers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Rs256,
    Es256,
    Es384,
    EdDsa,
}

impl Algorithm {
    /// Looks up an algorithm. Names are case-sensitive (RFC 7515 section 4.1.1).
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" => Self::EdDsa,
            _ => return None,
        })
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        })
    }
}

/// The parts of a token whose signature has not been verified. None of it can be trusted yet.
pub(crate) struct Unverified<'a> {
    pub(crate) algorithm: Algorithm,
    pub(crate) key: Option<String>,
    pub(crate) claims: Object,
    /// The bytes that the signature covers.
    pub(crate) signed: &'a [u8],
    pub(crate) signature: Zeroizing<Vec<u8>>,
}

impl<'a> Unverified<'a> {
    pub(crate) fn parse(token: &'a [u8]) -> Result<Self, TokenError> {
        if token.is_empty() {
            return Err(InvalidToken::Empty.into());
        }
        if token.len() > LONGEST_TOKEN {
            return Err(InvalidToken::Long.into());
        }
        let mut parts = token.split(|&b| b == b'.');
        let (Some(header), Some(claims), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(TokenError::Form("it has not three parts"));
        };
        let signed = &token[..header.len() + 1 + claims.len()];
        let (algorithm, key) = Self::header(&decode(header)?)?;
        let claims = Object::parse(&decode(claims)?, CLAIM_VALUES)
            .map_err(|reason| TokenError::Json { part: "claims", reason })?;
        if signature.is_empty() {
            return Err(TokenError::Form("it is not signed"));
        }
        Ok(Self { algorithm, key, claims, signed, signature: decode(signature)? })
    }

    fn header(text: &[u8]) -> Result<(Algorithm, Option<String>), TokenError> {
        let wrong = |reason: String| TokenError::Json { part: "header", reason };
        let header = Object::parse(text, HEADER_VALUES).map_err(wrong)?;
        let name = header.string("alg").ok_or_else(|| wrong("there is no alg".into()))?;
        let algorithm = Algorithm::of_name(name).ok_or_else(|| TokenError::Algorithm(shown(name)))?;
        if header.get("crit").is_some() {
            return Err(TokenError::Critical);
        }
        // Types of access tokens (RFC 9068 section 2.1). `typ` may be omitted.
        match header.get("typ") {
            None => {}
            Some(Value::String(kind))
                if ["JWT", "at+jwt", "application/at+jwt"].iter().any(|k| kind.eq_ignore_ascii_case(k)) => {}
            Some(Value::String(kind)) => return Err(TokenError::Type(shown(kind))),
            Some(_) => return Err(wrong("typ is no string".into())),
        }
        let key = match header.get("kid") {
            None => None,
            Some(Value::String(name)) if (1..=LONGEST_KEY_NAME).contains(&name.len()) => Some(name.clone()),
            Some(_) => return Err(wrong(format!("kid is no string of 1 to {LONGEST_KEY_NAME} bytes"))),
        };
        Ok((algorithm, key))
    }
}

fn decode(part: &[u8]) -> Result<Zeroizing<Vec<u8>>, TokenError> {
    let decoded = URL_SAFE_NO_PAD.decode(part);
    decoded.map(Zeroizing::new).map_err(|_| TokenError::Form("a part is not base64url"))
}
