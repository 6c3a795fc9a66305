//! The claims of a token: issuer, audience, times, subject, groups and scopes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::TokenError;
use crate::issuer::Issuer;
use crate::json::{Object, Value};
use crate::scope::Capabilities;
use crate::shown::shown;
use crate::verifier::LEEWAY;

/// The audience that means any WLCG service.
const ANY_WLCG: &str = "https://wlcg.cern.ch/jwt/v1/any";
/// The audience that means any service in SciTokens.
const ANY_SCITOKENS: &str = "ANY";

const MOST_AUDIENCES: usize = 64;
const MOST_GROUPS: usize = 1000;
/// Maximum length in bytes of a subject (OpenID Connect Core section 2), a group or an identifier.
const LONGEST_NAME: usize = 255;
/// Maximum length in bytes of an issuer or an audience.
const LONGEST_URL: usize = 1024;
/// The end of the year 9999; later dates are refused.
const LAST_SECOND: f64 = 253_402_300_799.0;

/// The specification that a token follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// WLCG Common JWT Profiles 1.x.
    Wlcg,
    /// SciTokens 2.0.
    SciTokens,
}

impl Profile {
    fn any_audience(self) -> &'static str {
        match self {
            Self::Wlcg => ANY_WLCG,
            Self::SciTokens => ANY_SCITOKENS,
        }
    }

    fn of(claims: &Object) -> Result<Self, TokenError> {
        let version = |name: &'static str| match claims.get(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.as_str())),
            Some(_) => Err(TokenError::Version(format!("{name} is no string"))),
        };
        let minor =
            |text: &str| !text.is_empty() && text.len() < 4 && text.bytes().all(|b| b.is_ascii_digit());
        match (version("wlcg.ver")?, version("ver")?) {
            (Some(text), None) if text.strip_prefix("1.").is_some_and(minor) => Ok(Self::Wlcg),
            (None, Some("scitoken:2.0" | "scitokens:2.0")) => Ok(Self::SciTokens),
            (Some(_), Some(_)) => Err(TokenError::Version("it has both".into())),
            (Some(text), None) => Err(TokenError::Version(format!("wlcg.ver is {}", shown(text)))),
            (None, Some(text)) => Err(TokenError::Version(format!("ver is {}", shown(text)))),
            (None, None) => Err(TokenError::Version("it has none of them".into())),
        }
    }
}

/// The checked claims of a token.
pub(crate) struct Claims {
    pub(crate) profile: Profile,
    pub(crate) subject: String,
    pub(crate) id: Option<String>,
    pub(crate) groups: Vec<String>,
    pub(crate) expires: SystemTime,
    pub(crate) capabilities: Capabilities,
}

/// The issuer that an unverified token claims.
pub(crate) fn issuer(claims: &Object) -> Result<&str, TokenError> {
    string(claims, "iss", LONGEST_URL)?.ok_or(TokenError::Missing("iss"))
}

impl Claims {
    /// Checks the claims of a token whose signature has been verified.
    pub(crate) fn check(claims: &Object, issuer: &Issuer, now: SystemTime) -> Result<Self, TokenError> {
        let expires = times(claims, now)?;
        let profile = Profile::of(claims)?;
        audience(claims, profile, issuer)?;
        let subject = string(claims, "sub", LONGEST_NAME)?.ok_or(TokenError::Missing("sub"))?.to_owned();
        let id = string(claims, "jti", LONGEST_NAME)?.map(str::to_owned);
        let groups = match profile {
            Profile::Wlcg => names(claims, "wlcg.groups", MOST_GROUPS, LONGEST_NAME)?.unwrap_or_default(),
            Profile::SciTokens => Vec::new(),
        };
        let capabilities = match claims.get("scope") {
            None => Capabilities::default(),
            Some(Value::String(scopes)) => Capabilities::parse(scopes, profile)?,
            Some(_) => return Err(wrong("scope", "expected a string, scopes with spaces between")),
        };
        Ok(Self { profile, subject, id, groups, expires, capabilities })
    }
}

/// Checks `exp`, `nbf` and `iat` (RFC 7519 section 4.1); returns the time at which the token
/// expires.
fn times(claims: &Object, now: SystemTime) -> Result<SystemTime, TokenError> {
    let leeway = LEEWAY.as_secs() as i64;
    let now =
        now.duration_since(UNIX_EPOCH).map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX));
    let expires = date(claims, "exp")?.ok_or(TokenError::Missing("exp"))?;
    if let Some(begins) = date(claims, "nbf")?
        && begins > now.saturating_add(leeway)
    {
        return Err(TokenError::NotYetValid { ahead: begins - now });
    }
    if let Some(issued) = date(claims, "iat")?
        && issued > now.saturating_add(leeway)
    {
        return Err(TokenError::IssuedAhead { ahead: issued - now });
    }
    if now >= expires.saturating_add(leeway) {
        return Err(TokenError::Expired { ago: now - expires });
    }
    Ok(UNIX_EPOCH + Duration::from_secs(expires.unsigned_abs()))
}

/// A date claim in seconds since 1970, rounded down.
fn date(claims: &Object, claim: &'static str) -> Result<Option<i64>, TokenError> {
    match claims.get(claim) {
        None => Ok(None),
        Some(Value::Number(n)) if (0.0..=LAST_SECOND).contains(n) => Ok(Some(*n as i64)),
        Some(_) => Err(wrong(claim, "expected seconds since 1970, as a number")),
    }
}

fn audience(claims: &Object, profile: Profile, issuer: &Issuer) -> Result<(), TokenError> {
    let audiences = match claims.get("aud") {
        Some(Value::String(_)) => string(claims, "aud", LONGEST_URL)?.map(|one| vec![one.to_owned()]),
        _ => names(claims, "aud", MOST_AUDIENCES, LONGEST_URL)?,
    };
    let audiences = audiences.ok_or(TokenError::Missing("aud"))?;
    let fits = |audience: &String| {
        issuer.audiences.contains(audience) || issuer.any_audience && audience == profile.any_audience()
    };
    if audiences.iter().any(fits) {
        return Ok(());
    }
    let expected: Vec<String> = issuer.audiences.iter().map(|audience| shown(audience)).collect();
    let got: Vec<String> = audiences.iter().take(3).map(|audience| shown(audience)).collect();
    Err(TokenError::Audience {
        got: if got.is_empty() { "nobody".into() } else { got.join(", ") },
        expected: if expected.is_empty() { shown(profile.any_audience()) } else { expected.join(", ") },
    })
}

fn string<'a>(
    claims: &'a Object,
    claim: &'static str,
    longest: usize,
) -> Result<Option<&'a str>, TokenError> {
    match claims.get(claim) {
        None => Ok(None),
        Some(Value::String(text)) => plain(text, claim, longest).map(Some),
        Some(_) => Err(wrong(claim, "expected a string")),
    }
}

fn names(
    claims: &Object,
    claim: &'static str,
    most: usize,
    longest: usize,
) -> Result<Option<Vec<String>>, TokenError> {
    let list = match claims.get(claim) {
        None => return Ok(None),
        Some(Value::Array(list)) => list,
        Some(_) => return Err(wrong(claim, "expected a list of strings")),
    };
    if list.len() > most {
        return Err(wrong(claim, format!("it has more than {most} members")));
    }
    let one = |value: &Value| match value {
        Value::String(text) => plain(text, claim, longest).map(str::to_owned),
        _ => Err(wrong(claim, "expected a list of strings")),
    };
    list.iter().map(one).collect::<Result<_, _>>().map(Some)
}

/// Checks that the text is short and may appear on one line of a log.
fn plain<'a>(text: &'a str, claim: &'static str, longest: usize) -> Result<&'a str, TokenError> {
    if text.is_empty() {
        return Err(wrong(claim, "it is empty"));
    }
    if text.len() > longest {
        return Err(wrong(claim, format!("it is longer than {longest} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(wrong(claim, "it has control characters"));
    }
    Ok(text)
}

fn wrong(claim: &'static str, reason: impl Into<String>) -> TokenError {
    TokenError::Claim { claim, reason: reason.into() }
}
