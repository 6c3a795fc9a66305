//! The credentials with which sessions log in.
//!
//! The setup of a run owns one [`Ours`], which its sessions share from any thread. A credential is
//! loaded when it is first needed, once for each path; a failure is kept, too, as the text of the
//! log-in's error. For data connections between two servers, further credentials are derived from
//! it for DCSC. The client's own private key is never sent.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use ropewalk_gsi::{
    Credential, GsiConf, Identity, NameCompatibility, Places, Source, Timestamp, TlsSettings, Trust, dcsc,
};

use crate::place::End;
use crate::{Authentication, EndOptions, Options};

/// How long a credential is valid that is made for data connections between two servers, in
/// seconds.
const FRESH: u64 = 30 * 86_400;

/// A credential that a client of this program delegated, for log-ins on its behalf. It is only in
/// memory, and sessions that use it are for no other client.
#[derive(Clone)]
pub struct Delegated(Found<Own>);

impl Delegated {
    pub fn new(identity: Identity, settings: TlsSettings, compatibility: NameCompatibility) -> Self {
        Self(Ok(Arc::new(Own { identity, compatibility, settings, data: OnceLock::new() })))
    }

    /// Reads a credential from a file, such as a proxy, which is not used afterwards.
    ///
    /// # Errors
    /// The text says why the credential cannot be used: the file, or the trusted authorities of
    /// `options`.
    pub fn read(options: &Options, file: &Path) -> Result<Self, String> {
        load(options, Some(file)).map(|own| Self(Ok(Arc::new(own))))
    }

    /// Makes log-ins that need a credential fail with this reason.
    pub fn missing(reason: &str) -> Self {
        Self(Err(reason.to_owned()))
    }
}

/// The credentials of this client. Each is loaded when it is first needed.
#[derive(Default)]
pub(crate) struct Ours {
    /// If set, this credential is used for all log-ins instead of the credentials of this process.
    delegated: Option<Delegated>,
    logins: Mutex<HashMap<Option<PathBuf>, Found<Own>>>,
    fresh: OnceLock<Found<OwnData>>,
    files: Mutex<HashMap<Option<PathBuf>, Vec<FileVersion>>>,
}

/// The version of a file: it changes if the file is replaced or written. `None` means that the file
/// does not exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion(PathBuf, Option<[i64; 7]>);

/// The value, or the reason why it is missing.
type Found<T> = Result<Arc<T>, String>;

/// A credential to log in with.
pub(crate) struct Own {
    pub identity: Identity,
    pub compatibility: NameCompatibility,
    settings: TlsSettings,
    /// The credential that is derived from it for a server by DCSC.
    data: OnceLock<Found<OwnData>>,
}

/// A credential for data connections, as DCSC hands it to a server.
pub(crate) struct OwnData {
    pub identity: Identity,
    /// The argument after `DCSC P `.
    pub blob: zeroize::Zeroizing<String>,
}

impl Ours {
    /// Uses only this credential, if there is one.
    pub(crate) fn delegated(credential: Option<Delegated>) -> Self {
        Self { delegated: credential, ..Self::default() }
    }

    pub(crate) fn is_delegated(&self) -> bool {
        self.delegated.is_some()
    }

    /// `path` has the meaning of [`crate::LoginOptions::credential`].
    pub(crate) fn get(&self, options: &Options, path: Option<&Path>) -> Found<Own> {
        if let Some(Delegated(found)) = &self.delegated {
            return found.clone();
        }
        let mut logins = self.logins.lock();
        let key = path.map(Path::to_owned);
        logins.entry(key).or_insert_with(|| load(options, path).map(Arc::new)).clone()
    }

    /// The versions of this credential's files at the first call, which precedes reading them.
    pub(crate) fn files(&self, path: Option<&Path>) -> Vec<FileVersion> {
        let look = || match source(path) {
            Ok(Source::Proxy(file) | Source::Sealed(file)) => vec![FileVersion::of(file)],
            Ok(Source::Pair { certificate, key }) => [certificate, key].map(FileVersion::of).into(),
            Err(_) => Vec::new(),
        };
        self.files.lock().entry(path.map(Path::to_owned)).or_insert_with(look).clone()
    }

    /// A self-signed credential that is made for this run.
    pub(crate) fn fresh(&self, own: &Own) -> Found<OwnData> {
        let make = || {
            let credential = dcsc::self_signed(FRESH).map_err(|e| e.to_string())?;
            own.as_data(&credential).map(Arc::new)
        };
        self.fresh.get_or_init(make).clone()
    }
}

impl FileVersion {
    fn of(path: PathBuf) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        let version = std::fs::metadata(&path).ok().map(|found| {
            let id = [found.dev(), found.ino(), found.size()].map(u64::cast_signed);
            let [device, inode, size] = id;
            [device, inode, size, found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()]
        });
        Self(path, version)
    }
}

impl Own {
    /// A further proxy of this credential for the server's side of data connections, so that this
    /// client's own private key is not sent.
    pub(crate) fn for_data(&self) -> Found<OwnData> {
        let make = || self.as_data(self.identity.credential()).map(Arc::new);
        self.data.get_or_init(make).clone()
    }

    fn as_data(&self, credential: &Credential) -> Result<OwnData, String> {
        let make = || -> Result<OwnData, dcsc::DcscError> {
            let given = dcsc::for_server(credential, self.identity.trust())?;
            let blob = dcsc::encode(&given)?;
            let identity = dcsc::identity(given, Some(self.identity.trust()), &self.settings)?;
            Ok(OwnData { identity, blob })
        };
        make().map_err(|e| e.to_string())
    }
}

fn load(options: &Options, path: Option<&Path>) -> Result<Own, String> {
    let places = Places::of_process();
    let source = source(path)?;
    let credential = source.load(&mut |place| options.login.passphrases.of(place)).map_err(|error| {
        format!(
            "gsiftp:// needs a credential: {error}; `ropewalk proxy init` or grid-proxy-init makes a proxy"
        )
    })?;
    let end = credential.not_after();
    if end <= Timestamp::now() {
        return Err(format!(
            "the credential in {source} expired at {end}; `ropewalk proxy init` or grid-proxy-init makes a new proxy"
        ));
    }
    let conf =
        GsiConf::load(&places.gsi_conf(), |name| std::env::var(name).ok()).map_err(|e| e.to_string())?;
    let directory = options.trust.authorities.clone().unwrap_or_else(|| places.authorities());
    if !directory.is_dir() {
        return Err(format!(
            "gsiftp:// needs trusted authorities, and there is no directory {}; X509_CERT_DIR or --authorities names \
             another one",
            directory.display()
        ));
    }
    let settings = TlsSettings::from(&conf);
    let identity = Identity::new(Arc::new(credential), Arc::new(Trust::directory(directory)), &settings);
    let (identity, compatibility) =
        (identity.map_err(|e| e.to_string())?, conf.name_compatibility.unwrap_or_default());
    Ok(Own { identity, compatibility, settings, data: OnceLock::new() })
}

/// The source of the credential: the file at `path`, or the default one.
pub(crate) fn source(path: Option<&Path>) -> Result<Source, String> {
    let places = Places::of_process();
    match path {
        Some(path) => Ok(Source::Proxy(path.to_owned())),
        None => places.client().ok_or_else(|| nothing_found(&places.proxy_path())),
    }
}

fn nothing_found(proxy: &Path) -> String {
    format!(
        "gsiftp:// needs a credential, and there is none: no proxy in {} and no certificate in ~/.globus. Make a proxy \
         with `ropewalk proxy init` or grid-proxy-init. Without certificates: ftpes:// (TLS) with a password or token, sshftp:// \
         where you can log in with ssh, --auth kerberos with a ticket; or without any security ftp:// or --insecure",
        proxy.display()
    )
}

impl Options {
    /// The options of one end of a copy; without an end, the options that apply to both.
    pub(crate) fn end(&self, end: Option<End>) -> EndOptions {
        let own = match end {
            Some(End::Source) => Some(&self.login.source),
            Some(End::Destination) => Some(&self.login.destination),
            None => None,
        };
        EndOptions {
            credential: own.and_then(|own| own.credential.clone()).or_else(|| self.login.credential.clone()),
            server_subject: own
                .and_then(|own| own.server_subject.clone())
                .or_else(|| self.trust.server_subject.clone()),
            stack: own.and_then(|own| own.stack.clone()).or_else(|| self.data.stack.clone()),
            disk_stack: own.and_then(|own| own.disk_stack.clone()).or_else(|| self.data.disk_stack.clone()),
            space_token: own.and_then(|own| own.space_token.clone()),
            slots_token: own.and_then(|own| own.slots_token.clone()),
        }
    }

    /// Whether the options name UDT for data connections of either end.
    pub(crate) fn uses_udt(&self) -> bool {
        let ends = [Some(End::Source), Some(End::Destination)];
        ends.into_iter().any(|end| self.end(end).stack.is_some_and(|stack| stack.has("udt")))
    }

    /// The options for reading a source alone, as [`walk`](crate::walk) does.
    #[must_use]
    pub fn of_source(&self) -> Self {
        let EndOptions { credential, server_subject, stack, disk_stack, .. } = self.end(Some(End::Source));
        self.clone().with(|own| {
            own.login.credential = credential;
            own.trust.server_subject = server_subject;
            own.data.stack = stack;
            own.data.disk_stack = disk_stack;
        })
    }

    /// The sources of the credentials that the log-ins will need.
    pub fn credential_sources(&self) -> Vec<Source> {
        let mut sources: Vec<Source> = Vec::new();
        if self.login.authentication == Authentication::Kerberos {
            return sources;
        }
        for end in [End::Source, End::Destination] {
            if let Ok(found) = source(self.end(Some(end)).credential.as_deref())
                && !sources.contains(&found)
            {
                sources.push(found);
            }
        }
        sources
    }
}
