//! Space at a server that is reserved together with a network path.
//!
//! The path is the part that can fail late, so the space comes first. Until the path is reserved,
//! the space is held by a short lease, which a thread renews; then it is kept for the whole time.
//! A crash on the way leaves space reserved for the lease at most. Servers without SITE SPACE
//! EXTEND reserve for the whole time at once.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use parking_lot::Mutex;
use ropewalk_client::{Cancel, Error, Location, Remote};
use ropewalk_paths::HeldSpace;
use ropewalk_protocol::url::Url;

use crate::client::{Client, Target};
use crate::exit::usage;
use crate::output::say;
use crate::settings::Flags;

/// How long the server keeps space without a renewal.
const LEASE: Duration = Duration::from_secs(120);
/// The pause between renewals: some can fail before the lease is over.
const PAUSE: Duration = Duration::from_secs(30);

/// The server's account of a directory, and a session with it.
struct Place {
    client: Client,
    url: Url,
    remote: Option<Remote>,
}

/// Space that is held until it is kept or released. Dropping it leaves it to its lease.
pub(crate) struct SpaceHolder {
    place: Arc<Mutex<Place>>,
    held: HeldSpace,
    /// `None`: the server keeps the space for the whole time already.
    renewal: Option<Renewal>,
}

impl SpaceHolder {
    /// Reserves space in the directory `at`, for the lease or, if the server cannot extend it, for
    /// `time`.
    ///
    /// # Errors
    /// The log-in fails, or the server does not reserve it.
    pub(crate) fn hold(
        at: &OsStr,
        bytes: u64,
        time: Duration,
        flags: &Flags,
        cancel: &Cancel,
    ) -> anyhow::Result<Self> {
        let mut place = Place::at(at, flags, cancel)?;
        let url = place.url.clone();
        let remote = place.remote()?;
        let extends = remote.extends_space();
        let first = if extends { LEASE.min(time) } else { time };
        let path = remote.path_of(&url);
        let reserved = remote.reserve_space(&path, bytes, first)?;
        let held = HeldSpace { url: place.url.to_string(), token: reserved.token, bytes: reserved.bytes };
        let place = Arc::new(Mutex::new(place));
        let renewal = match extends {
            true => {
                let (place, token) = (Arc::clone(&place), held.token.clone());
                Some(Renewal::start(move || place.lock().extend(&token, LEASE))?)
            }
            false => None,
        };
        Ok(Self { place, held, renewal })
    }

    pub(crate) fn held(&self) -> &HeldSpace {
        &self.held
    }

    /// Why the space could not be held any longer; `None`: it is held.
    pub(crate) fn lost(&self) -> Option<String> {
        self.renewal.as_ref()?.lost.lock().clone()
    }

    /// Keeps the space for so much time from now.
    ///
    /// # Errors
    /// The server does not extend it, or it was lost before.
    pub(crate) fn keep(&mut self, time: Duration) -> anyhow::Result<()> {
        let Some(renewal) = self.renewal.take() else { return Ok(()) };
        if let Some(why) = renewal.end() {
            return Err(anyhow!(why));
        }
        // The protocol has whole seconds.
        let time = time.max(Duration::from_secs(1));
        // A session that has broken meanwhile is opened again, once.
        let mut place = self.place.lock();
        match place.extend(&self.held.token, time) {
            Err(error) if !error.is_final => place.extend(&self.held.token, time),
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
        Ok(place.remote()?.release_space(&self.held.token).map(drop)?)
    }
}

impl Place {
    fn at(at: &OsStr, flags: &Flags, cancel: &Cancel) -> anyhow::Result<Self> {
        let mut target = Target::parse(at)?;
        let client = Client::quiet(flags, [&mut target], cancel)?;
        let Location::Remote(url) = target.location else {
            return Err(usage("--at: expected the URL of a directory of a server"));
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

    fn extend(&mut self, token: &str, time: Duration) -> Result<(), NotRenewed> {
        let extended = self.remote().and_then(|remote| remote.extend_space(token, time));
        extended.map(drop).map_err(|error| {
            let is_final = !error.is_transient();
            self.remote = None;
            NotRenewed { text: format!("the space in {}: {error}", self.url), is_final }
        })
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
        let thread = thread::Builder::new().name("space".into()).spawn(run);
        Ok(Self { stop, lost, thread: thread.context("cannot start a thread")? })
    }

    /// Returns why the lease was lost.
    fn end(self) -> Option<String> {
        drop(self.stop);
        match self.thread.join() {
            Ok(()) => self.lost.lock().take(),
            Err(_) => Some("the space was not held: its thread failed".to_owned()),
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

/// Releases space of an earlier run.
///
/// # Errors
/// The log-in fails, or the server does not release it. It ends by itself.
pub(crate) fn release(held: &HeldSpace, flags: &Flags, cancel: &Cancel) -> anyhow::Result<()> {
    let released = || {
        let mut place = Place::at(OsStr::new(&held.url), flags, cancel)?;
        Ok::<_, anyhow::Error>(place.remote()?.release_space(&held.token).map(drop)?)
    };
    released().with_context(|| format!("the space in {} stays reserved until its end", held.url))
}

/// Names the command that releases space, which this program cannot do without the user's log-in.
pub(crate) fn tell_release(held: &HeldSpace) {
    let HeldSpace { url, token, .. } = held;
    say(format_args!("ropewalk: the space is not released: ropewalk space release {url} {token}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_PAUSE: Duration = Duration::ZERO;

    fn failed(is_final: bool) -> Result<(), NotRenewed> {
        Err(NotRenewed { text: "no answer".to_owned(), is_final })
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
