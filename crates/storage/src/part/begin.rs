use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;

use super::{
    Interrupted, Journaling, PartOptions, STICKY, ignore_missing, journal_name, journal_of_part, no_pieces,
    part_name,
};
use crate::checksum::Pieces;
use crate::journal::{self, Loaded};
use crate::{
    Error, ErrorKind, Journal, JournalKey, Kind, Lock, Metadata, ReadHandle, Result, Store, WriteHandle,
    WriteOptions,
};

/// Who begins a transfer waits so long for those who look what is there, which takes a moment; and looks this often.
const LOOKING: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(1);

/// Where everything is.
pub(super) struct Names {
    /// What the part is renamed to at the end; `None` where it is not.
    pub(super) target: Option<VirtualPath>,
    pub(super) part: VirtualPath,
    /// `None` where the file is written in place.
    pub(super) journal: Option<VirtualPath>,
}

impl Names {
    pub(super) fn of(path: &VirtualPath, store: &dyn Store) -> Self {
        let able = store.capabilities();
        if !able.rename || !able.random_write {
            return Self { target: None, part: path.clone(), journal: None };
        }
        if let Some(journal) = journal_of_part(path) {
            return Self { target: None, part: path.clone(), journal: Some(journal) };
        }
        Self { target: Some(path.clone()), part: part_name(path), journal: Some(journal_name(path)) }
    }

    /// The path to speak of.
    pub(super) fn shown(&self) -> &VirtualPath {
        self.target.as_ref().unwrap_or(&self.part)
    }
}

/// An open part.
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
    options: PartOptions,
) -> Result<Begun> {
    let Some(journal) = &names.journal else {
        let write = WriteOptions { create: true, truncate: true, exclusive: false, mode: options.mode };
        return Ok(Begun::empty(store.open_write(&names.part, write)?, None));
    };
    let mut why = None;
    // Another transfer can finish or give up between two steps; then what was found is gone and it goes round again.
    for _ in 0..16 {
        match make(store, names, journal, options) {
            Ok(Some(handle)) => return Ok(Begun::empty(handle, why)),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let left = match open_locked(store, names, &lock) {
            // Whether anybody writes it cannot be known; whoever writes one can read it.
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
            match load(store, names, journal, &metadata, Some(key), &|| Ok(()), &mut |_| Ok(()))? {
                Ok(Found { present, pieces, journal, .. }) => {
                    let unordered = options.journal != Journaling::Sequential;
                    if unordered && journal.is_none() && present.is_empty() {
                        // Its size will not say what is there. (One with bytes gets a journal for that.)
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
        // Removed, not emptied: it may be somebody else's file, or have other permissions. The journal goes first.
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
    let Some(journal) = &names.journal else { return Ok(None) };
    let Some((left, metadata)) = open_to_look(store, names)? else { return Ok(None) };
    if !is_own(store, &names.part, &metadata) {
        return Ok(None);
    }
    let alone = || if lock(left.lock())? { Ok(()) } else { Err(busy(names)) };
    let found = load(store, names, journal, &metadata, None, &alone, progress)?;
    let found = found.ok().filter(|found| !found.present.is_empty());
    Ok(found.map(|found| Interrupted { present: found.present, key: found.key }))
}

pub(super) fn sequential_prefix(store: &dyn Store, names: &Names) -> Result<Option<u64>> {
    let Some(journal) = &names.journal else { return Ok(None) };
    let Some((_locked, metadata)) = open_to_look(store, names)? else { return Ok(None) };
    if !is_own(store, &names.part, &metadata) {
        return Ok(None);
    }
    let known = metadata.mode & STICKY != 0 && is_missing(store, journal)?;
    Ok(known.then_some(metadata.size).filter(|size| *size > 0))
}

/// Makes a new part; `None` where it was taken away before it was ours.
fn make(
    store: &dyn Store,
    names: &Names,
    journal: &VirtualPath,
    options: PartOptions,
) -> Result<Option<Arc<dyn WriteHandle>>> {
    let sticky = if options.journal == Journaling::Sequential { STICKY } else { 0 };
    let mode = (options.mode & !STICKY) | sticky;
    let write = WriteOptions { create: true, truncate: false, exclusive: true, mode };
    let handle = store.open_write(&names.part, write)?;
    if !lock(&*handle)? {
        return Err(busy(names));
    }
    // Whoever opened it before we had the lock may have removed it.
    if handle.metadata()?.links == 0 {
        return Ok(None);
    }
    // One that lost its part would speak of this one.
    ignore_missing(store.remove_file(journal))?;
    Ok(Some(handle))
}

/// Takes the part for a transfer. Another transfer keeps it for long; who only looks shares the lock, and is waited for.
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

/// A part that is there, open.
enum Left {
    Writable(Arc<dyn WriteHandle>),
    /// Another user's.
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

/// Takes a part for who is about to give it its name, or to remove it; `None` where somebody else has it.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] where it is another user's and may not even be read: whether anybody writes it cannot be known.
pub fn hold_part(store: &dyn Store, part: &VirtualPath) -> Result<Option<HeldPart>> {
    let left = match Left::open(store, part) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied && is_own_leftover(store, part)? => {
            return Ok(Some(HeldPart(None)));
        }
        left => left?,
    };
    Ok(left.lock().lock()?.then_some(HeldPart(Some(left))))
}

/// Whether a part that cannot be opened is our own, by what the file system says of it: an earlier run as somebody else has left
/// it, or somebody has taken its permissions away.
fn is_own_leftover(store: &dyn Store, part: &VirtualPath) -> Result<bool> {
    match store.stat(part, false) {
        Ok(metadata) => Ok(is_own(store, part, &metadata)),
        Err(error) if error.is_not_found() => Ok(true),
        Err(error) => Err(error),
    }
}

/// Keeps others from a part until it is dropped.
pub struct HeldPart(Option<Left>);

impl HeldPart {
    /// Whether it is the `whole` one that was uploaded under this name, as far as that can be told: file systems give numbers of
    /// inodes again.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn is_still(&self, whole: &Metadata, store: &dyn Store, part: &VirtualPath) -> Result<bool> {
        let (Some(left), names) = (&self.0, Names::of(part, store)) else { return Ok(true) };
        let now = left.metadata()?;
        let which = |metadata: &Metadata| (metadata.device, metadata.inode, metadata.size);
        if which(&now) != which(whole) || now.mode & STICKY != 0 {
            return Ok(false);
        }
        let Some(journal) = &names.journal else { return Ok(true) };
        let found = load(store, &names, journal, &now, None, &|| Ok(()), &mut |_| Ok(()))?;
        Ok(found.is_err() || found.is_ok_and(|found| found.present.contains(0..now.size)))
    }

    /// The file was renamed from the part's name to its own: it no longer says of itself that it is unfinished, nor has it the
    /// permissions of `closed`, which only somebody who goes on with it needs.
    ///
    /// # Errors
    /// The permissions cannot be looked at or set: the file is another user's, say.
    pub fn unmark(&self, closed: u32) -> Result<()> {
        // What another user's upload says of itself is that user's.
        let Some(Left::Writable(part)) = &self.0 else { return Ok(()) };
        let mode = part.metadata()?.mode;
        if mode & (STICKY | closed) == 0 { Ok(()) } else { part.set_mode(mode & 0o777 & !closed) }
    }
}

/// As [`open_locked`], for who only looks what there is to go on with: nothing, in another user's.
fn open_to_look(store: &dyn Store, names: &Names) -> Result<Option<(Left, Metadata)>> {
    match open_locked(store, names, &|left| left.lock_shared()) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(None),
        found => found,
    }
}

/// Opens and locks the part that is there; `None` where there is none (any more). Where something else has its name, that is
/// left alone: it will not go away by itself.
fn open_locked(
    store: &dyn Store,
    names: &Names,
    lock: &dyn Fn(&dyn Lock) -> Result<bool>,
) -> Result<Option<(Left, Metadata)>> {
    // Asked before it is opened, which would follow a symbolic link: to nothing, or to what another one has locked.
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
    // It may have got its name, or have been removed, before we had the lock.
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

/// Whether it can be what an earlier upload of the same user left. Where others may make names in the directory, one of
/// them can have put it there, or have linked the name to another file of the user.
fn is_own(store: &dyn Store, part: &VirtualPath, metadata: &Metadata) -> bool {
    store.own_uid().is_none_or(|uid| metadata.uid == uid && metadata.links == 1)
        || store.acting_uid().is_none() && is_closed(store, part)
}

/// Whether nobody but its owner makes names in the directory: then whose files the file system says they are (it may know but
/// one owner, or call root by another name) does not matter.
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
    journal: &VirtualPath,
    metadata: &Metadata,
    key: Option<&JournalKey>,
    alone: &dyn Fn() -> Result<()>,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Result<Found, String>> {
    // Another user's would say that bytes are there which never came.
    let own = |metadata: &Metadata| is_own(store, &names.part, metadata);
    match journal::load(store, journal, &names.part, key, &own, alone, progress)? {
        Ok(Loaded { key, present, pieces, journal }) => {
            Ok(Ok(Found { present, pieces, journal: Some(journal), key: Some(key) }))
        }
        Err(_) if metadata.mode & STICKY != 0 && is_missing(store, journal)? => {
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
