//! Object identifiers, as the content octets of their DER encoding.

/// proxyCertInfo, 1.3.6.1.5.5.7.1.14 (RFC 3820).
pub(crate) const PROXY_CERT_INFO: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 14];
/// proxyCertInfo of the drafts before RFC 3820, 1.3.6.1.4.1.3536.1.222.
pub(crate) const DRAFT_PROXY_CERT_INFO: &[u8] = &[0x2b, 6, 1, 4, 1, 0x9b, 0x50, 1, 0x81, 0x5e];
/// Policy language: everything that the issuer may do, 1.3.6.1.5.5.7.21.1.
pub(crate) const INHERIT_ALL: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 21, 1];
/// Policy language: none of the issuer's rights, 1.3.6.1.5.5.7.21.2.
pub(crate) const INDEPENDENT: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 21, 2];
/// Policy language: limited, 1.3.6.1.4.1.3536.1.1.1.9.
pub(crate) const LIMITED: &[u8] = &[0x2b, 6, 1, 4, 1, 0x9b, 0x50, 1, 1, 1, 9];
pub(crate) const COMMON_NAME: &[u8] = &[0x55, 4, 3];
pub(crate) const KEY_USAGE: &[u8] = &[0x55, 29, 15];
pub(crate) const SUBJECT_ALT_NAME: &[u8] = &[0x55, 29, 17];
pub(crate) const BASIC_CONSTRAINTS: &[u8] = &[0x55, 29, 19];
pub(crate) const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 29, 37];
pub(crate) const CERTIFICATE_POLICIES: &[u8] = &[0x55, 29, 32];
/// md5WithRSAEncryption and md2WithRSAEncryption.
pub(crate) const MD5_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 4];
pub(crate) const MD2_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 2];
/// VOMS attribute certificates, 1.3.6.1.4.1.8005.100.100.5, and their attribute, ...100.100.4.
pub(crate) const VOMS: &[u8] = &[0x2b, 6, 1, 4, 1, 0xbe, 0x45, 0x64, 0x64, 5];
pub(crate) const VOMS_FQANS: &[u8] = &[0x2b, 6, 1, 4, 1, 0xbe, 0x45, 0x64, 0x64, 4];
/// The certificates of the signers of a VOMS attribute certificate, ...100.100.10.
pub(crate) const VOMS_SIGNERS: &[u8] = &[0x2b, 6, 1, 4, 1, 0xbe, 0x45, 0x64, 0x64, 10];
/// The targets of an attribute certificate (targetInformation, RFC 5755 section 4.3.2), and the
/// mark that its issuer revokes none of them (noRevAvail, section 4.3.6).
pub(crate) const TARGETS: &[u8] = &[0x55, 29, 55];
pub(crate) const NO_REVOCATION: &[u8] = &[0x55, 29, 56];
pub(crate) const AUTHORITY_KEY: &[u8] = &[0x55, 29, 35];
/// sha1-, sha256-, sha384- and sha512WithRSAEncryption, and ecdsa-with-SHA256.
pub(crate) const SHA1_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5];
pub(crate) const SHA256_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11];
pub(crate) const SHA384_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12];
pub(crate) const SHA512_RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13];
pub(crate) const SHA256_ECDSA: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
