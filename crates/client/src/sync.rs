//! Decides whether a file that the destination has is copied again.

use bstr::BString;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::Kind;

use crate::place::{Place, join, parent};
use crate::task::Task;
use crate::{Entry, SyncLevel};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Copy,
    /// The sizes are equal, and the checksums decide.
    CompareSums,
    /// The file need not be copied, for this reason.
    Same(&'static str),
}

/// Compares what both sides have reported. If one of them has not, the file is copied.
pub(crate) fn compare(level: Option<SyncLevel>, task: &Task, there: &Entry) -> Verdict {
    let Some(level) = level else { return Verdict::Copy };
    // Some servers report a link to a directory as a directory.
    if let Some(target) = &task.link {
        let leads_there = |there: &BString| {
            *there == **target
                || led(&task.destination, target).is_some_and(|path| led(&task.destination, there) == Some(path))
                // An absolute target here may have become a relative one at the server.
                || there.starts_with(b"/")
                    && led(&task.source, target).is_some_and(|path| VirtualPath::parse(there).ok() == Some(path))
        };
        return match there.target.as_ref().is_some_and(leads_there) {
            true => Verdict::Same("same link"),
            false => Verdict::Copy,
        };
    }
    // A dangling link has a size and a time of its own.
    if there.is_directory() || there.kind == Kind::Symlink {
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

/// The path that a link at a server leads to. GCT's server makes relative targets absolute, and a
/// Ropewalk server makes absolute ones relative.
fn led(link: &Place, target: &BString) -> Option<VirtualPath> {
    let Place::Remote(_, link) = link else { return None };
    let target = if target.starts_with(b"/") { target.clone() } else { join(parent(link)?, target) };
    VirtualPath::parse(&target).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::place::Endpoint;

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

    #[test]
    fn a_link_that_leads_nowhere_is_no_file() {
        let place = Place::Local(VirtualPath::parse(b"/x").unwrap());
        let task = Task { size: Some(10), modified: Some(100), ..Task::new(0, place.clone(), place) };
        let there = Entry { size: Some(10), modified: Some(100), ..Entry::new("x", Kind::Symlink) };
        for level in [SyncLevel::Exists, SyncLevel::Size, SyncLevel::Time, SyncLevel::Checksum] {
            assert_eq!(compare(Some(level), &task, &there), Verdict::Copy);
        }
    }

    #[test]
    fn links_are_the_same_where_they_lead_to_the_same() {
        let here = Place::Local(VirtualPath::parse(b"/d/s/x").unwrap());
        let url = ropewalk_protocol::url::Url::parse("ftp://h/").unwrap();
        let at_a_server = Place::Remote(std::sync::Arc::new(Endpoint::new(&url)), "/d/s/x".into());
        let link = |place: &Place, target: &str, there: &str| {
            let task =
                Task { link: Some(Box::new(target.into())), ..Task::new(0, place.clone(), place.clone()) };
            let there = Entry { target: Some(there.into()), ..Entry::new("x", Kind::Symlink) };
            compare(Some(SyncLevel::Size), &task, &there) == Verdict::Same("same link")
        };
        for (target, there, same) in [
            ("f", "f", true),
            ("/a", "/a", true),
            ("f", "/d/f", false),
            ("f", "g", false),
            ("/a", "/d/s/a", false),
        ] {
            assert_eq!(link(&here, target, there), same, "{target} {there}");
            assert_eq!(link(&at_a_server, target, there), same, "{target} {there}");
        }
        for (target, there) in [("f", "/d/s/f"), ("../g", "/d/g"), ("/d/g", "../g"), ("/a", "../../a")] {
            assert!(link(&at_a_server, target, there) && !link(&here, target, there), "{target} {there}");
        }
        // The same in the other direction.
        let back = |target: &str, there: &str| {
            let task = Task {
                link: Some(Box::new(target.into())),
                ..Task::new(0, at_a_server.clone(), here.clone())
            };
            let there = Entry { target: Some(there.into()), ..Entry::new("x", Kind::Symlink) };
            compare(Some(SyncLevel::Size), &task, &there) == Verdict::Same("same link")
        };
        assert!(back("../../a", "/a") && back("f", "/d/s/f") && back("f", "f"));
        assert!(!back("../../a", "/b") && !back("f", "g") && !back("../../a", "a"));
    }
}
