//! A transfer on data nodes, as the front end follows it.
//!
//! The thread of the session hears the reports of all nodes of a channel while it serves the
//! client's control connection. The transfer has ended when every node has ended its part. If one
//! fails, or is lost because it is silent or its lease has run out, the others break off: what they
//! have reported is stored, and counts for a restart.

use std::io::{self, ErrorKind, Read};
use std::time::{Duration, Instant};

use ropewalk_engine::{Attendant, Parallelism, Progress};
use ropewalk_nodes::{Order, Report, Sum, Transferred};
use ropewalk_protocol::server::Failure;
use ropewalk_transport::timespec;
use rustix::event::{PollFd, PollFlags, poll};

use super::node_channel::{NodeChannel, failure_of};
use super::node_claims::Claims;
use crate::failure::io_failure;

/// A node that says nothing for this time during a transfer is gone: it reports every second.
const SILENCE: Duration = Duration::from_secs(8);
/// A node that has got the order to break off has to end its part within this time.
const BREAKING_OFF: Duration = Duration::from_secs(10);
/// A node may send reports faster than they are taken: after this number it is the turn of others.
const MOST_REPORTS: usize = 64;
/// How often the client is looked at, and leases and streams.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of a listing that are sent at a time.
const CHUNK: usize = 256 << 10;

/// The side of the session: the receivers of reports, and the source of bytes.
pub(super) struct Ends<'e> {
    pub(super) attendant: &'e mut dyn Attendant,
    pub(super) progress: &'e Progress,
    /// Gets each range that is in the store; its error ends the transfer.
    pub(super) stored: &'e mut dyn FnMut(Sum) -> Result<(), Failure>,
    /// The bytes of [`Order::SendBytes`], which the first node sends.
    pub(super) source: Option<&'e mut dyn Read>,
}

/// The part of one node.
struct Part {
    /// The time of the node's last report.
    heard: Instant,
    bytes: u64,
    streams: u32,
    waiting_ns: [u64; 5],
    /// The node wants more of the source.
    wanted: bool,
    /// The time at which the node got the order to break off.
    aborted: Option<Instant>,
    /// The node has ended its part, or is lost.
    over: bool,
    transferred: Option<Transferred>,
    claims: Claims,
}

/// A transfer in progress.
pub(super) struct Follow<'f> {
    nodes: &'f mut [NodeChannel],
    parallelism: &'f Parallelism,
    /// The number of streams that the nodes know.
    streams: u32,
    parts: Vec<Part>,
    looked: Instant,
    begun: bool,
    /// Why the transfer is being broken off.
    ended: Option<Failure>,
}

impl<'f> Follow<'f> {
    /// Gives each node its order, and follows the transfer to its end.
    pub(super) fn run(
        nodes: &'f mut [NodeChannel],
        orders: &[Order],
        parallelism: &'f Parallelism,
        ends: &mut Ends<'_>,
    ) -> Result<Vec<Transferred>, Failure> {
        let now = Instant::now();
        let part = |order| Part {
            heard: now,
            bytes: 0,
            streams: 0,
            waiting_ns: [0; 5],
            wanted: false,
            aborted: None,
            over: false,
            transferred: None,
            claims: Claims::new(order),
        };
        let (streams, parts) = (parallelism.get(), orders.iter().map(part).collect());
        let mut follow = Self { nodes, parallelism, streams, parts, looked: now, begun: false, ended: None };
        for (at, order) in orders.iter().enumerate() {
            follow.nodes[at].cached = 0;
            (follow.nodes[at].is_doubtful, follow.nodes[at].stored_end) = (false, 0);
            follow.send(at, order);
        }
        follow.follow(ends)
    }

    fn follow(mut self, ends: &mut Ends<'_>) -> Result<Vec<Transferred>, Failure> {
        loop {
            for at in 0..self.parts.len() {
                if !self.parts[at].over
                    && let Err(failure) = self.hear(at, ends)
                {
                    self.lose(at, failure);
                }
            }
            self.break_off();
            if self.parts.iter().all(|part| part.over) {
                return match self.ended {
                    Some(failure) => Err(failure),
                    None => Ok(self.parts.into_iter().filter_map(|part| part.transferred).collect()),
                };
            }
            for at in 0..self.parts.len() {
                if self.parts[at].wanted && self.ended.is_none() {
                    self.feed(at, ends);
                }
            }
            if self.looked.elapsed() >= TICK {
                self.look(ends);
            }
            self.wait(ends);
        }
    }

    /// The node can do nothing more.
    fn lose(&mut self, at: usize, failure: Failure) {
        self.parts[at].over = true;
        self.end(failure);
    }

    /// Ends the transfer. The nodes still report what they have stored.
    fn end(&mut self, why: Failure) {
        self.ended.get_or_insert(why);
    }

    fn send(&mut self, at: usize, order: &Order) {
        if let Err(failure) = self.nodes[at].send(order) {
            self.lose(at, failure);
        }
    }

    /// Orders the nodes to break off, if the transfer has failed.
    fn break_off(&mut self) {
        if self.ended.is_none() {
            return;
        }
        for at in 0..self.parts.len() {
            let part = &mut self.parts[at];
            if !part.over && part.aborted.is_none() {
                part.aborted = Some(Instant::now());
                self.send(at, &Order::Abort);
            }
        }
    }

    /// Takes the reports of a node that have come. An error means that the node is lost.
    fn hear(&mut self, at: usize, ends: &mut Ends<'_>) -> Result<(), Failure> {
        for _ in 0..MOST_REPORTS {
            let node = &mut self.nodes[at];
            let Some(frame) = node.chosen.link.ready().map_err(|error| node.lost(&error))? else {
                return Ok(());
            };
            self.parts[at].heard = Instant::now();
            match frame.message().map_err(|error| node.lost(&error))? {
                Report::Begun { reused } => {
                    if !std::mem::replace(&mut self.begun, true)
                        && let Err(error) = ends.attendant.begun(reused)
                    {
                        self.end(Failure::DataBroken(format!("cannot begin the transfer: {error}")));
                    }
                }
                Report::Moved { bytes, streams, waiting_ns, stored } => {
                    for sum in stored {
                        let claimed = self.parts[at].claims.stored(&sum);
                        let node = &mut self.nodes[at];
                        claimed.map_err(|text| node.contradicts(&text))?;
                        node.stored_end = node.stored_end.max(sum.end);
                        // Later ranges are stored as well, and need not be sent again.
                        if let Err(failure) = (ends.stored)(sum) {
                            self.end(failure);
                        }
                    }
                    let part = &mut self.parts[at];
                    (part.bytes, part.waiting_ns) = (bytes, waiting_ns);
                    part.streams = Claims::streams(streams);
                    self.report(ends.progress);
                }
                Report::More => self.parts[at].wanted = true,
                Report::Left => return Err(node.left()),
                Report::Ended(result) => {
                    self.parts[at].over = true;
                    match result {
                        Ok(transferred) => {
                            let claims = &self.parts[at].claims;
                            claims.ended(&transferred).map_err(|text| node.contradicts(&text))?;
                            node.cached = transferred.cached;
                            self.parts[at].transferred = Some(transferred);
                        }
                        Err(failure) => self.end(failure_of(failure)),
                    }
                    return Ok(());
                }
                other => return Err(node.out_of_turn(&other)),
            }
        }
        Ok(())
    }

    fn report(&self, progress: &Progress) {
        let mut times = [0_u64; 5];
        for part in &self.parts {
            for (time, ns) in times.iter_mut().zip(part.waiting_ns) {
                *time = time.saturating_add(ns);
            }
        }
        let bytes: Vec<u64> = self.parts.iter().map(|part| part.bytes).collect();
        let streams = self.parts.iter().fold(0, |sum: u32, part| sum.saturating_add(part.streams));
        progress.report(&bytes, streams, times.map(Duration::from_nanos));
    }

    /// Looks at the client, the streams and the nodes.
    fn look(&mut self, ends: &mut Ends<'_>) {
        self.looked = Instant::now();
        for at in 0..self.parts.len() {
            let (part, node) = (&self.parts[at], &mut self.nodes[at]);
            let silence = part.heard.elapsed();
            if part.over {
                continue;
            }
            if silence >= SILENCE {
                let failure = node.late(format!("it has said nothing for {} s", silence.as_secs()));
                self.lose(at, failure);
            } else if part.aborted.is_some_and(|aborted| aborted.elapsed() >= BREAKING_OFF) {
                let failure = node.late("it does not break the transfer off".into());
                self.lose(at, failure);
            } else if self.ended.is_none() && !node.chosen.is_alive() {
                let failure = node.late("its lease has run out".into());
                self.lose(at, failure);
            }
        }
        if self.ended.is_some() {
            return;
        }
        if ends.attendant.tick(ends.progress).is_break() {
            return self.end(Failure::Aborted);
        }
        let streams = self.parallelism.get();
        if std::mem::replace(&mut self.streams, streams) != streams {
            for at in 0..self.parts.len() {
                if !self.parts[at].over {
                    self.send(at, &Order::Streams(streams));
                }
            }
        }
    }

    /// Waits for the nodes, for the client, or until it is time to look again.
    fn wait(&mut self, ends: &mut Ends<'_>) {
        if self.ended.is_none() && ends.attendant.waits().is_break() {
            return self.end(Failure::Aborted);
        }
        let wanted = self.parts.iter().any(|part| part.wanted);
        let pause = timespec(if wanted { TICK / 10 } else { TICK });
        let polled = {
            let watched = ends.attendant.watch().filter(|_| self.ended.is_none());
            let watches = watched.is_some();
            let mut fds: Vec<PollFd<'_>> = watched
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN | PollFlags::RDHUP))
                .into_iter()
                .collect();
            let busy = self.nodes.iter().zip(&self.parts).filter(|(_, part)| !part.over);
            fds.extend(busy.map(|(node, _)| PollFd::new(&node.chosen.link, PollFlags::IN)));
            match poll(&mut fds, Some(&pause)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => Ok(watches && !fds[0].revents().is_empty()),
                Err(errno) => Err(errno),
            }
        };
        match polled {
            Ok(true) if ends.attendant.readable().is_break() => self.end(Failure::Aborted),
            Ok(_) => {}
            Err(errno) => self.end(io_failure(errno.into())),
        }
    }

    /// Sends the next bytes of the source to a node, or their end.
    fn feed(&mut self, at: usize, ends: &mut Ends<'_>) {
        let Some(source) = &mut ends.source else {
            let failure = self.nodes[at].out_of_turn(&Report::More);
            return self.lose(at, failure);
        };
        let mut bytes = vec![0; CHUNK];
        let count = loop {
            // All bytes go in order over the first node.
            let read = if at == 0 { source.read(&mut bytes) } else { Ok(0) };
            match read {
                Ok(count) => break count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.source_failed(at, error),
            }
        };
        self.parts[at].wanted = false;
        self.parts[at].claims.give(count);
        let node = &mut self.nodes[at];
        let sent = match count {
            0 => node.chosen.link.send(&Order::BytesEnd { complete: true }),
            count => node.chosen.link.send_bytes(&bytes[..count]),
        };
        if let Err(error) = sent {
            let failure = node.lost(&error);
            self.lose(at, failure);
        }
    }

    fn source_failed(&mut self, at: usize, error: io::Error) {
        self.end(io_failure(error));
        self.parts[at].aborted = Some(Instant::now());
        self.send(at, &Order::BytesEnd { complete: false });
    }
}
