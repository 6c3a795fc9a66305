//! The network path of a copy: it is reserved before, watched meanwhile, and released afterwards.
//!
//! A thread owns the reservation while data moves. Every way out of the copy ends it. If the
//! process is killed, the next program that uses paths finds the entry in the journal and removes
//! the path.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, anyhow};
use parking_lot::Mutex;
use ropewalk_client::{Cancel, Event, EventSink, Location, Options, Pair, state_directory};
use ropewalk_paths::{
    Binding, Entry, Goal, Held, Journal, JournalError, Notice, Owner, Part, PathError, Phase, Policy,
    Request, Runner, now,
};

use ropewalk_protocol::url::Url;

use crate::held::tell_left;
use crate::output::say;
use crate::path_source::PathSource;
use crate::settings::PathSettings;
use crate::utc;

/// How long the end of a copy waits for the paths of earlier runs to be removed.
const SWEEPING: Duration = Duration::from_secs(5);

/// The journal of the user's reservations.
pub(crate) fn journal(options: &Options) -> anyhow::Result<Journal> {
    let directory = state_directory(options.state_directory.as_deref());
    let directory = directory.ok_or_else(|| {
        anyhow!("there is no directory for the journal of paths: set HOME or XDG_STATE_HOME")
    })?;
    Ok(Journal::at(&directory))
}

/// Ends the paths whose process is gone, and those whose time is over. Paths that persons have
/// reserved stay.
pub(crate) fn sweep(journal: &Journal) -> anyhow::Result<()> {
    let (entries, broken) = journal.list()?;
    for error in broken {
        say(format_args!("ropewalk: {error}"));
    }
    for (entry, owned) in entries {
        let over = now() >= entry.request.until;
        let kept = entry.owner == Owner::Person && entry.phase == Phase::Reserved && !over;
        if owned || kept {
            continue;
        }
        if let Err(error) = recover(journal, &entry, over) {
            say(format_args!("ropewalk: the path {} of an earlier run: {error:#}", entry.id));
        }
    }
    Ok(())
}

/// Ends such paths in a thread, which may end with the process: the journal has its state.
fn sweep_beside(journal: Journal) -> Receiver<()> {
    let (done, swept) = channel();
    thread::spawn(move || {
        if let Err(error) = sweep(&journal) {
            say(format_args!("ropewalk: {error}"));
        }
        // The copy may have ended.
        let _ = done.send(());
    });
    swept
}

fn recover(journal: &Journal, entry: &Entry, over: bool) -> anyhow::Result<()> {
    let provider = PathSource::parse(&entry.provider).map_err(anyhow::Error::msg)?.provider()?;
    let (Some(provider), Some(taken)) = (provider, journal.take_over(&entry.id)?) else { return Ok(()) };
    let used = matches!(entry.phase, Phase::Activating | Phase::Up | Phase::Releasing);
    if entry.owner == Owner::Person && used && !over {
        Runner::recover(taken, provider, Goal::Reserved).release();
        return Ok(());
    }
    let mut runner = Runner::recover(taken, provider, Goal::End);
    runner.end();
    match runner.is_left() {
        true => Err(anyhow!("the provider has not confirmed its end; a later run tries again")),
        false => {
            say(format_args!("ropewalk: the path {} of an earlier run was removed", entry.id));
            tell_left(entry);
            Ok(())
        }
    }
}

/// A path that is up, and the thread that watches it.
pub(crate) struct PathUse {
    stop: Arc<AtomicBool>,
    lost: Arc<Mutex<Option<String>>>,
    thread: Option<JoinHandle<()>>,
}

impl PathUse {
    /// Reserves a path, waits until it is up, and sets what the copy needs to use it. `None`: no
    /// path is wanted, or there is none and it is only preferred.
    ///
    /// # Errors
    /// There is no path, and it is required; or the settings are wrong.
    pub(crate) fn obtain(
        settings: &PathSettings,
        pairs: &[Pair],
        options: &mut Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) -> anyhow::Result<Option<Self>> {
        let Some(source) = &settings.source else { return Ok(None) };
        let journal = journal(options)?;
        let manager = source.manager(settings.policy)?;
        let (mut runner, keeps) = match begin(source, settings, pairs, options, &journal) {
            Err(error) if error.is::<JournalError>() && settings.policy == Policy::Prefer => {
                say(format_args!(
                    "ropewalk: there is no path, and the copy goes over the usual network: {error}"
                ));
                return Ok(None);
            }
            begun => begun?,
        };
        let swept = sweep_beside(journal);
        let mut report = |entry: &Entry, notice: &Notice| {
            if let Notice::Reserved | Notice::Up(_) | Notice::Down(_) = notice {
                events.event(path_event(entry, notice));
            }
        };
        let obtained = runner.obtain_with(Goal::Up, &|| cancel.is_cancelled(), &mut report);
        if let Err(error) = &obtained {
            events.event(path_event(runner.entry(), &Notice::Failed(error.to_string())));
            events.event(ended(&runner));
        }
        match obtained {
            Ok(binding) => {
                use_held(&runner.entry().held, pairs, options);
                say(format_args!("ropewalk: the path {} is up{}", runner.entry().id, Shown(&binding)));
                apply(&binding, options);
            }
            // The copy that follows reports the interruption.
            Err(PathError::Stopped) => return Ok(None),
            Err(error) if settings.policy == Policy::Require => {
                return Err(anyhow::Error::new(error).context("there is no path (--path-policy require)"));
            }
            Err(error) => {
                say(format_args!(
                    "ropewalk: there is no path, and the copy goes over the usual network: {error}"
                ));
                return Ok(None);
            }
        }
        options.path.manager = manager.map(|manager| Arc::new(manager) as _);
        let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let watch = Watch {
            runner,
            events: Arc::clone(events),
            keeps,
            swept,
            stop: Arc::clone(&stop),
            lost: Arc::clone(&lost),
            required: (settings.policy == Policy::Require).then(|| cancel.clone()),
        };
        let thread = thread::Builder::new().name("path".into()).spawn(move || watch.run());
        Ok(Some(Self { stop, lost, thread: Some(thread.context("cannot start a thread")?) }))
    }

    /// Releases the path. Returns why the copy has lost a path that it requires.
    pub(crate) fn finish(mut self) -> Option<String> {
        self.end();
        self.lost.lock().take()
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            say("ropewalk: the path was not released: its thread failed");
        }
    }
}

impl Drop for PathUse {
    fn drop(&mut self) {
        self.end();
    }
}

/// Lets the copy use what was reserved with the path at its servers: uploads draw on the space, and
/// transfers use the slots.
fn use_held(held: &[Held], pairs: &[Pair], options: &mut Options) {
    for Held { url, token, part } in held {
        let is_at = |end: fn(&Pair) -> &Location| pairs.iter().any(|pair| is_at(end(pair), url));
        let (to, from) = (is_at(|pair| &pair.destination), is_at(|pair| &pair.source));
        let (source, destination) = (&mut options.login.source, &mut options.login.destination);
        let place = match part {
            Part::Space { .. } if to => &mut destination.space_token,
            Part::Slots { .. } if to && destination.slots_token.is_none() => &mut destination.slots_token,
            Part::Slots { .. } if from => &mut source.slots_token,
            _ => continue,
        };
        place.get_or_insert_with(|| token.clone());
    }
}

/// Whether an end of a copy is at this server.
fn is_at(end: &Location, server: &str) -> bool {
    let Ok(server) = Url::parse(server) else { return false };
    match end {
        Location::Remote(url) => {
            (url.scheme, &url.host, url.port) == (server.scheme, &server.host, server.port)
        }
        _ => false,
    }
}

/// Starts the reservation, or takes over one that is there. The second value tells whether the path
/// stays reserved after the copy.
fn begin(
    source: &PathSource,
    settings: &PathSettings,
    pairs: &[Pair],
    options: &Options,
    journal: &Journal,
) -> anyhow::Result<(Runner, bool)> {
    if let PathSource::Reserved(id) = source {
        let (entry, locked) = journal
            .take_over(id)?
            .ok_or_else(|| anyhow!("there is no reservation {id}, or another program uses it"))?;
        let provider = PathSource::parse(&entry.provider).map_err(anyhow::Error::msg)?.provider()?;
        let provider = provider.ok_or_else(|| anyhow!("the reservation {id} has no provider"))?;
        return Ok((Runner::recover((entry, locked), provider, Goal::Up), true));
    }
    let provider = source.provider()?.ok_or_else(|| anyhow!("{source} is no provider of paths"))?;
    let request = Request {
        from: None,
        until: now() + settings.time,
        capacity: settings.rate.or(options.tuning.capacity),
        description: pairs.first().map(describe).unwrap_or_default(),
    };
    let mut entry = Entry::new(source.to_string(), Owner::Transfer, request);
    entry.extend_by = source.is_extended().then_some(settings.time);
    Ok((Runner::begin(journal, entry, provider, Goal::Up)?, false))
}

/// Names the ends of a copy, without paths and users.
fn describe(pair: &Pair) -> String {
    let host = |location: &Location| match location {
        Location::Remote(url) => url.host.clone(),
        _ => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    format!("ropewalk: {} to {}", host(&pair.source), host(&pair.destination))
}

fn apply(binding: &Binding, options: &mut Options) {
    options.path.address = binding.address;
    options.path.interface.clone_from(&binding.interface);
    if binding.capacity.is_some() {
        options.tuning.capacity = binding.capacity;
    }
}

struct Shown<'a>(&'a Binding);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Binding { address, interface, capacity, mtu } = self.0;
        if let Some(address) = address {
            write!(f, ", from {address}")?;
        }
        if let Some(interface) = interface {
            write!(f, ", over {interface}")?;
        }
        if let Some(bits) = capacity {
            write!(f, ", {}", ropewalk_units::print::exact_bit_rate(*bits))?;
        }
        match mtu {
            Some(mtu) => write!(f, ", MTU {mtu}"),
            None => Ok(()),
        }
    }
}

/// The news of a path, as an event of the copy.
fn path_event(entry: &Entry, notice: &Notice) -> Event {
    let (state, reason) = match notice {
        Notice::Reserved => ("reserved", None),
        Notice::Up(_) => ("up", None),
        Notice::Extended(_) => ("extended", None),
        Notice::NotExtended(why) => ("not-extended", Some(why)),
        Notice::Down(why) => ("down", Some(why)),
        Notice::Failed(why) => ("failed", Some(why)),
        Notice::Ended => ("released", None),
        Notice::Left => ("left", None),
    };
    let capacity = if let Notice::Up(binding) = notice { binding.capacity } else { None };
    Event::Path {
        id: entry.id.to_string(),
        state: state.into(),
        reason: reason.cloned(),
        until: entry.request.until.as_secs(),
        capacity,
    }
}

/// The last event of a path.
fn ended(runner: &Runner) -> Event {
    path_event(runner.entry(), if runner.is_left() { &Notice::Left } else { &Notice::Ended })
}

/// The thread of a path that is up.
struct Watch {
    runner: Runner,
    events: Arc<dyn EventSink>,
    /// The path stays reserved.
    keeps: bool,
    /// Ends when the paths of earlier runs are removed.
    swept: Receiver<()>,
    stop: Arc<AtomicBool>,
    lost: Arc<Mutex<Option<String>>>,
    /// Stops the copy if the path is lost.
    required: Option<Cancel>,
}

impl Watch {
    fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.runner.step() {
                Ok(notices) => notices.iter().for_each(|notice| self.take(notice)),
                Err(error) => say(format_args!("ropewalk: {error}")),
            }
        }
        match self.keeps {
            true => self.runner.release(),
            false => self.runner.end(),
        }
        // A provider that does not answer must not hold up the end. The entries stay.
        let _ = self.swept.recv_timeout(SWEEPING);
        self.events.event(ended(&self.runner));
        if self.runner.is_left() {
            say(format_args!(
                "ropewalk: the provider has not confirmed the end of the path {}; `ropewalk reservations` \
                 tries again",
                self.runner.entry().id
            ));
        }
    }

    /// Passes news of the path on.
    fn take(&self, notice: &Notice) {
        if !matches!(notice, Notice::Ended | Notice::Left | Notice::Failed(_)) {
            self.events.event(path_event(self.runner.entry(), notice));
        }
        let until = |time: Duration| utc::show(time.as_secs().try_into().unwrap_or(i64::MAX));
        match notice {
            Notice::Down(why) => {
                say(format_args!("ropewalk: the path is down: {why}"));
                if let Some(cancel) = &self.required {
                    self.lost.lock().get_or_insert_with(|| why.clone());
                    cancel.cancel();
                }
            }
            Notice::Up(_) => say("ropewalk: the path is up again"),
            Notice::Extended(time) => {
                say(format_args!("ropewalk: the path is extended until {} UTC", until(*time)));
            }
            Notice::NotExtended(why) => {
                let end = until(self.runner.entry().request.until);
                say(format_args!("ropewalk: the path is not extended, and ends at {end} UTC: {why}"));
            }
            Notice::Ended | Notice::Left | Notice::Failed(_) | Notice::Reserved => {}
        }
    }
}
