//! Names of the part files that have the data of a file until it is complete.

use bstr::BString;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::part_name;

use crate::place::{base_name, join, parent};
use crate::task::Task;

/// If a connection to GCT's server breaks in the middle of a block, the server writes the part that
/// has arrived to the beginning of the file: up to the size of its own blocks (256 KiB unless
/// configured otherwise), perhaps long after markers reported other bytes there.
pub(crate) const LATE_BLOCK: u64 = 4 << 20;

/// The name of a part file beside its destination; a name that would become too long is shortened.
/// A `tag` makes the name unique.
fn part_path(path: &[u8], tag: Option<u64>) -> BString {
    let Some(tag) = tag else { return part_name_of(path) };
    part_name_of(&[path, format!("~{tag:016x}").as_bytes()].concat())
}

fn part_name_of(path: &[u8]) -> BString {
    let name = VirtualPath::root().child(base_name(path)).map(|name| part_name(&name));
    let name: BString = match &name {
        Ok(name) => name.file_name().unwrap_or_default().into(),
        // No file can have this name; the server will report that.
        Err(_) => path.into(),
    };
    match parent(path) {
        Some(directory) => join(directory, &name),
        None if path.starts_with(b"/") => join(b"/", &name),
        None => name,
    }
}

/// The default part file of a file.
pub(crate) fn part_of(task: &Task) -> BString {
    part_path(&task.destination.path(), task.part)
}

/// A unique temporary name beside a place.
pub(crate) fn part_apart(path: &[u8]) -> BString {
    part_path(path, Some(crate::model::random::unique()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_names_stand_beside_their_files() {
        assert_eq!(part_path(b"/a/b", None), "/a/.b.ropewalk-part");
        assert_eq!(part_path(b"/b", None), "/.b.ropewalk-part");
        assert_eq!(part_path(b"b", None), ".b.ropewalk-part");
        assert_eq!(part_path(b"a/b", None), "a/.b.ropewalk-part");
        assert_eq!(part_path(b"/a/b", Some(0xabc)), "/a/.b~0000000000000abc.ropewalk-part");
        assert!(base_name(&part_path(&[b'n'; 255], None)).len() <= 255);
        assert_ne!(part_path(&[b'n'; 255], Some(1)), part_path(&[b'n'; 255], Some(2)));
    }

    #[test]
    fn parts_apart_are_parts_of_their_own() {
        let (one, other) = (part_apart(b"/a/b"), part_apart(b"/a/b"));
        assert_ne!(one, other);
        assert!(one.starts_with(b"/a/.b~") && one.ends_with(b".ropewalk-part"), "{one}");
        assert_ne!(part_apart(&[b'n'; 255]), part_apart(&[b'n'; 255]));
    }
}
