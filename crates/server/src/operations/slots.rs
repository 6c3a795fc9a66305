//! SITE SLOTS: reservations of permits for transfers, and of a rate.

use ropewalk_limits::Booking;
use ropewalk_protocol::server::{Failure, Outcome};
use ropewalk_protocol::slots::{ReservedSlots, SlotsRequest};

use super::Answer;
use crate::accounts::login::ANONYMOUS;
use crate::host::reservations::Reservations;
use crate::session::job::Job;

/// Reserves for later transfers of the session's user.
pub(super) fn reserve(job: &mut Job<'_>, request: &SlotsRequest) -> Answer {
    let (reservations, user) = calendar(job)?;
    let settings = job.host.settings();
    let settings = &settings.config.reservations;
    let longest = settings.max_time.as_secs();
    if request.length > longest {
        return Err(refused(501, format!("A window has at most {longest} seconds.")));
    }
    let ahead = settings.max_ahead.as_secs();
    if request.delay > ahead {
        return Err(refused(501, format!("A window begins in {ahead} seconds at the latest.")));
    }
    let address = job.context.peer.ip();
    let booking = reservations.reserve((user, address), request, settings, &job.host.bandwidth)?;
    job.host.wake();
    let Booking { slots, rate, from, until, .. } = booking;
    tracing::info!(session = job.context.id, user, slots, rate, from, until, "slots reserved");
    Ok(Outcome::ReservedSlots(vec![reported(&booking)]))
}

/// Moves the end of the lease of a reservation of the session's user.
pub(super) fn extend(job: &mut Job<'_>, token: &str, seconds: u64) -> Answer {
    let (reservations, user) = calendar(job)?;
    let extended = reservations.extend(token, user, seconds, &job.host.bandwidth)?.ok_or_else(unknown)?;
    job.host.wake();
    tracing::info!(session = job.context.id, user, seconds, "reservation of slots extended");
    Ok(Outcome::ReservedSlots(vec![reported(&extended)]))
}

/// Ends a reservation of the session's user.
pub(super) fn release(job: &mut Job<'_>, token: &str) -> Answer {
    let (reservations, user) = calendar(job)?;
    if !reservations.release(token, user, &job.host.bandwidth)? {
        return Err(unknown());
    }
    job.host.wake();
    tracing::info!(session = job.context.id, user, "reservation of slots released");
    Ok(Outcome::Done)
}

/// Later transfers of the session use a reservation of its user, or none.
pub(super) fn use_token(job: &mut Job<'_>, token: Option<&str>) -> Answer {
    let (reservations, user) = calendar(job)?;
    let booking = token.map(|token| reservations.get(token, user).ok_or_else(unknown)).transpose()?;
    *job.context.login()?.slots.lock() = booking.as_ref().map(|booking| booking.token.as_str().into());
    Ok(booking.map_or(Outcome::Done, |booking| Outcome::ReservedSlots(vec![reported(&booking)])))
}

/// The reservations of the session's user.
pub(super) fn list(job: &mut Job<'_>) -> Answer {
    let (reservations, user) = calendar(job)?;
    Ok(Outcome::ReservedSlots(reservations.of(user).iter().map(reported).collect()))
}

/// The calendar of the server, and the session's user.
fn calendar<'a>(job: &'a Job<'_>) -> Result<(&'a Reservations, &'a str), Failure> {
    let user = job.context.login()?.account.counted_as.as_str();
    if user == ANONYMOUS {
        // Their tokens would be secrets between strangers.
        return Err(refused(550, "Anonymous users reserve no slots and no rate.".to_owned()));
    }
    let none = || refused(550, "This server reserves no slots and no rate.".to_owned());
    Ok((job.host.reservations.as_ref().ok_or_else(none)?, user))
}

fn reported(booking: &Booking) -> ReservedSlots {
    let Booking { token, slots, rate, from, until, lease, .. } = booking.clone();
    ReservedSlots { token, slots, rate, from, until, lease }
}

fn unknown() -> Failure {
    refused(550, "You have no reservation of slots with this token, or it has ended.".to_owned())
}

fn refused(code: u16, text: String) -> Failure {
    Failure::Refused { code, text }
}
