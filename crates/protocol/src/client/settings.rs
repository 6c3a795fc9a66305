use crate::client::CommandFailure;
use crate::command::{ChecksumAlgorithm, Command, DataAuthentication};
use crate::feature::Features;
use crate::opts::{Options, RetrOptions};
use crate::reply::Reply;
use crate::server::{Mode, RepresentationType};
use crate::site::SiteCommand;

/// What a session has to be set to before the next data channel is made (PASV, PORT and their kin): a channel keeps the
/// settings of the moment in which it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub representation: RepresentationType,
    pub mode: Mode,
    /// Connections that the server opens when it sends in MODE E; `None`: as it was.
    pub parallelism: Option<u32>,
    /// Seconds between 112 markers of a server that sends, 0 for none.
    pub markers: u32,
    /// Sum that our own servers compute while data passes.
    pub inline_checksum: Option<ChecksumAlgorithm>,
    /// PASV is answered only when the transfer begins.
    pub delayed_passive: bool,
    /// SO_SNDBUF and SO_RCVBUF of the server's data connections, in bytes; `None`: as it was.
    pub buffers: Option<u64>,
    pub data_authentication: DataAuthentication,
}

/// TYPE I, MODE S and nothing else: what [`Login`](super::Login) leaves on a clear control connection.
impl Default for Settings {
    fn default() -> Self {
        Self {
            representation: RepresentationType::Image,
            mode: Mode::Stream,
            parallelism: None,
            markers: 0,
            inline_checksum: None,
            delayed_passive: false,
            buffers: None,
            data_authentication: DataAuthentication::None,
        }
    }
}

/// One command that brings the server closer to the settings wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub command: Command,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    Representation(RepresentationType),
    Mode(Mode),
    Parallelism(u32),
    Markers(u32),
    InlineChecksum(Option<ChecksumAlgorithm>),
    DelayedPassive(bool),
    Buffers(u64),
    DataAuthentication(DataAuthentication),
}

/// Knows what the server is set to, and sends only what changes.
///
/// Ask for [`Self::changes`], submit them all, hand each answer to [`Self::answered`], and repeat until there are no
/// changes: where the server knows none of one command's names, the next name is tried. What a server cannot do and a
/// transfer can do without is not asked for again; [`Self::current`] says what holds.
#[derive(Clone, Debug)]
pub struct SettingsTracker {
    current: Settings,
    /// Names for the buffer command that were refused.
    buffer_names_refused: usize,
    parallelism_refused: bool,
    markers_refused: bool,
    checksum_refused: bool,
    delayed_refused: bool,
}

impl SettingsTracker {
    /// `current`: what a fresh session is set to.
    pub fn new(current: Settings) -> Self {
        Self {
            current,
            buffer_names_refused: 0,
            parallelism_refused: false,
            markers_refused: false,
            checksum_refused: false,
            delayed_refused: false,
        }
    }

    /// What the server is set to now.
    pub fn current(&self) -> &Settings {
        &self.current
    }

    /// The commands to send, in this order. After any of them a data channel has to be made anew.
    pub fn changes(&self, wanted: &Settings, features: &Features) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut add = |command, what| changes.push(Change { command, what });
        let current = &self.current;
        if wanted.representation != current.representation {
            add(Command::Type(wanted.representation), What::Representation(wanted.representation));
        }
        if wanted.mode != current.mode {
            add(Command::Mode(wanted.mode), What::Mode(wanted.mode));
        }
        if let Some(bytes) = wanted.buffers.filter(|n| Some(*n) != current.buffers)
            && let Some(command) = buffer_command(bytes, features, self.buffer_names_refused)
        {
            add(command, What::Buffers(bytes));
        }
        let mut retrieve = |options, what| add(Command::Opts(Options::Retr(options)), what);
        if let Some(n) = wanted.parallelism.filter(|n| Some(*n) != current.parallelism)
            && !self.parallelism_refused
        {
            retrieve(RetrOptions { parallelism: Some(n), ..RetrOptions::default() }, What::Parallelism(n));
        }
        if wanted.markers != current.markers && !self.markers_refused {
            let options = RetrOptions { markers: Some(wanted.markers), ..RetrOptions::default() };
            retrieve(options, What::Markers(wanted.markers));
        }
        let sum = wanted.inline_checksum;
        if sum != current.inline_checksum && features.inline_checksum && !self.checksum_refused {
            retrieve(
                RetrOptions { checksum: Some(sum), ..RetrOptions::default() },
                What::InlineChecksum(sum),
            );
        }
        if wanted.data_authentication != current.data_authentication && features.dcau {
            let mode = &wanted.data_authentication;
            add(Command::Dcau(mode.clone()), What::DataAuthentication(mode.clone()));
        }
        let delayed = wanted.delayed_passive;
        if delayed != current.delayed_passive && features.delayed_passive && !self.delayed_refused {
            add(Command::Opts(Options::Passive { delayed }), What::DelayedPassive(delayed));
        }
        changes
    }

    /// The answer to a change.
    ///
    /// # Errors
    /// The server refused what a transfer cannot do without: TYPE, MODE, DCAU.
    pub fn answered(&mut self, change: Change, reply: Reply) -> Result<(), CommandFailure> {
        let accepted = reply.is_success();
        let command = change.command.verb();
        let required = || CommandFailure::check(command, reply).map(drop);
        let current = &mut self.current;
        match change.what {
            What::Representation(representation) => {
                required()?;
                current.representation = representation;
            }
            What::Mode(mode) => {
                required()?;
                current.mode = mode;
            }
            What::DataAuthentication(mode) => {
                required()?;
                current.data_authentication = mode;
            }
            What::Parallelism(n) if accepted => current.parallelism = Some(n),
            What::Parallelism(_) => self.parallelism_refused = true,
            What::Markers(n) if accepted => current.markers = n,
            What::Markers(_) => self.markers_refused = true,
            What::InlineChecksum(algorithm) if accepted => current.inline_checksum = algorithm,
            What::InlineChecksum(_) => self.checksum_refused = true,
            What::DelayedPassive(delayed) if accepted => current.delayed_passive = delayed,
            What::DelayedPassive(_) => self.delayed_refused = true,
            What::Buffers(bytes) if accepted => current.buffers = Some(bytes),
            What::Buffers(_) => self.buffer_names_refused += 1,
        }
        Ok(())
    }
}

/// Servers know the command by many names; the ones that set both buffers come first, since a session may both send and
/// receive.
fn buffer_command(bytes: u64, features: &Features, refused: usize) -> Option<Command> {
    let names = [
        features.sbuf.then_some(Command::Sbuf(bytes)),
        Some(Command::Site(SiteCommand::Buffers(bytes))),
        (!features.sbuf).then_some(Command::Sbuf(bytes)),
        features.abuf.then_some(Command::Abuf(bytes)),
    ];
    names.into_iter().flatten().nth(refused)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn lines(changes: &[Change]) -> Vec<String> {
        changes.iter().map(|c| String::from_utf8(c.command.to_line().unwrap()).unwrap()).collect()
    }

    fn features() -> Features {
        Features { inline_checksum: true, delayed_passive: true, dcau: true, ..Features::default() }
    }

    fn ok() -> Reply {
        Reply::new(200, "ok")
    }

    #[test]
    fn only_changes_are_sent() {
        let mut tracker = SettingsTracker::new(Settings::default());
        assert!(tracker.changes(&Settings::default(), &features()).is_empty());
        let wanted = Settings {
            mode: Mode::ExtendedBlock,
            parallelism: Some(4),
            inline_checksum: Some(ChecksumAlgorithm::Crc32c),
            delayed_passive: true,
            buffers: Some(65536),
            markers: 5,
            ..Settings::default()
        };
        let changes = tracker.changes(&wanted, &features());
        assert_eq!(
            lines(&changes),
            [
                "MODE E",
                "SITE SBUF 65536",
                "OPTS RETR Parallelism=4,4,4;",
                "OPTS RETR markers=5;",
                "OPTS RETR Checksum=CRC32C;",
                "OPTS PASV AllowDelayed=1;"
            ]
        );
        for change in changes {
            tracker.answered(change, ok()).unwrap();
        }
        assert!(tracker.changes(&wanted, &features()).is_empty());
        assert_eq!(*tracker.current(), wanted);
        let back = Settings { parallelism: None, buffers: None, ..Settings::default() };
        let changes = lines(&tracker.changes(&back, &features()));
        assert_eq!(
            changes,
            ["MODE S", "OPTS RETR markers=0;", "OPTS RETR Checksum=;", "OPTS PASV AllowDelayed=0;"]
        );
    }

    #[test]
    fn what_is_not_offered_is_not_asked_for() {
        let tracker = SettingsTracker::new(Settings::default());
        let wanted = Settings {
            inline_checksum: Some(ChecksumAlgorithm::Crc32c),
            delayed_passive: true,
            data_authentication: DataAuthentication::SelfAuthentication,
            ..Settings::default()
        };
        assert!(tracker.changes(&wanted, &Features::default()).is_empty());
        let secure =
            Settings { data_authentication: DataAuthentication::SelfAuthentication, ..Settings::default() };
        let tracker = SettingsTracker::new(secure);
        assert_eq!(lines(&tracker.changes(&Settings::default(), &features())), ["DCAU N"]);
    }

    #[test]
    fn refusals() {
        let mut tracker = SettingsTracker::new(Settings::default());
        let refused = || Reply::new(500, "Command not supported.");
        let wanted = Settings { buffers: Some(1), parallelism: Some(2), ..Settings::default() };
        let features = Features { abuf: true, ..Features::default() };
        let mut seen = Vec::new();
        loop {
            let changes = tracker.changes(&wanted, &features);
            if changes.is_empty() {
                break;
            }
            seen.extend(lines(&changes));
            for change in changes {
                tracker.answered(change, refused()).unwrap();
            }
        }
        assert_eq!(seen, ["SITE SBUF 1", "OPTS RETR Parallelism=2,2,2;", "SBUF 1", "ABUF 1"]);
        assert_eq!(*tracker.current(), Settings::default());

        let wanted = Settings { mode: Mode::ExtendedBlock, ..Settings::default() };
        let change = tracker.changes(&wanted, &features).remove(0);
        let failure = tracker.answered(change, Reply::new(504, "Bad MODE.")).unwrap_err();
        assert_eq!(failure.command, "MODE");
        assert_eq!(tracker.current().mode, Mode::Stream);
    }
}
