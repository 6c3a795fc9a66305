//! Where sessions wait for their clients, without a thread each.

mod listeners;
mod parking;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use listeners::Listeners;
use mio::{Events, Poll, Token, Waker};
pub(crate) use parking::Why;
use parking::{Entry, Parking};

use crate::admission;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::host::{Host, Phase};
use crate::runner;

const WAKER: Token = Token(usize::MAX);
/// Sessions' tokens are their numbers, which begin at 1; listeners' count down from here.
const FIRST_LISTENER: usize = usize::MAX / 2;

/// How often it is looked whether the clients of sessions that wait for their turn are still there.
const LOOK: Duration = Duration::from_secs(1);

type Sign = (Duration, Box<dyn FnMut() + Send>);

/// Accepts connections, and waits for all that is idle: input, room for output, time.
pub(crate) struct Reactor {
    poll: Poll,
    listeners: Listeners,
    sign_of_life: Option<Sign>,
}

/// The reactor as other threads see it.
pub(crate) struct Remote {
    parking: Parking,
    waker: Waker,
}

impl Remote {
    /// The session waits for its client (or for time) from now on.
    pub(crate) fn park(&self, host: &Host, connection: Box<Connection>, why: Why) {
        match self.parking.park(host, connection, why) {
            Ok(sooner) => {
                if sooner {
                    self.wake();
                }
            }
            Err(connection) => connection.close(),
        }
    }

    /// Makes the reactor look around.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the reactor cannot be woken");
        }
    }
}

impl Reactor {
    pub(crate) fn new(mut listeners: Listeners) -> Result<(Self, Remote)> {
        let system = || Error::system("cannot wait for connections");
        let poll = Poll::new().map_err(system())?;
        let registry = poll.registry();
        listeners.register(registry).map_err(system())?;
        let waker = Waker::new(registry, WAKER).map_err(system())?;
        let parking = Parking::new(registry.try_clone().map_err(system())?);
        Ok((Self { poll, listeners, sign_of_life: None }, Remote { parking, waker }))
    }

    /// Calls `f` at least every `interval` while the reactor is well.
    pub(crate) fn set_sign_of_life(&mut self, interval: Duration, f: impl FnMut() + Send + 'static) {
        self.sign_of_life = Some((interval, Box::new(f)));
    }

    /// Until the server has ended and no session is left.
    pub(crate) fn run(mut self, host: &Arc<Host>) -> Result<()> {
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
                for entry in host.remote.parking.take_all() {
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
            if next_look <= now && host.turns_are_awaited() {
                runner::look_after_waiting(host);
                next_look = now + LOOK;
            }
            let deadlines = [
                host.remote.parking.next_deadline(),
                self.listeners.retry_at(),
                self.sign_of_life.is_some().then_some(next_sign),
                host.given_up(),
                host.turns_are_awaited().then_some(next_look),
            ];
            let timeout =
                deadlines.into_iter().flatten().min().map(|at| round_up(at.saturating_duration_since(now)));
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => {
                    return Err(Error::system("cannot wait for connections")(e));
                }
                _ => {}
            }
            host.remote.parking.awake();
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(n) if n >= FIRST_LISTENER => self.listeners.ready(n - FIRST_LISTENER),
                    token => {
                        if let Some(connection) = host.remote.parking.take(token) {
                            runner::start(host, connection);
                        }
                    }
                }
            }
            self.accept(host);
            for entry in host.remote.parking.expired(Instant::now()) {
                expire(host, entry);
            }
        }
    }

    fn accept(&mut self, host: &Arc<Host>) {
        self.listeners.accept(|stream, peer, implicit| {
            if let Some(connection) = admission::admit(host, stream, peer, implicit) {
                // The greeting needs no thread: it is one write that does not wait.
                runner::greet(host, connection);
            }
        });
    }
}

/// What time brings to a session.
fn expire(host: &Arc<Host>, Entry { connection, why, .. }: Entry) {
    match why {
        Why::Idle => {
            tracing::info!(session = connection.id(), "idle for too long");
            connection.say_and_close(421, "Idle Timeout: closing control connection.");
        }
        Why::Pause { .. } => runner::start(host, connection),
        Why::Write => {
            tracing::info!(session = connection.id(), "client does not read its replies");
            connection.close();
        }
    }
}

/// The poller counts milliseconds, and would wake up too early.
fn round_up(timeout: Duration) -> Duration {
    timeout + Duration::from_micros(999)
}
