//! The traffic analyzer: lists the TCP connections and estimates their demands for buffer.
//!
//! An [`Analyzer`] compares the kernel's counters with those of the previous look, so rates and
//! limits are averages over the time between two looks. It needs no privilege to list connections.
//! If a look fails, the counters of the previous look are kept.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ropewalk_netlink::{Connections, List, Seen, States};
use ropewalk_transport::{Ceilings, CeilingsError};
use thiserror::Error;

use crate::demand::{Measure, Observation, Past, demand, faded};
use crate::flow::{Direction, Flow, LimitedBy, Snapshot};
use crate::owners::Owners;

/// The program name whose connections count as those of Ropewalk.
const OWN: &str = "ropewalk";
/// A sender that was held up for less than this fraction of the time counts as not limited.
const LIMITED: f64 = 0.1;
/// A connection whose buffer was set changes its direction only if the other direction carries more
/// than this number of times as much.
const TURNED: u64 = 2;
/// Up to this number of bytes in the other direction are regarded as answers: their acknowledgement
/// may arrive when nothing else moves.
const ANSWERS: u64 = 4096;
/// Number of times for which a list is requested if entries change while the kernel produces it.
const ATTEMPTS: usize = 3;

/// The connections cannot be listed.
#[derive(Debug, Error)]
pub enum AnalyzeError {
    #[error(
        "the kernel does not tell of TCP connections: {0} (expected sock_diag(7), modules inet_diag and tcp_diag)"
    )]
    Netlink(#[source] io::Error),
    #[error(transparent)]
    Ceilings(#[from] CeilingsError),
}

/// Observes the connections of a network namespace repeatedly.
pub struct Analyzer {
    netlink: Connections,
    owners: Owners,
    /// The time of the last look, and the known state of each connection.
    before: Option<(Instant, HashMap<u64, Known>)>,
}

/// The state of a connection when it was last listed.
#[derive(Clone, Copy)]
struct Known {
    at: Instant,
    counters: Counters,
    /// The connection was missing from the last list.
    missed: bool,
}

/// Counters that only grow.
#[derive(Clone, Copy, Default)]
struct Counters {
    acked: u64,
    received: u64,
    limited_by_peer: Duration,
    limited_by_buffer: Duration,
}

impl Analyzer {
    /// Creates an analyzer for the calling thread's network namespace. This needs no privilege;
    /// only root can see the owners of other users' sockets.
    ///
    /// # Errors
    /// The kernel has no sock_diag(7), or a filter of system calls forbids it.
    pub fn new() -> Result<Self, AnalyzeError> {
        let netlink = Connections::open().map_err(AnalyzeError::Netlink)?;
        Ok(Self { netlink, owners: Owners::default(), before: None })
    }

    /// Like [`new`](Self::new), but searches only the calling process for owners.
    pub(crate) fn of_this_process() -> Result<Self, AnalyzeError> {
        Ok(Self { owners: Owners::of_this_process(), ..Self::new()? })
    }

    /// Returns all current connections. Rates are averages since the last call. `past` returns the
    /// last grant of a connection (by its cookie) in a direction.
    ///
    /// # Errors
    /// The kernel does not answer, or /proc/sys does not exist.
    pub fn look(
        &mut self,
        measure: Measure,
        past: impl Fn(u64, Direction) -> Option<Past>,
    ) -> Result<Snapshot, AnalyzeError> {
        let (seen, list) = connections(&mut self.netlink).map_err(AnalyzeError::Netlink)?;
        let now = Instant::now();
        self.owners
            .learn(&seen.iter().map(|seen| seen.inode).filter(|&inode| inode != 0).collect::<HashSet<_>>());

        // This may fail; the state of earlier looks is then kept, because it is replaced only
        // below.
        let ceilings = Ceilings::read()?;
        let (last, before) = self.before.take().unzip();
        let before = before.unwrap_or_default();
        let flow = |seen: &Seen| {
            let since = last.map(|last| since(last, before.get(&seen.cookie), now));
            self.flow(seen, since.filter(|&(seconds, _)| seconds > 0.0), measure, &past)
        };
        let snapshot = Snapshot {
            time_seconds: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0.0, |since| since.as_secs_f64()),
            interval_seconds: last.map(|last| now.duration_since(last).as_secs_f64()),
            ceilings,
            whole: list == List::Whole,
            connections: seen.iter().map(flow).collect(),
        };
        let listed = seen.iter().map(|seen| (seen.cookie, Counters::of(seen)));
        self.before = Some((now, remember(before, listed, now)));
        Ok(snapshot)
    }

    /// Makes the next look search again for the owner of this socket.
    pub fn forget_owner(&mut self, inode: u32) {
        self.owners.forget(inode);
    }

    fn flow(
        &self,
        seen: &Seen,
        since: Option<(f64, Counters)>,
        measure: Measure,
        past: impl Fn(u64, Direction) -> Option<Past>,
    ) -> Flow {
        let (info, memory, counters) = (&seen.info, seen.memory.unwrap_or_default(), Counters::of(seen));
        let moved = counters.since(since.map_or_else(Counters::default, |(_, before)| before));
        let direction = match (moved.acked, moved.received) {
            (0, 0) if counters.received > counters.acked => Direction::In,
            (acked, received) if received > acked => Direction::In,
            _ => Direction::Out,
        };
        let is_set = |direction| past(seen.cookie, direction).is_some();
        // If data flows in both directions, or in none, the direction would alternate, and at each
        // look one buffer would be restored and the other one set.
        let turns = is_set(direction)
            || !is_set(direction.opposite())
            || moved.bytes(direction) > moved.bytes(direction.opposite()).saturating_mul(TURNED).max(ANSWERS);
        let direction = if turns { direction } else { direction.opposite() };
        let unsent = info.not_sent.unwrap_or(0);
        let outstanding = info.unacknowledged > 0 || unsent > 0;
        let bytes = moved.bytes(direction);
        let bytes_per_second = match since {
            Some((seconds, _)) => bytes as f64 / seconds,
            // The kernel's estimate may be old, so it is used only if the connection is sending
            // now.
            None if direction == Direction::Out && outstanding => info.delivery_rate.unwrap_or(0) as f64,
            None => 0.0,
        };
        let window = u64::from(info.congestion_window) * u64::from(info.mss);
        let (window_bytes, rtt, kernel_buffer, queued) = match direction {
            Direction::Out => (window, info.rtt, memory.send_buffer, memory.send_queue),
            Direction::In => {
                let rtt = if info.receiver_rtt > Duration::ZERO { info.receiver_rtt } else { info.rtt };
                (u64::from(info.receive_space), rtt, memory.receive_buffer, memory.receive_queue)
            }
        };
        let rtt_seconds = rtt.as_secs_f64();
        let limited_by = match direction {
            Direction::Out if bytes > 0 || outstanding => {
                let share = |time: Duration| since.map_or(0.0, |(seconds, _)| time.as_secs_f64() / seconds);
                let (buffer, peer) = (share(moved.limited_by_buffer), share(moved.limited_by_peer));
                if buffer >= LIMITED && buffer >= peer {
                    LimitedBy::Buffer
                } else if peer >= LIMITED {
                    LimitedBy::Peer
                } else if info.application_limited && unsent == 0 {
                    LimitedBy::Application
                } else {
                    LimitedBy::Network
                }
            }
            _ => LimitedBy::Unknown,
        };
        let observation = Observation {
            direction,
            rate: bytes_per_second,
            rtt: rtt_seconds,
            window: window_bytes,
            peer_window: if direction == Direction::Out { info.send_window.unwrap_or(0).into() } else { 0 },
            buffer: u64::from(kernel_buffer) / 2,
            outstanding,
            limited_by,
        };
        let past = past(seen.cookie, direction);
        // The first look has neither rates nor limits.
        let past_demand = past.map(|past| match since {
            Some(_) => faded(measure, &observation, past),
            None => past.demand,
        });
        let owner = self.owners.of(seen.inode).cloned();
        Flow {
            cookie: seen.cookie,
            inode: seen.inode,
            direction,
            local: seen.local,
            remote: seen.remote,
            own: owner.as_ref().is_some_and(|owner| owner.program == OWN),
            owner,
            congestion: seen.congestion.clone(),
            bytes_per_second,
            rtt_seconds,
            window_bytes,
            kernel_buffer_bytes: kernel_buffer.into(),
            kernel_queued_bytes: queued.into(),
            limited_by,
            demand_bytes: demand(measure, &observation, past),
            past_demand_bytes: past_demand,
        }
    }
}

/// Lists all connections, each once.
fn connections(kernel: &mut Connections) -> io::Result<(Vec<Seen>, List)> {
    let (mut all, mut list) = (Vec::new(), List::Interrupted);
    for _ in 0..ATTEMPTS {
        all.clear();
        list = kernel.list(States::MOVING, |seen| all.push(seen))?;
        if list == List::Whole {
            break;
        }
    }
    all.sort_by_key(|seen: &Seen| seen.cookie);
    all.dedup_by_key(|seen| seen.cookie);
    Ok((all, list))
}

/// Returns the seconds since a connection was last listed, and its counters at that time. A
/// connection that did not exist at the `last` look began with zero counters.
fn since(last: Instant, known: Option<&Known>, now: Instant) -> (f64, Counters) {
    let (at, counters) = known.map_or((last, Counters::default()), |known| (known.at, known.counters));
    (now.duration_since(at).as_secs_f64(), counters)
}

/// Returns the known state after a list. A connection is remembered if it is missing from one list,
/// because a list that changes while the kernel produces it may lack entries. Otherwise all bytes
/// that the connection ever moved would be counted for one interval when it appears again.
fn remember(
    before: HashMap<u64, Known>,
    listed: impl Iterator<Item = (u64, Counters)>,
    now: Instant,
) -> HashMap<u64, Known> {
    let missing = before.into_iter().filter(|(_, known)| !known.missed);
    let mut all: HashMap<u64, Known> =
        missing.map(|(cookie, known)| (cookie, Known { missed: true, ..known })).collect();
    all.extend(listed.map(|(cookie, counters)| (cookie, Known { at: now, counters, missed: false })));
    all
}

impl Counters {
    fn of(seen: &Seen) -> Self {
        let info = &seen.info;
        Self {
            acked: info.bytes_acknowledged.unwrap_or(0),
            received: info.bytes_received.unwrap_or(0),
            limited_by_peer: info.receive_window_limited.unwrap_or_default(),
            limited_by_buffer: info.send_buffer_limited.unwrap_or_default(),
        }
    }

    fn bytes(self, direction: Direction) -> u64 {
        match direction {
            Direction::Out => self.acked,
            Direction::In => self.received,
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            acked: self.acked.saturating_sub(before.acked),
            received: self.received.saturating_sub(before.received),
            limited_by_peer: self.limited_by_peer.saturating_sub(before.limited_by_peer),
            limited_by_buffer: self.limited_by_buffer.saturating_sub(before.limited_by_buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_missing_from_one_list_is_remembered() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let acked = |acked| Counters { acked, ..Counters::default() };
        let seen = |before: &HashMap<u64, Known>, cookie, now| {
            let (seconds, counters) = since(at(now - 1), before.get(&cookie), at(now));
            (seconds as u64, counters.acked)
        };
        let mut known = remember(HashMap::new(), [(1, acked(1000)), (2, acked(50))].into_iter(), at(1));
        assert_eq!([1, 2, 3].map(|cookie| seen(&known, cookie, 2)), [(1, 1000), (1, 50), (1, 0)]);
        known = remember(known, [(2, acked(60))].into_iter(), at(2));
        assert_eq!([1, 2].map(|cookie| seen(&known, cookie, 3)), [(2, 1000), (1, 60)]);
        // Connection 1 is listed again, and then disappears for good.
        known = remember(known, [(1, acked(1100)), (2, acked(70))].into_iter(), at(3));
        assert_eq!([1, 2].map(|cookie| seen(&known, cookie, 4)), [(1, 1100), (1, 70)]);
        for now in 4..6 {
            known = remember(known, [(2, acked(80))].into_iter(), at(now));
        }
        assert!(known.len() == 1 && known.contains_key(&2));
    }
}
