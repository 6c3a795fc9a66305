//! The thread on which idle sessions wait for their clients.
//!
//! It polls the listeners and all parked sessions, accepts connections, hands sessions with input
//! to the threads of the runner, and closes those that waited too long. It returns when the server
//! has ended, or if the system cannot poll.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Registry, Token, Waker};

use crate::error::{Error, Result};
use crate::host::reservations::Reservations;
use crate::host::{Host, Phase};
use crate::scheduling::connection::Wait;
use crate::scheduling::listeners::{FIRST_LISTENER, Listeners};
use crate::scheduling::parking::Entry;
use crate::scheduling::scheduler::Scheduler;
use crate::scheduling::{admission, runner, waiting};

const WAKER: Token = Token(usize::MAX);
/// How often the reactor checks sessions that wait in a queue: whether their clients are still
/// connected, and whether they may begin. It also does when a reservation begins or ends.
const LOOK: Duration = Duration::from_secs(1);

type Sign = (Duration, Box<dyn FnMut() + Send>);

/// Accepts connections, and waits for input, room for output and time.
pub(crate) struct Reactor {
    poll: Poll,
    listeners: Listeners,
    sign_of_life: Option<Sign>,
}

impl Reactor {
    /// Returns the reactor, and what other threads need to register sessions and to wake it.
    pub(crate) fn new(mut listeners: Listeners) -> Result<(Self, Registry, Waker)> {
        let system = || Error::system("cannot wait for connections");
        let poll = Poll::new().map_err(system())?;
        let registry = poll.registry();
        listeners.register(registry).map_err(system())?;
        let waker = Waker::new(registry, WAKER).map_err(system())?;
        let registry = registry.try_clone().map_err(system())?;
        Ok((Self { poll, listeners, sign_of_life: None }, registry, waker))
    }

    /// Calls `f` at least every `interval` while the reactor runs.
    pub(crate) fn set_sign_of_life(&mut self, interval: Duration, f: impl FnMut() + Send + 'static) {
        self.sign_of_life = Some((interval, Box::new(f)));
    }

    /// Runs until the server has ended and no session is left.
    pub(crate) fn run(mut self, scheduler: &Arc<Scheduler>) -> Result<()> {
        let host = &*scheduler.host;
        let mut events = Events::with_capacity(1024);
        let mut next_sign = Instant::now();
        let mut next_look = Instant::now();
        loop {
            if let Some((interval, sign)) = &mut self.sign_of_life
                && next_sign <= Instant::now()
            {
                sign();
                next_sign = Instant::now() + *interval;
            }
            if host.phase() != Phase::Running {
                self.listeners.close();
                for entry in scheduler.parking.take_all() {
                    entry.connection.say_and_close(421, "Service not available, closing control connection.");
                }
                if host.limits.sessions() == 0 {
                    return Ok(());
                }
                if host.given_up().is_some_and(|at| at <= Instant::now()) {
                    tracing::warn!(
                        sessions = host.limits.sessions(),
                        "sessions hang; the server ends without them"
                    );
                    return Ok(());
                }
            }
            let now = Instant::now();
            if scheduler.has_waiting() && (next_look <= now || have_changed(host)) {
                waiting::check_waiting(scheduler);
                // A window of reserved permits begins when it is due, not at the next look.
                let change = host.reservations.as_ref().and_then(Reservations::next_change);
                next_look = Instant::now() + change.unwrap_or(LOOK).min(LOOK);
            }
            let deadlines = [
                scheduler.parking.next_deadline(),
                self.listeners.retry_at(),
                self.sign_of_life.is_some().then_some(next_sign),
                host.given_up(),
                scheduler.has_waiting().then_some(next_look),
            ];
            let timeout =
                deadlines.into_iter().flatten().min().map(|at| round_up(at.saturating_duration_since(now)));
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    return Err(Error::system("cannot wait for connections")(e));
                }
                _ => {}
            }
            scheduler.parking.awake();
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(n) if n >= FIRST_LISTENER => self.listeners.ready(n - FIRST_LISTENER),
                    token => {
                        if let Some(connection) = scheduler.parking.take(token) {
                            runner::start(scheduler, connection);
                        }
                    }
                }
            }
            self.accept(scheduler);
            for entry in scheduler.parking.expired(Instant::now()) {
                expire(scheduler, entry);
            }
        }
    }

    fn accept(&mut self, scheduler: &Arc<Scheduler>) {
        self.listeners.accept(|stream, peer, implicit| {
            if let Some(connection) = admission::admit(scheduler, stream, peer, implicit) {
                // The greeting needs no thread of its own: it is one write that does not wait.
                runner::greet(scheduler, connection);
            }
        });
    }
}

/// Handles a session whose time is over.
fn expire(scheduler: &Arc<Scheduler>, Entry { connection, why, .. }: Entry) {
    match why {
        Wait::Idle => {
            tracing::info!(session = connection.id(), "idle for too long");
            connection.say_and_close(421, "Idle Timeout: closing control connection.");
        }
        Wait::Pause { .. } => runner::start(scheduler, connection),
        Wait::Write => {
            tracing::info!(session = connection.id(), "client does not read its replies");
            connection.close();
        }
    }
}

/// Whether permits were reserved or released since the last look.
fn have_changed(host: &Host) -> bool {
    host.reservations.as_ref().is_some_and(Reservations::have_changed)
}

/// The poller counts milliseconds, and would wake up too early.
fn round_up(timeout: Duration) -> Duration {
    timeout + Duration::from_micros(999)
}
