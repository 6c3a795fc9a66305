//! The two queues between an application and the thread of its worker.
//!
//! The thread sends from a queue of whole frames as far as the peer's credit goes; a full queue
//! stops the application until half of it is sent. The other queue never has more bytes than this
//! end has given as credit.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};
use ropewalk_transport::PathStats;

use crate::frame::{self, HEADER, MOST_DATA};

/// The most bytes that wait to be sent.
const QUEUE: usize = 4 << 20;

pub(crate) type Link = ropewalk_udp::Link<Queues>;
pub(crate) type UcxConnection = ropewalk_udp::QueuedConnection<Queues>;

pub(crate) struct Queues {
    /// How many bytes of data the peer may send before the application reads.
    pub(crate) window: u32,
    incoming: VecDeque<Bytes>,
    incoming_bytes: usize,
    /// Bytes that were read and not yet given to the peer as credit.
    pub(crate) read: u32,
    /// Data frames.
    outgoing: VecDeque<Bytes>,
    outgoing_bytes: usize,
    /// The application waits until the queue is half empty.
    is_full: bool,
}

impl Queues {
    pub(crate) fn new(window: u32) -> Self {
        Self {
            window,
            incoming: VecDeque::new(),
            incoming_bytes: 0,
            read: 0,
            outgoing: VecDeque::new(),
            outgoing_bytes: 0,
            is_full: false,
        }
    }

    /// Whether so much was read that the peer is to learn of it.
    pub(crate) fn owes(&self) -> bool {
        self.read >= self.window / 4
    }

    /// For the thread: takes the next frame if the credit is enough for it, and lowers the credit.
    pub(crate) fn next_frame(&mut self, credit: &mut u64) -> Option<Bytes> {
        let bytes = self.outgoing.front()?.len() - HEADER;
        *credit = credit.checked_sub(bytes as u64)?;
        self.outgoing_bytes -= bytes;
        self.is_full &= self.outgoing_bytes > QUEUE / 2;
        self.outgoing.pop_front()
    }

    pub(crate) fn push(&mut self, bytes: Bytes) {
        self.incoming_bytes += bytes.len();
        self.incoming.push_back(bytes);
    }

    /// Whether all data was given to UCX.
    pub(crate) fn is_sent(&self) -> bool {
        self.outgoing.is_empty()
    }

    fn room(&self) -> usize {
        if self.is_full { 0 } else { QUEUE - self.outgoing_bytes }
    }
}

/// UCX has its own congestion control, and the window is part of the handshake: nothing can be
/// tuned.
impl ropewalk_udp::Queues for Queues {
    const NAME: &'static str = "UCX";

    fn has_data(&self) -> bool {
        self.incoming_bytes > 0
    }

    fn has_room(&self) -> bool {
        self.room() > 0
    }

    fn read(&mut self, buffer: &mut [u8]) -> (usize, bool) {
        let mut copied = 0;
        while copied < buffer.len()
            && let Some(chunk) = self.incoming.front_mut()
        {
            let count = chunk.len().min(buffer.len() - copied);
            chunk.copy_to_slice(&mut buffer[copied..copied + count]);
            copied += count;
            if chunk.is_empty() {
                self.incoming.pop_front();
            }
        }
        self.incoming_bytes -= copied;
        let before = self.owes();
        // No more than the window was received.
        self.read += copied as u32;
        (copied, !before && self.owes())
    }

    fn write(&mut self, data: &[IoSlice<'_>]) -> (usize, bool) {
        let was_empty = self.outgoing.is_empty();
        let mut parts = data.iter().map(|part| &part[..]).filter(|part| !part.is_empty()).peekable();
        let mut rest: &[u8] = &[];
        let mut written = 0;
        while self.room() > 0 && (!rest.is_empty() || parts.peek().is_some()) {
            let mut left = self.room().min(MOST_DATA);
            let mut frame = Vec::new();
            while left > 0 {
                if rest.is_empty() {
                    let Some(part) = parts.next() else { break };
                    rest = part;
                }
                let (now, later) = rest.split_at(rest.len().min(left));
                left -= now.len();
                frame.push(now);
                rest = later;
            }
            let frame = frame::data(&frame);
            let bytes = frame.len() - HEADER;
            written += bytes;
            self.outgoing_bytes += bytes;
            self.is_full |= self.outgoing_bytes >= QUEUE;
            self.outgoing.push_back(frame);
        }
        (written, written > 0 && was_empty)
    }

    fn drop_outgoing(&mut self) {
        self.outgoing.clear();
        self.outgoing_bytes = 0;
        self.is_full = false;
    }

    fn stats(&self) -> PathStats {
        PathStats {
            not_sent: self.outgoing_bytes as u64,
            send_buffer: Some(QUEUE),
            receive_buffer: usize::try_from(self.window).ok(),
            ..PathStats::default()
        }
    }
}
