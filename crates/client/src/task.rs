//! What the plan hands to the workers.

use std::time::Instant;

use bstr::BString;

use crate::place::Place;
use crate::{Amount, FileId};

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
    pub link: Option<BString>,
    /// Copy only where checksums differ: source and destination have the same size.
    pub compare: bool,
    /// Tries that failed.
    pub tries: u32,
    /// When the first try began.
    pub began: Option<Instant>,
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
            compare: false,
            tries: 0,
            began: None,
        }
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

    /// What a journal remembers the source by, together with its size and modification time: it must not be joined with
    /// another file's bytes. Without the port: a server may come back on another one.
    pub(crate) fn identity(&self) -> String {
        match &self.source {
            Place::Remote(endpoint, path) => {
                format!("{}://{}/{path}", endpoint.url.scheme, endpoint.url.host)
            }
            other => other.display(),
        }
    }
}
