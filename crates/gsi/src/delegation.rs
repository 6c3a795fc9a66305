//! Delegation of proxies (RFC 3820, as GCT does it). A [`ProxyRequest`] makes a key and a request
//! for its certificate, and checks the certificate that comes back. [`sign_request`] signs such a
//! request, and [`create_proxy`] makes a proxy with a new key locally. A new proxy never has more
//! rights, a longer lifetime or a longer path length than its issuer allows.

use openssl::asn1::{Asn1Integer, Asn1Object, Asn1OctetString, Asn1Time};
use openssl::bn::BigNum;
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{HasPublic, Id, PKey, PKeyRef, Private, Public};
use openssl::sha::sha1;
use openssl::stack::Stack;
use openssl::x509::{
    X509, X509Builder, X509Extension, X509Name, X509NameBuilder, X509Ref, X509Req, X509ReqBuilder,
};
use ropewalk_tls::forget_errors;

use crate::certificate::Details;
use crate::credential::{Credential, CredentialError};
use crate::der::{self, DerError, Reader};
use crate::keys::{self, DelegatedKeys};
use crate::name;
use crate::oid;
use crate::proxy_info::{ProxyKind, ProxyPolicy, Rights};
use crate::time::Timestamp;

/// How far a peer's clock may be behind, in seconds; GCT allows the same.
const CLOCK_SKEW: i64 = 300;

/// Why a proxy was not made.
#[derive(Debug, thiserror::Error)]
pub enum DelegationError {
    #[error("the request for a proxy certificate cannot be read: {0}")]
    Request(ErrorStack),
    #[error("the request for a proxy certificate is not signed with its own key")]
    RequestSignature,
    #[error(
        "a proxy was asked for with a key of {bits} bits, which others could find; {least} are the least"
    )]
    WeakKey { bits: u32, least: u32 },
    #[error("the peer's proxy certificate cannot be read: {0}")]
    Certificate(ErrorStack),
    #[error("the peer's certificate {subject} is for another key than the one that was made for it")]
    WrongKey { subject: String },
    #[error("the peer's certificate {subject} is no proxy of {expected}")]
    NotAProxy { subject: String, expected: String },
    #[error("the certificate of {subject} expired at {since}; it cannot make proxies")]
    Expired { subject: String, since: Timestamp },
    #[error("{subject} is a limited proxy; what it makes must be limited too")]
    Limited { subject: String },
    #[error(
        "{subject} allows no further proxies (path length {allowed}): it can be used without delegation only (--no-delegate)"
    )]
    PathLength { subject: String, allowed: u64 },
    #[error("{subject} is not a proxy of the wanted kind; kinds are not mixed")]
    MixedKinds { subject: String },
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("a certificate cannot be read: {0}")]
    Der(#[from] DerError),
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// The terms of a new proxy.
#[derive(Clone, Copy, Debug)]
pub struct ProxyTerms {
    /// The form of the proxy and its rights. A proxy of a proxy has the form of its issuer.
    pub kind: ProxyKind,
    /// Seconds. The proxy never lives longer than its issuer.
    pub lifetime: u64,
    /// How many further proxies may follow; `None` for any number.
    pub path_length: Option<u64>,
}

impl Default for ProxyTerms {
    /// A full RFC 3820 proxy for twelve hours.
    fn default() -> Self {
        Self { kind: ProxyKind::Rfc3820(Rights::All), lifetime: 12 * 3600, path_length: None }
    }
}

/// The side that receives a proxy: it makes a new key and a request for its certificate.
pub struct ProxyRequest {
    key: PKey<Private>,
}

impl std::fmt::Debug for ProxyRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyRequest").finish_non_exhaustive()
    }
}

impl ProxyRequest {
    /// Makes a key for a proxy of `peer`.
    ///
    /// # Errors
    /// OpenSSL cannot make the key, or cannot read the key of `peer`, which determines its size.
    pub fn new(peer: &X509Ref, keys: &DelegatedKeys) -> Result<Self, ErrorStack> {
        Ok(Self { key: keys.make(peer)? })
    }

    /// Encodes the request as PKCS #10 in DER, with the subject and the extension that GCT writes.
    ///
    /// # Errors
    /// OpenSSL cannot make or sign the request.
    pub fn to_der(&self) -> Result<Vec<u8>, ErrorStack> {
        let mut name = X509NameBuilder::new()?;
        name.append_entry_by_nid(Nid::COMMONNAME, "NULL SUBJECT NAME ENTRY")?;
        let mut request = X509ReqBuilder::new()?;
        request.set_version(0)?;
        request.set_subject_name(&name.build())?;
        request.set_pubkey(&self.key)?;
        let policy = ProxyPolicy { rights: Rights::All, path_length: None };
        let mut extensions = Stack::new()?;
        extensions.push(extension("1.3.6.1.5.5.7.1.14", true, &policy.encode(false))?)?;
        request.add_extensions(&extensions)?;
        request.sign(&self.key, MessageDigest::sha256())?;
        request.build().to_der()
    }

    /// Takes the answer: a certificate in DER, which the chain of the peer may follow. `peer` is
    /// the certificate that must have signed it; `chain` is the chain that the peer sent in the
    /// handshake.
    ///
    /// # Errors
    /// The answer cannot be read, is for another key, or is not a proxy that `peer` has signed.
    pub fn finish(
        self,
        answer: &[u8],
        peer: &X509Ref,
        chain: &[X509],
    ) -> Result<Credential, DelegationError> {
        let mut reader = Reader::new(answer);
        let first =
            X509::from_der(reader.expect(der::SEQUENCE)?.whole).map_err(DelegationError::Certificate)?;
        let mut further = Vec::new();
        while !reader.is_empty() {
            let next = reader.expect(der::SEQUENCE)?.whole;
            further.push(X509::from_der(next).map_err(DelegationError::Certificate)?);
        }
        let details = Details::of(&first)?;
        if !first.public_key()?.public_eq(&self.key) {
            return Err(DelegationError::WrongKey { subject: details.subject });
        }
        let issuer = Details::of(peer)?;
        let named = details.issuer_der == issuer.subject_der;
        let signed = first.verify(&*peer.public_key()?);
        forget_errors();
        if !named || details.proxy.is_none() || !signed? {
            return Err(DelegationError::NotAProxy { subject: details.subject, expected: issuer.subject });
        }
        // GCT sends only the certificate; the chain is then the one from the handshake.
        if further.is_empty() {
            further.push(peer.to_owned());
            further.extend(chain.iter().cloned());
        }
        Ok(Credential::new(first, further, self.key)?)
    }
}

/// The side that delegates: signs a request (DER).
///
/// # Errors
/// The request cannot be read, is not signed with its own key or has a weak key, or `issuer` cannot
/// make such a proxy ([`create_proxy`]).
pub fn sign_request(
    issuer: &Credential,
    request: &[u8],
    terms: &ProxyTerms,
    now: Timestamp,
) -> Result<X509, DelegationError> {
    let request = X509Req::from_der(request).map_err(DelegationError::Request)?;
    let key = request.public_key().map_err(DelegationError::Request)?;
    let signed = request.verify(&key).unwrap_or(false);
    forget_errors();
    if !signed {
        return Err(DelegationError::RequestSignature);
    }
    // The proxy acts for the issuer, so an attacker who computes a weak key could do that too.
    if let Some((bits, least)) = keys::weakness(&key) {
        return Err(DelegationError::WeakKey { bits, least });
    }
    sign(issuer, &key, terms, now)
}

/// Makes a proxy of `issuer` with a key of its own, as `grid-proxy-init` does.
///
/// # Errors
/// `issuer` has expired, allows no further proxies, or is limited while `terms` are not; or OpenSSL
/// fails.
pub fn create_proxy(
    issuer: &Credential,
    bits: u32,
    terms: &ProxyTerms,
    now: Timestamp,
) -> Result<Credential, DelegationError> {
    let key = keys::rsa(bits)?;
    let public: PKey<Public> = PKey::public_key_from_der(&key.public_key_to_der()?)?;
    let certificate = sign(issuer, &public, terms, now)?;
    let mut chain = vec![issuer.certificate().clone()];
    chain.extend(issuer.chain().iter().cloned());
    Ok(Credential::new(certificate, chain, key)?)
}

fn sign(
    issuer: &Credential,
    key: &PKeyRef<Public>,
    terms: &ProxyTerms,
    now: Timestamp,
) -> Result<X509, DelegationError> {
    let above = issuer.details();
    let subject = || above.subject.clone();
    if above.not_after <= now {
        return Err(DelegationError::Expired { subject: subject(), since: above.not_after });
    }
    let rights = terms.kind.rights();
    let kind = match above.proxy {
        Some(parent) if parent.is_limited() && !matches!(rights, Rights::Limited | Rights::Independent) => {
            return Err(DelegationError::Limited { subject: subject() });
        }
        Some(parent) => parent.with_rights(rights),
        None => terms.kind,
    };
    if let Some(allowed @ 0) = above.path_length {
        return Err(DelegationError::PathLength { subject: subject(), allowed });
    }
    // At most one less than the issuer's path length, so that the chain is valid whatever the
    // request says.
    let path_length = match (terms.path_length, above.path_length.map(|length| length - 1)) {
        (Some(wanted), Some(left)) => Some(wanted.min(left)),
        (wanted, left) => wanted.or(left),
    };
    let number = serial(key)?;
    let mut builder = X509Builder::new()?;
    builder.set_version(2)?;
    let common_name = match kind {
        ProxyKind::Legacy { limited } => {
            builder.set_serial_number(issuer.certificate().serial_number())?;
            if limited { "limited proxy".to_owned() } else { "proxy".to_owned() }
        }
        _ => {
            builder.set_serial_number(&*Asn1Integer::from_bn(&*BigNum::from_u32(number)?)?)?;
            number.to_string()
        }
    };
    builder.set_issuer_name(issuer.certificate().subject_name())?;
    let subject = X509Name::from_der(&name::with_common_name(&above.subject_der, &common_name)?)?;
    builder.set_subject_name(&subject)?;
    let lifetime = i64::try_from(terms.lifetime).unwrap_or(i64::MAX);
    let end = now.0.saturating_add(lifetime).min(above.not_after.0);
    builder.set_not_before(&*Asn1Time::from_unix(now.0 - CLOCK_SKEW)?)?;
    builder.set_not_after(&*Asn1Time::from_unix(end)?)?;
    builder.set_pubkey(key)?;
    let policy = ProxyPolicy { rights, path_length };
    match kind {
        ProxyKind::Rfc3820(_) => {
            builder.append_extension(extension("1.3.6.1.5.5.7.1.14", true, &policy.encode(false))?)?;
        }
        ProxyKind::Draft(_) => {
            builder.append_extension(extension("1.3.6.1.4.1.3536.1.222", true, &policy.encode(true))?)?;
        }
        ProxyKind::Legacy { .. } => {}
    }
    copy_usage(&mut builder, above)?;
    builder.sign(issuer.key(), digest(issuer.certificate(), issuer.key()))?;
    Ok(builder.build())
}

/// Copies the key usage without the bits that proxies must not have (RFC 3820 section 3.7), and the
/// extended key usage unchanged.
fn copy_usage(builder: &mut X509Builder, above: &Details) -> Result<(), DelegationError> {
    const NON_REPUDIATION: u16 = 0x4000;
    const KEY_CERT_SIGN: u16 = 0x0400;
    if let Some(usage) = above.key_usage {
        let kept = usage & !(NON_REPUDIATION | KEY_CERT_SIGN);
        let octets = kept.to_be_bytes();
        let used = if octets[1] != 0 { 2 } else { 1 };
        let unused = if kept == 0 { 0 } else { octets[used - 1].trailing_zeros() as u8 };
        let mut content = vec![unused];
        content.extend_from_slice(&octets[..used]);
        builder.append_extension(extension("2.5.29.15", true, &der::element(der::BIT_STRING, &content))?)?;
    }
    if let Some(usage) = above.extension(oid::EXTENDED_KEY_USAGE) {
        builder.append_extension(extension("2.5.29.37", usage.critical, &usage.value)?)?;
    }
    Ok(())
}

/// Serial number and common name. They are derived from the key, so that two proxies of one issuer
/// differ.
fn serial<T: HasPublic>(key: &PKeyRef<T>) -> Result<u32, ErrorStack> {
    let hash = sha1(&key.public_key_to_der()?);
    Ok(u32::from_le_bytes([hash[0], hash[1], hash[2], hash[3] & 0x7f]))
}

/// The digest with which `issuer` itself is signed if it is a strong one, otherwise SHA-256.
fn digest(issuer: &X509Ref, key: &PKeyRef<Private>) -> MessageDigest {
    if matches!(key.id(), Id::ED25519 | Id::ED448) {
        return MessageDigest::null();
    }
    let signature = issuer.signature_algorithm().object().nid();
    match signature.signature_algorithms().map(|algorithms| algorithms.digest) {
        Some(Nid::SHA384) => MessageDigest::sha384(),
        Some(Nid::SHA512) => MessageDigest::sha512(),
        _ => MessageDigest::sha256(),
    }
}

/// Makes an extension from its dotted identifier and the DER of its value.
pub(crate) fn extension(oid: &str, critical: bool, value: &[u8]) -> Result<X509Extension, ErrorStack> {
    X509Extension::new_from_der(
        &*Asn1Object::from_str(oid)?,
        critical,
        &*Asn1OctetString::new_from_bytes(value)?,
    )
}
