use std::io;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;

use crate::Progress;

/// The observer of a transfer that its caller provides. It learns when the transfer starts, decides
/// regularly whether it continues, and can have a descriptor watched (the control connection, for
/// ABOR).
pub trait Attendant {
    /// The first data connection is up; no byte has moved. An error aborts the transfer.
    ///
    /// # Errors
    /// The caller cannot continue with the transfer, for example because its control connection
    /// failed.
    fn begun(&mut self, reused: bool) -> io::Result<()>;
    /// Called at least every 250 ms (later only where a store blocks). `Break` breaks the transfer
    /// off.
    fn tick(&mut self, progress: &Progress) -> ControlFlow<()>;
    /// The transfer is about to wait, perhaps for an answer to something that the caller has to
    /// send to the peer first. `Break` aborts the transfer.
    fn waits(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// Nothing moved until now because the store had nothing to give or took nothing (a pipe, a
    /// terminal): no stall of the network.
    fn excused(&mut self, progress: &Progress) {
        let _ = progress;
    }
    /// Called at a tick at which nothing has moved. True: the peer is known to have a reason, such
    /// as a queue, and this is no stall of the network.
    fn is_excused(&mut self) -> bool {
        false
    }
    /// A descriptor to watch for input.
    fn watch(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// The watched descriptor has input. `Break` breaks the transfer off. `Ok(false)`-like "stop
    /// watching" is expressed by returning `None` from [`Attendant::watch`] from now on.
    fn readable(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
    /// Sending over reused connections: true where the receiver is known to have begun this
    /// transfer (its 125 was seen before [`Attendant::begun`] returned). Only then further
    /// connections are opened at once: a receiver that is still between two transfers may lose
    /// them, as GCT's does. Otherwise they are opened once so much has been sent that it must be
    /// reading.
    fn receiver_ready(&self) -> bool {
        false
    }
}

/// An attendant that lets everything pass.
pub struct Nobody;

impl Attendant for Nobody {
    fn begun(&mut self, _reused: bool) -> io::Result<()> {
        Ok(())
    }

    fn tick(&mut self, _progress: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}
