//! The settings of `cp` and the other client commands: one table defines flags, environment
//! variables and configuration keys.
//!
//! Flag > `ROPEWALK_*` > the user's file > the system's file > default.

mod ends;
mod flags;
mod kerberos;
mod layers;
mod path;
mod scitag;
mod sockets;
mod ssh;
mod stripes;
mod table;
mod token;
mod trust;
mod values;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use ends::data_credential;
pub(crate) use flags::ConnectionFlags;
pub(crate) use flags::CpFlags;
pub use flags::{CopyFlags, Flags};
pub use layers::Layers;
pub(crate) use layers::{SYSTEM_FILE, text_of, user_file};
pub(crate) use path::PathSettings;
use ropewalk_client::Options;
pub(crate) use table::SETTINGS;
pub(crate) use values::{parse_bandwidth, port_range, show_rate};

/// The values of all settings.
#[derive(Clone, Debug)]
pub struct Settings {
    pub options: Options,
    pub password_files: PasswordFiles,
    /// Payload in the socket buffers of all connections together, bytes.
    pub(crate) socket_memory: Option<u64>,
    pub(crate) path: PathSettings,
    /// Interval of status lines if no progress line is shown; zero: no status lines.
    pub(crate) status_interval: Duration,
    pub(crate) scitag: scitag::SciTagSettings,
    /// A file that also gets all messages.
    pub(crate) log_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            options: Options::default(),
            password_files: PasswordFiles::default(),
            socket_memory: None,
            path: PathSettings::default(),
            status_interval: Duration::from_secs(30),
            scitag: scitag::SciTagSettings::default(),
            log_file: None,
        }
    }
}

/// Files whose first line is the password for the server whose URL has none.
#[derive(Clone, Debug, Default)]
pub struct PasswordFiles {
    pub(crate) common: Option<PathBuf>,
    pub(crate) source: Option<PathBuf>,
    pub(crate) destination: Option<PathBuf>,
    /// Whether one of them is given on the command line, and so is meant for a server of this
    /// command.
    pub(crate) in_command: bool,
}

impl PasswordFiles {
    /// How many of them are standard input.
    pub(crate) fn in_stdin(&self) -> usize {
        let all = [&self.common, &self.source, &self.destination];
        all.into_iter().flatten().filter(|path| path.as_os_str() == "-").count()
    }
}

/// The commands that have the flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Each command that may connect to a server.
    Connection,
    /// Each command that may connect to a server: authentication and trust.
    Security,
    /// Each command that copies.
    Copy,
    /// `cp` only: network paths. `profile` has another option of that name.
    Path,
    /// `cp` only: authentication at one of two ends.
    Ends,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// `--key VALUE`; the name of the value in help.
    Value(&'static str),
    /// `--key` or `--key=VALUE`: the name of the value, and the meaning of the bare flag.
    Optional(&'static str, &'static str),
    /// `--key`; against a configuration file also `--no-key`.
    Switch,
    /// On by default: `--no-key`; against a configuration file also `--key`.
    Negated,
}

/// One setting.
pub struct Setting {
    /// The long flag and the key in configuration files.
    pub(crate) key: &'static str,
    pub(crate) short: Option<char>,
    pub(crate) shape: Shape,
    pub(crate) group: Group,
    pub(crate) help: &'static str,
    /// Sets the value from text; the error says what is expected.
    pub apply: fn(&mut Settings, &str) -> Result<(), String>,
    /// The value as text that `apply` accepts.
    pub(crate) show: fn(&Settings) -> String,
}

impl Setting {
    /// The environment variable: `ROPEWALK_TCP_BUFFER` for `tcp-buffer`.
    pub(crate) fn variable(&self) -> String {
        format!("ROPEWALK_{}", self.key.to_ascii_uppercase().replace('-', "_"))
    }

    /// Whether the setting is for one of the two ends of a copy.
    pub(crate) fn is_of_an_end(&self) -> bool {
        self.group == Group::Ends
    }

    pub fn find(key: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }

    /// Checks `value` with the setting's own function.
    pub(crate) fn check(&self, value: &str) -> Result<(), String> {
        (self.apply)(&mut Settings::default(), value)
    }
}
