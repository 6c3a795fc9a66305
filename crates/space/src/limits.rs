//! The limits of an account, and the refusal of what exceeds them.

use std::fmt;

/// The limits of an account. `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub bytes: Option<u64>,
    pub files: Option<u64>,
    /// May be exceeded for the time of `grace`.
    pub soft_bytes: Option<u64>,
    pub soft_files: Option<u64>,
    /// In seconds.
    pub grace: u64,
}

impl Limits {
    /// Whether one of the soft limits is exceeded.
    pub(crate) fn are_softly_exceeded(&self, bytes: u64, files: u64) -> bool {
        self.soft_bytes.is_some_and(|most| bytes > most) || self.soft_files.is_some_and(|most| files > most)
    }

    /// The limit that holds: the hard one or, once the time of grace has passed, the soft one.
    pub(crate) fn of(&self, kind: Kind, grace_is_over: bool) -> Option<u64> {
        let (hard, soft) = match kind {
            Kind::Bytes => (self.bytes, self.soft_bytes),
            Kind::Files => (self.files, self.soft_files),
        };
        match soft.filter(|_| grace_is_over) {
            Some(soft) => Some(hard.map_or(soft, |hard| hard.min(soft))),
            None => hard,
        }
    }
}

/// The unit of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bytes,
    Files,
}

/// A change that does not fit into an account.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    pub quota: String,
    /// The user or directory, if each has its own account.
    pub holder: String,
    pub kind: Kind,
    pub needed: u64,
    pub free: u64,
    pub limit: u64,
    /// The soft limit counts, because it has been exceeded for longer than the time of grace.
    pub grace_is_over: bool,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { quota, holder, needed, free, limit, .. } = self;
        let unit = match self.kind {
            Kind::Bytes => "bytes",
            Kind::Files => "files",
        };
        write!(f, "Quota {quota}")?;
        if !holder.is_empty() {
            write!(f, " of {holder}")?;
        }
        write!(f, ": {free} of {limit} {unit} are free, and {needed} more are needed")?;
        if self.grace_is_over {
            f.write_str("; the time for which the soft limit may be exceeded is over")?;
        }
        f.write_str(".")
    }
}
