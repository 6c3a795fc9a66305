//! Whether a file that the destination has is copied again.

use crate::task::Task;
use crate::{Entry, SyncLevel};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Copy,
    /// Same size: the checksums decide.
    CompareSums,
    /// Nothing to do, and why.
    Same(&'static str),
}

/// Compares by what both sides told. Where one did not tell, the file is copied.
pub(crate) fn compare(level: Option<SyncLevel>, task: &Task, there: &Entry) -> Verdict {
    let Some(level) = level else { return Verdict::Copy };
    // A link to a directory is told as a directory by some.
    if let Some(target) = &task.link {
        return if there.target.as_ref() == Some(target) {
            Verdict::Same("same link")
        } else {
            Verdict::Copy
        };
    }
    if there.is_directory() {
        return Verdict::Copy;
    }
    let same_size = task.size.is_some() && task.size == there.size;
    match level {
        SyncLevel::Exists => Verdict::Same("exists"),
        SyncLevel::Size if same_size => Verdict::Same("same size"),
        SyncLevel::Time
            if same_size
                && task.modified.zip(there.modified).is_some_and(|(source, there)| there >= source) =>
        {
            Verdict::Same("same size and not older")
        }
        SyncLevel::Checksum if same_size => Verdict::CompareSums,
        SyncLevel::Size | SyncLevel::Time | SyncLevel::Checksum => Verdict::Copy,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_protocol::path::VirtualPath;
    use ropewalk_storage::Kind;

    use super::*;
    use crate::place::Place;

    fn check(level: SyncLevel, size: u64, modified: Option<i64>) -> Verdict {
        let place = Place::Local(VirtualPath::parse(b"/x").unwrap());
        let task = Task { size: Some(10), modified: Some(100), ..Task::new(0, place.clone(), place) };
        let there = Entry { size: Some(size), modified, ..Entry::new("x", Kind::File) };
        compare(Some(level), &task, &there)
    }

    #[test]
    fn levels() {
        assert!(matches!(check(SyncLevel::Exists, 1, None), Verdict::Same(_)));
        assert!(matches!(check(SyncLevel::Size, 10, None), Verdict::Same(_)));
        assert_eq!(check(SyncLevel::Size, 9, None), Verdict::Copy);
        assert!(matches!(check(SyncLevel::Time, 10, Some(100)), Verdict::Same(_)));
        assert_eq!(check(SyncLevel::Time, 10, Some(99)), Verdict::Copy);
        assert_eq!(check(SyncLevel::Time, 10, None), Verdict::Copy);
        assert_eq!(check(SyncLevel::Time, 9, Some(200)), Verdict::Copy);
        assert_eq!(check(SyncLevel::Checksum, 10, Some(1)), Verdict::CompareSums);
        assert_eq!(check(SyncLevel::Checksum, 9, Some(100)), Verdict::Copy);
    }
}
