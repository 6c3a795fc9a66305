//! The server as a service: signals, and what systemd wants to know.

use std::thread;

use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{Config, ConfigError};
use crate::error::{Error, Result};
use crate::handle::ServerHandle;
use crate::server::Server;

impl Server {
    /// As [`Server::run`], and obeys signals: SIGHUP takes the settings that `load` gives, SIGTERM drains, SIGINT and
    /// a second SIGTERM stop at once. systemd is told when the server is ready, reloading and stopping, and is given
    /// signs of life where it asked for them.
    ///
    /// # Errors
    /// As [`Server::run`]; or signals cannot be handled.
    pub fn run_with_signals(
        mut self,
        mut load: impl FnMut() -> std::result::Result<Config, ConfigError> + Send + 'static,
    ) -> Result<()> {
        let mut signals =
            Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(Error::system("cannot handle signals"))?;
        let signals_handle = signals.handle();
        let handle = self.handle();
        let watcher = thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                let mut draining = false;
                for signal in signals.forever() {
                    match signal {
                        SIGHUP => reload(&handle, &mut load),
                        SIGTERM if !draining => {
                            draining = true;
                            tell(&[NotifyState::Stopping]);
                            tracing::info!("SIGTERM: draining");
                            handle.drain();
                        }
                        _ => {
                            tell(&[NotifyState::Stopping]);
                            tracing::info!(signal, "stopping at once");
                            handle.stop();
                        }
                    }
                }
            })
            .map_err(Error::system("cannot start a thread"))?;
        tell(&[NotifyState::Ready]);
        if let Some(interval) = sd_notify::watchdog_enabled() {
            // The reactor itself gives the signs of life, so that they stop when it hangs.
            self.sign_of_life(interval / 2, || tell(&[NotifyState::Watchdog]));
        }
        let result = self.run();
        signals_handle.close();
        if watcher.join().is_err() {
            tracing::error!("the signal thread has panicked");
        }
        result
    }
}

fn reload(handle: &ServerHandle, load: &mut impl FnMut() -> std::result::Result<Config, ConfigError>) {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "no monotonic clock for systemd"),
    }
    if let Err(error) = load().map_err(Error::from).and_then(|config| handle.reload(config)) {
        tracing::error!(%error, "reload failed; the old settings stay");
    }
    tell(&[NotifyState::Ready]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd cannot be told");
    }
}
