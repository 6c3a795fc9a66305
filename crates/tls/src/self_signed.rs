//! Self-signed certificates for servers that have no other one.

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use openssl::asn1::Asn1Time;
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::PKey;
use openssl::x509::extension::{BasicConstraints, ExtendedKeyUsage, KeyUsage, SubjectAlternativeName};
use openssl::x509::{X509Builder, X509NameBuilder};
use ropewalk_files::OnDisk;
use zeroize::Zeroizing;

use crate::certificate::CertificateError;

/// Validity in days. Clients remember the fingerprint, so a new certificate would only alarm users.
const VALID: u32 = 3653;
/// The longest common name, in characters (RFC 5280, ub-common-name).
const LONGEST_NAME: usize = 64;

/// Certificate and key in PEM.
pub type SelfSigned = Zeroizing<Vec<u8>>;

/// Makes a self-signed certificate (ECDSA P-256, ten years) for these host names and addresses.
///
/// # Errors
/// A name cannot be put into a certificate, or OpenSSL cannot make the key.
pub fn make(hosts: &[String]) -> Result<SelfSigned, ErrorStack> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    let key = PKey::from_ec_key(EcKey::generate(&group)?)?;
    let mut name = X509NameBuilder::new()?;
    let first = hosts.iter().find(|host| host.len() <= LONGEST_NAME).map_or("ropewalk", String::as_str);
    name.append_entry_by_nid(Nid::COMMONNAME, first)?;
    let name = name.build();
    let mut serial = BigNum::new()?;
    serial.rand(127, MsbOption::MAYBE_ZERO, false)?;
    let mut builder = X509Builder::new()?;
    builder.set_version(2)?;
    builder.set_serial_number(&*serial.to_asn1_integer()?)?;
    builder.set_subject_name(&name)?;
    builder.set_issuer_name(&name)?;
    builder.set_pubkey(&key)?;
    builder.set_not_before(&*Asn1Time::days_from_now(0)?)?;
    builder.set_not_after(&*Asn1Time::days_from_now(VALID)?)?;
    builder.append_extension(BasicConstraints::new().critical().build()?)?;
    builder.append_extension(KeyUsage::new().critical().digital_signature().build()?)?;
    builder.append_extension(ExtendedKeyUsage::new().server_auth().build()?)?;
    let mut alternatives = SubjectAlternativeName::new();
    for host in hosts {
        match host.parse::<IpAddr>() {
            Ok(address) => alternatives.ip(&address.to_string()),
            Err(_) => alternatives.dns(host),
        };
    }
    if !hosts.is_empty() {
        let extension = alternatives.build(&builder.x509v3_context(None, None))?;
        builder.append_extension(extension)?;
    }
    builder.sign(&key, MessageDigest::sha256())?;
    let mut pem = Zeroizing::new(builder.build().to_pem()?);
    let key = Zeroizing::new(key.private_key_to_pem_pkcs8()?);
    pem.extend_from_slice(&key);
    Ok(pem)
}

/// Makes sure that `path` has a self-signed certificate and key. If there is no file, the function
/// makes one for `hosts` and returns `true`. If several servers start at once, only one makes the
/// file.
///
/// # Errors
/// The file cannot be accessed or written, or its directory cannot be created; or the errors of
/// [`make`].
pub fn load_or_make(path: &Path, hosts: &[String]) -> Result<bool, CertificateError> {
    let failed = |source| CertificateError::Read { path: path.to_owned(), source };
    match fs::metadata(path) {
        Ok(_) => return Ok(false),
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(failed(e)),
    }
    let wrong = |source| CertificateError::OpenSsl { what: "making a certificate".to_owned(), source };
    let pem = make(hosts).map_err(wrong)?;
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    }
    ropewalk_files::create(path, &pem, 0o600, OnDisk::Now).map_err(failed)
}
