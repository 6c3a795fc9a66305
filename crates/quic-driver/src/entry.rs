//! A QUIC connection in the thread of its socket: it moves bytes between the queues of the
//! application and the QUIC stream, and reports what becomes of the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionEvent, ConnectionHandle, Dir, Endpoint, Event, ReadError, ReadableError,
    StreamEvent, StreamId, Transmit, WriteError,
};
use ropewalk_transport::PathStats;
use ropewalk_udp::{Failure, Queue, Queues as _, Wish};

use crate::failure::{self, ABORTED, DELIVERED};
use crate::link::{Link, QuicConnection, State};
use crate::observer::Counters;
use crate::tls;

/// The first byte of a stream, by which the connecting side opens it: the accepting side may be the
/// one that sends data. It is also the version of what comes after it.
const GREETING: u8 = 1;
/// The longest time from the first packet of a peer to its greeting.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// How long a peer may take nothing of the bytes that were written before the application closed.
const LINGER: Duration = Duration::from_secs(60);

pub(crate) struct Entry {
    connection: Connection,
    pub(crate) link: Arc<Link>,
    /// Gets the connection once the application can use it; `None` at the side that connects.
    queue: Option<Arc<Queue>>,
    counters: Arc<Counters>,
    /// The sizes of the windows.
    windows: (usize, usize),
    progress: Progress,
    stream: Option<StreamId>,
    /// The stream may have bytes to read, or room for bytes to write.
    is_readable: bool,
    is_writable: bool,
    /// The end of the stream was sent, and the peer has acknowledged it.
    is_finished: bool,
    is_delivered: bool,
    is_stopped: bool,
    limits: Limits,
    /// If the application has closed: the number of sent frames with data, and until when it must
    /// have grown.
    lingers: Option<(u64, Instant)>,
    /// When to look at the connection.
    pub(crate) next: Option<Instant>,
}

/// The stages of a connection before the application can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The side that connects waits for the end of the handshake.
    Connects,
    /// The side that accepts waits for the greeting until this time.
    Accepts(Instant),
    Ready,
}

/// The reasons for which the connection did not send faster.
#[derive(Default)]
struct Limits {
    times: ropewalk_transport::Limits,
    last: Option<Instant>,
    /// How often the peer was asked for a larger window, when the stream had room the last time.
    blocked_frames: u64,
}

impl Entry {
    pub(crate) fn connecting(
        connection: Connection,
        link: Arc<Link>,
        counters: Arc<Counters>,
        windows: (usize, usize),
    ) -> Self {
        Self::new(connection, link, counters, windows, Progress::Connects)
    }

    pub(crate) fn accepting(
        connection: Connection,
        link: Arc<Link>,
        counters: Arc<Counters>,
        windows: (usize, usize),
        now: Instant,
    ) -> Self {
        Self::new(connection, link, counters, windows, Progress::Accepts(now + GREETING_LIMIT))
    }

    fn new(
        connection: Connection,
        link: Arc<Link>,
        counters: Arc<Counters>,
        windows: (usize, usize),
        progress: Progress,
    ) -> Self {
        Self {
            connection,
            link,
            queue: None,
            counters,
            windows,
            progress,
            stream: None,
            is_readable: false,
            is_writable: false,
            is_finished: false,
            is_delivered: false,
            is_stopped: false,
            limits: Limits::default(),
            lingers: None,
            next: Some(Instant::now()),
        }
    }

    /// Sets the queue of a connection that was accepted.
    pub(crate) fn for_queue(self, queue: Arc<Queue>) -> Self {
        Self { queue: Some(queue), ..self }
    }

    pub(crate) fn is_for(&self, queue: &Arc<Queue>) -> bool {
        self.queue.as_ref().is_some_and(|own| Arc::ptr_eq(own, queue))
    }

    /// Hands the connection to the application that accepts it.
    pub(crate) fn hand_over(&self) {
        if let Some(queue) = &self.queue {
            queue.push(Box::new(QuicConnection::new(Arc::clone(&self.link))));
        }
    }

    /// Whether the application cannot use the connection yet.
    pub(crate) fn is_new(&self) -> bool {
        self.progress != Progress::Ready
    }

    /// Whether nothing more is sent or received.
    pub(crate) fn is_gone(&self) -> bool {
        self.connection.is_drained()
    }

    pub(crate) fn handle(&mut self, event: ConnectionEvent) {
        self.connection.handle_event(event);
        self.next = Some(Instant::now());
    }

    /// A message of the system says that no program listens at the peer's port. It can be forged,
    /// but a connection that is not yet made can only be tried again.
    pub(crate) fn is_unreachable(&mut self, now: Instant) {
        if self.progress == Progress::Connects {
            self.link.serve(|state| state.fail(failure::refused()));
            self.connection.close(now, ABORTED, Bytes::new());
            self.next = Some(now);
        }
    }

    /// Brings the connection up to date. Returns true when the application may now use it.
    pub(crate) fn serve(&mut self, now: Instant, endpoint: &mut Endpoint, handle: ConnectionHandle) -> bool {
        if self.connection.poll_timeout().is_some_and(|due| due <= now) {
            self.connection.handle_timeout(now);
        }
        self.exchange_events(endpoint, handle);
        let was_new = self.is_new();
        let link = Arc::clone(&self.link);
        link.serve(|state| {
            while let Some(event) = self.connection.poll() {
                self.take(event, state);
            }
            self.exchange_data(now, state);
            self.close(now, state);
            self.measure(now, state);
        });
        was_new && !self.is_new()
    }

    /// Returns the next datagrams to send, in `buffer`.
    pub(crate) fn transmit(&mut self, now: Instant, most: usize, buffer: &mut Vec<u8>) -> Option<Transmit> {
        buffer.clear();
        let fits = usize::from(u16::MAX) / usize::from(self.connection.current_mtu()).max(1);
        self.connection.poll_transmit(now, most.min(fits).max(1), buffer)
    }

    /// Plans the next look at the connection, after all was sent that can be sent now.
    pub(crate) fn plan(&mut self, endpoint: &mut Endpoint, handle: ConnectionHandle) {
        self.exchange_events(endpoint, handle);
        let greeting = match self.progress {
            Progress::Accepts(until) if !self.connection.is_closed() => Some(until),
            _ => None,
        };
        let lingers = self.lingers.filter(|_| !self.connection.is_closed()).map(|(_, until)| until);
        self.next = [self.connection.poll_timeout(), greeting, lingers].into_iter().flatten().min();
    }

    fn exchange_events(&mut self, endpoint: &mut Endpoint, handle: ConnectionHandle) {
        while let Some(event) = self.connection.poll_endpoint_events() {
            if let Some(answer) = endpoint.handle_event(handle, event) {
                self.connection.handle_event(answer);
            }
        }
    }

    fn take(&mut self, event: Event, state: &mut State) {
        match event {
            Event::Connected => {
                state.queues.binding = tls::binding(self.connection.crypto_session());
                state.is_connected = state.queues.binding.is_some();
                if self.progress == Progress::Connects {
                    self.stream = self.connection.streams().open(Dir::Bi);
                    self.is_writable = true;
                    self.is_readable = true;
                    self.greet(state);
                }
            }
            Event::ConnectionLost { reason } => {
                // The application may still read all that has come.
                self.is_readable = self.stream.is_some();
                self.receive(state, true);
                state.fail(failure::of(reason));
            }
            Event::Stream(StreamEvent::Opened { dir: Dir::Bi }) => {
                self.stream = self.connection.streams().accept(Dir::Bi);
                self.is_writable = true;
                self.is_readable = true;
            }
            Event::Stream(StreamEvent::Readable { .. }) => self.is_readable = true,
            Event::Stream(StreamEvent::Writable { .. }) => self.is_writable = true,
            Event::Stream(StreamEvent::Finished { .. }) => self.is_delivered = true,
            Event::Stream(StreamEvent::Stopped { .. }) => self.stop(state),
            _ => {}
        }
    }

    /// The peer reads no more of the stream.
    fn stop(&mut self, state: &mut State) {
        self.is_stopped = true;
        state.peer_stopped = true;
        state.queues.drop_outgoing();
    }

    fn greet(&mut self, state: &mut State) {
        let greeted = self
            .stream
            .is_some_and(|stream| matches!(self.connection.send_stream(stream).write(&[GREETING]), Ok(1)));
        if greeted && state.queues.binding.is_some() {
            self.progress = Progress::Ready;
        } else {
            state.fail(Failure::new(std::io::ErrorKind::InvalidData, "the peer takes no stream over QUIC"));
            state.wish = Wish::Abort;
        }
    }

    fn exchange_data(&mut self, now: Instant, state: &mut State) {
        if let Progress::Accepts(until) = self.progress {
            self.receive_greeting(state);
            if self.is_new() && until <= now {
                state.wish = Wish::Abort;
            }
        }
        if self.is_new() {
            return;
        }
        self.send(state);
        self.receive(state, false);
        if let Some(size) = state.queues.windows.0.take() {
            self.windows.0 = size;
            self.connection.set_send_window(size as u64);
        }
        if let Some(size) = state.queues.windows.1.take() {
            self.windows.1 = size;
            self.connection.set_receive_window(u32::try_from(size).unwrap_or(u32::MAX).into());
        }
    }

    fn receive_greeting(&mut self, state: &mut State) {
        let Some(stream) = self.stream.filter(|_| self.is_readable && state.queues.binding.is_some()) else {
            return;
        };
        let mut stream = self.connection.recv_stream(stream);
        let Ok(mut chunks) = stream.read(true) else { return };
        match chunks.next(1) {
            Ok(Some(chunk)) if *chunk.bytes == [GREETING] => self.progress = Progress::Ready,
            Err(ReadError::Blocked) => self.is_readable = false,
            _ => state.wish = Wish::Abort,
        }
    }

    fn send(&mut self, state: &mut State) {
        let Some(id) = self.stream else { return };
        let mut stream = self.connection.send_stream(id);
        while self.is_writable && state.queues.outgoing.len() > 0 {
            match stream.write_chunks(state.queues.outgoing.chunks()) {
                Ok(written) => {
                    state.queues.outgoing.taken(written.bytes);
                }
                Err(WriteError::Blocked) => self.is_writable = false,
                Err(WriteError::Stopped(_) | WriteError::ClosedStream) => return self.stop(state),
            }
        }
        state.queues.is_idle = state.queues.outgoing.len() == 0;
        if state.queues.is_idle && state.wish >= Wish::Finish && !self.is_finished {
            self.is_finished = true;
            if stream.finish().is_err() {
                self.is_stopped = true;
            }
        }
    }

    /// `all`: takes more than the queue has room for.
    fn receive(&mut self, state: &mut State, all: bool) {
        let Some(id) = self.stream.filter(|_| self.is_readable) else { return };
        let mut stream = self.connection.recv_stream(id);
        if state.wish >= Wish::Close {
            let _ = stream.stop(ABORTED);
            self.is_readable = false;
            return;
        }
        let mut chunks = match stream.read(true) {
            Ok(chunks) => chunks,
            Err(ReadableError::ClosedStream | ReadableError::IllegalOrderedRead) => {
                self.is_readable = false;
                return;
            }
        };
        while all || state.queues.incoming.room() > 0 {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => state.queues.incoming.push(chunk.bytes),
                Ok(None) => {
                    state.peer_finished = true;
                    self.is_readable = false;
                    return;
                }
                Err(error) => {
                    self.is_readable = false;
                    if let ReadError::Reset(_) = error {
                        state.fail(failure::reset());
                    }
                    return;
                }
            }
        }
    }

    /// Closes the connection if the application wants no more of it.
    fn close(&mut self, now: Instant, state: &State) {
        let is_delivered = self.is_delivered || self.is_stopped || state.failure.is_some();
        let code = match state.wish {
            _ if self.connection.is_closed() => return,
            Wish::Abort => ABORTED,
            Wish::Close if self.progress == Progress::Connects => ABORTED,
            Wish::Close if is_delivered => DELIVERED,
            Wish::Close => {
                let sent = self.connection.stats().frame_tx.stream;
                match self.lingers {
                    Some((before, until)) if before == sent && until <= now => ABORTED,
                    Some((before, until)) if before == sent && until > now => return,
                    _ => {
                        self.lingers = Some((sent, now + LINGER));
                        return;
                    }
                }
            }
            Wish::Everything | Wish::Finish => return,
        };
        self.connection.close(now, code, Bytes::new());
    }

    fn measure(&mut self, now: Instant, state: &mut State) {
        let stats = self.connection.stats();
        let in_flight = self.counters.in_flight();
        let limits = &mut self.limits;
        let frames = stats.frame_tx.data_blocked + stats.frame_tx.stream_data_blocked;
        let passed = now.saturating_duration_since(limits.last.replace(now).unwrap_or(now));
        if in_flight > 0 || state.queues.outgoing.len() > 0 {
            limits.times.busy += passed;
            if self.is_writable {
                limits.blocked_frames = frames;
            } else if frames > limits.blocked_frames {
                limits.times.receive_window += passed;
            } else if stats.path.cwnd >= self.windows.0 as u64 {
                limits.times.send_buffer += passed;
            }
        }
        let is_connected = state.queues.binding.is_some();
        state.queues.stats = PathStats {
            rtt: is_connected.then_some(stats.path.rtt),
            min_rtt: is_connected.then_some(stats.path.min_rtt),
            congestion_window: stats.path.cwnd,
            sent: stats.path.sent_packets,
            // QUIC sends the data of a lost packet in another packet.
            retransmitted: stats.path.lost_packets,
            received: stats.udp_rx.datagrams,
            delivered: Some(self.counters.delivered()),
            delivery_rate: self.counters.rate(),
            in_flight,
            not_sent: state.queues.outgoing.len() as u64,
            limits: limits.times,
            receive_window: u32::try_from(self.windows.1).ok(),
            send_buffer: Some(self.windows.0),
            receive_buffer: Some(self.windows.1),
            ..PathStats::default()
        };
    }
}
