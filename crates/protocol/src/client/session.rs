//! The state machine of a client's control connection, without I/O.
//!
//! [`Session`] owns the queue of pending commands. It assigns each reply to its command, and
//! reports replies and markers as [`Event`]s. Servers answer in order; the exceptions are ABOR,
//! whose replies may be missing or early, and SITE STREAMS, which is answered by a preliminary
//! reply at any time. An input that is not FTP, or that exceeds the [`Limits`], ends the session
//! with a [`SessionError`].

use std::collections::VecDeque;

use bstr::BString;
use zeroize::Zeroizing;

use crate::command::{Command, UnprintableCommand};
use crate::line::{Ending, LineDecoder, LineTooLong};
use crate::marker::Marker;
use crate::profiling::ProfileCommand;
use crate::queue::QueuePlace;
use crate::reply::{ParserLimits, Reply, ReplyError, ReplyParser};
use crate::site::SiteCommand;
use crate::streams::{MAX_STREAMS, StreamsAnswer};

/// Identifies a submitted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Limits of the memory that a peer can make this side use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest line, in bytes.
    pub line: usize,
    pub reply: ParserLimits,
    /// Most replies in a row for which no command waits.
    pub unsolicited: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line: 1 << 20, reply: ParserLimits::default(), unsolicited: 100 }
    }
}

/// An event on the control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first reply: 220, or the reason for which the server refuses the connection.
    Greeting(Reply),
    /// A 1yz reply that is not a marker: 150, 125, 127, or a part of MLSC.
    Preliminary { ticket: Ticket, reply: Reply },
    /// The transfer waits for its turn at the server, and has this place. It has not begun.
    Queued { ticket: Ticket, place: QueuePlace },
    /// A marker: 111, 112, 113 or 115.
    Marker { ticket: Ticket, marker: Marker },
    /// The answer to [`Session::set_streams`]. The server may send it at any time between the
    /// replies to other commands.
    Streams(StreamsAnswer),
    /// The last reply to a command: any reply but 1yz.
    Finished { ticket: Ticket, reply: Reply },
    /// The server sent no reply to [`Session::abort`], or none to the transfer that was aborted.
    Unanswered { ticket: Ticket },
    /// A reply for which no command waits.
    Unsolicited(Reply),
    /// 421: the server closes the connection. This reply also finishes all pending commands.
    Closing(Reply),
}

/// A line of the dialogue, for display. It has no passwords or keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLine {
    /// Whether this side sent the line; otherwise it was received.
    pub sent: bool,
    pub line: BString,
}

/// The peer does not follow the protocol, so the connection can no longer be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    #[error("the control connection: {0}")]
    Line(#[from] LineTooLong),
    #[error("the control connection: {0}")]
    Reply(#[from] ReplyError),
    #[error("more than {limit} replies in a row that no command waits for, the last: {last}")]
    Unsolicited { limit: usize, last: Reply },
    #[error("the control connection ended while {outstanding} commands waited for a reply")]
    Disconnected { outstanding: usize },
}

/// A command that cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    #[error(transparent)]
    Unprintable(#[from] UnprintableCommand),
    #[error("the server closes the control connection: {0}")]
    Closing(Reply),
    /// SITE STREAMS has no final reply to wait for. Use [`Session::set_streams`].
    #[error("SITE STREAMS is no command of the pipeline")]
    OutOfBand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Command,
    /// Moves data: the replies to an ABOR may replace its own final reply.
    Transfer {
        begun: bool,
    },
    Abort,
    /// The NOOP after an ABOR. Its reply (200) shows that no more replies come for the commands
    /// before it.
    Sync,
}

#[derive(Debug)]
struct Outstanding {
    ticket: Ticket,
    role: Role,
}

/// A control connection as its client sees it, without I/O.
///
/// Commands may be submitted before earlier commands are answered, because servers answer in order
/// (RFC 959 section 5.4). The server decides how many commands may be pending; GCT allows 1000.
#[derive(Debug)]
pub struct Session {
    limits: Limits,
    lines: LineDecoder,
    replies: ReplyParser,
    outstanding: VecDeque<Outstanding>,
    events: VecDeque<Event>,
    transmit: Vec<u8>,
    trace: Option<VecDeque<TraceLine>>,
    next_ticket: u64,
    greeted: bool,
    closing: Option<Reply>,
    unsolicited: usize,
    /// Number of SITE STREAMS commands without an answer.
    streams_asked: usize,
}

impl Session {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            lines: LineDecoder::new(Ending::Lf, limits.line),
            replies: ReplyParser::new(limits.reply),
            outstanding: VecDeque::new(),
            events: VecDeque::new(),
            transmit: Vec::new(),
            trace: None,
            next_ticket: 0,
            greeted: false,
            closing: None,
            unsolicited: 0,
            streams_asked: 0,
        }
    }

    /// Keeps every further line for [`Self::poll_trace`].
    pub fn enable_trace(&mut self) {
        self.trace.get_or_insert_default();
    }

    pub fn poll_trace(&mut self) -> Option<TraceLine> {
        self.trace.as_mut()?.pop_front()
    }

    /// Takes bytes that were received.
    ///
    /// # Errors
    /// A line is longer than its limit; or the errors of [`Self::line`].
    pub fn input(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.lines.push(bytes);
        while let Some(line) = self.lines.next_line()?.map(<[u8]>::to_vec) {
            self.line(&line)?;
        }
        Ok(())
    }

    /// Takes one line without its end. This serves control connections whose lines arrive wrapped
    /// (RFC 2228).
    ///
    /// # Errors
    /// Too many lines in a row belong to no reply, a reply exceeds its limits, or too many replies
    /// come for which no command waits.
    pub fn line(&mut self, line: &[u8]) -> Result<(), SessionError> {
        if let Some(trace) = &mut self.trace {
            trace.push_back(TraceLine { sent: false, line: line.into() });
        }
        if let Some(reply) = self.replies.line(line)? {
            return self.reply(reply);
        }
        if let (Some(place), Some(front)) = (QueuePlace::from_line(line), self.outstanding.front()) {
            self.events.push_back(Event::Queued { ticket: front.ticket, place });
        }
        Ok(())
    }

    /// Whether no bytes, no partial reply, no events and no pending commands are left. Anything
    /// that is left when a security context begins was received in clear, so another host may have
    /// injected it.
    pub fn is_at_rest(&self) -> bool {
        self.lines.buffered() == 0
            && !self.replies.is_within_reply()
            && self.events.is_empty()
            && self.outstanding.is_empty()
    }

    /// The server closed the connection. This is no error if no reply was due, or if the server had
    /// sent 421.
    ///
    /// # Errors
    /// A command waits for its reply, or the greeting has not come.
    pub fn disconnected(&self) -> Result<(), SessionError> {
        match self.outstanding.len() {
            0 if self.greeted => Ok(()),
            outstanding => Err(SessionError::Disconnected { outstanding }),
        }
    }

    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Queues a command. Its replies come as events with the returned ticket.
    ///
    /// # Errors
    /// An argument has a byte that cannot be sent, the server has sent 421, or the command is SITE
    /// STREAMS.
    pub fn submit(&mut self, command: &Command) -> Result<Ticket, SubmitError> {
        let role = match command {
            Command::Site(SiteCommand::Streams(_)) => return Err(SubmitError::OutOfBand),
            Command::Abor => Role::Abort,
            Command::Appe(_)
            | Command::Cksm { .. }
            | Command::Eret { .. }
            | Command::Esto { .. }
            | Command::List(_)
            | Command::Mlsc(_)
            | Command::Mlsd(_)
            | Command::Mlsr(_)
            | Command::Nlst(_)
            | Command::Retr(_)
            | Command::Site(SiteCommand::Profile(ProfileCommand::Fetch(_)))
            | Command::Stor(_) => Role::Transfer { begun: false },
            _ => Role::Command,
        };
        self.enqueue(command, role)
    }

    /// Aborts the transfer that the server is executing. Servers answer with one reply or two, or
    /// let the transfer end. The session sends a NOOP after the ABOR; when that is answered, the
    /// ticket is finished or reported as unanswered.
    ///
    /// # Errors
    /// The server has sent 421.
    pub fn abort(&mut self) -> Result<Ticket, SubmitError> {
        let ticket = self.enqueue(&Command::Abor, Role::Abort)?;
        self.enqueue(&Command::Noop, Role::Sync)?;
        Ok(ticket)
    }

    /// Requests `n` streams (from 1 to [`MAX_STREAMS`]), also for the transfer in progress. The
    /// server has to offer this ([`Features::streams`](crate::feature::Features::streams)). The
    /// request does not wait for other commands, nor do they wait for it: the answer comes as
    /// [`Event::Streams`].
    ///
    /// # Errors
    /// The server has sent 421.
    pub fn set_streams(&mut self, n: u32) -> Result<(), SubmitError> {
        self.write(&Command::Site(SiteCommand::Streams(n.clamp(1, MAX_STREAMS))))?;
        self.streams_asked += 1;
        Ok(())
    }

    /// Returns all bytes that are to be sent.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        (!self.transmit.is_empty()).then(|| std::mem::take(&mut self.transmit))
    }

    /// Number of commands that wait for their last reply.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The 421 with which the server closes the connection.
    pub fn closing(&self) -> Option<&Reply> {
        self.closing.as_ref()
    }

    fn enqueue(&mut self, command: &Command, role: Role) -> Result<Ticket, SubmitError> {
        self.write(command)?;
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.outstanding.push_back(Outstanding { ticket, role });
        Ok(ticket)
    }

    fn write(&mut self, command: &Command) -> Result<(), SubmitError> {
        if let Some(reply) = &self.closing {
            return Err(SubmitError::Closing(reply.clone()));
        }
        let line = Zeroizing::new(command.to_line()?);
        if let Some(trace) = &mut self.trace {
            let shown = match command {
                Command::Pass(_) | Command::Adat(_) => format!("{} ***", command.verb()).into(),
                Command::Dcsc { blob: Some(_), .. } => "DCSC P ***".into(),
                Command::Site(SiteCommand::HopLogin(login)) => {
                    format!("SITE HOPLOGIN {} ***", login.print_public()).into()
                }
                Command::Site(SiteCommand::DataKey(Some(key))) => {
                    format!("SITE DATAKEY {:016x} ***", key.number()).into()
                }
                _ => line.as_slice().into(),
            };
            trace.push_back(TraceLine { sent: true, line: shown });
        }
        self.transmit.extend_from_slice(&line);
        self.transmit.extend_from_slice(b"\r\n");
        Ok(())
    }

    fn reply(&mut self, reply: Reply) -> Result<(), SessionError> {
        if reply.code() == 421 {
            self.close(reply);
        } else if reply.is_preliminary() {
            self.preliminary(reply)?;
        } else if !self.greeted {
            self.greeted = true;
            self.events.push_back(Event::Greeting(reply));
        } else {
            self.last(reply)?;
        }
        Ok(())
    }

    fn close(&mut self, reply: Reply) {
        if !self.greeted {
            self.greeted = true;
            self.events.push_back(Event::Greeting(reply.clone()));
        }
        for waiting in self.outstanding.drain(..) {
            if waiting.role != Role::Sync {
                self.events.push_back(Event::Finished { ticket: waiting.ticket, reply: reply.clone() });
            }
        }
        if self.closing.is_none() {
            self.closing = Some(reply.clone());
            self.events.push_back(Event::Closing(reply));
        }
    }

    fn preliminary(&mut self, reply: Reply) -> Result<(), SessionError> {
        // This reply answers no pending command, wherever it comes in the pipeline.
        if self.streams_asked > 0
            && let Some(answer) = StreamsAnswer::from_reply(&reply)
        {
            self.streams_asked -= 1;
            self.events.push_back(Event::Streams(answer));
            return Ok(());
        }
        let Some(front) = self.outstanding.front_mut().filter(|_| self.greeted) else {
            // This includes a 120 before the greeting: the client can only wait.
            return self.unsolicited(reply);
        };
        if let Role::Transfer { begun } = &mut front.role {
            *begun = true;
        }
        let ticket = front.ticket;
        self.events.push_back(match Marker::from_reply(&reply) {
            Some(Ok(marker)) => Event::Marker { ticket, marker },
            _ => Event::Preliminary { ticket, reply },
        });
        Ok(())
    }

    fn last(&mut self, reply: Reply) -> Result<(), SessionError> {
        self.skip_unanswered(&reply);
        let Some(waiting) = self.outstanding.remove(self.addressee(&reply)) else {
            return self.unsolicited(reply);
        };
        self.unsolicited = 0;
        if waiting.role != Role::Sync {
            self.events.push_back(Event::Finished { ticket: waiting.ticket, reply });
        }
        Ok(())
    }

    /// The index of the pending command that a reply answers. This is the first command, except
    /// that 225 and 226 answer an ABOR that overtook commands which had not begun (RFC 959 section
    /// 5.4 has no other use for these codes).
    fn addressee(&self, reply: &Reply) -> usize {
        let answers_abort = matches!(reply.code(), 225 | 226);
        let abort = self.outstanding.iter().position(|o| o.role == Role::Abort);
        match (self.outstanding.front(), abort) {
            (Some(Outstanding { role: Role::Transfer { begun: true }, .. }), _) => 0,
            (Some(_), Some(at)) if answers_abort => at,
            _ => 0,
        }
    }

    /// If an aborted transfer or its ABOR is to be answered next, a 200 can only be the reply to
    /// the NOOP after them, so these commands are reported as unanswered.
    fn skip_unanswered(&mut self, reply: &Reply) {
        if reply.code() != 200 {
            return;
        }
        let due = |o: &&Outstanding| matches!(o.role, Role::Transfer { .. } | Role::Abort);
        let skipped = self.outstanding.iter().take_while(due).count();
        if self.outstanding.get(skipped).is_some_and(|o| o.role == Role::Sync) {
            let tickets = self.outstanding.drain(..skipped).map(|o| o.ticket);
            self.events.extend(tickets.map(|ticket| Event::Unanswered { ticket }));
        }
    }

    fn unsolicited(&mut self, reply: Reply) -> Result<(), SessionError> {
        self.unsolicited += 1;
        if self.unsolicited > self.limits.unsolicited {
            return Err(SessionError::Unsolicited { limit: self.limits.unsolicited, last: reply });
        }
        self.events.push_back(Event::Unsolicited(reply));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
