//! A data channel on a data node.
//!
//! The front end opens and commits files; the node opens the same file by its path in the shared
//! file system, moves the bytes, and reports what it has stored. The thread of the session follows
//! the reports while it serves the client's control connection. A node that is silent or whose
//! lease has run out is given up; what it has reported is stored, and counts for a restart.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_engine::{
    Attendant, BufferBudget, Discarded, Flows, Parallelism, Progress, ReceiveJob, Received, SendJob, Sent,
};
use ropewalk_nodes::{
    ChannelOrder, Chosen, FileOrder, LinkError, MoveFailure, MoveOrder, Order, Owner, ReceiveOrder, Report,
    SendOrder, Sum, Transferred,
};
use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Failure, RepresentationType};
use ropewalk_storage::checksum::Pieces;
use ropewalk_storage::{Identity, Kind, Metadata};
use ropewalk_transport::{FlowMarking, timespec};
use rustix::event::{PollFd, PollFlags, poll};

use crate::config::Fsync;
use crate::failure::{failure, io_failure, transfer_failure};
use crate::host::nodes::Nodes;
use crate::session::data_plane::DataPlane;

/// The answer to an order that makes no data connection.
const ANSWER: Duration = Duration::from_secs(10);
/// A node that says nothing for this time during a transfer is gone: it reports every second.
const SILENCE: Duration = Duration::from_secs(8);
/// How often the client is looked at, and lease and streams.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of a listing that are sent at a time.
const CHUNK: usize = 256 << 10;

pub(crate) struct NodeChannel {
    chosen: Chosen,
    nodes: Arc<Nodes>,
    budget: Arc<BufferBudget>,
    owner: Option<Identity>,
    fsync: Fsync,
    parallelism: Parallelism,
    representation: RepresentationType,
    congestion: Option<String>,
    resend: bool,
    cached: usize,
}

/// The session whose files the channel moves.
pub(crate) struct Session {
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) budget: Arc<BufferBudget>,
    /// The user as whom the session works on files; `None` is the server's own user.
    pub(crate) owner: Option<Identity>,
    pub(crate) fsync: Fsync,
}

impl NodeChannel {
    /// Lets the node listen, and returns the address for the client.
    pub(crate) fn listen(
        chosen: Chosen,
        session: Session,
        channel: ChannelOrder,
    ) -> Result<(Self, SocketAddr), Failure> {
        let mut made = Self::new(chosen, session, &channel);
        let (address, channel) = (made.chosen.address, Box::new(channel));
        match made.ask(&Order::Listen { address, channel })? {
            Report::Listening(bound) => Ok((made, SocketAddr::new(address, bound.port()))),
            other => Err(made.out_of_turn(&other)),
        }
    }

    /// Gives the node the addresses to connect to.
    pub(crate) fn connect(
        chosen: Chosen,
        session: Session,
        addresses: Vec<SocketAddr>,
        channel: ChannelOrder,
    ) -> Result<Self, Failure> {
        let mut made = Self::new(chosen, session, &channel);
        match made.ask(&Order::Connect { addresses, channel: Box::new(channel) })? {
            Report::Done => Ok(made),
            other => Err(made.out_of_turn(&other)),
        }
    }

    fn new(chosen: Chosen, session: Session, channel: &ChannelOrder) -> Self {
        let Session { nodes, budget, owner, fsync } = session;
        Self {
            chosen,
            nodes,
            budget,
            owner,
            fsync,
            parallelism: Parallelism::detached(channel.parallelism),
            representation: RepresentationType::Image,
            congestion: channel.congestion.clone(),
            resend: false,
            cached: 0,
        }
    }

    fn ask(&mut self, order: &Order) -> Result<Report, Failure> {
        let link = &mut self.chosen.link;
        let answer = link.send(order).and_then(|()| link.expect(ANSWER)?.message());
        match answer.map_err(|error| self.lost(&error))? {
            Report::Failed(failure) => Err(failure_of(failure)),
            report => Ok(report),
        }
    }

    fn lost(&mut self, error: &LinkError) -> Failure {
        self.chosen.broken = true;
        self.cached = 0;
        tracing::warn!(node = self.chosen.name, %error, "a data node is lost");
        Failure::DataBroken(format!("the data node {} is lost: {error}", self.chosen.name))
    }

    fn out_of_turn(&mut self, report: &Report) -> Failure {
        self.lost(&LinkError::Message(format!("{report:?} out of turn")))
    }

    fn silent(&mut self, after: Duration) -> Failure {
        let text = format!("it has said nothing for {} s", after.as_secs());
        self.lost(&io::Error::new(ErrorKind::TimedOut, text).into())
    }

    /// The file as the node finds it.
    fn file(&self, descriptor: Option<BorrowedFd<'_>>, metadata: &Metadata) -> Result<FileOrder, Failure> {
        let refused = |why: String| Failure::Refused {
            code: 553,
            text: format!("The data node {} cannot move this file: {why}.", self.chosen.name),
        };
        let descriptor = descriptor
            .filter(|_| metadata.kind == Kind::File)
            .ok_or_else(|| refused("it is no regular file".into()))?;
        let path = self.nodes.shared_path(descriptor).map_err(|error| refused(error.to_string()))?;
        let owner = self.owner.as_ref().map(|identity| Owner {
            uid: identity.uid,
            gid: identity.gid,
            groups: identity.groups.clone(),
        });
        Ok(FileOrder { path, inode: metadata.inode, owner })
    }

    fn moves(&self) -> MoveOrder {
        MoveOrder {
            parallelism: self.parallelism.get(),
            ascii: self.representation == RepresentationType::Ascii,
            congestion: self.congestion.clone(),
            resend: self.resend,
        }
    }

    /// Starts a transfer and follows it to its end. `stored` gets each range that is in the store;
    /// its error ends the transfer. `source` provides the bytes of [`Order::SendBytes`].
    fn transfer(
        &mut self,
        order: &Order,
        attendant: &mut dyn Attendant,
        progress: &Progress,
        stored: &mut dyn FnMut(Sum) -> Result<(), Failure>,
        source: Option<&mut dyn Read>,
    ) -> Result<Transferred, Failure> {
        self.cached = 0;
        self.chosen.link.send(order).map_err(|error| self.lost(&error))?;
        let streams = self.parallelism.get();
        let now = Instant::now();
        let follow = Follow { streams, heard: now, looked: now, ended: None, source, wanted: false };
        let result = follow.run(self, attendant, progress, stored);
        if let Ok(transferred) = &result {
            self.cached = transferred.cached;
        }
        result
    }
}

/// A transfer in progress, as the front end sees it.
struct Follow<'s> {
    /// The number of streams that the node knows.
    streams: u32,
    /// The time of the node's last report.
    heard: Instant,
    looked: Instant,
    /// Why the transfer is being broken off.
    ended: Option<Failure>,
    source: Option<&'s mut dyn Read>,
    /// The node wants more of the source.
    wanted: bool,
}

impl Follow<'_> {
    fn run(
        mut self,
        channel: &mut NodeChannel,
        attendant: &mut dyn Attendant,
        progress: &Progress,
        stored: &mut dyn FnMut(Sum) -> Result<(), Failure>,
    ) -> Result<Transferred, Failure> {
        loop {
            while let Some(frame) = channel.chosen.link.ready().map_err(|error| channel.lost(&error))? {
                self.heard = Instant::now();
                match frame.message().map_err(|error| channel.lost(&error))? {
                    Report::Begun { reused } => {
                        if let Err(error) = attendant.begun(reused) {
                            let text = format!("cannot begin the transfer: {error}");
                            self.end(channel, Failure::DataBroken(text))?;
                        }
                    }
                    Report::Moved { bytes, streams, waiting_ns, stored: news } => {
                        for sum in news {
                            // Later ranges are stored as well, and need not be sent again.
                            if let Err(failure) = stored(sum) {
                                self.end(channel, failure)?;
                            }
                        }
                        progress.report(bytes, streams, waiting_ns.map(Duration::from_nanos));
                    }
                    Report::More => self.wanted = true,
                    Report::Ended(result) => {
                        return match (self.ended, result) {
                            (Some(failure), _) => Err(failure),
                            (None, Ok(transferred)) => Ok(transferred),
                            (None, Err(failure)) => Err(failure_of(failure)),
                        };
                    }
                    other => return Err(channel.out_of_turn(&other)),
                }
            }
            if self.wanted && self.ended.is_none() {
                self.feed(channel)?;
            }
            if self.looked.elapsed() >= TICK {
                self.look(channel, attendant, progress)?;
            }
            self.wait(channel, attendant)?;
        }
    }

    /// Looks at the client, the streams and the node.
    fn look(
        &mut self,
        channel: &mut NodeChannel,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<(), Failure> {
        self.looked = Instant::now();
        let silence = self.heard.elapsed();
        if silence >= SILENCE {
            return Err(channel.silent(silence));
        }
        if self.ended.is_some() {
            return Ok(());
        }
        if !channel.chosen.is_alive() {
            return Err(channel.lost(&io::Error::new(ErrorKind::TimedOut, "its lease has run out").into()));
        }
        if attendant.tick(progress).is_break() {
            return self.end(channel, Failure::Aborted);
        }
        let streams = channel.parallelism.get();
        if streams != self.streams {
            self.streams = streams;
            let sent = channel.chosen.link.send(&Order::Streams(streams));
            sent.map_err(|error| channel.lost(&error))?;
        }
        Ok(())
    }

    /// Waits for the node, for the client, or until it is time to look again.
    fn wait(&mut self, channel: &mut NodeChannel, attendant: &mut dyn Attendant) -> Result<(), Failure> {
        if self.ended.is_none() && attendant.waits().is_break() {
            self.end(channel, Failure::Aborted)?;
        }
        let pause = timespec(if self.wanted { TICK / 10 } else { TICK });
        let readable = {
            let watched = attendant.watch().filter(|_| self.ended.is_none());
            let mut fds = vec![PollFd::new(&channel.chosen.link, PollFlags::IN)];
            fds.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP)));
            match poll(&mut fds, Some(&pause)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(channel.lost(&io::Error::from(errno).into())),
            }
            fds.get(1).is_some_and(|fd| !fd.revents().is_empty())
        };
        if readable && attendant.readable().is_break() {
            return self.end(channel, Failure::Aborted);
        }
        Ok(())
    }

    /// Sends the next bytes of the source, or its end.
    fn feed(&mut self, channel: &mut NodeChannel) -> Result<(), Failure> {
        let Some(source) = &mut self.source else { return Err(channel.out_of_turn(&Report::More)) };
        let mut bytes = vec![0; CHUNK];
        let count = loop {
            match source.read(&mut bytes) {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => {
                    self.ended = Some(io_failure(error));
                    let end = Order::BytesEnd { complete: false };
                    return channel.chosen.link.send(&end).map_err(|error| channel.lost(&error));
                }
            }
        };
        self.wanted = false;
        let link = &mut channel.chosen.link;
        let sent = match count {
            0 => link.send(&Order::BytesEnd { complete: true }),
            count => link.send_bytes(&bytes[..count]),
        };
        sent.map_err(|error| channel.lost(&error))
    }

    /// Breaks the transfer off. The node still reports what it has stored.
    fn end(&mut self, channel: &mut NodeChannel, why: Failure) -> Result<(), Failure> {
        if self.ended.is_some() {
            return Ok(());
        }
        self.ended = Some(why);
        channel.chosen.link.send(&Order::Abort).map_err(|error| channel.lost(&error))
    }
}

impl DataPlane for NodeChannel {
    fn cached(&self) -> usize {
        self.cached
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

    fn set_marking(&mut self, _: FlowMarking) {}

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
        let order = Order::Send(SendOrder {
            file: self.file(job.source.descriptor(), &metadata)?,
            moves: self.moves(),
            ranges: pairs(&job.ranges),
            origin: job.origin,
            checksum: name(job.checksum),
        });
        let sent = self.transfer(&order, attendant, progress, &mut |_| Ok(()), None)?;
        let pieces = job.checksum.map(|algorithm| pieces(algorithm, &sent.sums));
        Ok(Sent { bytes: sent.bytes, streams: sent.streams, pieces })
    }

    fn send_reader(
        &mut self,
        source: &mut dyn Read,
        attendant: &mut dyn Attendant,
        progress: &Progress,
    ) -> Result<Sent, Failure> {
        let order = Order::SendBytes(self.moves());
        let sent = self.transfer(&order, attendant, progress, &mut |_| Ok(()), Some(source))?;
        Ok(Sent { bytes: sent.bytes, streams: sent.streams, pieces: None })
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
        let order = Order::Receive(ReceiveOrder {
            file: self.file(job.sink.named_descriptor(), &metadata)?,
            moves: self.moves(),
            accept: pairs(&job.accept),
            origin: job.origin,
            checksum: name(job.checksum),
            sparse: job.sparse,
            sync_each: self.fsync == Fsync::EachMarker,
            sync_end: self.fsync != Fsync::None,
        });
        let mut pieces = job.checksum.map(Pieces::new);
        let budget = Arc::clone(&self.budget);
        let mut stored = |Sum { start, end, sum }| {
            progress.report_received(start..end, &budget).map_err(transfer_failure)?;
            if let (Some(pieces), Some(sum)) = (&mut pieces, sum) {
                pieces.insert(start..end, sum);
            }
            (job.written)(start..end, sum).map_err(failure)
        };
        let received = self.transfer(&order, attendant, progress, &mut stored, None)?;
        let ranges = progress.received();
        Ok(Received { bytes: received.bytes, streams: received.streams, ranges, pieces })
    }

    fn discard(&mut self) -> Option<Discarded> {
        self.cached = 0;
        if !self.chosen.broken {
            // A node that is lost has no connections either.
            let _ = self.ask(&Order::Discard);
        }
        None
    }

    fn into_node(self: Box<Self>) -> Option<Chosen> {
        Some(self.chosen).filter(|chosen| !chosen.broken)
    }
}

fn failure_of(failure: MoveFailure) -> Failure {
    match failure {
        MoveFailure::System { errno, action } => Failure::System { errno, action },
        MoveFailure::Connection(text) => Failure::DataConnection(text),
        MoveFailure::Broken(text) => Failure::DataBroken(text),
        MoveFailure::Refused(text) => Failure::Refused { code: 553, text },
        MoveFailure::Aborted => Failure::Aborted,
    }
}

fn name(algorithm: Option<ChecksumAlgorithm>) -> Option<String> {
    algorithm.map(|algorithm| algorithm.name().to_owned())
}

fn pairs(ranges: &RangeSet) -> Vec<(u64, u64)> {
    ranges.iter().map(|range| (range.start, range.end)).collect()
}

fn pieces(algorithm: ChecksumAlgorithm, sums: &[Sum]) -> Pieces {
    let mut pieces = Pieces::new(algorithm);
    for sum in sums {
        if let Some(value) = sum.sum {
            pieces.insert(sum.start..sum.end, value);
        }
    }
    pieces
}
