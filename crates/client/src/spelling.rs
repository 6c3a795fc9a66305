//! The canonical spelling of a place, by which two names of one place are recognized.
//!
//! Local paths are resolved on this host, including symbolic links. Paths at servers are compared
//! by their text, because only the server knows its links.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use bstr::{BString, ByteSlice};

use crate::model::glob::is_glob;
use crate::place::{base_name, local_path};
use crate::{Location, Pair};

/// Spells places. It remembers the last directory, because consecutive places are often in the same
/// one.
#[derive(Default)]
pub(crate) struct Speller {
    /// The last directory, and its path without symbolic links.
    last: Option<(PathBuf, PathBuf)>,
}

impl Speller {
    /// The spelling without a final `/`; `None` for a place without a name.
    pub(crate) fn spell(&mut self, location: &Location) -> Option<Vec<u8>> {
        match location {
            Location::Local(path) => Some(self.local(local_path(path).ok()?.as_bytes())),
            Location::Remote(url) => {
                let server = url.with_path(b"/").to_string();
                let mut spelled = server.trim_end_matches('/').as_bytes().to_vec();
                let path = plain(&url.path);
                if !path.starts_with(b"/") {
                    spelled.push(b'/');
                }
                spelled.extend_from_slice(&path);
                Some(spelled)
            }
            Location::Standard | Location::Measure { .. } => None,
        }
    }

    /// An absolute path of this host without symbolic links.
    pub(crate) fn local(&mut self, path: &[u8]) -> Vec<u8> {
        let path = Path::new(OsStr::from_bytes(path));
        let beneath =
            path.parent().zip(path.file_name()).map(|(above, name)| self.directory(above).join(name));
        let is_link = |path: &PathBuf| path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink());
        let spelled = match beneath {
            Some(path) if !is_link(&path) => Some(path),
            _ => real(path),
        };
        spelled.map_or_else(|| path.as_os_str().as_bytes().to_vec(), |path| path.into_os_string().into_vec())
    }

    fn directory(&mut self, directory: &Path) -> PathBuf {
        match &self.last {
            Some((asked, real)) if asked == directory => real.clone(),
            _ => {
                let real = real(directory).unwrap_or_else(|| directory.to_owned());
                self.last = Some((directory.to_owned(), real.clone()));
                real
            }
        }
    }
}

/// The name of a copy of this source within a directory.
pub(crate) fn name(location: &Location) -> Option<BString> {
    match location {
        Location::Local(path) => Some(base_name(local_path(path).ok()?.as_bytes()).into()),
        Location::Remote(url) => Some(base_name(&url.path).into()),
        Location::Standard | Location::Measure { .. } => None,
    }
}

/// The path without symbolic links. Missing components follow the longest existing prefix.
pub(crate) fn real(path: &Path) -> Option<PathBuf> {
    let there = |above: &Path| Some((std::fs::canonicalize(above).ok()?, path.strip_prefix(above).ok()?));
    let (above, rest) = path.ancestors().find_map(there)?;
    // `join` would add a `/` for an empty rest.
    Some(if rest.as_os_str().is_empty() { above } else { above.join(rest) })
}

/// A server's path without `//`, `.` and `..`. (If `..` leads through a symbolic link, only the
/// server knows its target.)
pub(crate) fn plain(path: &[u8]) -> BString {
    let mut names: Vec<&[u8]> = Vec::new();
    for name in path.split_str("/") {
        match name {
            b"" | b"." => {}
            b".." if names.last().is_some_and(|last| *last != b"..") => {
                names.pop();
            }
            b".." if path.starts_with(b"/") => {}
            name => names.push(name),
        }
    }
    let mut plain = BString::from(if path.starts_with(b"/") { "/" } else { "" });
    plain.extend_from_slice(&bstr::join("/", names));
    plain
}

/// The directory that a pair makes if its source is a directory, with `/` at its end: the
/// destination (nothing more is known for a pattern), or the entry in it that has the name of the
/// source.
pub(crate) fn made_by(pair: &Pair, speller: &mut Speller) -> Option<Vec<u8>> {
    let mut made = speller.spell(&pair.destination)?.trim_end_with(|c| c == '/').to_vec();
    made.push(b'/');
    let named = !pair.source.ends_with_slash() && !is_glob(pair.source.path());
    if let Some(called) = name(&pair.source).filter(|_| named) {
        made.extend_from_slice(&called);
        made.push(b'/');
    }
    Some(made)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn paths_of_servers() {
        for (path, spelled) in [
            ("/a/b", "/a/b"),
            ("//a/./b//", "/a/b"),
            ("/a/../b", "/b"),
            ("/../a", "/a"),
            ("/", "/"),
            ("a/.", "a"),
            ("../../a", "../../a"),
            (".", ""),
        ] {
            assert_eq!(plain(path.as_bytes()), spelled, "{path}");
        }
        let at = |text: &str| Speller::default().spell(&crate::parse_location(text).unwrap()).unwrap();
        assert_eq!(at("ftp://H:21//d/./x/"), at("ftp://h/d/x"));
        assert_eq!(at("ftp://h/d/x"), b"ftp://h/d/x");
        assert_ne!(at("ftp://h:2121/d"), at("ftp://h/d"));
        assert_ne!(at("ftp://ada@h/~/d"), at("ftp://bob@h/~/d"));
    }

    #[test]
    fn paths_here() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        std::fs::create_dir(top.join("d")).unwrap();
        std::os::unix::fs::symlink("d", top.join("link")).unwrap();
        let mut speller = Speller::default();
        let mut at = |name: &str| speller.spell(&Location::Local(directory.path().join(name))).unwrap();
        let spelled = top.join("d/new/x").into_os_string().as_bytes().to_vec();
        for name in ["d/new/x", "link/new/x/", "d/./new/x"] {
            assert_eq!(at(name).as_bstr(), spelled.as_bstr(), "{name}");
        }
        assert_eq!(at("./link/../d/x").as_bstr(), at("d/x").as_bstr());
        assert_eq!(at("link").as_bstr(), top.join("d").as_os_str().as_bytes().as_bstr());
    }
}
