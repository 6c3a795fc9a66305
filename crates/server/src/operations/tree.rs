//! Recursive listings: MLSR.

use std::collections::HashMap;
use std::rc::Rc;

use bstr::BString;
use ropewalk_protocol::facts::{Entry, EntryKind};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Failure, List};
use ropewalk_security::Access;
use ropewalk_storage::{Error, ErrorKind, Kind, is_temporary_name};
use rustix::io::Errno;

use super::directory::{Sink, StillWanted};
use super::entries;
use super::files::system;
use crate::accounts::login::Login;
use crate::failure::failure;
use crate::host::Host;

/// The deepest chain of directories through symbolic links.
const LINKS_DEEP: u32 = 32;
/// The most paths to one directory through links that are followed: links between a few directories
/// make millions of paths.
const MOST_WAYS: u32 = 16;

/// A directory that is still to be listed.
struct Pending {
    place: VirtualPath,
    /// Its name relative to the top, empty for the top itself.
    name: BString,
    way: Rc<Way>,
}

/// A directory on the path from the top.
struct Way {
    identity: (u64, u64),
    above: Option<Rc<Self>>,
    /// The number of symbolic links up to here.
    links: u32,
}

impl Way {
    /// The path to a directory beneath, through a symbolic link or not; `None` if that leads back
    /// to a directory on the path, or through too many links.
    fn on(self: &Rc<Self>, identity: (u64, u64), through_link: bool) -> Option<Rc<Self>> {
        let links = self.links + u32::from(through_link);
        let mut above = Some(self);
        while let Some(way) = above.filter(|_| through_link) {
            if way.identity == identity || links > LINKS_DEEP {
                return None;
            }
            above = way.above.as_ref();
        }
        Some(Rc::new(Self { identity, above: Some(self.clone()), links }))
    }
}

/// Lists a whole tree. Names are relative to its top.
pub(super) fn list(
    host: &Host,
    login: &Login,
    list: &List,
    still_wanted: StillWanted<'_>,
    sink: &mut Sink<'_>,
) -> Result<(), Failure> {
    let place = login.existing(&list.path, Access::List)?;
    let metadata = login.store.stat(&place, true).map_err(failure)?;
    if metadata.kind != Kind::Directory {
        return Err(system(Errno::NOTDIR, "opendir"));
    }
    let mut top = entries::entry(host, login, &place, ".".into(), &metadata);
    top.kind = EntryKind::CurrentDirectory;
    sink(top).map_err(failure)?;
    let mut ways: HashMap<(u64, u64), u32> = HashMap::new();
    let way = Rc::new(Way { identity: (metadata.device, metadata.inode), above: None, links: 0 });
    let mut pending = vec![Pending { place, name: BString::default(), way }];
    while let Some(directory) = pending.pop() {
        let mut beneath = Vec::new();
        let mut stopped = false;
        let result = login.store.list(&directory.place, &mut |name, metadata| {
            if !still_wanted() {
                stopped = true;
                return Err(super::directory::stopped(&directory.place));
            }
            let Ok(child) = directory.place.child(name) else {
                return Ok(());
            };
            if is_temporary_name(name) || !login.shows(&child) {
                return Ok(());
            }
            let mut full = directory.name.clone();
            if !full.is_empty() {
                full.push(b'/');
            }
            full.extend_from_slice(name);
            let entry = if list.traverse_links {
                entries::followed(host, login, &directory.place, &child, full.clone(), &metadata)
            } else {
                entries::entry(host, login, &child, full.clone(), &metadata)
            };
            // Entries of a directory whose name cannot be shown would seem to be in another one.
            let mut entry = entry.shown();
            if entry.kind == EntryKind::Directory {
                let identity = (entry.device.unwrap_or(0), entry.inode.unwrap_or(0));
                let way = directory.way.on(identity, metadata.kind == Kind::Symlink).filter(|way| {
                    // Without links there is one path to each directory, and nothing to remember.
                    way.links == 0 || {
                        let gone = ways.entry(identity).or_insert(0);
                        *gone += 1;
                        *gone <= MOST_WAYS
                    }
                });
                match way {
                    Some(way) => beneath.push(Pending { place: child, name: full, way }),
                    None => entry.error = Some("Loop".into()),
                }
            }
            sink(entry).inspect_err(|_| stopped = true)
        });
        match result {
            Ok(()) => {}
            Err(error) if stopped => return Err(failure(error)),
            Err(error) if list.continue_on_error && !directory.name.is_empty() => {
                tell(&directory, &error, sink).map_err(failure)?;
            }
            Err(error) => return Err(failure(error)),
        }
        // The directory of the first entry is listed next.
        pending.extend(beneath.into_iter().rev());
    }
    Ok(())
}

/// Lists an entry in place of a directory that cannot be listed.
fn tell(directory: &Pending, error: &Error, sink: &mut Sink<'_>) -> ropewalk_storage::Result<()> {
    let mut entry = Entry::new(directory.name.clone(), EntryKind::Directory);
    entry.error = Some(if error.kind() == ErrorKind::NotFound { "NotFound" } else { "OpenFailed" }.into());
    (entry.readable, entry.writable) = (false, false);
    sink(entry)
}
