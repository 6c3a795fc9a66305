//! A connection as the thread of its worker uses it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use ropewalk_udp::{Failure, Queues as _, Wish};

use crate::frame::{Frame, Reader};
use crate::link::Link;
use crate::sys::{Closing, Endpoint, Receive, ReceiveSlot};

/// A peer that does not open the connection within this time is no peer of this protocol.
const PATIENCE: Duration = Duration::from_secs(30);
/// The size of the buffers into which bytes are received, and the least space for a receive.
const BUFFER: usize = 512 << 10;
const LEAST_SPACE: usize = 16 << 10;
/// How many receives one connection has before others have theirs.
const RECEIVES: usize = 64;

pub(crate) struct Entry {
    pub(crate) link: Arc<Link>,
    end: End,
    receiving: Option<Arc<ReceiveSlot>>,
    /// The space for the next receive.
    buffer: BytesMut,
    reader: Reader,
    /// How many bytes of data the peer takes, and how many it may still send.
    credit: u64,
    allowance: u64,
    is_open: bool,
    /// Whether this end has sent FINISH and CLOSE, and whether the peer has answered CLOSE.
    finish_sent: bool,
    close_sent: bool,
    peer_done: bool,
    /// When to give up a connection that is not open.
    deadline: Instant,
}

enum End {
    Open(Endpoint),
    Closing(Closing),
}

/// The outcome of a service.
#[derive(Default)]
pub(crate) struct Served {
    /// There may be more to receive.
    pub(crate) again: bool,
    /// The connection has become open.
    pub(crate) opened: bool,
}

impl Entry {
    pub(crate) fn new(endpoint: Endpoint, link: Arc<Link>) -> Self {
        let window = link.look(|state| state.queues.window);
        endpoint.send(Frame::Open(window).encode());
        Self {
            link,
            end: End::Open(endpoint),
            receiving: None,
            buffer: BytesMut::new(),
            reader: Reader::default(),
            credit: 0,
            allowance: window.into(),
            is_open: false,
            finish_sent: false,
            close_sent: false,
            peer_done: false,
            deadline: Instant::now() + PATIENCE,
        }
    }

    /// Whether UCX has released the endpoint.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(&self.end, End::Closing(closing) if closing.is_over())
    }

    /// When to look at the connection even if nothing happens.
    pub(crate) fn next(&self) -> Option<Instant> {
        (!self.is_open && matches!(self.end, End::Open(_))).then_some(self.deadline)
    }

    /// Receives, and sends what the application wants to send.
    pub(crate) fn serve(mut self, served: &mut Served) -> Self {
        if matches!(self.end, End::Closing(_)) {
            return self;
        }
        let wish = self.link.look(|state| state.wish);
        if wish == Wish::Abort || wish == Wish::Close && !self.is_open {
            return self.close();
        }
        if let Err(error) = self.exchange(served) {
            let ended = self.link.serve(|state| {
                // The peer may let go of the connection after it has sent CLOSE.
                let ended = state.peer_stopped;
                if !ended {
                    state.fail(Failure::from(&error));
                }
                ended
            });
            if !ended {
                tracing::debug!(%error, "a UCX connection has failed");
            }
            return self.close();
        }
        if self.peer_done { self.close() } else { self }
    }

    fn close(self) -> Self {
        let end = match self.end {
            End::Open(endpoint) => End::Closing(endpoint.close()),
            closing => closing,
        };
        Self { end, ..self }
    }

    fn exchange(&mut self, served: &mut Served) -> io::Result<()> {
        let was_open = self.is_open;
        let received = self.receive(served);
        served.opened |= self.is_open && !was_open;
        received?;
        let End::Open(endpoint) = &self.end else { return Ok(()) };
        if let Some(error) = endpoint.failure() {
            return Err(error);
        }
        if !self.is_open {
            if Instant::now() >= self.deadline {
                let text = "the peer of a UCX connection does not open it";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            return Ok(());
        }
        let Self { link, credit, allowance, finish_sent, close_sent, .. } = self;
        let mut frames = Vec::new();
        link.serve(|state| {
            while let Some(frame) = state.queues.next_frame(credit) {
                frames.push(frame);
            }
            if state.queues.owes() && !state.peer_finished {
                frames.push(Frame::Credit(state.queues.read).encode());
                *allowance += u64::from(state.queues.read);
                state.queues.read = 0;
            }
            if matches!(state.wish, Wish::Finish | Wish::Close) && state.queues.is_sent() {
                let closes = state.wish == Wish::Close && !*close_sent;
                if closes {
                    frames.push(Frame::Close.encode());
                } else if !*finish_sent && !*close_sent {
                    frames.push(Frame::Finish.encode());
                }
                *finish_sent = true;
                *close_sent |= closes;
            }
        });
        for frame in frames {
            endpoint.send(frame);
        }
        Ok(())
    }

    fn receive(&mut self, served: &mut Served) -> io::Result<()> {
        for _ in 0..RECEIVES {
            let received = match self.receiving.take() {
                Some(slot) => match slot.take() {
                    Some(received) => received,
                    None => {
                        self.receiving = Some(slot);
                        return Ok(());
                    }
                },
                None => {
                    if self.buffer.len() < LEAST_SPACE {
                        self.buffer = BytesMut::zeroed(BUFFER);
                    }
                    let End::Open(endpoint) = &self.end else { return Ok(()) };
                    match endpoint.receive(std::mem::take(&mut self.buffer)) {
                        Receive::Over(received) => received,
                        Receive::Pending(slot) => {
                            self.receiving = Some(slot);
                            return Ok(());
                        }
                    }
                }
            };
            let (mut buffer, length) = received;
            let bytes = buffer.split_to(length?).freeze();
            self.buffer = buffer;
            self.take(bytes)?;
        }
        served.again = true;
        Ok(())
    }

    fn take(&mut self, mut bytes: Bytes) -> io::Result<()> {
        let invalid = |text: &str| {
            let text = format!("the peer of a UCX connection has sent {text}");
            io::Error::new(io::ErrorKind::InvalidData, text)
        };
        while let Some(frame) = self.reader.next(&mut bytes).map_err(|error| invalid(&error.0))? {
            let End::Open(endpoint) = &self.end else { return Ok(()) };
            match frame {
                Frame::Open(window) if !self.is_open => {
                    let addresses = endpoint.addresses()?;
                    self.credit = window.into();
                    self.is_open = true;
                    self.link.serve(|state| {
                        state.addresses = Some(addresses);
                        state.is_connected = true;
                    });
                }
                _ if !self.is_open => return Err(invalid("another frame than OPEN first")),
                Frame::Open(_) => return Err(invalid("OPEN twice")),
                Frame::Data(data) => {
                    let length = data.len() as u64;
                    let left = self.allowance.checked_sub(length);
                    self.allowance = left.ok_or_else(|| invalid("more than it may"))?;
                    self.link.serve(|state| {
                        // After that the application reads no more.
                        if state.wish < Wish::Close {
                            state.queues.push(data);
                        }
                    });
                }
                Frame::Credit(more) => self.credit += u64::from(more),
                Frame::Finish => self.link.serve(|state| state.peer_finished = true),
                Frame::Close => {
                    self.link.serve(|state| {
                        state.peer_finished = true;
                        state.peer_stopped = true;
                        state.queues.drop_outgoing();
                    });
                    endpoint.send(Frame::Done.encode());
                }
                Frame::Done if self.close_sent => self.peer_done = true,
                Frame::Done => return Err(invalid("DONE without CLOSE")),
            }
        }
        Ok(())
    }
}
