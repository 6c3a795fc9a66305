//! What layers send: bytes that the connection beneath does not take all at once, and what else is left to that connection.

use std::io::{self, ErrorKind};

use ropewalk_transport::Connection;

/// Bytes to be sent, and how much of them was.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    /// Sends what there is; `false` when the connection takes no more now.
    pub(crate) fn send(&mut self, connection: &mut dyn Connection) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            match connection.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(true)
    }

    /// As [`Outgoing::send`]; `WouldBlock` when not all of it could be sent.
    pub(crate) fn drain(&mut self, connection: &mut dyn Connection) -> io::Result<()> {
        if self.send(connection)? { Ok(()) } else { Err(ErrorKind::WouldBlock.into()) }
    }
}

/// Plain bytes that are sealed and then sent.
#[derive(Default)]
pub(crate) struct Sealed {
    pub(crate) out: Outgoing,
    /// Plain bytes in what is to be sent. A write is not done before all of it is: the caller comes again with the same bytes.
    plain: usize,
}

impl Sealed {
    /// What a write comes to. `seal` appends and says how many plain bytes it took.
    pub(crate) fn write(
        &mut self,
        connection: &mut dyn Connection,
        seal: impl FnOnce(&mut Vec<u8>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        if self.plain == 0 {
            self.out.drain(connection)?;
            self.plain = seal(&mut self.out.bytes)?;
        }
        self.out.drain(connection)?;
        Ok(std::mem::take(&mut self.plain))
    }
}

/// What a protected connection leaves to the one beneath it, which is its field `inner`.
macro_rules! leave_to_inner {
    () => {
        fn plain_fd(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn poll_fd(&self) -> BorrowedFd<'_> {
            self.inner.poll_fd()
        }

        fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
            self.inner.set_time_limit(limit)
        }

        fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
            self.inner.set_nonblocking(on)
        }

        fn set_buffers(&mut self, send: Option<usize>, receive: Option<usize>) -> io::Result<()> {
            self.inner.set_buffers(send, receive)
        }

        fn set_congestion(&mut self, name: &str) {
            self.inner.set_congestion(name);
        }

        fn breaker(&self) -> io::Result<Breaker> {
            self.inner.breaker()
        }

        fn info(&self) -> Option<TcpInfo> {
            self.inner.info()
        }
    };
}

pub(crate) use leave_to_inner;
