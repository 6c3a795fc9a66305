//! The data connections of a session, wherever they are: in this process, or on a data node.
//!
//! A [`DataPlane`] belongs to the thread of its session. It moves the bytes of files that the
//! session has opened; plans, markers, checksums and commits are the session's. Errors are the
//! failures that the client gets.

use std::io::Read;
use std::os::fd::BorrowedFd;

use ropewalk_engine::{
    Attendant, DataChannel, Discarded, Flows, Parallelism, Progress, ReceiveJob, Received, SendJob, Sent,
};
use ropewalk_nodes::Chosen;
use ropewalk_protocol::server::{Failure, RepresentationType};

use crate::failure::transfer_failure;
use crate::host::scitags::Marks;

/// See the methods of [`DataChannel`], which have the same names.
pub(crate) trait DataPlane: Send {
    /// The number of stripes, which performance markers report one by one.
    fn stripes(&self) -> u32;
    fn cached(&self) -> usize;
    fn parallelism(&self) -> Parallelism;
    fn set_parallelism(&mut self, n: u32);
    fn set_representation(&mut self, representation: RepresentationType);
    fn set_resend(&mut self, allowed: bool);
    fn set_marks(&mut self, marks: Marks);
    fn set_congestion(&mut self, name: Option<String>);
    /// The statistics of the data connections; empty if they are elsewhere.
    fn flows(&self) -> Flows;
    fn send(
        &mut self,
        job: &SendJob,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure>;
    fn send_reader(
        &mut self,
        source: &mut dyn Read,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure>;
    fn send_polled(
        &mut self,
        source: &mut dyn Read,
        descriptor: BorrowedFd<'_>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure>;
    fn receive(
        &mut self,
        job: &ReceiveJob<'_>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Received, Failure>;
    /// Whether data that was reported as received may be missing, because a node has contradicted
    /// itself.
    fn is_doubtful(&self) -> bool {
        false
    }
    /// Closes connections of earlier transfers, at once or with the returned value.
    fn discard(&mut self) -> Option<Discarded>;
    /// Ends the channel, and returns the nodes that it was on.
    fn into_nodes(self: Box<Self>) -> Vec<Chosen>;
}

impl DataPlane for DataChannel {
    fn stripes(&self) -> u32 {
        1
    }

    fn cached(&self) -> usize {
        Self::cached(self)
    }

    fn parallelism(&self) -> Parallelism {
        Self::parallelism(self)
    }

    fn set_parallelism(&mut self, n: u32) {
        Self::set_parallelism(self, n);
    }

    fn set_representation(&mut self, representation: RepresentationType) {
        Self::set_representation(self, representation);
    }

    fn set_resend(&mut self, allowed: bool) {
        Self::set_resend(self, allowed);
    }

    fn set_marks(&mut self, marks: Marks) {
        self.set_marking(marks.here);
    }

    fn set_congestion(&mut self, name: Option<String>) {
        Self::set_congestion(self, name);
    }

    fn flows(&self) -> Flows {
        Self::flows(self)
    }

    fn send(
        &mut self,
        job: &SendJob,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure> {
        Self::send(self, job, attendant, progress).map_err(transfer_failure)
    }

    fn send_reader(
        &mut self,
        source: &mut dyn Read,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure> {
        Self::send_reader(self, source, attendant, progress).map_err(transfer_failure)
    }

    fn send_polled(
        &mut self,
        source: &mut dyn Read,
        descriptor: BorrowedFd<'_>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure> {
        Self::send_polled(self, source, descriptor, attendant, progress).map_err(transfer_failure)
    }

    fn receive(
        &mut self,
        job: &ReceiveJob<'_>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Received, Failure> {
        Self::receive(self, job, attendant, progress).map_err(transfer_failure)
    }

    fn discard(&mut self) -> Option<Discarded> {
        Some(Self::discard(self))
    }

    fn into_nodes(self: Box<Self>) -> Vec<Chosen> {
        Vec::new()
    }
}
