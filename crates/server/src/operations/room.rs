//! Room on the disk for uploads with an announced size, and for reservations.

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_storage::{Kind, Metadata, part_name};

use super::space::reserved_by_others;
use crate::failure::failure;
use crate::host::Host;
use crate::host::space::{make_room_on_disk, no_space, on_host};
use crate::session::job::Job;

/// The bytes of a file system.
struct Room {
    /// For the session.
    free: u64,
    /// That others have reserved.
    reserved: u64,
}

/// Fails if the file system has no space for the rest of a file of `size` bytes, of which `present`
/// are there, not even after old part files have made room.
pub(super) fn check_space(
    job: &Job<'_>,
    size: Option<u64>,
    present: u64,
    place: &VirtualPath,
    existing: Option<&Metadata>,
) -> Result<(), Failure> {
    let Some(size) = size else {
        return Ok(());
    };
    if existing.is_some_and(|metadata| metadata.kind != Kind::File) {
        return Ok(());
    }
    let directory = place.parent().unwrap_or_else(VirtualPath::root);
    let storage = job.context.login()?.store_for(place);
    // Existing data takes no more space. An earlier upload that was killed may have reserved all
    // its space: it is resumed or removed.
    let held = storage.upload_space(place);
    let needed = size.saturating_sub(held.max(present));
    let Some(mut room) = room(job, &directory)? else { return Ok(()) };
    if room.free < needed {
        let own = storage.stat(&part_name(place), false).ok();
        let own = own.map(|part| (part.device, part.inode));
        if make_room(job, &directory, needed - room.free, own)? {
            room = self::room(job, &directory)?.unwrap_or(room);
        }
    }
    if room.free < needed {
        let Room { free, reserved } = room;
        tracing::warn!(session = job.context.id, path = ?place, size, free, "an upload does not fit");
        return Err(no_space(free, reserved, needed));
    }
    Ok(())
}

/// The bytes that are free on the file system of a directory, with those of old part files if there
/// would be less than `needed` for a new reservation. `None`: the store does not know.
pub(super) fn free_for_reservation(
    job: &Job<'_>,
    directory: &VirtualPath,
    needed: u64,
) -> Result<Option<u64>, Failure> {
    let login = job.context.login()?;
    let free = || login.store.free_space(directory).map_err(failure);
    let device = login.store.stat(directory, true).map_err(failure)?.device;
    let reserved = job.host.space.as_ref().map_or(0, |space| space.reserved(device, None));
    let Some(before) = free()? else { return Ok(None) };
    let missing = needed.saturating_add(reserved).saturating_sub(before);
    if missing > 0 && make_room(job, directory, missing, None)? { free() } else { Ok(Some(before)) }
}

fn room(job: &Job<'_>, directory: &VirtualPath) -> Result<Option<Room>, Failure> {
    let free = job.context.login()?.store.free_space(directory).map_err(failure)?;
    // The bytes that others have reserved are theirs.
    let reserved = reserved_by_others(job, directory)?;
    Ok(free.map(|free| Room { free: free.saturating_sub(reserved), reserved }))
}

/// Removes old part files on the file system of the directory, beneath the root of the session,
/// until `missing` bytes more are free. `but` is the part file of the upload itself.
fn make_room(
    job: &Job<'_>,
    directory: &VirtualPath,
    missing: u64,
    but: Option<(u64, u64)>,
) -> Result<bool, Failure> {
    if !job.host.stores.have_identities() {
        return Ok(false);
    }
    let login = job.context.login()?;
    let root = &login.account.root;
    let directory = on_host(root, &login.store.real_path(directory).map_err(failure)?);
    let Host { expiry, space, .. } = &**job.host;
    Ok(make_room_on_disk(expiry, space.as_ref(), missing, (root, &directory), but))
}
