//! The recovery from each error: whether to retry, and the state that it leaves behind.
//!
//! [`RemoteError::recovery`] is the one table. A change of a row needs a change of its test.

use std::io;

use ropewalk_protocol::reply::Reply;
use ropewalk_storage::ErrorKind;
use ropewalk_transfer::Failure;

use super::{reply_kind, whole_text, words};
use crate::{FailureKind, RemoteError};

/// The reaction of a transfer to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recovery {
    /// A retry may succeed.
    pub(crate) retry: bool,
    pub(crate) session: SessionState,
    pub(crate) data: ArrivedData,
    pub(crate) blame: Blame,
}

/// The control connection after an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionState {
    Usable,
    Closed,
}

/// The data that arrived before an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrivedData {
    /// A retry resumes with it.
    Kept,
    /// It is wrong or missing: the whole file has to be sent again.
    Invalid,
    /// The destination does not resume with it: the file has to be sent again if there is any.
    NotResumed,
}

/// The file that an error counts against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blame {
    /// The one that met it.
    File,
    /// None: another file or the user caused it.
    None,
}

impl RemoteError {
    /// The recovery from this error.
    pub(crate) fn recovery(&self) -> Recovery {
        use SessionState::{Closed, Usable};
        use io::ErrorKind::Unsupported;
        use ropewalk_engine::Error::Connect;
        let row = |retry, session, data| Recovery { retry, session, data, blame: Blame::File };
        match self {
            Self::Cancelled => Recovery { blame: Blame::None, ..row(false, Closed, ArrivedData::Kept) },
            // Later sessions take nothing for granted.
            Self::Desynchronized | Self::OtherServer { .. } => {
                Recovery { blame: Blame::None, ..row(true, Closed, ArrivedData::Kept) }
            }
            // This host cannot use the driver, for example because a library is missing.
            Self::Data { source, .. } if matches!(&**source, Connect { source, .. } if source.kind() == Unsupported) => {
                row(false, Closed, ArrivedData::Kept)
            }
            Self::Closed { .. }
            | Self::Control { .. }
            | Self::Data { .. }
            | Self::Dismissed { .. }
            | Self::NoDataConnection { .. }
            | Self::Nonsense { .. }
            | Self::Silent { .. }
            | Self::Stalled { .. } => row(true, Closed, ArrivedData::Kept),
            Self::Grew { .. } => row(true, Closed, ArrivedData::Invalid),
            Self::ChecksumMismatch { .. }
            | Self::PartVanished { .. }
            | Self::SizeMismatch { .. }
            | Self::SourceChanged { .. }
            | Self::Unresumable { .. } => row(true, Usable, ArrivedData::Invalid),
            Self::Connect { .. } | Self::Pipe(_) | Self::Threads(_) => row(true, Usable, ArrivedData::Kept),
            Self::Login { reply, .. } | Self::Nameless { reply, .. } | Self::NoPassword { reply, .. } => {
                row(reply.code() < 500, Usable, ArrivedData::Kept)
            }
            Self::Ssh { reason, .. } => row(words::ssh_is_transient(reason), Closed, ArrivedData::Kept),
            Self::Refused { .. } if self.is_of_wrong_ranges() => row(true, Usable, ArrivedData::Invalid),
            Self::Refused { reply, .. } => {
                // 421: the server closes the session (RFC 959 section 4.2.2).
                let session = if reply.code() == 421 { Closed } else { Usable };
                row(may_succeed_later(reply), session, self.data_after_refusal(reply))
            }
            // The part may be held by a process that was just killed and still waits for the disk.
            // The next try of an incomplete part resumes it.
            Self::Local { source, .. } => {
                row(self.is_busy() || source.kind() == ErrorKind::Incomplete, Usable, ArrivedData::Kept)
            }
            Self::Resolve { source, .. } => row(words::may_be_found_later(source), Usable, ArrivedData::Kept),
            Self::Spent { source } => row(false, source.recovery().session, ArrivedData::Kept),
            Self::CannotTravel { .. }
            | Self::Crowded { .. }
            | Self::CutOff { .. }
            | Self::Mistold { .. }
            | Self::Incomplete { .. }
            | Self::Listing { .. }
            | Self::Lost { .. }
            | Self::NotAscii { .. }
            | Self::NoThirdParty { .. }
            | Self::Output(_)
            | Self::Security { .. }
            | Self::Unlisted { .. }
            | Self::Unsupported { .. }
            | Self::Usage(_) => row(false, Usable, ArrivedData::Kept),
        }
    }

    fn data_after_refusal(&self, reply: &Reply) -> ArrivedData {
        match self.refused_command() {
            // The server expected a certain sum, and has computed another one.
            _ if reply_kind(reply) == FailureKind::ChecksumMismatch => ArrivedData::Invalid,
            Some("REST") if self.refuses_restart() => ArrivedData::NotResumed,
            // A refusal to rename or commit a file that has arrived, or to report its size or sum,
            // is repeated whatever is sent.
            Some("REST" | "RNFR" | "RNTO" | "SIZE" | "CKSM" | "SITE") | None => ArrivedData::Kept,
            Some(_) if may_succeed_later(reply) => ArrivedData::Kept,
            Some(_) => ArrivedData::NotResumed,
        }
    }

    /// The server has other ranges of an upload than the file has.
    fn is_of_wrong_ranges(&self) -> bool {
        matches!(self, Self::Refused { command, reply, .. }
            if reply.code() == 554 && command.starts_with("SITE UPLOAD"))
    }

    /// Whether a retry may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        self.recovery().retry
    }

    /// The destination does not resume with the data that it has, whatever the connection.
    pub(crate) fn refuses_resumption(&self) -> bool {
        self.recovery().data == ArrivedData::NotResumed
    }

    /// The server does not accept the restart that it was sent, and will not accept it later.
    pub(crate) fn refuses_restart(&self) -> bool {
        self.refused_command() == Some("REST") && !matches!(self.reply_code(), Some(400..500))
    }

    /// Another program writes to the source.
    pub(crate) fn is_source_change(&self) -> bool {
        matches!(self, Self::Grew { .. } | Self::SourceChanged { .. })
    }

    pub(crate) fn invalidates_data(&self) -> bool {
        self.recovery().data == ArrivedData::Invalid
    }

    pub(crate) fn breaks_session(&self) -> bool {
        self.recovery().session == SessionState::Closed
    }
}

impl Failure for RemoteError {
    fn invalidates_data(&self) -> bool {
        self.invalidates_data()
    }

    fn breaks_session(&self) -> bool {
        self.breaks_session()
    }
}

/// A 4xx may succeed later (RFC 959 section 4.2.1). So may failures like 426 that GCT reports with
/// code 500.
fn may_succeed_later(reply: &Reply) -> bool {
    match reply.code() {
        // Data from another server is refused, however long the wait.
        425 if whole_text(reply).contains("third-party transfers are not permitted") => false,
        0..500 => reply_kind(reply) != FailureKind::NoSpace,
        500 => {
            reply_kind(reply) == FailureKind::Other && !reply.is_unknown_command() && !is_of_the_name(reply)
        }
        550 => reply_kind(reply) == FailureKind::ChecksumMismatch,
        _ => false,
    }
}

/// No file can have this name, now or later.
fn is_of_the_name(reply: &Reply) -> bool {
    let said = whole_text(reply).to_ascii_lowercase();
    ["is a directory", "is_a_directory", "not a directory", "name too long"]
        .iter()
        .any(|word| said.contains(word))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ropewalk_storage::checksum::Algorithm;

    use super::*;

    #[test]
    fn every_row_of_the_table_is_as_written_here() {
        use RemoteError as E;
        use SessionState::{Closed, Usable};
        let (peer, path) = (|| "p".to_owned(), || b"/f".as_slice().into());
        let reply = |code: u16, text: &str| Reply::new(code, text);
        let refused = |command: &str, code, text| E::Refused {
            peer: peer(),
            command: command.into(),
            reply: reply(code, text),
        };
        let io = |kind: io::ErrorKind| io::Error::from(kind);
        let limit = Duration::from_secs(1);
        let (reason, ours) = (String::new, String::new);
        let data = |kind| {
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], 2811)).into();
            let source = Box::new(ropewalk_engine::Error::Connect { address, source: io(kind) });
            E::Data { peer: peer(), path: path(), source, reply: None }
        };
        let connect =
            E::Connect { peer: peer(), source: io(io::ErrorKind::ConnectionRefused), hint: reason() };
        let mismatch =
            E::ChecksumMismatch { path: path(), algorithm: Algorithm::Md5, ours: ours(), theirs: ours() };
        let rows = [
            (E::Closed { peer: peer(), command: reason() }, true, Closed, ArrivedData::Kept),
            (
                E::Control { peer: peer(), source: io(io::ErrorKind::BrokenPipe) },
                true,
                Closed,
                ArrivedData::Kept,
            ),
            (E::Dismissed { peer: peer(), reply: reply(421, "") }, true, Closed, ArrivedData::Kept),
            (data(io::ErrorKind::TimedOut), true, Closed, ArrivedData::Kept),
            (data(io::ErrorKind::Unsupported), false, Closed, ArrivedData::Kept),
            (E::NoDataConnection { peer: peer(), limit }, true, Closed, ArrivedData::Kept),
            (E::Nonsense { peer: peer(), reason: reason() }, true, Closed, ArrivedData::Kept),
            (E::Silent { peer: peer(), command: reason(), limit }, true, Closed, ArrivedData::Kept),
            (E::Stalled { path: path(), bytes_per_second: 1, time: limit }, true, Closed, ArrivedData::Kept),
            (E::Grew { peer: peer(), path: path() }, true, Closed, ArrivedData::Invalid),
            (mismatch, true, Usable, ArrivedData::Invalid),
            (
                E::PartVanished { peer: peer(), path: path(), reply: reply(550, "") },
                true,
                Usable,
                ArrivedData::Invalid,
            ),
            (E::SizeMismatch { path: path(), expected: 1, there: 2 }, true, Usable, ArrivedData::Invalid),
            (E::SourceChanged { path: path() }, true, Usable, ArrivedData::Invalid),
            (E::Unresumable { reason: reason() }, true, Usable, ArrivedData::Invalid),
            (connect, true, Usable, ArrivedData::Kept),
            (E::Pipe(io(io::ErrorKind::Other)), true, Usable, ArrivedData::Kept),
            (E::Threads(io(io::ErrorKind::Other)), true, Usable, ArrivedData::Kept),
            (E::Login { peer: peer(), reply: reply(421, "") }, true, Usable, ArrivedData::Kept),
            (E::Login { peer: peer(), reply: reply(530, "") }, false, Usable, ArrivedData::Kept),
            (refused("STOR", 421, ""), true, Closed, ArrivedData::Kept),
            (refused("STOR", 450, ""), true, Usable, ArrivedData::Kept),
            (refused("STOR", 452, ""), false, Usable, ArrivedData::NotResumed),
            (refused("STOR", 553, "Permission denied"), false, Usable, ArrivedData::NotResumed),
            (refused("STOR", 550, "INCORRECT_CHECKSUM"), true, Usable, ArrivedData::Invalid),
            (refused("REST", 450, ""), true, Usable, ArrivedData::Kept),
            (refused("REST", 501, ""), false, Usable, ArrivedData::NotResumed),
            (refused("RNTO", 553, ""), false, Usable, ArrivedData::Kept),
            (refused("CKSM", 550, ""), false, Usable, ArrivedData::Kept),
            (refused("SITE UPLOAD COMMIT", 451, ""), true, Usable, ArrivedData::Kept),
            (refused("SITE UPLOAD COMMIT", 553, ""), false, Usable, ArrivedData::Kept),
            (refused("SITE UPLOAD COMMIT", 554, ""), true, Usable, ArrivedData::Invalid),
            (refused("SITE UPLOAD COMMIT", 550, "INCORRECT_CHECKSUM"), true, Usable, ArrivedData::Invalid),
            (
                E::Spent { source: Box::new(E::Silent { peer: peer(), command: reason(), limit }) },
                false,
                Closed,
                ArrivedData::Kept,
            ),
            (E::Spent { source: Box::new(refused("STOR", 450, "")) }, false, Usable, ArrivedData::Kept),
            (E::CutOff { peer: peer(), reason: reason() }, false, Usable, ArrivedData::Kept),
            (E::Incomplete { path: path(), bytes: 1, expected: 2 }, false, Usable, ArrivedData::Kept),
            (E::Security { peer: peer(), reason: reason() }, false, Usable, ArrivedData::Kept),
            (E::Unsupported { peer: peer(), what: reason() }, false, Usable, ArrivedData::Kept),
            (E::Usage(reason()), false, Usable, ArrivedData::Kept),
        ];
        for (error, retry, session, data) in rows {
            let expected = Recovery { retry, session, data, blame: Blame::File };
            assert_eq!(error.recovery(), expected, "{error:?}");
        }
        for (error, retry) in [
            (E::Cancelled, false),
            (E::Desynchronized, true),
            (E::OtherServer { peer: peer(), reason: reason() }, true),
        ] {
            let expected = Recovery { retry, session: Closed, data: ArrivedData::Kept, blame: Blame::None };
            assert_eq!(error.recovery(), expected, "{error:?}");
        }
    }
}
