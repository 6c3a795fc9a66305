use std::collections::VecDeque;

use bstr::BString;
use zeroize::Zeroizing;

use crate::command::{Command, UnprintableCommand};
use crate::line::{Ending, LineDecoder, LineTooLong};
use crate::marker::Marker;
use crate::profiling::ProfileCommand;
use crate::reply::{ParserLimits, Reply, ReplyError, ReplyParser};
use crate::site::SiteCommand;
use crate::streams::{MAX_STREAMS, StreamsAnswer};

/// Names a command that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// What a peer may make this side keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one line.
    pub line: usize,
    pub reply: ParserLimits,
    /// Replies in a row that no command waits for.
    pub unsolicited: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line: 1 << 20, reply: ParserLimits::default(), unsolicited: 100 }
    }
}

/// What came over the control connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first reply: 220, or why the server will not talk.
    Greeting(Reply),
    /// A 1yz reply that is no marker: 150, 125, 127, a part of MLSC.
    Preliminary { ticket: Ticket, reply: Reply },
    /// A 111, 112, 113 or 115.
    Marker { ticket: Ticket, marker: Marker },
    /// The answer to [`Session::set_streams`]. It comes whenever it likes, between the replies to other commands.
    Streams(StreamsAnswer),
    /// The last reply to a command, of any class but 1yz.
    Finished { ticket: Ticket, reply: Reply },
    /// The answer to [`Session::abort`], or the transfer that it broke off, was left out by the server.
    Unanswered { ticket: Ticket },
    /// A reply for which no command waits.
    Unsolicited(Reply),
    /// 421: the server closes the connection. Commands that wait for a reply are finished with it.
    Closing(Reply),
}

/// A line of the dialogue, for people. Passwords are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceLine {
    /// By us; otherwise received.
    pub sent: bool,
    pub line: BString,
}

/// The peer does not speak FTP; the connection is of no use any more.
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
    /// SITE STREAMS has no last reply to wait for: [`Session::set_streams`] is for it.
    #[error("SITE STREAMS is no command of the pipeline")]
    OutOfBand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Command,
    /// Moves data, so that ABOR may end it in odd ways.
    Transfer {
        begun: bool,
    },
    Abort,
    /// The NOOP behind an ABOR: its 200 says that nothing more comes for the commands before it.
    Sync,
}

#[derive(Debug)]
struct Outstanding {
    ticket: Ticket,
    role: Role,
}

/// A control connection as its client sees it, without I/O.
///
/// Commands may be submitted before earlier ones are answered; servers answer in order (RFC 959 section 5.4; how many may
/// be outstanding is up to the server, GCT allows 1000).
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
    /// SITE STREAMS that were not answered yet.
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

    /// Keeps every line for [`Self::poll_trace`] from now on.
    pub fn enable_trace(&mut self) {
        self.trace.get_or_insert_default();
    }

    pub fn poll_trace(&mut self) -> Option<TraceLine> {
        self.trace.as_mut()?.pop_front()
    }

    /// Bytes came.
    ///
    /// # Errors
    /// A line is longer than its limit; or as [`Self::line`].
    pub fn input(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        self.lines.push(bytes);
        while let Some(line) = self.lines.next_line()?.map(<[u8]>::to_vec) {
            self.line(&line)?;
        }
        Ok(())
    }

    /// One line came, without its end: for control connections where lines arrive wrapped (RFC 2228).
    ///
    /// # Errors
    /// Too many lines in a row belong to no reply, a reply passes its limits, or too many come that no command waits
    /// for.
    pub fn line(&mut self, line: &[u8]) -> Result<(), SessionError> {
        if let Some(trace) = &mut self.trace {
            trace.push_back(TraceLine { sent: false, line: line.into() });
        }
        match self.replies.line(line)? {
            Some(reply) => self.reply(reply),
            None => Ok(()),
        }
    }

    /// True where nothing of what came is left over or half a reply. What is not so when a security context begins came in
    /// clear, perhaps from somebody else.
    pub fn is_at_rest(&self) -> bool {
        self.lines.buffered() == 0
            && !self.replies.is_within_reply()
            && self.events.is_empty()
            && self.outstanding.is_empty()
    }

    /// The server closed the connection. An error where something was expected of it and it had not said 421.
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

    /// Queues a command. Its replies come as events with this ticket.
    ///
    /// # Errors
    /// An argument has a byte that cannot travel, the server has said 421, or it is SITE STREAMS.
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

    /// Breaks off what the server is doing. Servers answer with one reply or two, or let the transfer end; the ticket
    /// is finished (or unanswered) once the session is in step again. A NOOP is sent along to know when that is.
    ///
    /// # Errors
    /// The server has said 421.
    pub fn abort(&mut self) -> Result<Ticket, SubmitError> {
        let ticket = self.enqueue(&Command::Abor, Role::Abort)?;
        self.enqueue(&Command::Noop, Role::Sync)?;
        Ok(ticket)
    }

    /// Asks for so many streams (from 1 to [`MAX_STREAMS`]), also in the transfer under way, of a
    /// server that offers it ([`Features::streams`](crate::feature::Features::streams)). No other command has to wait for
    /// it, nor it for them: the answer comes as [`Event::Streams`].
    ///
    /// # Errors
    /// The server has said 421.
    pub fn set_streams(&mut self, n: u32) -> Result<(), SubmitError> {
        self.write(&Command::Site(SiteCommand::Streams(n.clamp(1, MAX_STREAMS))))?;
        self.streams_asked += 1;
        Ok(())
    }

    /// Bytes to send, all that there are.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        (!self.transmit.is_empty()).then(|| std::mem::take(&mut self.transmit))
    }

    /// Commands that wait for their last reply.
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The 421 with which the server closes.
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
        // It answers nothing that waits in the pipeline, wherever it comes.
        if self.streams_asked > 0
            && let Some(answer) = StreamsAnswer::from_reply(&reply)
        {
            self.streams_asked -= 1;
            self.events.push_back(Event::Streams(answer));
            return Ok(());
        }
        let Some(front) = self.outstanding.front_mut().filter(|_| self.greeted) else {
            // 120 before the greeting, too: there is nothing to do about it but wait.
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

    /// Which of the outstanding commands a reply answers: the first, except that 225 and 226 are the answer to an ABOR
    /// that overtook commands which had not begun (RFC 959 section 5.4 has no other use for them).
    fn addressee(&self, reply: &Reply) -> usize {
        let answers_abort = matches!(reply.code(), 225 | 226);
        let abort = self.outstanding.iter().position(|o| o.role == Role::Abort);
        match (self.outstanding.front(), abort) {
            (Some(Outstanding { role: Role::Transfer { begun: true }, .. }), _) => 0,
            (Some(_), Some(at)) if answers_abort => at,
            _ => 0,
        }
    }

    /// A 200 where an aborted transfer or its ABOR is due can only be the answer to the NOOP behind them.
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
