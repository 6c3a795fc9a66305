//! What a control connection runs over: TCP, or the standard input and output of a program (ssh).

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use crate::ssh::Tunnel;

pub(crate) enum Link {
    Tcp(TcpStream),
    Ssh(Tunnel),
}

impl Link {
    /// Nothing more will be written.
    pub(crate) fn end(&self) {
        // Where the peer has gone, it knows.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Ssh(tunnel) => tunnel.end(),
        };
    }

    /// Why the connection has ended, where more is known of it than that: what ssh said.
    pub(crate) fn last_words(&mut self) -> Option<String> {
        match self {
            Self::Tcp(_) => None,
            Self::Ssh(tunnel) => tunnel.last_words(),
        }
    }
}

impl Read for Link {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Ssh(tunnel) => tunnel.read(buffer),
        }
    }
}

impl Write for Link {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Ssh(tunnel) => tunnel.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Ssh(tunnel) => tunnel.as_fd(),
        }
    }
}
