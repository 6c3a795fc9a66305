//! Loads a certificate with its key and chain from PEM files.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::pkey::{PKey, Private};
use openssl::ssl::SslContextBuilder;
use openssl::x509::X509;
use zeroize::Zeroizing;

use crate::revocation::RevocationError;

/// The largest accepted file with certificates, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "{path} has mode {mode:04o}: others than its owner can read the key in it; `chmod 600 {path}` (0640 is \
         accepted where root is the owner)"
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("{path} holds no certificate in PEM")]
    NoCertificate { path: PathBuf },
    #[error("{path} holds no key in PEM that can be used (encrypted keys cannot)")]
    NoKey { path: PathBuf },
    #[error("the key in {key} does not belong to the certificate in {certificate}")]
    Mismatch { certificate: PathBuf, key: PathBuf },
    #[error(transparent)]
    Revocations(#[from] RevocationError),
    #[error("{what}: {source}")]
    OpenSsl { what: String, source: ErrorStack },
}

/// A certificate with its key, and the certificates of the authorities between it and a trusted
/// one.
#[derive(Clone)]
pub struct Pair {
    certificate: X509,
    chain: Vec<X509>,
    key: PKey<Private>,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("certificate", &self.certificate.subject_name()).finish_non_exhaustive()
    }
}

impl Pair {
    /// Loads a pair from two files, which may be one file with both. The first certificate is this
    /// side's own; those after it are its chain.
    ///
    /// # Errors
    /// A file cannot be read or has no usable certificate or key, other users can read the key, or
    /// the key belongs to another certificate.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, CertificateError> {
        let mut certificates = certificates(certificate)?.into_iter();
        let none = || CertificateError::NoCertificate { path: certificate.to_owned() };
        let own = certificates.next().ok_or_else(none)?;
        let key_pem = read(key, true)?;
        // Without the callback, OpenSSL would prompt for a passphrase at the terminal.
        let private = PKey::private_key_from_pem_callback(&key_pem, |_| Ok(0))
            .map_err(|_| CertificateError::NoKey { path: key.to_owned() })?;
        let fits = own.public_key().is_ok_and(|public| public.public_eq(&private));
        if !fits {
            let (certificate, key) = (certificate.to_owned(), key.to_owned());
            return Err(CertificateError::Mismatch { certificate, key });
        }
        Ok(Self { certificate: own, chain: certificates.collect(), key: private })
    }

    /// Reads a pair from PEM text.
    ///
    /// # Errors
    /// A text holds no certificate or no key, or the key belongs to another certificate.
    pub(crate) fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let failed = |what: &str, source| CertificateError::OpenSsl { what: what.to_owned(), source };
        let found = X509::stack_from_pem(certificates).map_err(|e| failed("a certificate", e))?;
        let key = PKey::private_key_from_pem_callback(key, |_| Ok(0)).map_err(|e| failed("a key", e))?;
        let mut found = found.into_iter();
        let certificate = found.next().ok_or_else(|| failed("no certificate", ErrorStack::get()))?;
        if !certificate.public_key().is_ok_and(|public| public.public_eq(&key)) {
            return Err(failed("a key that does not belong to its certificate", ErrorStack::get()));
        }
        Ok(Self { certificate, chain: found.collect(), key })
    }

    /// The certificate with its chain, and the key, as PEM text.
    ///
    /// # Errors
    /// OpenSSL cannot encode them.
    pub(crate) fn to_pem(&self) -> Result<(String, Zeroizing<Vec<u8>>), ErrorStack> {
        let mut certificates = Vec::new();
        for certificate in std::iter::once(&self.certificate).chain(&self.chain) {
            certificates.extend(certificate.to_pem()?);
        }
        let key = Zeroizing::new(self.key.private_key_to_pem_pkcs8()?);
        Ok((String::from_utf8_lossy(&certificates).into_owned(), key))
    }

    pub fn certificate(&self) -> &X509 {
        &self.certificate
    }

    pub(crate) fn put(&self, builder: &mut SslContextBuilder) -> Result<(), ErrorStack> {
        builder.set_certificate(&self.certificate)?;
        builder.set_private_key(&self.key)?;
        for link in &self.chain {
            builder.add_extra_chain_cert(link.clone())?;
        }
        Ok(())
    }
}

/// All certificates of a PEM file.
pub(crate) fn certificates(path: &Path) -> Result<Vec<X509>, CertificateError> {
    let pem = read(path, false)?;
    let found = X509::stack_from_pem(&pem).unwrap_or_default();
    if found.is_empty() {
        return Err(CertificateError::NoCertificate { path: path.to_owned() });
    }
    Ok(found)
}

fn read(path: &Path, secret: bool) -> Result<Zeroizing<Vec<u8>>, CertificateError> {
    let failed = |source| CertificateError::Read { path: path.to_owned(), source };
    let file = ropewalk_files::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mode = metadata.mode() & 0o7777;
    // Distributions make keys that belong to root readable for a group of servers.
    let allowed = if metadata.uid() == 0 { 0o740 } else { 0o700 };
    if secret && mode & !allowed & 0o777 != 0 {
        return Err(CertificateError::Exposed { path: path.to_owned(), mode });
    }
    ropewalk_files::content(&file, MAX_FILE).map_err(failed)
}
