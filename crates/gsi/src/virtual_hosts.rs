//! Certificates of virtual hosts (`X509_VHOST_CRED_DIR`). A server sends the certificate for the
//! name that the client requests (TLS server name, RFC 6066 section 3).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openssl::error::ErrorStack;

use crate::credential::{Credential, CredentialError};
use crate::tls::{Identity, TlsSettings};
use crate::trust::Trust;

/// How many entries of a directory are accepted.
const MOST: usize = 1024;

/// Why the certificates of virtual hosts cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum VirtualHostError {
    #[error("{path}: {source}")]
    Directory { path: PathBuf, source: io::Error },
    #[error("{path} has more than {MOST} entries")]
    TooMany { path: PathBuf },
    #[error("{path} has {found} files whose name ends with {end}; one is expected")]
    Files { path: PathBuf, found: usize, end: &'static str },
    #[error(transparent)]
    Credential(#[from] CredentialError),
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// Loads the credentials in the subdirectories of `directory`. Each has a file `...cert.pem`, a
/// file `...key.pem` and optionally a file `chain.pem` with the certificates between the host's
/// certificate and its authority. Keys may also belong to the user `owner` (`VHOST_CRED_OWNER` of
/// gsi.conf).
///
/// # Errors
/// A directory cannot be read or has too many entries, a subdirectory does not have exactly one
/// certificate and one key, or they cannot be used.
pub fn virtual_hosts(
    directory: &Path,
    owner: Option<u32>,
    trust: &Arc<Trust>,
    settings: &TlsSettings,
) -> Result<Vec<Identity>, VirtualHostError> {
    let mut hosts = Vec::new();
    for path in entries(directory)? {
        if path.is_dir() {
            let credential = load(&path, owner)?;
            hosts.push(Identity::new(Arc::new(credential), Arc::clone(trust), settings)?);
        }
    }
    Ok(hosts)
}

fn load(directory: &Path, owner: Option<u32>) -> Result<Credential, VirtualHostError> {
    let all = entries(directory)?;
    let one = |end: &'static str| {
        let mut fitting = all.iter().filter(|path| path.to_string_lossy().ends_with(end));
        match (fitting.next(), fitting.count()) {
            (Some(path), 0) => Ok(path),
            (first, more) => {
                let found = usize::from(first.is_some()) + more;
                Err(VirtualHostError::Files { path: directory.to_owned(), found, end })
            }
        }
    };
    let (certificate, key, chain) = (one("cert.pem")?, one("key.pem")?, directory.join("chain.pem"));
    let chain = chain.is_file().then_some(chain.as_path());
    Ok(Credential::load_pair_of(certificate, key, chain, owner)?)
}

/// Lists the entries by name, so that the first match is always the same.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, VirtualHostError> {
    let failed = |source| VirtualHostError::Directory { path: directory.to_owned(), source };
    let mut all = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        if all.len() == MOST {
            return Err(VirtualHostError::TooMany { path: directory.to_owned() });
        }
        all.push(entry.map_err(failed)?.path());
    }
    all.sort();
    Ok(all)
}
