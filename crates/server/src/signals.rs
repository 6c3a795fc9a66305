//! The server as a service: signals, and notifications for systemd.

use std::ffi::c_int;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

use crate::config::{Config, ConfigError};
use crate::error::{Error, Result};
use crate::handle::ServerHandle;
use crate::server::Server;

impl Server {
    /// As [`Server::run`], and obeys signals: SIGHUP reloads the settings that `load` returns,
    /// SIGTERM drains, SIGINT and a second SIGTERM stop at once. systemd is notified when the
    /// server is ready, reloading and stopping, and receives signs of life if its watchdog is
    /// enabled.
    ///
    /// # Errors
    /// As [`Server::run`]; or signals cannot be handled.
    pub fn run_with_signals(
        mut self,
        load: impl FnMut() -> std::result::Result<Config, ConfigError> + Send + 'static,
    ) -> Result<()> {
        // SIGHUP and `ropewalk admin reload` take turns.
        let load = Arc::new(Mutex::new(load));
        let (handle, of_admin) = (self.handle(), Arc::clone(&load));
        self.reload = Some(Box::new(move || reload(&handle, &mut *of_admin.lock())));
        let handle = self.handle();
        let watcher = Watcher::start(self.handle(), move |signal, step| match step {
            Step::Hangup => {
                // A failure is in the log.
                let _ = reload(&handle, &mut *load.lock());
                false
            }
            Step::Drain => {
                tell(&[NotifyState::Stopping]);
                tracing::info!("SIGTERM: draining");
                true
            }
            Step::Stop => {
                tell(&[NotifyState::Stopping]);
                tracing::info!(signal, "stopping at once");
                true
            }
        })?;
        tell(&[NotifyState::Ready]);
        if let Some(interval) = sd_notify::watchdog_enabled() {
            // The reactor itself sends the signs of life, so that they stop if it hangs.
            self.sign_of_life(interval / 2, || tell(&[NotifyState::Watchdog]));
        }
        let result = self.run();
        watcher.end();
        result
    }
}

/// The reaction to a signal.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    /// SIGHUP.
    Hangup,
    /// The first SIGTERM: transfers may finish.
    Drain,
    /// SIGINT, or SIGTERM again.
    Stop,
}

/// The thread that waits for signals.
pub(crate) struct Watcher {
    signals: Handle,
    thread: JoinHandle<()>,
}

impl Watcher {
    /// Passes signals to `server` from now on. `told` is called first with each signal and the
    /// reaction to it, and returns whether the server should react; a hangup then stops it.
    pub(crate) fn start(
        server: ServerHandle,
        mut told: impl FnMut(c_int, Step) -> bool + Send + 'static,
    ) -> Result<Self> {
        let mut signals =
            Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(Error::system("cannot handle signals"))?;
        let handle = signals.handle();
        let wait = move || {
            let mut draining = false;
            for signal in signals.forever() {
                let step = match signal {
                    SIGHUP => Step::Hangup,
                    SIGTERM if !draining => Step::Drain,
                    _ => Step::Stop,
                };
                match step {
                    _ if !told(signal, step) => {}
                    Step::Drain => {
                        draining = true;
                        server.drain();
                    }
                    Step::Hangup | Step::Stop => server.stop(),
                }
            }
        };
        let thread = thread::Builder::new().name("signals".into()).spawn(wait);
        Ok(Self { signals: handle, thread: thread.map_err(Error::system("cannot start a thread"))? })
    }

    /// Restores the default reaction to signals.
    pub(crate) fn end(self) {
        self.signals.close();
        if self.thread.join().is_err() {
            tracing::error!("the signal thread has panicked");
        }
    }
}

fn reload(
    handle: &ServerHandle,
    load: &mut impl FnMut() -> std::result::Result<Config, ConfigError>,
) -> Result<()> {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "no monotonic clock for systemd"),
    }
    let result = load().map_err(Error::from).and_then(|config| handle.reload(config));
    if let Err(error) = &result {
        tracing::error!(%error, "reload failed; the old settings stay");
        // The logs may have been moved away.
        if let Err(error) = handle.reopen_logs() {
            tracing::error!(%error, "logs cannot be opened anew");
        }
    }
    tell(&[NotifyState::Ready]);
    result
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told");
    }
}
