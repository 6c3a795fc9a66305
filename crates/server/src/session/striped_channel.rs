//! A data channel on one data node or several.
//!
//! The stripes of a channel are its nodes. To send a file, each node gets a share of its ranges by
//! the layout that the client has chosen; to receive, each node takes what its peer sends. Each
//! node ends its part with the EOF of its own connections. A transfer whose bytes have to be in
//! order (listings, text) goes over the first node, and the others only send or get their EOF.

use std::io::Read;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use ropewalk_engine::{
    Attendant, BufferBudget, Discarded, Flows, Parallelism, Progress, ReceiveJob, Received, SendJob, Sent,
};
use ropewalk_nodes::{
    Chosen, FileOrder, MarkOrder, MoveOrder, Order, Owner, ReceiveOrder, SendOrder, Sum, Transferred,
};
use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Failure, RepresentationType, StripeLayout};
use ropewalk_protocol::stripes;
use ropewalk_storage::checksum::Pieces;
use ropewalk_storage::{DiskFile, Identity, Kind, Metadata};
use rustix::fs::{AtFlags, StatxFlags, statx};

use super::follow::{Ends, Follow};
use super::node_channel::NodeChannel;
use super::node_claims::Claims;
use crate::config::Fsync;
use crate::failure::{failure, transfer_failure};
use crate::host::nodes::Nodes;
use crate::host::scitags::Marks;
use crate::session::data_plane::DataPlane;

pub(crate) struct StripedChannel {
    nodes: Vec<NodeChannel>,
    session: Session,
    layout: StripeLayout,
    parallelism: Parallelism,
    representation: RepresentationType,
    congestion: Option<String>,
    resend: bool,
    marks: Option<MarkOrder>,
}

/// The session whose files the channel moves.
pub(crate) struct Session {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) budget: Arc<BufferBudget>,
    /// The user as whom the session works on files; `None` is the server's own user.
    pub(crate) owner: Option<Identity>,
    pub(crate) fsync: Fsync,
}

impl StripedChannel {
    /// `nodes` have the channel's connections, and are not empty.
    pub(crate) fn new(
        nodes: Vec<NodeChannel>,
        session: Session,
        layout: StripeLayout,
        parallelism: u32,
        congestion: Option<String>,
    ) -> Self {
        Self {
            nodes,
            session,
            layout,
            parallelism: Parallelism::detached(parallelism),
            representation: RepresentationType::Image,
            congestion,
            resend: false,
            marks: None,
        }
    }

    /// The file as the nodes find it.
    fn file(&self, descriptor: Option<BorrowedFd<'_>>, metadata: &Metadata) -> Result<FileOrder, Failure> {
        let refused = |why: String| Failure::Refused {
            code: 553,
            text: format!("The data node {} cannot move this file: {why}.", self.nodes[0].chosen.name),
        };
        let descriptor = descriptor
            .filter(|_| metadata.kind == Kind::File)
            .ok_or_else(|| refused("it is no regular file".into()))?;
        let path = self.session.nodes.shared_path(descriptor).map_err(|error| refused(error.to_string()))?;
        let owner = self.session.owner.as_ref().map(|identity| Owner {
            uid: identity.uid,
            gid: identity.gid,
            groups: identity.groups.clone(),
        });
        Ok(FileOrder { path, inode: metadata.inode, owner })
    }

    /// For the node of this number.
    fn moves(&self, at: usize) -> MoveOrder {
        MoveOrder {
            parallelism: self.parallelism.get(),
            ascii: self.is_text(),
            congestion: self.congestion.clone(),
            // Each node announces its own bytes only.
            resend: self.resend && self.nodes.len() == 1,
            grant: self.nodes[at].account.begin(),
            marks: self.marks.clone(),
        }
    }

    fn is_text(&self) -> bool {
        self.representation == RepresentationType::Ascii
    }

    /// All for the first node, and nothing for the others.
    fn first_only(&self, ranges: &RangeSet) -> Vec<RangeSet> {
        let mut shares = vec![RangeSet::new(); self.nodes.len()];
        shares[0] = ranges.clone();
        shares
    }

    /// Fails if the file ends before the last byte that nodes have reported: it was stored
    /// elsewhere, or not at all.
    fn check_size(&mut self, job: &ReceiveJob<'_>, end: u64) -> Result<(), Failure> {
        // Zeros at the end of a sparse file are not written.
        if job.sparse {
            return Ok(());
        }
        let Some(file) = job.sink.disk().and_then(DiskFile::named_descriptor) else { return Ok(()) };
        // A network file system may remember the size that the file had when it was opened.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let size = match statx(file, c"", flags, StatxFlags::SIZE) {
            Ok(found) => found.stx_size,
            Err(_) => job.sink.metadata().map_err(failure)?.size,
        };
        if size >= end {
            return Ok(());
        }
        let mut failed = Ok(());
        for node in self.nodes.iter_mut().filter(|node| node.stored_end > size) {
            let end = node.stored_end;
            let text = format!("it reports bytes up to {end} as stored, and the file has {size}");
            failed = Err(node.contradicts(&text));
        }
        failed
    }

    fn transfer(&mut self, orders: &[Order], mut ends: Ends<'_>) -> Result<Vec<Transferred>, Failure> {
        Follow::run(&mut self.nodes, orders, &self.parallelism, &mut ends)
    }
}

impl DataPlane for StripedChannel {
    fn stripes(&self) -> u32 {
        self.nodes.len() as u32
    }

    fn cached(&self) -> usize {
        self.nodes.iter().fold(0, |sum, node| sum.saturating_add(node.cached))
    }

    fn parallelism(&self) -> Parallelism {
        self.parallelism.clone()
    }

    fn set_parallelism(&mut self, n: u32) {
        self.parallelism.set(n);
    }

    fn set_representation(&mut self, representation: RepresentationType) {
        self.representation = representation;
    }

    fn set_resend(&mut self, allowed: bool) {
        self.resend = allowed;
    }

    fn set_marks(&mut self, marks: Marks) {
        self.marks = marks.on_node;
    }

    fn set_congestion(&mut self, name: Option<String>) {
        self.congestion = name;
    }

    fn flows(&self) -> Flows {
        Flows::default()
    }

    fn send(
        &mut self,
        job: &SendJob,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure> {
        let metadata = job.source.metadata().map_err(failure)?;
        let file = self.file(job.source.descriptor(), &metadata)?;
        let shares = match self.is_text() {
            true => self.first_only(&job.ranges),
            false => stripes::shares(self.layout, &job.ranges, self.nodes.len()),
        };
        let order = |(at, share): (usize, &RangeSet)| {
            Order::Send(SendOrder {
                file: file.clone(),
                moves: self.moves(at),
                ranges: pairs(share),
                origin: job.origin,
                checksum: name(job.checksum),
            })
        };
        let orders: Vec<Order> = shares.iter().enumerate().map(order).collect();
        let ends = Ends { attendant, progress, stored: &mut |_| Ok(()), source: None };
        let parts = self.transfer(&orders, ends)?;
        let pieces = job.checksum.map(|algorithm| pieces(algorithm, &parts));
        Ok(Sent { bytes: bytes(&parts), streams: streams(&parts), pieces })
    }

    fn send_reader(
        &mut self,
        source: &mut dyn Read,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure> {
        let orders: Vec<Order> = (0..self.nodes.len()).map(|at| Order::SendBytes(self.moves(at))).collect();
        let ends = Ends { attendant, progress, stored: &mut |_| Ok(()), source: Some(source) };
        let parts = self.transfer(&orders, ends)?;
        Ok(Sent { bytes: bytes(&parts), streams: streams(&parts), pieces: None })
    }

    fn send_polled(
        &mut self,
        source: &mut dyn Read,
        _descriptor: BorrowedFd<'_>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure> {
        // The source is asked again after a short time.
        self.send_reader(source, attendant, progress)
    }

    fn receive(
        &mut self,
        job: &ReceiveJob<'_>,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Received, Failure> {
        let metadata = job.sink.metadata().map_err(failure)?;
        let file = self.file(job.sink.disk().and_then(DiskFile::named_descriptor), &metadata)?;
        let accept = match self.is_text() {
            true => self.first_only(&job.accept),
            // A sender may send any byte to any node.
            false => vec![job.accept.clone(); self.nodes.len()],
        };
        let fsync = self.session.fsync;
        let order = |(at, accept): (usize, &RangeSet)| {
            Order::Receive(ReceiveOrder {
                file: file.clone(),
                moves: self.moves(at),
                accept: pairs(accept),
                origin: job.origin,
                checksum: name(job.checksum),
                sparse: job.sparse,
                sync_each: fsync == Fsync::EachMarker,
                sync_end: fsync != Fsync::None,
            })
        };
        let orders: Vec<Order> = accept.iter().enumerate().map(order).collect();
        let mut pieces = job.checksum.map(Pieces::new);
        let budget = Arc::clone(&self.session.budget);
        let mut stored = |Sum { start, end, sum }| {
            progress.report_received(start..end, &budget).map_err(transfer_failure)?;
            if let (Some(pieces), Some(sum)) = (&mut pieces, sum) {
                pieces.insert(start..end, sum);
            }
            // The node has written it already: a quota can be exceeded by the bytes in flight.
            job.sink.admit(end).map_err(failure)?;
            (job.written)(start..end, sum).map_err(failure)
        };
        let parts =
            self.transfer(&orders, Ends { attendant, progress, stored: &mut stored, source: None })?;
        let ranges = progress.received();
        self.check_size(job, ranges.end())?;
        Ok(Received { bytes: bytes(&parts), streams: streams(&parts), ranges, pieces })
    }

    fn is_doubtful(&self) -> bool {
        self.nodes.iter().any(|node| node.is_doubtful)
    }

    fn discard(&mut self) -> Option<Discarded> {
        for node in &mut self.nodes {
            node.discard();
        }
        None
    }

    fn into_nodes(self: Box<Self>) -> Vec<Chosen> {
        self.nodes.into_iter().map(|node| node.chosen).filter(|chosen| !chosen.broken).collect()
    }
}

fn bytes(parts: &[Transferred]) -> u64 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
}

fn streams(parts: &[Transferred]) -> u32 {
    parts.iter().fold(0, |sum, part| sum.saturating_add(Claims::streams(part.streams)))
}

fn name(algorithm: Option<ChecksumAlgorithm>) -> Option<String> {
    algorithm.map(|algorithm| algorithm.name().to_owned())
}

fn pairs(ranges: &RangeSet) -> Vec<(u64, u64)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

fn pieces(algorithm: ChecksumAlgorithm, parts: &[Transferred]) -> Pieces {
    let mut pieces = Pieces::new(algorithm);
    for sum in parts.iter().flat_map(|part| &part.sums) {
        if let Some(value) = sum.sum {
            pieces.insert(sum.start..sum.end, value);
        }
    }
    pieces
}
