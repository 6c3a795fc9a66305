//! Entries of listings, made from the metadata of a store.

use std::time::{SystemTime, UNIX_EPOCH};

use bstr::BString;
use ropewalk_protocol::facts::{Entry, EntryKind, INVALID_LINK};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_security::Access;
use ropewalk_storage::{Kind, Metadata};

use crate::accounts::login::Login;
use crate::failure::failure;
use crate::host::Host;

/// The clock, in seconds since 1970.
pub(super) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed())
}

/// The entry of one path, which is its name too.
pub(super) fn stat(host: &Host, login: &Login, path: &VirtualPath, follow: bool) -> Result<Entry, Failure> {
    // The entry itself first: it has the target of a symbolic link, and exists even if the link
    // dangles.
    let place = login.entry(path, Access::List)?;
    let own = login.store.stat(&place, false).map_err(failure)?;
    let name = BString::from(path.as_bytes());
    if own.kind != Kind::Symlink || !follow {
        return Ok(entry(host, login, &place, name, &own));
    }
    let place = login.existing(path, Access::List)?;
    let followed = login.store.stat(&place, true).map_err(failure)?;
    let mut entry = entry(host, login, &place, name, &followed);
    entry.target = own.target;
    Ok(entry)
}

/// The entry of a directory, with its symbolic link followed if it is one and that is permitted.
pub(super) fn followed(
    host: &Host,
    login: &Login,
    directory: &VirtualPath,
    place: &VirtualPath,
    name: BString,
    own: &Metadata,
) -> Entry {
    if own.kind != Kind::Symlink {
        return entry(host, login, place, name, own);
    }
    let permitted = login.unrestricted()
        || own.target.as_ref().is_some_and(|target| login.link_target(directory, target).is_some());
    let target = if permitted { login.store.stat(place, true).ok() } else { None };
    let mut entry = match target {
        Some(metadata) => entry(host, login, place, name, &metadata),
        None => {
            let mut dangling = entry(host, login, place, name, own);
            dangling.error = Some(INVALID_LINK.into());
            dangling
        }
    };
    entry.target.clone_from(&own.target);
    entry
}

/// The entry for this metadata; `place` is for the rules.
pub(super) fn entry(
    host: &Host,
    login: &Login,
    place: &VirtualPath,
    name: BString,
    metadata: &Metadata,
) -> Entry {
    let mut entry = Entry::new(name, kind(metadata.kind));
    entry.size = Some(metadata.size);
    entry.modified = Some(metadata.modified.0);
    entry.mode = Some(metadata.mode);
    entry.uid = Some(metadata.uid);
    entry.gid = Some(metadata.gid);
    entry.owner = Some(host.names.user(metadata.uid).to_string());
    entry.group = Some(host.names.group(metadata.gid).to_string());
    entry.device = Some(metadata.device);
    entry.inode = Some(metadata.inode);
    entry.links = Some(metadata.links);
    entry.target.clone_from(&metadata.target);
    let reading = if metadata.kind == Kind::Directory { Access::List } else { Access::Read };
    entry.readable = metadata.readable && login.allows(place, reading);
    let writing = if metadata.kind == Kind::Directory { Access::Create } else { Access::Write };
    entry.writable = metadata.writable && login.allows(place, writing);
    entry.searchable = metadata.searchable;
    entry
}

fn kind(kind: Kind) -> EntryKind {
    match kind {
        Kind::File => EntryKind::File,
        Kind::Directory => EntryKind::Directory,
        Kind::Symlink => EntryKind::Symlink,
        Kind::BlockDevice => EntryKind::BlockDevice,
        Kind::CharacterDevice => EntryKind::CharacterDevice,
        Kind::Fifo => EntryKind::Fifo,
        Kind::Socket => EntryKind::Socket,
    }
}
