//! Credentials: a certificate, its chain, and the private key. They are read from PEM files, pairs
//! of files and PKCS #12 files. Key files must belong to the right user and be closed to others.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::pkcs12::Pkcs12;
use openssl::pkey::{PKey, Private};
use openssl::x509::X509;
use zeroize::Zeroizing;

use crate::certificate::Details;
use crate::der::DerError;
use crate::time::Timestamp;

/// The largest credential file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// Why a credential cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is larger than {MAX_FILE} bytes, so it is no credential")]
    TooLarge { path: PathBuf },
    #[error(
        "{path} holds a private key and can be used by others (mode {mode:04o}); `chmod 600 {path}` mends it"
    )]
    Permissions { path: PathBuf, mode: u32 },
    #[error("{path} belongs to user {owner}, not to {expected}: a key that others can change is not used")]
    Owner { path: PathBuf, owner: u32, expected: u32 },
    #[error("{place} has no certificate")]
    NoCertificate { place: String },
    #[error("{place} has no private key")]
    NoKey { place: String },
    #[error("the private key in {place} is encrypted, and no passphrase was given")]
    Encrypted { place: String },
    #[error("the passphrase for the private key in {place} is wrong")]
    Passphrase { place: String },
    #[error("the private key in {place} does not belong to the certificate of {subject}")]
    Mismatch { place: String, subject: String },
    #[error("the certificate in {place} cannot be read: {source}")]
    Certificate { place: String, source: DerError },
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// Called for the passphrase of an encrypted key, with the place of the key as the argument.
pub type AskPassphrase<'a> = &'a mut dyn FnMut(&str) -> Option<Zeroizing<String>>;

/// An identity and the means to prove it. OpenSSL clears the key when the last copy is dropped.
#[derive(Clone)]
pub struct Credential {
    certificate: X509,
    chain: Vec<X509>,
    key: PKey<Private>,
    details: Details,
    identity: String,
}

impl fmt::Debug for Credential {
    /// Leaves out the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("subject", &self.details.subject).finish_non_exhaustive()
    }
}

impl Credential {
    /// Combines a certificate, its chain and its key. `chain` begins with the issuer of
    /// `certificate`.
    ///
    /// # Errors
    /// A certificate cannot be read, or `key` is not the key of `certificate`.
    pub fn new(certificate: X509, chain: Vec<X509>, key: PKey<Private>) -> Result<Self, CredentialError> {
        Self::assemble("the credential", certificate, chain, key)
    }

    fn assemble(
        place: &str,
        certificate: X509,
        chain: Vec<X509>,
        key: PKey<Private>,
    ) -> Result<Self, CredentialError> {
        let unreadable = |source| CredentialError::Certificate { place: place.to_owned(), source };
        let details = Details::of(&certificate).map_err(unreadable)?;
        if !certificate.public_key()?.public_eq(&key) {
            return Err(CredentialError::Mismatch { place: place.to_owned(), subject: details.subject });
        }
        let mut identity = details.subject.clone();
        let mut proxy = details.proxy;
        for link in &chain {
            if proxy.is_none_or(|kind| kind.rights() == crate::Rights::Independent) {
                break;
            }
            let next = Details::of(link).map_err(unreadable)?;
            identity = next.subject;
            proxy = next.proxy;
        }
        Ok(Self { certificate, chain, key, details, identity })
    }

    /// Reads PEM text. The first certificate is the owner's, the others are its chain. The key may
    /// be anywhere (files with RFC 3820 proxies have it second).
    ///
    /// # Errors
    /// The text has no certificate or no key, they do not belong together, or `ask` returns no
    /// passphrase or a wrong one.
    pub fn from_pem(pem: &[u8], ask: AskPassphrase<'_>) -> Result<Self, CredentialError> {
        Self::from_parts("the credential", pem, pem, ask)
    }

    /// Reads a file with certificate, key and chain, such as a proxy file.
    ///
    /// # Errors
    /// The same errors as [`Credential::from_pem`]; or the file cannot be read, is too large, is
    /// accessible to other users, or belongs neither to this user nor to root.
    pub fn load(path: &Path, ask: AskPassphrase<'_>) -> Result<Self, CredentialError> {
        let text = read(path, Some(None))?;
        Self::from_parts(&path.display().to_string(), &text, &text, ask)
    }

    /// Reads a certificate (with chain) and a key from separate files.
    ///
    /// # Errors
    /// The same errors as [`Credential::load`], except that other users may read the certificate.
    pub fn load_pair(
        certificate: &Path,
        key: &Path,
        ask: AskPassphrase<'_>,
    ) -> Result<Self, CredentialError> {
        let certificates = read(certificate, None)?;
        let secret = read(key, Some(None))?;
        let certificates = Self::certificates(&certificate.display().to_string(), &certificates)?;
        Self::with_key(&key.display().to_string(), certificates, &secret, ask)
    }

    /// Like [`Credential::load_pair`], but the key may also belong to the user `owner`.
    pub(crate) fn load_pair_of(
        certificate: &Path,
        key: &Path,
        chain: Option<&Path>,
        owner: Option<u32>,
    ) -> Result<Self, CredentialError> {
        let mut text = read(certificate, None)?;
        if let Some(chain) = chain {
            text.push(b'\n');
            text.extend_from_slice(&read(chain, None)?);
        }
        let secret = read(key, Some(owner))?;
        let certificates = Self::certificates(&certificate.display().to_string(), &text)?;
        Self::with_key(&key.display().to_string(), certificates, &secret, &mut |_| None)
    }

    /// Reads a PKCS #12 file, as browsers export them.
    ///
    /// # Errors
    /// The same errors as [`Credential::load`]; or the file is not PKCS #12, or `ask` returns no
    /// passphrase, even if the file needs none.
    pub fn load_pkcs12(path: &Path, ask: AskPassphrase<'_>) -> Result<Self, CredentialError> {
        let place = path.display().to_string();
        let sealed = Pkcs12::from_der(&read(path, Some(None))?)?;
        let Some(phrase) = ask(&place) else { return Err(CredentialError::Encrypted { place }) };
        let Ok(parts) = sealed.parse2(&phrase) else { return Err(CredentialError::Passphrase { place }) };
        let Some(certificate) = parts.cert else { return Err(CredentialError::NoCertificate { place }) };
        let Some(key) = parts.pkey else { return Err(CredentialError::NoKey { place }) };
        let chain = parts.ca.into_iter().flatten().collect();
        Self::assemble(&place, certificate, chain, key)
    }

    fn from_parts(
        place: &str,
        certificates: &[u8],
        key: &[u8],
        ask: AskPassphrase<'_>,
    ) -> Result<Self, CredentialError> {
        Self::with_key(place, Self::certificates(place, certificates)?, key, ask)
    }

    fn certificates(place: &str, pem: &[u8]) -> Result<Vec<X509>, CredentialError> {
        let all = X509::stack_from_pem(pem)?;
        if all.is_empty() {
            return Err(CredentialError::NoCertificate { place: place.to_owned() });
        }
        Ok(all)
    }

    fn with_key(
        place: &str,
        certificates: Vec<X509>,
        pem: &[u8],
        ask: AskPassphrase<'_>,
    ) -> Result<Self, CredentialError> {
        let key = private_key(place, pem, ask)?;
        let mut certificates = certificates.into_iter();
        let first = certificates.next().ok_or(CredentialError::NoCertificate { place: place.to_owned() })?;
        Self::assemble(place, first, certificates.collect(), key)
    }

    pub fn certificate(&self) -> &X509 {
        &self.certificate
    }

    /// The issuer, the issuer of that, and so on, as far as they are known.
    pub fn chain(&self) -> &[X509] {
        &self.chain
    }

    pub fn key(&self) -> &PKey<Private> {
        &self.key
    }

    pub fn details(&self) -> &Details {
        &self.details
    }

    /// The subject in its one-line form.
    pub fn subject(&self) -> &str {
        &self.details.subject
    }

    /// The subject without the common names that proxies add, that is, the user or host itself.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The time at which the first certificate of the chain expires.
    pub fn not_after(&self) -> Timestamp {
        let later = self.chain.iter().filter_map(|link| Details::of(link).ok());
        later.map(|details| details.not_after).fold(self.details.not_after, Timestamp::min)
    }

    /// Encodes certificate, key and chain in this order, as proxy files have them.
    ///
    /// # Errors
    /// OpenSSL cannot encode the key or a certificate.
    pub fn to_pem(&self) -> Result<Zeroizing<Vec<u8>>, ErrorStack> {
        let mut out = Zeroizing::new(self.certificate.to_pem()?);
        let key = Zeroizing::new(self.key.private_key_to_pem_pkcs8()?);
        out.reserve_exact(key.len());
        out.extend_from_slice(&key);
        for link in &self.chain {
            let link = link.to_pem()?;
            // If the buffer grew, the old allocation would keep a copy of the key.
            let mut grown = Zeroizing::new(Vec::with_capacity(out.len() + link.len()));
            grown.extend_from_slice(&out);
            grown.extend_from_slice(&link);
            out = grown;
        }
        Ok(out)
    }
}

fn private_key(place: &str, pem: &[u8], ask: AskPassphrase<'_>) -> Result<PKey<Private>, CredentialError> {
    let place = || place.to_owned();
    let has = |needle: &[u8]| pem.windows(needle.len()).any(|window| window == needle);
    if !has(b"PRIVATE KEY-----") {
        return Err(CredentialError::NoKey { place: place() });
    }
    let (mut asked, mut given) = (false, false);
    let key = PKey::private_key_from_pem_callback(pem, |buffer| {
        asked = true;
        let Some(phrase) = ask(&place()) else { return Ok(0) };
        given = true;
        let bytes = phrase.as_bytes();
        if bytes.len() > buffer.len() {
            return Ok(0);
        }
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    });
    key.map_err(|error| match (asked, given) {
        (true, true) => CredentialError::Passphrase { place: place() },
        (true, false) => CredentialError::Encrypted { place: place() },
        _ => CredentialError::OpenSsl(error),
    })
}

/// Reads a whole file. A file with a secret (`secret` is set) must be accessible to its owner only,
/// and the owner must be this process's user, root, or the user in `secret`. The check uses the
/// open file, so that the file cannot be exchanged between check and read.
fn read(path: &Path, secret: Option<Option<u32>>) -> Result<Zeroizing<Vec<u8>>, CredentialError> {
    let failed = |source| CredentialError::Read { path: path.to_owned(), source };
    let file = ropewalk_files::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.len() > MAX_FILE {
        return Err(CredentialError::TooLarge { path: path.to_owned() });
    }
    if let Some(also) = secret
        && std::env::var_os("GLOBUS_IGNORE_CRED_PERMS").is_none()
    {
        let mode = metadata.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(CredentialError::Permissions { path: path.to_owned(), mode });
        }
        let (owner, expected) = (metadata.uid(), rustix::process::geteuid().as_raw());
        if owner != expected && owner != 0 && also != Some(owner) {
            return Err(CredentialError::Owner { path: path.to_owned(), owner, expected });
        }
    }
    ropewalk_files::content(&file, MAX_FILE).map_err(failed)
}
