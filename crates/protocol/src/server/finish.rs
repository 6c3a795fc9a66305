//! The reply to a command whose operation has ended.

use super::action::*;
use super::failure::{Attempt, wrong_outcome};
use super::pending::{DataPending, Pending, addresses, fact_line};
use super::session::Session;
use super::site::buffer_size;
use super::state::{Channel, State};
use crate::command::DataAuthentication;
use crate::date::Stamp;
use crate::listing;
use crate::path::VirtualPath;
use crate::reply::Reply;

impl Session {
    /// The reply to the command whose operation has ended, and whether the connection ends with it.
    pub(super) fn finish(&mut self, pending: Pending, result: Result<Outcome, Failure>) -> (Reply, bool) {
        let ok = || Reply::new(250, "OK.");
        let reply = match pending {
            Pending::SecurityBegin(Mechanism::Tls) => match result {
                Ok(Outcome::Done) if self.has_input() => {
                    // Somebody on the way may have put it there, for us to take it for the client's (RFC 4217 section 15.3).
                    let text = "Commands came in clear behind AUTH. Closing control connection.";
                    return (Reply::new(421, text), true);
                }
                Ok(Outcome::Done) => {
                    let faults = std::mem::take(&mut self.state.faults);
                    self.state = State { faults, protects: true, ..State::within_tls() };
                    Reply::new(234, "AUTH TLS successful.")
                }
                other => failed(Attempt::Other, other),
            },
            Pending::SecurityBegin(Mechanism::Gssapi) => match result {
                Ok(Outcome::Done) => Reply::new(334, "Using authentication type; ADAT must follow."),
                other => failed(Attempt::Other, other),
            },
            Pending::SecurityToken => self.token_taken(result),
            Pending::DataCredential => match result {
                Ok(Outcome::Done) => Reply::new(250, "OK."),
                other => failed(Attempt::Other, other),
            },
            Pending::Login => return self.logged_in(result),
            Pending::Listen(kind) => match result {
                Ok(Outcome::Addresses(list)) => match addresses(kind, 200, &list, self.config.epsv_address) {
                    Some(reply) => {
                        self.state.channel = Channel::Made;
                        reply
                    }
                    None => Reply::new(425, "Can't open passive connection."),
                },
                other => failed(Attempt::Other, other),
            },
            Pending::Connect => match result {
                Ok(Outcome::Done) => {
                    self.state.channel = Channel::Made;
                    Reply::new(200, "PORT Command successful.")
                }
                other => failed(Attempt::Connect, other),
            },
            Pending::AdviseBuffers(ceiling) => match result {
                Ok(Outcome::Advice(text)) => {
                    let options = &mut self.state.options;
                    (options.send_buffer, options.receive_buffer) = (None, None);
                    options.automatic_buffers = buffer_size(ceiling);
                    Reply::new(200, format!("ABUF: {text}"))
                }
                other => failed(Attempt::Other, other),
            },
            Pending::CloseChannel(reply) => reply,
            Pending::Data(data) => self.data_ended(*data, result),
            Pending::ChangeDirectory(path) => match result {
                Ok(Outcome::Done) => {
                    self.state.directory = path;
                    Reply::new(250, "CWD command successful.")
                }
                other => failed(Attempt::ChangeDirectory(&path), other),
            },
            Pending::Facts(given) => match result {
                Ok(Outcome::Entry(mut entry)) => {
                    let first = [b"status of ", &given[..]].concat();
                    // The name is the path as it was asked for.
                    entry.name = given;
                    Reply::indented(250, first, [fact_line(&entry, &self.state)], "End.")
                }
                other => failed(Attempt::Other, other),
            },
            Pending::Status { path, given } => match result {
                Ok(Outcome::Entry(mut entry)) => {
                    entry.name = path.file_name().unwrap_or("/".into()).into();
                    let mut line = Vec::new();
                    listing::print_long(&entry, &mut line);
                    Reply::indented(213, [b"status of ", &given[..]].concat(), [line], "End.")
                }
                other => failed(Attempt::Other, other),
            },
            Pending::Modified => match result {
                Ok(Outcome::Entry(entry)) => match entry.modified {
                    Some(modified) => Reply::new(213, Stamp(modified).to_string()),
                    None => Reply::new(550, "No modification time available."),
                },
                other => failed(Attempt::Other, other),
            },
            Pending::RenameFrom(path) => match result {
                Ok(Outcome::Entry(_) | Outcome::Done) => {
                    self.state.rename_from = Some(path);
                    Reply::new(350, "OK. Send RNTO with destination name.")
                }
                other => failed(Attempt::Source, other),
            },
            Pending::SymlinkFrom(path) => match result {
                Ok(Outcome::Entry(_) | Outcome::Done) => {
                    self.state.symlink_from = Some(path);
                    Reply::new(350, "OK. Send SITE SYMLINKTO with symlink name.")
                }
                other => failed(Attempt::Source, other),
            },
            Pending::Contents(mut contents) => match result {
                Ok(Outcome::Done) => contents.reply(250),
                other => failed(Attempt::Other, other),
            },
            Pending::Size => match result {
                Ok(Outcome::Size(size)) => Reply::new(213, size.to_string()),
                other => failed(Attempt::Other, other),
            },
            Pending::MakeDirectory(path) => match result {
                Ok(Outcome::Done) => {
                    Reply::new(257, [b"Directory \"", path.as_bytes(), b"\" created successfully."].concat())
                }
                other => failed(Attempt::Other, other),
            },
            Pending::Checksum(path) => match result {
                Ok(Outcome::Checksum(value)) => Reply::new(213, value),
                other => failed(Attempt::Checksum(&path), other),
            },
            Pending::Ranges(given) => match result {
                Ok(Outcome::Ranges(ranges)) => {
                    let first = [b"Ranges of ", &given[..]].concat();
                    Reply::indented(250, first, [ranges.to_string()], "End.")
                }
                other => failed(Attempt::Other, other),
            },
            Pending::Profile => match result {
                Ok(Outcome::Profile(answer)) => answer.to_reply(),
                other => failed(Attempt::Other, other),
            },
            Pending::ChangeRoot => match result {
                Ok(Outcome::Done) => {
                    self.state.rooted = true;
                    self.state.directory = VirtualPath::root();
                    self.state.home = VirtualPath::root();
                    if self.state.channel == Channel::Made {
                        self.state.channel = Channel::None;
                    }
                    // In the new root they would be other files.
                    self.state.rename_from = None;
                    self.state.symlink_from = None;
                    ok()
                }
                other => failed(Attempt::Other, other),
            },
            Pending::Restrict => match result {
                Ok(Outcome::Done) => {
                    self.state.restricted = true;
                    ok()
                }
                other => failed(Attempt::Other, other),
            },
            Pending::DeleteTree => done(Attempt::DeleteTree, result),
            Pending::Truncate => done(Attempt::Truncate, result),
            Pending::Simple => done(Attempt::Other, result),
        };
        (reply, false)
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
                        // What GridFTP clients take for granted once they are authenticated (GFD.20 section 3.1).
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
        // In stream mode the end of the connection is the end of the data. That of an upload that was broken off, or waited
        // for it in vain, may still come, and must not be taken for the next file.
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
            Ok(Outcome::Transferred { .. } | Outcome::Done) => Reply::new(226, "Transfer Complete."),
            other => failed(Attempt::Transfer(&data.path), other),
        }
    }
}

fn failed(attempt: Attempt<'_>, result: Result<Outcome, Failure>) -> Reply {
    match result {
        Err(failure) => attempt.reply(failure),
        Ok(_) => wrong_outcome(),
    }
}

fn done(attempt: Attempt<'_>, result: Result<Outcome, Failure>) -> Reply {
    match result {
        Ok(Outcome::Done) => Reply::new(250, "OK."),
        other => failed(attempt, other),
    }
}
