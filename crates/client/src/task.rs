//! The description of one file to copy, which the plan passes to the workers.
//!
//! The plan makes a [`Task`] for each file. A worker owns it while it works on the file, and
//! requeues it with the count of its failed tries if the file is tried again.

use std::sync::Arc;
use std::time::Instant;

use bstr::{BString, ByteSlice};
use ropewalk_protocol::reply::Reply;
use ropewalk_storage::Kind;

use crate::model::account::Account;
use crate::model::entry::{OF_LINKS, from_status};
use crate::model::tries::Tried;
use crate::place::{Place, is_device};
use crate::{Amount, Entry, FailureKind, FileId, RemoteError};

/// The error of a copy that would replace or destroy its own source.
pub(crate) fn one_file(task: &Task) -> RemoteError {
    let (source, destination) = (task.source.display(), task.destination.display());
    RemoteError::Usage(format!("{source} and {destination} are the same file"))
}

/// The state of the destination when the copy was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum There {
    Unknown,
    Nothing,
    /// Its name looks like that of a device, but the server has no devices there.
    Ordinary,
    /// It has the size of the source, and is copied only if the checksums differ.
    SameSize,
}

/// One file to copy.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub id: FileId,
    pub source: Place,
    pub destination: Place,
    pub window: Amount,
    /// The size of the whole source in bytes, if it is known.
    pub size: Option<u64>,
    /// The source's modification time in seconds since 1970, if it is known.
    pub modified: Option<i64>,
    /// The source's permission bits, if they are known.
    pub mode: Option<u32>,
    /// The target of a symbolic link that is copied as a link.
    pub link: Option<Box<BString>>,
    pub there: There,
    /// The failed tries.
    pub tries: Box<Tried>,
    /// When the first try started.
    pub began: Option<Instant>,
    /// The file may be at the destination already and complete, so this is checked before it is
    /// sent again.
    pub confirm: bool,
    /// A session whose state is not known may still write the default part file, or rename it, so
    /// another part file is used.
    pub apart: bool,
    /// The tag of the part file's name, at servers that do not keep two uploads to one name apart.
    pub part: Option<u64>,
    /// The file changed while it was copied. The copy is good if its data is proved to be still in
    /// the source, even if more data follows there.
    pub grows: bool,
    /// A program of the server stands for the source or the destination (SITE SETDISKSTACK).
    pub source_program: bool,
    pub destination_program: bool,
    /// The plan found the file in a tree; the user did not name it.
    pub found: bool,
    /// Distinguishes the source from another one with the same size and time, see [`Entry::stamp`].
    pub stamp: u64,
    /// The bytes that count as being at the destination.
    pub account: Arc<Account>,
}

impl Task {
    pub(crate) fn new(id: FileId, source: Place, destination: Place) -> Self {
        Self {
            id,
            source,
            destination,
            window: None,
            size: None,
            modified: None,
            mode: None,
            link: None,
            there: There::Unknown,
            tries: Box::default(),
            began: None,
            confirm: false,
            apart: false,
            part: None,
            grows: false,
            source_program: false,
            destination_program: false,
            found: false,
            stamp: 0,
            account: Arc::default(),
        }
    }

    /// Whether the destination must not be replaced, and keeps no data.
    pub(crate) fn is_to_device(&self) -> bool {
        let known = match self.there {
            There::Unknown => false,
            There::Nothing | There::Ordinary => true,
            // Devices have size 0.
            There::SameSize => self.size.is_some_and(|size| size > 0),
        };
        self.destination_program || !known && is_device(&self.destination.path())
    }

    /// Whether a transfer of the file starts a program, which must not be started again without its
    /// user.
    pub(crate) fn starts_program(&self) -> bool {
        self.source_program || self.destination_program
    }

    /// Checks the server's status of the source after all of its data has arrived.
    ///
    /// # Errors
    /// The source has another size or time than before.
    pub(crate) fn is_source(&self, status: &Reply) -> Result<(), RemoteError> {
        match from_status(status).is_some_and(|entry| differs(self, &entry, true)) {
            true => Err(RemoteError::SourceChanged { path: self.source.path() }),
            false => Ok(()),
        }
    }

    pub(crate) fn compares(&self) -> bool {
        self.there == There::SameSize
    }

    /// The offset of the wanted range in the source.
    pub(crate) fn offset(&self) -> u64 {
        self.window.map_or(0, |w| w.offset)
    }

    /// The number of wanted bytes, if it is known.
    pub(crate) fn length(&self) -> Option<u64> {
        let rest = self.size.map(|size| size.saturating_sub(self.offset()));
        match (self.window.and_then(|w| w.length), rest) {
            (Some(wanted), Some(rest)) => Some(wanted.min(rest)),
            (Some(wanted), None) => Some(wanted),
            (None, rest) => rest,
        }
    }

    /// Turns an error about the destination into `None` if the file is missing there or may not be
    /// read; then it is copied. If the destination is only checked (`confirm`), any refusal has
    /// this effect.
    pub(crate) fn unless_missing<T>(&self, asked: Result<T, RemoteError>) -> Result<Option<T>, RemoteError> {
        match asked {
            Err(e) if e.breaks_session() => Err(e),
            Err(e) if self.confirm || matches!(e.kind(), FailureKind::NotFound | FailureKind::Permission) => {
                Ok(None)
            }
            asked => asked.map(Some),
        }
    }

    /// Identifies the source in journals, together with its size and modification time, so that the
    /// data of two files is never mixed. It lacks the port, because a server may return on another
    /// one, and the relays that lead to the server, because a copy may be resumed through others.
    pub(crate) fn identity(&self) -> String {
        let beyond = self.source.beyond_relays();
        let key = match beyond.as_ref().unwrap_or(&self.source) {
            Place::Remote(endpoint, path) => {
                [format!("{}://{}/", endpoint.url.scheme, endpoint.url.host).as_bytes(), path].concat()
            }
            other => other.key(),
        };
        // Journals are text.
        let name =
            String::from_utf8(key).unwrap_or_else(|e| format!("escaped {}", e.as_bytes().escape_bytes()));
        if self.stamp == 0 { name } else { format!("{name}#{:x}", self.stamp) }
    }
}

/// Whether a file has another size than before, or another time if times are known `exactly`.
pub(crate) fn differs(task: &Task, entry: &Entry, exactly: bool) -> bool {
    // Some servers report the size and time of the link itself instead of its target's.
    if entry.kind == Kind::Symlink || entry.mode == Some(OF_LINKS) && task.mode.is_none() {
        return false;
    }
    let times = task.modified.zip(entry.modified).filter(|_| exactly);
    let sizes = task.size.zip(entry.size);
    sizes.is_some_and(|(old, new)| old != new) || times.is_some_and(|(old, new)| old != new)
}
