//! A connection as the thread of its worker uses it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use ropewalk_udp::{Failure, Wish};

use crate::frame::{Frame, MOST_KEY, Reader};
use crate::inspection::shares_memory;
use crate::link::Link;
use crate::streaming::{Incoming, Outgoing};
use crate::sys::{
    Closing, Context, Endpoint, HEADER, Memory, PeerMemory, Producer, Receive, ReceiveSlot, Ring, Space,
};

/// A peer that does not open the connection within this time is no peer of this protocol.
const PATIENCE: Duration = Duration::from_secs(30);
/// The size of the buffer into which frames are received.
const BUFFER: usize = 4 << 10;
/// How many receives one connection has before others have theirs.
const RECEIVES: usize = 64;
/// The most bytes of a ring in shared memory, which stays in caches if it is no larger than they
/// are.
const SHARED: usize = 1 << 20;

pub(crate) struct Entry {
    pub(crate) link: Arc<Link>,
    context: &'static Context,
    /// The size of the ring of this end in bytes.
    ring: usize,
    end: End,
    receiving: Option<Arc<ReceiveSlot>>,
    reader: Reader,
    greeted: bool,
    sending: Option<Sending>,
    /// The memory of the ring of this end.
    memory: Option<Arc<Memory>>,
    /// Once data has come through the stream.
    incoming: Option<Incoming>,
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

/// How data gets to the peer.
enum Sending {
    /// The application writes it into the memory of the peer.
    Mapped(PeerMemory),
    Stream(Outgoing),
}

/// The outcome of a service.
#[derive(Default)]
pub(crate) struct Served {
    /// There may be more to receive.
    pub(crate) again: bool,
    /// The connection has become open.
    pub(crate) opened: bool,
}

fn invalid(text: &str) -> io::Error {
    let text = format!("the peer of a UCX connection has sent {text}");
    io::Error::new(io::ErrorKind::InvalidData, text)
}

impl Entry {
    pub(crate) fn new(context: &'static Context, endpoint: Endpoint, link: Arc<Link>, ring: usize) -> Self {
        endpoint.send(Frame::Open.encode());
        Self {
            link,
            context,
            ring,
            end: End::Open(endpoint),
            receiving: None,
            reader: Reader::default(),
            greeted: false,
            sending: None,
            memory: None,
            incoming: None,
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

    fn is_open(&self) -> bool {
        self.sending.is_some()
    }

    /// When to look at the connection even if nothing happens.
    pub(crate) fn next(&self) -> Option<Instant> {
        (!self.is_open() && matches!(self.end, End::Open(_))).then_some(self.deadline)
    }

    /// Receives, and sends what the application wants to send.
    pub(crate) fn serve(mut self, served: &mut Served) -> Self {
        if matches!(self.end, End::Closing(_)) {
            return self;
        }
        let wish = self.link.look(|state| state.wish);
        if wish == Wish::Abort || wish == Wish::Close && !self.is_open() {
            return self.close();
        }
        if let Err(error) = self.exchange(served) {
            let ended = self.link.change(|state| {
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

    fn close(mut self) -> Self {
        self.link.shut();
        let memory = match self.sending.take() {
            Some(Sending::Mapped(memory)) => Some(memory),
            Some(Sending::Stream(_)) | None => None,
        };
        let end = match self.end {
            End::Open(endpoint) => End::Closing(endpoint.close(memory)),
            closing @ End::Closing(_) => closing,
        };
        Self { end, ..self }
    }

    fn exchange(&mut self, served: &mut Served) -> io::Result<()> {
        let was_open = self.is_open();
        let received = self.receive(served);
        served.opened |= self.is_open() && !was_open;
        received?;
        let End::Open(endpoint) = &self.end else { return Ok(()) };
        if let Some(error) = endpoint.failure() {
            return Err(error);
        }
        let Some(sending) = &mut self.sending else {
            if Instant::now() >= self.deadline {
                let text = "the peer of a UCX connection does not open it";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            return Ok(());
        };
        // Before what was written is looked at: nothing is written after that.
        let (wish, peer_stopped) = self.link.look(|state| (state.wish, state.peer_stopped));
        // DATA and READ are such messages, too.
        let (more_data, more_room) = self.link.take_messages();
        let is_mapped = matches!(sending, Sending::Mapped(_));
        if more_data && is_mapped || more_room && self.incoming.is_none() {
            endpoint.send(Frame::Bell.encode());
        }
        let written = self.link.written();
        let is_sent = match sending {
            Sending::Mapped(_) => true,
            Sending::Stream(outgoing) => {
                outgoing.serve(&self.link, endpoint);
                peer_stopped || outgoing.sent() >= written
            }
        };
        if let Some(incoming) = &mut self.incoming {
            incoming.give_room(endpoint);
        }
        // An abort may have come meanwhile.
        if matches!(wish, Wish::Finish | Wish::Close) && is_sent {
            if wish == Wish::Close && !self.close_sent {
                endpoint.send(Frame::Close(written).encode());
                self.close_sent = true;
            } else if !self.finish_sent && !self.close_sent {
                endpoint.send(Frame::Finish(written).encode());
            }
            self.finish_sent = true;
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
                    let data = self.incoming.as_ref().and_then(Incoming::space);
                    let space = data.map_or_else(
                        || Space::Buffer(BytesMut::zeroed(BUFFER)),
                        |(memory, range)| Space::Memory(memory, range),
                    );
                    let End::Open(endpoint) = &self.end else { return Ok(()) };
                    match endpoint.receive(space) {
                        Receive::Over(received) => received,
                        Receive::Pending(slot) => {
                            self.receiving = Some(slot);
                            return Ok(());
                        }
                    }
                }
            };
            match received {
                (Space::Memory(..), count) => {
                    let count = count?;
                    if let Some(incoming) = &mut self.incoming {
                        incoming.received(&self.link, count);
                    }
                }
                (Space::Buffer(buffer), count) => {
                    self.reader.push(&buffer[..count?.min(buffer.len())]);
                    self.take_all()?;
                }
            }
        }
        served.again = true;
        Ok(())
    }

    /// Takes the frames that have come, and data as far as it is in the same buffer.
    fn take_all(&mut self) -> io::Result<()> {
        loop {
            if let Some(incoming) = &mut self.incoming {
                let rest = self.reader.rest();
                let count = incoming.copy(&self.link, rest)?;
                rest.advance(count);
            }
            let Some(frame) = self.reader.next().map_err(|error| invalid(&error.0))? else { return Ok(()) };
            self.take(frame)?;
        }
    }

    fn take(&mut self, frame: Frame) -> io::Result<()> {
        let End::Open(endpoint) = &self.end else { return Ok(()) };
        match frame {
            Frame::Open if !self.greeted => {
                self.greeted = true;
                // Only now are the transports known.
                let shares = shares_memory(&endpoint.description()?);
                let memory = Arc::new(if shares {
                    Memory::shared(self.context, HEADER + self.ring.min(SHARED), HEADER)?
                } else {
                    Memory::private(self.context, HEADER + self.ring)?
                });
                self.link.use_memory(&memory);
                let (address, length) = (memory.address().as_ptr() as u64, memory.length() as u64);
                let key = if shares { memory.key()? } else { Vec::new() };
                endpoint.send(Frame::Ring(address, length, key.into()).encode());
                self.memory = Some(memory);
            }
            _ if !self.greeted => return Err(invalid("another frame than OPEN first")),
            Frame::Open => return Err(invalid("OPEN twice")),
            Frame::Ring(address, length, key) if self.sending.is_none() => {
                let addresses = endpoint.addresses()?;
                let (sending, producer) = self.begin(endpoint, address, length, &key)?;
                self.sending = Some(sending);
                self.link.open(producer, addresses);
            }
            _ if self.sending.is_none() => return Err(invalid("another frame than RING after OPEN")),
            Frame::Ring(..) => return Err(invalid("RING twice")),
            Frame::Data(count) => {
                if let (None, Some(memory), Some(ring)) = (&self.incoming, &self.memory, self.link.own_ring())
                {
                    self.incoming = Some(Incoming::new(Arc::clone(memory), ring));
                }
                if let Some(incoming) = &mut self.incoming {
                    incoming.expect(count).map_err(invalid)?;
                }
            }
            Frame::Read(position) => match &mut self.sending {
                Some(Sending::Stream(outgoing)) => outgoing.peer_has_read(position).map_err(invalid)?,
                _ => return Err(invalid("READ without DATA")),
            },
            Frame::Bell => self.link.look_at_rings(),
            Frame::Finish(end) => self.link.change(|state| state.end = Some(end)),
            Frame::Close(end) => {
                self.link.change(|state| {
                    state.end = Some(end);
                    state.peer_stopped = true;
                });
                endpoint.send(Frame::Done.encode());
            }
            Frame::Done if self.close_sent => self.peer_done = true,
            Frame::Done => return Err(invalid("DONE without CLOSE")),
        }
        Ok(())
    }

    /// Chooses how data gets into the ring of the peer.
    fn begin(
        &self,
        endpoint: &Endpoint,
        address: u64,
        length: u64,
        key: &Bytes,
    ) -> io::Result<(Sending, Producer)> {
        let window = length.checked_sub(HEADER as u64).filter(|&window| window > 0);
        let window = window.ok_or_else(|| invalid("a ring without room"))?;
        // UCX 1.13 crashes if it cannot map memory, which it can if it uses such memory itself.
        if !key.is_empty() && shares_memory(&endpoint.description()?) {
            let mut padded = key.to_vec();
            padded.resize(2 * MOST_KEY, 0);
            let length = usize::try_from(length).map_err(|_| invalid("too large a ring"))?;
            let peer = endpoint.peer_memory(&padded, address, length)?;
            if let Some(mapped) = peer.map() {
                let ring = Ring::peer(mapped)?;
                return Ok((Sending::Mapped(peer), Producer::new(ring)));
            }
        }
        let memory = Arc::new(Memory::private(self.context, HEADER + self.ring)?);
        let outgoing = Outgoing::new(memory, window);
        let producer = Producer::new(outgoing.ring().clone());
        Ok((Sending::Stream(outgoing), producer))
    }
}
