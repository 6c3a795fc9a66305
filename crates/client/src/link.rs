//! The transport of a control connection: TCP, or the standard input and output of a program (ssh).

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use crate::ssh::Tunnel;

pub(crate) enum Link {
    Tcp(TcpStream),
    Ssh(Tunnel),
}

impl Link {
    /// Closes the sending direction.
    pub(crate) fn end(&self) {
        // If the peer has closed the connection, it needs no notice.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Ssh(tunnel) => tunnel.end(),
        };
    }

    /// The reason why the connection ended, if more is known than the end itself: the message of
    /// ssh.
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
