//! Room on the disk for uploads with an announced size, and for reservations.

use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::Failure;
use ropewalk_storage::{Kind, Metadata, part_name};

use super::space::reserved_by_others;
use super::{Data, Entry};
use crate::failure::failure;
use crate::host::Host;
use crate::host::claims::{Claim, Wanted};
use crate::host::space::{Room, make_room_on_disk, on_host};
use crate::session::job::Job;

/// Claims the space for the rest of a file of `size` bytes, of which `present` are there; `None` if
/// the size or the space is not known. If the file system has too little, old part files make room.
///
/// # Errors
/// There is not enough beside what others have reserved and other uploads still need.
pub(super) fn claim_space(
    job: &Job<'_>,
    size: Option<u64>,
    present: u64,
    place: &VirtualPath,
    existing: Option<&Metadata>,
) -> Result<Option<Claim>, Failure> {
    let Some(size) = size else {
        return Ok(None);
    };
    if existing.is_some_and(|metadata| metadata.kind != Kind::File) {
        return Ok(None);
    }
    let directory = place.parent().unwrap_or_else(VirtualPath::root);
    let login = job.context.login()?;
    if login.store.free_space(&directory).map_err(failure)?.is_none() {
        return Ok(None);
    }
    let storage = login.store_for(place);
    // Existing data takes no more space. An earlier upload that was killed may have reserved all
    // its space: it is resumed or removed.
    let there = storage.upload_space(place);
    let needed = size.saturating_sub(there.max(present));
    // A user who may write a file is not necessarily allowed to look at its directory.
    let parent = login.whole.stat(&directory, true).map_err(failure)?;
    let place_of_claim = (parent.inode, place.file_name().unwrap_or_default().to_vec());
    let wanted = Wanted { place: place_of_claim, needed, there };
    let claim = || {
        job.host.claims.claim(parent.device, wanted.clone(), |announced| {
            let free = login.store.free_space(&directory).map_err(failure)?.unwrap_or(u64::MAX);
            // The bytes that others have reserved are theirs.
            let room = Room { free, reserved: reserved_by_others(job, &directory)?, announced };
            if room.left() < needed { Err(Unclaimed::TooLittle(room)) } else { Ok(()) }
        })
    };
    let claimed = match claim() {
        Err(Unclaimed::TooLittle(room)) => {
            let own = storage.stat(&part_name(place), false).ok();
            let own = own.map(|part| (part.device, part.inode));
            match make_room(job, &directory, needed - room.left(), own)? {
                true => claim(),
                false => Err(Unclaimed::TooLittle(room)),
            }
        }
        claimed => claimed,
    };
    match claimed {
        Ok(claim) => Ok(Some(claim)),
        Err(Unclaimed::Failed(failure)) => Err(failure),
        Err(Unclaimed::TooLittle(room)) => {
            tracing::warn!(session = job.context.id, path = ?place, size, ?room, "an upload does not fit");
            Err(room.refuse(needed))
        }
    }
}

/// Why space was not claimed.
enum Unclaimed {
    TooLittle(Room),
    Failed(Failure),
}

impl From<Failure> for Unclaimed {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The bytes that are free on the file system of a directory (`None`: the store does not know), and
/// those of them that uploads still need. If there is too little for a new reservation of `needed`
/// bytes, old part files make room.
pub(super) fn free_for_reservation(
    job: &Job<'_>,
    directory: &VirtualPath,
    device: u64,
    needed: u64,
) -> Result<(Option<u64>, u64), Failure> {
    let login = job.context.login()?;
    let free = || login.store.free_space(directory).map_err(failure);
    let announced = job.host.claims.claimed(device);
    let Some(before) = free()? else { return Ok((None, announced)) };
    let reserved = job.host.space.as_ref().map_or(0, |space| space.reserved(device, None));
    let taken = reserved.saturating_add(announced);
    let missing = needed.saturating_add(taken).saturating_sub(before);
    let made = missing > 0 && make_room(job, directory, missing, None)?;
    Ok((if made { free()? } else { Some(before) }, announced))
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

/// A file system with less free space than uploads may begin with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LowDisk {
    free: u64,
    least: u64,
}

impl LowDisk {
    /// The refusal of an upload that has waited for too long.
    pub(crate) fn refuse(self) -> Failure {
        let (class, Self { free, least }) = (ErrorClass::NoSpaceLeft.name(), self);
        let reason = format!("{free} bytes are free, and uploads begin when {least} are.");
        Failure::Refused { code: 452, text: format!("GlobusError: v=1 c={class}\nGridFTP-Reason: {reason}") }
    }
}

/// The file system of an upload, if it has too little free space for uploads to begin.
pub(crate) fn low_disk(job: &Job<'_>, entry: &Entry) -> Option<LowDisk> {
    let least = job.context.settings.config.limits.free_disk;
    if least == 0 || entry.data != Data::Upload {
        return None;
    }
    // A destination that cannot be looked at has an error of its own.
    let login = job.context.login().ok()?;
    let _acting = login.acting().ok()?;
    let directory = login.locate(entry.path.as_ref()?).ok()?.parent()?;
    let free = login.store.free_space(&directory).ok()??;
    (free < least).then_some(LowDisk { free, least })
}
