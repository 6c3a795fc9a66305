//! A ring of bytes in memory that two threads share, of one process or of two.
//!
//! The memory begins with a [`Header`]: how many bytes were ever written and read, and who waits
//! for the other side. One [`Producer`] writes, one [`Consumer`] reads; neither takes a lock, and
//! none makes a system call unless the other side waits. The other side may be a peer that breaks
//! the rules: the numbers that it writes are checked, and bytes are copied out before use.

use std::io::{self, IoSlice, IoSliceMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_transport::timespec;
use rustix::thread::futex;

use super::memory::{Mapped, Memory};

/// The size of the header in bytes: one page, so that the bytes begin at another.
pub(crate) const HEADER: usize = 4096;

#[repr(C)]
struct Header {
    writer: Side,
    reader: Side,
}

/// One side, on a cache line of its own.
#[repr(C, align(64))]
struct Side {
    /// How many bytes it has written or read, ever.
    position: AtomicU64,
    /// The position of the other side for which it waits.
    wanted: AtomicU64,
    /// How it waits: a number of [`Waiting`], or 0.
    waiting: AtomicU32,
}

/// How a side waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// A thread sleeps on the futex.
    Thread = 1,
    /// The threads of the workers are to send a message.
    Message = 2,
}

/// A side of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Writer,
    Reader,
}

/// A reference to a ring.
#[derive(Clone)]
pub(crate) struct Ring {
    address: NonNull<u8>,
    /// How many bytes there are behind the header.
    length: usize,
    /// Keeps the memory.
    _memory: Arc<dyn Send + Sync>,
}

// SAFETY: threads share the memory through atomic numbers, and each byte belongs to one side.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

impl Ring {
    /// Makes a ring of all the memory of this process behind [`HEADER`]. No peer may know it yet.
    pub(crate) fn own(memory: &Arc<Memory>) -> Self {
        let length = memory.length().saturating_sub(HEADER);
        Self { address: memory.address(), length, _memory: Arc::<Memory>::clone(memory) }
    }

    /// The ring in memory of a peer.
    ///
    /// # Errors
    /// The peer has said that its memory is longer than it is.
    pub(crate) fn peer(mapped: Mapped) -> io::Result<Self> {
        let (start, all) = (mapped.address.as_ptr() as usize, mapped.key.length);
        if all <= HEADER || !start.is_multiple_of(align_of::<Header>()) || !is_shared(start, all)? {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the peer's memory is not what it says"));
        }
        Ok(Self { address: mapped.address, length: all - HEADER, _memory: mapped.key })
    }

    /// How many bytes it has.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    fn header(&self) -> &Header {
        // SAFETY: the memory is aligned, begins with a header of atomic numbers, for which all bit
        // patterns are valid, and lives as long as `self`.
        unsafe { self.address.cast::<Header>().as_ref() }
    }

    fn side(&self, role: Role) -> &Side {
        match role {
            Role::Writer => &self.header().writer,
            Role::Reader => &self.header().reader,
        }
    }

    /// The offset of the byte at this position, and how many bytes are there until the end of the
    /// ring.
    fn offset(&self, position: u64) -> (usize, usize) {
        let offset = (position % self.length as u64) as usize;
        (offset, self.length - offset)
    }

    /// The address of the byte at this position, and how many bytes are there until the end of the
    /// ring.
    fn at(&self, position: u64) -> (*mut u8, usize) {
        let (offset, most) = self.offset(position);
        // SAFETY: the offset is less than the length of the ring.
        (unsafe { self.address.as_ptr().add(HEADER + offset) }, most)
    }

    /// How many bytes the side has written or read, as it says itself.
    pub(crate) fn position(&self, role: Role) -> u64 {
        self.side(role).position.load(Ordering::SeqCst)
    }

    /// Says how many bytes the side has written or read. Returns how the other side waits for
    /// that; a thread is woken here.
    pub(crate) fn advance(&self, role: Role, position: u64) -> Option<Waiting> {
        self.side(role).position.store(position, Ordering::SeqCst);
        let other = self.side(role.other());
        if other.waiting.load(Ordering::SeqCst) == 0 || position < other.wanted.load(Ordering::SeqCst) {
            return None;
        }
        other.wake()
    }

    /// Announces that the side waits until the other one has got to `wanted`. It must look once
    /// more after that, before it waits.
    pub(crate) fn announce(&self, role: Role, how: Waiting, wanted: u64) {
        let side = self.side(role);
        side.wanted.store(wanted, Ordering::SeqCst);
        side.waiting.store(how as u32, Ordering::SeqCst);
    }

    /// The side does not wait.
    pub(crate) fn go_on(&self, role: Role) {
        self.side(role).waiting.store(0, Ordering::SeqCst);
    }

    /// Whether the side waits, as far as the other side has not ended that.
    pub(crate) fn waits(&self, role: Role) -> bool {
        self.side(role).waiting.load(Ordering::SeqCst) != 0
    }

    /// Sleeps after [`Waiting::Thread`] was announced, at most `limit`.
    pub(crate) fn sleep(&self, role: Role, limit: Duration) {
        // It may end early for any reason; the caller looks again.
        let (word, waits) = (&self.side(role).waiting, Waiting::Thread as u32);
        let _ = futex::wait(word, futex::Flags::empty(), waits, Some(&timespec(limit)));
    }

    /// Wakes the side if a thread of it sleeps.
    pub(crate) fn wake(&self, role: Role) {
        self.side(role).wake();
    }
}

impl Role {
    fn other(self) -> Self {
        match self {
            Self::Writer => Self::Reader,
            Self::Reader => Self::Writer,
        }
    }
}

impl Side {
    fn wake(&self) -> Option<Waiting> {
        const THREAD: u32 = Waiting::Thread as u32;
        const MESSAGE: u32 = Waiting::Message as u32;
        match self.waiting.swap(0, Ordering::SeqCst) {
            THREAD => {
                let _ = futex::wake(&self.waiting, futex::Flags::empty(), u32::MAX >> 1);
                Some(Waiting::Thread)
            }
            MESSAGE => Some(Waiting::Message),
            _ => None,
        }
    }
}

/// The side that writes.
pub(crate) struct Producer {
    ring: Ring,
    written: u64,
}

/// The side that reads.
pub(crate) struct Consumer {
    ring: Ring,
    read: u64,
}

/// The numbers of the other side make no sense.
fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the peer of a UCX connection breaks the rules of its ring")
}

impl Producer {
    /// There must be no other producer.
    pub(crate) fn new(ring: Ring) -> Self {
        Self { ring, written: 0 }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// How many bytes were written, ever.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// The position of the reader at which half of the ring is free.
    pub(crate) fn half(&self) -> u64 {
        self.written.saturating_sub(self.ring.length as u64 / 2)
    }

    /// How many bytes can be written.
    ///
    /// # Errors
    /// The reader has read what was not written.
    pub(crate) fn room(&self) -> io::Result<usize> {
        let unread = self.written.wrapping_sub(self.ring.position(Role::Reader));
        let unread = usize::try_from(unread).map_err(|_| broken())?;
        self.ring.length.checked_sub(unread).ok_or_else(broken)
    }

    /// The offset of the next byte in the ring, and how many bytes are there until the end of it.
    pub(crate) fn next(&self) -> (usize, usize) {
        self.ring.offset(self.written)
    }

    /// The next `count` bytes were written by another way. Returns how the reader waits for them.
    pub(crate) fn add(&mut self, count: usize) -> Option<Waiting> {
        self.written += count as u64;
        self.ring.advance(Role::Writer, self.written)
    }

    /// Writes as much as there is room for. Returns how much that is, and how the reader waits for
    /// it.
    ///
    /// # Errors
    /// As for [`Producer::room`].
    pub(crate) fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<(usize, Option<Waiting>)> {
        let mut room = self.room()?;
        let before = self.written;
        for part in parts {
            let mut part = &part[..part.len().min(room)];
            room -= part.len();
            while !part.is_empty() {
                let (to, most) = self.ring.at(self.written);
                let count = part.len().min(most);
                // SAFETY: the ring has so many bytes from `to` on, which belong to the writer, and
                // which are no memory of `part`.
                unsafe { to.copy_from_nonoverlapping(part.as_ptr(), count) };
                self.written += count as u64;
                part = &part[count..];
            }
        }
        let count = (self.written - before) as usize;
        Ok((count, if count > 0 { self.ring.advance(Role::Writer, self.written) } else { None }))
    }
}

impl Consumer {
    /// There must be no other consumer.
    pub(crate) fn new(ring: Ring) -> Self {
        Self { ring, read: 0 }
    }

    pub(crate) fn ring(&self) -> &Ring {
        &self.ring
    }

    /// How many bytes were read, ever.
    pub(crate) fn position(&self) -> u64 {
        self.read
    }

    /// How many bytes can be read.
    ///
    /// # Errors
    /// The writer has written more than there is room for.
    fn available(&self) -> io::Result<usize> {
        let unread = self.ring.position(Role::Writer).wrapping_sub(self.read);
        let count = usize::try_from(unread).map_err(|_| broken())?;
        if count > self.ring.length { Err(broken()) } else { Ok(count) }
    }

    /// Whether there are bytes to read.
    pub(crate) fn has_data(&self) -> bool {
        self.ring.position(Role::Writer) != self.read
    }

    /// Copies bytes out of the ring. Returns how many, and how the writer waits for the room.
    ///
    /// # Errors
    /// The writer has written more than there is room for.
    pub(crate) fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> io::Result<(usize, Option<Waiting>)> {
        let mut left = self.available()?;
        let before = self.read;
        for part in parts {
            let most = part.len().min(left);
            let mut part = &mut part[..most];
            left -= most;
            while !part.is_empty() {
                let (from, most) = self.ring.at(self.read);
                let count = part.len().min(most);
                // SAFETY: the ring has so many bytes at `from`, which belong to the reader, and
                // which are no memory of `part`. A peer that changes them nevertheless changes its
                // own data.
                unsafe { part.as_mut_ptr().copy_from_nonoverlapping(from, count) };
                self.read += count as u64;
                part = &mut part[count..];
            }
        }
        let count = (self.read - before) as usize;
        Ok((count, if count > 0 { self.ring.advance(Role::Reader, self.read) } else { None }))
    }
}

/// Whether the addresses are shared memory that may be written. UCX believes what a peer says of
/// its memory.
fn is_shared(start: usize, length: usize) -> io::Result<bool> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let end = start.checked_add(length);
    Ok(end.is_some_and(|end| maps.lines().any(|line| covers(line, start, end))))
}

/// Whether a line of `/proc/self/maps` is a shared mapping with these addresses.
fn covers(line: &str, start: usize, end: usize) -> bool {
    let mut words = line.split(' ');
    let addresses = words.next().and_then(|range| range.split_once('-'));
    let Some((from, to)) = addresses else { return false };
    let number = |text: &str| usize::from_str_radix(text, 16).ok();
    let is_shared = words.next().is_some_and(|rights| rights == "rw-s");
    is_shared && number(from).is_some_and(|from| from <= start) && number(to).is_some_and(|to| end <= to)
}

#[cfg(test)]
impl Ring {
    /// A ring of this many bytes in ordinary memory.
    pub(crate) fn in_process(length: usize) -> Self {
        #[repr(C, align(4096))]
        struct Page([u8; HEADER]);
        let pages = 1 + length.div_ceil(HEADER);
        let memory: Arc<Vec<Page>> = Arc::new((0..pages).map(|_| Page([0; HEADER])).collect());
        let address = NonNull::from_ref(memory.as_slice()).cast();
        Self { address, length, _memory: memory }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn ring(length: usize) -> Ring {
        Ring::in_process(length)
    }

    fn write(producer: &mut Producer, data: &[u8]) -> usize {
        producer.write(&[IoSlice::new(data)]).unwrap().0
    }

    fn read(consumer: &mut Consumer, most: usize) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; most];
        let count = consumer.read(&mut [IoSliceMut::new(&mut buffer)])?.0;
        buffer.truncate(count);
        Ok(buffer)
    }

    #[test]
    fn bytes_pass_the_end_of_the_ring_in_order() {
        let ring = ring(50);
        let mut producer = Producer::new(ring.clone());
        let mut consumer = Consumer::new(ring);
        let data: Vec<u8> = (0..1000_u32).map(|i| (i % 251) as u8).collect();
        let (mut sent, mut found) = (0, Vec::new());
        while found.len() < data.len() {
            let (head, tail) = data[sent..].split_at((data.len() - sent).min(7));
            sent += producer.write(&[IoSlice::new(head), IoSlice::new(tail)]).unwrap().0;
            assert!(producer.room().unwrap() == 0 || sent == data.len());
            found.extend(read(&mut consumer, 33).unwrap());
        }
        assert!(found == data && !consumer.has_data());
    }

    #[test]
    fn advance_reports_a_side_that_waits_once_it_has_enough() {
        let ring = ring(100);
        let mut producer = Producer::new(ring.clone());
        ring.announce(Role::Reader, Waiting::Message, 10);
        assert_eq!(producer.write(&[IoSlice::new(&[1; 9])]).unwrap(), (9, None));
        assert_eq!(producer.write(&[IoSlice::new(&[1])]).unwrap(), (1, Some(Waiting::Message)));
        assert_eq!(producer.write(&[IoSlice::new(&[1])]).unwrap(), (1, None));
        ring.announce(Role::Reader, Waiting::Message, 12);
        ring.go_on(Role::Reader);
        assert_eq!(write(&mut producer, &[1]), 1);
    }

    #[test]
    fn thread_that_sleeps_is_woken() {
        let ring = ring(100);
        let mut producer = Producer::new(ring.clone());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !Consumer::new(ring.clone()).has_data() {
                    ring.announce(Role::Reader, Waiting::Thread, 1);
                    if ring.position(Role::Writer) == 0 {
                        ring.sleep(Role::Reader, Duration::MAX);
                    }
                }
            });
            write(&mut producer, &[1]);
        });
    }

    #[test]
    fn numbers_of_a_peer_that_make_no_sense_are_errors() {
        let ring = ring(100);
        let mut producer = Producer::new(ring.clone());
        assert_eq!(write(&mut producer, &[1; 10]), 10);
        ring.advance(Role::Reader, 11);
        assert!(producer.room().is_err() && producer.write(&[IoSlice::new(&[1])]).is_err());
        let fails = |written| {
            ring.advance(Role::Writer, written);
            read(&mut Consumer::new(ring.clone()), 200).is_err()
        };
        assert!(fails(101) && fails(u64::MAX) && !fails(100));
    }

    #[test]
    fn covers_only_addresses_of_one_shared_mapping() {
        let line = "7f0000001000-7f0000003000 rw-s 00000000 00:18 7 /dev/shm/ucx_shm_posix_1";
        assert!(covers(line, 0x7f00_0000_1000, 0x7f00_0000_3000));
        assert!(!covers(line, 0x7f00_0000_1000, 0x7f00_0000_3001));
        assert!(!covers(line, 0x7f00_0000_0fff, 0x7f00_0000_3000));
        assert!(!covers(&line.replace("rw-s", "rw-p"), 0x7f00_0000_1000, 0x7f00_0000_3000));
        assert!(!covers("", 0, 0));
    }
}
