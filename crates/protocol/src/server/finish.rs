//! Replies to commands whose operation has ended.

use super::action::*;
use super::failure::{Attempt, wrong_outcome};
use super::pending::{DataPending, PassiveKind, Pending, addresses, fact_line};
use super::session::Session;
use super::site::buffer_size;
use super::state::{Channel, State};
use crate::client::answer::LISTING;
use crate::command::DataAuthentication;
use crate::date::Stamp;
use crate::listing;
use crate::path::VirtualPath;
use crate::reply::Reply;

impl Session {
    /// Returns the reply to the command whose operation has ended, and whether the connection is to
    /// be closed after it.
    pub(super) fn finish(&mut self, pending: Pending, result: Result<Outcome, Failure>) -> (Reply, bool) {
        let reply = match (pending, result) {
            (Pending::Login, result) => return self.logged_in(result),
            (Pending::SecurityToken, result) => self.token_taken(result),
            (Pending::Data(data), result) => self.data_ended(*data, result),
            (Pending::CloseChannel(reply), _) => reply,
            (Pending::SecurityBegin(Mechanism::Tls), Ok(Outcome::Done)) if self.has_input() => {
                // A man in the middle may have injected these bytes, so that they are taken for the
                // client's (RFC 4217 section 15.3).
                let text = "Commands came in clear behind AUTH. Closing control connection.";
                return (Reply::new(421, text), true);
            }
            (Pending::SecurityBegin(Mechanism::Tls), Ok(Outcome::Done)) => {
                let faults = std::mem::take(&mut self.state.faults);
                self.state = State { faults, protects: true, ..State::within_tls() };
                Reply::new(234, "AUTH TLS successful.")
            }
            (Pending::SecurityBegin(Mechanism::Gssapi), Ok(Outcome::Done)) => {
                Reply::new(334, "Using authentication type; ADAT must follow.")
            }
            (Pending::Listen(kind), Ok(Outcome::Addresses(list))) => {
                match addresses(kind, 200, &list, self.config.epsv_address) {
                    Some(reply) => {
                        self.state.channel = Channel::Made;
                        reply
                    }
                    None => Reply::new(425, "Can't open passive connection."),
                }
            }
            (Pending::Listen(PassiveKind::OnePort), Ok(Outcome::OnePort(one_port))) => {
                self.state.channel = Channel::Made;
                Reply::new(250, one_port.to_string())
            }
            (Pending::Connect, Ok(Outcome::Done)) => {
                self.state.channel = Channel::Made;
                Reply::new(200, "PORT Command successful.")
            }
            (Pending::AdviseBuffers(ceiling), Ok(Outcome::Advice(text))) => {
                let options = &mut self.state.options;
                (options.send_buffer, options.receive_buffer) = (None, None);
                options.automatic_buffers = buffer_size(ceiling);
                Reply::new(200, format!("ABUF: {text}"))
            }
            (Pending::ChangeDirectory(path), Ok(Outcome::Done)) => {
                self.state.directory = path;
                Reply::new(250, "CWD command successful.")
            }
            (Pending::Facts(given), Ok(Outcome::Entry { mut entry, .. })) => {
                let first = [b"status of ", &given[..]].concat();
                // The name is the path as the client sent it.
                entry.name = given;
                Reply::indented(250, first, [fact_line(&entry, &self.state)], "End.")
            }
            (Pending::Status { path, given }, Ok(Outcome::Entry { mut entry, now })) => {
                entry.name = path.file_name().unwrap_or("/".into()).into();
                let mut line = Vec::new();
                listing::print_long(&entry, now, &mut line);
                Reply::indented(213, [b"status of ", &given[..]].concat(), [line], "End.")
            }
            (Pending::Modified, Ok(Outcome::Entry { entry, .. })) => match entry.modified {
                Some(modified) => Reply::new(213, Stamp(modified).to_string()),
                None => Reply::new(550, "No modification time available."),
            },
            (Pending::SetModified { modified, given }, Ok(Outcome::Done)) => {
                // draft-somers-ftp-mfxx section 3.1. GCT replies 250, and accepts any 2xx.
                let set = format!("Modify={}; ", Stamp(modified));
                Reply::new(213, [set.as_bytes(), &given[..]].concat())
            }
            (Pending::RenameFrom(path), Ok(Outcome::Entry { .. } | Outcome::Done)) => {
                self.state.rename_from = Some(path);
                Reply::new(350, "OK. Send RNTO with destination name.")
            }
            (Pending::SymlinkFrom(path), Ok(Outcome::Entry { .. } | Outcome::Done)) => {
                self.state.symlink_from = Some(path);
                Reply::new(350, "OK. Send SITE SYMLINKTO with symlink name.")
            }
            (Pending::Contents(mut contents), Ok(Outcome::Done)) => contents.reply(250),
            (Pending::Size, Ok(Outcome::Size(size))) => Reply::new(213, size.to_string()),
            (Pending::MakeDirectory(path), Ok(Outcome::Done)) => {
                Reply::new(257, [b"Directory \"", path.as_bytes(), b"\" created successfully."].concat())
            }
            (Pending::Checksum(_), Ok(Outcome::Checksum(value))) => Reply::new(213, value),
            (Pending::Ranges(given), Ok(Outcome::Ranges(ranges))) => {
                let first = [b"Ranges of ", &given[..]].concat();
                Reply::indented(250, first, [ranges.to_string()], "End.")
            }
            (Pending::Usage, Ok(Outcome::Usage(usage))) => Reply::new(250, usage.to_string()),
            (Pending::Space { list }, Ok(Outcome::Reserved(all))) => reservations(&all, list),
            (Pending::Slots { list }, Ok(Outcome::ReservedSlots(all))) => reservations(&all, list),
            (Pending::Upload(request), result) => self.upload_answered(*request, result),
            (Pending::Profile, Ok(Outcome::Profile(answer))) => answer.to_reply(),
            (Pending::SciTag(command), Ok(Outcome::SciTag(tag))) => command.reply(tag),
            (Pending::ChangeRoot, Ok(Outcome::Done)) => {
                self.root_changed();
                done()
            }
            (Pending::Restrict, Ok(Outcome::Done)) => {
                self.state.restricted = true;
                self.state.uploads.clear();
                done()
            }
            (Pending::NetStack(stack), Ok(Outcome::Done)) => {
                self.state.net_stack = Some(stack);
                done()
            }
            (
                Pending::Slots { .. }
                | Pending::Space { .. }
                | Pending::DataCredential
                | Pending::DeleteTree
                | Pending::Truncate
                | Pending::Simple,
                Ok(Outcome::Done),
            ) => done(),
            (pending, result) => failed(pending.attempt(), result),
        };
        (reply, false)
    }

    fn root_changed(&mut self) {
        self.state.rooted = true;
        self.state.directory = VirtualPath::root();
        self.state.home = VirtualPath::root();
        if self.state.channel == Channel::Made {
            self.state.channel.close("SITE CHROOT");
        }
        // In the new root these paths would refer to other files.
        self.state.rename_from = None;
        self.state.symlink_from = None;
        self.state.uploads.clear();
    }

    fn token_taken(&mut self, result: Result<Outcome, Failure>) -> Reply {
        match result {
            Ok(Outcome::SecurityToken(token)) => Reply::new(335, format!("ADAT={token}")),
            Ok(outcome @ (Outcome::Secured(_) | Outcome::Wrapped(_))) => {
                self.state.secured = true;
                self.state.protects = true;
                let token = match outcome {
                    Outcome::Wrapped(token) => {
                        self.state.wraps = true;
                        token
                    }
                    Outcome::Secured(token) => {
                        // GridFTP clients assume this setting after the authentication (GFD.20
                        // section 3.1).
                        self.state.authentication = DataAuthentication::SelfAuthentication;
                        token
                    }
                    _ => None,
                };
                match token {
                    Some(token) => Reply::new(235, format!("ADAT={token}")),
                    None => Reply::new(235, "GSSAPI Authentication successful."),
                }
            }
            other => failed(Attempt::Other, other),
        }
    }

    fn logged_in(&mut self, result: Result<Outcome, Failure>) -> (Reply, bool) {
        match result {
            Ok(Outcome::LoggedIn { local_user, home, message }) => {
                let first = format!("User {local_user} logged in.");
                let reply = match message {
                    None => Reply::new(230, first),
                    Some(message) => {
                        let lines = [first.as_str()].into_iter().chain(message.lines()).chain(["End."]);
                        Reply::coded(230, lines)
                    }
                };
                self.state.directory = home.clone();
                self.state.home = home;
                self.state.local_user = Some(local_user);
                (reply, false)
            }
            other => {
                let reply = failed(Attempt::Login, other);
                let goodbye = reply.code() == 421;
                (reply, goodbye)
            }
        }
    }

    fn data_ended(&mut self, data: DataPending, result: Result<Outcome, Failure>) -> Reply {
        // In stream mode the end of the connection is the end of the data. After an upload that was
        // aborted, or whose connection did not come in time, a connection may still arrive; its
        // data must not be taken for the next file.
        let late = data.receives && matches!(result, Err(Failure::Aborted | Failure::DataConnection(_)));
        if ((data.begun || late) && data.mode == Mode::Stream) || data.delayed.is_some() {
            self.state.channel = Channel::None;
        }
        match result {
            Ok(Outcome::Transferred { checksum: Some((algorithm, value)) })
                if data.checksum == Some(algorithm) =>
            {
                let lines = [format!("Checksum: {algorithm} {value}"), "Transfer Complete.".to_owned()];
                Reply::coded(226, lines)
            }
            // The number of bytes shows a client that the listing is complete: a connection that
            // was closed by another host looks like the end of the listing.
            Ok(Outcome::Listed { bytes }) => {
                Reply::coded(226, [format!("{LISTING}{bytes} bytes"), "Transfer Complete.".to_owned()])
            }
            Ok(Outcome::Transferred { .. } | Outcome::Done) => Reply::new(226, "Transfer Complete."),
            other => failed(Attempt::Transfer(&data.path), other),
        }
    }
}

pub(super) fn failed(attempt: Attempt<'_>, result: Result<Outcome, Failure>) -> Reply {
    match result {
        Err(failure) => attempt.reply(failure),
        Ok(_) => wrong_outcome(),
    }
}

pub(super) fn done() -> Reply {
    Reply::new(250, "OK.")
}

/// The reply with reservations, as a list if the client has asked for one.
fn reservations<T: ToString>(all: &[T], list: bool) -> Reply {
    let texts = all.iter().map(ToString::to_string);
    match list {
        true => Reply::indented(250, "Reservations", texts, "End."),
        false => Reply::new(250, texts.collect::<Vec<_>>().join(", ")),
    }
}
