use std::path::PathBuf;

use crate::jws::Algorithm;
use crate::scope::InvalidScope;
use crate::secret::InvalidToken;
use crate::shown::span;

/// Why a token is refused. Messages contain shortened claims, but never the signature or anything
/// else that would allow using the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("it is no bearer token: {0}")]
    Invalid(#[from] InvalidToken),
    #[error("expected a signed JSON Web Token, header.claims.signature in base64url: {0}")]
    Form(&'static str),
    #[error("its {part} is not what it should be: {reason}")]
    Json { part: &'static str, reason: String },
    #[error("its header says alg {0}, and only RS256, ES256, ES384 and EdDSA are accepted")]
    Algorithm(String),
    #[error("its header says typ {0}, which is no access token")]
    Type(String),
    #[error("its header has extensions that must be understood (crit)")]
    Critical,
    #[error("its claim {0} is missing")]
    Missing(&'static str),
    #[error("its claim {claim} is wrong: {reason}")]
    Claim { claim: &'static str, reason: String },
    #[error("its issuer {0} is not one that this server trusts")]
    Issuer(String),
    #[error("the keys of its issuer cannot be had: {0}")]
    Keys(#[from] KeysError),
    #[error("its issuer has no key {0}")]
    UnknownKey(String),
    #[error("it does not say which key signed it (kid), and its issuer has several that could")]
    AmbiguousKey,
    #[error("the key that it names is not one for {0}")]
    KeyType(Algorithm),
    #[error("its signature is wrong")]
    Signature,
    #[error("it is for {got}, and this server is {expected}")]
    Audience { got: String, expected: String },
    #[error("it expired {} ago", span(*.ago))]
    Expired { ago: i64 },
    #[error("it is not valid before {} from now", span(*.ahead))]
    NotYetValid { ahead: i64 },
    #[error("it was issued {} from now; is the clock right?", span(*.ahead))]
    IssuedAhead { ahead: i64 },
    #[error("it is neither of the WLCG profile 1 (wlcg.ver) nor a SciToken 2 (ver): {0}")]
    Version(String),
    #[error("its scope {0}")]
    Scope(#[from] InvalidScope),
}

/// Why the keys of an issuer are not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeysError {
    #[error("{path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("{url}: {reason}")]
    Fetch { url: String, reason: String },
    #[error("{url}: its discovery document is about the issuer {got}")]
    OtherIssuer { url: String, got: String },
    #[error("{url}: {reason}")]
    Document { url: String, reason: String },
}

/// Why a [`crate::Verifier`] cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    #[error("{url:?} cannot be an issuer: {reason}")]
    Url { url: String, reason: &'static str },
    #[error("the issuer {0} is there twice")]
    Twice(String),
    #[error("issuer {0}: name at least one audience, or accept the one that means any")]
    NoAudience(String),
    #[error("issuer {url}: {source}")]
    Keys { url: String, source: KeysError },
}
