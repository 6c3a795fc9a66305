//! Reservations of bytes in the accounts, and their records in the ledger.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::server::Failure;
use ropewalk_space::ledger::{self, AccountRecord, Record, ReservationRecord};
use ropewalk_space::{AccountState, Book, Reservation, Token};

use super::Space;
use super::rules::{Owner, Rules};
use crate::host::clock::{after, clock, now};

/// The reservation that the uploads of a session draw on.
pub(crate) type Drawing = Arc<Mutex<Option<Token>>>;

/// Random bytes of a token.
const TOKEN: usize = 16;

/// A wish for a reservation.
pub(crate) struct Request<'a> {
    pub(crate) user: &'a str,
    /// Of this host.
    pub(crate) directory: &'a Path,
    pub(crate) device: u64,
    /// The owner of the files that will be charged to it.
    pub(crate) owner: &'a Owner,
    pub(crate) bytes: u64,
    pub(crate) seconds: u64,
    /// The bytes that the file system has, if known.
    pub(crate) free: Option<u64>,
    /// Those of them that uploads under way still need.
    pub(crate) announced: u64,
    /// The most reservations of a user.
    pub(crate) most: u32,
}

impl Space {
    /// Makes a reservation, which is in the ledger when this returns.
    ///
    /// # Errors
    /// The user has too many, no quota counts there, or the bytes do not fit.
    pub(crate) fn reserve(self: &Arc<Self>, request: &Request<'_>) -> Result<Reservation, Failure> {
        let accounts = self.accounts(request.directory, request.owner);
        if accounts.is_empty() {
            return Err(refused("No quota counts your files there, so that no space can be reserved."));
        }
        let reservation = Reservation {
            token: random_token()?,
            user: request.user.to_owned(),
            accounts,
            directory: request.directory.to_string_lossy().into_owned(),
            device: request.device,
            bytes: request.bytes,
            left: request.bytes,
            end: after(clock(), request.seconds),
        };
        self.expire();
        let reserved = self.with_room(|book| {
            if let Err(failure) = may_reserve(book, &reservation, request) {
                return Ok(Err(failure));
            }
            book.reserve(reservation.clone(), now()).map(Ok)
        });
        reserved.map_err(|refusal| Failure::Refused {
            code: 552,
            text: format!(
                "GlobusError: v=1 c={}\nGridFTP-Reason: {refusal}",
                ErrorClass::QuotaExceeded.name()
            ),
        })??;
        if let Err(error) = self.write_ledger().and_then(|()| self.ledger.lock().sync()) {
            tracing::error!(%error, "a reservation cannot be kept");
            self.release(&reservation.token, request.user);
            return Err(not_kept());
        }
        Ok(reservation)
    }

    /// Moves the end of a reservation of a user to so many seconds from now, which is in the ledger
    /// when this returns. `None`: the user has none with this token, or it has ended.
    ///
    /// # Errors
    /// The ledger cannot be written. The reservation then has its former end.
    pub(crate) fn extend(
        &self,
        token: &str,
        user: &str,
        seconds: u64,
    ) -> Result<Option<Reservation>, Failure> {
        let Some(before) = self.reservation(token, user) else { return Ok(None) };
        let Some(extended) = self.book().extend(token, after(clock(), seconds)) else {
            return Ok(None);
        };
        if let Err(error) = self.write_ledger().and_then(|()| self.ledger.lock().sync()) {
            tracing::error!(%error, "the new end of a reservation cannot be kept");
            self.book().extend(token, before.end);
            return Err(not_kept());
        }
        Ok(Some(extended))
    }

    /// Ends a reservation of a user. Returns `false` if it has none with this token.
    pub(crate) fn release(&self, token: &str, user: &str) -> bool {
        {
            let mut book = self.book();
            if book.reservation(token).is_none_or(|reservation| reservation.user != user) {
                return false;
            }
            book.release(token, now());
        }
        self.save();
        true
    }

    /// Ends the reservations whose time is over.
    pub(super) fn expire(&self) {
        for reservation in self.book().expire(now()) {
            let Reservation { user, directory, bytes, left, .. } = reservation;
            tracing::info!(user, directory, bytes, left, "a reservation has expired");
        }
    }

    /// A reservation of a user that has not ended.
    pub(crate) fn reservation(&self, token: &str, user: &str) -> Option<Reservation> {
        let book = self.book();
        let valid = |reservation: &&Reservation| reservation.user == user && now() < reservation.end;
        book.reservation(token).filter(valid).cloned()
    }

    /// The reservations of a user, those that end first before others.
    pub(crate) fn reservations_of(&self, user: &str) -> Vec<Reservation> {
        let book = self.book();
        let own = book.reservations().filter(|reservation| reservation.user == user);
        let mut own: Vec<_> = own.filter(|reservation| now() < reservation.end).cloned().collect();
        own.sort_unstable_by(|one, other| (one.end, &one.token).cmp(&(other.end, &other.token)));
        own
    }

    /// The bytes that are left in the reservations on a device, but for the one with this token.
    pub(crate) fn reserved(&self, device: u64, but: Option<&str>) -> u64 {
        reserved(&self.book(), device, but)
    }
}

/// Fails if the user has too many reservations, or the file system too few bytes.
fn may_reserve(book: &Book, reservation: &Reservation, request: &Request<'_>) -> Result<(), Failure> {
    if !ledger::can_keep(&record(book, reservation)) {
        return Err(refused("The path is too long for a reservation."));
    }
    let own = book.reservations().filter(|other| other.user == request.user).count();
    if own >= request.most as usize {
        return Err(refused(&format!("You have {own} reservations, and may have {}.", request.most)));
    }
    let (reserved, announced) = (reserved(book, request.device, None), request.announced);
    let room = request.free.map(|free| Room { free, reserved, announced });
    match room.filter(|room| room.left() < request.bytes) {
        Some(room) => Err(room.refuse(request.bytes)),
        None => Ok(()),
    }
}

fn reserved(book: &Book, device: u64, but: Option<&str>) -> u64 {
    let on_device = book.reservations().filter(|reservation| reservation.device == device);
    let now = now();
    on_device
        .filter(|reservation| now < reservation.end && but != Some(&*reservation.token))
        .fold(0, |sum, reservation| sum.saturating_add(reservation.left))
}

/// The bytes of a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) free: u64,
    /// Those of them that others have reserved.
    pub(crate) reserved: u64,
    /// Those of them that other uploads under way still need.
    pub(crate) announced: u64,
}

impl Room {
    /// The bytes that no other client is going to use.
    pub(crate) fn left(self) -> u64 {
        self.free.saturating_sub(self.reserved).saturating_sub(self.announced)
    }

    /// The refusal of an upload or reservation that needs more bytes than are left.
    pub(crate) fn refuse(self, needed: u64) -> Failure {
        let class = ErrorClass::NoSpaceLeft.name();
        let uses = [(self.reserved, "that are reserved"), (self.announced, "that other uploads still need")];
        let uses: Vec<_> = uses
            .iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, what)| format!("{bytes} {what}"))
            .collect();
        let beside = match uses.is_empty() {
            true => String::new(),
            false => format!(" beside {}", uses.join(" and ")),
        };
        let reason = format!("{} bytes are free{beside}, and {needed} are needed.", self.left());
        Failure::Refused { code: 552, text: format!("GlobusError: v=1 c={class}\nGridFTP-Reason: {reason}") }
    }
}

fn not_kept() -> Failure {
    Failure::Refused { code: 451, text: "The reservation cannot be kept.".into() }
}

fn refused(text: &str) -> Failure {
    Failure::Refused { code: 550, text: text.to_owned() }
}

fn random_token() -> Result<Token, Failure> {
    let mut bytes = [0; TOKEN];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "there are no random bytes for a token");
        Failure::Refused { code: 451, text: "There are no random bytes for a token.".into() }
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
}

/// Enters a reservation of the ledger, unless the settings have none of its quotas any more.
pub(super) fn restore(book: &mut Book, rules: &Rules, record: ReservationRecord) {
    let mut seen = HashSet::new();
    let keys = record.accounts.iter().filter(|key| seen.insert(*key));
    let accounts: Vec<_> =
        keys.filter_map(|key| Some(book.account(key, rules.limits(&key.quota)?))).collect();
    if accounts.is_empty() {
        tracing::warn!(user = record.user, bytes = record.left, "a reservation has no quota any more");
        return;
    }
    let device = std::fs::metadata(&record.directory).map_or(0, |metadata| metadata.dev());
    book.restore_reservation(Reservation {
        token: record.token.into(),
        user: record.user,
        accounts: accounts.into(),
        directory: record.directory,
        device,
        bytes: record.bytes,
        left: record.left,
        end: record.end,
    });
}

/// Records of all that has changed.
pub(super) fn changed_records(book: &mut Book) -> Vec<Record> {
    let accounts = book.take_changed();
    let reservations = book.take_changed_reservations();
    let of_reservation = |(token, reservation): (Token, Option<Reservation>)| match reservation {
        Some(reservation) => record(book, &reservation),
        None => Record::Ended { token: token.as_ref().to_owned() },
    };
    accounts.iter().map(of_account).chain(reservations.into_iter().map(of_reservation)).collect()
}

/// Records of all accounts and reservations.
pub(super) fn all_records(book: &Book) -> Vec<Record> {
    let reservations = book.reservations().map(|reservation| record(book, reservation));
    book.states().map(of_account).chain(reservations).collect()
}

fn of_account(state: &AccountState) -> Record {
    Record::Account(AccountRecord {
        key: state.key.clone(),
        bytes: state.bytes,
        files: state.files,
        soft_since: state.soft_since,
    })
}

fn record(book: &Book, reservation: &Reservation) -> Record {
    let key = |id: &ropewalk_space::AccountId| book.state(*id).key.clone();
    Record::Reservation(ReservationRecord {
        token: reservation.token.as_ref().to_owned(),
        user: reservation.user.clone(),
        directory: reservation.directory.clone(),
        accounts: reservation.accounts.iter().map(key).collect(),
        bytes: reservation.bytes,
        left: reservation.left,
        end: reservation.end,
    })
}
