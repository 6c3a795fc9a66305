//! Attribute certificates of VOMS in proxies (RFC 5755): groups and roles that a virtual
//! organisation grants. They are only displayed; no access is granted because of them.
//! [`VomsClaim::verify`] checks them.

use openssl::x509::X509;
use ropewalk_protocol::text::is_harmful;

use crate::certificate::Details;
use crate::der::{self, DerError, Element, Reader};
use crate::oid;
use crate::time::Timestamp;

/// The claims of one attribute certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VomsClaim {
    /// The VOMS server that issued the attributes, as `vo://host:port`, if it is named.
    pub authority: Option<String>,
    /// Groups and roles, such as `/atlas/Role=production/Capability=NULL`.
    pub fqans: Vec<String>,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub(crate) evidence: Evidence,
}

/// The data that is needed to verify a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// The signed bytes.
    pub info: Vec<u8>,
    /// Content of the algorithm's identifier.
    pub algorithm: Vec<u8>,
    pub signature: Vec<u8>,
    /// Names (encoded) and serial number of the holder's certificate.
    pub holder_names: Vec<Vec<u8>>,
    pub holder_serial: Vec<u8>,
    /// Certificates (DER) of the signer, its own first.
    pub signers: Vec<Vec<u8>>,
    /// Identifier of a critical extension that is not supported.
    pub critical: Option<Vec<u8>>,
}

/// The claims in a chain's certificates, unverified. Unreadable claims are skipped.
pub fn voms_claims(chain: &[X509]) -> Vec<VomsClaim> {
    let details = chain.iter().filter_map(|certificate| Details::of(certificate).ok());
    let mut claims = Vec::new();
    for details in details {
        if let Some(extension) = details.extension(oid::VOMS) {
            claims.extend(parse_voms(&extension.value).unwrap_or_default());
        }
    }
    claims
}

/// Parses the value of a VOMS extension: attribute certificates in sequences of sequences.
///
/// # Errors
/// The DER cannot be read, or does not contain attribute certificates.
pub fn parse_voms(value: &[u8]) -> Result<Vec<VomsClaim>, DerError> {
    let mut claims = Vec::new();
    let mut outer = Reader::new(value).sequence()?;
    while !outer.is_empty() {
        let mut list = outer.sequence()?;
        while !list.is_empty() {
            claims.push(claim(list.sequence()?)?);
        }
    }
    Ok(claims)
}

fn claim(mut certificate: Reader<'_>) -> Result<VomsClaim, DerError> {
    let whole = certificate.expect(der::SEQUENCE)?;
    let mut evidence = Evidence { info: whole.whole.to_vec(), ..Evidence::default() };
    let mut info = whole.reader();
    info.optional(der::INTEGER)?;
    holder(info.sequence()?, &mut evidence)?;
    // Skip issuer and algorithm; the algorithm is repeated before the signature.
    for _ in 0..2 {
        info.any()?;
    }
    info.expect(der::INTEGER)?;
    let mut validity = info.sequence()?;
    let not_before = Timestamp::from_der(&validity.any()?)?;
    let not_after = Timestamp::from_der(&validity.any()?)?;
    let fqans = Vec::new();
    let mut claim = VomsClaim { authority: None, fqans, not_before, not_after, evidence };
    let mut attributes = info.sequence()?;
    while !attributes.is_empty() {
        let mut attribute = attributes.sequence()?;
        if attribute.expect(der::OID)?.content != oid::VOMS_FQANS {
            continue;
        }
        let mut values = attribute.expect(der::SET)?.reader();
        while !values.is_empty() {
            syntax(values.sequence()?, &mut claim)?;
        }
    }
    info.optional(der::BIT_STRING)?;
    if let Some(extensions) = info.optional(der::SEQUENCE)? {
        let mut extensions = extensions.reader();
        while !extensions.is_empty() {
            let mut extension = extensions.sequence()?;
            let kind = extension.expect(der::OID)?.content;
            let critical = extension.optional(der::BOOLEAN)?.is_some_and(|value| value.content != [0]);
            if kind == oid::VOMS_SIGNERS {
                signers(extension.expect(der::OCTET_STRING)?.content, &mut claim.evidence)?;
            } else if critical && ![oid::NO_REVOCATION, oid::AUTHORITY_KEY].contains(&kind) {
                claim.evidence.critical = Some(kind.to_vec());
            }
        }
    }
    // Without a signature, the claim can be displayed but not verified.
    if !certificate.is_empty() {
        claim.evidence.algorithm = certificate.sequence()?.expect(der::OID)?.content.to_vec();
        let signature = certificate.expect(der::BIT_STRING)?.content;
        claim.evidence.signature = signature.get(1..).ok_or(DerError::Truncated)?.to_vec();
    }
    Ok(claim)
}

/// The holder of the attributes, identified by issuer and serial number of the holder's
/// certificate.
fn holder(mut fields: Reader<'_>, evidence: &mut Evidence) -> Result<(), DerError> {
    const BASE_CERTIFICATE: u8 = 0xa0;
    const DIRECTORY_NAME: u8 = 0xa4;
    let Some(base) = fields.optional(BASE_CERTIFICATE)? else { return Ok(()) };
    let mut base = base.reader();
    let mut names = base.sequence()?;
    while !names.is_empty() {
        let name = names.any()?;
        if name.tag == DIRECTORY_NAME {
            evidence.holder_names.push(name.content.to_vec());
        }
    }
    let serial = base.expect(der::INTEGER)?.content;
    evidence.holder_serial =
        serial.strip_prefix(&[0]).filter(|rest| !rest.is_empty()).unwrap_or(serial).to_vec();
    Ok(())
}

fn signers(value: &[u8], evidence: &mut Evidence) -> Result<(), DerError> {
    let mut outer = Reader::new(value).sequence()?;
    let mut list = outer.sequence()?;
    while !list.is_empty() {
        evidence.signers.push(list.expect(der::SEQUENCE)?.whole.to_vec());
    }
    Ok(())
}

/// IetfAttrSyntax: the issuer of the attributes and their values.
fn syntax(mut fields: Reader<'_>, claim: &mut VomsClaim) -> Result<(), DerError> {
    const AUTHORITY: u8 = 0xa0;
    const URI: u8 = 0x86;
    if let Some(names) = fields.optional(AUTHORITY)? {
        let mut names = names.reader();
        while !names.is_empty() {
            let name = names.any()?;
            if name.tag == URI {
                claim.authority = Some(text(&name));
            }
        }
    }
    let mut values = fields.sequence()?;
    while !values.is_empty() {
        let value = values.any()?;
        if value.tag == der::OCTET_STRING {
            claim.fqans.push(text(&value));
        }
    }
    Ok(())
}

/// Removes control characters and those that change the direction of text, because the text is
/// displayed.
fn text(element: &Element<'_>) -> String {
    let text = String::from_utf8_lossy(element.content);
    text.chars().filter(|letter| !is_harmful(*letter)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;
    use crate::der::{element, integer, sequence};

    #[test]
    fn parse_returns_groups_and_roles_without_control_characters() {
        let times = [b"20260101000000Z", b"20260102000000Z"].map(|time| element(der::GENERALIZED_TIME, time));
        let authority = element(0xa0, &element(0x86, b"atlas://voms.example.org:15001"));
        let groups = [&b"/atlas"[..], "/atlas/Role=\u{202e}production\n".as_bytes()]
            .map(|fqan| element(der::OCTET_STRING, fqan));
        let syntax = sequence(&[&authority, &sequence(&[&groups[0], &groups[1]])]);
        let attribute = sequence(&[&element(der::OID, oid::VOMS_FQANS), &element(der::SET, &syntax)]);
        let info = sequence(&[
            &integer(1),
            &sequence(&[]),
            &element(0xa0, &[]),
            &sequence(&[]),
            &integer(7),
            &sequence(&[&times[0], &times[1]]),
            &sequence(&[&attribute]),
        ]);
        let value = sequence(&[&sequence(&[&sequence(&[&info])])]);
        let claims = parse_voms(&value).unwrap();
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0].authority.as_deref(), Some("atlas://voms.example.org:15001"));
        assert_eq!(claims[0].fqans, ["/atlas", "/atlas/Role=production"]);
    }

    proptest! {
        #[test]
        fn parse_any_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_voms(&bytes);
            let _ = parse_voms(&sequence(&[&sequence(&[&sequence(&[&bytes])])]));
        }
    }
}
