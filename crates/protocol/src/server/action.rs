//! What a server session asks of its host, and what the host answers.
//!
//! The session decides everything that can be decided from the bytes a client sent; the host owns sockets,
//! files, users and the clock. One operation is under way at a time.

use std::net::SocketAddr;
use std::time::Duration;

use bstr::BString;

use crate::command::{ChecksumAlgorithm, DataAuthentication, Password, Protection};
use crate::congestion::CongestionName;
use crate::data_key::DataKey;
use crate::error_class::ErrorClass;
use crate::facts::{Entry, FactSet};
use crate::marker::PathMarker;
use crate::path::VirtualPath;
use crate::profiling::ProfileAnswer;
use crate::range::RangeSet;
use crate::reply::Reply;

/// One step that the host has to take, in order.
#[derive(Debug)]
pub enum Action {
    /// Write this reply to the control connection.
    Send(Reply),
    /// Carry this out, then call [`Session::completed`](super::Session::completed) once.
    Perform(Operation),
    /// Break off the operation under way, which still has to be completed, with [`Failure::Aborted`] if it had not ended.
    /// It is asked for at most once an operation, and only for those that may take long.
    Abort,
    /// SITE STREAMS (our extension): the data channel, where there is one, has so many streams from now on when it sends in
    /// MODE E, and the transfer under way too. Already within the limits of the configuration, and answered.
    Streams(u32),
    /// What is sent and received from here on is protected by the context that [`Outcome::Secured`] told of, or by TLS,
    /// which begins now: replies before this leave in clear.
    Protect,
    /// Close the control connection once everything before has been written.
    Close,
}

/// A log-in that was refused because of what the settings ask of its connection, before there was a password or token
/// ([`Session::refused_login`](super::Session::refused_login)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedLogin {
    /// The name behind USER.
    pub user: BString,
    pub reason: String,
}

/// How a control connection is secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// RFC 2228: tokens in ADAT, then each line protected by itself.
    Gssapi,
    /// RFC 4217: all bytes travel in TLS.
    Tls,
}

/// Transfer mode (RFC 959 section 3.4, GFD.20 section 3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    #[default]
    Stream,
    ExtendedBlock,
}

/// Representation type (RFC 959 section 3.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RepresentationType {
    #[default]
    Ascii,
    Image,
}

/// How blocks are dealt to stripes (GFD.20 section 3.4.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StripeLayout {
    #[default]
    ServerDefault,
    Partitioned,
    Blocked {
        block_size: Option<u64>,
    },
}

/// The session's options at the moment in which a data channel is made; later changes do not reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelOptions {
    pub mode: Mode,
    pub representation: RepresentationType,
    /// Streams that a sending server opens for each address, at least 1.
    pub parallelism: u32,
    pub layout: StripeLayout,
    /// SO_SNDBUF in bytes, where the client asked for one.
    pub send_buffer: Option<u64>,
    /// SO_RCVBUF in bytes, where the client asked for one.
    pub receive_buffer: Option<u64>,
    /// ABUF: both buffers are to be sized by what is known of the path, to so many bytes at most. Never together with one
    /// of the fixed sizes.
    pub automatic_buffers: Option<u64>,
    /// The congestion control that the client chose, among those allowed.
    pub congestion: Option<CongestionName>,
    /// DCAU: always none on a control connection without security.
    pub authentication: DataAuthentication,
    /// PROT. Where only authentication could give it (GSI) and there is none, the channel is to be refused.
    pub protection: Protection,
    /// PBSZ under [`Outcome::Wrapped`]: the longest message on a protected data connection, in bytes.
    pub protection_buffer: u32,
    /// SITE DATAKEY (our extension): the channel's connections are to prove that they have it. Never together with DCAU or
    /// PROT.
    pub key: Option<DataKey>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Make a passive data channel: answer [`Outcome::Addresses`]. The one before it goes, whatever comes of this.
///
/// In stream mode a channel is used up by one transfer or listing that reported [`Event::Begun`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// `None`: the family of the control connection.
    pub family: Option<Family>,
    /// SPAS: one address for each stripe.
    pub striped: bool,
    pub channel: ChannelOptions,
}

/// Make an active data channel; nothing is connected yet. Answer [`Outcome::Done`], or a failure where the
/// user may not send data to these addresses. The channel before it goes, whatever comes of this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    pub addresses: Vec<SocketAddr>,
    pub channel: ChannelOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The server sends: RETR, ERET.
    Retrieve,
    /// The server receives: STOR, APPE, ESTO.
    Store,
}

/// An expected checksum of the whole file (SCKS, STORATTR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedChecksum {
    pub algorithm: ChecksumAlgorithm,
    /// Lower case hexadecimal.
    pub value: String,
}

/// One file transfer over the data channel last made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub direction: Direction,
    pub path: VirtualPath,
    /// Retrieve: `ERET P offset length`; wire offsets count from `offset`.
    pub window: Option<Window>,
    /// Store: `ESTO A offset`; wire offsets are added to it and the file is not truncated.
    pub adjust: Option<u64>,
    /// Store: APPE.
    pub append: bool,
    /// REST was given: `present` is what the destination has already, relative to window or adjust.
    pub restarted: bool,
    pub present: RangeSet,
    /// Store: the file takes the place of what has its name, as if it were renamed, also of a symbolic link and of a file
    /// that may not be written to (our extension, `OPTS STOR Replace=1;`). Not what goes on with a file, or adds to it.
    pub replaces: bool,
    /// Store: the size that ALLO announced.
    pub allocated: Option<u64>,
    pub expected: Option<ExpectedChecksum>,
    /// Store: modification time to set, in seconds since 1970 (SITE STORATTR modify).
    pub modified: Option<i64>,
    pub mode: Mode,
    pub representation: RepresentationType,
    /// Checksum to compute while the data passes (our extension, `OPTS RETR Checksum=ALG;`).
    pub inline_checksum: Option<ChecksumAlgorithm>,
    /// Seconds between 112 markers, 0 for none.
    pub perf_interval: u32,
    /// Seconds between 111 markers, 0 for none.
    pub restart_interval: u32,
    /// Report [`Event::Path`] with each [`Event::Perf`].
    pub path_info: bool,
    /// Report [`Event::Storage`] with each [`Event::Perf`].
    pub storage_info: bool,
    /// The congestion control of connections made from now on, as in [`ChannelOptions`].
    pub congestion: Option<CongestionName>,
    /// Tell the address only now (delayed passive): report [`Event::Listening`] first.
    pub delayed: Option<Listen>,
}

/// A part of a file, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub offset: u64,
    pub length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListForm {
    /// LIST
    Long,
    /// NLST
    Names,
    /// MLSD
    Facts,
    /// MLSR
    Recursive,
}

/// A listing over the data channel: rows are formatted by `listing` and `facts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    pub form: ListForm,
    pub path: VirtualPath,
    pub facts: FactSet,
    /// MLSR: go on after an entry that cannot be read.
    pub continue_on_error: bool,
    /// MLSR: descend into directories that symbolic links lead to.
    pub traverse_links: bool,
    pub mode: Mode,
    pub representation: RepresentationType,
    pub delayed: Option<Listen>,
}

/// SITE PROFILE but for FETCH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileRequest {
    /// Measure this host, for so many seconds at most; `raw`: and keep the tools' own files.
    Start {
        seconds: Option<u32>,
        raw: bool,
    },
    Clock,
    Stop,
    /// Reads this file past the page cache.
    ReadDisk(VirtualPath),
    /// Writes a file beside this one, which need not exist, and removes it.
    WriteDisk(VirtualPath),
    /// Checksums and encryption.
    Processor,
    /// One test of iperf3.
    Iperf,
}

/// A profile over the data channel: bytes as they are, whatever the representation type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchProfile {
    /// A file of a tool in place of the profile.
    pub raw: Option<BString>,
    pub mode: Mode,
    pub delayed: Option<Listen>,
}

/// What the host is asked to carry out.
#[derive(Debug)]
pub enum Operation {
    /// AUTH: a handshake begins, in place of any that was under way. With [`Mechanism::Tls`] it follows
    /// [`Action::Protect`]: answer [`Outcome::Done`] where it can begin.
    SecurityBegin(Mechanism),
    /// ADAT, base64: answer [`Outcome::SecurityToken`] or [`Outcome::Secured`]. After a failure the handshake is over.
    SecurityToken(BString),
    /// DCSC P: the credential for data connections, base64 of PEM; `None`: the usual one again.
    DataCredential(Option<Password>),
    /// Answer [`Outcome::LoggedIn`]. Where the session is secured, the name is to be one that the authenticated client may
    /// have, or `:globus-mapping:` for its usual one.
    Login {
        user: BString,
        password: Password,
    },
    Listen(Listen),
    Connect(Connect),
    /// ABUF: say which buffers, of at most so many bytes, suit the path to this client (0: the system is to choose). Answer
    /// [`Outcome::Advice`]. It holds for channels made from now on ([`ChannelOptions::automatic_buffers`]).
    AdviseBuffers {
        ceiling: u64,
    },
    /// The data channel and its cached connections go (MODE, DCAU or PROT changed).
    CloseChannel,
    Transfer(Box<Transfer>),
    List(Box<List>),
    /// Must be a directory that may be entered.
    ChangeDirectory(VirtualPath),
    /// Answer [`Outcome::Entry`]; `follow` symbolic links or not.
    Stat {
        path: VirtualPath,
        follow: bool,
    },
    /// MLSC: report [`Event::Entries`] in chunks, then complete.
    ListHere {
        path: VirtualPath,
    },
    /// SIZE: answer [`Outcome::Size`]. A directory has none (RFC 3659 section 4.2).
    Size(VirtualPath),
    MakeDirectory(VirtualPath),
    RemoveDirectory(VirtualPath),
    Delete(VirtualPath),
    /// SITE RDEL.
    DeleteTree(VirtualPath),
    Rename {
        from: VirtualPath,
        to: VirtualPath,
    },
    SetModified {
        path: VirtualPath,
        modified: i64,
    },
    ChangeMode {
        path: VirtualPath,
        mode: u32,
    },
    ChangeGroup {
        path: VirtualPath,
        group: BString,
    },
    Truncate {
        path: VirtualPath,
        length: u64,
    },
    Symlink {
        target: BString,
        link: VirtualPath,
    },
    /// CKSM: `length` `None` is to the end of the file. Report [`Event::Checksummed`]; answer [`Outcome::Checksum`].
    Checksum {
        algorithm: ChecksumAlgorithm,
        offset: u64,
        length: Option<u64>,
        path: VirtualPath,
        /// Seconds between 113 markers, 0 for none.
        marker_interval: u32,
    },
    /// What an interrupted upload to this path left on disk (our extension, SITE RANGES): answer [`Outcome::Ranges`].
    Ranges(VirtualPath),
    /// SITE PROFILE (our extension): answer [`Outcome::Profile`]. Whether this user may, the host decides.
    Profile(ProfileRequest),
    /// SITE PROFILE FETCH: sends over the data channel what the last STOP told of.
    FetchProfile(Box<FetchProfile>),
    /// SITE CHROOT: the path becomes the session's root. The data channel goes: its connections belong to a session that may
    /// see more.
    ChangeRoot(VirtualPath),
    /// SITE RESTRICT: a path rule list (GCT syntax), relative to the session's root.
    Restrict(BString),
    /// SITE CLIENTINFO, verbatim, for the log.
    ClientInfo(BString),
    /// SITE TASKID, for the log.
    TaskId(BString),
}

/// Progress of the operation under way.
#[derive(Clone, Debug)]
pub enum Event {
    /// Delayed passive: here are the addresses.
    Listening(Vec<SocketAddr>),
    /// A data connection is up.
    Begun { reused: bool },
    /// Time for a 112 marker. `timestamp` is in tenths of a second since 1970.
    Perf { timestamp: u64, stripe: u32, stripes: u32, bytes: u64 },
    /// Time for a 111 marker: what was received since the last one.
    Received(RangeSet),
    /// Time for a 115 marker.
    Path(PathMarker),
    /// The streams of the transfer have waited so long for storage until now, summed over them; sent as a 115 marker if
    /// [`Transfer::storage_info`].
    Storage(Duration),
    /// Time for a 113 marker. `timestamp` is in tenths of a second since 1970.
    Checksummed { timestamp: u64, bytes: u64 },
    /// A chunk of the listing of [`Operation::ListHere`].
    Entries(Vec<Entry>),
}

/// How an operation ended well.
#[derive(Debug)]
pub enum Outcome {
    Done,
    LoggedIn {
        local_user: String,
        home: VirtualPath,
        message: Option<String>,
    },
    /// The handshake goes on: the token to send, base64.
    SecurityToken(String),
    /// The client is authenticated. With a last token, base64, where there is one.
    Secured(Option<String>),
    /// As `Secured`, by a mechanism whose context protects data connections too (RFC 2228 section 3; Kerberos): there is no
    /// DCAU, and PROT holds by itself.
    Wrapped(Option<String>),
    Addresses(Vec<SocketAddr>),
    /// Text for the reply to ABUF.
    Advice(String),
    /// `checksum` where one was computed in passing.
    Transferred {
        checksum: Option<(ChecksumAlgorithm, String)>,
    },
    /// Bytes of a listing that were sent.
    Listed {
        bytes: u64,
    },
    Entry {
        entry: Box<Entry>,
        /// The host's clock, in seconds since 1970: STAT tells by it whether a time needs its year.
        now: i64,
    },
    Size(u64),
    Checksum(String),
    Ranges(RangeSet),
    Profile(ProfileAnswer),
}

/// How an operation failed; the session turns it into GCT's replies (`error_class`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A file operation failed: errno, and the name of the call that failed, such as `mkdir` (which makes GCT's
    /// `System error in mkdir`). Where a file cannot be opened it is `open`: that has replies of its own.
    System {
        errno: i32,
        action: String,
    },
    /// A class of GCT's with text lines.
    Class {
        class: ErrorClass,
        lines: Vec<String>,
    },
    /// The path is outside of what the user may reach, or the right is missing.
    NotAllowed,
    /// Log-in refused, with the reason.
    LoginDenied(String),
    /// Data connection could not be made.
    DataConnection(String),
    /// Data connection broke or carried nonsense, after it was made.
    DataBroken(String),
    /// RETR/STOR before PASV/PORT, or a direction that the channel cannot carry.
    NoDataChannel(String),
    ChecksumMismatch {
        computed: String,
        expected: String,
    },
    /// The server will not: 5xx with this text.
    Refused {
        code: u16,
        text: String,
    },
    /// Broken off by ABOR.
    Aborted,
    /// Too busy or shutting down: 451 or 421 with this text.
    Busy(String),
}
