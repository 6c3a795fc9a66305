//! Decodes those fields of a certificate that proxies and policies need. A certificate whose
//! relevant fields cannot be decoded is refused; the decoder never panics.

use openssl::x509::X509Ref;

use crate::der::{self, DerError, Reader};
use crate::name;
use crate::oid;
use crate::proxy_info::{ProxyKind, ProxyPolicy};
use crate::time::Timestamp;

/// One extension of a certificate.
#[derive(Clone, Debug)]
pub(crate) struct Extension {
    /// Content octets of the OBJECT IDENTIFIER.
    pub oid: Vec<u8>,
    pub critical: bool,
    /// The extension's value in DER.
    pub value: Vec<u8>,
}

/// The decoded fields of a certificate (RFC 5280 section 4.1).
#[derive(Clone, Debug)]
pub struct Details {
    /// The subject in its one-line form, as is the issuer below.
    pub subject: String,
    pub issuer: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// The kind of proxy; `None` if the certificate is not a proxy.
    pub proxy: Option<ProxyKind>,
    /// How many proxies may follow this one; `None` if there is no limit.
    pub path_length: Option<u64>,
    /// Serial number, big endian, without sign.
    pub serial: Vec<u8>,
    /// Whether basic constraints mark it as an authority.
    pub authority: bool,
    /// Bits of keyUsage; bit 0 (digitalSignature) is the highest. `None` without the extension.
    pub(crate) key_usage: Option<u16>,
    pub(crate) subject_der: Vec<u8>,
    pub(crate) issuer_der: Vec<u8>,
    pub(crate) signature_algorithm: Vec<u8>,
    pub(crate) extensions: Vec<Extension>,
}

/// `digitalSignature` in [`Details::key_usage`].
pub(crate) const DIGITAL_SIGNATURE: u16 = 0x8000;

impl Details {
    /// Decodes a certificate.
    ///
    /// # Errors
    /// The encoding of the certificate, of a name, of a time or of a relevant extension cannot be
    /// read.
    pub fn of(certificate: &X509Ref) -> Result<Self, DerError> {
        let der = certificate.to_der().map_err(|_| DerError::Value)?;
        let mut details = parse(&der)?;
        details.subject = name::one_line(certificate.subject_name())?;
        details.issuer = name::one_line(certificate.issuer_name())?;
        Ok(details)
    }

    pub(crate) fn extension(&self, oid: &[u8]) -> Option<&Extension> {
        self.extensions.iter().find(|extension| extension.oid == oid)
    }

    pub fn is_self_issued(&self) -> bool {
        self.subject_der == self.issuer_der
    }

    /// Serial number as hexadecimal digits.
    pub fn serial_text(&self) -> String {
        self.serial.iter().map(|byte| format!("{byte:02X}")).collect()
    }
}

/// Decodes everything except the one-line names.
pub(crate) fn parse(der: &[u8]) -> Result<Details, DerError> {
    const VERSION: u8 = 0xa0;
    const EXTENSIONS: u8 = 0xa3;
    let mut outer = Reader::new(der);
    let mut certificate = outer.sequence()?;
    outer.end()?;
    let mut body = certificate.sequence()?;
    body.optional(VERSION)?;
    let serial = body.expect(der::INTEGER)?.content;
    let signature_algorithm = body.sequence()?.expect(der::OID)?.content.to_vec();
    let issuer_der = body.expect(der::SEQUENCE)?.whole.to_vec();
    let mut validity = body.sequence()?;
    let not_before = Timestamp::from_der(&validity.any()?)?;
    let not_after = Timestamp::from_der(&validity.any()?)?;
    let subject_der = body.expect(der::SEQUENCE)?.whole.to_vec();
    body.expect(der::SEQUENCE)?;
    let mut extensions = Vec::new();
    while !body.is_empty() {
        let element = body.any()?;
        if element.tag == EXTENSIONS {
            let mut wrapped = element.reader();
            let mut list = wrapped.sequence()?;
            while !list.is_empty() {
                extensions.push(extension(list.sequence()?)?);
            }
        }
    }
    let (proxy, path_length) = kind(&extensions, &issuer_der, &subject_der)?;
    let find = |oid: &[u8]| extensions.iter().find(|extension| extension.oid == oid);
    let authority = match find(oid::BASIC_CONSTRAINTS) {
        Some(extension) => {
            let mut fields = Reader::new(&extension.value).sequence()?;
            fields.optional(der::BOOLEAN)?.is_some_and(|flag| flag.content.first().is_some_and(|&b| b != 0))
        }
        None => false,
    };
    let key_usage = match find(oid::KEY_USAGE) {
        Some(extension) => Some(bits(&extension.value)?),
        None => None,
    };
    let serial = serial.strip_prefix(&[0]).filter(|rest| !rest.is_empty()).unwrap_or(serial).to_vec();
    Ok(Details {
        subject: String::new(),
        issuer: String::new(),
        not_before,
        not_after,
        proxy,
        path_length,
        serial,
        authority,
        key_usage,
        subject_der,
        issuer_der,
        signature_algorithm,
        extensions,
    })
}

fn extension(mut fields: Reader<'_>) -> Result<Extension, DerError> {
    let oid = fields.expect(der::OID)?.content.to_vec();
    let critical = fields.optional(der::BOOLEAN)?.is_some_and(|flag| flag.content.first() != Some(&0));
    let value = fields.expect(der::OCTET_STRING)?.content.to_vec();
    Ok(Extension { oid, critical, value })
}

/// The first 16 bits of a BIT STRING.
fn bits(value: &[u8]) -> Result<u16, DerError> {
    let content = Reader::new(value).expect(der::BIT_STRING)?.content;
    let octet = |at: usize| u16::from(content.get(at).copied().unwrap_or(0));
    if content.is_empty() { Err(DerError::Truncated) } else { Ok(octet(1) << 8 | octet(2)) }
}

type Kind = (Option<ProxyKind>, Option<u64>);

fn kind(extensions: &[Extension], issuer: &[u8], subject: &[u8]) -> Result<Kind, DerError> {
    let mut found = None;
    for extension in extensions {
        let draft = match extension.oid.as_slice() {
            oid::PROXY_CERT_INFO => false,
            oid::DRAFT_PROXY_CERT_INFO => true,
            _ => continue,
        };
        // Two extensions could disagree about what the bearer may do.
        if found.is_some() {
            return Err(DerError::Value);
        }
        let info = ProxyPolicy::parse(&extension.value)?;
        let kind = if draft { ProxyKind::Draft(info.rights) } else { ProxyKind::Rfc3820(info.rights) };
        found = Some((Some(kind), info.path_length));
    }
    if let Some(found) = found {
        return Ok(found);
    }
    if name::is_extended_by_common_name(issuer, subject) {
        let last = name::relative_names(subject)?.pop().and_then(name::common_name);
        match last {
            Some(b"proxy") => return Ok((Some(ProxyKind::Legacy { limited: false }), None)),
            Some(b"limited proxy") => return Ok((Some(ProxyKind::Legacy { limited: true }), None)),
            _ => {}
        }
    }
    Ok((None, None))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parse_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = super::parse(&bytes);
            let wrapped = crate::der::sequence(&[&crate::der::sequence(&[&crate::der::integer(3), &bytes])]);
            let _ = super::parse(&wrapped);
        }
    }
}
