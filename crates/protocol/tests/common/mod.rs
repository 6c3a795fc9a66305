//! A host for server sessions, which executes no operations.

#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

use std::sync::Arc;

use ropewalk_protocol::facts::{Entry, EntryKind};
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Action, Failure, Operation, Outcome, Session, SessionConfig};
use ropewalk_protocol::slots::{ReservedSlots, SlotsCommand};
use ropewalk_protocol::space::{ReservedSpace, SpaceCommand};
use ropewalk_protocol::usage::Usage;

/// Returns the host's result of an operation.
pub type Answer = fn(&Operation) -> Result<Outcome, Failure>;

pub struct Host {
    pub session: Session,
    pub answer: Answer,
    /// The last operation that the session requested.
    pub operation: Option<Operation>,
}

/// The host's time: a minute after the modification of `entry`.
pub const NOW: i64 = 1_795_298_283;

pub fn entry() -> Entry {
    let mut entry = Entry::new("f", EntryKind::File);
    entry.size = Some(12);
    entry.modified = Some(1_795_298_223);
    entry.mode = Some(0o666);
    entry.uid = Some(0);
    entry.gid = Some(0);
    entry.owner = Some("root".to_owned());
    entry.group = Some("root".to_owned());
    entry.device = Some(0xfe00);
    entry.inode = Some(0x98414f);
    entry
}

/// Every operation succeeds.
pub fn good(operation: &Operation) -> Result<Outcome, Failure> {
    Ok(match operation {
        Operation::Login { .. } => Outcome::LoggedIn {
            local_user: "alice".to_owned(),
            home: "/home/alice".parse_path(),
            message: None,
        },
        Operation::Listen(listen) if listen.striped => {
            Outcome::Addresses(vec!["127.0.0.1:43177".parse().unwrap(), "127.0.0.1:42203".parse().unwrap()])
        }
        Operation::Listen(_) => Outcome::Addresses(vec!["127.0.0.1:46041".parse().unwrap()]),
        Operation::Transfer(_) | Operation::List(_) => Outcome::Transferred { checksum: None },
        Operation::AdviseBuffers { .. } => Outcome::Advice("left to the system.".to_owned()),
        Operation::Stat { .. } => Outcome::Entry { entry: Box::new(entry()), now: NOW },
        Operation::Size(_) => Outcome::Size(4096),
        Operation::Checksum { .. } => Outcome::Checksum("6f5902ac237024bdd0c176cb93063dc4".to_owned()),
        Operation::Ranges(_) => {
            Outcome::Ranges([0..1_048_576, 2_097_152..3_145_728].into_iter().collect::<RangeSet>())
        }
        Operation::Usage { .. } => Outcome::Usage(Usage { used: 1, free: 2, total: 3 }),
        Operation::Slots(SlotsCommand::Release(_) | SlotsCommand::Use(None)) => Outcome::Done,
        Operation::Slots(_) => Outcome::ReservedSlots(vec![ReservedSlots {
            token: "cd34".into(),
            slots: 2,
            rate: 9,
            from: 0,
            until: 86_400,
            lease: 120,
        }]),
        Operation::Space(SpaceCommand::Release(_) | SpaceCommand::Use(None)) => Outcome::Done,
        Operation::Space(_) => {
            Outcome::Reserved(vec![ReservedSpace { token: "ab12".into(), bytes: 9, left: 5, end: 86_400 }])
        }
        _ => Outcome::Done,
    })
}

/// Every operation fails: no such file.
pub fn missing(_: &Operation) -> Result<Outcome, Failure> {
    Err(Failure::System { errno: 2, action: "stat".to_owned() })
}

pub trait ParsePath {
    fn parse_path(&self) -> ropewalk_protocol::path::VirtualPath;
}

impl ParsePath for str {
    fn parse_path(&self) -> ropewalk_protocol::path::VirtualPath {
        ropewalk_protocol::path::VirtualPath::parse(self.as_bytes()).unwrap()
    }
}

impl Host {
    pub fn new(config: SessionConfig) -> Self {
        Self { session: Session::new(Arc::new(config)), answer: good, operation: None }
    }

    pub fn logged_in() -> Self {
        Self::logged_in_with(SessionConfig::default())
    }

    pub fn logged_in_with(config: SessionConfig) -> Self {
        let mut host = Self::new(config);
        assert_eq!(host.run("USER alice"), "331 Password required for alice.");
        assert_eq!(host.run("PASS secret"), "230 User alice logged in.");
        host
    }

    /// Runs the session up to and including the next operation. Returns the replies, `ABORT` and
    /// `CLOSE`, one per line.
    pub fn poll(&mut self) -> String {
        let mut out = Vec::new();
        while let Some(action) = self.session.poll() {
            match action {
                Action::Send(reply) => out.push(reply.to_string()),
                Action::Perform(operation) => {
                    assert!(self.operation.is_none(), "one operation at a time");
                    self.operation = Some(operation);
                }
                Action::Abort => out.push("ABORT".to_owned()),
                Action::Streams(n) => out.push(format!("STREAMS {n}")),
                Action::Protect => out.push("PROTECT".to_owned()),
                Action::Close => out.push("CLOSE".to_owned()),
            }
        }
        out.join("\n")
    }

    /// Passes bytes to the session, and polls.
    pub fn input(&mut self, bytes: &[u8]) -> String {
        self.session.input(bytes);
        self.poll()
    }

    /// Completes the running operation, and polls.
    pub fn complete(&mut self, result: Result<Outcome, Failure>) -> String {
        assert!(self.operation.take().is_some(), "an operation is under way");
        self.session.completed(result);
        self.poll()
    }

    /// Sends a line, and completes all operations that it causes.
    pub fn run(&mut self, line: &str) -> String {
        let mut out = vec![self.input(format!("{line}\r\n").as_bytes())];
        while let Some(operation) = self.operation.take() {
            self.session.completed((self.answer)(&operation));
            out.push(self.poll());
        }
        out.retain(|part| !part.is_empty());
        out.join("\n")
    }

    /// Sends a line, and returns the operation that it causes.
    pub fn ask(&mut self, line: &str) -> Operation {
        assert_eq!(self.input(format!("{line}\r\n").as_bytes()), "", "{line}");
        self.operation.take().unwrap_or_else(|| panic!("{line} asks for nothing"))
    }

    /// Like [`Self::ask`], but also completes the operation.
    pub fn ask_and_do(&mut self, line: &str) -> Operation {
        let operation = self.ask(line);
        self.session.completed((self.answer)(&operation));
        self.poll();
        operation
    }

    pub fn check(&mut self, transcript: &[(&str, &str)]) {
        for (line, replies) in transcript {
            assert_eq!(self.run(line), *replies, "> {line}");
        }
    }
}
