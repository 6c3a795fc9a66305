use std::sync::Arc;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::host::{Host, Phase};
use crate::settings::Settings;

/// Steers a running server from any thread.
#[derive(Clone)]
pub struct ServerHandle(pub(crate) Arc<Host>);

impl ServerHandle {
    /// Takes new settings: sessions that begin from now on get them, and the logs are opened anew. Addresses, the
    /// memory for buffers, the number of threads and the umask stay as they were at the start; the log names those that are
    /// others now.
    ///
    /// # Errors
    /// The settings have errors; nothing has changed then.
    pub fn reload(&self, mut config: Config) -> Result<()> {
        let now = config.fixed();
        // A server that was not to take on identities can no longer do so.
        config.identity.mapped = self.0.settings().config.identity.mapped;
        Error::refuse(config.check())?;
        let settings = Settings::prepare(config, &self.0.stores)?;
        self.0.replace_settings(settings)?;
        tracing::info!("settings reloaded");
        for ((setting, _), _) in now.iter().zip(&self.0.fixed).filter(|(now, running)| now != running) {
            tracing::warn!(
                "{setting} is another than the server runs with, and holds from its next start on"
            );
        }
        Ok(())
    }

    /// Opens the logs anew, with the settings as they are.
    ///
    /// # Errors
    /// A log cannot be opened; lines go where they went.
    pub fn reopen_logs(&self) -> Result<()> {
        self.0.reopen_logs(&self.0.settings().config.log)
    }

    /// Ends the server in an orderly way: it accepts no more connections, closes idle sessions, and lets transfers
    /// finish for `timeouts.drain`; then it breaks them off with a restart marker.
    pub fn drain(&self) {
        let grace = self.0.settings().config.timeouts.drain;
        self.0.end(Phase::Draining, grace);
    }

    /// Ends the server at once; transfers are broken off. What they wrote is kept for a restart.
    pub fn stop(&self) {
        self.0.end(Phase::Stopping, std::time::Duration::ZERO);
    }

    /// Sessions that are open.
    pub fn sessions(&self) -> usize {
        self.0.limits.sessions()
    }
}
