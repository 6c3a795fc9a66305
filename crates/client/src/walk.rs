//! Public functions that read directory trees, local or remote.
//!
//! Each call opens its own session with the server and closes it at its end.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bstr::{BStr, BString, ByteSlice};
use ropewalk_storage::Kind;

use crate::behind_relays::next_server;
use crate::context::local_store;
use crate::model::glob::{Glob, is_glob};
use crate::place::{Endpoint, base_name, local_path, remote_path};
use crate::session::Session;
use crate::setup::Setup;
use crate::side::{Side, Step};
use crate::{Cancel, Entry, Error, EventSink, FailureKind, Location, Options, RemoteError};

/// Opens the side that has `location`, and returns the path there.
fn open(
    location: &Location,
    options: &Options,
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
) -> Result<(Side, BString), RemoteError> {
    match location {
        Location::Local(path) => Ok((Side::Local(local_store()?), local_path(path)?.as_bytes().into())),
        Location::Remote(url) => {
            let session = Session::open(&Arc::new(Endpoint::new(url)), &Setup::new(options, events, cancel))?;
            Ok((Side::Remote(Box::new(session)), remote_path(url, options)))
        }
        Location::Standard | Location::Measure { .. } => {
            Err(RemoteError::Usage("not a file or directory".to_owned()))
        }
    }
}

/// Walks all entries beneath `location`, parents before children. If `location` is a file, that is
/// the only entry; if it has a glob, the entries that match are visited. Names are relative to
/// `location`, or to the directory before the glob. Links are followed unless
/// `options.preserve.links` is set. An entry that cannot be read has [`Entry::trouble`].
///
/// # Errors
/// Nothing exists at `location` or matches its glob, the glob is malformed, the directory cannot be
/// listed, no session with its server can be opened, the session breaks, or the walk is cancelled.
pub fn walk(
    location: &Location,
    options: &Options,
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
    each: &mut dyn FnMut(Entry) -> ControlFlow<()>,
) -> Result<(), Error> {
    let (mut side, path) = open(location, options, events, cancel)?;
    let mut tell = |cancel: &Cancel, entry: Entry| {
        if cancel.is_cancelled() {
            return Err(RemoteError::Cancelled);
        }
        Ok(if each(entry).is_break() { Step::Stop } else { Step::Into })
    };
    match side.stat(&path)? {
        Some(entry) if entry.is_directory() => {
            side.walk(&path, options.preserve.links, &mut |_, entry| tell(cancel, entry))?;
        }
        Some(entry) => {
            tell(cancel, Entry { name: base_name(&path).into(), ..entry })?;
        }
        None if is_glob(path.as_bstr()) => {
            let glob = Glob::new(path.as_bstr()).map_err(|e| RemoteError::Usage(e.to_string()))?;
            let base = glob.base.clone();
            let mut whole: HashSet<BString> = HashSet::new();
            let mut any = false;
            side.walk(&base, options.preserve.links, &mut |_, entry| {
                // All names of a directory precede the entries beneath them.
                let mut above = entry.name.find_iter("/").map(|at| entry.name[..at].as_bstr());
                let beneath = !whole.is_empty() && above.any(|above| whole.contains(above));
                let verdict = glob.judge(entry.name.as_bstr());
                if verdict.matches || beneath || verdict.misses(&entry) {
                    any = true;
                    if verdict.matches && entry.is_directory() && !beneath {
                        whole.insert(entry.name.clone());
                    }
                    return tell(cancel, entry);
                }
                Ok(if verdict.enter { Step::Into } else { Step::Over })
            })?;
            if !any {
                return Err(missing(&path).into());
            }
        }
        None => return Err(missing(&path).into()),
    }
    if let Side::Remote(session) = side {
        session.quit();
    }
    Ok(())
}

/// Lists the entries of one directory (or the file itself, or the matches of a glob), sorted by
/// name; local or remote.
///
/// # Errors
/// Those of [`walk`], or a line of the listing cannot be parsed.
pub fn list(
    location: &Location,
    options: &Options,
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
) -> Result<Vec<Entry>, Error> {
    let (mut side, path) = open(location, options, events, cancel)?;
    let mut entries = Vec::new();
    match side.stat(&path)? {
        Some(entry) if entry.is_directory() => side.list(&path, &mut |entry| {
            entries.push(entry);
            Ok(true)
        })?,
        Some(entry) => entries.push(Entry { name: base_name(&path).into(), ..entry }),
        None if is_glob(path.as_bstr()) => {
            let glob = Glob::new(path.as_bstr()).map_err(|e| RemoteError::Usage(e.to_string()))?;
            side.walk(&glob.base.clone(), true, &mut |_, entry| {
                let verdict = glob.judge(entry.name.as_bstr());
                if verdict.matches || verdict.misses(&entry) {
                    entries.push(entry);
                }
                Ok(if verdict.enter { Step::Into } else { Step::Over })
            })?;
            if entries.is_empty() {
                return Err(missing(&path).into());
            }
        }
        None => return Err(missing(&path).into()),
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if let Side::Remote(session) = side {
        session.quit();
    }
    Ok(entries)
}

/// Lists the entries of one directory, local or remote, whose names match `pattern` (`*`, `?`,
/// `[abc]`; `None` matches all), sorted by name. `directory` itself has no pattern. Links are
/// followed unless `options.preserve.links` is set. If a line of the listing cannot be parsed, the
/// first entry has no name, and its error is the reason.
///
/// # Errors
/// `pattern` is malformed, `directory` is no directory or cannot be listed, no session with its
/// server can be opened, or the session breaks.
pub fn matching(
    directory: &Location,
    pattern: Option<&BStr>,
    options: &Options,
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
) -> Result<Vec<Entry>, Error> {
    let glob = pattern.map(Glob::new).transpose().map_err(|e| RemoteError::Usage(e.to_string()))?;
    let (mut side, path) = open(directory, options, events, cancel)?;
    let mut entries = Vec::new();
    side.walk_on(&path, options.preserve.links, &|_, _, _, _| None, &mut |_, entry| {
        let unknown = entry.name.is_empty();
        if unknown || glob.as_ref().is_none_or(|glob| glob.judge(entry.name.as_bstr()).matches) {
            entries.push(entry);
        }
        Ok(if cancel.is_cancelled() { Step::Stop } else { Step::Over })
    })?;
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    if let Side::Remote(session) = side {
        session.quit();
    }
    Ok(entries)
}

pub(crate) fn missing(path: &BString) -> RemoteError {
    // A server that is no relay takes the URL in the path for the name of a directory.
    let hint = match next_server(path) {
        Some(_) => " (only a relay leads to the server that the path names)",
        None => "",
    };
    let reason = format!("{path}: no such file or directory{hint}");
    RemoteError::Lost { kind: FailureKind::NotFound, reason }
}

/// The content of a tree in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub files: u64,
    pub directories: u64,
    pub links: u64,
    /// The size of all files in bytes.
    pub bytes: u64,
    /// The number of entries that could not be read.
    pub errors: u64,
    /// The kind of these errors, if it is the same for all.
    pub failed_for: Option<FailureKind>,
}

/// Counts the entries beneath `location`. Symbolic links are not followed.
///
/// # Errors
/// Those of [`walk`]. Entries beneath that cannot be read are only counted.
pub fn du(
    location: &Location,
    options: &Options,
    events: &Arc<dyn EventSink>,
    cancel: &Cancel,
) -> Result<Usage, Error> {
    let mut options = options.clone();
    options.preserve.links = true;
    let mut usage = Usage::default();
    walk(location, &options, events, cancel, &mut |entry| {
        match entry.kind {
            _ if entry.trouble().is_some() => {
                let kind = entry.trouble_kind();
                usage.failed_for = kind.filter(|_| usage.errors == 0 || usage.failed_for == kind);
                usage.errors += 1;
            }
            Kind::Directory => usage.directories += 1,
            Kind::Symlink => usage.links += 1,
            _ => {
                usage.files += 1;
                usage.bytes = usage.bytes.saturating_add(entry.size.unwrap_or_default());
            }
        }
        ControlFlow::Continue(())
    })?;
    Ok(usage)
}
