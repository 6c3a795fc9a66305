//! Reservations of permits for transfers and of a rate, and the file that keeps them.
//!
//! The host owns it. Each change is on the disk before the client learns of it, and a restart takes
//! the file up again. The permits are enforced by the semaphore of transfers, the rates by the
//! limiter: both get what the calendar has.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use ropewalk_files::{OnDisk, replace};
use ropewalk_limits::{Booking, Calendar, Capacity, next_change};
use ropewalk_protocol::server::Failure;
use ropewalk_protocol::slots::SlotsRequest;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::config::{Config, Reservations as Settings};
use crate::host::bandwidth::BandwidthLimits;
use crate::host::clock::{after, clock, now};

const MODE: u32 = 0o600;
/// A longer file is none of the server's.
const LONGEST: u64 = 16 << 20;
/// The most that can be reserved, in percent: some is left for others.
const MOST: u32 = 90;
/// Random bytes of a token.
const TOKEN: usize = 16;

pub(crate) struct Reservations {
    path: PathBuf,
    /// `limits.active` of the server's start.
    permits: u32,
    calendar: Mutex<Calendar>,
    /// Those of the calendar that are on the disk.
    kept: RwLock<Vec<Booking>>,
    /// They are others than at the last [`Self::have_changed`].
    changed: AtomicBool,
    _lock: File,
}

/// The content of the file.
#[derive(Deserialize, Serialize)]
struct Content {
    schema: u32,
    reservations: Vec<Booking>,
}

impl Reservations {
    /// Checks the settings.
    ///
    /// # Errors
    /// The setting that is wrong, and a text.
    pub(crate) fn check(config: &Config) -> Result<(), (&'static str, String)> {
        let settings = &config.reservations;
        for (setting, percent) in
            [("reservations.slots", settings.slots), ("reservations.bandwidth", settings.bandwidth)]
        {
            if percent > MOST {
                return Err((setting, format!("must be from 0 to {MOST} percent")));
            }
        }
        if settings.are_enabled() && settings.state_file.is_none() {
            return Err(("reservations.state_file", "reservations need a file that keeps them".into()));
        }
        Ok(())
    }

    /// Those that the file of the settings has; `None` if they name none.
    ///
    /// # Errors
    /// As [`Self::check`]; or the file cannot be used.
    pub(crate) fn open(
        config: &Config,
        bandwidth: &BandwidthLimits,
    ) -> Result<Option<Self>, (&'static str, String)> {
        Self::check(config)?;
        let Some(path) = &config.reservations.state_file else { return Ok(None) };
        let failed = |text: String| ("reservations.state_file", format!("{}: {text}", path.display()));
        let lock = lock(path).map_err(failed)?;
        let mut calendar = Calendar::default();
        read(path).map_err(failed)?.into_iter().for_each(|booking| calendar.restore(booking));
        calendar.expire(now());
        let kept = calendar.bookings().to_vec();
        bandwidth.set_bookings(kept.clone());
        Ok(Some(Self {
            path: path.clone(),
            permits: config.limits.active,
            calendar: Mutex::new(calendar),
            kept: RwLock::new(kept),
            changed: AtomicBool::new(false),
            _lock: lock,
        }))
    }

    /// Makes a reservation for a user, which is on the disk when this returns. The limits on the
    /// rate are those for its client's `address`.
    ///
    /// # Errors
    /// The settings do not permit it, too little is left, or it cannot be kept.
    pub(crate) fn reserve(
        &self,
        (user, address): (&str, IpAddr),
        request: &SlotsRequest,
        settings: &Settings,
        bandwidth: &BandwidthLimits,
    ) -> Result<Booking, Failure> {
        let capacity = self.capacity((user, address), request, settings, bandwidth)?;
        let clock = clock();
        let now = clock.as_secs();
        let begin = after(clock, request.delay);
        let booking = Booking {
            token: random_token()?,
            user: user.to_owned(),
            slots: request.slots,
            rate: request.rate,
            // One that begins now is in force in the second that has begun.
            from: if request.delay == 0 { now } else { begin },
            until: begin.saturating_add(request.length),
            lease: after(clock, request.lease),
        };
        let token = booking.token.clone();
        let reserve = |calendar: &mut Calendar| {
            calendar.reserve(booking, &capacity, now).map_err(|refusal| refused(&refusal.to_string()))?;
            Ok(calendar.get(&token, user, now).cloned())
        };
        self.change(reserve, bandwidth)?.ok_or_else(not_kept)
    }

    /// Moves the end of the lease of a user's reservation to so many seconds from now. `None`: the
    /// user has none with this token, or it has ended.
    ///
    /// # Errors
    /// It cannot be kept, and has its former end.
    pub(crate) fn extend(
        &self,
        token: &str,
        user: &str,
        seconds: u64,
        bandwidth: &BandwidthLimits,
    ) -> Result<Option<Booking>, Failure> {
        let clock = clock();
        let (lease, now) = (after(clock, seconds), clock.as_secs());
        self.change(|calendar| Ok(calendar.extend(token, user, lease, now).cloned()), bandwidth)
    }

    /// Ends a reservation of a user. Returns `false` if it has none with this token.
    ///
    /// # Errors
    /// The file cannot be written, and it has not ended.
    pub(crate) fn release(
        &self,
        token: &str,
        user: &str,
        bandwidth: &BandwidthLimits,
    ) -> Result<bool, Failure> {
        Ok(self.change(|calendar| Ok(calendar.release(token, user)), bandwidth)?.is_some())
    }

    /// A reservation of a user that has not ended.
    pub(crate) fn get(&self, token: &str, user: &str) -> Option<Booking> {
        self.calendar.lock().get(token, user, now()).cloned()
    }

    /// The reservations of a user, those that begin first before others.
    pub(crate) fn of(&self, user: &str) -> Vec<Booking> {
        let mut calendar = self.calendar.lock();
        expire(&mut calendar);
        let own = calendar.bookings().iter().filter(|booking| booking.user == user);
        let mut own: Vec<_> = own.cloned().collect();
        own.sort_unstable_by(|one, other| (one.from, &one.token).cmp(&(other.from, &other.token)));
        own
    }

    /// The reservations whose windows have begun, those that end first before others.
    pub(crate) fn in_force(&self) -> Vec<Booking> {
        let (kept, now) = (self.kept.read(), now());
        let mut in_force: Vec<_> = kept.iter().filter(|booking| booking.is_in_force(now)).cloned().collect();
        in_force.sort_unstable_by(|one, other| (one.lease, &one.token).cmp(&(other.lease, &other.token)));
        in_force
    }

    /// The permits of the reservations whose windows have begun, by their tokens. Others keep some
    /// permits even if `limits.active` is lower than it was when these were made.
    pub(crate) fn slots_in_force(&self) -> HashMap<Arc<str>, usize> {
        let (kept, now) = (self.kept.read(), now());
        let in_force = kept.iter().filter(|booking| booking.slots > 0 && booking.is_in_force(now));
        let mut left = part(self.permits.into(), MOST);
        let slots = in_force.map(|booking| {
            let slots = left.min(booking.slots.into());
            left -= slots;
            (booking.token.as_str().into(), usize::try_from(slots).unwrap_or(usize::MAX))
        });
        slots.collect()
    }

    /// The time until a window begins, or a reservation ends.
    pub(crate) fn next_change(&self) -> Option<Duration> {
        next_change(&self.kept.read(), clock())
    }

    /// Whether reservations were made, moved or released since the last call.
    pub(crate) fn have_changed(&self) -> bool {
        self.changed.swap(false, Ordering::AcqRel)
    }

    /// The most that the user can reserve.
    fn capacity(
        &self,
        (user, address): (&str, IpAddr),
        request: &SlotsRequest,
        settings: &Settings,
        bandwidth: &BandwidthLimits,
    ) -> Result<Capacity, Failure> {
        if request.slots > 0 && settings.slots == 0 {
            return Err(refused("This server reserves no slots for transfers."));
        }
        if request.rate > 0 && settings.bandwidth == 0 {
            return Err(refused("This server reserves no rate."));
        }
        let (all, user_rate) = bandwidth.lowest(user, address);
        if request.rate > 0 && all.is_none() {
            return Err(refused(
                "This server has no limit on the rate of all transfers that could be divided.",
            ));
        }
        Ok(Capacity {
            slots: u32::try_from(part(self.permits.into(), settings.slots)).unwrap_or(u32::MAX),
            rate: part(all.unwrap_or_default(), settings.bandwidth),
            user_rate,
            reservations: settings.max_reservations,
        })
    }

    /// Changes the calendar, the file, and what is in force. If `change` or the file fails, all of
    /// them stay as they were.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut Calendar) -> Result<Option<T>, Failure>,
        bandwidth: &BandwidthLimits,
    ) -> Result<Option<T>, Failure> {
        let mut calendar = self.calendar.lock();
        expire(&mut calendar);
        let mut changed = calendar.clone();
        let Some(done) = change(&mut changed)? else { return Ok(None) };
        let bookings = changed.bookings().to_vec();
        if let Err(error) = write(&self.path, &bookings) {
            tracing::error!(path = %self.path.display(), %error, "a reservation cannot be kept");
            return Err(not_kept());
        }
        *calendar = changed;
        self.kept.write().clone_from(&bookings);
        self.changed.store(true, Ordering::Release);
        bandwidth.set_bookings(bookings);
        Ok(Some(done))
    }
}

/// So many percent, of which no more than [`MOST`] count.
fn part(whole: u64, percent: u32) -> u64 {
    u64::try_from(u128::from(whole) * u128::from(percent.min(MOST)) / 100).unwrap_or(u64::MAX)
}

fn expire(calendar: &mut Calendar) {
    for Booking { user, slots, rate, .. } in calendar.expire(now()) {
        tracing::info!(user, slots, rate, "a reservation of slots has ended");
    }
}

/// Keeps other servers from the file.
fn lock(path: &Path) -> Result<File, String> {
    if let Some(directory) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
        made.map_err(|error| error.to_string())?;
    }
    let mut name = OsString::from(path);
    name.push(".lock");
    let mut options = OpenOptions::new();
    let lock = options.create(true).append(true).mode(MODE).open(name).map_err(|error| error.to_string())?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err("another server uses it".to_owned()),
        Err(error) => Err(io::Error::from(error).to_string()),
    }
}

fn read(path: &Path) -> Result<Vec<Booking>, String> {
    let text = match ropewalk_files::read(path, LONGEST) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
    };
    match serde_json::from_slice::<Content>(&text) {
        Ok(content) if content.schema != 1 => Err(format!("its schema is {}, expected 1", content.schema)),
        Ok(content) => {
            let wrong = content.reservations.iter().find(|booking| booking.until <= booking.from);
            match wrong {
                Some(booking) => Err(format!("the reservation {} ends before it begins", booking.token)),
                None => Ok(content.reservations),
            }
        }
        Err(error) => Err(error.to_string()),
    }
}

fn write(path: &Path, reservations: &[Booking]) -> io::Result<()> {
    let content = Content { schema: 1, reservations: reservations.to_vec() };
    replace(path, &serde_json::to_vec(&content)?, MODE, OnDisk::Now)
}

fn random_token() -> Result<String, Failure> {
    let mut bytes = [0; TOKEN];
    getrandom::fill(&mut bytes).map_err(|error| {
        tracing::error!(%error, "there are no random bytes for a token");
        Failure::Refused { code: 451, text: "There are no random bytes for a token.".into() }
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn not_kept() -> Failure {
    Failure::Refused { code: 451, text: "The reservation cannot be kept.".into() }
}

fn refused(text: &str) -> Failure {
    Failure::Refused { code: 550, text: text.to_owned() }
}
