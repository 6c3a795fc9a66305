//! SITE commands.
//!
//! A new one takes these steps. The compiler asks for some of them:
//!
//! 1. `../site.rs`: a variant of `SiteCommand`, how it is parsed, printed and named.
//! 2. Here: what the session does with it. A command of the host is an `Operation` (`action.rs`)
//!    with a `Pending` (`pending.rs`), the replies to come.
//! 3. `finish.rs`: the reply to the host's `Outcome`.
//! 4. `operations/entry.rs` of `server`: the function that carries the operation out.
//!
//! Nothing asks for the others:
//!
//! 5. `../help.rs`: its syntax. A verb that is not listed there is unknown.
//! 6. `../feature.rs`: its line in FEAT, if clients should find out whether the server has it.
//! 7. `LONG` in `dispatch.rs` and `is_long` in `pending.rs`, if an ABOR should end it;
//!    `docs/extensions.md`, if it is one of Ropewalk.

use bstr::BString;

use super::action::{ExpectedChecksum, Failure, NetStack, Operation, ProfileRequest, StackKind};
use super::failure::Attempt;
use super::pending::{PassiveKind, Pending};
use super::session::{Session, Step};
use crate::command::{ChecksumAlgorithm, CommandError, DataAuthentication};
use crate::profiling::{Baseline, ProfileCommand};
use crate::reply::Reply;
use crate::site::{SiteCommand, StoreAttributes};
use crate::slots::SlotsCommand;
use crate::space::SpaceCommand;
use crate::stack::{StackSpec, StackSyntaxError};
use crate::usage::UsageCommand;

/// Most verbs that SITE FAULT keeps.
const MAX_FAULTS: usize = 100;

/// Buffer size in bytes; 0 stands for the system's default, so it returns `None`.
pub(super) fn buffer_size(bytes: u64) -> Option<u64> {
    (bytes > 0).then_some(bytes)
}

fn simple(operation: Operation) -> Step {
    Step::Perform(operation, Pending::Simple)
}

fn ok() -> Step {
    Step::Reply(Reply::new(250, "OK."))
}

fn site_done() -> Step {
    Step::Reply(Reply::new(200, "Site Command Successful."))
}

/// The refusal of a text that is no stack.
fn bad_stack(kind: StackKind, error: &StackSyntaxError) -> Step {
    Step::Reply(Attempt::Other.reply(Failure::bad_stack(kind, error)))
}

/// SITE SETDISKSTACK.
fn set_disk_stack(text: &[u8]) -> Step {
    match StackSpec::parse(text) {
        Ok(stack) => simple(Operation::SetDiskStack(stack)),
        Err(error) => bad_stack(StackKind::FileSystem, &error),
    }
}

impl Session {
    pub(super) fn site(&mut self, command: SiteCommand) -> Result<Step, CommandError> {
        Ok(match command {
            SiteCommand::Buffers(bytes) => {
                self.set_buffers(Some(bytes), Some(bytes));
                site_done()
            }
            SiteCommand::SendBuffer(bytes) => {
                self.set_buffers(Some(bytes), None);
                site_done()
            }
            SiteCommand::ReceiveBuffer(bytes) => {
                self.set_buffers(None, Some(bytes));
                site_done()
            }
            SiteCommand::Chgrp { group, path } => {
                simple(Operation::ChangeGroup { path: self.resolve(&path)?, group })
            }
            SiteCommand::Chmod { mode, path } => {
                simple(Operation::ChangeMode { path: self.resolve(&path)?, mode })
            }
            SiteCommand::Chroot(_) if self.state.rooted => {
                Step::Reply(Reply::new(500, "Root directory is already set."))
            }
            SiteCommand::Chroot(path) => {
                Step::Perform(Operation::ChangeRoot(self.resolve(&path)?), Pending::ChangeRoot)
            }
            SiteCommand::ClientInfo(info) => simple(Operation::ClientInfo(info)),
            SiteCommand::TaskId(id) => simple(Operation::TaskId(id)),
            SiteCommand::DataKey(key) => self.set_data_key(key),
            SiteCommand::OnePort(_) if self.state.within_ssh => return Err(CommandError::UnknownSite),
            SiteCommand::OnePort(None) => self.passive(PassiveKind::OnePort, None),
            SiteCommand::OnePort(Some((token, address))) => self.active(vec![address], Some(token)),
            SiteCommand::Dsi(_) => Step::Reply(Reply::new(500, "no such DSI")),
            SiteCommand::Fault(verb) => {
                if self.state.faults.len() < MAX_FAULTS {
                    self.state.faults.insert(String::from_utf8_lossy(&verb).to_ascii_uppercase());
                }
                site_done()
            }
            SiteCommand::HopLogin(_) if !self.config.hop_logins => return Err(CommandError::UnknownSite),
            SiteCommand::HopLogin(_) if !self.state.is_private() => {
                // An eavesdropper could have read the secret (RFC 2228 section 4 for the code).
                Step::Reply(Reply::new(533, "SITE HOPLOGIN needs a protected control connection."))
            }
            SiteCommand::HopLogin(login) => simple(Operation::HopLogin(login)),
            SiteCommand::Help(subject) => Step::Reply(self.help(subject.as_ref())),
            SiteCommand::Profile(ProfileCommand::Fetch(raw)) => self.fetch_profile(raw)?,
            SiteCommand::Profile(command) => {
                let request = match command {
                    ProfileCommand::Start { seconds, raw } => ProfileRequest::Start { seconds, raw },
                    ProfileCommand::Stop => ProfileRequest::Stop,
                    ProfileCommand::Baseline(Baseline::Read(path)) => {
                        ProfileRequest::ReadDisk(self.resolve(&path)?)
                    }
                    ProfileCommand::Baseline(Baseline::Write(path)) => {
                        ProfileRequest::WriteDisk(self.resolve(&path)?)
                    }
                    ProfileCommand::Baseline(Baseline::Processor) => ProfileRequest::Processor,
                    ProfileCommand::Baseline(Baseline::Iperf) => ProfileRequest::Iperf,
                    ProfileCommand::Clock | ProfileCommand::Fetch(_) => ProfileRequest::Clock,
                };
                Step::Perform(Operation::Profile(request), Pending::Profile)
            }
            SiteCommand::Ranges(path) => {
                Step::Perform(Operation::Ranges(self.resolve(&path)?), Pending::Ranges(path))
            }
            SiteCommand::Usage(UsageCommand { token, path }) => {
                Step::Perform(Operation::Usage { token, path: self.resolve(&path)? }, Pending::Usage)
            }
            SiteCommand::Slots(command) => {
                let pending = Pending::Slots { list: command == SlotsCommand::List };
                Step::Perform(Operation::Slots(command), pending)
            }
            SiteCommand::Space(command) => self.space(command)?,
            SiteCommand::Upload(command) => self.upload(command)?,
            SiteCommand::Rdel(path) => {
                Step::Perform(Operation::DeleteTree(self.resolve(&path)?), Pending::DeleteTree)
            }
            SiteCommand::Restrict(_) if self.state.restricted => {
                Step::Reply(Reply::new(500, "Session restricted paths list already set."))
            }
            SiteCommand::Restrict(rules) => Step::Perform(Operation::Restrict(rules), Pending::Restrict),
            SiteCommand::SciTag(command) => {
                Step::Perform(Operation::SciTag(command), Pending::SciTag(command))
            }
            SiteCommand::SetNetStack(drivers) => self.set_net_stack(&drivers),
            SiteCommand::SetDiskStack(drivers) => set_disk_stack(&drivers),
            SiteCommand::Sharing(_) => Step::Reply(Reply::new(500, "Sharing not enabled.")),
            SiteCommand::StorAttr(attributes) => {
                self.store_attributes(attributes);
                ok()
            }
            SiteCommand::Symlink { target, link } => {
                simple(Operation::Symlink { target, link: self.resolve_new(&link)? })
            }
            SiteCommand::SymlinkFrom(path) => {
                let path = self.resolve(&path)?;
                self.state.symlink_from = None;
                let operation = Operation::Stat { path: path.clone(), follow: true };
                Step::Perform(operation, Pending::SymlinkFrom(path))
            }
            SiteCommand::SymlinkTo(link) => {
                let from = self.state.symlink_from.take().ok_or(CommandError::InvalidArguments)?;
                let link = self.resolve_new(&link)?;
                // As in GCT, the target is the absolute path, because the client's path is
                // relative to the working directory, not to the link.
                simple(Operation::Symlink { target: from.as_bytes().into(), link })
            }
            SiteCommand::Truncate { length, path } => {
                let operation = Operation::Truncate { path: self.resolve(&path)?, length };
                Step::Perform(operation, Pending::Truncate)
            }
            SiteCommand::Utime { modified, path } => {
                simple(Operation::SetModified { path: self.resolve(&path)?, modified })
            }
            SiteCommand::Version => {
                Step::Reply(Reply::new(200, format!("{} [Ropewalk]", self.config.version)))
            }
            SiteCommand::WhoAmI => {
                Step::Reply(Reply::new(200, self.state.local_user.as_deref().unwrap_or_default()))
            }
            // If it is enabled, SITE STREAMS was handled on receipt, before the queue.
            SiteCommand::Streams(_)
            | SiteCommand::AuthzAssert(_)
            | SiteCommand::Http(_)
            | SiteCommand::Upas(_)
            | SiteCommand::Uprt(_) => return Err(CommandError::UnknownSite),
        })
    }

    /// SITE SPACE. Paths are relative to the session's directory.
    fn space(&self, command: SpaceCommand<Option<BString>>) -> Result<Step, CommandError> {
        let pending = Pending::Space { list: command == SpaceCommand::List };
        let command = match command {
            SpaceCommand::Reserve { bytes, seconds, path } => {
                SpaceCommand::Reserve { bytes, seconds, path: self.resolve_or_here(path)?.0 }
            }
            SpaceCommand::Extend { token, seconds } => SpaceCommand::Extend { token, seconds },
            SpaceCommand::Release(token) => SpaceCommand::Release(token),
            SpaceCommand::Use(token) => SpaceCommand::Use(token),
            SpaceCommand::List => SpaceCommand::List,
        };
        Ok(Step::Perform(Operation::Space(command), pending))
    }

    /// SITE SETNETSTACK. The stack holds for the data channels that are created later.
    fn set_net_stack(&mut self, text: &[u8]) -> Step {
        let stack = match StackSpec::parse(text) {
            Ok(Some(stack)) => stack,
            Ok(None) => {
                self.state.net_stack = None;
                return ok();
            }
            Err(error) => return bad_stack(StackKind::DataChannel, &error),
        };
        let authentication = match self.state.authenticates_data() {
            true => self.state.authentication.clone(),
            false => DataAuthentication::None,
        };
        let (pending, protection) = (Pending::NetStack(stack.clone()), self.state.protection);
        Step::Perform(
            Operation::SetNetStack(Box::new(NetStack { stack, authentication, protection })),
            pending,
        )
    }

    /// Sets the buffer sizes that the client requests. They apply exactly, and disable ABUF.
    pub(super) fn set_buffers(&mut self, send: Option<u64>, receive: Option<u64>) {
        let options = &mut self.state.options;
        if let Some(bytes) = send {
            options.send_buffer = buffer_size(bytes);
        }
        if let Some(bytes) = receive {
            options.receive_buffer = buffer_size(bytes);
        }
        options.automatic_buffers = None;
    }

    fn store_attributes(&mut self, attributes: StoreAttributes) {
        if let Some(modified) = attributes.modified {
            self.state.upload.modified = Some(modified);
        }
        if let Some((algorithm, value)) = attributes.checksum {
            self.expect_checksum(algorithm, &value);
        }
    }

    /// SCKS and STORATTR: the next upload has to have this checksum.
    pub(super) fn expect_checksum(&mut self, algorithm: ChecksumAlgorithm, value: &[u8]) {
        let value = String::from_utf8_lossy(value).to_ascii_lowercase();
        self.state.upload.expected = Some(ExpectedChecksum { algorithm, value });
    }
}
