//! Object identifiers, as the content octets of their DER encoding.

use der::asn1::ObjectIdentifier;

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident = $dotted:literal;)*) => {$(
        $(#[$doc])*
        pub(crate) const $name: &[u8] = {
            const IDENTIFIER: ObjectIdentifier = ObjectIdentifier::new_unwrap($dotted);
            IDENTIFIER.as_bytes()
        };
    )*};
}

identifiers! {
    /// proxyCertInfo (RFC 3820).
    PROXY_CERT_INFO = "1.3.6.1.5.5.7.1.14";
    /// proxyCertInfo of the drafts before RFC 3820.
    DRAFT_PROXY_CERT_INFO = "1.3.6.1.4.1.3536.1.222";
    /// Policy language: everything that the issuer may do.
    INHERIT_ALL = "1.3.6.1.5.5.7.21.1";
    /// Policy language: none of the issuer's rights.
    INDEPENDENT = "1.3.6.1.5.5.7.21.2";
    /// Policy language: limited.
    LIMITED = "1.3.6.1.4.1.3536.1.1.1.9";
    COMMON_NAME = "2.5.4.3";
    KEY_USAGE = "2.5.29.15";
    SUBJECT_ALT_NAME = "2.5.29.17";
    BASIC_CONSTRAINTS = "2.5.29.19";
    CERTIFICATE_POLICIES = "2.5.29.32";
    AUTHORITY_KEY = "2.5.29.35";
    EXTENDED_KEY_USAGE = "2.5.29.37";
    /// The targets of an attribute certificate (targetInformation, RFC 5755 section 4.3.2).
    TARGETS = "2.5.29.55";
    /// The mark that the issuer of an attribute certificate revokes none (noRevAvail, RFC 5755
    /// section 4.3.6).
    NO_REVOCATION = "2.5.29.56";
    /// VOMS attribute certificates.
    VOMS = "1.3.6.1.4.1.8005.100.100.5";
    /// The attribute of a VOMS attribute certificate.
    VOMS_FQANS = "1.3.6.1.4.1.8005.100.100.4";
    /// The certificates of the signers of a VOMS attribute certificate.
    VOMS_SIGNERS = "1.3.6.1.4.1.8005.100.100.10";
    /// md2WithRSAEncryption.
    MD2_RSA = "1.2.840.113549.1.1.2";
    /// md5WithRSAEncryption.
    MD5_RSA = "1.2.840.113549.1.1.4";
    /// sha1WithRSAEncryption.
    SHA1_RSA = "1.2.840.113549.1.1.5";
    /// sha256WithRSAEncryption.
    SHA256_RSA = "1.2.840.113549.1.1.11";
    /// sha384WithRSAEncryption.
    SHA384_RSA = "1.2.840.113549.1.1.12";
    /// sha512WithRSAEncryption.
    SHA512_RSA = "1.2.840.113549.1.1.13";
    /// ecdsa-with-SHA256.
    SHA256_ECDSA = "1.2.840.10045.4.3.2";
}
