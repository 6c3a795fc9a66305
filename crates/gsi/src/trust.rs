//! Trusted authorities: a directory of authorities with their signing policies and revocation
//! lists, and single certificates. The directory is read again for each chain, but parsed
//! revocation lists are cached until their files change. A file that cannot be read, or that every
//! user can write, never counts as missing.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use openssl::x509::{X509, X509Crl, X509CrlRef, X509Ref};
use parking_lot::Mutex;
use ropewalk_tls::is_signed_by;

use crate::chain_error::ChainError;
use crate::signing_policy::{self, SigningPolicy};

/// How many files of one name hash (`.0` to `.9`) are read.
const MAX_INDEX: u32 = 10;

/// Trusted authorities, and how strictly their chains are checked.
#[derive(Clone)]
pub struct Trust {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) anchors: Vec<X509>,
    pub(crate) allow_md5: bool,
    pub(crate) require_crl: bool,
    lists: ReadLists,
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust")
            .field("directory", &self.directory)
            .field("anchors", &self.anchors)
            .finish_non_exhaustive()
    }
}

/// A cache of parsed revocation lists, which can be long. An entry is valid until its file changes.
type ReadLists = Arc<Mutex<HashMap<PathBuf, (FileState, Lists)>>>;

/// The lists of one file, at least one.
type Lists = Arc<[Arc<X509Crl>]>;

/// Inode, size, and time of the last change in seconds and nanoseconds, to detect that a file
/// changed.
type FileState = (u64, u64, i64, i64);

impl Trust {
    /// Trusts the authorities of a directory (`<hash>.0`, `<hash>.signing_policy`, `<hash>.r0`).
    /// The directory is read again for each chain, so that updates take effect at once.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self { directory: Some(path.into()), ..Self::nobody() }
    }

    /// Trusts these certificates only, without signing policies.
    pub fn anchors(anchors: Vec<X509>) -> Self {
        Self { anchors, ..Self::nobody() }
    }

    fn nobody() -> Self {
        Self {
            directory: None,
            anchors: Vec::new(),
            allow_md5: false,
            require_crl: false,
            lists: ReadLists::default(),
        }
    }

    /// Trusts these certificates in addition, without signing policies.
    pub fn with_anchors(mut self, anchors: impl IntoIterator<Item = X509>) -> Self {
        self.anchors.extend(anchors);
        self
    }

    /// Like [`Trust::with_anchors`], with the certificates as PEM text
    /// (`GLOBUS_GFS_EXTRA_CA_CERTS`).
    ///
    /// # Errors
    /// A certificate cannot be read.
    pub fn with_pem_anchors(self, pem: &[u8]) -> Result<Self, openssl::error::ErrorStack> {
        Ok(self.with_anchors(X509::stack_from_pem(pem)?))
    }

    /// The certificates of [`Trust::with_anchors`] as PEM text.
    ///
    /// # Errors
    /// OpenSSL has no memory.
    pub fn anchors_pem(&self) -> Result<Vec<u8>, openssl::error::ErrorStack> {
        let texts = self.anchors.iter().map(|anchor| anchor.to_pem()).collect::<Result<Vec<_>, _>>()?;
        Ok(texts.concat())
    }

    /// Whether MD5 signatures are accepted, as old authorities make them.
    pub fn allow_md5(mut self, allow: bool) -> Self {
        self.allow_md5 = allow;
        self
    }

    /// Whether an authority without a revocation list is refused.
    pub fn require_crl(mut self, require: bool) -> Self {
        self.require_crl = require;
        self
    }

    /// Describes the place of the authorities in messages.
    pub(crate) fn place(&self) -> String {
        match &self.directory {
            Some(path) => path.display().to_string(),
            None => "the given certificates".to_owned(),
        }
    }

    /// Trusted certificates whose subject is the issuer name of `certificate`.
    pub(crate) fn issuers(&self, certificate: &X509Ref) -> Result<Vec<X509>, ChainError> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let hash = certificate.issuer_name_hash();
        let wanted = certificate.issuer_name();
        let (mut found, mut problem) = (Vec::new(), None);
        for index in 0..MAX_INDEX {
            let path = directory.join(format!("{hash:08x}.{index}"));
            let text = match read(&path) {
                Ok(Some(text)) => text,
                Ok(None) => break,
                Err(error @ ChainError::Unread { .. }) => {
                    problem.get_or_insert(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let all = X509::stack_from_pem(&text).unwrap_or_default();
            if all.is_empty() {
                problem.get_or_insert(ChainError::NoCertificate { path });
            }
            // The same name may be encoded as another string type (RFC 5280 section 7.1).
            let named = |ca: &X509| ca.subject_name().try_cmp(wanted).is_ok_and(Ordering::is_eq);
            found.extend(all.into_iter().filter(named));
        }
        match problem {
            Some(problem) if found.is_empty() => Err(problem),
            _ => Ok(found),
        }
    }

    /// The authorities of the directory above `certificate`, nearest first, as far as they are
    /// there. Their signatures are not checked.
    pub fn above(&self, certificate: &X509Ref) -> Vec<X509> {
        let mut found: Vec<X509> = Vec::new();
        let mut next = certificate.to_owned();
        while found.len() < crate::MAX_CHAIN
            && let Some(issuer) = self.issuers(&next).unwrap_or_default().into_iter().next()
            && !found.contains(&issuer)
        {
            found.push(issuer.clone());
            next = issuer;
        }
        found
    }

    /// The policy file of an authority, with its path.
    pub(crate) fn policy(
        &self,
        authority: &X509Ref,
        subject: &str,
    ) -> Result<Option<(SigningPolicy, PathBuf)>, ChainError> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let path = directory.join(format!("{:08x}.signing_policy", authority.subject_name_hash()));
        let Some(text) = read(&path)? else {
            let authority = subject.to_owned();
            return Err(ChainError::NoSigningPolicy { authority, path });
        };
        let text = String::from_utf8_lossy(&text);
        match SigningPolicy::parse(&text) {
            Ok(policy) => Ok(Some((policy, path))),
            Err(source) => Err(ChainError::BadSigningPolicy { path, source }),
        }
    }

    /// The revocation lists whose issuer has the authority's name.
    pub(crate) fn revocation_lists(
        &self,
        authority: &X509Ref,
    ) -> Result<Vec<(Arc<X509Crl>, PathBuf)>, ChainError> {
        let Some(directory) = &self.directory else { return Ok(Vec::new()) };
        let hash = authority.subject_name_hash();
        let mut found = Vec::new();
        for index in 0..MAX_INDEX {
            let path = directory.join(format!("{hash:08x}.r{index}"));
            let Some(lists) = self.lists_of_file(&path)? else { break };
            for list in lists.iter() {
                // The same name may be encoded as another string type (RFC 5280 section 7.1).
                if list.issuer_name().try_cmp(authority.subject_name())? == Ordering::Equal {
                    found.push((Arc::clone(list), path.clone()));
                }
            }
        }
        Ok(found)
    }

    /// Whether a revocation list with an authority's name, but not its signature, belongs to
    /// another trusted authority of the same name, such as one that has changed its key.
    pub(crate) fn is_list_of_namesake(
        &self,
        list: &X509CrlRef,
        authority: &X509Ref,
    ) -> Result<bool, ChainError> {
        let name = authority.subject_name();
        let signed = |other: &X509| {
            other.subject_name().try_cmp(name).is_ok_and(Ordering::is_eq) && is_signed_by(list, other)
        };
        if self.anchors.iter().any(signed) {
            return Ok(true);
        }
        let Some(directory) = &self.directory else { return Ok(false) };
        let hash = authority.subject_name_hash();
        for index in 0..MAX_INDEX {
            let text = match read(&directory.join(format!("{hash:08x}.{index}"))) {
                Ok(Some(text)) => text,
                Ok(None) => break,
                // The file may belong to another authority.
                Err(ChainError::Unread { .. }) => continue,
                Err(error) => return Err(error),
            };
            if X509::stack_from_pem(&text).unwrap_or_default().iter().any(signed) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Trust {
    /// The lists in a file; `None` if there is no file.
    fn lists_of_file(&self, path: &Path) -> Result<Option<Lists>, ChainError> {
        let metadata = match path.metadata() {
            Ok(metadata) => metadata,
            // A dangling link is an error, not a missing list.
            Err(source) if source.kind() != ErrorKind::NotFound || path.is_symlink() => {
                return Err(ChainError::Unread { path: path.to_owned(), source });
            }
            Err(_) => return Ok(None),
        };
        let state = (metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec());
        let lists = || self.lists.lock();
        if let Some((read, known)) = lists().get(path)
            && *read == state
        {
            return Ok(Some(Arc::clone(known)));
        }
        let Some(text) = read(path)? else { return Ok(None) };
        // A list that cannot be read may contain any certificate, so the chain is refused.
        let Some(parsed) = ropewalk_tls::revocation_lists(&text) else {
            return Err(ChainError::UnreadableCrl { path: path.to_owned() });
        };
        let found: Lists = parsed.into_iter().map(Arc::new).collect();
        lists().insert(path.to_owned(), (state, Arc::clone(&found)));
        Ok(Some(found))
    }
}

/// Reads a file of the directory; `None` if it does not exist. A file that every user can write is
/// not trusted.
pub(crate) fn read(path: &Path) -> Result<Option<Vec<u8>>, ChainError> {
    let file = match ropewalk_files::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(ChainError::Unread { path: path.to_owned(), source }),
    };
    let mode = file.metadata().map_or(0, |metadata| metadata.mode() & 0o7777);
    if mode & 0o002 != 0 {
        return Err(ChainError::Writable { path: path.to_owned(), mode });
    }
    // Revocation lists of large authorities have several megabytes.
    match ropewalk_files::content(&file, 64 * signing_policy::MAX_FILE as u64) {
        Ok(mut text) => Ok(Some(std::mem::take(&mut *text))),
        Err(source) => Err(ChainError::Unread { path: path.to_owned(), source }),
    }
}
