//! Parts of servers that are reserved together with a network path: space, slots for transfers, and
//! a rate.
//!
//! The path is the part that can fail late, so the others come first. Until the path is reserved,
//! each of them is held by a short lease, which a thread renews; then it is kept for the whole
//! time. A crash on the way leaves them reserved for the lease at most. Servers without SITE SPACE
//! EXTEND reserve space for the whole time at once.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use parking_lot::Mutex;
use ropewalk_client::{Cancel, Error, Location, Remote, SlotsRequest};
use ropewalk_paths::{Entry, Held, Part, Request, now};
use ropewalk_protocol::url::Url;

use crate::client::{Client, Target};
use crate::exit::usage;
use crate::output::say;
use crate::settings::Flags;
use crate::units;

/// How long the server keeps a part without a renewal.
const LEASE: Duration = Duration::from_secs(120);
/// The pause between renewals: some can fail before the lease is over.
const PAUSE: Duration = Duration::from_secs(30);
/// The protocol has whole seconds.
const SECOND: Duration = Duration::from_secs(1);

/// A server or a directory there, and a session with it.
struct Place {
    client: Client,
    url: Url,
    remote: Option<Remote>,
}

/// The reserved time, since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Window {
    /// `None`: at once.
    pub(crate) from: Option<Duration>,
    pub(crate) until: Duration,
}

impl Window {
    /// The time to its begin, and from its begin to its end. A log-in takes its time: call it just
    /// before the result is sent.
    pub(crate) fn at_present(self) -> (Duration, Duration) {
        let now = now();
        let begin = self.from.unwrap_or_default().max(now);
        (begin - now, self.until.saturating_sub(begin))
    }
}

/// A part that is held until it is kept or released. Dropping it leaves it to its lease.
pub(crate) struct Holder {
    place: Arc<Mutex<Place>>,
    held: Held,
    /// `None`: the server keeps it for the whole time already.
    renewal: Option<Renewal>,
}

impl Holder {
    /// Reserves a part of the server or directory `at`, for the lease or, if the server cannot
    /// extend it, for the whole window. `flag` is the one that names the place.
    ///
    /// # Errors
    /// The log-in fails, or the server does not reserve it.
    pub(crate) fn hold(
        (flag, at): (&str, &OsStr),
        part: Part,
        window: Window,
        flags: &Flags,
        cancel: &Cancel,
    ) -> anyhow::Result<Self> {
        let mut place = Place::at((flag, at), flags, cancel)?;
        let reserved = place.reserve(part, window);
        let (token, extends) = reserved.with_context(|| format!("{} at {}", shown(part), place.url))?;
        let held = Held { url: place.url.to_string(), token, part };
        let place = Arc::new(Mutex::new(place));
        let renewal = match extends {
            true => {
                let (place, held) = (Arc::clone(&place), held.clone());
                Some(Renewal::start(move || place.lock().extend(&held, LEASE))?)
            }
            false => None,
        };
        Ok(Self { place, held, renewal })
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    /// Why the part could not be held any longer; `None`: it is held.
    pub(crate) fn lost(&self) -> Option<String> {
        self.renewal.as_ref()?.lost.lock().clone()
    }

    /// Keeps the part for so much time from now.
    ///
    /// # Errors
    /// The server does not extend it, or it was lost before.
    pub(crate) fn keep(&mut self, time: Duration) -> anyhow::Result<()> {
        let Some(renewal) = self.renewal.take() else { return Ok(()) };
        if let Some(why) = renewal.end() {
            return Err(anyhow!(why));
        }
        let time = time.max(SECOND);
        // A session that has broken meanwhile is opened again, once.
        let mut place = self.place.lock();
        match place.extend(&self.held, time) {
            Err(error) if !error.is_final => place.extend(&self.held, time),
            extended => extended,
        }
        .map_err(|error| anyhow!(error.text))
    }

    /// Releases what is held, also after the command was interrupted. It may have ended by itself.
    ///
    /// # Errors
    /// The log-in fails, or the server does not release it. It ends by itself.
    pub(crate) fn release(mut self) -> anyhow::Result<()> {
        if let Some(renewal) = self.renewal.take() {
            renewal.end();
        }
        let mut place = self.place.lock();
        if place.client.cancel.is_cancelled() {
            place.client.cancel = Cancel::new();
            place.remote = None;
        }
        let released = place.release(&self.held);
        released.with_context(|| format!("{} at {}", shown(self.held.part), self.held.url))
    }
}

impl Place {
    fn at((flag, at): (&str, &OsStr), flags: &Flags, cancel: &Cancel) -> anyhow::Result<Self> {
        let mut target = Target::parse(at)?;
        let client = Client::quiet(flags, [&mut target], cancel)?;
        let Location::Remote(url) = target.location else {
            return Err(usage(format!("{flag}: expected the URL of a directory of a server")));
        };
        Ok(Self { client, url, remote: None })
    }

    /// The session, which is opened if there is none.
    fn remote(&mut self) -> Result<&mut Remote, Error> {
        let remote = match self.remote.take() {
            Some(remote) => remote,
            None => {
                let Client { options, events, cancel, .. } = &self.client;
                Remote::connect_with(&self.url, options, events, cancel)?
            }
        };
        Ok(self.remote.insert(remote))
    }

    /// Reserves a part. Returns its token, and whether its end can be moved.
    fn reserve(&mut self, part: Part, window: Window) -> Result<(String, bool), Error> {
        let url = self.url.clone();
        let remote = self.remote()?;
        let (delay, length) = window.at_present();
        match part {
            Part::Space { bytes } => {
                let extends = remote.extends_space();
                let time = if extends { LEASE.min(delay + length) } else { delay + length };
                let reserved = remote.reserve_space(&remote.path_of(&url), bytes, time)?;
                Ok((reserved.token, extends))
            }
            Part::Slots { slots, rate } => {
                let request = SlotsRequest::new(slots, rate, delay, length, Some(LEASE));
                Ok((remote.reserve_slots(request)?.token, true))
            }
        }
    }

    fn extend(&mut self, held: &Held, time: Duration) -> Result<(), NotRenewed> {
        let extended = self.remote().and_then(|remote| match held.part {
            Part::Space { .. } => remote.extend_space(&held.token, time).map(drop),
            Part::Slots { .. } => remote.extend_slots(&held.token, time).map(drop),
        });
        extended.map_err(|error| {
            let is_final = !error.is_transient();
            self.remote = None;
            let text = format!("{} at {}: {error}", shown(held.part), self.url);
            NotRenewed { text, is_final }
        })
    }

    /// Ends a reservation, which may have ended by itself.
    fn release(&mut self, held: &Held) -> anyhow::Result<()> {
        let remote = self.remote()?;
        let released = match held.part {
            Part::Space { .. } => remote.release_space(&held.token),
            Part::Slots { .. } => remote.release_slots(&held.token),
        };
        Ok(released.map(drop)?)
    }
}

/// The amount of a part, for people.
pub(crate) fn shown(part: Part) -> String {
    let rate = |rate: u64| ropewalk_units::print::exact_bit_rate(rate.saturating_mul(8));
    match part {
        Part::Space { bytes } => units::size(bytes),
        Part::Slots { slots, rate: 0 } => ropewalk_units::print::count(slots.into(), "slot"),
        Part::Slots { slots: 0, rate: bytes } => rate(bytes),
        Part::Slots { slots, rate: bytes } => {
            format!("{} with {}", ropewalk_units::print::count(slots.into(), "slot"), rate(bytes))
        }
    }
}

/// A lease was not renewed.
struct NotRenewed {
    text: String,
    /// The server has refused it: another attempt is of no use.
    is_final: bool,
}

/// A lease that a thread renews.
struct Renewal {
    stop: Sender<()>,
    lost: Arc<Mutex<Option<String>>>,
    thread: JoinHandle<()>,
}

impl Renewal {
    fn start(renew: impl FnMut() -> Result<(), NotRenewed> + Send + 'static) -> anyhow::Result<Self> {
        let (stop, stopped) = channel();
        let lost = Arc::<Mutex<Option<String>>>::default();
        let loses = Arc::clone(&lost);
        let run = move || *loses.lock() = renew_until_lost(renew, &stopped, PAUSE, LEASE);
        let thread = thread::Builder::new().name("lease".into()).spawn(run);
        Ok(Self { stop, lost, thread: thread.context("cannot start a thread")? })
    }

    /// Returns why the lease was lost.
    fn end(self) -> Option<String> {
        drop(self.stop);
        match self.thread.join() {
            Ok(()) => self.lost.lock().take(),
            Err(_) => Some("a part was not held: its thread failed".to_owned()),
        }
    }
}

/// Renews a lease after each pause. `None`: it was stopped. A renewal that fails is tried again
/// until the lease is over.
fn renew_until_lost(
    mut renew: impl FnMut() -> Result<(), NotRenewed>,
    stopped: &Receiver<()>,
    pause: Duration,
    lease: Duration,
) -> Option<String> {
    let mut renewed = Instant::now();
    while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
        let at = Instant::now();
        match renew() {
            Ok(()) => renewed = at,
            Err(NotRenewed { text, is_final }) if is_final || renewed.elapsed() >= lease => {
                return Some(text);
            }
            Err(NotRenewed { text, .. }) => say(format_args!("ropewalk: {text}; it is tried again")),
        }
    }
    None
}

/// Releases a part of an earlier run.
///
/// # Errors
/// The log-in fails, or the server does not release it. It ends by itself.
pub(crate) fn release(held: &Held, flags: &Flags, cancel: &Cancel) -> anyhow::Result<()> {
    let released = || Place::at(("--at", OsStr::new(&held.url)), flags, cancel)?.release(held);
    let left = || format!("still reserved until the end: {} at {}", shown(held.part), held.url);
    released().with_context(left)
}

/// Says about each part of a path that was removed whether it has ended with the time of the path,
/// or which command releases it: this program cannot do so without the user's log-in.
pub(crate) fn tell_left(entry: &Entry) {
    let now = now();
    entry.held.iter().for_each(|held| say(format_args!("ropewalk: {}", left(held, &entry.request, now))));
}

fn left(Held { url, token, part }: &Held, request: &Request, now: Duration) -> String {
    let command = match part {
        Part::Space { .. } => "space",
        Part::Slots { .. } => "slots",
    };
    let shown = shown(*part);
    match now >= request.until {
        true => format!("ended with its time: {shown} at {url}"),
        false => format!("not released: {shown}: ropewalk {command} release {url} {token}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_PAUSE: Duration = Duration::ZERO;

    fn failed(is_final: bool) -> Result<(), NotRenewed> {
        Err(NotRenewed { text: "no answer".to_owned(), is_final })
    }

    #[test]
    fn part_has_ended_with_its_window_and_is_not_released_before() {
        let until = Duration::from_secs(100);
        let request = Request { from: None, until, capacity: None, description: String::new() };
        let (url, token) = ("ftp://h/in/".to_owned(), "abc".to_owned());
        let slots = Held { url, token, part: Part::Slots { slots: 4, rate: 0 } };
        let space = Held { part: Part::Space { bytes: 1 << 40 }, ..slots.clone() };
        let before = until - Duration::from_millis(1);
        for (held, now, text) in [
            (&slots, before, "not released: 4 slots: ropewalk slots release ftp://h/in/ abc"),
            (&space, before, "not released: 1.00 TiB: ropewalk space release ftp://h/in/ abc"),
            (&slots, until, "ended with its time: 4 slots at ftp://h/in/"),
            (&space, until + LEASE, "ended with its time: 1.00 TiB at ftp://h/in/"),
        ] {
            assert_eq!(left(held, &request, now), text);
        }
    }

    #[test]
    fn lease_is_renewed_until_it_is_stopped() {
        let (stop, stopped) = channel();
        let (mut stop, mut renewals) = (Some(stop), 0);
        let lost = renew_until_lost(
            || {
                renewals += 1;
                if renewals == 3 {
                    stop = None;
                }
                Ok(())
            },
            &stopped,
            NO_PAUSE,
            LEASE,
        );
        assert_eq!((lost, renewals), (None, 3));
    }

    #[test]
    fn renewal_that_fails_is_tried_again_until_the_lease_is_over_or_it_is_refused() {
        let (_stop, stopped) = channel();
        let mut renewals = 0;
        let refused_at_last = || {
            renewals += 1;
            failed(renewals == 4)
        };
        assert_eq!(
            renew_until_lost(refused_at_last, &stopped, NO_PAUSE, LEASE).as_deref(),
            Some("no answer")
        );
        assert_eq!(renewals, 4);
        let lost = renew_until_lost(|| failed(false), &stopped, NO_PAUSE, Duration::ZERO);
        assert_eq!(lost.as_deref(), Some("no answer"));
    }
}
