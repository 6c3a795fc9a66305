//! The security context of a data channel (`DCSC P` of GCT). The client sends one credential to
//! both servers of a third-party transfer. The servers then accept each other even if their own
//! log-ins differ.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::{BigNum, MsbOption};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::PKey;
use openssl::rsa::Rsa;
use openssl::x509::{X509Builder, X509NameBuilder};
use zeroize::Zeroizing;

use crate::credential::{Credential, CredentialError};
use crate::delegation::{DelegationError, ProxyTerms, create_proxy};
use crate::proxy_info::{ProxyKind, Rights};
use crate::time::Timestamp;
use crate::tls::{Identity, TlsSettings};
use crate::trust::Trust;

/// Longest accepted argument of DCSC, in bytes.
const MAX_ARGUMENT: usize = 256 << 10;

/// Why there is no context.
#[derive(Debug, thiserror::Error)]
pub enum DcscError {
    #[error("DCSC: the credential is no base64, or longer than {MAX_ARGUMENT} bytes")]
    Encoding,
    #[error("DCSC: {0}")]
    Credential(#[from] CredentialError),
    #[error("DCSC: {0}")]
    Delegation(#[from] DelegationError),
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// Decodes the argument of `DCSC P`: base64 of PEM.
///
/// # Errors
/// The argument is too long or not base64, or its content is not a credential or has an encrypted
/// key.
pub fn parse(argument: &str) -> Result<Credential, DcscError> {
    let argument = argument.trim();
    if argument.len() > MAX_ARGUMENT {
        return Err(DcscError::Encoding);
    }
    let text = Zeroizing::new(STANDARD.decode(argument).map_err(|_| DcscError::Encoding)?);
    Ok(Credential::from_pem(&text, &mut |_| None)?)
}

/// Encodes a credential as the argument of `DCSC P`. The result contains the private key, so it
/// must travel encrypted and never reach a log.
///
/// # Errors
/// The same errors as [`Credential::to_pem`].
pub fn encode(credential: &Credential) -> Result<Zeroizing<String>, DcscError> {
    let mut text = credential.to_pem()?;
    // GCT trusts the certificates after the key, so without a chain the certificate itself is
    // repeated there.
    if credential.chain().is_empty() {
        let again = credential.certificate().to_pem()?;
        text = Zeroizing::new([text.as_slice(), &again].concat());
    }
    Ok(Zeroizing::new(STANDARD.encode(&*text)))
}

/// Returns the credential to send to a server on behalf of `issuer`: a limited proxy with a key of
/// its own and the authorities above it. The issuer's key stays here, and the server may not know
/// the authorities. A self-issued credential is sent as it is.
///
/// # Errors
/// `issuer` has expired or allows no further proxies, or OpenSSL fails.
pub fn for_server(issuer: &Credential, trust: &Trust) -> Result<Credential, DcscError> {
    if issuer.details().is_self_issued() {
        return Ok(issuer.clone());
    }
    let terms = ProxyTerms { kind: ProxyKind::Rfc3820(Rights::Limited), ..ProxyTerms::default() };
    let proxy = create_proxy(issuer, 2048, &terms, Timestamp::now())?;
    let mut chain = proxy.chain().to_vec();
    let last = chain.last().unwrap_or(proxy.certificate());
    chain.extend(trust.above(last));
    Ok(Credential::new(proxy.certificate().clone(), chain, proxy.key().clone())?)
}

/// Makes a new self-signed credential, as globus-url-copy does with `-data-cred auto`, but signed
/// with SHA-256. `lifetime` is in seconds.
///
/// # Errors
/// OpenSSL cannot make the key or the certificate.
pub fn self_signed(lifetime: u64) -> Result<Credential, DcscError> {
    let key = PKey::from_rsa(Rsa::generate(2048)?)?;
    let mut name = X509NameBuilder::new()?;
    name.append_entry_by_text("C", "US")?;
    name.append_entry_by_text("CN", "Globus DCSC Cert")?;
    let name = name.build();
    let mut serial = BigNum::new()?;
    serial.rand(63, MsbOption::ONE, false)?;
    let now = Timestamp::now().0;
    let mut builder = X509Builder::new()?;
    builder.set_version(2)?;
    builder.set_serial_number(&*Asn1Integer::from_bn(&serial)?)?;
    builder.set_subject_name(&name)?;
    builder.set_issuer_name(&name)?;
    builder.set_not_before(&*Asn1Time::from_unix(now - 300)?)?;
    let end = now.saturating_add(i64::try_from(lifetime).unwrap_or(i64::MAX)).min(now + 366 * 86_400);
    builder.set_not_after(&*Asn1Time::from_unix(end)?)?;
    builder.set_pubkey(&key)?;
    builder.sign(&key, MessageDigest::sha256())?;
    Ok(Credential::new(builder.build(), Vec::new(), key)?)
}

/// Returns the context. It trusts the credential's own certificates in addition to `trust`, without
/// signing policies. MD5 signatures are allowed because globus-url-copy makes them. The peer must
/// be [`Credential::identity`] (DCAU A) or the subject of DCAU S.
///
/// # Errors
/// The same errors as [`Identity::new`].
pub fn identity(
    credential: Credential,
    trust: Option<&Trust>,
    settings: &TlsSettings,
) -> Result<Identity, DcscError> {
    let base = trust.cloned().unwrap_or_else(|| Trust::anchors(Vec::new()));
    let mut anchors = vec![credential.certificate().clone()];
    anchors.extend(credential.chain().iter().cloned());
    let settings = TlsSettings { security_level: 0, ..settings.clone() };
    let trust = base.with_anchors(anchors).allow_md5(true);
    Ok(Identity::new(Arc::new(credential), Arc::new(trust), &settings)?)
}
