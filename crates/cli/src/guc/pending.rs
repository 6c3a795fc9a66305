//! Files of `-df` and `-do`: pairs that were not copied, or are not to be copied yet.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use bstr::ByteSlice;
use ropewalk_client::{Amount, Pair};

use super::expand::{Given, show_with_password};
use crate::pairs::{Line, quoted};
use crate::whole;

/// Lines that name no location, each with its error.
pub(super) type Wrong = Vec<(Line, anyhow::Error)>;

/// Known attributes of a source.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    pub(super) size: Option<u64>,
    pub(super) modified: Option<i64>,
    pub(super) mode: Option<u32>,
}

impl Facts {
    /// The attributes that GCT writes after the window; empty if none is known.
    fn text(&self) -> String {
        let facts = [
            self.size.map(|size| format!("size={size};")),
            self.modified.map(|modified| format!("modify={modified};")),
            self.mode.map(|mode| format!("mode={mode:04o};")),
        ];
        facts.into_iter().flatten().collect()
    }
}

/// The line of a file that was found in a directory or by a pattern.
pub(super) fn found(source: &str, destination: &str, facts: Facts) -> String {
    format!("{} {} 0,-1 {}\n", quoted(source), quoted(destination), facts.text())
}

/// The line of a directory of a tree: a comment, because the directory is made with its contents.
pub(super) fn directory(source: &str, destination: &str, facts: Facts) -> String {
    let slash = |url: &str| format!("{}/", url.trim_end_matches('/'));
    format!("#{}", found(&slash(source), &slash(destination), facts))
}

/// The line of a pair as the user gave it.
pub(super) fn given(pair: &Pair) -> String {
    line(&show_with_password(&pair.source), pair)
}

fn line(source: &str, pair: &Pair) -> String {
    let destination = show_with_password(&pair.destination);
    format!("{} {}{}\n", quoted(source), quoted(&destination), shown(pair.window).unwrap_or_default())
}

fn shown(window: Amount) -> Option<String> {
    let number = |length: u64| length.to_string();
    window.map(|window| format!(" {},{} ", window.offset, window.length.map_or_else(|| "-1".into(), number)))
}

/// Writes the pending pairs with their windows, the sources of unknown type, and the invalid lines
/// of a list.
pub(super) fn write(path: &Path, left: &[&Pair], lost: &[&Given], wrong: &Wrong) -> anyhow::Result<()> {
    let mut text: Vec<u8> = left.iter().flat_map(|pair| given(pair).into_bytes()).collect();
    text.extend(lost.iter().flat_map(|lost| line(&lost.source(), &lost.pair).into_bytes()));
    text.extend(as_given(wrong));
    store(path, &text)
}

/// Writes the pairs that are to be copied, and the invalid lines of a list.
pub(super) fn write_listed(path: &Path, listed: &str, wrong: &Wrong) -> anyhow::Result<()> {
    store(path, &[listed.as_bytes(), &as_given(wrong)].concat())
}

fn as_given(wrong: &Wrong) -> Vec<u8> {
    let mut text = Vec::new();
    for (line, _) in wrong {
        let whole = || " 0,-1 ".to_owned();
        let window = line.window.map(|window| shown(window).unwrap_or_else(whole)).unwrap_or_default();
        for part in [b"\"".as_bstr(), line.source.as_ref(), b"\" \"".into(), line.destination.as_ref()] {
            text.extend_from_slice(part);
        }
        text.extend_from_slice(format!("\"{window}\n").as_bytes());
    }
    text
}

/// Writes the file atomically: half of a list would claim that the rest is done. Only the owner may
/// read it, because URLs may have passwords. `-` is standard output.
fn store(path: &Path, text: &[u8]) -> anyhow::Result<()> {
    if path.as_os_str() == "-" {
        let mut out = std::io::stdout().lock();
        return out.write_all(text).and_then(|()| out.flush()).context("standard output");
    }
    whole::write_private(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::MetadataExt;

    use ropewalk_client::{Location, Window, parse_location};

    use super::*;

    #[test]
    fn pending_pairs_keep_their_passwords() {
        let place = |url: &str| parse_location(url).unwrap();
        let pair = Pair { source: place("ftp://u:p%40@h/a"), destination: place("file:///b"), window: None };
        assert_eq!(given(&pair), "\"ftp://u:p%40@h/a\" \"file:///b\"\n");
    }

    #[test]
    fn pending_file_lists_the_remaining_pairs() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("left");
        let pair = |name: &str, window| Pair {
            source: Location::Local(format!("/s/{name}").into()),
            destination: Location::Local(format!("/d/{name}").into()),
            window,
        };
        let pairs = [pair("a", None), pair("b c", Some(Window { offset: 5, length: None })), pair("d", None)];
        write(&file, &[&pairs[1], &pairs[2]], &[], &Wrong::new()).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            std::fs::read_to_string(&file).unwrap(),
            "\"file:///s/b%20c\" \"file:///d/b%20c\" 5,-1 \n\"file:///s/d\" \"file:///d/d\"\n"
        );
        let read = crate::pairs::read(&file).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].window, Some(Some(Window { offset: 5, length: None })));
    }

    #[test]
    fn pending_lines_match_gct() {
        // As written by globus-url-copy 10.12.
        let facts = Facts { size: Some(2), modified: Some(1_795_310_484), mode: Some(0o644) };
        assert_eq!(
            found("ftp://h/a", "file:///b", facts),
            "\"ftp://h/a\" \"file:///b\" 0,-1 size=2;modify=1795310484;mode=0644;\n"
        );
        let facts = Facts { modified: Some(1_795_310_484), mode: Some(0o755), ..Facts::default() };
        assert_eq!(
            directory("ftp://h/s/sub", "file:///d/sub/", facts),
            "#\"ftp://h/s/sub/\" \"file:///d/sub/\" 0,-1 modify=1795310484;mode=0755;\n"
        );
    }
}
