//! The reasons why a chain of certificates is not accepted.

use std::path::PathBuf;

use crate::der::DerError;
use crate::signing_policy::PolicyError;
use crate::time::Timestamp;

/// Names the certificate at fault by its subject and, for times, says since when.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    #[error("no certificate came")]
    Empty,
    #[error("the chain has {length} certificates; at most {most} are looked at")]
    TooLong { length: usize, most: usize },
    #[error("certificate {index} of the chain cannot be read: {source}")]
    Unreadable { index: usize, source: DerError },
    #[error("the certificate of {subject} expired at {since}")]
    Expired { subject: String, since: Timestamp },
    #[error("the certificate of {subject} is valid only from {from} on; one of the two clocks may be wrong")]
    NotYetValid { subject: String, from: Timestamp },
    #[error("the certificate of {subject} (serial {serial}) was revoked by {authority} at {since}")]
    Revoked { subject: String, serial: String, authority: String, since: Timestamp },
    #[error(
        "the authority {issuer}, which signed the certificate of {subject}, is not in {place} (as {hash:08x}.0)"
    )]
    UnknownAuthority { subject: String, issuer: String, place: String, hash: u32 },
    #[error("the certificate of {subject} is signed by itself and not in {place}")]
    SelfSigned { subject: String, place: String },
    #[error("the signature on the certificate of {subject} is wrong")]
    BadSignature { subject: String },
    #[error("the certificate of {subject} is signed with {digest}, which is not allowed")]
    WeakDigest { subject: String, digest: &'static str },
    #[error("the certificate of {subject} has a key of {bits} bits; {least} are the least")]
    WeakKey { subject: String, bits: u32, least: u32 },
    #[error("the certificate of {subject} has a key of {bits} bits; {most} are the most")]
    HugeKey { subject: String, bits: u32, most: u32 },
    #[error("{path} cannot be read ({source}), so that nobody is believed by it")]
    Unread { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no certificate in PEM")]
    NoCertificate { path: PathBuf },
    #[error("the authority {authority} has no signing policy: {path} is missing")]
    NoSigningPolicy { authority: String, path: PathBuf },
    #[error(
        "anybody can change {path} (mode {mode:04o}), so it is not believed; `chmod o-w {path}` mends it"
    )]
    Writable { path: PathBuf, mode: u32 },
    #[error("{path}: {source}")]
    BadSigningPolicy { path: PathBuf, source: PolicyError },
    #[error("{path} does not let {authority} certify {subject}")]
    SigningPolicy { authority: String, subject: String, path: PathBuf },
    #[error("the authority {authority} has no revocation list in {place}")]
    NoCrl { authority: String, place: String },
    #[error("{path} is no revocation list")]
    UnreadableCrl { path: PathBuf },
    #[error("the revocation list {path} is not signed by {authority}")]
    ForgedCrl { path: PathBuf, authority: String },
    #[error(
        "the revocation list {path} expired at {since}; without a fresh one, {authority} is not believed"
    )]
    ExpiredCrl { path: PathBuf, authority: String, since: Timestamp },
    #[error("the revocation list {path} is valid only from {from} on")]
    FutureCrl { path: PathBuf, from: Timestamp },
    #[error("the issuer of the proxy {subject}, {issuer}, is not in the chain")]
    ProxyIssuer { subject: String, issuer: String },
    #[error("the proxy {subject} is not named as its issuer {issuer} and one common name more")]
    ProxyName { subject: String, issuer: String },
    #[error("{issuer} is an authority; authorities have no proxies (but {subject} says it is one)")]
    ProxyOfAuthority { subject: String, issuer: String },
    #[error("the certificate of {issuer} may not sign, but {subject} is its proxy")]
    ProxyUsage { subject: String, issuer: String },
    #[error("{issuer} allows {allowed} proxies after it; {subject} is one too many")]
    ProxyPathLength { subject: String, issuer: String, allowed: u64 },
    #[error("the proxy {subject} is of another kind than those above it")]
    MixedProxies { subject: String },
    #[error("{issuer} is a limited proxy; {subject}, made from it, must be limited too")]
    LimitedProxy { subject: String, issuer: String },
    #[error("the proxy {subject} limits itself in a language that is not understood")]
    RestrictedProxy { subject: String },
    #[error("the proxy {subject} has {what}, which proxies must not have")]
    MalformedProxy { subject: String, what: &'static str },
    #[error("the certificate of {subject} has a critical extension that is not understood: {oid}")]
    CriticalExtension { subject: String, oid: String },
    #[error("the certificate of {subject}: {reason}")]
    Other { subject: String, reason: String },
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] openssl::error::ErrorStack),
}
