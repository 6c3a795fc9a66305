//! One control connection: commands out, replies in, in order; pipelined as far as the caller likes.
//!
//! The socket does not block. Waiting is done in one place, for the socket and for [`Cancel`] together.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ropewalk_protocol::command::Command;
use ropewalk_protocol::line::{Ending, LineDecoder};
use ropewalk_protocol::reply::{ParserLimits, Reply, ReplyParser};
use ropewalk_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt;

use crate::dial::dial;
use crate::error::RemoteError;
use crate::{Cancel, Event, EventSink, Options};

/// Round trips that are taken for the estimate.
const RTT_SAMPLES: u32 = 16;
/// Checksums and removals of trees take long, and servers that tell nothing meanwhile are no reason to give up: whether
/// the peer is still there is left to the TCP keepalive.
const LONG: Duration = Duration::from_secs(3600);
/// Bytes of a line of a reply: a listing's line has a path in it.
const LONGEST_LINE: usize = 64 << 10;

pub(crate) struct Control<'e> {
    stream: TcpStream,
    peer: String,
    remote: SocketAddr,
    local: SocketAddr,
    lines: LineDecoder,
    parser: ReplyParser,
    /// Written by us, not taken by the kernel yet.
    out: VecDeque<u8>,
    /// What was sent and not answered for good: name of the command, when.
    asked: VecDeque<(&'static str, Instant)>,
    /// Nothing else was on its way when the last command was sent: its answer measures a round trip.
    sole: bool,
    rtt: Option<Duration>,
    samples: u32,
    reply_timeout: Duration,
    last_heard: Instant,
    events: Option<&'e dyn EventSink>,
    cancel: Cancel,
    /// Time spent blocked in [`Control::reply`].
    pub waited: Duration,
}

impl<'e> Control<'e> {
    /// Connects to `host:port` and waits for the greeting, which is the first reply to be read.
    pub(crate) fn connect(
        host: &str,
        port: u16,
        options: &Options,
        events: &'e dyn EventSink,
        cancel: &Cancel,
    ) -> Result<Self, RemoteError> {
        let peer = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let (stream, took) = dial(host, port, options.connect_timeout, cancel)?;
        let broken = |source| RemoteError::Control { peer: peer.clone(), source };
        let prepare = || -> io::Result<(SocketAddr, SocketAddr)> {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            // Long transfers leave this connection silent: without probes, NAT boxes forget it.
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, options.keepalive.max(Duration::from_secs(1)))?;
            sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(15))?;
            Ok((stream.peer_addr()?, stream.local_addr()?))
        };
        let (remote, local) = prepare().map_err(broken)?;
        let now = Instant::now();
        Ok(Self {
            stream,
            peer,
            remote,
            local,
            lines: LineDecoder::new(Ending::Lf, LONGEST_LINE),
            parser: ReplyParser::new(ParserLimits::default()),
            out: VecDeque::new(),
            asked: VecDeque::from([("the connection", now)]),
            sole: false,
            rtt: Some(took),
            samples: 1,
            reply_timeout: options.reply_timeout,
            last_heard: now,
            events: options.trace_control.then_some(events),
            cancel: cancel.clone(),
            waited: Duration::ZERO,
        })
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

    /// Commands without a final reply.
    pub(crate) fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// Time since the peer was last heard of.
    pub(crate) fn quiet(&self) -> Duration {
        self.last_heard.elapsed()
    }

    /// Sends a command, or as much of it as the kernel takes now; the rest follows while replies are waited for.
    pub(crate) fn send(&mut self, command: &Command) -> Result<(), RemoteError> {
        let mut line = command.to_line().map_err(|e| RemoteError::CannotTravel { path: e.line })?;
        let name = command.verb();
        if let Some(events) = self.events {
            let shown = match command {
                Command::Pass(_) => "PASS ***".to_owned(),
                Command::Adat(_) => "ADAT ***".to_owned(),
                _ => String::from_utf8_lossy(&line).into_owned(),
            };
            events.event(Event::Dialogue { peer: self.peer.clone(), direction: '>', line: shown });
        }
        line.extend_from_slice(b"\r\n");
        let now = Instant::now();
        if self.asked.is_empty() {
            self.last_heard = now;
        }
        self.sole = self.asked.is_empty();
        self.asked.push_back((name, now));
        self.out.extend(line);
        self.flush()
    }

    /// The next reply, preliminary or final, of the oldest command that waits for one.
    pub(crate) fn reply(&mut self) -> Result<Reply, RemoteError> {
        let began = Instant::now();
        let limit = match self.asked.front() {
            Some(("CKSM" | "SITE", _)) => self.reply_timeout.max(LONG),
            _ => self.reply_timeout,
        };
        let result = self.reply_until(began + limit);
        self.waited += began.elapsed();
        let silent = || RemoteError::Silent { peer: self.peer.clone(), command: self.due(), limit };
        result?.ok_or_else(silent)
    }

    /// As [`Control::reply`]; `None` when `deadline` has passed.
    pub(crate) fn reply_until(&mut self, deadline: Instant) -> Result<Option<Reply>, RemoteError> {
        loop {
            if let Some(reply) = self.try_reply()? {
                return Ok(Some(reply));
            }
            if !self.wait(deadline)? {
                return Ok(None);
            }
        }
    }

    /// A reply that has come already.
    pub(crate) fn try_reply(&mut self) -> Result<Option<Reply>, RemoteError> {
        self.flush()?;
        loop {
            if let Some(reply) = self.parse()? {
                self.note(&reply);
                return Ok(Some(reply));
            }
            let mut buffer = [0; 16 << 10];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Err(RemoteError::Closed { peer: self.peer.clone(), command: self.due() }),
                Ok(n) => {
                    self.last_heard = Instant::now();
                    self.lines.push(&buffer[..n]);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(RemoteError::Control { peer: self.peer.clone(), source }),
            }
        }
    }

    /// The next reply of what was read.
    fn parse(&mut self) -> Result<Option<Reply>, RemoteError> {
        let nonsense = |e: String| RemoteError::Nonsense { peer: self.peer.clone(), reason: e };
        while let Some(line) = self.lines.next_line().map_err(|e| nonsense(e.to_string()))? {
            if let Some(reply) = self.parser.line(line).map_err(|e| nonsense(e.to_string()))? {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Waits for input (or room for output) until `deadline`; `false` when it passed.
    fn wait(&mut self, deadline: Instant) -> Result<bool, RemoteError> {
        wait_for(&[self], &self.cancel, deadline)
    }

    /// Waits until one of two connections has input (or room for output), or until `deadline`.
    pub(crate) fn wait_either(one: &Self, other: &Self, deadline: Instant) -> Result<bool, RemoteError> {
        wait_for(&[one, other], &one.cancel, deadline)
    }

    /// Sends a command and waits for its final reply; nothing else may be outstanding.
    pub(crate) fn call(&mut self, command: &Command) -> Result<Reply, RemoteError> {
        self.send(command)?;
        self.finish()
    }

    /// The final reply of the oldest command; preliminary ones are dropped.
    pub(crate) fn finish(&mut self) -> Result<Reply, RemoteError> {
        loop {
            let reply = self.reply()?;
            if !reply.is_preliminary() {
                return Ok(reply);
            }
        }
    }

    /// Writes what waits to be written, as far as the kernel takes it.
    pub(crate) fn flush(&mut self) -> Result<(), RemoteError> {
        while !self.out.is_empty() {
            let (front, _) = self.out.as_slices();
            match self.stream.write(front) {
                Ok(n) => {
                    self.out.drain(..n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // What the peer said before it closed is worth more than this error: it shows when read.
                Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {
                    self.out.clear();
                }
                Err(source) => return Err(RemoteError::Control { peer: self.peer.clone(), source }),
            }
        }
        Ok(())
    }

    fn note(&mut self, reply: &Reply) {
        if let Some(events) = self.events {
            for line in String::from_utf8_lossy(&reply.to_bytes()).lines() {
                let line = line.to_owned();
                events.event(Event::Dialogue { peer: self.peer.clone(), direction: '<', line });
            }
        }
        if reply.is_preliminary() {
            return;
        }
        if let Some((_, at)) = self.asked.pop_front()
            && self.sole
            && self.asked.is_empty()
            && self.samples < RTT_SAMPLES
        {
            self.samples += 1;
            let took = at.elapsed();
            self.rtt = Some(self.rtt.map_or(took, |rtt| rtt.min(took)));
        }
    }

    /// The command whose answer is due, for messages.
    fn due(&self) -> String {
        self.asked.front().map_or("nothing", |(name, _)| name).to_owned()
    }
}

fn wait_for(controls: &[&Control<'_>], cancel: &Cancel, deadline: Instant) -> Result<bool, RemoteError> {
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

impl AsFd for Control<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
