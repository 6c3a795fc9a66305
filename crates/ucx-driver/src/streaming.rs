//! Data through the stream, between ends that do not share memory.
//!
//! The application writes to a ring of this end, whose memory is registered, and the thread of the
//! worker has UCX send from there, as far as the ring of the peer has room. The thread of the peer
//! receives straight into that ring. The room of sent data is used again once UCX has no use for
//! the bytes any more.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

use ropewalk_transport::Interest;

use crate::frame::{Frame, MOST_DATA};
use crate::link::Link;
use crate::sys::{Endpoint, HEADER, Memory, Operation, Producer, Ring, Role, Waiting};

/// Sends what the application writes.
pub(crate) struct Outgoing {
    memory: Arc<Memory>,
    ring: Ring,
    /// The size of the peer's ring.
    window: u64,
    /// Positions: until which data was given to UCX, and was read by the peer.
    sent: u64,
    read: u64,
    under_way: VecDeque<(u64, Operation)>,
}

impl Outgoing {
    /// Sends from a ring in `memory` to one of the peer with `window` bytes.
    pub(crate) fn new(memory: Arc<Memory>, window: u64) -> Self {
        let ring = Ring::own(&memory);
        Self { memory, ring, window, sent: 0, read: 0, under_way: VecDeque::new() }
    }

    /// The ring to which the application writes.
    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// The position until which data was given to UCX.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// The peer has read until `position`.
    ///
    /// # Errors
    /// It has not got so much.
    pub(crate) fn peer_has_read(&mut self, position: u64) -> Result<(), &'static str> {
        if !(self.read..=self.sent).contains(&position) {
            return Err("that it has read what it has not got");
        }
        self.read = position;
        Ok(())
    }

    /// Sends what can be sent.
    pub(crate) fn serve(&mut self, link: &Link, endpoint: &Endpoint) {
        let mut free = None;
        while self.under_way.front().is_some_and(|(_, sending)| sending.is_over()) {
            free = self.under_way.pop_front().map(|(position, _)| position);
        }
        if let Some(free) = free
            && self.ring.advance(Role::Reader, free) == Some(Waiting::Message)
        {
            link.signal(Interest::Write);
        }
        let size = self.ring.length() as u64;
        loop {
            let (written, window) = (self.ring.position(Role::Writer), self.read + self.window);
            let from = self.sent % size;
            let count = written.min(window).saturating_sub(self.sent).min(size - from).min(MOST_DATA);
            if count > 0 {
                endpoint.send(Frame::Data(count as u32).encode());
                let start = HEADER + from as usize;
                let sending = endpoint.send_memory(&self.memory, start..start + count as usize);
                self.sent += count;
                self.under_way.push_back((self.sent, sending));
                continue;
            }
            if self.sent >= window {
                // The peer says when it has read.
                return;
            }
            self.ring.announce(Role::Reader, Waiting::Message, written + 1);
            if self.ring.position(Role::Writer) == written {
                return;
            }
        }
    }
}

/// Receives into the ring of this end, in place of the peer, which cannot see it.
pub(crate) struct Incoming {
    memory: Arc<Memory>,
    producer: Producer,
    /// How many bytes of the last DATA are still to come.
    left: u64,
    /// The position until which the peer knows what was read.
    reported: u64,
}

impl Incoming {
    pub(crate) fn new(memory: Arc<Memory>, ring: &Ring) -> Self {
        Self { memory, producer: Producer::new(ring.clone()), left: 0, reported: 0 }
    }

    /// So many bytes of data follow.
    ///
    /// # Errors
    /// There is no room for them.
    pub(crate) fn expect(&mut self, count: u32) -> Result<(), &'static str> {
        match self.producer.room() {
            Ok(room) if count as usize <= room => {
                self.left = count.into();
                Ok(())
            }
            _ => Err("more than it may"),
        }
    }

    /// The memory into which the next bytes are to be received, if data is to come.
    pub(crate) fn space(&self) -> Option<(Arc<Memory>, Range<usize>)> {
        let (offset, most) = self.producer.next();
        let count = usize::try_from(self.left).unwrap_or(most).min(most);
        let start = HEADER + offset;
        (count > 0).then(|| (Arc::clone(&self.memory), start..start + count))
    }

    /// Data has come as the next bytes of a buffer. Returns how many they are.
    ///
    /// # Errors
    /// The reader of the ring breaks its rules.
    pub(crate) fn copy(&mut self, link: &Link, bytes: &[u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let (count, waiting) = self.producer.write(&[IoSlice::new(&bytes[..most])])?;
        self.left -= count as u64;
        Self::report(link, waiting);
        Ok(count)
    }

    /// `count` bytes were received at the beginning of [`Incoming::space`].
    pub(crate) fn received(&mut self, link: &Link, count: usize) {
        self.left = self.left.saturating_sub(count as u64);
        Self::report(link, self.producer.add(count));
    }

    fn report(link: &Link, waiting: Option<Waiting>) {
        if waiting == Some(Waiting::Message) {
            link.signal(Interest::Read);
        }
    }

    /// Reports to the peer what was read, once it is a quarter of the ring.
    pub(crate) fn give_room(&mut self, endpoint: &Endpoint) {
        let ring = self.producer.ring();
        let quarter = (ring.length() as u64 / 4).max(1);
        loop {
            let read = ring.position(Role::Reader);
            if read >= self.reported + quarter {
                self.reported = read;
                endpoint.send(Frame::Read(read).encode());
            }
            ring.announce(Role::Writer, Waiting::Message, self.reported + quarter);
            if ring.position(Role::Reader) < self.reported + quarter {
                return;
            }
        }
    }
}
