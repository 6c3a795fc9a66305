//! The transport under OpenSSL: a buffer with received bytes and one with bytes to send.

use std::io::{self, ErrorKind, Read, Write};

use crate::queue::Queue;

#[derive(Debug, Default)]
pub struct Memory {
    /// Received bytes that OpenSSL has not read yet.
    incoming: Queue,
    pub outgoing: Vec<u8>,
}

impl Memory {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.incoming.put(bytes);
    }

    /// Space for at least `least` received bytes; [`Memory::filled`] sets how many were written.
    pub fn space(&mut self, least: usize) -> &mut [u8] {
        self.incoming.space(least)
    }

    pub fn filled(&mut self, count: usize) {
        self.incoming.filled(count);
    }

    /// Takes the bytes written since the last call.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.outgoing)
    }

    pub fn has_incoming(&self) -> bool {
        !self.incoming.waiting().is_empty()
    }

    /// Takes the received bytes that were not read.
    pub fn rest(&mut self) -> Vec<u8> {
        let rest = self.incoming.waiting().to_vec();
        self.incoming.taken(rest.len());
        rest
    }

    /// Frees the buffer of an idle connection.
    pub fn shrink(&mut self) {
        self.incoming.shrink();
    }
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let waiting = self.incoming.waiting();
        if waiting.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = waiting.len().min(buffer.len());
        buffer[..count].copy_from_slice(&waiting[..count]);
        self.incoming.taken(count);
        Ok(count)
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn memory_returns_bytes_in_order(steps in proptest::collection::vec((0..300usize, 0..300usize), 1..60)) {
            let mut memory = Memory::default();
            let (mut fed, mut read) = (0u32, 0u32);
            for (feed, take) in steps {
                let bytes: Vec<u8> = (0..feed).map(|_| { fed += 1; fed as u8 }).collect();
                memory.feed(&bytes);
                let mut buffer = vec![0; take];
                if let Ok(count) = memory.read(&mut buffer) {
                    for byte in &buffer[..count] {
                        read += 1;
                        prop_assert_eq!(*byte, read as u8);
                    }
                }
                memory.shrink();
            }
            prop_assert_eq!(memory.rest().len(), (fed - read) as usize);
        }
    }
}
