//! The session: a queue of commands, worked off one after another.

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
use crate::reply::Reply;
use crate::streams::{self, MAX_STREAMS, StreamsAnswer};

/// One control connection.
///
/// Commands are carried out one after another in the order in which they came, and answered in that order. While an
/// operation is under way, only ABOR and SITE STREAMS are acted upon at once. ABOR:
/// - the operation under way, where it may take long, is broken off and answered 426,
/// - transfers, listings and checksums that were sent before the ABOR and have not begun are answered 426 and never
///   begin; other commands sent before it are carried out,
/// - the ABOR itself is answered 226 in its place.
///
/// SITE STREAMS is answered 114 at once, and no more ([`crate::streams`]).
#[derive(Debug)]
pub struct Session {
    pub(super) config: Arc<SessionConfig>,
    pub(super) state: State,
    decoder: LineDecoder,
    queue: VecDeque<Queued>,
    /// Bytes that the queue takes.
    queued_bytes: usize,
    /// Number of ABORs in the queue.
    queued_aborts: usize,
    actions: VecDeque<Action>,
    running: Option<Box<Running>>,
    connection: Connection,
    /// An upload was answered without having been asked of the host.
    declined: bool,
}

/// What a place in the queue costs, besides its line.
const QUEUED_SIZE: usize = mem::size_of::<Queued>();

#[derive(Debug)]
enum Queued {
    Line(Box<[u8]>),
    Abort,
    /// A line without anything: ends the session, as in GCT.
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
    /// Nothing that comes now is read, but what was read is worked off.
    Deaf,
    Closed,
}

/// What the session is doing, for idle timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for the client to log in.
    PreLogin,
    /// Waits for a command.
    Idle,
    /// Carries out an operation: no idle timer.
    Busy,
    /// Over; nothing will happen any more.
    Closed,
}

/// What comes of a command.
pub(super) enum Step {
    Reply(Reply),
    Perform(Operation, Pending),
    /// Reply and close.
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

    /// The control connection has TLS from the beginning (implicit TLS).
    pub fn begin_within_tls(&mut self) {
        self.state = State::within_tls();
    }

    /// The control connection is carried by ssh, so that nobody can listen. There is no AUTH in it, nor DCAU.
    pub fn begin_within_ssh(&mut self) {
        self.state.within_ssh = true;
    }

    /// The greeting, to be sent first.
    pub fn banner(&self) -> Reply {
        self.config.banner_reply()
    }

    /// Takes what the client sent, at most 256 KiB at once. Call [`Session::poll`] afterwards, until it has nothing.
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

    /// Takes one line without its end, for control connections where lines arrive wrapped (RFC 2228).
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
            // Nothing but Telnet signals.
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

    /// The next thing to do; `None` when there is nothing to do before more input, an event or a completion.
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
                    // It may have had a password or a key in it.
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

    /// SITE STREAMS; `None` where there is no number of streams in it.
    fn set_streams(&mut self, n: Option<u32>) {
        let most = self.config.max_streams.clamp(1, MAX_STREAMS);
        let receives = self.running.as_ref().is_some_and(|running| running.pending.receives());
        let answer = match n {
            _ if !self.state.is_logged_in() => StreamsAnswer::Refused("log in first.".to_owned()),
            None => StreamsAnswer::Refused(format!("expected a number from 1 to {most}.")),
            // The sender alone decides.
            Some(_) if receives => StreamsAnswer::Set(self.state.options.parallelism.min(most)),
            Some(n) => {
                let n = n.min(most);
                self.state.options.parallelism = n;
                self.actions.push_back(Action::Streams(n));
                StreamsAnswer::Set(n)
            }
        };
        self.send(answer.to_reply());
        // It does not wait in the queue; who never reads what it is told must not fill memory all the same.
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

    /// Progress of the operation under way. What does not fit to it is ignored.
    pub fn event(&mut self, event: Event) {
        if self.connection == Connection::Closed {
            return;
        }
        if let Some(running) = &mut self.running {
            let replies = running.pending.progress(event, &self.state, self.config.epsv_address);
            self.actions.extend(replies.into_iter().map(Action::Send));
        }
    }

    /// The operation under way has ended. Without one, nothing happens.
    pub fn completed(&mut self, result: Result<Outcome, Failure>) {
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
            // What came in clear behind the last token may be anybody's.
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

    /// The client is authenticated and the control connection protected.
    pub fn is_secured(&self) -> bool {
        self.state.secured
    }

    /// Nobody else can read or write on the control connection: it is secured, or ssh carries it.
    pub fn is_private(&self) -> bool {
        self.state.is_private()
    }

    /// Whether the data channel that the host made is still of use. In stream mode one transfer uses it up.
    pub fn has_channel(&self) -> bool {
        self.state.channel == super::state::Channel::Made
    }

    /// A log-in that was refused since this was last asked, without the host being asked for it. To be asked when there is
    /// a reply to send.
    pub fn refused_login(&mut self) -> Option<RefusedLogin> {
        self.state.refused.take()
    }

    /// Whether an upload was refused or broken off since this was last asked, without the host being asked for it: its data
    /// may be under way. To be asked when there is a reply to send.
    pub fn declined_upload(&mut self) -> bool {
        mem::take(&mut self.declined)
    }

    /// The local user, once logged in.
    pub fn user(&self) -> Option<&str> {
        self.state.local_user.as_deref()
    }

    /// Commands that wait for the one under way.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// The client has broken off the operation under way (ABOR), which has not ended yet.
    pub fn is_aborted(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.aborted)
    }

    /// No command is carried out any more, whatever is under way.
    pub fn is_closed(&self) -> bool {
        self.connection == Connection::Closed
    }

    /// QUIT is among the commands that wait.
    pub fn takes_leave(&self) -> bool {
        let is_quit = |line: &[u8]| split_verb(line).is_ok_and(|(verb, _)| verb == "QUIT");
        self.queue.iter().any(|queued| matches!(queued, Queued::Line(line) if is_quit(line)))
    }

    /// More came behind the command under way.
    pub(super) fn has_input(&self) -> bool {
        !self.queue.is_empty() || self.decoder.buffered() > 0
    }

    pub(super) fn send(&mut self, reply: Reply) {
        self.actions.push_back(Action::Send(reply));
    }

    /// Nothing but what is in `actions` happens after this.
    fn close(&mut self, reply: Option<Reply>) {
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

    /// Ten thousand idle sessions should not keep what their busiest moment needed.
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

    /// Only what waits for an operation counts: the rest is worked off before anything more is read.
    fn check_queue(&mut self) {
        let many = self.running.is_some() && self.queue.len() > self.config.max_queue;
        if many || self.queued_bytes > self.config.max_queue_bytes {
            self.close(Some(Reply::new(500, "Pipeline queue full.")));
        }
    }
}
