use std::sync::Arc;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::host::{Host, Phase};
use crate::settings::Settings;

/// Controls a running server from any thread.
#[derive(Clone)]
pub struct ServerHandle(pub(crate) Arc<Host>);

impl ServerHandle {
    /// Takes new settings: sessions that begin from now on get them, and the logs are opened again.
    /// Addresses, the memory for buffers, the number of threads and the umask stay as they were at
    /// the start; the log names those that have changed.
    ///
    /// # Errors
    /// The settings have errors, and nothing has changed.
    pub fn reload(&self, mut config: Config) -> Result<()> {
        let now = config.fixed();
        // A server that was started without taking on identities cannot do so later.
        config.identity.mapped = self.0.settings().config.identity.mapped;
        Error::refuse(self.0.stores.concerned(config.check()))?;
        let settings = Settings::prepare(config, &self.0.stores, self.0.measurements.is_some())?;
        self.0.replace_settings(settings)?;
        tracing::info!("settings reloaded");
        for ((setting, _), _) in now.iter().zip(&self.0.fixed).filter(|(now, running)| now != running) {
            tracing::warn!(
                "{setting} is another than the server runs with, and holds from its next start on"
            );
        }
        Ok(())
    }

    /// Opens the logs again, with the current settings.
    ///
    /// # Errors
    /// A log cannot be opened; the old files stay in use.
    pub fn reopen_logs(&self) -> Result<()> {
        self.0.reopen_logs(&self.0.settings().config.log)
    }

    /// Ends the server in an orderly way: it accepts no more connections, closes idle sessions, and
    /// lets transfers finish for `timeouts.drain`; then it breaks them off with a restart marker.
    pub fn drain(&self) {
        let grace = self.0.settings().config.timeouts.drain;
        self.0.end(Phase::Draining, grace);
    }

    /// Ends the server at once; transfers are broken off. The data that they wrote is kept for a
    /// restart.
    pub fn stop(&self) {
        self.0.end(Phase::Stopping, std::time::Duration::ZERO);
    }

    /// The number of open sessions.
    pub fn sessions(&self) -> usize {
        self.0.limits.sessions()
    }
}
