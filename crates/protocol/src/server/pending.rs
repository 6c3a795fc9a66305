//! The running operation: its state, and the replies that its progress and its end cause.

use std::mem;
use std::net::{IpAddr, SocketAddr, SocketAddrV4};

use bstr::BString;

use super::action::*;
use super::failure::Attempt;
use super::state::State;
use crate::command::ChecksumAlgorithm;
use crate::facts::Entry;
use crate::host_port::{Classic, Extended, PortOnly, Striped};
use crate::marker::{Marker, PerfMarker, StatusMarker};
use crate::path::VirtualPath;
use crate::queue::QueuePlace;
use crate::reply::Reply;
use crate::scitag::SciTagCommand;
use crate::stack::StackSpec;
use crate::upload::UploadRequest;

/// Most entries in one reply of MLSC, as in GCT.
const ENTRIES_PER_REPLY: usize = 1000;

/// The command that created a passive channel. It determines the form of the addresses in the
/// reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassiveKind {
    Pasv,
    Epsv,
    /// SITE ONEPORT. The reply has a token instead.
    OnePort,
    /// `extended` is true if the command had an argument.
    Spas {
        extended: bool,
    },
}

/// A running operation, with the data that is needed for the reply to its command.
#[derive(Debug)]
pub(super) enum Pending {
    SecurityBegin(Mechanism),
    SecurityToken,
    DataCredential,
    Login,
    Listen(PassiveKind),
    Connect,
    /// ABUF with this ceiling in bytes.
    AdviseBuffers(u64),
    /// Closing the data channel. This reply is sent, even if closing fails.
    CloseChannel(Reply),
    Data(Box<DataPending>),
    ChangeDirectory(VirtualPath),
    /// MLST.
    Facts(BString),
    /// STAT.
    Status {
        path: VirtualPath,
        given: BString,
    },
    /// MDTM.
    Modified,
    /// MFMT.
    SetModified {
        modified: i64,
        given: BString,
    },
    /// RNFR.
    RenameFrom(VirtualPath),
    /// SITE SYMLINKFROM.
    SymlinkFrom(VirtualPath),
    Contents(Box<ContentsPending>),
    Size,
    MakeDirectory(VirtualPath),
    DeleteTree,
    Truncate,
    Checksum(VirtualPath),
    Ranges(BString),
    Usage,
    /// SITE SLOTS; whether it was LIST.
    Slots {
        list: bool,
    },
    /// SITE SPACE; whether it was LIST.
    Space {
        list: bool,
    },
    Upload(Box<UploadRequest>),
    Profile,
    ChangeRoot,
    Restrict,
    SciTag(SciTagCommand),
    /// SITE SETNETSTACK.
    NetStack(StackSpec),
    /// A command whose final reply is `250 OK.`
    Simple,
}

impl Pending {
    /// The kind of attempt, which determines the reply to a failure.
    pub(super) fn attempt(&self) -> Attempt<'_> {
        match self {
            Self::Connect => Attempt::Connect,
            Self::ChangeDirectory(path) => Attempt::ChangeDirectory(path),
            Self::RenameFrom(_) | Self::SymlinkFrom(_) => Attempt::Source,
            Self::Checksum(path) => Attempt::Checksum(path),
            Self::DeleteTree => Attempt::DeleteTree,
            Self::Truncate => Attempt::Truncate,
            _ => Attempt::Other,
        }
    }
}

/// A transfer or a listing over the data channel.
#[derive(Debug)]
pub(super) struct DataPending {
    pub(super) path: VirtualPath,
    pub(super) mode: Mode,
    /// The server is the receiver of a file.
    pub(super) receives: bool,
    /// Delayed passive: the addresses have not been sent.
    pub(super) delayed: Option<PassiveKind>,
    /// The client wants 112 markers.
    pub(super) perf: bool,
    /// The client wants 111 markers.
    pub(super) restart: bool,
    /// The client wants 115 markers.
    pub(super) path_info: bool,
    /// The client wants 115 markers about storage.
    pub(super) storage_info: bool,
    /// The client wants 115 markers about data nodes.
    pub(super) nodes: bool,
    /// The client wants this checksum, computed during the transfer.
    pub(super) checksum: Option<ChecksumAlgorithm>,
    pub(super) begun: bool,
    /// The reply 150 has begun with the place in a queue.
    pub(super) queued: bool,
}

impl DataPending {
    /// Data that the server sends without markers and checksums: listings and profiles.
    pub(super) fn plain(path: VirtualPath, mode: Mode, delayed: Option<PassiveKind>) -> Self {
        Self {
            path,
            mode,
            receives: false,
            delayed,
            perf: false,
            restart: false,
            path_info: false,
            storage_info: false,
            nodes: false,
            checksum: None,
            begun: false,
            queued: false,
        }
    }
}

/// MLSC.
#[derive(Debug)]
pub(super) struct ContentsPending {
    pub(super) given: BString,
    /// Lines that were not yet sent.
    pub(super) lines: Vec<Vec<u8>>,
}

impl ContentsPending {
    pub(super) fn reply(&mut self, code: u16) -> Reply {
        let first = [b"Contents of ", &self.given[..]].concat();
        Reply::indented(code, first, mem::take(&mut self.lines), "End.")
    }
}

pub(super) fn fact_line(entry: &Entry, state: &State) -> Vec<u8> {
    let mut line = Vec::new();
    entry.print(state.facts, &mut line);
    line
}

/// The reply with the addresses of a passive channel: 227 or 229; 127 or 129 if the channel was
/// delayed.
pub(super) fn addresses(
    kind: PassiveKind,
    hundred: u16,
    addresses: &[SocketAddr],
    full: bool,
) -> Option<Reply> {
    let first = *addresses.first()?;
    Some(match kind {
        PassiveKind::Pasv => {
            let v4 = addresses.iter().find_map(|a| match (a, a.ip().to_canonical()) {
                (SocketAddr::V4(v4), _) => Some(*v4),
                (v6, IpAddr::V4(ip)) => Some(SocketAddrV4::new(ip, v6.port())),
                _ => None,
            })?;
            Reply::new(hundred + 27, format!("Entering Passive Mode ({})", Classic(v4)))
        }
        PassiveKind::Epsv => {
            let inner = if full { Extended(first).to_string() } else { PortOnly(first.port()).to_string() };
            Reply::new(hundred + 29, format!("Entering Extended Passive Mode ({inner})"))
        }
        PassiveKind::OnePort => return None,
        PassiveKind::Spas { extended } => {
            let body = addresses.iter().map(|address| match extended {
                true => Extended(*address).to_string(),
                false => Striped(*address).to_string(),
            });
            Reply::indented(hundred + 29, "Entering Striped Passive Mode.", body, "End")
        }
    })
}

impl Pending {
    /// Whether the operation may take so long that an ABOR should reach the host.
    pub(super) fn is_long(&self) -> bool {
        matches!(
            self,
            Self::Data(_)
                | Self::Contents(_)
                | Self::DeleteTree
                | Self::Checksum(_)
                | Self::Ranges(_)
                | Self::Upload(_)
        )
    }

    /// The line that tells the place of a transfer or listing in a queue. `None`: it has begun, or
    /// the address of a delayed channel, which is a reply of its own, comes first.
    pub(super) fn tell_place(&mut self, place: QueuePlace) -> Option<Reply> {
        match self {
            Self::Data(data) if !data.begun && data.delayed.is_none() => {
                data.queued = true;
                Some(place.to_line())
            }
            _ => None,
        }
    }

    /// The end of a reply that has begun with a place in a queue, if another reply comes before it.
    pub(super) fn end_queue(&mut self) -> Option<Reply> {
        match self {
            Self::Data(data) => {
                std::mem::take(&mut data.queued).then(|| Reply::new(150, "The wait has ended."))
            }
            _ => None,
        }
    }

    pub(super) fn receives(&self) -> bool {
        matches!(self, Self::Data(data) if data.receives)
    }

    /// Returns the replies that an event causes.
    pub(super) fn progress(&mut self, event: Event, state: &State, full_epsv: bool) -> Vec<Reply> {
        match (self, event) {
            (Self::Data(data), event) => data.progress(event, full_epsv).into_iter().collect(),
            (Self::Checksum(_), Event::Checksummed { timestamp, bytes }) => {
                vec![Marker::Status(StatusMarker { timestamp, bytes }).to_reply()]
            }
            (Self::Contents(contents), Event::Entries(entries)) => {
                let mut replies = Vec::new();
                for entry in entries {
                    if contents.lines.len() == ENTRIES_PER_REPLY {
                        replies.push(contents.reply(150));
                    }
                    contents.lines.push(fact_line(&entry, state));
                }
                replies
            }
            _ => Vec::new(),
        }
    }
}

impl DataPending {
    fn progress(&mut self, event: Event, full_epsv: bool) -> Option<Reply> {
        match event {
            Event::Listening(list) => addresses(self.delayed.take()?, 100, &list, full_epsv),
            Event::Begun { .. } if self.begun => None,
            Event::Begun { reused } => {
                self.begun = true;
                let queued = std::mem::take(&mut self.queued);
                Some(match reused {
                    // The lines of a reply have one code.
                    true if queued => {
                        Reply::new(150, "Beginning transfer; reusing existing data connection.")
                    }
                    true => Reply::new(125, "Beginning transfer; reusing existing data connection."),
                    false => Reply::new(150, "Beginning transfer."),
                })
            }
            Event::Perf { timestamp, stripe, stripes, bytes } if self.perf => {
                Some(Marker::Perf(PerfMarker { timestamp, stripe, bytes, stripes }).to_reply())
            }
            Event::Path(path) if self.path_info => Some(Marker::Path(path).to_reply()),
            Event::Storage(wait) if self.storage_info => Some(Marker::Storage(wait).to_reply()),
            Event::Nodes(count) if self.nodes && self.begun => Some(Marker::Nodes(count).to_reply()),
            Event::Received(ranges) if self.restart && !ranges.is_empty() => {
                Some(Marker::Range(ranges).to_reply())
            }
            _ => None,
        }
    }
}
