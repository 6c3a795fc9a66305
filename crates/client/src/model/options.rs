//! The options of a copy. Every option has a default that suits an unknown path.
//!
//! [`Options`] and its groups serialise to JSON and back, except for passwords, passphrases and the
//! functions that ask a person. A member that is left out has its default; one that is unknown is
//! an error.

mod groups;
mod values;

use std::path::PathBuf;

use ropewalk_tuning::tuner::{CongestionControl, Kind};
use serde::{Deserialize, Serialize};

pub use groups::{
    DataOptions, DataSecurityOptions, IntegrityOptions, LoginOptions, PathOptions, Prompts, RecoveryOptions,
    RelayedLogin, SelectionOptions, StorageOptions, TimeoutOptions, TrustOptions, TuningOptions,
};
pub(crate) use values::TerminalHold;
pub use values::{
    Amount, Authentication, Auto, ChecksumPolicy, Confirm, DataCredential, DataMode, DataProtection,
    EndOptions, FsyncPolicy, Limits, Pair, Passphrases, PasswordPrompt, Preserve, SshOptions, StallLimit,
    SyncLevel, Terminal, TokenSource, Window,
};

/// The options of a copy, with the defaults of `ropewalk cp`.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Options {
    pub tuning: TuningOptions,
    pub data: DataOptions,
    pub selection: SelectionOptions,
    pub storage: StorageOptions,
    pub integrity: IntegrityOptions,
    pub recovery: RecoveryOptions,
    pub timeouts: TimeoutOptions,
    pub login: LoginOptions,
    pub trust: TrustOptions,
    pub data_security: DataSecurityOptions,
    #[serde(skip)]
    pub prompts: Prompts,
    #[serde(skip)]
    pub path: PathOptions,
    pub preserve: Preserve,
    /// How sshftp:// connects.
    pub ssh: SshOptions,
    pub dry_run: bool,
    /// Paths of remote URLs are relative to the log-in directory (GCT's `-rp`).
    pub relative_paths: bool,
    /// Directory for the journals of uploads and third-party transfers; `None` is
    /// `$XDG_STATE_HOME/ropewalk`, and without that variable `~/.local/state/ropewalk`.
    pub state_directory: Option<PathBuf>,
    /// Report the control dialogue as `Event::Dialogue`.
    pub trace_control: bool,
}

impl Options {
    /// The same options with a change.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Whether a tuner may change how paths are used.
    pub(crate) fn is_tuned(&self) -> bool {
        self.tuning.tuner != Kind::Fixed && self.tuning.streams == Auto::Auto && !self.uses_udt()
    }

    /// The congestion control of data connections without tuning: the first one in the list.
    /// `None`: the sending host's own.
    pub(crate) fn fixed_congestion(&self) -> Option<&'static str> {
        let first = self.tuning.congestion.first().filter(|_| !self.is_tuned())?;
        CongestionControl::from_name(first).map(CongestionControl::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_congestion_control_is_used_where_nothing_is_tuned() {
        let tuned = Options::default().with(|o| o.tuning.congestion = vec!["bbr".into(), "cubic".into()]);
        assert_eq!(tuned.fixed_congestion(), None);
        let one = tuned.clone().with(|o| o.tuning.streams = Auto::Set(8));
        assert_eq!(one.fixed_congestion(), Some("bbr"));
        let untuned = tuned.with(|o| o.tuning.tuner = Kind::Fixed);
        assert_eq!(untuned.fixed_congestion(), Some("bbr"));
        assert_eq!(untuned.with(|o| o.tuning.congestion = Vec::new()).fixed_congestion(), None);
    }
}
