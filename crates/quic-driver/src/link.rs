//! The two queues between an application and the thread of its socket.
//!
//! A full queue stops its writer: the application waits until half of the queue is sent, and the
//! thread leaves received bytes in the QUIC connection, whose window then stops the peer.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};
use ropewalk_transport::{PathStats, Tuning};

/// The most bytes in each of the two queues.
const QUEUE: usize = 4 << 20;

pub(crate) type Link = ropewalk_udp::Link<Queues>;
pub(crate) type State = ropewalk_udp::State<Queues>;
pub(crate) type QuicConnection = ropewalk_udp::QueuedConnection<Queues>;

pub(crate) struct Queues {
    pub(crate) incoming: Pipe,
    pub(crate) outgoing: Pipe,
    /// The value that identifies the connection, once it is connected.
    pub(crate) binding: Option<[u8; 32]>,
    /// The thread has sent all of `outgoing`, and must be woken for more.
    pub(crate) is_idle: bool,
    /// New sizes of the windows: for sending and for receiving.
    pub(crate) windows: (Option<usize>, Option<usize>),
    pub(crate) stats: PathStats,
}

impl Queues {
    pub(crate) fn new() -> Self {
        Self {
            incoming: Pipe::default(),
            outgoing: Pipe::default(),
            binding: None,
            is_idle: true,
            windows: (None, None),
            stats: PathStats::default(),
        }
    }
}

/// Bytes on their way between the application and the thread.
#[derive(Default)]
pub(crate) struct Pipe {
    chunks: VecDeque<Bytes>,
    bytes: usize,
    /// The writer waits until the pipe is half empty.
    is_full: bool,
}

impl Pipe {
    pub(crate) fn push(&mut self, chunk: Bytes) {
        self.bytes += chunk.len();
        self.chunks.push_back(chunk);
        self.is_full |= self.bytes >= QUEUE;
    }

    /// How many bytes the pipe takes.
    pub(crate) fn room(&self) -> usize {
        if self.is_full { 0 } else { QUEUE - self.bytes }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The chunks, for a reader that takes some of their bytes away and reports them by
    /// [`Pipe::taken`].
    pub(crate) fn chunks(&mut self) -> &mut [Bytes] {
        self.chunks.make_contiguous()
    }

    /// Returns whether the writer can continue after it had to wait.
    pub(crate) fn taken(&mut self, bytes: usize) -> bool {
        while self.chunks.pop_front_if(|chunk| chunk.is_empty()).is_some() {}
        self.bytes -= bytes;
        let reopens = self.is_full && self.bytes <= QUEUE / 2;
        self.is_full &= !reopens;
        reopens
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl ropewalk_udp::Queues for Queues {
    const NAME: &'static str = "QUIC";

    fn has_data(&self) -> bool {
        self.incoming.len() > 0
    }

    fn has_room(&self) -> bool {
        self.outgoing.room() > 0
    }

    fn read(&mut self, buffer: &mut [u8]) -> (usize, bool) {
        let mut copied = 0;
        for chunk in self.incoming.chunks() {
            let count = chunk.len().min(buffer.len() - copied);
            chunk.copy_to_slice(&mut buffer[copied..copied + count]);
            copied += count;
            if copied == buffer.len() {
                break;
            }
        }
        (copied, self.incoming.taken(copied))
    }

    fn write(&mut self, data: &[IoSlice<'_>]) -> (usize, bool) {
        let before = self.outgoing.len();
        for part in data.iter().filter(|part| !part.is_empty()) {
            let count = part.len().min(self.outgoing.room());
            if count == 0 {
                break;
            }
            self.outgoing.push(Bytes::copy_from_slice(&part[..count]));
        }
        let written = self.outgoing.len() - before;
        (written, written > 0 && std::mem::take(&mut self.is_idle))
    }

    fn drop_outgoing(&mut self) {
        self.outgoing.clear();
    }

    fn stats(&self) -> PathStats {
        self.stats.clone()
    }

    /// The congestion control is chosen when the connection is made.
    fn tune(&mut self, tuning: &Tuning) -> bool {
        let (send, receive) = self.windows;
        self.windows = (tuning.send_buffer.or(send), tuning.receive_buffer.or(receive));
        (tuning.send_buffer, tuning.receive_buffer) != (None, None)
    }

    fn channel_binding(&self) -> Option<[u8; 32]> {
        self.binding
    }
}
