//! Opens part files: it creates a new one or finds, locks and checks an existing one. Another
//! process may rename, remove or create the file at any moment, so each step is checked after the
//! lock was taken. A part file or journal that may belong to another user is not resumed.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use super::{STICKY, ignore_missing, journal_name, journal_of_part, no_pieces, part_name};
use crate::checksum::Pieces;
use crate::journal::{self, Loaded};
use crate::upload::{Interrupted, Journaling, UploadOptions};
use crate::{
    Error, ErrorKind, Journal, JournalKey, Kind, Lock, Metadata, ReadHandle, Result, Store, WriteHandle,
    WriteOptions,
};

/// How long the start of a transfer waits for processes that inspect the part file, which takes a
/// moment, and the interval between attempts.
const LOOKING: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(1);

/// The names of the files of an upload.
pub(super) struct Names {
    /// The name that the part file is renamed to at the end; `None` if it is not renamed.
    pub(super) target: Option<VirtualPath>,
    pub(super) part: VirtualPath,
    pub(super) journal: VirtualPath,
}

impl Names {
    pub(super) fn of(path: &VirtualPath) -> Self {
        match journal_of_part(path) {
            Some(journal) => Self { target: None, part: path.clone(), journal },
            None => Self { target: Some(path.clone()), part: part_name(path), journal: journal_name(path) },
        }
    }

    /// The path for messages.
    pub(super) fn shown(&self) -> &VirtualPath {
        self.target.as_ref().unwrap_or(&self.part)
    }
}

/// An open part file.
pub(super) struct Begun {
    pub(super) handle: Arc<dyn WriteHandle>,
    pub(super) present: RangeSet,
    pub(super) pieces: Pieces,
    pub(super) journal: Option<Journal>,
    pub(super) started_over: Option<String>,
}

impl Begun {
    fn empty(handle: Arc<dyn WriteHandle>, started_over: Option<String>) -> Self {
        Self { handle, present: RangeSet::new(), pieces: no_pieces(), journal: None, started_over }
    }
}

pub(super) fn begin(
    store: &dyn Store,
    names: &Names,
    key: &JournalKey,
    options: UploadOptions,
) -> Result<Begun> {
    let journal = &names.journal;
    let mut why = None;
    // Another transfer may commit or abandon the file between two steps. Then the file that was
    // found is gone, and the loop starts again.
    for _ in 0..16 {
        match make(store, names, journal, options) {
            Ok(Some(handle)) => return Ok(Begun::empty(handle, why)),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let left = match open_locked(store, names, &lock) {
            // Whether a transfer writes the file is unknown, but a transfer could read its own part
            // file.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                if !is_own_leftover(store, &names.part)? {
                    return Err(in_the_way(names));
                }
                why = options.resume.then(|| "it cannot be read".into());
                ignore_missing(store.remove_file(journal))?;
                ignore_missing(store.remove_file(&names.part))?;
                continue;
            }
            left => left?,
        };
        let Some((left, metadata)) = left else { continue };
        let own = is_own(store, &names.part, &metadata);
        if let Left::Writable(handle) = &left
            && own
            && options.resume
        {
            match load(store, names, &metadata, Some(key), &|| Ok(()), &mut |_| Ok(()))? {
                Ok(Found { present, pieces, journal, .. }) => {
                    let unordered = options.journal != Journaling::Sequential;
                    if unordered && journal.is_none() && present.is_empty() {
                        // The size will not say what is present. (A file with bytes gets a journal
                        // for that.)
                        handle.set_mode(metadata.mode & !STICKY)?;
                    }
                    let handle = Arc::clone(handle);
                    return Ok(Begun { handle, present, pieces, journal, started_over: None });
                }
                Err(reason) => why = Some(reason),
            }
        } else if options.resume {
            why = Some(if own { "it cannot be written" } else { "it belongs to another user" }.into());
        }
        // The file is removed and not truncated, because it may be another user's file, or have
        // other permissions. The journal goes first.
        for path in [journal, &names.part] {
            match ignore_missing(store.remove_file(path)) {
                Err(error) if !own && error.kind() == ErrorKind::PermissionDenied => {
                    return Err(in_the_way(names));
                }
                result => result?,
            }
        }
    }
    Err(busy(names))
}

pub(super) fn interrupted(
    store: &dyn Store,
    names: &Names,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Option<Interrupted>> {
    let Some((left, metadata)) = open_to_look(store, names)? else { return Ok(None) };
    if !is_own(store, &names.part, &metadata) {
        return Ok(None);
    }
    let alone = || if lock(left.lock())? { Ok(()) } else { Err(busy(names)) };
    let found = load(store, names, &metadata, None, &alone, progress)?;
    let found = found.ok().filter(|found| !found.present.is_empty());
    let Metadata { modified, changed, .. } = metadata;
    Ok(found.map(|found| Interrupted { present: found.present, key: found.key, modified, changed }))
}

pub(super) fn sequential_prefix(store: &dyn Store, names: &Names) -> Result<Option<u64>> {
    let Some((_locked, metadata)) = open_to_look(store, names)? else { return Ok(None) };
    if !is_own(store, &names.part, &metadata) {
        return Ok(None);
    }
    let known = metadata.mode & STICKY != 0 && is_missing(store, &names.journal)?;
    Ok(known.then_some(metadata.size).filter(|size| *size > 0))
}

/// Creates a new part file; returns `None` if it was removed before this process got the lock.
fn make(
    store: &dyn Store,
    names: &Names,
    journal: &VirtualPath,
    options: UploadOptions,
) -> Result<Option<Arc<dyn WriteHandle>>> {
    let sticky = if options.journal == Journaling::Sequential { STICKY } else { 0 };
    let mode = (options.mode & !STICKY) | sticky;
    let write = WriteOptions { create: true, truncate: false, exclusive: true, mode };
    let handle = store.open_write(&names.part, write)?;
    if !lock(&*handle)? {
        return Err(busy(names));
    }
    // Another process may have opened and removed the file before this one got the lock.
    if handle.metadata()?.links == 0 {
        return Ok(None);
    }
    // A journal that has lost its part file would describe this one.
    ignore_missing(store.remove_file(journal))?;
    Ok(Some(handle))
}

/// Locks the part file for a transfer. Another transfer holds its exclusive lock for long, so that
/// is an error. A process that only inspects the file holds a shared lock, so this waits for it.
fn lock(handle: &dyn Lock) -> Result<bool> {
    let mut until = None;
    while !handle.lock()? {
        let until = *until.get_or_insert_with(|| Instant::now() + LOOKING);
        if !handle.lock_shared()? || Instant::now() >= until {
            return Ok(false);
        }
        handle.unlock();
        thread::sleep(NAP);
    }
    Ok(true)
}

/// An existing part file, open.
enum Left {
    Writable(Arc<dyn WriteHandle>),
    /// Another user's file.
    Readable(Arc<dyn ReadHandle>),
}

impl Left {
    fn open(store: &dyn Store, part: &VirtualPath) -> Result<Self> {
        let write = WriteOptions { create: false, truncate: false, exclusive: false, mode: 0 };
        match store.open_write(part, write) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                store.open_read(part).map(Self::Readable)
            }
            opened => opened.map(Self::Writable),
        }
    }

    fn lock(&self) -> &dyn Lock {
        match self {
            Self::Writable(handle) => &**handle,
            Self::Readable(handle) => &**handle,
        }
    }

    fn metadata(&self) -> Result<Metadata> {
        match self {
            Self::Writable(handle) => handle.metadata(),
            Self::Readable(handle) => handle.metadata(),
        }
    }
}

/// Locks a part file for a caller that is about to rename or remove it. Returns `None` if another
/// process has locked it.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] if it is another user's and cannot even be read, so that it is
/// unknown whether a transfer writes it.
pub fn hold_part(store: &dyn Store, part: &VirtualPath) -> Result<Option<HeldPart>> {
    let left = match Left::open(store, part) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied && is_own_leftover(store, part)? => {
            return Ok(Some(HeldPart(None)));
        }
        left => left?,
    };
    Ok(left.lock().lock()?.then_some(HeldPart(Some(left))))
}

/// Whether a part file that cannot be opened belongs to this store's user, according to the file
/// system. It may be from an earlier run as another user, or its permissions may have been removed.
fn is_own_leftover(store: &dyn Store, part: &VirtualPath) -> Result<bool> {
    match store.stat(part, false) {
        Ok(metadata) => Ok(is_own(store, part, &metadata)),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Keeps other processes away from a part file until it is dropped.
pub struct HeldPart(Option<Left>);

impl HeldPart {
    /// Whether it is the `whole` file that was uploaded under this name, as far as this can be
    /// determined: file systems reuse inode numbers.
    ///
    /// # Errors
    /// The file cannot be inspected.
    pub fn is_still(&self, whole: &Metadata, store: &dyn Store, part: &VirtualPath) -> Result<bool> {
        let (Some(left), names) = (&self.0, Names::of(part)) else { return Ok(true) };
        let now = left.metadata()?;
        let which = |metadata: &Metadata| (metadata.device, metadata.inode, metadata.size);
        if which(&now) != which(whole) || now.mode & STICKY != 0 {
            return Ok(false);
        }
        let found = load(store, &names, &now, None, &|| Ok(()), &mut |_| Ok(()))?;
        Ok(found.is_err() || found.is_ok_and(|found| found.present.contains(0..now.size)))
    }

    /// Removes the marks of an unfinished file, after the file was renamed from the part file's
    /// name to its own. It also removes the permissions in `closed`, which only a transfer that
    /// resumes the file needs.
    ///
    /// # Errors
    /// The permissions cannot be read or set, for example because the file is another user's.
    pub fn unmark(&self, closed: u32) -> Result<()> {
        // The marks of another user's upload are that user's.
        let Some(Left::Writable(part)) = &self.0 else { return Ok(()) };
        let mode = part.metadata()?.mode;
        if mode & (STICKY | closed) == 0 { Ok(()) } else { part.set_mode(mode & 0o777 & !closed) }
    }
}

/// Like [`open_locked`] with a shared lock, for a caller that only inspects the file. Another
/// user's file cannot be resumed, so it counts as missing.
fn open_to_look(store: &dyn Store, names: &Names) -> Result<Option<(Left, Metadata)>> {
    match open_locked(store, names, &|left| left.lock_shared()) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(None),
        found => found,
    }
}

/// Opens and locks the existing part file; returns `None` if there is none (any more). If another
/// kind of entry has its name, that is an error, because it will not go away by itself.
fn open_locked(
    store: &dyn Store,
    names: &Names,
    lock: &dyn Fn(&dyn Lock) -> Result<bool>,
) -> Result<Option<(Left, Metadata)>> {
    // The check comes before the open, which would follow a symbolic link: to a missing file, or to
    // a file that another process has locked.
    match store.stat(&names.part, false) {
        Ok(named) if named.kind != Kind::File => return Err(no_part(names, named.kind)),
        Ok(_) => {}
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    }
    let left = match Left::open(store, &names.part) {
        Ok(left) => left,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    if !lock(left.lock())? {
        return Err(busy(names));
    }
    // The file may have been renamed or removed before this process got the lock.
    let metadata = left.metadata()?;
    match store.stat(&names.part, false) {
        Ok(named) if named.kind != Kind::File => Err(no_part(names, named.kind)),
        Ok(named) if (named.device, named.inode) == (metadata.device, metadata.inode) => {
            Ok(Some((left, metadata)))
        }
        Ok(_) => Ok(None),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an earlier upload of the same user may have left the file. If other users can create
/// names in the directory, one of them may have put the file there, or may have linked the name to
/// another file of the user.
fn is_own(store: &dyn Store, part: &VirtualPath, metadata: &Metadata) -> bool {
    store.own_uid().is_none_or(|uid| metadata.uid == uid && metadata.links == 1)
        || store.acting_uid().is_none() && is_closed(store, part)
}

/// Whether only the owner can create names in the directory. Then the file's owner does not matter:
/// the file system may have one owner for all files, or map root to another user.
fn is_closed(store: &dyn Store, part: &VirtualPath) -> bool {
    let directory = part.parent().unwrap_or_else(VirtualPath::root);
    store.stat(&directory, true).is_ok_and(|directory| directory.mode & 0o022 == 0)
}

struct Found {
    present: RangeSet,
    pieces: Pieces,
    journal: Option<Journal>,
    key: Option<JournalKey>,
}

fn load(
    store: &dyn Store,
    names: &Names,
    metadata: &Metadata,
    key: Option<&JournalKey>,
    alone: &dyn Fn() -> Result<()>,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Result<Found, String>> {
    // A journal of another user could claim ranges that never came.
    let own = |metadata: &Metadata| is_own(store, &names.part, metadata);
    match journal::load(store, &names.journal, &names.part, key, &own, alone, progress)? {
        Ok(Loaded { key, present, pieces, journal }) => {
            Ok(Ok(Found { present, pieces, journal: Some(journal), key: Some(key) }))
        }
        Err(_) if metadata.mode & STICKY != 0 && is_missing(store, &names.journal)? => {
            let present = RangeSet::from_range(0..metadata.size);
            Ok(Ok(Found { present, pieces: no_pieces(), journal: None, key: None }))
        }
        Err(why) => Ok(Err(why)),
    }
}

fn is_missing(store: &dyn Store, path: &VirtualPath) -> Result<bool> {
    match store.stat(path, false) {
        Ok(_) => Ok(false),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

fn busy(names: &Names) -> Error {
    Error::new(ErrorKind::Busy, "open", names.shown().as_bytes()).with_detail("another transfer writes it")
}

fn in_the_way(names: &Names) -> Error {
    let name = names.part.file_name().unwrap_or_default();
    Error::new(ErrorKind::Unsupported, "open", names.shown().as_bytes())
        .with_detail(format!("{name} is an unfinished upload that can be neither read nor removed, or not by this user: remove it first"))
}

fn no_part(names: &Names, kind: Kind) -> Error {
    let what = match kind {
        Kind::File => "file",
        Kind::Directory => "directory",
        Kind::Symlink => "symbolic link",
        Kind::BlockDevice | Kind::CharacterDevice => "device",
        Kind::Fifo => "pipe",
        Kind::Socket => "socket",
    };
    let name = names.part.file_name().unwrap_or_default();
    Error::new(ErrorKind::Unsupported, "open", names.part.as_bytes())
        .with_detail(format!("{name} is a {what} and no unfinished upload: remove it first"))
}
