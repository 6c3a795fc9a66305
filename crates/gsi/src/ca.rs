//! A small certificate authority for a site that has none. It lives in a directory of its own and
//! issues host and user certificates, a signing policy, a revocation list and grid-mapfile lines.
//! The directory is created with access for its owner only; the key file can be encrypted. Files
//! are replaced atomically.

use std::fmt::Write as _;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use openssl::asn1::{Asn1Integer, Asn1Time};
use openssl::bn::{BigNum, MsbOption};
use openssl::error::ErrorStack;
use openssl::hash::MessageDigest;
use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;
use openssl::sha::sha1;
use openssl::symm::Cipher;
use openssl::x509::{
    X509, X509Builder, X509CrlBuilder, X509Name, X509NameBuilder, X509Ref, X509RevokedBuilder,
};
use ropewalk_files::OnDisk;
use zeroize::Zeroizing;

use crate::credential::{AskPassphrase, Credential, CredentialError};
use crate::delegation::extension;
use crate::der;
use crate::name;
use crate::signing_policy::{MAX_FILE, SigningPolicy};
use crate::time::Timestamp;

const DAY: i64 = 86_400;
const CERTIFICATE: &str = "cacert.pem";
const KEY: &str = "cakey.pem";
/// Name of the file with the revoked certificates. Each line has a serial number (hexadecimal) and
/// a time (seconds since 1970).
const REVOKED: &str = "revoked";
/// Name of the file with the prefix of all subjects of the site.
const NAMESPACE: &str = "namespace";

/// Why an operation of the authority failed.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error("{path} is there already; a new authority would make its certificates worthless")]
    Exists { path: PathBuf },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("{path}, line {line}: a serial number and a time were expected")]
    Revoked { path: PathBuf, line: usize },
    #[error("{text:?} is no name as /O=Grid/OU=site: {reason}")]
    Name { text: String, reason: &'static str },
    #[error("a host certificate wants at least one host name")]
    NoHost,
    #[error("{text:?} is no host name")]
    Host { text: String },
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// Settings of a new authority.
#[derive(Clone, Debug)]
pub struct CaOptions {
    /// Prefix of the subjects of its certificates, such as `/O=Grid/OU=example.org`.
    pub namespace: String,
    /// The common name of the authority itself, under the namespace.
    pub common_name: String,
    pub days: u32,
    /// Size of its RSA key, in bits.
    pub bits: u32,
    /// If set, the key file is encrypted with this passphrase.
    pub passphrase: Option<Zeroizing<String>>,
}

/// An authority in a directory of its own.
pub struct Ca {
    directory: PathBuf,
    credential: Credential,
    namespace: String,
}

impl std::fmt::Debug for Ca {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ca").field("directory", &self.directory).field("namespace", &self.namespace).finish()
    }
}

impl Ca {
    /// Creates an authority in `directory`. The directory is created too, with access for its owner
    /// only.
    ///
    /// # Errors
    /// An authority exists there already, its name is not a valid subject, or its key, directory or
    /// a file cannot be created.
    pub fn create(directory: &Path, options: &CaOptions) -> Result<Self, CaError> {
        let certificate_path = directory.join(CERTIFICATE);
        if certificate_path.exists() {
            return Err(CaError::Exists { path: certificate_path });
        }
        let subject = distinguished_name(&options.namespace, &options.common_name)?;
        let failed = |source| CaError::File { path: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let key = PKey::from_rsa(Rsa::generate(options.bits)?)?;
        let mut builder = begin(&subject, &subject, &key, options.days, None)?;
        // Basic constraints say `cA`; the key may only sign certificates and revocation lists.
        let ca = der::sequence(&[&der::element(der::BOOLEAN, &[0xff])]);
        builder.append_extension(extension("2.5.29.19", true, &ca)?)?;
        builder.append_extension(extension(
            "2.5.29.15",
            true,
            &der::element(der::BIT_STRING, &[1, 0x06]),
        )?)?;
        builder.sign(&key, MessageDigest::sha256())?;
        let certificate = builder.build();
        let text = private_pem(&key, options.passphrase.as_ref().map(|phrase| phrase.as_str()))?;
        put(&directory.join(KEY), &text, 0o600)?;
        put(&directory.join(NAMESPACE), options.namespace.as_bytes(), 0o644)?;
        put(&certificate_path, &certificate.to_pem()?, 0o644)?;
        let credential = Credential::new(certificate, Vec::new(), key)?;
        Ok(Self { directory: directory.to_owned(), credential, namespace: options.namespace.clone() })
    }

    /// Opens an existing authority.
    ///
    /// # Errors
    /// The same errors as [`Credential::load_pair`]; or the file with the namespace cannot be read.
    pub fn open(directory: &Path, ask: AskPassphrase<'_>) -> Result<Self, CaError> {
        let credential = Credential::load_pair(&directory.join(CERTIFICATE), &directory.join(KEY), ask)?;
        let path = directory.join(NAMESPACE);
        let namespace = ropewalk_files::read_text(&path, MAX_FILE as u64)
            .map_err(|source| CaError::File { path, source })?
            .trim()
            .to_owned();
        Ok(Self { directory: directory.to_owned(), credential, namespace })
    }

    pub fn certificate(&self) -> &X509 {
        self.credential.certificate()
    }

    /// The subject in its one-line form.
    pub fn subject(&self) -> &str {
        self.credential.subject()
    }

    /// Issues a certificate and key for a person.
    ///
    /// # Errors
    /// The common name does not have 1 to 64 characters, is reserved for proxies, or OpenSSL fails.
    pub fn issue_user(&self, common_name: &str, days: u32) -> Result<Credential, CaError> {
        self.issue(common_name, days, &[])
    }

    /// Issues a certificate and key for a server under these names; the first is its common name.
    ///
    /// # Errors
    /// `hosts` is empty, a name is not a host name, the first name is too long for a common name,
    /// or OpenSSL fails.
    pub fn issue_host(&self, hosts: &[&str], days: u32) -> Result<Credential, CaError> {
        const DNS_NAME: u8 = 0x82;
        const IP_ADDRESS: u8 = 0x87;
        // Both serverAuth and clientAuth, because on data connections the server may be the side
        // that connects.
        const USES: [&[u8]; 2] = [&[0x2b, 6, 1, 5, 5, 7, 3, 1], &[0x2b, 6, 1, 5, 5, 7, 3, 2]];
        let first = hosts.first().ok_or(CaError::NoHost)?;
        let mut names = Vec::new();
        for host in hosts {
            names.extend(match host.parse::<std::net::IpAddr>() {
                Ok(std::net::IpAddr::V4(address)) => der::element(IP_ADDRESS, &address.octets()),
                Ok(std::net::IpAddr::V6(address)) => der::element(IP_ADDRESS, &address.octets()),
                Err(_) if !is_host_name(host) => return Err(CaError::Host { text: (*host).to_owned() }),
                Err(_) => der::element(DNS_NAME, host.as_bytes()),
            });
        }
        let uses = USES.map(|usage| der::element(der::OID, usage)).concat();
        let names = der::element(der::SEQUENCE, &names);
        let uses = der::element(der::SEQUENCE, &uses);
        self.issue(first, days, &[("2.5.29.17", &names), ("2.5.29.37", &uses)])
    }

    fn issue(
        &self,
        common_name: &str,
        days: u32,
        extensions: &[(&str, &[u8])],
    ) -> Result<Credential, CaError> {
        let subject = distinguished_name(&self.namespace, common_name)?;
        let key = PKey::from_rsa(Rsa::generate(2048)?)?;
        let issuer = self.certificate();
        let mut builder = begin(&subject, issuer.subject_name(), &key, days, Some(issuer))?;
        builder.append_extension(extension("2.5.29.19", true, &der::sequence(&[]))?)?;
        // digitalSignature and keyEncipherment.
        let usage = der::element(der::BIT_STRING, &[5, 0xa0]);
        builder.append_extension(extension("2.5.29.15", true, &usage)?)?;
        for (oid, value) in extensions {
            builder.append_extension(extension(oid, false, value)?)?;
        }
        builder.sign(self.credential.key(), MessageDigest::sha256())?;
        Ok(Credential::new(builder.build(), Vec::new(), key)?)
    }

    /// Adds a certificate to the file of revoked certificates. [`Ca::install`] publishes the new
    /// list.
    ///
    /// # Errors
    /// The file of revoked certificates cannot be read or replaced.
    pub fn revoke(&self, certificate: &X509Ref) -> Result<(), CaError> {
        let path = self.directory.join(REVOKED);
        let serial = certificate.serial_number().to_bn()?.to_hex_str()?.to_string();
        let mut text = self.revoked_text()?;
        if !text.lines().any(|line| line.split_whitespace().next() == Some(serial.as_str())) {
            let _ = writeln!(text, "{serial} {}", Timestamp::now().0);
        }
        put(&path, text.as_bytes(), 0o644)
    }

    fn revoked_text(&self) -> Result<String, CaError> {
        let path = self.directory.join(REVOKED);
        match ropewalk_files::read_text(&path, MAX_FILE as u64) {
            Ok(text) => Ok(text),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(source) => Err(CaError::File { path, source }),
        }
    }

    /// Returns the list of revoked certificates as PEM. It is valid for `days` days from now.
    ///
    /// # Errors
    /// The file of revoked certificates cannot be read or has an invalid line, or OpenSSL cannot
    /// make the list.
    pub fn revocation_list(&self, days: u32) -> Result<Vec<u8>, CaError> {
        let now = Timestamp::now().0;
        self.revocation_list_of(now - 300, now + i64::from(days) * DAY)
    }

    /// Returns a revocation list that was issued at `made` and is valid until `end` (seconds since
    /// 1970).
    pub(crate) fn revocation_list_of(&self, made: i64, end: i64) -> Result<Vec<u8>, CaError> {
        let mut list = X509CrlBuilder::new()?;
        list.set_issuer_name(self.certificate().subject_name())?;
        list.set_last_update(&*Asn1Time::from_unix(made)?)?;
        list.set_next_update(&*Asn1Time::from_unix(end)?)?;
        for (index, line) in self.revoked_text()?.lines().enumerate() {
            let wrong = || CaError::Revoked { path: self.directory.join(REVOKED), line: index + 1 };
            let (serial, time) = line.split_once(' ').ok_or_else(wrong)?;
            let time: i64 = time.trim().parse().map_err(|_| wrong())?;
            let mut entry = X509RevokedBuilder::new()?;
            entry.set_serial_number(&*Asn1Integer::from_bn(&*BigNum::from_hex_str(serial)?)?)?;
            entry.set_revocation_date(&*Asn1Time::from_unix(time)?)?;
            list.add_revoked(entry.build())?;
        }
        list.append_extension(key_reference(self.certificate())?)?;
        let number = der::integer(u64::try_from(made).unwrap_or(0));
        list.append_extension(extension("2.5.29.20", false, &number)?)?;
        list.sort()?;
        list.sign(self.credential.key(), MessageDigest::sha256())?;
        Ok(list.build()?.to_pem()?)
    }

    /// The signing policy of this authority: it may sign all subjects under its namespace.
    pub fn signing_policy(&self) -> String {
        SigningPolicy::write(self.subject(), &[format!("{}/*", self.namespace)])
    }

    /// Installs the certificate, the signing policy and a revocation list for `days` days into a
    /// directory of trusted authorities. Returns the hash that the file names begin with.
    ///
    /// # Errors
    /// The same errors as [`Ca::revocation_list`]; or the directory or a file in it cannot be
    /// written.
    pub fn install(&self, directory: &Path, days: u32) -> Result<String, CaError> {
        let failed = |source| CaError::File { path: directory.to_owned(), source };
        DirBuilder::new().recursive(true).mode(0o755).create(directory).map_err(failed)?;
        let hash = format!("{:08x}", self.certificate().subject_name_hash());
        put(&directory.join(format!("{hash}.signing_policy")), self.signing_policy().as_bytes(), 0o644)?;
        put(&directory.join(format!("{hash}.r0")), &self.revocation_list(days)?, 0o644)?;
        put(&directory.join(format!("{hash}.0")), &self.certificate().to_pem()?, 0o644)?;
        Ok(hash)
    }
}

/// Writes a credential as two files: certificate (mode 0644) and key (mode 0600).
///
/// # Errors
/// A file cannot be written, or OpenSSL cannot encode its content.
pub fn write_pair(credential: &Credential, certificate: &Path, key: &Path) -> Result<(), CaError> {
    write_encrypted_pair(credential, certificate, key, None)
}

/// Like [`write_pair`], but encrypts the key if there is a passphrase.
///
/// # Errors
/// The same errors as [`write_pair`]; or the key cannot be encrypted.
pub fn write_encrypted_pair(
    credential: &Credential,
    certificate: &Path,
    key: &Path,
    passphrase: Option<&str>,
) -> Result<(), CaError> {
    put(key, &private_pem(credential.key(), passphrase)?, 0o600)?;
    put(certificate, &credential.certificate().to_pem()?, 0o644)
}

/// Formats a line of a grid-mapfile: `"/O=Grid/CN=Somebody" account`.
pub fn gridmap_line(subject: &str, accounts: &[&str]) -> String {
    let escaped = subject.replace('\\', "\\\\").replace('"', "\\\"");
    format!("\"{escaped}\" {}", accounts.join(","))
}

fn private_pem(key: &PKey<Private>, passphrase: Option<&str>) -> Result<Zeroizing<Vec<u8>>, ErrorStack> {
    Ok(Zeroizing::new(match passphrase {
        Some(phrase) => key.private_key_to_pem_pkcs8_passphrase(Cipher::aes_256_cbc(), phrase.as_bytes())?,
        None => key.private_key_to_pem_pkcs8()?,
    }))
}

fn put(path: &Path, content: &[u8], mode: u32) -> Result<(), CaError> {
    ropewalk_files::replace(path, content, mode, OnDisk::Now)
        .map_err(|source| CaError::File { path: path.to_owned(), source })
}

fn is_host_name(text: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_*".contains(&byte))
    };
    text.len() < 254 && text.split('.').all(label)
}

/// Builds a subject from a namespace in one-line form and a common name. The common name may
/// contain slashes.
fn distinguished_name(namespace: &str, common_name: &str) -> Result<X509Name, CaError> {
    let wrong = |reason| CaError::Name { text: namespace.to_owned(), reason };
    let mut builder = X509NameBuilder::new()?;
    let rest = namespace.strip_prefix('/').ok_or_else(|| wrong("it does not begin with a slash"))?;
    for part in rest.split('/') {
        let (kind, value) = part.split_once('=').ok_or_else(|| wrong("a part has no `=`"))?;
        builder
            .append_entry_by_text(kind, value)
            .map_err(|_| wrong("an attribute is unknown or too long"))?;
    }
    let wrong = |reason| CaError::Name { text: common_name.to_owned(), reason };
    builder
        .append_entry_by_text("CN", common_name)
        .map_err(|_| wrong("a common name has 1 to 64 characters"))?;
    let name = builder.build();
    // Certificates with a reserved common name would be taken for proxies.
    let reserved = matches!(common_name, "proxy" | "limited proxy");
    if reserved || name::one_line(&name).is_ok_and(|line| line.contains("\\x00")) {
        return Err(wrong("this common name is reserved"));
    }
    Ok(name)
}

/// Starts a certificate with the fields that all certificates of the authority have.
fn begin(
    subject: &X509Name,
    issuer: &openssl::x509::X509NameRef,
    key: &PKey<Private>,
    days: u32,
    authority: Option<&X509Ref>,
) -> Result<X509Builder, CaError> {
    let now = Timestamp::now().0;
    let mut serial = BigNum::new()?;
    serial.rand(127, MsbOption::ONE, false)?;
    let mut end = now + i64::from(days) * DAY;
    if let Some(authority) = authority {
        let details = crate::Details::of(authority)
            .map_err(|source| CredentialError::Certificate { place: "the authority".to_owned(), source })?;
        end = end.min(details.not_after.0);
    }
    let mut builder = X509Builder::new()?;
    builder.set_version(2)?;
    builder.set_serial_number(&*Asn1Integer::from_bn(&serial)?)?;
    builder.set_subject_name(subject)?;
    builder.set_issuer_name(issuer)?;
    builder.set_pubkey(key)?;
    builder.set_not_before(&*Asn1Time::from_unix(now - 300)?)?;
    builder.set_not_after(&*Asn1Time::from_unix(end)?)?;
    let identifier = der::element(der::OCTET_STRING, &sha1(&key.public_key_to_der()?));
    builder.append_extension(extension("2.5.29.14", false, &identifier)?)?;
    if let Some(authority) = authority {
        builder.append_extension(key_reference(authority)?)?;
    }
    Ok(builder)
}

/// The extension authorityKeyIdentifier, with the identifier of the key of `authority`.
fn key_reference(authority: &X509Ref) -> Result<openssl::x509::X509Extension, ErrorStack> {
    const KEY_IDENTIFIER: u8 = 0x80;
    let identifier = match authority.subject_key_id() {
        Some(identifier) => identifier.as_slice().to_vec(),
        None => sha1(&authority.public_key()?.public_key_to_der()?).to_vec(),
    };
    extension("2.5.29.35", false, &der::sequence(&[&der::element(KEY_IDENTIFIER, &identifier)]))
}
