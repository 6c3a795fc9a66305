//! The server session: a queue of commands that are executed one after another.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use zeroize::Zeroize;

use super::action::{Action, Event, Failure, Operation, Outcome, RefusedLogin};
use super::config::SessionConfig;
use super::dispatch::is_upload;
use super::pending::Pending;
use super::state::State;
use crate::command::parse::split_verb;
use crate::line::{Ending, LineDecoder, strip_telnet};
use crate::queue::QueuePlace;
use crate::reply::Reply;
use crate::streams::{self, MAX_STREAMS, StreamsAnswer};

/// One control connection.
///
/// Commands are executed and answered in the order in which they were received. While an operation
/// is running, only ABOR and SITE STREAMS are handled at once. ABOR has these effects:
///
/// - The running operation, if it may take long, is aborted and answered with 426.
/// - Transfers, listings and checksums that were received before the ABOR and have not begun are
///   answered with 426 and never begin. Other commands that were received before it are executed.
/// - The ABOR itself is answered with 226 when its turn in the queue comes.
///
/// SITE STREAMS is answered at once, with 114 only ([`crate::streams`]).
#[derive(Debug)]
pub struct Session {
    pub(super) config: Arc<SessionConfig>,
    pub(super) state: State,
    decoder: LineDecoder,
    queue: VecDeque<Queued>,
    /// Size of the queue in bytes.
    queued_bytes: usize,
    /// Number of ABOR commands in the queue.
    queued_aborts: usize,
    actions: VecDeque<Action>,
    running: Option<Box<Running>>,
    connection: Connection,
    /// An upload was answered without an operation of the host.
    declined: bool,
}

/// Size of an entry in the queue, without its line.
const QUEUED_SIZE: usize = mem::size_of::<Queued>();

#[derive(Debug)]
enum Queued {
    Line(Box<[u8]>),
    Abort,
    /// An empty line. As in GCT, it ends the session.
    Empty,
    TooLong,
}

#[derive(Debug)]
struct Running {
    pending: Pending,
    aborted: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Connection {
    Open,
    /// No more input is read, but the commands in the queue are executed.
    Deaf,
    Closed,
}

/// The state of the session, for idle timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waiting for the client to log in.
    PreLogin,
    /// Waiting for a command.
    Idle,
    /// Executing an operation: no idle timer applies.
    Busy,
    /// The session is over.
    Closed,
}

/// The result of a command.
pub(super) enum Step {
    Reply(Reply),
    Perform(Operation, Pending),
    /// Send the reply, then close the connection.
    Goodbye(Reply),
}

impl Session {
    pub fn new(config: Arc<SessionConfig>) -> Self {
        let decoder = LineDecoder::new(Ending::CrLf, config.max_line);
        Self {
            config,
            state: State::new(),
            decoder,
            queue: VecDeque::new(),
            queued_bytes: 0,
            queued_aborts: 0,
            actions: VecDeque::new(),
            running: None,
            connection: Connection::Open,
            declined: false,
        }
    }

    /// Starts the session on a control connection that uses TLS from the beginning (implicit TLS).
    pub fn begin_within_tls(&mut self) {
        self.state = State::within_tls();
    }

    /// Starts the session on a control connection that ssh carries, so that it is protected. There
    /// is no AUTH on it, and no DCAU.
    pub fn begin_within_ssh(&mut self) {
        self.state.within_ssh = true;
    }

    /// The greeting, which has to be sent first.
    pub fn banner(&self) -> Reply {
        self.config.banner_reply()
    }

    /// Takes bytes of the client, at most 256 KiB per call. After it, call [`Session::poll`] until
    /// it returns `None`.
    pub fn input(&mut self, bytes: &[u8]) {
        if self.connection != Connection::Open {
            return;
        }
        let mut decoder = mem::replace(&mut self.decoder, LineDecoder::new(Ending::CrLf, 0));
        decoder.push(bytes);
        loop {
            match decoder.next_line() {
                Ok(Some(line)) => self.line(line),
                Ok(None) => break,
                Err(_) => {
                    self.queue.push_back(Queued::TooLong);
                    self.connection = Connection::Deaf;
                }
            }
            if self.connection != Connection::Open {
                return;
            }
        }
        self.decoder = decoder;
    }

    /// Takes one line without its line end. This serves control connections whose lines arrive
    /// wrapped (RFC 2228).
    pub fn line(&mut self, line: &[u8]) {
        if self.connection != Connection::Open {
            return;
        }
        if line.is_empty() {
            self.queue.push_back(Queued::Empty);
            self.connection = Connection::Deaf;
            return;
        }
        let line = strip_telnet(line);
        if line.is_empty() {
            // The line consists of Telnet signals only.
            return;
        }
        let (verb, rest) = split_verb(line).unwrap_or_default();
        if let Some(args) = streams::recognize(&verb, rest)
            && self.config.knows(&verb)
            && self.config.knows_site("STREAMS")
        {
            self.set_streams(streams::number(args));
            return;
        }
        if verb == "ABOR" {
            self.queue.push_back(Queued::Abort);
            self.queued_aborts += 1;
            self.queued_bytes += QUEUED_SIZE;
            self.abort_running();
        } else {
            self.queue.push_back(Queued::Line(line.into()));
            self.queued_bytes += QUEUED_SIZE + line.len();
        }
        self.check_queue();
    }

    /// Returns the next action; `None` if there is nothing to do until more input, an event or a
    /// completion.
    pub fn poll(&mut self) -> Option<Action> {
        loop {
            if let Some(action) = self.actions.pop_front() {
                return Some(action);
            }
            if self.running.is_some() {
                return None;
            }
            if self.connection == Connection::Closed {
                return None;
            }
            let Some(next) = self.queue.pop_front() else {
                self.shrink();
                return None;
            };
            match next {
                Queued::Line(mut line) => {
                    self.queued_bytes -= QUEUED_SIZE + line.len();
                    let step = self.command(&line, self.queued_aborts > 0);
                    self.declined |= matches!(step, Step::Reply(_)) && is_upload(&line);
                    // The line may have contained a password or a key.
                    line.zeroize();
                    self.take(step);
                }
                Queued::Abort => {
                    self.queued_aborts -= 1;
                    self.queued_bytes -= QUEUED_SIZE;
                    self.send(Reply::new(226, "Abort successful"));
                }
                Queued::Empty => self.close(None),
                Queued::TooLong => {
                    let text = format!("Command line longer than {} bytes.", self.config.max_line);
                    self.close(Some(Reply::new(500, text)));
                }
            }
        }
    }

    /// SITE STREAMS; `n` is `None` if the argument is not a valid number.
    fn set_streams(&mut self, n: Option<u32>) {
        let most = self.config.max_streams.clamp(1, MAX_STREAMS);
        let receives = self.running.as_ref().is_some_and(|running| running.pending.receives());
        let answer = match n {
            _ if !self.state.is_logged_in() => StreamsAnswer::Refused("log in first.".to_owned()),
            None => StreamsAnswer::Refused(format!("expected a number from 1 to {most}.")),
            // The sender alone determines the number.
            Some(_) if receives => StreamsAnswer::Set(self.state.options.parallelism.min(most)),
            Some(n) => {
                let n = n.min(most);
                self.state.options.parallelism = n;
                self.actions.push_back(Action::Streams(n));
                StreamsAnswer::Set(n)
            }
        };
        self.send(answer.to_reply());
        // The answers do not wait in the queue. A client that does not read them must not fill the
        // memory.
        if self.actions.len() > self.config.max_queue {
            self.close(Some(Reply::new(500, "Pipeline queue full.")));
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Reply(reply) => self.send(reply),
            Step::Perform(operation, pending) => {
                self.running = Some(Box::new(Running { pending, aborted: false }));
                self.actions.push_back(Action::Perform(operation));
                self.check_queue();
            }
            Step::Goodbye(reply) => self.close(Some(reply)),
        }
    }

    /// Takes progress of the running operation. An event that does not apply to it is ignored.
    pub fn event(&mut self, event: Event) {
        if self.connection == Connection::Closed {
            return;
        }
        if let Some(running) = &mut self.running {
            let replies = running.pending.progress(event, &self.state, self.config.epsv_address);
            self.actions.extend(replies.into_iter().map(Action::Send));
        }
    }

    /// Takes the end of the running operation. It has no effect if no operation is running.
    pub fn completed(&mut self, result: Result<Outcome, Failure>) {
        let end = self.end_queue();
        self.actions.extend(end.map(Action::Send));
        let Some(running) = self.running.take() else {
            return;
        };
        if self.connection == Connection::Closed {
            return;
        }
        let (reply, goodbye) = self.finish(running.pending, result);
        if goodbye {
            self.close(Some(reply));
        } else {
            self.send(reply);
        }
        if mem::take(&mut self.state.protects) {
            self.actions.push_back(Action::Protect);
            // Bytes that follow the last token in clear may come from another host.
            if self.has_input() {
                self.close(None);
            }
        }
    }

    pub fn phase(&self) -> Phase {
        if self.running.is_some() {
            Phase::Busy
        } else if self.connection == Connection::Closed {
            Phase::Closed
        } else if self.state.is_logged_in() {
            Phase::Idle
        } else {
            Phase::PreLogin
        }
    }

    /// Whether the client is authenticated and the control connection protected.
    pub fn is_secured(&self) -> bool {
        self.state.secured
    }

    /// Whether no other host can read or write on the control connection, because it is secured, or
    /// because ssh carries it.
    pub fn is_private(&self) -> bool {
        self.state.is_private()
    }

    /// Whether the data channel that the host created can still be used. In stream mode one
    /// transfer uses it up.
    pub fn has_channel(&self) -> bool {
        self.state.channel == super::state::Channel::Made
    }

    /// Takes a log-in that was refused without an operation of the host since the last call. The
    /// host should call this when it sends a reply.
    pub fn refused_login(&mut self) -> Option<RefusedLogin> {
        self.state.refused.take()
    }

    /// Whether an upload was refused or aborted without an operation of the host since the last
    /// call, so that its data may be in transit. The host should call this when it sends a reply.
    pub fn declined_upload(&mut self) -> bool {
        mem::take(&mut self.declined)
    }

    /// The local user, after the log-in.
    pub fn user(&self) -> Option<&str> {
        self.state.local_user.as_deref()
    }

    /// Number of commands that wait for the running operation.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Whether the client aborted the running operation (ABOR), and the operation has not ended
    /// yet.
    pub fn is_aborted(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.aborted)
    }

    /// Whether the session is closed, so that no more commands are executed.
    pub fn is_closed(&self) -> bool {
        self.connection == Connection::Closed
    }

    /// Whether QUIT is in the queue.
    pub fn takes_leave(&self) -> bool {
        let is_quit = |line: &[u8]| split_verb(line).is_ok_and(|(verb, _)| verb == "QUIT");
        self.queue.iter().any(|queued| matches!(queued, Queued::Line(line) if is_quit(line)))
    }

    /// Whether the client sent more bytes after the current command.
    pub(super) fn has_input(&self) -> bool {
        !self.queue.is_empty() || self.decoder.buffered() > 0
    }

    pub(super) fn send(&mut self, reply: Reply) {
        let end = self.end_queue();
        self.actions.extend(end.map(Action::Send));
        self.actions.push_back(Action::Send(reply));
    }

    /// The running operation waits in a queue of the host: returns the reply that tells the client
    /// its place. Nothing may be sent between it and [`Self::event`] or [`Self::completed`] but
    /// replies of this session and of this method.
    pub fn tell_place(&mut self, place: QueuePlace) -> Option<Reply> {
        let running = self.running.as_mut().filter(|_| self.actions.is_empty())?;
        running.pending.tell_place(place)
    }

    /// The end of the reply that [`Self::tell_place`] has begun, if it has no end yet, for a host
    /// that sends a reply of its own.
    pub fn end_queue(&mut self) -> Option<Reply> {
        self.running.as_mut()?.pending.end_queue()
    }

    /// Closes the session: only the queued actions follow.
    fn close(&mut self, reply: Option<Reply>) {
        let end = self.end_queue();
        self.actions.extend(end.map(Action::Send));
        self.abort_running();
        self.actions.extend(reply.map(Action::Send));
        self.actions.push_back(Action::Close);
        self.connection = Connection::Closed;
        self.forget_queue();
    }

    fn forget_queue(&mut self) {
        self.queue = VecDeque::new();
        self.queued_bytes = 0;
        self.queued_aborts = 0;
        self.decoder = LineDecoder::new(Ending::CrLf, 0);
    }

    /// Ten thousand idle sessions should not each keep the capacity that they once needed.
    fn shrink(&mut self) {
        const KEPT: usize = 16;
        if self.queue.capacity() > KEPT {
            self.queue = VecDeque::new();
        }
        if self.actions.capacity() > KEPT {
            self.actions = VecDeque::new();
        }
    }

    fn abort_running(&mut self) {
        if let Some(running) = &mut self.running
            && running.pending.is_long()
            && !running.aborted
        {
            running.aborted = true;
            self.actions.push_back(Action::Abort);
        }
    }

    /// Only commands that wait for an operation count. All other commands are executed before more
    /// input is read.
    fn check_queue(&mut self) {
        let many = self.running.is_some() && self.queue.len() > self.config.max_queue;
        if many || self.queued_bytes > self.config.max_queue_bytes {
            self.close(Some(Reply::new(500, "Pipeline queue full.")));
        }
    }
}
