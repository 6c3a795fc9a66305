//! The entries that a location stands for, each with its own location.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use bstr::{BStr, BString, ByteSlice};
use ropewalk_client::{Entry, Error, ErrorKind, FailureKind, Remote, list, walk};
use ropewalk_protocol::url::Url;

use crate::client::{Client, Place, Sessions, Target};
use crate::output::say;

/// Receives an entry and its location: a raw local path, or a URL.
pub(crate) type Each<'a> = dyn FnMut(&Entry, &BStr) -> io::Result<()> + 'a;

/// The location that entry names are relative to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Base {
    Local(BString),
    Remote(Url),
}

enum Found {
    /// A file, or another object that is not a directory.
    Itself(Entry),
    Directory,
    Pattern,
}

/// Passes on the entries of a directory, the file itself, or the matches of a pattern; with
/// `recursive`, everything beneath, and symbolic links as links. Directories that cannot be read,
/// and names of several lines, are reported at once and return an error at the end.
pub(crate) fn each_entry(
    client: &Client,
    sessions: &mut Sessions<'_>,
    target: &Target,
    recursive: bool,
    each: &mut Each<'_>,
) -> anyhow::Result<()> {
    let place = target.place()?;
    let found = find(sessions, place)?;
    let base = match (&found, place) {
        (Found::Pattern, place) => Base::of_pattern(place),
        (_, Place::Local(path)) => Base::Local(path.as_os_str().as_bytes().into()),
        (_, Place::Remote(url)) => Base::Remote(url.clone()),
    };
    let (mut unread, mut kinds) = (0u64, HashSet::new());
    let mut one = |entry: &Entry| {
        let location = base.locate(&entry.name);
        if let Some(error) = entry.trouble() {
            unread += 1;
            kinds.extend(entry.trouble_kind());
            if entry.is_nameless() {
                say(format_args!(
                    "ropewalk: {location}: the name is shown like this because it contains an end \
                     of line"
                ));
            } else {
                say(format_args!("ropewalk: {location}: {error}"));
            }
            return Ok(());
        }
        each(entry, location.as_bstr()).map_err(Error::output)
    };
    match (found, place) {
        (Found::Itself(entry), _) => each(&entry, base.locate(b"").as_bstr()).map_err(Error::output)?,
        (_, _) if recursive => {
            let mut options = client.options.clone().with(|o| o.selection.recursive = true);
            options.preserve.links = true;
            let mut result = Ok(());
            walk(&target.location, &options, &client.events, &client.cancel, &mut |entry| {
                result = one(&entry);
                if result.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
            result?;
        }
        (Found::Directory, Place::Remote(url)) => {
            for entry in sessions.with(url, |remote, path| remote.list(path))? {
                one(&entry)?;
            }
        }
        _ => {
            for entry in list(&target.location, &client.options, &client.events, &client.cancel)? {
                one(&entry)?;
            }
        }
    }
    let reason = match unread {
        0 => return Ok(()),
        1 => "one entry could not be read".to_owned(),
        n => format!("{n} entries could not be read"),
    };
    Err(unread_for(kinds, reason).into())
}

/// The error of an entry that could not be read, of its own kind if it has one.
pub(crate) fn unread_for(kinds: impl IntoIterator<Item = FailureKind>, reason: String) -> Error {
    let mut kinds = kinds.into_iter();
    let kind = kinds.next().filter(|_| kinds.next().is_none()).unwrap_or(FailureKind::Other);
    Error::found(kind, reason)
}

fn find(sessions: &mut Sessions<'_>, place: Place<'_>) -> anyhow::Result<Found> {
    let (entry, path): (anyhow::Result<Entry>, &BStr) = match place {
        Place::Local(path) => (local_entry(path).map_err(Into::into), path.as_os_str().as_bytes().into()),
        Place::Remote(url) => {
            let pattern = is_pattern(&url.path);
            let entry = sessions.with(url, |remote, path| match pattern || path.ends_with(b"/") {
                true => remote.stat(path),
                false => stat(remote, path),
            });
            let missing = matches!(&entry, Err(error) if error.failure_kind() == FailureKind::NotFound);
            if missing && pattern {
                return Ok(Found::Pattern);
            }
            if missing {
                // Replaces the server's text about a command that the user did not give.
                return Err(Error::found(FailureKind::NotFound, "no such file or directory").into());
            }
            (entry.map_err(Into::into), url.path.as_bstr())
        }
    };
    match entry {
        Ok(entry) if entry.is_directory() => Ok(Found::Directory),
        Ok(_) if path.ends_with(b"/") => Err(Error::found(FailureKind::NotFound, "not a directory").into()),
        Ok(mut entry) => {
            entry.name = path.rsplit_once_str("/").map_or(path.as_bytes(), |(_, name)| name).into();
            Ok(Found::Itself(entry))
        }
        Err(error) => match error.downcast_ref::<io::Error>() {
            Some(e) if e.kind() == io::ErrorKind::NotFound && is_pattern(path) => Ok(Found::Pattern),
            _ => Err(error),
        },
    }
}

/// Returns the server's information about a path. A dangling symbolic link, which servers do not
/// find, is taken from the listing of its directory.
pub(crate) fn stat(remote: &mut Remote, path: &[u8]) -> Result<Entry, Error> {
    let missing = match remote.stat(path) {
        Err(error) if error.failure_kind() == FailureKind::NotFound => error,
        found => return found,
    };
    let (directory, name) = path.rsplit_once_str("/").unwrap_or((b".", path));
    let directory = if directory.is_empty() { b"/" } else { directory };
    let mut link = None;
    let listed = remote.list_each(directory, &mut |entry| {
        if entry.name != name {
            return ControlFlow::Continue(());
        }
        link = Some(entry);
        ControlFlow::Break(())
    });
    match (link, listed) {
        (Some(link), _) => Ok(link),
        (None, Err(error)) if error.kind() != ErrorKind::Refused => Err(error),
        (None, _) => Err(missing),
    }
}

/// A link to a directory is shown as the directory, any other link as itself.
fn local_entry(path: &Path) -> io::Result<Entry> {
    let mut entry = crate::local::stat(path)?;
    if fs::metadata(path).is_ok_and(|metadata| metadata.is_dir()) {
        entry.kind = ropewalk_storage::Kind::Directory;
    }
    Ok(entry)
}

fn is_pattern(path: &[u8]) -> bool {
    path.find_byteset(b"*?[{").is_some()
}

impl Base {
    /// The directory before the first component with a pattern.
    fn of_pattern(place: Place<'_>) -> Self {
        let before = |path: &[u8]| -> BString {
            let first = path.find_byteset(b"*?[{").unwrap_or(path.len());
            path[..path[..first].rfind_byte(b'/').map_or(0, |at| at + 1)].into()
        };
        match place {
            Place::Local(path) => Self::Local(before(path.as_os_str().as_bytes())),
            Place::Remote(url) => Self::Remote(url.with_path(&before(&url.path))),
        }
    }

    /// The path or URL of `name` beneath a location; the location itself if the name is empty.
    fn locate(&self, name: &[u8]) -> BString {
        let join = |base: &[u8]| -> BString {
            let mut path = BString::from(base);
            if !name.is_empty() && !path.is_empty() && !path.ends_with(b"/") {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            path
        };
        match self {
            Self::Local(path) => join(path),
            Self::Remote(url) => url.with_path(&join(&url.path)).to_string().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn unreadable_entries_of_one_kind_return_its_error() {
        let kind = |kinds: &[FailureKind]| unread_for(kinds.iter().copied(), String::new()).failure_kind();
        assert_eq!(kind(&[FailureKind::Permission]), FailureKind::Permission);
        assert_eq!(kind(&[FailureKind::Permission, FailureKind::Other]), FailureKind::Other);
        assert_eq!(kind(&[]), FailureKind::Other);
    }

    #[test]
    fn child_location_is_joined() {
        let base = |given: &str| match Target::parse(given.as_ref()).unwrap().place().unwrap() {
            Place::Local(path) => Base::Local(path.as_os_str().as_bytes().into()),
            Place::Remote(url) => Base::Remote(url.clone()),
        };
        assert_eq!(base("d").locate(b"a/b"), "d/a/b");
        assert_eq!(base("d/").locate(b"a"), "d/a");
        assert_eq!(base("/d/f").locate(b""), "/d/f");
        assert_eq!(base("ftp://h/d").locate(b"a b%"), "ftp://h/d/a%20b%25");
        assert_eq!(base("ftp://u:secret@h/").locate(b"a"), "ftp://u@h/a");
    }

    #[test]
    fn pattern_base_is_found() {
        let of = |given: &str| {
            Base::of_pattern(Target::parse(given.as_ref()).unwrap().place().unwrap()).locate(b"x")
        };
        assert_eq!(of("*.h5"), "x");
        assert_eq!(of("d/e/f*/g"), "d/e/x");
        assert_eq!(of("ftp://h/*"), "ftp://h/x");
        assert_eq!(of("ftp://h/d/[ab]?"), "ftp://h/d/x");
    }
}
