//! One connection: the machine between the datagrams of a peer and the stream of an application.
//!
//! The caller passes datagrams and the time in, and takes datagrams and the time of the next call
//! out. A connection belongs to one caller; it has no threads. After each call the caller sends all
//! that [`Connection::poll_transmit`] returns and waits until [`Connection::timeout`]. Packets that
//! make no sense are counted, and have no other effect. A connection ends by SHUTDOWN, by silence
//! of the peer, or by its own application; it stays until [`Connection::is_gone`].

mod receiver;
mod sender;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::config::{Config, Parameters};
use crate::congestion::Controller;
use crate::packet::{Body, Control, Packet};
use crate::rtt::Rtt;
use crate::{Batch, Micros, Stats};
use receiver::Receiver;
use sender::Sender;

/// A libudt connector drops all that arrives in the first milliseconds after the answer of the
/// listener, so the listener sends its answer three times, and its data later.
const ANSWERS: [Micros; 3] = [0, 4000, 8000];
const FIRST_DATA: Micros = 15_000;
/// libudt's EXP timer needs 300 ms without any packet.
const KEEP_ALIVE: Micros = 1_000_000;
/// The time from the first SHUTDOWN to the second one, and the least time to the third one.
const SECOND_SHUTDOWN: Micros = 10_000;
const THIRD_SHUTDOWN: Micros = 50_000;
/// How long the id of a closed connection answers with SHUTDOWN, and how often.
const GONE: Micros = 5_000_000;
const SHUTDOWN_INTERVAL: Micros = 100_000;
/// More ACKs than arrive between two calls.
const MOST_ACK2: usize = 64;

/// Why a connection takes or has no more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("this end of the UDT connection is closed")]
    Closed,
    #[error("the peer has closed the UDT connection")]
    PeerClosed,
    #[error("the peer has ended the UDT connection before the end of the stream")]
    Reset,
    #[error("the peer of the UDT connection is silent")]
    Silent,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    ByPeer,
    Local,
    Silent,
}

/// The answer of a listener, which is repeated.
struct Handshaking {
    answer: Vec<u8>,
    sent: usize,
}

/// The SHUTDOWN packets of an ended connection.
struct Shutdown {
    sent: usize,
    /// How many are sent in any case.
    wanted: usize,
    next: Micros,
    /// When the connection is forgotten.
    gone: Micros,
}

pub struct Connection {
    parameters: Parameters,
    silence: Micros,
    linger: Micros,
    epoch: Instant,
    handshaking: Option<Handshaking>,
    data_from: Micros,
    sender: Sender,
    receiver: Receiver,
    rtt: Rtt,
    /// The numbers of ACKs to confirm.
    ack2: VecDeque<u32>,
    last_heard: Micros,
    last_sent: Micros,
    /// When the application has closed the connection.
    closed: Option<Micros>,
    end: Option<End>,
    shutdown: Option<Shutdown>,
}

impl Connection {
    /// A connection that a connector has made.
    pub fn connected(
        parameters: Parameters,
        config: &Config,
        controller: Box<dyn Controller>,
        now: Instant,
    ) -> Self {
        Self {
            silence: micros(config.silence),
            linger: micros(config.linger),
            epoch: now,
            handshaking: None,
            data_from: 0,
            sender: Sender::new(&parameters, config, controller),
            receiver: Receiver::new(&parameters, config),
            rtt: Rtt::default(),
            ack2: VecDeque::with_capacity(MOST_ACK2),
            last_heard: 0,
            last_sent: 0,
            closed: None,
            end: None,
            shutdown: None,
            parameters,
        }
    }

    /// A connection that a listener has accepted with `answer`.
    pub fn accepted(
        parameters: Parameters,
        config: &Config,
        controller: Box<dyn Controller>,
        answer: Vec<u8>,
        now: Instant,
    ) -> Self {
        let mut connection = Self::connected(parameters, config, controller, now);
        connection.handshaking = Some(Handshaking { answer, sent: 0 });
        if !parameters.ropewalk {
            connection.data_from = FIRST_DATA;
        }
        connection
    }

    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Takes a datagram that the peer has sent to this connection.
    pub fn handle(&mut self, now: Instant, datagram: &[u8]) {
        let Some(packet) = Packet::parse(datagram) else { return };
        if packet.destination() != self.parameters.id {
            return;
        }
        let now = self.micros(now);
        let is_shutdown = matches!(packet, Packet::Control(Control { body: Body::Shutdown, .. }));
        if let Some(shutdown) = &mut self.shutdown {
            if is_shutdown {
                shutdown.gone = now;
                shutdown.sent = shutdown.sent.max(shutdown.wanted);
            } else if shutdown.sent >= shutdown.wanted && now >= shutdown.next {
                shutdown.wanted = shutdown.sent + 1;
            }
            return;
        }
        self.last_heard = now;
        match packet {
            Packet::Data(data) => {
                self.heard();
                self.receiver.on_data(now, &data);
            }
            Packet::Control(control) => self.handle_control(now, &control),
        }
    }

    fn handle_control(&mut self, now: Micros, control: &Control<'_>) {
        match control.body {
            // A repeated answer or request; a listener's acceptor has answered it.
            Body::Handshake(_) => return,
            Body::Ack(ack) => {
                if control.info != 0 && ack.receiver.is_some() && self.ack2.len() < MOST_ACK2 {
                    self.ack2.push_back(control.info);
                }
                self.sender.on_ack(now, control.info, &ack, &mut self.rtt);
            }
            Body::Ack2 => self.receiver.on_ack2(now, control.info, &mut self.rtt),
            Body::Nak(losses) => self.sender.on_nak(now, losses, &mut self.rtt),
            Body::Shutdown => {
                // An answer for a Ropewalk peer, which then forgets the connection at once.
                let answers = usize::from(self.parameters.ropewalk);
                self.end(now, End::ByPeer, answers);
            }
            // The others have no meaning in a stream, or only show that the peer is alive.
            Body::CongestionWarning
            | Body::KeepAlive
            | Body::MessageDrop { .. }
            | Body::PeerError
            | Body::Unknown { .. } => {}
        }
        self.heard();
    }

    /// The peer has got the answer of the listener.
    fn heard(&mut self) {
        self.handshaking = None;
        self.data_from = 0;
    }

    /// Appends datagrams to send now to an empty batch. Returns false when there are none.
    pub fn poll_transmit(&mut self, now: Instant, batch: &mut Batch) -> bool {
        let now = self.micros(now);
        let sends = self.transmit(now, batch);
        if sends {
            self.last_sent = now;
            if batch.segment == 0 {
                batch.segment = batch.bytes.len();
            }
        }
        sends
    }

    fn transmit(&mut self, now: Micros, batch: &mut Batch) -> bool {
        self.check_end(now);
        if self.shutdown.is_some() {
            return self.transmit_shutdown(now, batch);
        }
        if let Some(handshaking) = &mut self.handshaking
            && ANSWERS.get(handshaking.sent).is_some_and(|at| *at <= now)
        {
            handshaking.sent += 1;
            batch.bytes.extend_from_slice(&handshaking.answer);
            return true;
        }
        if now < self.data_from {
            return false;
        }
        if let Some(number) = self.ack2.pop_front() {
            self.control(number, Body::Ack2, batch);
            return true;
        }
        if self.receiver.poll_transmit(now, &self.rtt, batch)
            || self.sender.poll_transmit(now, &self.rtt, batch)
        {
            return true;
        }
        let keeps_alive = self.sender.take_tail_keep_alive(now) || now >= self.last_sent + KEEP_ALIVE;
        if keeps_alive {
            self.control(0, Body::KeepAlive, batch);
        }
        keeps_alive
    }

    fn control(&self, info: u32, body: Body<'_>, batch: &mut Batch) {
        Control::new(self.parameters.peer_id, info, body).print(&mut batch.bytes);
    }

    fn transmit_shutdown(&mut self, now: Micros, batch: &mut Batch) -> bool {
        let rtt = self.rtt.smoothed();
        let Some(shutdown) = &mut self.shutdown else { return false };
        if shutdown.sent >= shutdown.wanted || now < shutdown.next {
            return false;
        }
        shutdown.sent += 1;
        shutdown.next = now
            + match shutdown.sent {
                1 => SECOND_SHUTDOWN,
                2 => rtt.max(THIRD_SHUTDOWN),
                _ => SHUTDOWN_INTERVAL,
            };
        self.control(0, Body::Shutdown, batch);
        true
    }

    /// Ends the connection if the peer is silent, or if the application has closed it and its data
    /// is delivered.
    fn check_end(&mut self, now: Micros) {
        if self.end.is_some() {
            return;
        }
        if now >= self.last_heard + self.silence {
            self.end(now, End::Silent, 1);
            return;
        }
        if self.is_ready_to_shut_down(now) || self.closed.is_some_and(|at| now >= at + self.linger) {
            self.end(now, End::Local, 3);
        }
    }

    /// Whether nothing is left to deliver of a closed connection. A peer with libudt knows no end
    /// of a stream but the end of the connection.
    fn is_ready_to_shut_down(&self, now: Micros) -> bool {
        let finished = self.sender.is_finished() && !self.parameters.ropewalk;
        (self.closed.is_some() || finished) && self.sender.is_flushed() && now >= self.data_from
    }

    fn end(&mut self, now: Micros, end: End, shutdowns: usize) {
        self.end = Some(end);
        let gone = if end == End::Local { now + GONE } else { now };
        let next = now.max(self.data_from);
        self.shutdown = Some(Shutdown { sent: 0, wanted: shutdowns, next, gone });
    }

    /// When to call [`Connection::poll_transmit`] again, if no datagram comes before.
    pub fn timeout(&self, now: Instant) -> Option<Instant> {
        let now = self.micros(now);
        let at = if let Some(shutdown) = &self.shutdown {
            if shutdown.sent < shutdown.wanted { Some(shutdown.next) } else { Some(shutdown.gone) }
        } else {
            let answer = self.handshaking.as_ref().and_then(|handshaking| ANSWERS.get(handshaking.sent));
            let dead = self.last_heard + self.silence;
            let linger = self.closed.map(|at| at + self.linger);
            let closes = self.is_ready_to_shut_down(now).then_some(now);
            let traffic = if now < self.data_from {
                Some(self.data_from)
            } else {
                let ack2 = (!self.ack2.is_empty()).then_some(now);
                let keep_alive = Some(self.last_sent + KEEP_ALIVE);
                let timers = [self.receiver.timeout(&self.rtt), self.sender.timeout(now, &self.rtt)];
                timers.into_iter().chain([ack2, keep_alive]).flatten().min()
            };
            [answer.copied(), Some(dead), linger, closes, traffic].into_iter().flatten().min()
        };
        at.map(|at| self.epoch + Duration::from_micros(at))
    }

    /// Takes bytes to send. Returns how many; 0 if there is no room.
    ///
    /// # Errors
    /// The stream is finished, or the connection has ended.
    pub fn write(&mut self, now: Instant, data: &[u8]) -> Result<usize, Error> {
        match self.end {
            Some(End::ByPeer) => return Err(Error::PeerClosed),
            Some(End::Silent) => return Err(Error::Silent),
            Some(End::Local) => return Err(Error::Closed),
            None if self.sender.is_finished() => return Err(Error::Closed),
            None => {}
        }
        Ok(self.sender.write(self.micros(now), data))
    }

    /// Sets the most bytes per second that are sent from now on, see [`Config::ceiling`].
    pub fn set_ceiling(&mut self, ceiling: Option<u64>) {
        self.sender.set_ceiling(ceiling);
    }

    /// Whether a write would not have to wait; it may fail.
    pub fn can_write(&self) -> bool {
        self.end.is_some() || self.sender.is_finished() || self.sender.is_writable()
    }

    /// Copies received bytes. `Some(0)` is the end of the stream, `None` means that there are no
    /// bytes yet.
    ///
    /// # Errors
    /// The connection has ended before the stream has.
    pub fn read(&mut self, now: Instant, buffer: &mut [u8]) -> Result<Option<usize>, Error> {
        let n = self.receiver.read(self.micros(now), buffer);
        if n > 0 || self.receiver.is_complete() || buffer.is_empty() {
            return Ok(Some(n));
        }
        match self.end {
            None => Ok(None),
            // libudt has no other end of a stream.
            Some(End::ByPeer | End::Local) if !self.parameters.ropewalk && !self.receiver.has_gap() => {
                Ok(Some(0))
            }
            Some(End::ByPeer) => Err(Error::Reset),
            Some(End::Silent) => Err(Error::Silent),
            Some(End::Local) => Err(Error::Closed),
        }
    }

    /// Whether a read would not have to wait; it may fail.
    pub fn can_read(&self) -> bool {
        self.end.is_some() || self.unread() > 0 || self.receiver.is_complete()
    }

    /// The bytes that can be read.
    pub fn unread(&self) -> usize {
        self.receiver.unread()
    }

    /// Whether the peer sends no more bytes.
    pub fn peer_finished(&self) -> bool {
        matches!(self.end, Some(End::ByPeer | End::Silent)) || self.receiver.is_complete()
    }

    /// Ends the stream to the peer, after all bytes that were written. A connection with libudt
    /// ends in both directions when the peer has acknowledged everything.
    pub fn finish(&mut self, now: Instant) {
        if self.end.is_none() {
            self.sender.finish(self.micros(now));
        }
    }

    /// Closes the connection: written bytes are delivered, but nothing is read any more.
    pub fn close(&mut self, now: Instant) {
        self.finish(now);
        let now = self.micros(now);
        self.closed.get_or_insert(now);
    }

    /// Ends the connection at once. A Ropewalk peer sees an error.
    pub fn abort(&mut self, now: Instant) {
        let now = self.micros(now);
        if self.end.is_none() {
            self.end(now, End::Local, 3);
        }
    }

    /// Whether the connection has no more to do with the network.
    pub fn is_gone(&self, now: Instant) -> bool {
        let now = self.micros(now);
        self.shutdown
            .as_ref()
            .is_some_and(|shutdown| shutdown.sent >= shutdown.wanted && now >= shutdown.gone)
    }

    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            rtt: Duration::from_micros(self.rtt.smoothed()),
            min_rtt: self.rtt.least().map(Duration::from_micros),
            ..Stats::default()
        };
        self.sender.stats(&mut stats);
        self.receiver.stats(&mut stats);
        stats
    }

    fn micros(&self, now: Instant) -> Micros {
        micros(now.saturating_duration_since(self.epoch))
    }
}

fn micros(duration: Duration) -> Micros {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
