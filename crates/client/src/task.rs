//! What the plan hands to the workers.

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

/// The copy would take the place of what it is of, or destroy it.
pub(crate) fn one_file(task: &Task) -> RemoteError {
    let (source, destination) = (task.source.display(), task.destination.display());
    RemoteError::Usage(format!("{source} and {destination} are the same file"))
}

/// What was known of a destination when the copy was planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum There {
    Unknown,
    Nothing,
    /// Its name is as those of devices are, and its server has none of these there.
    Ordinary,
    /// It has the size of the source: it is copied only where checksums differ.
    SameSize,
}

/// One file to be copied.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub id: FileId,
    pub source: Place,
    pub destination: Place,
    pub window: Amount,
    /// Bytes of the whole source, where known.
    pub size: Option<u64>,
    /// The source's modification time, seconds since 1970, where known.
    pub modified: Option<i64>,
    /// The source's permission bits, where known.
    pub mode: Option<u32>,
    /// A symbolic link that is copied as one.
    pub link: Option<Box<BString>>,
    pub there: There,
    /// Tries that failed.
    pub tries: Box<Tried>,
    /// When the first try began.
    pub began: Option<Instant>,
    /// It may be at the destination already, whole: look before it is sent again.
    pub confirm: bool,
    /// A session that nobody knows the end of may still write the usual part file, or give it its name: another one is
    /// to be used.
    pub apart: bool,
    /// Of the name of its part, at servers that do not keep two uploads to one name apart.
    pub part: Option<u64>,
    /// It changed while it was copied: what it has now is enough where that is proved to be there still, whatever follows it.
    pub grows: bool,
    /// A program of its server stands for the source, or for the destination (SITE SETDISKSTACK).
    pub source_program: bool,
    pub destination_program: bool,
    /// Its name was found in a tree: its user has not named it.
    pub found: bool,
    /// What tells the source from another of its size and second, see [`Entry::stamp`].
    pub stamp: u64,
    /// What counts as being at the destination.
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

    /// The destination must not be replaced, and keeps nothing.
    pub(crate) fn is_to_device(&self) -> bool {
        let known = match self.there {
            There::Unknown => false,
            There::Nothing | There::Ordinary => true,
            // Devices are empty.
            There::SameSize => self.size.is_some_and(|size| size > 0),
        };
        self.destination_program || !known && is_device(&self.destination.path())
    }

    /// A transfer of it starts a program, which must not be started again without its user.
    pub(crate) fn starts_program(&self) -> bool {
        self.source_program || self.destination_program
    }

    /// The server's status of the source after all of it has come.
    ///
    /// # Errors
    /// The source has another size or time than it had.
    pub(crate) fn is_source(&self, status: &Reply) -> Result<(), RemoteError> {
        match from_status(status).is_some_and(|entry| differs(self, &entry, true)) {
            true => Err(RemoteError::SourceChanged { path: self.source.path() }),
            false => Ok(()),
        }
    }

    pub(crate) fn compares(&self) -> bool {
        self.there == There::SameSize
    }

    /// Where the wanted bytes begin in the source.
    pub(crate) fn offset(&self) -> u64 {
        self.window.map_or(0, |w| w.offset)
    }

    /// How many bytes are wanted, where known.
    pub(crate) fn length(&self) -> Option<u64> {
        let rest = self.size.map(|size| size.saturating_sub(self.offset()));
        match (self.window.and_then(|w| w.length), rest) {
            (Some(wanted), Some(rest)) => Some(wanted.min(rest)),
            (Some(wanted), None) => Some(wanted),
            (None, rest) => rest,
        }
    }

    /// Of something that was asked about its destination: where there is none, or nobody may look, it is copied. Where it is only
    /// looked after no refusal is a failure.
    pub(crate) fn unless_missing<T>(&self, asked: Result<T, RemoteError>) -> Result<Option<T>, RemoteError> {
        match asked {
            Err(e) if e.breaks_session() => Err(e),
            Err(e) if self.confirm || matches!(e.kind(), FailureKind::NotFound | FailureKind::Permission) => {
                Ok(None)
            }
            asked => asked.map(Some),
        }
    }

    /// What a journal remembers the source by, together with its size and modification time: it must not be joined with
    /// another file's bytes. Without the port: a server may come back on another one.
    pub(crate) fn identity(&self) -> String {
        let key = match &self.source {
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

/// Whether a file has another size or, where they are known `exactly`, another time than it had.
pub(crate) fn differs(task: &Task, entry: &Entry, exactly: bool) -> bool {
    // Some servers report these of the link itself, not of its target.
    if entry.kind == Kind::Symlink || entry.mode == Some(OF_LINKS) && task.mode.is_none() {
        return false;
    }
    let times = task.modified.zip(entry.modified).filter(|_| exactly);
    let sizes = task.size.zip(entry.size);
    sizes.is_some_and(|(old, new)| old != new) || times.is_some_and(|(old, new)| old != new)
}
