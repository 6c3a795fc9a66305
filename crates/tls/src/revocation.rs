//! Certificate revocation lists (RFC 5280 section 5). They are checked during the verification of a
//! peer's chain; the reason for a refusal is kept with the connection. Lists are cached until their
//! files change. A list that cannot be read, is forged or has expired makes its authority's
//! certificates invalid.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use openssl::asn1::Asn1Time;
use openssl::error::ErrorStack;
use openssl::ex_data::Index;
use openssl::ssl::{Ssl, SslContextBuilder, SslRef, SslVerifyMode};
use openssl::x509::{
    CrlStatus, X509, X509Crl, X509CrlRef, X509NameRef, X509Ref, X509StoreContext, X509StoreContextRef,
};
use parking_lot::Mutex;

use crate::sys;

/// The largest accepted file with lists, in bytes; lists of large authorities have several
/// megabytes.
const MAX_FILE: u64 = 64 << 20;
/// How many files of one name hash (`.r0` to `.r9`) are read.
const MAX_INDEX: u32 = 10;
/// The lines before and after each list of a PEM file.
const PEM_BEGIN: &[u8] = b"-----BEGIN X509 CRL-----";
const PEM_END: &[u8] = b"-----END X509 CRL-----";

/// Why lists cannot be used, or a certificate is refused because of one.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    #[error("{path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no revocation list (in PEM or DER)")]
    Unreadable { path: PathBuf },
    #[error(
        "{path} has no file with a revocation list: expected HASH.r0, as `openssl rehash {path}` names them"
    )]
    Empty { path: PathBuf },
    #[error(
        "anybody can change {path} (mode {mode:04o}), so it is not believed; `chmod o-w {path}` mends it"
    )]
    Writable { path: PathBuf, mode: u32 },
    #[error("the revocation list {path} is not signed by {authority}")]
    Forged { path: PathBuf, authority: String },
    #[error(
        "the revocation list {path} expired at {since}; without a fresh one, {authority} is not believed"
    )]
    Expired { path: PathBuf, authority: String, since: String },
    #[error("the revocation list {path} is valid only from {from} on; one of the two clocks may be wrong")]
    Future { path: PathBuf, from: String },
    #[error("the certificate of {subject} (serial {serial}) was revoked by {authority} at {since}")]
    Revoked { subject: String, serial: String, authority: String, since: String },
    #[error("OpenSSL: {0}")]
    OpenSsl(#[from] ErrorStack),
}

/// A file with lists, or a directory with lists named by the hash of their authorities' names
/// (`<hash>.r0`, as `openssl rehash` makes it). A file is read again when it changes, so that
/// updates take effect at once.
///
/// The certificates of an authority without a list are accepted. If the list of an authority is
/// forged, expired or unreadable, its certificates are refused.
pub struct Revocations {
    path: PathBuf,
    read: Mutex<HashMap<PathBuf, (State, Lists)>>,
}

type Lists = Arc<[Arc<X509Crl>]>;

/// Inode, size, and time of the last change in seconds and nanoseconds, to detect that a file
/// changed.
type State = (u64, u64, i64, i64);

impl std::fmt::Debug for Revocations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Revocations").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Revocations {
    /// Opens a file or a directory with lists.
    ///
    /// # Errors
    /// The path does not exist, cannot be read, or has no list.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, RevocationError> {
        let lists = Self { path: path.into(), read: Mutex::default() };
        let path = &lists.path;
        let failed = |source| RevocationError::Read { path: path.clone(), source };
        if path.metadata().map_err(failed)?.is_dir() {
            let hashed = |name: &str| {
                name.split_once(".r").is_some_and(|(hash, index)| {
                    hash.len() == 8
                        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
                        && index.parse::<u32>().is_ok_and(|index| index < MAX_INDEX)
                })
            };
            let mut names = path.read_dir().map_err(failed)?.flatten();
            if !names.any(|entry| entry.file_name().to_str().is_some_and(hashed)) {
                return Err(RevocationError::Empty { path: path.clone() });
            }
        } else {
            lists.file(path)?;
        }
        Ok(lists)
    }

    /// Like [`Revocations::open`], but returns `None` for a directory without any list.
    pub(crate) fn beside(authorities: &Path) -> Result<Option<Self>, RevocationError> {
        match Self::open(authorities) {
            Ok(lists) => Ok(Some(lists)),
            Err(RevocationError::Empty { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks each certificate of a chain against the lists of its issuer, which is the next one in
    /// the chain. `trusted` returns the trusted authorities of a name, each of which may have its
    /// own lists.
    pub(crate) fn check(
        &self,
        chain: &[X509],
        trusted: impl Fn(&X509NameRef) -> Vec<X509>,
    ) -> Result<(), RevocationError> {
        let now = Asn1Time::days_from_now(0)?;
        for pair in chain.windows(2) {
            let [certificate, authority] = pair else { continue };
            for (list, path) in self.lists_of(authority)? {
                if is_signed_by(&list, authority) {
                    self::check(certificate, authority, &list, path, &now)?;
                } else if !trusted(authority.subject_name()).iter().any(|other| is_signed_by(&list, other)) {
                    let authority = crate::client::words(authority.subject_name());
                    return Err(RevocationError::Forged { path, authority });
                }
            }
        }
        Ok(())
    }

    fn lists_of(&self, authority: &X509Ref) -> Result<Vec<(Arc<X509Crl>, PathBuf)>, RevocationError> {
        let mut found = Vec::new();
        let mut take = |lists: &[Arc<X509Crl>], path: &Path| -> Result<(), ErrorStack> {
            for list in lists {
                if list.issuer_name().try_cmp(authority.subject_name())? == Ordering::Equal {
                    found.push((Arc::clone(list), path.to_owned()));
                }
            }
            Ok(())
        };
        if !self.path.is_dir() {
            take(&self.file(&self.path)?, &self.path)?;
            return Ok(found);
        }
        let hash = authority.subject_name_hash();
        for index in 0..MAX_INDEX {
            let path = self.path.join(format!("{hash:08x}.r{index}"));
            match self.file(&path) {
                Ok(lists) => take(&lists, &path)?,
                Err(RevocationError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// The lists of a file, at least one.
    fn file(&self, path: &Path) -> Result<Lists, RevocationError> {
        let failed = |source| RevocationError::Read { path: path.to_owned(), source };
        let file = ropewalk_files::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let mode = metadata.mode() & 0o7777;
        if mode & 0o002 != 0 {
            return Err(RevocationError::Writable { path: path.to_owned(), mode });
        }
        let state = (metadata.ino(), metadata.len(), metadata.ctime(), metadata.ctime_nsec());
        let known = || self.read.lock();
        if let Some((read, lists)) = known().get(path)
            && *read == state
        {
            return Ok(Arc::clone(lists));
        }
        let text = ropewalk_files::content(&file, MAX_FILE).map_err(failed)?;
        // A list that cannot be read may contain any certificate, so all are refused.
        let lists =
            revocation_lists(&text).ok_or_else(|| RevocationError::Unreadable { path: path.to_owned() })?;
        let lists: Lists = lists.into_iter().map(Arc::new).collect();
        known().insert(path.to_owned(), (state, Arc::clone(&lists)));
        Ok(lists)
    }
}

/// Whether this authority's key has signed the list. Returns `false` for a key of another kind.
pub fn is_signed_by(list: &X509CrlRef, authority: &X509Ref) -> bool {
    let signed = authority.public_key().and_then(|key| list.verify(&key)).unwrap_or(false);
    // The call may happen within a handshake, so the error queue must be cleared.
    crate::forget_errors();
    signed
}

/// Parses the lists of a file: one in DER, or any number in PEM. Returns `None` if there is none,
/// or if one cannot be read or is truncated.
pub fn revocation_lists(text: &[u8]) -> Option<Vec<X509Crl>> {
    let at = |text: &[u8], mark: &[u8]| text.windows(mark.len()).position(|window| window == mark);
    if let Ok(list) = X509Crl::from_der(text) {
        return Some(vec![list]);
    }
    let mut lists = Vec::new();
    let mut rest = text;
    while let Some(end) = at(rest, PEM_END) {
        let (one, behind) = rest.split_at(end + PEM_END.len());
        lists.push(X509Crl::from_pem(one).ok()?);
        rest = behind;
    }
    (!lists.is_empty() && at(rest, PEM_BEGIN).is_none()).then_some(lists)
}

/// Checks a certificate against a list of its authority.
fn check(
    certificate: &X509,
    authority: &X509Ref,
    list: &X509Crl,
    path: PathBuf,
    now: &Asn1Time,
) -> Result<(), RevocationError> {
    let words = || crate::client::words(authority.subject_name());
    if list.last_update() > now {
        return Err(RevocationError::Future { path, from: list.last_update().to_string() });
    }
    if let Some(next) = list.next_update()
        && next < now
    {
        return Err(RevocationError::Expired { path, authority: words(), since: next.to_string() });
    }
    if let CrlStatus::Revoked(entry) = list.get_by_cert(certificate) {
        let serial = certificate.serial_number().to_bn()?.to_hex_str()?.to_string();
        return Err(RevocationError::Revoked {
            subject: crate::client::words(certificate.subject_name()),
            serial,
            authority: words(),
            since: entry.revocation_date().to_string(),
        });
    }
    Ok(())
}

/// The place where a handshake keeps the reason of a refusal.
type Told = Mutex<Option<String>>;

fn index() -> Result<Index<Ssl, Told>, ErrorStack> {
    static INDEX: OnceLock<Result<Index<Ssl, Told>, ErrorStack>> = OnceLock::new();
    INDEX.get_or_init(Ssl::new_ex_index).clone()
}

/// Makes handshakes of this context check the lists after the rest of the verification.
pub(crate) fn look_into(
    builder: &mut SslContextBuilder,
    mode: SslVerifyMode,
    lists: Revocations,
) -> Result<(), ErrorStack> {
    let index = index()?;
    builder.set_verify_callback(mode, move |good, context| {
        // The peer's own certificate is verified last.
        if !good || context.error_depth() != 0 {
            return good;
        }
        let chain: Vec<X509> =
            context.chain().into_iter().flatten().map(|certificate| certificate.to_owned()).collect();
        match lists.check(&chain, |name| sys::trusted_called(context, name)) {
            Ok(()) => true,
            Err(error) => {
                tell(context, index, error.to_string());
                context.set_error(sys::revoked());
                false
            }
        }
    });
    Ok(())
}

/// Prepares the place in this handshake that [`told`] reads.
pub(crate) fn listen(ssl: &mut SslRef) -> Result<(), ErrorStack> {
    ssl.set_ex_data(index()?, Told::default());
    Ok(())
}

fn tell(context: &X509StoreContextRef, index: Index<Ssl, Told>, text: String) {
    let place = X509StoreContext::ssl_idx()
        .ok()
        .and_then(|ssl| context.ex_data(ssl))
        .and_then(|ssl: &SslRef| ssl.ex_data(index));
    if let Some(place) = place {
        *place.lock() = Some(text);
    }
}

/// Why the peer's certificate was refused because of a list.
pub(crate) fn told(ssl: &SslRef) -> Option<String> {
    ssl.ex_data(index().ok()?)?.lock().clone()
}
