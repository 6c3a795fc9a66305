//! The interface between a server session and its host: the actions that a session requests, and
//! the results that the host reports.
//!
//! The session decides everything that can be decided from the bytes that a client sent. The host
//! owns the sockets, the files, the users and the clock. A session runs one operation at a time.

use std::net::SocketAddr;
use std::time::Duration;

use bstr::BString;

use crate::command::{ChecksumAlgorithm, DataAuthentication, Password, Protection};
use crate::congestion::CongestionName;
use crate::data_key::DataKey;
use crate::error_class::ErrorClass;
use crate::facts::{Entry, FactSet};
use crate::hop_login::HopLogin;
use crate::marker::PathMarker;
use crate::one_port::{OnePort, Token};
use crate::path::VirtualPath;
use crate::profiling::ProfileAnswer;
use crate::range::RangeSet;
use crate::reply::Reply;
use crate::scitag::{SciTag, SciTagCommand};
use crate::slots::{ReservedSlots, SlotsCommand};
use crate::space::{ReservedSpace, SpaceCommand};
use crate::stack::StackSpec;
use crate::upload::{UploadId, UploadRequest};
use crate::usage::Usage;

/// A step for the host. The host takes the steps in order.
#[derive(Debug)]
pub enum Action {
    /// Send this reply on the control connection.
    Send(Reply),
    /// Carry out this operation, then call [`Session::completed`](super::Session::completed) once.
    Perform(Operation),
    /// Abort the running operation. The host still has to complete it, with [`Failure::Aborted`] if
    /// it had not ended. The session requests this at most once per operation, and only for
    /// operations that may take long.
    Abort,
    /// SITE STREAMS (Ropewalk extension): the data channel, if there is one, uses this number of
    /// streams from now on when it sends in MODE E, also in the transfer in progress. The number is
    /// within the limits of the configuration, and the session has sent the reply.
    Streams(u32),
    /// Protect all further input and output with the context that [`Outcome::Secured`] reported, or
    /// with TLS, which starts now. Replies before this action are sent in clear.
    Protect,
    /// Close the control connection after all earlier output has been written.
    Close,
}

/// A log-in that was refused before a password or token was received, because the settings require
/// another kind of connection ([`Session::refused_login`](super::Session::refused_login)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedLogin {
    /// The argument of USER.
    pub user: BString,
    pub reason: String,
}

/// The mechanism that secures a control connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// RFC 2228: tokens in ADAT, after which each line is protected separately.
    Gssapi,
    /// RFC 4217: all bytes are sent through TLS.
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

/// The way in which blocks are distributed to stripes (GFD.20 section 3.4.2.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum StripeLayout {
    #[default]
    ServerDefault,
    Partitioned,
    Blocked {
        block_size: Option<u64>,
    },
}

/// The session's options at the time at which a data channel is created. Later changes do not
/// affect the channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelOptions {
    pub mode: Mode,
    pub representation: RepresentationType,
    /// Number of streams that a sending server opens for each address, at least 1.
    pub parallelism: u32,
    pub layout: StripeLayout,
    /// SO_SNDBUF in bytes, if the client requested a size.
    pub send_buffer: Option<u64>,
    /// SO_RCVBUF in bytes, if the client requested a size.
    pub receive_buffer: Option<u64>,
    /// ABUF: the host determines both buffer sizes from its knowledge of the path, up to this
    /// number of bytes. Never set together with one of the fixed sizes.
    pub automatic_buffers: Option<u64>,
    /// The congestion control algorithm that the client chose, which is one of those allowed.
    pub congestion: Option<CongestionName>,
    /// DCAU: always none on a control connection without security.
    pub authentication: DataAuthentication,
    /// PROT. If this protection requires authentication (GSI) and there is none, the host has to
    /// refuse the channel.
    pub protection: Protection,
    /// PBSZ with [`Outcome::Wrapped`]: the longest message on a protected data connection, in
    /// bytes.
    pub protection_buffer: u32,
    /// SITE DATAKEY (Ropewalk extension): the connections of the channel have to prove that they
    /// know this key. Never set together with DCAU or PROT.
    pub key: Option<DataKey>,
    /// SITE SETNETSTACK: the drivers of the channel; `None` leaves them to the host. DCAU, PROT and
    /// the key hold with any stack.
    pub stack: Option<StackSpec>,
}

/// SITE SETNETSTACK: a stack for later data channels, and the security that they would have now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetStack {
    pub stack: StackSpec,
    /// DCAU, as in [`ChannelOptions::authentication`].
    pub authentication: DataAuthentication,
    /// PROT.
    pub protection: Protection,
}

/// The stacks of drivers that a client can choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackKind {
    /// SITE SETNETSTACK.
    DataChannel,
    /// SITE SETDISKSTACK.
    FileSystem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Create a passive data channel, and report [`Outcome::Addresses`]. The previous channel is
/// closed, even if this fails.
///
/// In stream mode, one transfer or listing that reported [`Event::Begun`] uses the channel up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// `None` stands for the family of the control connection.
    pub family: Option<Family>,
    /// SPAS: one address per stripe.
    pub striped: bool,
    /// SITE ONEPORT: connections come through one port for all channels. Report
    /// [`Outcome::OnePort`] instead.
    pub one_port: bool,
    pub channel: ChannelOptions,
}

/// Create an active data channel, without connecting yet. Report [`Outcome::Done`], or a failure if
/// the user must not send data to these addresses. The previous channel is closed, even if this
/// fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    pub addresses: Vec<SocketAddr>,
    /// SITE ONEPORT: the address is a control port, where this token names the data channel.
    pub token: Option<Token>,
    pub channel: ChannelOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The server sends: RETR, ERET.
    Retrieve,
    /// The server receives: STOR, APPE, ESTO.
    Store,
}

/// The expected checksum of the whole file (SCKS, STORATTR).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedChecksum {
    pub algorithm: ChecksumAlgorithm,
    /// In lower case hexadecimal digits.
    pub value: String,
}

/// One file transfer over the last data channel that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    pub direction: Direction,
    pub path: VirtualPath,
    /// The tag at the end of the path that the client gave (`?scitag.flow=147`).
    pub scitag: Option<SciTag>,
    /// Retrieve: `ERET P offset length`; offsets on the wire are relative to `offset`.
    pub window: Option<Window>,
    /// Store: `ESTO A offset`; offsets on the wire are relative to it, and the file is not
    /// truncated.
    pub adjust: Option<u64>,
    /// Store: APPE.
    pub append: bool,
    /// REST was received: `present` are the ranges that the destination already has, relative to
    /// `window` or `adjust`.
    pub restarted: bool,
    pub present: RangeSet,
    /// Store: the complete file replaces an existing file, as a rename does. This also replaces a
    /// symbolic link, or a file without write permission (Ropewalk extension, `OPTS STOR
    /// Replace=1;`). Never set for an upload that resumes or extends a file.
    pub replaces: bool,
    /// Store: the data is for this upload, to which `path` and `adjust` belong (Ropewalk extension,
    /// `ESTO U`).
    pub upload: Option<UploadId>,
    /// Store: the size that ALLO announced, in bytes.
    pub allocated: Option<u64>,
    pub expected: Option<ExpectedChecksum>,
    /// Store: the modification time to set, in seconds since 1970 (SITE STORATTR modify).
    pub modified: Option<i64>,
    pub mode: Mode,
    pub representation: RepresentationType,
    /// Algorithm of the checksum to compute during the transfer (Ropewalk extension, `OPTS RETR
    /// Checksum=ALG;`).
    pub inline_checksum: Option<ChecksumAlgorithm>,
    /// Seconds between 112 markers, 0 for none.
    pub perf_interval: u32,
    /// Seconds between 111 markers, 0 for none.
    pub restart_interval: u32,
    /// Report [`Event::Path`] with each [`Event::Perf`].
    pub path_info: bool,
    /// The receiver takes blocks that are sent again (`OPTS RETR Resend=1;`).
    pub resend: bool,
    /// Report [`Event::Storage`] with each [`Event::Perf`].
    pub storage_info: bool,
    /// Report [`Event::Nodes`] when a channel over up to this number of data nodes that is made now
    /// would be better than the present one. 0: never.
    pub nodes: u32,
    /// The congestion control algorithm for further connections, as in [`ChannelOptions`].
    pub congestion: Option<CongestionName>,
    /// Delayed passive: create this channel, and report its addresses with [`Event::Listening`]
    /// first.
    pub delayed: Option<Listen>,
}

/// A range of a file: offset and length in bytes.
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

/// A listing over the data channel. The host formats the lines with `listing` and `facts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    pub form: ListForm,
    pub path: VirtualPath,
    pub facts: FactSet,
    /// MLSR: continue after an entry that cannot be read.
    pub continue_on_error: bool,
    /// MLSR: descend into directories through symbolic links.
    pub traverse_links: bool,
    pub mode: Mode,
    pub representation: RepresentationType,
    pub delayed: Option<Listen>,
}

/// SITE PROFILE, except FETCH.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileRequest {
    /// Measure this host for at most this time; if `raw` is true, keep the output files of the
    /// tools.
    Start {
        seconds: Option<u32>,
        raw: bool,
    },
    Clock,
    Stop,
    /// Measure reading this file without the page cache.
    ReadDisk(VirtualPath),
    /// Measure writing a file next to this one, which need not exist, and remove it.
    WriteDisk(VirtualPath),
    /// Measure checksums and encryption.
    Processor,
    /// Start an iperf3 server for one test.
    Iperf,
}

/// A profile over the data channel: raw bytes, regardless of the representation type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchProfile {
    /// Send this output file of a tool instead of the profile.
    pub raw: Option<BString>,
    pub mode: Mode,
    pub delayed: Option<Listen>,
}

/// An operation that the host has to carry out.
#[derive(Debug)]
pub enum Operation {
    /// AUTH: start the security mechanism, in place of a security exchange in progress. With
    /// [`Mechanism::Tls`] the TLS handshake follows [`Action::Protect`]; report [`Outcome::Done`]
    /// if it can start.
    SecurityBegin(Mechanism),
    /// ADAT, in base64: report [`Outcome::SecurityToken`] or [`Outcome::Secured`]. A failure ends
    /// the exchange of tokens.
    SecurityToken(BString),
    /// DCSC P: use this credential for data connections, in base64 of PEM; `None` restores the
    /// usual one.
    DataCredential(Option<Password>),
    /// Report [`Outcome::LoggedIn`]. If the session is secured, the name has to be one that is
    /// allowed for the authenticated client, or `:globus-mapping:` for its usual name.
    Login {
        user: BString,
        password: Password,
    },
    Listen(Listen),
    Connect(Box<Connect>),
    /// ABUF: describe the buffer sizes, up to `ceiling` bytes, that suit the path to this client
    /// (0: the system chooses). Report [`Outcome::Advice`]. It applies to channels that are created
    /// later ([`ChannelOptions::automatic_buffers`]).
    AdviseBuffers {
        ceiling: u64,
    },
    /// Close the data channel and its cached connections (MODE, DCAU or PROT changed).
    CloseChannel,
    Transfer(Box<Transfer>),
    List(Box<List>),
    /// The path has to be a directory that the user may enter.
    ChangeDirectory(VirtualPath),
    /// Report [`Outcome::Entry`]; `follow` decides whether symbolic links are followed.
    Stat {
        path: VirtualPath,
        follow: bool,
    },
    /// MLSC: report [`Event::Entries`] in chunks, then complete the operation.
    ListHere {
        path: VirtualPath,
    },
    /// SIZE: report [`Outcome::Size`]. A directory has no size (RFC 3659 section 4.2).
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
    /// CKSM: if `length` is `None`, sum to the end of the file. Report [`Event::Checksummed`], then
    /// [`Outcome::Checksum`].
    Checksum {
        algorithm: ChecksumAlgorithm,
        offset: u64,
        length: Option<u64>,
        path: VirtualPath,
        /// Seconds between 113 markers, 0 for none.
        marker_interval: u32,
    },
    /// SITE RANGES (Ropewalk extension): report the ranges that an interrupted upload to this path
    /// left on disk, as [`Outcome::Ranges`].
    Ranges(VirtualPath),
    /// SITE USAGE: report [`Outcome::Usage`] of the directory, or of the quota with this name.
    Usage {
        token: Option<BString>,
        path: VirtualPath,
    },
    /// SITE SLOTS (Ropewalk extension): report [`Outcome::ReservedSlots`] of the reservation that
    /// was made or is used, of all for LIST, or [`Outcome::Done`].
    Slots(SlotsCommand),
    /// SITE SPACE (Ropewalk extension): report [`Outcome::Reserved`] of the reservation that was
    /// made or is used, of all for LIST, or [`Outcome::Done`].
    Space(SpaceCommand<VirtualPath>),
    /// SITE UPLOAD (Ropewalk extension), see [`crate::upload`]. Report [`Outcome::UploadBegun`],
    /// [`Outcome::Ranges`], [`Outcome::Size`] of the complete file, or [`Outcome::Done`].
    Upload(Box<UploadRequest>),
    /// SITE PROFILE (Ropewalk extension): report [`Outcome::Profile`]. The host decides whether the
    /// user may do this.
    Profile(ProfileRequest),
    /// SITE PROFILE FETCH: send the result of the last STOP over the data channel.
    FetchProfile(Box<FetchProfile>),
    /// SITE CHROOT: the path becomes the session's root. The data channel is closed, because its
    /// connections belong to a session that may see more files.
    ChangeRoot(VirtualPath),
    /// SITE RESTRICT: a list of path rules (GCT syntax), relative to the session's root.
    Restrict(BString),
    /// SITE SETNETSTACK: check whether a channel can have this stack. It is used for channels that
    /// are created later ([`ChannelOptions::stack`]).
    SetNetStack(Box<NetStack>),
    /// SITE SETDISKSTACK: access files through these drivers; `None` stands for the default.
    SetDiskStack(Option<StackSpec>),
    /// SITE HOPLOGIN (Ropewalk extension): the log-in at a server behind this one, for this session
    /// alone.
    HopLogin(HopLogin),
    /// SITE CLIENTINFO, unparsed, for the log.
    ClientInfo(BString),
    /// SITE SCITAG (Ropewalk extension): report the tag that is effective afterwards, as
    /// [`Outcome::SciTag`].
    SciTag(SciTagCommand),
    /// SITE TASKID, for the log.
    TaskId(BString),
}

/// Progress of the running operation.
#[derive(Clone, Debug)]
pub enum Event {
    /// Delayed passive: the addresses of the channel.
    Listening(Vec<SocketAddr>),
    /// A data connection was made; `reused` if it existed before.
    Begun { reused: bool },
    /// A 112 marker is due. `timestamp` is in tenths of a second since 1970.
    Perf { timestamp: u64, stripe: u32, stripes: u32, bytes: u64 },
    /// A 111 marker is due: the ranges received since the last one.
    Received(RangeSet),
    /// A 115 marker is due.
    Path(PathMarker),
    /// The time for which the streams of the transfer have waited for storage until now, summed
    /// over the streams. It is sent as a 115 marker if [`Transfer::storage_info`] is set.
    Storage(Duration),
    /// Data nodes have joined, and a channel that is made now has this number of nodes and is
    /// better than the present one. It is sent as a 115 marker if [`Transfer::nodes`] is set.
    Nodes(u32),
    /// A 113 marker is due. `timestamp` is in tenths of a second since 1970.
    Checksummed { timestamp: u64, bytes: u64 },
    /// A chunk of the listing of [`Operation::ListHere`].
    Entries(Vec<Entry>),
}

/// The result of a successful operation.
#[derive(Debug)]
pub enum Outcome {
    Done,
    LoggedIn {
        local_user: String,
        home: VirtualPath,
        message: Option<String>,
    },
    /// The exchange of tokens continues with this token for the client, in base64.
    SecurityToken(String),
    /// The client is authenticated. The last token for the client, if there is one, is in base64.
    Secured(Option<String>),
    /// Like `Secured`, but the context of the mechanism also protects data connections (RFC 2228
    /// section 3; Kerberos): there is no DCAU, and PROT works without it.
    Wrapped(Option<String>),
    Addresses(Vec<SocketAddr>),
    /// The channel that [`Listen::one_port`] has made.
    OnePort(OnePort),
    /// The text for the reply to ABUF.
    Advice(String),
    /// `checksum` is set if it was computed during the transfer.
    Transferred {
        checksum: Option<(ChecksumAlgorithm, String)>,
    },
    /// Number of bytes of the listing that were sent.
    Listed {
        bytes: u64,
    },
    Entry {
        entry: Box<Entry>,
        /// The host's time, in seconds since 1970. STAT uses it to decide whether to print the year
        /// of a time.
        now: i64,
    },
    Size(u64),
    Checksum(String),
    Ranges(RangeSet),
    Usage(Usage),
    Reserved(Vec<ReservedSpace>),
    ReservedSlots(Vec<ReservedSlots>),
    /// `started_over` is the reason for which data of an earlier upload was not used.
    UploadBegun {
        bytes: u64,
        started_over: Option<String>,
    },
    Profile(ProfileAnswer),
    /// `None`: data connections have no tag.
    SciTag(Option<SciTag>),
}

/// The reason for which an operation failed. The session translates it into GCT's replies
/// (`error_class`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A file operation failed with this errno. `action` is the name of the failed call, such as
    /// `mkdir` (GCT's text is then `System error in mkdir`). If a file cannot be opened it is
    /// `open`, for which there are special replies.
    System {
        errno: i32,
        action: String,
    },
    /// One of GCT's error classes, with lines of text.
    Class {
        class: ErrorClass,
        lines: Vec<String>,
    },
    /// The path is outside of the user's directories, or the user has no permission.
    NotAllowed,
    /// The log-in was refused for this reason.
    LoginDenied(String),
    /// The data connection could not be made.
    DataConnection(String),
    /// The data connection was made, but it broke or carried invalid data.
    DataBroken(String),
    /// RETR or STOR before PASV or PORT, or a direction for which the channel cannot be used.
    NoDataChannel(String),
    ChecksumMismatch {
        computed: String,
        expected: String,
    },
    /// The server refuses: a failure code (5xx) with this text.
    Refused {
        code: u16,
        text: String,
    },
    /// Aborted by ABOR.
    Aborted,
    /// The server is too busy or is shutting down: 451 or 421 with this text.
    Busy(String),
}
