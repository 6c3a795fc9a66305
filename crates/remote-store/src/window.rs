//! The bytes of a file that have been received from one side and not yet been sent to the other.
//!
//! Threads put ranges and take them, both in any order; each byte is freed when it has been taken.
//! Bytes for which the window has no memory go to the spool, if there is one with room. Otherwise a
//! thread that puts bytes waits while the window is full. If a thread waits for missing bytes,
//! those, and bytes before them, are put at once: streams bring their bytes in order, so the
//! missing ones come, while streams that are ahead of them wait. But one thread may serve several
//! streams, and wait for room while the missing bytes are on another one of them. So if nothing
//! moves for a while, bytes that are ahead are put, too, until the window holds twice its share.
//! Beyond that it drops the bytes that precede the missing ones.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::{Error, ErrorKind, Result};

use crate::memory::Share;
use crate::spool::Spooled;

pub(crate) struct Window {
    state: Mutex<State>,
    /// Bytes have been put. Threads that take them wait for it.
    arrived: Condvar,
    /// Bytes have been taken, or others are missing. Threads that put them wait for it.
    room: Condvar,
    memory: Share,
    hopeless: Duration,
}

#[derive(Default)]
pub(crate) struct State {
    chunks: BTreeMap<u64, Chunk>,
    /// The bytes of `chunks` in memory.
    held: usize,
    /// All ranges of `chunks`.
    ranges: RangeSet,
    /// The offsets for which threads wait.
    waiting: Vec<u64>,
    /// How many times bytes were put or taken.
    moves: u64,
    /// The error for threads that put or wait.
    closed: Option<Error>,
    /// No more bytes will be put.
    ended: bool,
    /// The present use of the window; puts for other uses fail.
    pub(crate) generation: u64,
    /// The ranges that this use has put.
    pub(crate) arrived: RangeSet,
}

struct Chunk {
    data: Data,
    length: usize,
    unread: usize,
}

enum Data {
    Memory(Vec<u8>),
    /// Bytes in the spool, from the given one on.
    Disk(Arc<Spooled>, usize),
}

impl Chunk {
    fn in_memory(&self) -> usize {
        match &self.data {
            Data::Memory(data) => data.len(),
            Data::Disk(..) => 0,
        }
    }

    fn read(&self, buffer: &mut [u8], from: usize) -> Result<()> {
        match &self.data {
            Data::Memory(data) => buffer.copy_from_slice(&data[from..from + buffer.len()]),
            Data::Disk(spooled, start) => spooled
                .read(buffer, start + from)
                .map_err(|error| Error::from_io(&error, "read the spool of the relay", b""))?,
        }
        Ok(())
    }
}

/// The error of a thread that puts bytes for a use of the window that has ended.
pub(crate) fn over() -> Error {
    Error::new(ErrorKind::Interrupted, "read", b"")
}

/// If nothing is put or taken for so long, while a thread waits for missing bytes, bytes that are
/// ahead of them are put.
const STUCK: Duration = Duration::from_millis(100);
/// If there is no room even for these for so long, the streams are too far apart.
const HOPELESS: Duration = Duration::from_secs(30);

/// The detail of the error if the streams are too far apart.
pub(crate) const SCATTERED: &str = "the streams of the sender are farther apart than the memory allows";

impl State {
    /// Copies the bytes at `at`, if they are present.
    ///
    /// # Errors
    /// The spool cannot be read.
    pub(crate) fn take(&mut self, buffer: &mut [u8], at: u64) -> Result<Option<usize>> {
        let Some((&start, chunk)) = self.chunks.range_mut(..=at).next_back() else { return Ok(None) };
        let Some(from) = usize::try_from(at - start).ok().filter(|from| *from < chunk.length) else {
            return Ok(None);
        };
        let n = buffer.len().min(chunk.length - from);
        chunk.read(&mut buffer[..n], from)?;
        self.moves += 1;
        chunk.unread = chunk.unread.saturating_sub(n);
        if chunk.unread == 0 {
            self.drop_chunk(start);
        }
        Ok(Some(n))
    }

    fn drop_chunk(&mut self, start: u64) {
        if let Some(chunk) = self.chunks.remove(&start) {
            self.held -= chunk.in_memory();
            self.ranges.remove(start..start + chunk.length as u64);
        }
    }

    /// Adds the bytes that are not present yet. `spooled` has the same bytes, if they are on disk.
    fn insert(&mut self, data: &[u8], at: u64, spooled: Option<&Arc<Spooled>>) {
        let end = at + data.len() as u64;
        for gap in self.ranges.complement(at..end).iter() {
            let part = (gap.start - at) as usize..(gap.end - at) as usize;
            let length = part.len();
            let data = match spooled {
                Some(spooled) => Data::Disk(Arc::clone(spooled), part.start),
                None => Data::Memory(data[part].to_vec()),
            };
            let chunk = Chunk { data, length, unread: length };
            self.held += chunk.in_memory();
            self.chunks.insert(gap.start, chunk);
        }
        self.ranges.insert(at..end);
        self.arrived.insert(at..end);
        self.moves += 1;
    }

    /// The lowest offset for which a thread waits.
    fn first_missing(&self) -> Option<u64> {
        self.waiting.iter().min().copied()
    }

    /// Drops bytes in memory that precede those for which threads wait, even if no thread has taken
    /// them.
    fn make_room(&mut self, wanted: usize, limit: usize) {
        let Some(first) = self.first_missing() else { return };
        while self.held + wanted > limit {
            let preceding = self.chunks.range(..first).find(|(_, chunk)| chunk.in_memory() > 0);
            let Some((&start, chunk)) = preceding else { return };
            if start + chunk.length as u64 > first {
                return;
            }
            self.drop_chunk(start);
        }
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Starts a new use of the window.
    pub(crate) fn begin(&mut self) -> u64 {
        self.generation += 1;
        self.arrived = RangeSet::new();
        self.generation
    }
}

impl Window {
    pub(crate) fn new(memory: Share) -> Self {
        let state = Mutex::default();
        Self { state, arrived: Condvar::new(), room: Condvar::new(), memory, hopeless: HOPELESS }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// The number of bytes that the window may hold.
    pub(crate) fn limit(&self) -> usize {
        self.memory.limit()
    }

    /// The number of streams that the window has room for.
    pub(crate) fn streams(&self) -> u32 {
        self.memory.streams()
    }

    /// Puts bytes, and waits while the window and the spool are full.
    ///
    /// # Errors
    /// The window is closed, serves another use by now, or has had no room for a long time while
    /// bytes are missing.
    pub(crate) fn put(&self, generation: u64, data: &[u8], at: u64) -> Result<()> {
        let mut state = self.state.lock();
        // The last change that this thread has seen.
        let (mut moves, mut since) = (state.moves, Instant::now());
        let mut spooled = None;
        // The value of `moves` when the spool last had no room.
        let mut refused = None;
        loop {
            if let Some(error) = &state.closed {
                return Err(error.clone());
            }
            if state.generation != generation {
                return Err(over());
            }
            let limit = self.memory.limit();
            if spooled.is_some() || state.held == 0 || state.held + data.len() <= limit {
                break;
            }
            let missing = state.first_missing();
            if missing.is_none_or(|missing| at > missing)
                && refused != Some(state.moves)
                && let Some(spool) = self.memory.spool()
            {
                refused = Some(state.moves);
                spooled = MutexGuard::unlocked(&mut state, || spool.store(data));
                // The window may have got room, or a new use, meanwhile.
                continue;
            }
            let Some(missing) = missing else {
                self.room.wait(&mut state);
                continue;
            };
            if state.moves != moves {
                (moves, since) = (state.moves, Instant::now());
            }
            let still = since.elapsed();
            if at <= missing || still >= STUCK {
                state.make_room(data.len(), 2 * limit);
                // Nothing else lets the thread that waits go on.
                if at <= missing || state.held + data.len() <= 2 * limit {
                    break;
                }
            }
            if still >= self.hopeless {
                return Err(Error::new(ErrorKind::Unsupported, "read", b"").with_detail(SCATTERED));
            }
            let pause = if still < STUCK { STUCK - still } else { self.hopeless - still };
            self.room.wait_for(&mut state, pause);
        }
        state.insert(data, at, spooled.as_ref());
        self.arrived.notify_all();
        Ok(())
    }

    /// Takes bytes that are known to be present.
    ///
    /// # Errors
    /// The window is closed.
    pub(crate) fn take(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        let mut state = self.state.lock();
        if let Some(error) = &state.closed {
            return Err(error.clone());
        }
        let taken = state.take(buffer, at)?.unwrap_or(0);
        self.room.notify_all();
        Ok(taken)
    }

    /// Takes the bytes at `at`, and waits for them. Returns 0 if no more bytes will be put.
    ///
    /// # Errors
    /// The window is closed.
    pub(crate) fn take_next(&self, buffer: &mut [u8], at: u64) -> Result<usize> {
        let mut state = self.state.lock();
        loop {
            if let Some(error) = &state.closed {
                return Err(error.clone());
            }
            if let Some(taken) = state.take(buffer, at)? {
                self.room.notify_all();
                return Ok(taken);
            }
            if state.ended {
                return Ok(0);
            }
            self.wait(&mut state, at);
        }
    }

    /// Waits for a change, for a thread that needs the bytes at `at`.
    pub(crate) fn wait(&self, state: &mut MutexGuard<'_, State>, at: u64) {
        state.waiting.push(at);
        // Threads that put may continue now.
        self.room.notify_all();
        self.arrived.wait(state);
        if let Some(own) = state.waiting.iter().position(|waiting| *waiting == at) {
            state.waiting.swap_remove(own);
        }
    }

    /// Wakes the threads that put, after bytes were taken.
    pub(crate) fn has_room(&self) {
        self.room.notify_all();
    }

    /// Wakes all waiting threads.
    pub(crate) fn wake(&self) {
        self.arrived.notify_all();
        self.room.notify_all();
    }

    /// Records that no more bytes will be put.
    pub(crate) fn end(&self) {
        self.state.lock().ended = true;
        self.wake();
    }

    /// Makes all threads that put or take fail.
    pub(crate) fn close(&self, error: Error) {
        let mut state = self.state.lock();
        state.closed.get_or_insert(error);
        state.chunks.clear();
        state.ranges = RangeSet::new();
        state.held = 0;
        drop(state);
        self.wake();
    }

    /// Empties a window that was closed or has ended, for a new use.
    pub(crate) fn reopen(&self) -> u64 {
        let mut state = self.state.lock();
        let (generation, waiting) = (state.generation, std::mem::take(&mut state.waiting));
        *state = State { generation, waiting, ..State::default() };
        state.begin()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::memory::Memory;
    use crate::spool::Spool;

    fn window(bytes: usize) -> Window {
        Window::new(Memory::new(bytes, None).share())
    }

    #[test]
    fn window_gives_each_byte_once_in_any_order() {
        let window = window(8 << 20);
        window.put(0, b"world", 5).unwrap();
        window.put(0, b"hello", 0).unwrap();
        // Bytes that are present already are not added twice.
        window.put(0, b"lowo", 3).unwrap();
        let mut buffer = [0; 10];
        assert_eq!((window.take(&mut buffer, 6).unwrap(), &buffer[..4]), (4, &b"orld"[..]));
        assert_eq!((window.take(&mut buffer, 0).unwrap(), &buffer[..5]), (5, &b"hello"[..]));
        assert_eq!(window.take(&mut buffer, 0).unwrap(), 0);
        assert_eq!((window.take(&mut buffer[..1], 5).unwrap(), window.state().held), (1, 0));
    }

    /// Waits until a thread waits for missing bytes.
    fn wait_for_reader(window: &Window) {
        while !window.state().is_waited_for() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn missing_bytes_are_put_into_a_full_window_and_none_is_dropped() {
        let window = &window(1 << 20);
        let block = &vec![7; 1 << 20];
        window.put(0, block, 1 << 20).unwrap();
        std::thread::scope(|scope| {
            let mut buffer = vec![0; 1 << 20];
            let reading = scope.spawn(move || window.take_next(&mut buffer, 0));
            wait_for_reader(window);
            // These are ahead of the missing ones, which arrive on another stream.
            let ahead = scope.spawn(|| window.put(0, block, 2 << 20));
            window.put(0, block, 0).unwrap();
            assert_eq!(reading.join().unwrap().unwrap(), 1 << 20);
            let mut buffer = vec![0; 1 << 20];
            assert_eq!(window.take_next(&mut buffer, 1 << 20).unwrap(), 1 << 20);
            ahead.join().unwrap().unwrap();
            assert_eq!(window.take_next(&mut buffer, 2 << 20).unwrap(), 1 << 20);
        });
        assert_eq!(window.state().held, 0);
    }

    #[test]
    fn bytes_that_are_ahead_are_put_if_nothing_moves_up_to_twice_the_share() {
        let window = &Window { hopeless: 2 * STUCK, ..window(1 << 20) };
        let block = &vec![7; 1 << 20];
        window.put(0, block, 1 << 20).unwrap();
        std::thread::scope(|scope| {
            let mut buffer = vec![0; 1 << 20];
            let reading = scope.spawn(move || window.take_next(&mut buffer, 0));
            wait_for_reader(window);
            // One thread serves all streams: the missing bytes come after these.
            window.put(0, block, 2 << 20).unwrap();
            let error = window.put(0, block, 3 << 20).unwrap_err();
            assert_eq!((error.detail(), window.state().held), (Some(SCATTERED), 2 << 20));
            // The missing ones have room even so.
            window.put(0, block, 0).unwrap();
            assert_eq!(reading.join().unwrap().unwrap(), 1 << 20);
        });
    }

    fn spooling(memory: usize, spool: u64) -> (Window, Arc<Spool>) {
        let spool = Spool::new(&std::env::temp_dir(), spool).unwrap();
        (Window::new(Memory::new(memory, Some(spool.clone())).share()), spool)
    }

    #[test]
    fn data_without_room_in_memory_goes_to_the_spool_and_comes_back_in_any_order() {
        const BLOCK: usize = 1 << 20;
        let (window, spool) = spooling(BLOCK, 8 << 20);
        let block = |number: u64| vec![number as u8; BLOCK];
        for number in [0, 2, 1, 4] {
            window.put(0, &block(number), number * BLOCK as u64).unwrap();
        }
        // Only the part that is missing comes from this one.
        window.put(0, &[vec![9; BLOCK / 2], vec![3; BLOCK]].concat(), 5 * (BLOCK / 2) as u64).unwrap();
        assert_eq!(window.state().held, BLOCK);
        let mut buffer = vec![0; BLOCK];
        for number in [4, 0, 3, 2, 1] {
            let (half, at) = (BLOCK / 2, number * BLOCK as u64);
            assert_eq!(window.take(&mut buffer[..half], at).unwrap(), half);
            assert_eq!(window.take(&mut buffer[half..], at + half as u64).unwrap(), half);
            assert!(buffer == block(number), "{number}");
        }
        assert_eq!((window.state().held, spool.held()), (0, 0));
    }

    #[test]
    fn full_spool_holds_up_the_sender_until_there_is_room() {
        const BLOCKS: u64 = 64;
        let (window, spool) = spooling(1 << 20, 2 << 20);
        let window = &window;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for number in 0..BLOCKS {
                    window.put(0, &vec![number as u8; 1 << 20], number << 20).unwrap();
                }
            });
            for number in 0..BLOCKS {
                let mut buffer = vec![0; 1 << 20];
                assert_eq!(window.take_next(&mut buffer, number << 20).unwrap(), 1 << 20);
                assert!(buffer.iter().all(|&byte| byte == number as u8));
                assert!(window.state().held <= 2 << 20 && spool.held() <= 2 << 20);
            }
        });
        assert_eq!(spool.held(), 0);
    }

    #[test]
    fn closed_window_frees_its_part_of_the_spool() {
        let (window, spool) = spooling(1 << 20, 8 << 20);
        for number in 0..4 {
            window.put(0, &vec![7; 1 << 20], number << 20).unwrap();
        }
        assert_eq!(spool.held(), 3 << 20);
        window.close(over());
        assert_eq!(spool.held(), 0);
    }

    #[test]
    fn put_of_an_earlier_use_fails() {
        let window = window(1 << 20);
        let generation = window.state().begin();
        window.put(generation, b"a", 0).unwrap();
        window.state().begin();
        assert_eq!(window.put(generation, b"b", 1).unwrap_err().kind(), ErrorKind::Interrupted);
    }
}
