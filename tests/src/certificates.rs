//! Makes certificates, valid and invalid ones. A step that fails fails the test.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use openssl::asn1::{Asn1Object, Asn1OctetString, Asn1Time};
use openssl::bn::{BigNum, MsbOption};
use openssl::ec::{EcGroup, EcKey};
use openssl::hash::MessageDigest;
use openssl::nid::Nid;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::x509::extension::{BasicConstraints, SubjectAlternativeName};
use openssl::x509::{
    X509, X509Builder, X509CrlBuilder, X509Extension, X509Name, X509NameBuilder, X509RevokedBuilder,
};

/// Days from now.
pub struct Made {
    pub from: i64,
    pub to: i64,
}

impl Default for Made {
    fn default() -> Self {
        Self { from: -1, to: 30 }
    }
}

pub struct Authority {
    certificate: X509,
    key: PKey<Private>,
    digest: MessageDigest,
    /// From the issuer to the root.
    between: Vec<X509>,
}

pub struct Credential {
    certificate: X509,
    key: PKey<Private>,
    /// From the issuer to the root.
    authorities: Vec<X509>,
}

fn key() -> PKey<Private> {
    let group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1).unwrap();
    PKey::from_ec_key(EcKey::generate(&group).unwrap()).unwrap()
}

fn name(common: &str) -> X509Name {
    let mut name = X509NameBuilder::new().unwrap();
    name.append_entry_by_text("O", "Test").unwrap();
    name.append_entry_by_text("CN", common).unwrap();
    name.build()
}

/// This many days from now.
fn day(days: i64) -> Asn1Time {
    Asn1Time::from_unix(now() + days * 86_400).unwrap()
}

fn now() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64
}

fn builder(subject: &str, issuer: &X509Name, key: &PKey<Private>, made: &Made) -> X509Builder {
    let mut builder = X509Builder::new().unwrap();
    builder.set_version(2).unwrap();
    // Revocation lists refer to certificates by serial number.
    let mut serial = BigNum::new().unwrap();
    serial.rand(64, MsbOption::ONE, false).unwrap();
    builder.set_serial_number(&serial.to_asn1_integer().unwrap()).unwrap();
    builder.set_subject_name(&name(subject)).unwrap();
    builder.set_issuer_name(issuer).unwrap();
    builder.set_pubkey(key).unwrap();
    builder.set_not_before(&day(made.from)).unwrap();
    builder.set_not_after(&day(made.to)).unwrap();
    builder
}

fn authority(
    subject: &str,
    issuer: &X509Name,
    key: &PKey<Private>,
    signer: &PKey<Private>,
    digest: MessageDigest,
) -> X509 {
    let mut builder = builder(subject, issuer, key, &Made { from: -400, to: 30 });
    builder.append_extension(BasicConstraints::new().critical().ca().build().unwrap()).unwrap();
    builder.sign(signer, digest).unwrap();
    builder.build()
}

impl Authority {
    pub fn new(subject: &str) -> Self {
        let (key, digest) = (key(), MessageDigest::sha256());
        let certificate = authority(subject, &name(subject), &key, &key, digest);
        Self { certificate, key, digest, between: Vec::new() }
    }

    /// An authority whose own certificate, and everything that it signs, uses this digest.
    pub fn signing_with(digest: MessageDigest) -> Self {
        let key = PKey::from_rsa(Rsa::generate(2048).unwrap()).unwrap();
        let certificate = authority("Test CA", &name("Test CA"), &key, &key, digest);
        Self { certificate, key, digest, between: Vec::new() }
    }

    /// An intermediate authority, with everything up to the root in the chain.
    pub fn below(&self, subject: &str) -> Self {
        let key = key();
        let issuer = self.certificate.subject_name().to_owned().unwrap();
        let certificate = authority(subject, &issuer, &key, &self.key, self.digest);
        let between = [std::slice::from_ref(&self.certificate), &self.between[..]].concat();
        Self { certificate, key, digest: self.digest, between }
    }

    /// A list of certificates that were revoked yesterday, in PEM; `made` has its first and last
    /// day.
    pub fn revoking(&self, revoked: &[&Credential], made: Made) -> Vec<u8> {
        let mut list = X509CrlBuilder::new().unwrap();
        list.set_issuer_name(self.certificate.subject_name()).unwrap();
        list.set_last_update(&day(made.from)).unwrap();
        list.set_next_update(&day(made.to)).unwrap();
        for credential in revoked {
            let mut entry = X509RevokedBuilder::new().unwrap();
            entry.set_serial_number(credential.certificate.serial_number()).unwrap();
            entry.set_revocation_date(&day(-1)).unwrap();
            list.add_revoked(entry.build()).unwrap();
        }
        // Authority key identifier and CRL number (RFC 5280 section 5.2), which OpenSSL's bindings
        // require for a list.
        for (oid, value) in [("2.5.29.35", &[0x30, 3, 0x80, 1, 7][..]), ("2.5.29.20", &[2, 1, 1])] {
            let (oid, value) =
                (Asn1Object::from_str(oid).unwrap(), Asn1OctetString::new_from_bytes(value).unwrap());
            list.append_extension(X509Extension::new_from_der(&oid, false, &value).unwrap()).unwrap();
        }
        list.sign(&self.key, self.digest).unwrap();
        list.build().unwrap().to_pem().unwrap()
    }

    /// The authority's own certificate and key.
    pub fn as_credential(&self) -> Credential {
        let authorities = self.between.clone();
        Credential { certificate: self.certificate.clone(), key: self.key.clone(), authorities }
    }

    /// The file name that `openssl rehash` gives this authority, without its suffix.
    pub fn hash(&self) -> String {
        format!("{:08x}", self.certificate.subject_name_hash())
    }

    /// A certificate for a server of this name.
    pub fn host(&self, host: &str, made: Made) -> Credential {
        let key = key();
        let issuer = self.certificate.subject_name().to_owned().unwrap();
        let mut builder = builder(host, &issuer, &key, &made);
        let alternatives = {
            let context = builder.x509v3_context(Some(&self.certificate), None);
            SubjectAlternativeName::new().dns(host).build(&context).unwrap()
        };
        builder.append_extension(alternatives).unwrap();
        builder.sign(&self.key, self.digest).unwrap();
        let authorities = [std::slice::from_ref(&self.certificate), &self.between[..]].concat();
        Credential { certificate: builder.build(), key, authorities }
    }
}

/// Signed with its own key.
pub fn self_signed(host: &str, made: Made) -> Credential {
    let key = key();
    let mut builder = builder(host, &name(host), &key, &made);
    builder.sign(&key, MessageDigest::sha256()).unwrap();
    let certificate = builder.build();
    Credential { authorities: vec![certificate.clone()], certificate, key }
}

impl Credential {
    /// Writes certificate and key to one file.
    pub fn write(&self, path: &Path) -> PathBuf {
        let key = self.key.private_key_to_pem_pkcs8().unwrap();
        let mut text = [self.certificate.to_pem().unwrap(), key].concat();
        // The verifier has the root already.
        for between in &self.authorities[..self.authorities.len() - 1] {
            text.extend(between.to_pem().unwrap());
        }
        fs::write(path, text).unwrap();
        fs::set_permissions(path, PermissionsExt::from_mode(0o600)).unwrap();
        path.to_owned()
    }

    pub fn authority_pem(&self) -> Vec<u8> {
        self.authorities.last().unwrap().to_pem().unwrap()
    }

    pub fn certificate(&self) -> &X509 {
        &self.certificate
    }

    pub fn key(&self) -> &PKey<Private> {
        &self.key
    }
}
