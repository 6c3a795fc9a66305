//! Errors of operations at servers and on local data.

mod cause;
mod public;
mod recovery;
mod words;

use std::io;
use std::time::Duration;

use bstr::BString;
use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::reply::Reply;
use ropewalk_storage::checksum::Algorithm;

use crate::FailureKind;

pub use public::{Error, ErrorContext, ErrorKind};
pub(crate) use recovery::Blame;
pub(crate) use words::NO_GREETING;

/// A failed operation, with the peer and the path.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error("cancelled")]
    Cancelled,
    #[error("{path}: a name with an end of line or a NUL byte cannot be sent in a command")]
    CannotTravel { path: BString },
    #[error("{path}: {algorithm} is {theirs} at the destination and {ours} at the source")]
    ChecksumMismatch { path: BString, algorithm: Algorithm, ours: String, theirs: String },
    #[error("{peer} closed the control connection; the reply to {command} was due")]
    Closed { peer: String, command: String },
    #[error("{peer} has closed the session: {}", text(reply))]
    Dismissed { peer: String, reply: Reply },
    /// `hint`: another address at which the server may be, after a semicolon; or empty.
    #[error("cannot connect to {peer}: {source}{hint}")]
    Connect { peer: String, source: io::Error, hint: String },
    #[error("control connection with {peer}: {source}")]
    Control { peer: String, source: io::Error },
    /// `reply`: what the server has answered after this end had broken the transfer off.
    #[error("{path}: data connection with {peer}: {source}{}{}", announced(source), answered(reply.as_ref()))]
    Data { peer: String, path: BString, source: Box<ropewalk_engine::Error>, reply: Option<Reply> },
    #[error("{path}: {source}")]
    Local { path: BString, source: ropewalk_storage::Error },
    #[error("{peer} refused the log-in: {}", text(reply))]
    Login { peer: String, reply: Reply },
    /// No user name was given.
    #[error("{peer} requires a user name: {}; use --user with --password-file, or --token", text(reply))]
    Nameless { peer: String, reply: Reply },
    /// A user name was given, but no password.
    #[error(
        "{peer} refused the log-in of {user}, for which no password was given (use --password-file): {}",
        text(reply)
    )]
    NoPassword { peer: String, user: BString, reply: Reply },
    /// An earlier failure: the server cannot be reached, or does not have the file.
    #[error("{reason}")]
    Lost { kind: FailureKind, reason: String },
    #[error("{peer} sent a malformed reply: {reason}")]
    Nonsense { peer: String, reason: String },
    /// An assumption from an earlier session is wrong: there may be several servers behind one
    /// address.
    #[error("{peer} differs from an earlier session: {reason}")]
    OtherServer { peer: String, reason: String },
    #[error("no data connection came from {peer} within {} s", limit.as_secs_f64())]
    NoDataConnection { peer: String, limit: Duration },
    /// All of a file arrived, and then its part could not be renamed: another program has removed
    /// or renamed it.
    #[error("{path} arrived at {peer} and was then removed there: {}", plain(reply))]
    PartVanished { peer: String, path: BString, reply: Reply },
    /// The transfers in flight no longer match the commands: the session is unusable, and its
    /// unfinished jobs are requeued.
    #[error("the session is desynchronized")]
    Desynchronized,
    /// `command` may include the path.
    #[error("{peer} answered {command} with: {}", plain(reply))]
    Refused { peer: String, command: String, reply: Reply },
    /// Or the server does not start at the requested offset.
    #[error("{path}: {peer} sends more than the file had: it grew while it was copied")]
    Grew { peer: String, path: BString },
    #[error("{path}: only {bytes} of {expected} bytes arrived")]
    Incomplete { path: BString, bytes: u64, expected: u64 },
    #[error("cannot find {host}: {source}")]
    Resolve { host: String, source: io::Error },
    #[error("{peer} did not reply to {command} within {} s", limit.as_secs_f64())]
    Silent { peer: String, command: String, limit: Duration },
    /// The connecting program has failed; its own words, or its exit code.
    #[error("ssh to {peer} failed: {reason}")]
    Ssh { peer: String, reason: String },
    #[error("{line}: {peer} drops non-ASCII and control characters from names, and would use another file")]
    NotAscii { peer: String, line: BString },
    #[error("{path}: the destination has {there} bytes, the source {expected}")]
    SizeMismatch { path: BString, expected: u64, there: u64 },
    #[error("{path}: the file changed while it was copied")]
    SourceChanged { path: BString },
    #[error("{path}: fewer than {bytes_per_second} bytes/s for {} s", time.as_secs_f64())]
    Stalled { path: BString, bytes_per_second: u64, time: Duration },
    /// The entry of this line may exist, so no name may count as missing.
    #[error("{peer} sent a line in a listing that cannot be parsed: {line:?}")]
    Listing { peer: String, line: BString },
    /// A server's listing does not match its directory.
    #[error("{path}: the listing is wrong: {reason}")]
    Mistold { path: BString, reason: String },
    /// There are more names, which must not count as missing.
    #[error("{peer} did not send the whole listing: {reason}")]
    CutOff { peer: String, reason: String },
    /// A server's recursive listing says that it could not read this (the fact `Error`).
    #[error("{path}: it cannot be listed: {}", unlisted(reason))]
    Unlisted { path: BString, reason: String },
    /// The partial file of an interrupted transfer was unusable; the next try restarts.
    #[error("cannot resume the partial file: {reason}")]
    Unresumable { reason: String },
    /// Other sessions are open, and do the work.
    #[error("{peer} accepts no further session: {source}")]
    Crowded { peer: String, source: Box<Self> },
    /// The source is a pipe, of which a part was read.
    #[error("{source} (and the source cannot be read a second time)")]
    Spent { source: Box<Self> },
    /// The server exchanges data with its client only.
    #[error(
        "{peer} does not send to {other}: {}; pass the data through this machine (--through-here)",
        text(reply)
    )]
    NoThirdParty { peer: String, other: String, reply: Reply },
    #[error("cannot make a pipe: {0}")]
    Pipe(io::Error),
    #[error("cannot start a thread: {0}")]
    Threads(io::Error),
    #[error("{peer} cannot {what}")]
    Unsupported { peer: String, what: String },
    #[error("{0}")]
    Usage(String),
    /// The peer or the connection is not as secure as required.
    #[error("{peer}: {reason}")]
    Security { peer: String, reason: String },
    /// The caller's output could not be written.
    #[error("writing the output: {0}")]
    Output(io::Error),
}

/// The value with which servers report in a recursive listing that they could not open a directory.
const OPEN_FAILED: &str = "OpenFailed";

/// Advice about an announced address that cannot be reached.
fn announced(error: &ropewalk_engine::Error) -> &'static str {
    match error {
        ropewalk_engine::Error::Connect { source, .. } if is_of_network(source.kind()) => {
            " (the server announced this address for data: it must be reachable from here, and no \
             firewall may block the port)"
        }
        _ => "",
    }
}

fn answered(reply: Option<&Reply>) -> String {
    reply.map(|reply| format!(" (its reply: {})", plain(reply))).unwrap_or_default()
}

/// Whether the network or the peer is the reason why a connection could not be made, and not this
/// host.
fn is_of_network(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut,
        UnexpectedEof,
    };
    matches!(
        kind,
        ConnectionAborted
            | ConnectionRefused
            | ConnectionReset
            | HostUnreachable
            | NetworkUnreachable
            | TimedOut
            | UnexpectedEof
    )
}

fn unlisted(reason: &str) -> &str {
    if reason == OPEN_FAILED { "the server may not open it" } else { reason }
}

/// Longest text of a reply in a message, in characters.
const LONGEST_REPLY: usize = 1000;

/// The text of a reply in one line, for messages; a very long text is cut.
pub(crate) fn text(reply: &Reply) -> String {
    shortened(whole_text(reply))
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(LONGEST_REPLY) {
        text.truncate(end);
        text.push_str("...");
    }
    text
}

/// The text of a reply in one line.
fn whole_text(reply: &Reply) -> String {
    let lines: Vec<String> = reply.lines().map(ToString::to_string).collect();
    let last = lines.len() - 1;
    // The closing "End." of a multi-line reply has no information.
    let said =
        lines.iter().enumerate().filter(|(i, line)| !(*i == last && last > 0 && line.starts_with("End")));
    let said: Vec<&str> = said.map(|(_, line)| line.trim()).collect();
    format!("{} {}", reply.code(), said.join("; "))
}

/// The same as [`text`] without the function names and the repeated reasons in replies of GCT's
/// servers.
fn plain(reply: &Reply) -> String {
    const FILE: &str = "Unable to open file ";
    const CALL: &str = "A system call failed: ";
    const STRUCTURED: &str = "GridFTP-Error-String: ";
    let lines: Vec<String> = reply.lines().map(|line| line.to_string()).collect();
    let after = |mark: &str| {
        let found = lines.iter().find_map(|line| Some(line.split_once(mark)?.1.trim()));
        found.filter(|rest| !rest.is_empty())
    };
    let Some(reason) = after(STRUCTURED).or_else(|| after(CALL)) else { return text(reply) };
    shortened(match after(FILE) {
        Some(file) => format!("{} {file}: {reason}", reply.code()),
        None => format!("{} {reason}", reply.code()),
    })
}

impl RemoteError {
    /// The kind of this failure, which determines the exit code.
    pub(crate) fn kind(&self) -> FailureKind {
        match self {
            Self::Cancelled => FailureKind::Interrupted,
            Self::ChecksumMismatch { .. } | Self::SizeMismatch { .. } => FailureKind::ChecksumMismatch,
            Self::Closed { .. }
            | Self::Connect { .. }
            | Self::Control { .. }
            | Self::Dismissed { .. }
            | Self::NoDataConnection { .. }
            | Self::Desynchronized
            | Self::Resolve { .. }
            | Self::Silent { .. } => FailureKind::Unreachable,
            Self::Data { source, .. } => match **source {
                ropewalk_engine::Error::Stalled { .. } => FailureKind::Stalled,
                // The server was reached; what it sent is invalid, or this host is the reason.
                _ if self.is_known_here() => FailureKind::Other,
                _ => FailureKind::Unreachable,
            },
            Self::Local { source, .. } => local_kind(source),
            // The server is unavailable to all users.
            Self::Login { reply, .. } | Self::Nameless { reply, .. } | Self::NoPassword { reply, .. }
                if reply.code() == 421 =>
            {
                FailureKind::Unreachable
            }
            Self::Login { .. } | Self::Nameless { .. } | Self::NoPassword { .. } | Self::Security { .. } => {
                FailureKind::Authentication
            }
            Self::Ssh { reason, .. } => words::ssh_kind(reason),
            Self::Lost { kind, .. } => *kind,
            Self::Crowded { source, .. } | Self::Spent { source } => source.kind(),
            Self::NoThirdParty { .. } => FailureKind::Permission,
            Self::Output(source)
                if matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
                ) =>
            {
                FailureKind::NoSpace
            }
            Self::PartVanished { reply, .. } | Self::Refused { reply, .. } => reply_kind(reply),
            Self::Stalled { .. } => FailureKind::Stalled,
            // The words of servers that may not open a directory.
            Self::Unlisted { reason, .. } if reason == OPEN_FAILED || reason.contains("ermission denied") => {
                FailureKind::Permission
            }
            Self::CannotTravel { .. }
            | Self::CutOff { .. }
            | Self::Mistold { .. }
            | Self::Grew { .. }
            | Self::Incomplete { .. }
            | Self::Listing { .. }
            | Self::Nonsense { .. }
            | Self::NotAscii { .. }
            | Self::OtherServer { .. }
            | Self::Output(_)
            | Self::SourceChanged { .. }
            | Self::Pipe(_)
            | Self::Threads(_)
            | Self::Unlisted { .. }
            | Self::Unresumable { .. }
            | Self::Unsupported { .. }
            | Self::Usage(_) => FailureKind::Other,
        }
    }

    /// The server refused to report an arrived part, or to rename it.
    pub(crate) fn of_part(peer: String, command: &str, part: &BString, reply: Reply) -> Self {
        if reply_kind(&reply) == FailureKind::NotFound {
            Self::PartVanished { peer, path: part.clone(), reply }
        } else {
            Self::Refused { peer, command: command.to_owned(), reply }
        }
    }

    /// The refused command, without its arguments.
    pub(crate) fn refused_command(&self) -> Option<&str> {
        match self {
            Self::Refused { command, .. } => command.split(' ').next(),
            _ => None,
        }
    }

    /// The code of the server's refusal.
    pub(crate) fn reply_code(&self) -> Option<u16> {
        match self {
            Self::Refused { reply, .. } => Some(reply.code()),
            _ => None,
        }
    }

    /// Whether the server refuses the log-in.
    pub(crate) fn is_refused_log_in(&self) -> bool {
        matches!(
            self,
            Self::Login { .. } | Self::Nameless { .. } | Self::NoPassword { .. } | Self::Refused { .. }
        )
    }

    /// Whether no program listens at the address.
    pub(crate) fn is_refused_connection(&self) -> bool {
        matches!(self, Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }

    /// Whether another process writes the file.
    pub(crate) fn is_busy(&self) -> bool {
        match self {
            Self::Refused { reply, .. } => ErrorClass::of(reply) == Some(ErrorClass::TooBusy),
            Self::Local { source, .. } => source.kind() == ropewalk_storage::ErrorKind::Busy,
            _ => false,
        }
    }

    /// Converts an error of the engine: local errors do not concern the connection.
    pub(crate) fn data(peer: &str, path: BString, error: ropewalk_engine::Error) -> Self {
        use ropewalk_engine::Error as E;
        match error {
            E::Store(source) => Self::Local { path, source },
            E::SourceChanged { .. } => Self::SourceChanged { path },
            E::Reader(error) => {
                let source = ropewalk_storage::Error::from_io(&error, "read", path.as_slice());
                Self::Local { path, source }
            }
            E::Writer(source) => Self::Output(source),
            source => Self::Data { peer: peer.to_owned(), path, source: Box::new(source), reply: None },
        }
    }

    pub(crate) fn local(path: impl Into<BString>, source: ropewalk_storage::Error) -> Self {
        Self::Local { path: path.into(), source }
    }
}

fn local_kind(error: &ropewalk_storage::Error) -> FailureKind {
    use rustix::io::Errno;
    match error.errno().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR) => FailureKind::NotFound,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => FailureKind::Permission,
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => FailureKind::NoSpace,
        _ => FailureKind::Other,
    }
}

/// The kind of a refusal. GCT reports a class, older servers only words.
pub(crate) fn reply_kind(reply: &Reply) -> FailureKind {
    let said = whole_text(reply).to_ascii_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if reply.code() == 530 || reply.code() == 332 || says(&["login_denied"]) {
        FailureKind::Authentication
    } else if says(&["incorrect_checksum"]) {
        FailureKind::ChecksumMismatch
    } else if matches!(reply.code(), 452 | 552)
        || says(&["no_space_left", "quota_exceeded", "no space left", "quota exceeded"])
    {
        FailureKind::NoSpace
    } else if says(&["path_not_found", "no such file", "not found", "not_a_directory", "failed to open file"])
    {
        FailureKind::NotFound
    } else if says(&["permission", "not permitted", "not allowed", "access denied", "read-only"]) {
        FailureKind::Permission
    } else {
        FailureKind::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies of GCT's and Ropewalk servers.
    #[test]
    fn people_are_told_the_reason() {
        let reply = |code, lines: &[&str]| Reply::coded(code, lines.iter().copied());
        let opening = [
            "Command failed. : globus_l_gfs_file_open failed.",
            "globus_xio: Unable to open file /in",
            "globus_xio: System error in open: Is a directory",
            "globus_xio: A system call failed: Is a directory",
            "End.",
        ];
        let structured = [
            "GlobusError: v=1 c=PATH_NOT_FOUND",
            "GridFTP-Errno: 2",
            "GridFTP-Reason: System error in stat",
            "GridFTP-Error-String: No such file or directory",
            "End.",
        ];
        for (reply, told) in [
            (reply(500, &opening), "500 /in: Is a directory"),
            (reply(550, &structured), "550 No such file or directory"),
            (reply(500, &["Command failed : Path not allowed."]), "500 Command failed : Path not allowed."),
            (reply(500, &["A system call failed: ", "End."]), "500 A system call failed:"),
        ] {
            assert_eq!(plain(&reply), told);
        }
        let long = text(&reply(500, &[&"Ä".repeat(5000)]));
        assert_eq!((long.chars().count(), long.ends_with("Ä...")), (LONGEST_REPLY + 3, true));
        // For any text (RFC 959 section 4.2.2).
        for code in [452, 552] {
            assert_eq!(reply_kind(&reply(code, &["no"])), FailureKind::NoSpace);
            let refused = RemoteError::Refused {
                peer: "p".into(),
                command: "STOR".into(),
                reply: reply(code, &["no"]),
            };
            assert!(!refused.is_transient());
        }
        let refused = |reply| RemoteError::Refused { peer: "p".into(), command: "MLST /none".into(), reply };
        let error = refused(reply(550, &structured));
        assert_eq!(error.to_string(), "p answered MLST /none with: 550 No such file or directory");
        assert_eq!(error.refused_command(), Some("MLST"));
        // The next wait of a minute would be in vain, too.
        let text = "0 of 1 data connections came within 60 s; one from 10.0.0.1 was closed, since data connections of this session \
                    are taken from 10.0.0.2 alone (third-party transfers are not permitted)";
        let stranger = refused(reply(425, &[text]));
        assert_eq!((stranger.kind(), stranger.is_transient()), (FailureKind::Permission, false));
        assert!(refused(reply(425, &["0 of 1 data connections came within 60 s"])).is_transient());
        // Omitted parts of the text also determine the kind.
        assert_eq!(error.kind(), FailureKind::NotFound);
    }
}
