//! A pipe for `splice`: socket to pipe to file, without a copy to the program.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags};

/// With the default of 64 KiB a splice costs several times as much a byte.
pub(crate) const PIPE_SIZE: usize = 1 << 20;

pub(crate) struct Pipe {
    output: OwnedFd,
    input: OwnedFd,
    held: usize,
}

impl Pipe {
    /// `None` where there is no pipe of that size to be had (descriptors, or pipe-user-pages-soft
    /// used up).
    pub(crate) fn new(size: usize) -> Option<Self> {
        let (output, input) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).ok()?;
        rustix::pipe::fcntl_setpipe_size(&input, size).ok()?;
        Some(Self { output, input, held: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// From a socket; 0 is its end.
    pub(crate) fn fill(&mut self, from: BorrowedFd<'_>, most: usize) -> Result<usize, Errno> {
        let n = rustix::pipe::splice(from, None, self.input.as_fd(), None, most, SpliceFlags::MOVE)?;
        self.held += n;
        Ok(n)
    }

    /// To a file at `offset`, or wherever it stands where that is `None`.
    pub(crate) fn drain(&mut self, to: BorrowedFd<'_>, offset: Option<u64>) -> Result<usize, Errno> {
        let mut offset = offset;
        let n = rustix::pipe::splice(
            self.output.as_fd(),
            None,
            to,
            offset.as_mut(),
            self.held,
            SpliceFlags::MOVE,
        )?;
        self.held -= n;
        Ok(n)
    }

    /// Takes out what could not be drained.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Errno> {
        let n = rustix::io::read(&self.output, buffer)?;
        self.held -= n;
        Ok(n)
    }
}
