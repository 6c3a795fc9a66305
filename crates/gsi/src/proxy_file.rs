//! Proxy files: created like `grid-proxy-init`, shown like `grid-proxy-info`, and removed like
//! `grid-proxy-destroy` do. A proxy file has mode 0600 and appears under its name only when it is
//! complete.

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use openssl::error::ErrorStack;
use openssl::x509::X509;
use ropewalk_files::OnDisk;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::credential::{Credential, CredentialError};
use crate::delegation::{DelegationError, ProxyTerms, create_proxy};
use crate::proxy_info::ProxyKind;
use crate::time::Timestamp;
use crate::voms::{VomsClaim, voms_claims};

/// Why a proxy file was not created, read or removed.
#[derive(Debug, thiserror::Error)]
pub enum ProxyFileError {
    #[error(transparent)]
    Delegation(#[from] DelegationError),
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// The content of a proxy file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyInfo {
    /// The names are in one-line form.
    pub subject: String,
    pub issuer: String,
    pub identity: String,
    /// `None` if the certificate of the file is not a proxy.
    pub kind: Option<ProxyKind>,
    /// Size of the key in bits.
    pub strength: u32,
    pub path: PathBuf,
    /// The time at which the first certificate of the chain expires.
    pub not_after: Timestamp,
    pub path_length: Option<u64>,
    /// The claims of VOMS servers about the bearer.
    pub voms: Vec<VomsClaim>,
    /// The end-entity certificate that issued the proxy or the first of the proxies, if the file
    /// has it.
    pub end_entity: Option<X509>,
}

/// Makes a proxy of `issuer` and writes it to `path` with mode 0600. The file is replaced
/// atomically.
///
/// # Errors
/// The same errors as [`create_proxy`]; or the file cannot be written.
pub fn init(
    issuer: &Credential,
    path: &Path,
    bits: u32,
    terms: &ProxyTerms,
) -> Result<Credential, ProxyFileError> {
    let proxy = create_proxy(issuer, bits, terms, Timestamp::now())?;
    write(&proxy, path)?;
    Ok(proxy)
}

/// Writes a credential, such as a delegated one, as a proxy file.
///
/// # Errors
/// OpenSSL cannot encode the credential, or the file cannot be written.
pub fn write(credential: &Credential, path: &Path) -> Result<(), ProxyFileError> {
    let text = credential.to_pem()?;
    ropewalk_files::replace(path, &text, 0o600, OnDisk::Now)
        .map_err(|source| ProxyFileError::File { path: path.to_owned(), source })
}

/// Reads a proxy file.
///
/// # Errors
/// The same errors as [`Credential::load`] without a passphrase.
pub fn info(path: &Path) -> Result<ProxyInfo, ProxyFileError> {
    let credential = Credential::load(path, &mut |_| None)?;
    let details = credential.details();
    let mut chain = vec![credential.certificate().clone()];
    chain.extend(credential.chain().iter().cloned());
    Ok(ProxyInfo {
        subject: details.subject.clone(),
        issuer: details.issuer.clone(),
        identity: credential.identity().to_owned(),
        kind: details.proxy,
        strength: credential.key().bits(),
        path: path.to_owned(),
        not_after: credential.not_after(),
        path_length: details.path_length,
        voms: voms_claims(&chain),
        end_entity: chain
            .into_iter()
            .find(|link| crate::Details::of(link).is_ok_and(|details| details.proxy.is_none())),
    })
}

/// Overwrites a proxy file with zeros and removes it. Returns `false` if there is no file. The
/// function does not follow a link and never blocks.
///
/// # Errors
/// The file is not a regular file, belongs to another user, or cannot be written to.
pub fn destroy(path: &Path) -> Result<bool, ProxyFileError> {
    let failed = |source| ProxyFileError::File { path: path.to_owned(), source };
    let irregular = || {
        failed(io::Error::new(
            ErrorKind::InvalidInput,
            "it is no regular file, and so no proxy to be removed",
        ))
    };
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let mut file = match OpenOptions::new().write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        // The file is a pipe without a reader, or a socket.
        Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => return Err(irregular()),
        Err(e) => return Err(failed(e)),
    };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(irregular());
    }
    // Any user can create a file in /tmp under the name of another user's proxy.
    let owner = metadata.uid();
    if owner != rustix::process::geteuid().as_raw() {
        let text = format!("it belongs to the user with the number {owner}, not to you");
        return Err(failed(io::Error::new(ErrorKind::PermissionDenied, text)));
    }
    let length = metadata.len().min(1 << 20) as usize;
    file.write_all(&vec![0; length]).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::remove_file(path).map_err(failed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rustix::fs::Mode;

    use super::*;

    #[test]
    fn destroy_of_other_files_leaves_them_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("proxy");
        let refused = || {
            let error = destroy(&path).unwrap_err().to_string();
            assert!(path.symlink_metadata().is_ok(), "{error}");
            error
        };
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, Mode::from_raw_mode(0o600)).unwrap();
        assert!(refused().contains("no regular file"));
        let reader = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        assert!(refused().contains("no regular file"));
        drop(reader);
        std::fs::remove_file(&path).unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, "content").unwrap();
        std::os::unix::fs::symlink(&file, &path).unwrap();
        refused();
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
        // Only root can write to other users' files and change the owner of a file.
        if rustix::process::geteuid().is_root() {
            std::fs::rename(&file, &path).unwrap();
            std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
            assert!(refused().contains("belongs to the user with the number 12345"));
            assert_eq!(std::fs::read(&path).unwrap(), b"content");
        }
    }
}
