//! A directory tree, local or at a server, with the same operations for both.
//!
//! A [`Side`] belongs to one thread: that of the plan, or of the last steps of a copy. A local one
//! uses a store, and a remote one its own session. Errors that break the session are returned to
//! the caller; [`Side::ask`] repeats an operation in a new session.

use std::sync::Arc;
use std::time::Instant;

use bstr::{BStr, BString, ByteSlice};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_storage::{ErrorKind, Kind, Store};

use crate::listing::Listing;
use crate::model::entry::OF_LINKS;
use crate::model::entry::{DANGLING, LEADS_BACK, Time};
use crate::place::{Endpoint, Place, join, parent};
use crate::session::Session;
use crate::session::ops::names::{LEVELS, too_deep};
use crate::{Entry, FailureKind, RemoteError};

pub(crate) enum Side {
    Local(Arc<dyn Store>),
    Remote(Box<Session>),
}

/// Opens a session in place of one that broke with this error. The other arguments are the number
/// of tries so far and the time of the first failure. Returns `None` if there is to be no further
/// try.
pub(crate) type Reopen<'r> = dyn Fn(&Arc<Endpoint>, &RemoteError, u32, Instant) -> Option<Session> + 'r;

/// The maximum number of symbolic links on the way to a directory.
const LINKS_DEEP: usize = 32;

/// The error of a symbolic link whose target is not known.
const UNTOLD: &str = "the server does not tell where the symbolic link leads";

/// The attributes of the directory that `link` leads to, without the mode and time if the server
/// reported those of the link itself.
fn without_links_own(directory: Entry, link: &Entry) -> Entry {
    if !directory.is_directory() || link.mode != Some(OF_LINKS) || directory.mode != link.mode {
        return directory;
    }
    Entry { mode: None, modified: None, ..directory }
}

/// The next step of a walk after an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Continue, and enter the entry if it is a directory.
    Into,
    Over,
    Stop,
}

/// The permission bits of the owner.
pub(crate) const OWNERS: u32 = 0o700;

/// Whether the owner of a directory with this mode cannot create or remove files in it.
pub(crate) fn is_shut(mode: u32) -> bool {
    mode & 0o300 != 0o300
}

pub(crate) fn is_missing(error: &RemoteError) -> bool {
    error.kind() == FailureKind::NotFound
}

fn virtual_path(path: &[u8]) -> Result<VirtualPath, RemoteError> {
    VirtualPath::parse(path).map_err(|_| RemoteError::Usage(format!("{}: not a path", path.as_bstr())))
}

impl Side {
    /// The attributes of an entry; `None` if there is none. Links are followed.
    pub(crate) fn stat(&mut self, path: &[u8]) -> Result<Option<Entry>, RemoteError> {
        let found = match self {
            Self::Local(store) => {
                let path = virtual_path(path)?;
                let name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
                let found = store.stat(&path, true).map(|metadata| Entry::local(name, metadata));
                found.map_err(|e| RemoteError::local(path.as_bytes(), e))
            }
            Self::Remote(session) => session.stat(path),
        };
        match found {
            Ok(entry) => Ok(Some(entry)),
            Err(e) if is_missing(&e) => Ok(None),
            // Some servers give no other reason than the code 550.
            Err(e) if e.kind() == FailureKind::Other && e.reply_code() == Some(550) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The attributes of the entries that exist.
    pub(crate) fn stat_many(&mut self, paths: &[BString]) -> Result<Vec<Option<Entry>>, RemoteError> {
        match self {
            Self::Local(_) => Ok(paths.iter().map(|path| self.stat(path).ok().flatten()).collect()),
            Self::Remote(session) => Ok(session.stat_many(paths)?.into_iter().map(Result::ok).collect()),
        }
    }

    /// The attributes of an entry, locally of the link itself. Servers follow links, but their
    /// reply may name the target.
    pub(crate) fn stat_link(&mut self, path: &[u8]) -> Result<Option<Entry>, RemoteError> {
        let Self::Local(store) = self else { return self.stat(path) };
        let path = virtual_path(path)?;
        let name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
        match store.stat(&path, false) {
            Ok(metadata) => Ok(Some(Entry::local(name, metadata))),
            Err(e) if e.is_not_found() => Ok(None),
            Err(e) => Err(RemoteError::local(path.as_bytes(), e)),
        }
    }

    /// The target of a symbolic link at a server, if listings do not contain it.
    fn read_link(&mut self, path: &[u8]) -> Result<Option<BString>, RemoteError> {
        match self {
            Self::Remote(session) => session.read_link(path),
            Self::Local(_) => Ok(None),
        }
    }

    /// The entries of a server's directory.
    fn listing(&mut self, path: &[u8]) -> Result<Listing, RemoteError> {
        match self {
            Self::Remote(session) => session.listing(path),
            Self::Local(_) => Err(RemoteError::Usage("not at a server".to_owned())),
        }
    }

    /// Passes the entries of one directory to `each`, until it returns `false`.
    pub(crate) fn list(
        &mut self,
        path: &[u8],
        each: &mut dyn FnMut(Entry) -> Result<bool, RemoteError>,
    ) -> Result<(), RemoteError> {
        match self {
            Self::Local(store) => {
                let path = virtual_path(path)?;
                let mut failure = None;
                let listed =
                    store.list(&path, &mut |name, metadata| match each(Entry::local(name, metadata)) {
                        Ok(true) => Ok(()),
                        ended => {
                            failure = Some(ended.err());
                            Err(ropewalk_storage::Error::new(ErrorKind::Io, "stop", path.as_bytes()))
                        }
                    });
                match failure {
                    Some(failure) => failure.map_or(Ok(()), Err),
                    None => listed.map_err(|e| RemoteError::local(path.as_bytes(), e)),
                }
            }
            Self::Remote(session) => {
                for entry in session.listing(path)? {
                    if !each(entry?)? {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    /// Visits the entries beneath `root`, parents before children. With `links`, symbolic links are
    /// reported as such and not followed. An entry that cannot be read is reported with an error.
    pub(crate) fn walk(
        &mut self,
        root: &[u8],
        links: bool,
        visit: &mut dyn FnMut(&mut Self, Entry) -> Result<Step, RemoteError>,
    ) -> Result<(), RemoteError> {
        self.walk_from(root, links, None, visit)
    }

    /// Like [`Side::walk`], but continues after failures. Sessions that break are replaced. If the
    /// listing of `root` is incomplete or has a line that cannot be parsed, that is reported as an
    /// entry without a name and with an error, and the walk continues with the other entries.
    pub(crate) fn walk_on(
        &mut self,
        root: &[u8],
        links: bool,
        reopen: &Reopen<'_>,
        visit: &mut dyn FnMut(&mut Self, Entry) -> Result<Step, RemoteError>,
    ) -> Result<(), RemoteError> {
        self.walk_from(root, links, Some(reopen), visit)
    }

    /// Runs `ask`, and repeats it in a new session if this one breaks.
    pub(crate) fn ask<T>(
        &mut self,
        reopen: Option<&Reopen<'_>>,
        ask: &mut dyn FnMut(&mut Self) -> Result<T, RemoteError>,
    ) -> Result<T, RemoteError> {
        let mut tries = 0;
        let mut first = None;
        loop {
            let error = match ask(self) {
                Err(e) if e.breaks_session() => e,
                answer => return answer,
            };
            tries += 1;
            let first = *first.get_or_insert_with(Instant::now);
            let another = match (&*self, reopen) {
                (Self::Remote(session), Some(reopen)) => reopen(&session.endpoint, &error, tries, first),
                _ => None,
            };
            match another {
                Some(session) => *self = Self::Remote(Box::new(session)),
                None => return Err(error),
            }
        }
    }

    fn walk_from(
        &mut self,
        root: &[u8],
        links: bool,
        reopen: Option<&Reopen<'_>>,
        visit: &mut dyn FnMut(&mut Self, Entry) -> Result<Step, RemoteError>,
    ) -> Result<(), RemoteError> {
        let mut directories = vec![Directory { name: BString::default(), above: None, links: 0 }];
        while let Some(directory) = directories.pop() {
            let path = if directory.name.is_empty() { root.into() } else { join(root, &directory.name) };
            // A remote listing is received completely before its entries are visited, so that the
            // session is free for other commands.
            let mut names = Vec::new();
            let mut stop = false;
            let mut found = |side: &mut Self, mut entry: Entry| -> Result<bool, RemoteError> {
                let name = if directory.name.is_empty() {
                    entry.name.clone()
                } else {
                    join(&directory.name, &entry.name)
                };
                let through_link = entry.kind == Kind::Symlink || entry.target.is_some();
                if links && entry.target.is_some() {
                    entry.kind = Kind::Symlink;
                } else if links && entry.kind == Kind::Symlink {
                    match side.ask(reopen, &mut |side| side.read_link(&join(root, &name))) {
                        Ok(Some(target)) => entry.target = Some(target),
                        Ok(None) => entry.error = Some(UNTOLD.to_owned()),
                        Err(e) if matches!(e, RemoteError::Cancelled) => return Err(e),
                        Err(e) => entry.error = Some(e.to_string()),
                    }
                } else if !links && entry.kind == Kind::Symlink {
                    entry = match side.ask(reopen, &mut |side| side.stat(&join(root, &name))) {
                        Ok(Some(target)) => without_links_own(target, &entry),
                        Ok(None) => Entry { error: Some(DANGLING.to_owned()), kind: Kind::Symlink, ..entry },
                        Err(e) if matches!(e, RemoteError::Cancelled) => return Err(e),
                        Err(e) => Entry { error: Some(e.to_string()), ..entry },
                    };
                }
                entry.name = name.clone();
                let child =
                    Directory { name, above: None, links: directory.links + usize::from(through_link) };
                let looped = through_link
                    && entry.is_directory()
                    && (child.links > LINKS_DEEP || directory.is_beneath(entry.identity));
                if looped {
                    entry.error = Some(LEADS_BACK.to_owned());
                }
                if matches!(side, Self::Remote(_)) && child.name.find_iter("/").count() >= LEVELS {
                    entry.error.get_or_insert_with(too_deep);
                }
                let identity = entry.identity;
                let enter = entry.is_directory() && entry.error.is_none();
                match visit(side, entry)? {
                    Step::Into if enter => {
                        let above = Some(Arc::new(Above { identity, above: directory.above.clone() }));
                        names.push(Directory { above, ..child });
                    }
                    Step::Into | Step::Over => {}
                    Step::Stop => stop = true,
                }
                Ok(!stop)
            };
            let listed = match self {
                Self::Local(store) => {
                    let mut side = Self::Local(store.clone());
                    self.list(&path, &mut |entry| found(&mut side, entry))
                }
                Self::Remote(_) => match self.ask(reopen, &mut |side| side.listing(&path)) {
                    Ok(listing) => listing
                        .map(|entry| entry.and_then(|entry| found(self, entry)))
                        .find(|go_on| !matches!(go_on, Ok(true))),
                    Err(e) => Some(Err(e)),
                }
                .map_or(Ok(()), |ended| ended.map(drop)),
            };
            if let Err(e) = listed {
                let top = directory.name.is_empty()
                    && !(reopen.is_some()
                        && matches!(e, RemoteError::Listing { .. } | RemoteError::CutOff { .. }));
                if top || e.breaks_session() {
                    return Err(e);
                }
                let entry =
                    Entry { error: Some(e.to_string()), ..Entry::new(directory.name, Kind::Directory) };
                stop = visit(self, entry)? == Step::Stop;
            }
            if stop {
                return Ok(());
            }
            // Directories are visited in the order in which they were found.
            directories.extend(names.into_iter().rev());
        }
        Ok(())
    }

    /// Makes directories that may exist, parents first.
    pub(crate) fn make_directories(
        &mut self,
        paths: &[BString],
    ) -> Result<Vec<Result<bool, RemoteError>>, RemoteError> {
        match self {
            Self::Local(store) => Ok(paths.iter().map(|path| make_local(&**store, path)).collect()),
            Self::Remote(session) => session.make_directories(paths),
        }
    }

    /// Makes a directory and its parents. With `unseen`, a directory that the server hides from the
    /// user counts as existing.
    pub(crate) fn make_path(&mut self, path: &[u8], unseen: bool) -> Result<(), RemoteError> {
        match self {
            Self::Remote(session) => match session.make_directory(path, true) {
                Err(refused) if !refused.breaks_session() => match session.stat(path) {
                    Ok(entry) if entry.is_directory() => Ok(()),
                    // A user who may put files into the directory may not be permitted to see it.
                    // The first file shows whether it exists.
                    Err(hidden) if unseen && hidden.kind() == FailureKind::Permission => Ok(()),
                    _ => Err(refused),
                },
                made => made,
            },
            Self::Local(store) => match make_local(&**store, path) {
                Ok(_) => Ok(()),
                Err(e) if is_missing(&e) && parent(path).is_some() => {
                    let store = store.clone();
                    self.make_path(parent(path).unwrap_or(b"/"), unseen)?;
                    make_local(&*store, path).map(drop)
                }
                Err(e) => Err(e),
            },
        }
    }

    pub(crate) fn remove(&mut self, path: &[u8], tree: bool) -> Result<(), RemoteError> {
        match self {
            Self::Local(store) => {
                let path = virtual_path(path)?;
                let removed = if tree { store.remove_tree(&path) } else { store.remove_file(&path) };
                removed.map_err(|e| RemoteError::local(path.as_bytes(), e))
            }
            Self::Remote(session) if tree => session.remove_tree(path),
            Self::Remote(session) => session.remove(path),
        }
    }

    /// Removes a tree, even if its owner has no write permission for some directories in it.
    pub(crate) fn remove_shut_tree(&mut self, path: &[u8]) -> Result<(), RemoteError> {
        let refused = match self.remove(path, true) {
            Err(e) if e.kind() == FailureKind::Permission => e,
            removed => return removed,
        };
        match self.open_tree(path) {
            Ok(true) => self.remove(path, true),
            Err(e) if e.breaks_session() => Err(e),
            _ => Err(refused),
        }
    }

    /// Gives the owner of the tree at `top` write permission for its directories. Returns whether
    /// any of them had none.
    fn open_tree(&mut self, top: &[u8]) -> Result<bool, RemoteError> {
        let mut opened = false;
        let mut open = |side: &mut Self, path: &[u8], entry: &Entry| {
            let Some(mode) = entry.mode.filter(|mode| entry.is_directory() && is_shut(*mode)) else {
                return Ok(());
            };
            match side.set_attributes(path, None, Some(mode | OWNERS)) {
                Err(e) if e.breaks_session() => return Err(e),
                // The removal will report the error.
                Err(_) => {}
                Ok(()) => opened = true,
            }
            Ok(())
        };
        if let Some(entry) = self.stat_link(top)? {
            open(self, top, &entry)?;
        }
        self.walk(top, true, &mut |side, entry| {
            if entry.target.is_none() {
                open(side, &join(top, &entry.name), &entry)?;
            }
            Ok(Step::Into)
        })?;
        Ok(opened)
    }

    /// Removes an empty directory.
    pub(crate) fn remove_directory(&mut self, path: &[u8]) -> Result<(), RemoteError> {
        match self {
            Self::Local(store) => {
                let path = virtual_path(path)?;
                store.remove_directory(&path).map_err(|e| RemoteError::local(path.as_bytes(), e))
            }
            Self::Remote(session) => session.remove_directory(path),
        }
    }

    /// Sets the modes of files of this side in one round trip. Returns the first error.
    pub(crate) fn set_modes(&mut self, files: &[(Place, u32)]) -> Result<(), RemoteError> {
        let Self::Remote(session) = self else {
            return files
                .iter()
                .try_for_each(|(file, mode)| self.set_attributes(&file.path(), None, Some(*mode)));
        };
        let commands: Vec<_> = files
            .iter()
            .flat_map(|(file, mode)| session.attributes(&file.path(), None, Some(*mode)))
            .collect();
        session.calls(&commands)?.into_iter().try_for_each(|reply| reply.map(drop))
    }

    pub(crate) fn set_attributes(
        &mut self,
        path: &[u8],
        modified: Option<Time>,
        mode: Option<u32>,
    ) -> Result<(), RemoteError> {
        match self {
            Self::Local(store) => {
                let path = virtual_path(path)?;
                let local = |e| RemoteError::local(path.as_bytes(), e);
                if let Some(mode) = mode {
                    store.set_mode(&path, mode).map_err(local)?;
                }
                modified.map_or(Ok(()), |(seconds, nanoseconds)| {
                    store.set_modified(&path, seconds, nanoseconds).map_err(local)
                })
            }
            Self::Remote(session) => {
                for reply in session.calls(&session.attributes(
                    &path.into(),
                    modified.map(|(seconds, _)| seconds),
                    mode,
                ))? {
                    reply?;
                }
                Ok(())
            }
        }
    }
}

/// A directory that is to be listed.
struct Directory {
    /// Relative to the root of the walk.
    name: BString,
    above: Option<Arc<Above>>,
    /// The number of symbolic links on the way to it.
    links: usize,
}

/// A directory on the way to another one.
struct Above {
    identity: Option<(u64, u64)>,
    above: Option<Arc<Self>>,
}

impl Directory {
    fn is_beneath(&self, identity: Option<(u64, u64)>) -> bool {
        let mut above = self.above.as_ref();
        while let Some(directory) = above {
            if identity.is_some() && directory.identity == identity {
                return true;
            }
            above = directory.above.as_ref();
        }
        false
    }
}

/// Makes a directory. Returns `false` if it existed.
fn make_local(store: &dyn Store, path: &[u8]) -> Result<bool, RemoteError> {
    let path = virtual_path(path)?;
    match store.make_directory(&path, 0o777) {
        Ok(()) => Ok(true),
        Err(_) if store.stat(&path, true).is_ok_and(|m| m.kind == Kind::Directory) => Ok(false),
        Err(e) => Err(RemoteError::local(path.as_bytes(), e)),
    }
}

/// The directory part of a relative name; empty at the top.
pub(crate) fn directory_of(name: &BStr) -> &BStr {
    name.rfind_byte(b'/').map_or(b"".as_bstr(), |at| name[..at].as_bstr())
}
