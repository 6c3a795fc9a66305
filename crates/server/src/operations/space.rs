//! SITE SPACE: reservations of bytes, and what they leave for uploads.

use std::sync::Arc;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Failure, Outcome};
use ropewalk_protocol::space::ReservedSpace;
use ropewalk_security::Access;
use ropewalk_space::Reservation;
use ropewalk_storage::Kind;
use rustix::io::Errno;

use super::Answer;
use super::files::system;
use super::room::free_for_reservation;
use super::usage::on_this_host;
use crate::accounts::login::ANONYMOUS;
use crate::failure::failure;
use crate::host::space::{Request, Space};
use crate::session::job::Job;

/// Reserves bytes for new files of the session's user in the directory.
pub(super) fn reserve(job: &mut Job<'_>, bytes: u64, seconds: u64, path: &VirtualPath) -> Answer {
    let space = accounts(job)?;
    let login = job.context.login()?;
    let limits = &job.context.settings.config.space;
    check_time(job, seconds)?;
    if let Some(most) = limits.max_reservation.filter(|most| bytes > *most) {
        return Err(refused(501, format!("A reservation has at most {most} bytes.")));
    }
    let place = login.existing(path, Access::Create)?;
    let place = login.store.real_path(&place).map_err(failure)?;
    let metadata = login.store.stat(&place, true).map_err(failure)?;
    if metadata.kind != Kind::Directory {
        return Err(system(Errno::NOTDIR, "reserve"));
    }
    if !metadata.writable {
        return Err(system(Errno::ACCESS, "reserve"));
    }
    let (free, announced) = free_for_reservation(job, &place, metadata.device, bytes)?;
    let Some((directory, owner)) = on_this_host(&space, login, &place) else {
        return Err(system(Errno::NOENT, "reserve"));
    };
    let user = login.account.counted_as.as_str();
    let reservation = space.reserve(&Request {
        user,
        directory: &directory,
        device: metadata.device,
        owner: &owner,
        bytes,
        seconds,
        free,
        announced,
        most: limits.max_reservations,
    })?;
    tracing::info!(session = job.context.id, user, path = ?place, bytes, seconds, "space reserved");
    Ok(Outcome::Reserved(vec![reported(&reservation)]))
}

/// Moves the end of a reservation of the session's user.
pub(super) fn extend(job: &mut Job<'_>, token: &str, seconds: u64) -> Answer {
    let space = accounts(job)?;
    let login = job.context.login()?;
    check_time(job, seconds)?;
    let user = login.account.counted_as.as_str();
    let extended = space.extend(token, user, seconds)?.ok_or_else(unknown)?;
    tracing::info!(session = job.context.id, user, seconds, "reservation extended");
    Ok(Outcome::Reserved(vec![reported(&extended)]))
}

/// Ends a reservation of the session's user.
pub(super) fn release(job: &mut Job<'_>, token: &str) -> Answer {
    let space = accounts(job)?;
    let login = job.context.login()?;
    if !space.release(token, &login.account.counted_as) {
        return Err(unknown());
    }
    tracing::info!(session = job.context.id, "reservation released");
    Ok(Outcome::Done)
}

/// Later uploads of the session draw on a reservation of its user, or on none.
pub(super) fn draw_on(job: &mut Job<'_>, token: Option<&str>) -> Answer {
    let space = accounts(job)?;
    let login = job.context.login()?;
    let Some(token) = token else {
        *login.drawing.lock() = None;
        return Ok(Outcome::Done);
    };
    let reservation = space.reservation(token, &login.account.counted_as).ok_or_else(unknown)?;
    *login.drawing.lock() = Some(Arc::clone(&reservation.token));
    Ok(Outcome::Reserved(vec![reported(&reservation)]))
}

/// The reservations of the session's user.
pub(super) fn list(job: &mut Job<'_>) -> Answer {
    let space = accounts(job)?;
    let user = &job.context.login()?.account.counted_as;
    if user == ANONYMOUS {
        // Their tokens are secrets between strangers.
        return Err(refused(550, "The reservations of anonymous users are not listed.".to_owned()));
    }
    Ok(Outcome::Reserved(space.reservations_of(user).iter().map(reported).collect()))
}

/// The bytes on the file system of a directory that are reserved, but not for this session.
pub(super) fn reserved_by_others(job: &Job<'_>, directory: &VirtualPath) -> Result<u64, Failure> {
    let Ok(space) = accounts(job) else { return Ok(0) };
    let login = job.context.login()?;
    let device = login.store.stat(directory, true).map_err(failure)?.device;
    let own = login.drawing.lock().clone();
    Ok(space.reserved(device, own.as_deref()))
}

/// Refuses a time, in seconds from now, for which the site reserves no space.
fn check_time(job: &Job<'_>, seconds: u64) -> Result<(), Failure> {
    let longest = job.context.settings.config.space.max_reservation_time.as_secs();
    match seconds > longest {
        true => Err(refused(501, format!("Space is reserved for at most {longest} seconds."))),
        false => Ok(()),
    }
}

fn accounts(job: &Job<'_>) -> Result<Arc<Space>, Failure> {
    let space = job.host.space.clone().filter(|_| job.host.stores.have_identities());
    space.ok_or_else(|| refused(550, "This server has no quotas in which space can be reserved.".to_owned()))
}

fn reported(reservation: &Reservation) -> ReservedSpace {
    ReservedSpace {
        token: reservation.token.as_ref().to_owned(),
        bytes: reservation.bytes,
        left: reservation.left,
        end: reservation.end,
    }
}

fn unknown() -> Failure {
    refused(550, "You have no reservation with this token, or it has expired.".to_owned())
}

fn refused(code: u16, text: String) -> Failure {
    Failure::Refused { code, text }
}
