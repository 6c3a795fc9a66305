//! Files of `-df` and `-do`: pairs that were not copied, or are not to be copied now.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use anyhow::Context;
use ropewalk_client::Pair;

use super::expand::show;
use crate::pairs::quoted;

/// A line of the file.
pub(super) fn line(source: &str, destination: &str, size: Option<u64>) -> String {
    let facts = size.map(|size| format!(" 0,-1 size={size};")).unwrap_or_default();
    format!("{} {}{facts}\n", quoted(source), quoted(destination))
}

/// Writes those of `pairs` whose source is not in `done`, with their windows.
pub(super) fn write(path: &Path, pairs: &[Pair], done: &HashSet<String>) -> anyhow::Result<()> {
    let mut text = String::new();
    for pair in pairs {
        let source = show(&pair.source);
        if done.contains(&source) {
            continue;
        }
        let window = pair.window.map(|window| {
            format!(
                " {},{}",
                window.offset,
                window.length.map_or_else(|| "-1".into(), |length| length.to_string())
            )
        });
        text += &format!(
            "{} {}{}\n",
            quoted(&source),
            quoted(&show(&pair.destination)),
            window.unwrap_or_default()
        );
    }
    store(path, &text)
}

pub(super) fn store(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_client::{Location, Window};

    use super::*;

    #[test]
    fn what_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("left");
        let pair = |name: &str, window| Pair {
            source: Location::Local(format!("/s/{name}").into()),
            destination: Location::Local(format!("/d/{name}").into()),
            window,
        };
        let pairs = [pair("a", None), pair("b c", Some(Window { offset: 5, length: None })), pair("d", None)];
        write(&file, &pairs, &HashSet::from(["file:///s/a".into()])).unwrap();
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            "\"file:///s/b c\" \"file:///d/b c\" 5,-1\n\"file:///s/d\" \"file:///d/d\"\n"
        );
        let read = crate::pairs::read(&file).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].window, Some(Window { offset: 5, length: None }));
    }

    #[test]
    fn lines_of_a_dry_run() {
        assert_eq!(line("ftp://h/a", "file:///b", Some(2)), "\"ftp://h/a\" \"file:///b\" 0,-1 size=2;\n");
    }
}
