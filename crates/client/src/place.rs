//! Locations as the plan and the workers use them: resolved, with shared [`Endpoint`]s.
//!
//! An [`Endpoint`] has what the sessions with one server have learned in a run, such as its
//! features and the round-trip time. All threads of the run share it; its fields are atomic or
//! locked.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bstr::{BString, ByteSlice};
use parking_lot::Mutex;
use ropewalk_protocol::hop_login::ServerAddress;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::url::Url;

use crate::behind_relays::{NextServer, last_server, next_server};
use crate::model::features_reply::FeaturesReply;
use crate::{FailureKind, Location, Options, RelayedLogin, RemoteError};

/// A server with a log-in, to which sessions are opened.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub url: Url,
    /// The end of the copy, if the log-ins at its two ends differ.
    pub end: Option<End>,
    /// The log-ins that this server gets as a relay.
    pub hops: Vec<RelayedLogin>,
    /// `gsiftp://host:port`, for messages and journals.
    pub name: String,
    /// The server could not reach a port of this host, so data connections go the other way from
    /// now on.
    pub unreachable_back: AtomicBool,
    /// Data connections go to the control port, because an announced port could not be reached.
    pub one_port: AtomicBool,
    /// A port that the server announced for data could be reached.
    pub reached_data: AtomicBool,
    /// The stored ways of earlier runs were looked up, for TCP and for QUIC.
    pub recalled_ways: [AtomicBool; 2],
    /// `one_port` was set by that.
    pub remembers_one_port: AtomicBool,
    /// As `one_port` and `reached_data`, for channels over QUIC and the UDP port that they share.
    pub no_quic_port: AtomicBool,
    pub reached_quic_port: AtomicBool,
    /// For a source of third-party transfers: how it meets each destination.
    meetings: Mutex<HashMap<String, Meeting>>,
    /// Sessions that move data.
    serving: AtomicU32,
    /// Sessions that are being opened in order to move data.
    opening: AtomicU32,
    /// The address of the last connection that was established in this run.
    reached: Mutex<Option<IpAddr>>,
    /// The error after which no further connection is tried.
    lost: Mutex<Option<(FailureKind, String)>>,
    /// State that the sessions of an `sshftp://` server share.
    pub ssh: crate::ssh::Shared,
    /// The features that the server reported to the first session.
    features: OnceLock<Arc<FeaturesReply>>,
    /// The minimum round-trip time of its sessions, in microseconds; `u64::MAX` if it is not known.
    rtt: AtomicU64,
}

/// How two servers meet for data, in the order in which the ways are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Meeting {
    /// The source connects to a port that the destination announces (PASV, PORT).
    #[default]
    Announced,
    /// The source connects to the control port of the destination.
    DestinationPort,
    /// The destination connects to the control port of the source.
    SourcePort,
}

/// A session that moves data.
pub(crate) struct Serving(Arc<Endpoint>);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.serving.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Endpoint {
    pub(crate) fn new(url: &Url) -> Self {
        Self::at(url, None)
    }

    fn at(url: &Url, end: Option<End>) -> Self {
        let url = url.with_path(b"/");
        let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
        let name = if url.port == url.scheme.default_port() {
            format!("{}://{host}", url.scheme)
        } else {
            format!("{}://{host}:{}", url.scheme, url.port)
        };
        Self {
            url,
            end,
            hops: Vec::new(),
            name,
            unreachable_back: AtomicBool::new(false),
            one_port: AtomicBool::new(false),
            reached_data: AtomicBool::new(false),
            recalled_ways: Default::default(),
            remembers_one_port: AtomicBool::new(false),
            no_quic_port: AtomicBool::new(false),
            reached_quic_port: AtomicBool::new(false),
            meetings: Mutex::default(),
            serving: AtomicU32::new(0),
            opening: AtomicU32::new(0),
            reached: Mutex::new(None),
            lost: Mutex::new(None),
            ssh: crate::ssh::Shared::default(),
            features: OnceLock::new(),
            rtt: AtomicU64::new(u64::MAX),
        }
    }

    /// Counts a session that moves data until the result is dropped.
    pub(crate) fn serve(self: &Arc<Self>) -> Serving {
        self.serving.fetch_add(1, Ordering::Relaxed);
        Serving(self.clone())
    }

    /// Whether more than `own` sessions move data.
    pub(crate) fn serves_besides(&self, own: u32) -> bool {
        self.serving.load(Ordering::Relaxed) > own
    }

    /// Opens a session that is to move data. The argument of `open` returns whether other sessions
    /// are being opened.
    pub(crate) fn opening<T>(&self, open: impl FnOnce(&dyn Fn() -> bool) -> T) -> T {
        self.opening.fetch_add(1, Ordering::Relaxed);
        let opened = open(&|| self.opening.load(Ordering::Relaxed) > 1);
        self.opening.fetch_sub(1, Ordering::Relaxed);
        opened
    }

    /// How this source meets the destination of this name.
    pub(crate) fn meeting(&self, destination: &str) -> Meeting {
        self.meetings.lock().get(destination).copied().unwrap_or_default()
    }

    /// Records that the two servers cannot meet by `failed`; `next` is tried from now on. Returns
    /// `false` if another session has recorded that before.
    pub(crate) fn meet_next(&self, destination: &str, failed: Meeting, next: Meeting) -> bool {
        let mut meetings = self.meetings.lock();
        let current = meetings.entry(destination.to_owned()).or_default();
        let ahead = *current > failed;
        if !ahead {
            *current = next;
        }
        !ahead
    }

    pub(crate) fn was_reached(&self, address: IpAddr) {
        *self.reached.lock() = Some(address);
    }

    /// The address that was reached last in this run.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        *self.reached.lock()
    }

    /// Whether the server was reached in this run, so that it may come back.
    pub(crate) fn is_known(&self) -> bool {
        self.reached.lock().is_some()
    }

    /// Records that no further connection is to be tried.
    pub(crate) fn lose(&self, error: &RemoteError) {
        *self.lost.lock() = Some((error.kind(), error.to_string()));
    }

    pub(crate) fn lost(&self) -> Option<RemoteError> {
        let lost = self.lost.lock();
        lost.clone().map(|(kind, reason)| RemoteError::Lost { kind, reason })
    }

    /// The features of the server, if they are known and current.
    pub(crate) fn features(&self) -> Option<Arc<FeaturesReply>> {
        self.features.get().filter(|features| features.is_current()).cloned()
    }

    /// Records the features that the server reported to a session. The first report is kept, even
    /// when it is outdated: if the server reports different features to different sessions, each
    /// one has to ask.
    pub(crate) fn learned(&self, features: Arc<FeaturesReply>) {
        // Another session may have been first.
        let _ = self.features.set(features);
    }

    pub(crate) fn saw_rtt(&self, rtt: Duration) {
        self.rtt.fetch_min(rtt.as_micros() as u64, Ordering::Relaxed);
    }

    pub(crate) fn rtt(&self) -> Option<Duration> {
        match self.rtt.load(Ordering::Relaxed) {
            u64::MAX => None,
            micros => Some(Duration::from_micros(micros)),
        }
    }
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

/// The endpoints of a run, each of them once.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(Mutex<HashMap<(String, bool), Arc<Endpoint>>>);

impl Endpoints {
    /// `hops` are the log-ins of the run at servers behind relays.
    fn get(&self, url: &Url, end: Option<End>, hops: &[RelayedLogin]) -> Arc<Endpoint> {
        let relay = ServerAddress::of(url);
        let hops = hops.iter().filter(|hop| hop.relay == relay).cloned().collect();
        let new = Endpoint { ssh: crate::ssh::Shared::for_several(), hops, ..Endpoint::at(url, end) };
        let key = (new.url.to_string_with_password(), end == Some(End::Destination));
        let mut known = self.0.lock();
        known.entry(key).or_insert_with(|| Arc::new(new)).clone()
    }

    /// The round-trip time to the farthest server that was reached.
    pub(crate) fn longest_rtt(&self) -> Duration {
        let known = self.0.lock();
        known.values().filter_map(|endpoint| endpoint.rtt()).max().unwrap_or_default()
    }
}

impl Location {
    /// The name of the location in events: a local path, or a URL without user and password whose
    /// path is not escaped. The name of a directory may end with `/`; names of entries beneath it
    /// start with its name and a `/`.
    pub fn in_events(&self, options: &Options) -> String {
        let endpoints = Endpoints::default();
        // No event names a location that cannot be resolved.
        Place::new(self, End::Source, &endpoints, options).map(|place| place.display()).unwrap_or_default()
    }
}

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Local(VirtualPath),
    Remote(Arc<Endpoint>, BString),
    Standard,
    /// `zero:` or `null:`
    Measure(u64),
}

impl Place {
    pub(crate) fn new(
        location: &Location,
        end: End,
        endpoints: &Endpoints,
        options: &Options,
    ) -> Result<Self, RemoteError> {
        let end = Some(end).filter(|_| options.login.source != options.login.destination);
        Ok(match location {
            Location::Local(path) => Self::Local(local_path(path)?),
            Location::Remote(url) => {
                Self::Remote(endpoints.get(url, end, &options.login.hops), remote_path(url, options))
            }
            Location::Standard => Self::Standard,
            Location::Measure { size } => Self::Measure(*size),
        })
    }

    /// The entry `name`, which may have several components, of this directory. It is an error for
    /// places other than files and directories.
    pub(crate) fn join(&self, name: &[u8]) -> Result<Self, RemoteError> {
        let bad = || RemoteError::Usage(format!("{}: not the name of a file", name.as_bstr()));
        match self {
            Self::Local(path) => {
                let relative = VirtualPath::parse(name).map_err(|_| bad())?;
                // The name may come from a remote listing, and must not lead out of the directory.
                if name.starts_with(b"/") || name.split_str("/").any(|c| matches!(c, b".." | b"." | b"")) {
                    return Err(bad());
                }
                Ok(Self::Local(relative.beneath(path)))
            }
            Self::Remote(endpoint, path) => {
                if name.starts_with(b"/") || name.split_str("/").any(|c| c == b"..") {
                    return Err(bad());
                }
                Ok(Self::Remote(endpoint.clone(), join(path, name)))
            }
            Self::Standard | Self::Measure(_) => Err(bad()),
        }
    }

    /// The place for messages. Bytes that are not UTF-8 are replaced, so two names may look alike.
    pub(crate) fn display(&self) -> String {
        BString::from(self.key()).to_string()
    }

    /// Like [`display`](Self::display), but with the exact bytes of the name; it identifies the
    /// place.
    pub(crate) fn key(&self) -> Vec<u8> {
        match self {
            Self::Local(path) => path.as_bytes().to_vec(),
            Self::Remote(endpoint, path) => {
                let slash = if path.starts_with(b"/") { "" } else { "/~/" };
                [endpoint.name.as_bytes(), slash.as_bytes(), path].concat()
            }
            Self::Standard => b"-".to_vec(),
            Self::Measure(0) => b"null:".to_vec(),
            Self::Measure(size) => format!("zero:{size}").into_bytes(),
        }
    }

    /// The place without the relays that lead to it; `None` if there are none.
    pub(crate) fn beyond_relays(&self) -> Option<Self> {
        let Self::Remote(endpoint, path) = self else { return None };
        let (url, path) = last_server(path, &endpoint.hops)?;
        Some(Self::Remote(Endpoint::new(&url).into(), path.into()))
    }

    /// Like [`key`](Self::key), but the same whichever relays lead to the place, so that a copy can
    /// be resumed over another path.
    pub(crate) fn far_key(&self) -> Vec<u8> {
        self.beyond_relays().as_ref().unwrap_or(self).key()
    }

    /// The user in the URL of the server that has the place, behind the relays that lead to it.
    pub(crate) fn user(&self) -> Option<BString> {
        match self.beyond_relays().as_ref().unwrap_or(self) {
            Self::Remote(endpoint, _) => endpoint.url.user.clone(),
            _ => None,
        }
    }

    /// The name of the server, followed by the servers that its path leads to through relays,
    /// because results of transfers are stored for the whole route. `None` means this host.
    pub(crate) fn server_name(&self) -> Option<String> {
        let Self::Remote(endpoint, path) = self else { return None };
        let (mut name, mut rest) = (endpoint.name.clone(), path.as_slice());
        while let Some(NextServer { scheme, authority, path }) = next_server(rest) {
            name.push_str(&format!("/{scheme}//{authority}"));
            rest = path;
        }
        Some(name)
    }

    /// Whether the server is a relay on the way to the place.
    pub(crate) fn is_behind_relay(&self) -> bool {
        matches!(self, Self::Remote(_, path) if next_server(path).is_some())
    }

    /// The path's bytes.
    pub(crate) fn path(&self) -> BString {
        match self {
            Self::Local(path) => path.as_bytes().into(),
            Self::Remote(_, path) => path.clone(),
            Self::Standard => "-".into(),
            Self::Measure(_) => "null:".into(),
        }
    }
}

/// `directory/name` of a remote path.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> BString {
    let mut path = BString::from(directory);
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// The last component; empty for the root.
pub(crate) fn base_name(path: &[u8]) -> &[u8] {
    let trimmed = path.trim_end_with(|c| c == '/');
    trimmed.rfind_byte(b'/').map_or(trimmed, |at| &trimmed[at + 1..])
}

/// Everything before the last component, without a final `/`; `None` if that is empty.
pub(crate) fn parent(path: &[u8]) -> Option<&[u8]> {
    let trimmed = path.trim_end_with(|c| c == '/');
    match trimmed.rfind_byte(b'/') {
        Some(0) if trimmed.len() > 1 => Some(b"/"),
        Some(at) if at > 0 => Some(&trimmed[..at]),
        _ => None,
    }
}

/// Whether the path names a device, or an open file (entries of /dev and /proc), which a file must
/// not replace. Entries beneath /dev/shm are ordinary files.
pub(crate) fn is_device(path: &[u8]) -> bool {
    let Ok(plain) = VirtualPath::parse(path) else { return false };
    let plain = plain.as_bytes();
    let special = plain.starts_with(b"/dev/") && !plain.starts_with(b"/dev/shm/");
    path.starts_with(b"/") && (special || plain.starts_with(b"/proc/"))
}

/// The path to send in commands for a URL. It counts from the root, as in GCT's clients; `/~/`
/// starts at the log-in directory. With `relative_paths` every path starts there, and `%2F` leads
/// to the root.
pub(crate) fn remote_path(url: &Url, options: &Options) -> BString {
    let relative = match url.path.strip_prefix(b"/~") {
        Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest.strip_prefix(b"/").unwrap_or(rest),
        _ if options.relative_paths => url.login_relative(),
        _ => return url.path.clone(),
    };
    match relative {
        b"" => ".".into(),
        // Servers would take a leading `~` for a home directory.
        [b'~', ..] => [b"./", relative].concat().into(),
        _ => relative.into(),
    }
}

/// The absolute path of a local file. If it has `..`, symbolic links in its parent are resolved
/// first.
pub(crate) fn local_path(path: &Path) -> Result<VirtualPath, RemoteError> {
    use std::os::unix::ffi::OsStrExt;
    let given = BString::from(path.as_os_str().as_bytes());
    let failed = |e: std::io::Error| {
        RemoteError::local(given.clone(), ropewalk_storage::Error::from_io(&e, "resolve", &given))
    };
    let mut absolute = std::path::absolute(path).map_err(failed)?;
    if absolute.components().any(|c| c == std::path::Component::ParentDir) {
        absolute = match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) => parent.canonicalize().map_err(failed)?.join(name),
            _ => absolute.canonicalize().map_err(failed)?,
        };
    }
    VirtualPath::parse(absolute.as_os_str().as_bytes())
        .map_err(|_| RemoteError::Usage(format!("{given}: not the name of a file")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn server_name_has_the_servers_behind_relays() {
        for (path, name) in [
            ("/data/f", "ftp://b:1"),
            ("/", "ftp://b:1"),
            ("/ftp://a:2/f", "ftp://b:1/ftp://a:2"),
            ("/gsiftp:/c/ftp://a:2/f", "ftp://b:1/gsiftp://c/ftp://a:2"),
            ("/ftp:", "ftp://b:1"),
            ("/data/ftp://a/f", "ftp://b:1"),
        ] {
            let endpoint = Arc::new(Endpoint::new(&Url::parse("ftp://b:1/").unwrap()));
            assert_eq!(Place::Remote(endpoint, path.into()).server_name().as_deref(), Some(name), "{path}");
        }
        assert_eq!(Place::Local(VirtualPath::root()).server_name(), None);
    }

    #[test]
    fn place_behind_relays_has_the_key_of_the_place_itself() {
        let place = |url: &str, hops: Vec<RelayedLogin>| {
            let url = Url::parse(url).unwrap();
            let endpoint = Arc::new(Endpoint { hops, ..Endpoint::new(&url) });
            Place::Remote(endpoint, url.path)
        };
        let hop =
            RelayedLogin { relay: "b:1".parse().unwrap(), server: Url::parse("ftpes://ada@a:2/").unwrap() };
        let direct = place("ftpes://ada@a:2/data/f", Vec::new());
        let relayed = place("ftpes://b:1/ftpes://a:2/data/f", vec![hop]);
        assert_eq!((relayed.far_key(), relayed.user()), (direct.far_key(), direct.user()));
        assert_ne!(relayed.key(), direct.key());
        assert_eq!(direct.user().unwrap(), "ada");
    }

    #[test]
    fn parts_of_remote_paths() {
        assert_eq!(join(b"/a", b"b"), "/a/b");
        assert_eq!(join(b"/", b"b"), "/b");
        assert_eq!(join(b"", b"b"), "b");
        assert_eq!(base_name(b"/a/b/"), b"b");
        assert_eq!(base_name(b"/"), b"");
        assert_eq!(parent(b"/a/b/"), Some(&b"/a"[..]));
        assert_eq!(parent(b"/a"), Some(&b"/"[..]));
        assert_eq!(parent(b"/"), None);
        assert_eq!(parent(b"a"), None);
    }

    #[test]
    fn devices_are_known_however_they_are_written() {
        for path in
            ["/dev/null", "//dev/null", "/dev//null", "/./dev/null", "/x/../dev/null", "/proc/self/fd/1"]
        {
            assert!(is_device(path.as_bytes()), "{path}");
        }
        for path in ["/dev/shm/x", "//dev//shm/x", "/x/dev/null", "dev/null", "/device", "/dev/../x"] {
            assert!(!is_device(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_listing_cannot_lead_out() {
        let place = Place::Local(VirtualPath::parse(b"/tmp/x").unwrap());
        assert!(place.join(b"../y").is_err());
        assert!(place.join(b"/etc/passwd").is_err());
        assert!(place.join(b"a/../../y").is_err());
        assert_eq!(place.join(b"a/b").unwrap().display(), "/tmp/x/a/b");
    }

    #[test]
    fn a_name_that_begins_with_a_tilde_is_a_name() {
        for (url, relative_paths, path) in [
            ("ftp://h/~", false, "."),
            ("ftp://h/~/", false, "."),
            ("ftp://h/~/x", false, "x"),
            ("ftp://h/~/~", false, "./~"),
            ("ftp://h/~/~/x", false, "./~/x"),
            ("ftp://h/~/~bob", false, "./~bob"),
            ("ftp://h/x/~", false, "/x/~"),
            ("ftp://h/%7E/%7E", false, "./~"),
            ("ftp://h/~bob/x", false, "/~bob/x"),
            ("ftp://h/~bob/x", true, "./~bob/x"),
            ("ftp://h/~/~", true, "./~"),
            ("ftp://h/%2F~", true, "/~"),
        ] {
            let options = Options::default().with(|o| o.relative_paths = relative_paths);
            assert_eq!(remote_path(&Url::parse(url).unwrap(), &options), path, "{url} {relative_paths}");
        }
    }

    #[test]
    fn dots_follow_symbolic_links() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(top.join("a/b")).unwrap();
        std::os::unix::fs::symlink(top.join("a/b"), top.join("link")).unwrap();
        let path = local_path(&top.join("link/../file")).unwrap();
        assert_eq!(path.to_string(), top.join("a/file").to_string_lossy());
    }
}
