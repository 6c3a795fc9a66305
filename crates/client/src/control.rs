//! One control connection: commands out, replies in, in order; pipelined as far as the caller
//! likes.
//!
//! The socket is non-blocking. All waiting is done in one place, for the socket and for [`Cancel`]
//! together.

mod asked;
mod ending;
mod handover;
mod life;
mod protect;
mod ssh;

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_protocol::client::{Event, Limits, Session, SubmitError};
use ropewalk_protocol::command::{Command, UnprintableCommand};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::streams::StreamsAnswer;
use ropewalk_tls::{Established, Handshake, HandshakeError, Ticket};
use ropewalk_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;
use zeroize::Zeroize as _;

pub(crate) use asked::Answer;
use asked::{Asked, Due};
pub(crate) use ending::LAST_WORDS;
use life::Life;

use crate::dial::{Choice, dial};
use crate::link::Link;
use crate::model::error::RemoteError;
use crate::model::features_reply::FeaturesReply;
use crate::sealing::{Security, Unopened};
use crate::{Cancel, EventSink, Options};

/// Number of round trips in the estimate.
const RTT_SAMPLES: u32 = 16;
/// Timeout of slow commands: removals of trees, and checksums of files of unknown size. A server
/// that is silent meanwhile may be alive; TCP keepalive detects a dead one.
pub(crate) const LONG: Duration = Duration::from_secs(3600);
/// A server that computes a checksum must read at least this many bytes per second, or send
/// markers. So the timeout grows with the file.
const SLOWEST: u64 = 8 << 20;
/// While a caller waits for a slow command, it can do something else at least this often.
const LOOK: Duration = Duration::from_millis(250);
/// The kernel accepts no longer idle times of TCP keepalive (`MAX_TCP_KEEPIDLE`).
const LONGEST_IDLE: Duration = Duration::from_secs(32_767);

/// Names the first reply in messages.
const GREETING: &str = "the connection";

pub(crate) struct Control {
    stream: Link,
    peer: String,
    remote: SocketAddr,
    local: SocketAddr,
    machine: Session,
    /// Once the connection is protected: encrypts and decrypts its lines.
    security: Option<Box<dyn Security>>,
    /// Written by us, but not yet accepted by the kernel.
    out: VecDeque<u8>,
    /// Commands without a final reply: name, and time of sending.
    asked: VecDeque<Asked>,
    /// No other command was in flight when the last one was sent, so that its reply measures a
    /// round trip.
    sole: bool,
    rtt: Option<Duration>,
    samples: u32,
    reply_timeout: Duration,
    life: Life,
    events: Option<Arc<dyn EventSink>>,
    cancel: Cancel,
    /// The last reply to SITE STREAMS that the caller has not taken yet.
    granted: Option<u32>,
    /// The next file is to have a new data channel: the server has reported that one which is made
    /// now would be on better data nodes, or cannot use the present one.
    pub wants_new_channel: bool,
    /// The peer would use a file of another name.
    pub ascii_only: bool,
    /// Time spent blocked in [`Control::answer`].
    pub waited: Duration,
}

impl Control {
    /// Connects to `host:port`. The greeting is the first reply to read.
    pub(crate) fn connect(
        host: &str,
        port: u16,
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
        choice: Choice<'_>,
    ) -> Result<Self, RemoteError> {
        let peer = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let (stream, took) = dial(host, port, options.timeouts.connect, cancel, choice)?;
        let broken = |source| RemoteError::Control { peer: peer.clone(), source };
        let prepare = || -> io::Result<(SocketAddr, SocketAddr)> {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            // Long transfers leave this connection idle: without probes, NAT gateways drop it.
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(
                &stream,
                options.timeouts.keepalive.clamp(Duration::from_secs(1), LONGEST_IDLE),
            )?;
            sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(15))?;
            Ok((stream.peer_addr()?, stream.local_addr()?))
        };
        let (remote, local) = prepare().map_err(broken)?;
        let control = Self::over(Link::Tcp(stream), peer, (remote, local), options, events, cancel);
        Ok(Self { rtt: Some(took), samples: 1, ..control })
    }

    /// Uses an established connection with `peer`. `addresses`: those of the server and of this
    /// host on the way to it.
    pub(crate) fn over(
        link: Link,
        peer: String,
        addresses: (SocketAddr, SocketAddr),
        options: &Options,
        events: &Arc<dyn EventSink>,
        cancel: &Cancel,
    ) -> Self {
        let now = Instant::now();
        let mut machine = Session::new(Limits::default());
        if options.trace_control {
            machine.enable_trace();
        }
        let (remote, local) = addresses;
        Self {
            stream: link,
            peer,
            remote,
            local,
            machine,
            security: None,
            out: VecDeque::new(),
            asked: VecDeque::from([Asked { name: GREETING, at: now, answer: Due::Awaited, reads: None }]),
            sole: false,
            rtt: None,
            samples: 0,
            reply_timeout: options.timeouts.reply,
            life: Life::new(now),
            events: options.trace_control.then(|| events.clone()),
            cancel: cancel.clone(),
            granted: None,
            wants_new_channel: false,
            ascii_only: false,
            waited: Duration::ZERO,
        }
    }

    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    pub(crate) fn remote_addr(&self) -> SocketAddr {
        self.remote
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The shortest round trip seen.
    pub(crate) fn rtt(&self) -> Duration {
        self.rtt.unwrap_or_default()
    }

    /// Number of awaited commands without a final reply.
    pub(crate) fn outstanding(&self) -> usize {
        self.asked.iter().filter(|asked| asked.is_awaited()).count()
    }

    /// Time since the peer's last message with news.
    pub(crate) fn quiet(&self) -> Duration {
        self.life.quiet()
    }

    /// Sends a command, or as much of it as the kernel accepts now; the rest follows during the
    /// next wait.
    pub(crate) fn send(&mut self, command: &Command) -> Result<(), RemoteError> {
        self.queue(command)?;
        self.flush()
    }

    /// The same as [`Control::send`], but the command leaves with the next flush: several commands
    /// in one packet.
    pub(crate) fn queue(&mut self, command: &Command) -> Result<(), RemoteError> {
        let name = command.verb();
        if self.ascii_only {
            self.check(command)?;
        }
        self.machine.submit(command).map_err(|e| match e {
            SubmitError::Unprintable(e) => cannot_travel(e),
            SubmitError::Closing(reply) => {
                RemoteError::Refused { peer: self.peer.clone(), command: name.to_owned(), reply }
            }
            e @ SubmitError::OutOfBand => {
                RemoteError::Nonsense { peer: self.peer.clone(), reason: e.to_string() }
            }
        })?;
        let now = Instant::now();
        if self.asked.is_empty() {
            self.life.asks(now);
        }
        self.sole = self.asked.is_empty();
        let reads = match command {
            Command::Cksm { length, .. } => *length,
            _ => None,
        };
        self.asked.push_back(Asked { name, at: now, answer: Due::Awaited, reads });
        self.transmit()?;
        self.tell();
        Ok(())
    }

    /// Checks that a command can be sent, for a command that must not fail after others were sent.
    pub(crate) fn check(&self, command: &Command) -> Result<(), RemoteError> {
        let line = command.to_line().map_err(cannot_travel)?;
        let text = line.trim_ascii_end();
        // GCT's servers keep white space, bells and backspaces.
        let left_out = |byte: &u8| matches!(byte, 1..=6 | 14..=31 | 127..);
        if self.ascii_only && text.iter().any(left_out) {
            let line = text.into();
            return Err(RemoteError::NotAscii { peer: self.peer.clone(), line });
        }
        Ok(())
    }

    /// Queues a command whose reply is ignored and not awaited.
    pub(crate) fn suggest(&mut self, command: &Command) -> Result<(), RemoteError> {
        self.queue_for(command, Due::Dropped)
    }

    /// Queues a command that is known to succeed with these features: the reply is not awaited, but
    /// any other reply ends the session.
    pub(crate) fn expect_success(
        &mut self,
        command: &Command,
        features: Arc<FeaturesReply>,
    ) -> Result<(), RemoteError> {
        self.queue_for(command, Due::Expected(features))
    }

    /// Queues FEAT, whose reply is known: it is not awaited, but another reply ends the session.
    pub(crate) fn expect_features(&mut self, features: Arc<FeaturesReply>) -> Result<(), RemoteError> {
        self.queue_for(&Command::Feat, Due::Features(features))
    }

    fn queue_for(&mut self, command: &Command, answer: Due) -> Result<(), RemoteError> {
        self.queue(command)?;
        if let Some(asked) = self.asked.back_mut() {
            asked.answer = answer;
        }
        Ok(())
    }

    /// Records that the last command makes the peer read this many bytes of a file, if known.
    pub(crate) fn last_reads(&mut self, bytes: Option<u64>) {
        if let Some(asked) = self.asked.back_mut() {
            asked.reads = asked.reads.or(bytes);
        }
    }

    /// How long the peer may be silent about the command whose reply is due.
    pub(crate) fn patience(&self) -> Duration {
        match self.awaited() {
            Some(Asked { reads: Some(bytes), .. }) => {
                self.reply_timeout.saturating_add(Duration::from_secs(bytes / SLOWEST))
            }
            Some(Asked { name: "CKSM" | "SITE", .. }) => self.reply_timeout.max(LONG),
            _ => self.reply_timeout,
        }
    }

    /// Sends SITE STREAMS, which is independent of the order of commands. Its reply is not awaited.
    pub(crate) fn set_streams(&mut self, streams: u32) -> Result<(), RemoteError> {
        if self.machine.set_streams(streams).is_ok() {
            self.transmit()?;
            self.tell();
        }
        self.flush()
    }

    /// The number of streams that the server has set since the last call.
    pub(crate) fn take_granted(&mut self) -> Option<u32> {
        self.granted.take()
    }

    /// The next event for the oldest awaited command.
    pub(crate) fn answer(&mut self) -> Result<Answer, RemoteError> {
        let began = Instant::now();
        let limit = self.patience();
        let deadline = self.life.waits(began, limit);
        let result = self.answer_until(deadline);
        self.waited += began.elapsed();
        let silent = || RemoteError::Silent { peer: self.peer.clone(), command: self.due(), limit };
        result?.ok_or_else(silent)
    }

    /// The same as [`Control::answer`]; `None` after `deadline`.
    pub(crate) fn answer_until(&mut self, deadline: Instant) -> Result<Option<Answer>, RemoteError> {
        loop {
            match self.try_answer()? {
                Some(answer @ Answer::Final(_)) => return Ok(Some(answer)),
                // The stream of events may be endless.
                Some(_) if self.cancel.is_cancelled() => return Err(RemoteError::Cancelled),
                Some(answer) => return Ok(Some(answer).filter(|_| Instant::now() < deadline)),
                None if self.wait(deadline)? => {}
                None => return Ok(None),
            }
        }
    }

    /// Returns an event that has arrived already.
    pub(crate) fn try_answer(&mut self) -> Result<Option<Answer>, RemoteError> {
        self.flush()?;
        loop {
            while let Some(event) = self.machine.poll_event() {
                match event {
                    Event::Greeting(reply) | Event::Finished { reply, .. } => {
                        let asked = self.answered();
                        let Some(Asked { name, answer, .. }) = asked else {
                            return Ok(Some(Answer::Final(reply)));
                        };
                        if let Due::Awaited = answer {
                            return Ok(Some(Answer::Final(reply)));
                        }
                        answer.judge(&self.peer, name, reply)?;
                    }
                    Event::Preliminary { reply, .. } => {
                        self.life.begins(Instant::now());
                        return Ok(Some(Answer::Preliminary(reply)));
                    }
                    Event::Marker { marker: Marker::Nodes(count), .. } => {
                        tracing::debug!(peer = self.peer, count, "data nodes have joined or leave");
                        self.wants_new_channel = true;
                    }
                    Event::Marker { marker, .. } => {
                        self.life.tells(Instant::now(), &marker);
                        return Ok(Some(Answer::Marker(marker)));
                    }
                    Event::Queued { place, .. } => {
                        self.life.waits_in_queue(Instant::now(), place);
                        return Ok(Some(Answer::Queued(place)));
                    }
                    // A 421 is the final reply of every awaited command.
                    Event::Closing(reply) | Event::Unsolicited(reply) => {
                        tracing::debug!(peer = self.peer, %reply, "an unexpected reply");
                    }
                    Event::Streams(answer) => {
                        tracing::debug!(peer = self.peer, ?answer, "SITE STREAMS");
                        if let StreamsAnswer::Set(streams) = answer {
                            self.granted = Some(streams);
                        }
                    }
                    Event::Unanswered { .. } => drop(self.answered()),
                }
            }
            let mut buffer = [0; 16 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(self.ended()),
                Ok(n) => {
                    self.life.hears(Instant::now());
                    let taken = match &mut self.security {
                        Some(security) => {
                            let mut answers = Vec::new();
                            let opened = security.open(&buffer[..n], &mut self.machine, &mut answers);
                            self.out.extend(answers);
                            opened
                        }
                        None => self.machine.input(&buffer[..n]).map_err(Unopened::nonsense),
                    };
                    self.tell();
                    taken.map_err(|unopened| unopened.of(&self.peer))?;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(RemoteError::Control { peer: self.peer.clone(), source }),
            }
        }
    }

    /// Appends the output of the protocol machine to the bytes to send.
    fn transmit(&mut self) -> Result<(), RemoteError> {
        let Some(mut plain) = self.machine.poll_transmit() else { return Ok(()) };
        let mut sealed = Vec::new();
        let done = match &mut self.security {
            None => {
                self.out.extend(&plain);
                Ok(())
            }
            Some(security) => security.seal(&plain, &mut sealed),
        };
        // It may contain a password.
        plain.zeroize();
        self.out.extend(sealed);
        done.map_err(|reason| {
            let source = io::Error::other(format!("a command cannot be protected: {reason}"));
            RemoteError::Control { peer: self.peer.clone(), source }
        })
    }

    /// The ticket with which data connections resume the control connection's TLS session.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.security.as_ref()?.ticket()
    }

    /// Passes lines of the dialogue to the observer.
    fn tell(&mut self) {
        while let (Some(events), Some(line)) = (&self.events, self.machine.poll_trace()) {
            events.event(crate::Event::Dialogue {
                peer: self.peer.clone(),
                direction: if line.sent { '>' } else { '<' },
                line: line.line.to_string(),
            });
        }
    }

    /// Waits for input (or room for output) until `deadline`; returns `false` when it has passed.
    fn wait(&mut self, deadline: Instant) -> Result<bool, RemoteError> {
        wait_for(&[self], &self.cancel, deadline)
    }

    /// Waits until one of two connections has input (or room for output), or until `deadline`.
    pub(crate) fn wait_either(one: &Self, other: &Self, deadline: Instant) -> Result<bool, RemoteError> {
        wait_for(&[one, other], &one.cancel, deadline)
    }

    /// Sends a command and waits for its final reply; no other command may be in flight.
    pub(crate) fn call(&mut self, command: &Command) -> Result<Reply, RemoteError> {
        self.send(command)?;
        self.finish()
    }

    /// The final reply of the oldest command; preliminary ones are dropped.
    pub(crate) fn finish(&mut self) -> Result<Reply, RemoteError> {
        loop {
            if let Answer::Final(reply) = self.answer()? {
                return Ok(reply);
            }
        }
    }

    /// Waits for the final reply to a command whose markers report progress. `waiting` gets the
    /// number of bytes of the last marker, for each marker and at least every [`LOOK`].
    ///
    /// # Errors
    /// Those of [`Control::answer`]; it is cancelled if `waiting` breaks off, and the reply is then
    /// still due.
    pub(crate) fn finish_while(
        &mut self,
        waiting: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Reply, RemoteError> {
        let (mut bytes, mut began) = (0, Instant::now());
        let mut look = began + LOOK;
        loop {
            let limit = self.patience();
            let deadline = self.life.waits(began, limit);
            match self.try_answer()? {
                Some(Answer::Final(reply)) => {
                    self.waited += began.elapsed();
                    return Ok(reply);
                }
                Some(answer) => {
                    self.waited += began.elapsed();
                    began = Instant::now();
                    if let Answer::Marker(Marker::Status(marker)) = answer {
                        bytes = marker.bytes;
                    }
                }
                None if !self.wait(deadline.min(look))? && Instant::now() >= deadline => {
                    return Err(RemoteError::Silent { peer: self.peer.clone(), command: self.due(), limit });
                }
                None if Instant::now() < look => continue,
                None => {}
            }
            look = Instant::now() + LOOK;
            if self.cancel.is_cancelled() || waiting(bytes).is_break() {
                return Err(RemoteError::Cancelled);
            }
        }
    }

    /// Writes pending output, as far as the kernel accepts it.
    pub(crate) fn flush(&mut self) -> Result<(), RemoteError> {
        while !self.out.is_empty() {
            let (front, _) = self.out.as_slices();
            match self.stream.write(front) {
                Ok(n) => {
                    self.out.drain(..n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // A message of the peer before it closed is more useful than this error, and is
                // read later.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                    self.out.clear();
                }
                Err(source) => return Err(RemoteError::Control { peer: self.peer.clone(), source }),
            }
        }
        Ok(())
    }

    /// Removes the oldest command, which has its final reply.
    fn answered(&mut self) -> Option<Asked> {
        let asked = self.asked.pop_front()?;
        self.life.ends(Instant::now());
        if self.sole && self.asked.is_empty() && self.samples < RTT_SAMPLES {
            self.samples += 1;
            let took = asked.at.elapsed();
            self.rtt = Some(self.rtt.map_or(took, |rtt| rtt.min(took)));
        }
        Some(asked)
    }

    /// The oldest awaited command.
    fn awaited(&self) -> Option<&Asked> {
        self.asked.iter().find(|asked| asked.is_awaited())
    }

    /// The command whose reply is due, for messages.
    fn due(&self) -> String {
        self.awaited().map_or("nothing", |asked| asked.name).to_owned()
    }
}

fn cannot_travel(e: UnprintableCommand) -> RemoteError {
    RemoteError::CannotTravel { path: e.line }
}

fn wait_for(controls: &[&Control], cancel: &Cancel, deadline: Instant) -> Result<bool, RemoteError> {
    let rest = deadline.saturating_duration_since(Instant::now());
    if rest.is_zero() {
        return Ok(false);
    }
    let mut fds = Vec::with_capacity(3);
    for control in controls {
        let output = if control.out.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        fds.push(PollFd::new(&control.stream, PollFlags::IN | output));
    }
    if let Some(cancelled) = cancel.descriptor() {
        fds.push(PollFd::from_borrowed_fd(cancelled, PollFlags::IN));
    }
    match poll(&mut fds, Some(&timespec(rest))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => {
            let peer = controls.first().map(|c| c.peer.clone()).unwrap_or_default();
            return Err(RemoteError::Control { peer, source: e.into() });
        }
    }
    if cancel.is_cancelled() { Err(RemoteError::Cancelled) } else { Ok(true) }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

#[cfg(test)]
mod tests;
