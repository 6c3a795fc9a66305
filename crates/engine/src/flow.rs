//! The statistics of a channel's data connections while they are in use.
//!
//! Each connection is listed with a handle, through which any thread gets its statistics. The
//! handle does not keep the connection open. A connection that ends leaves its totals behind.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_transport::{ConnectionHandle, Endpoint, FlowObserver, OpenFlow, PathStats, Tuning};

/// One data connection at one moment.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The number of the connection in its channel, counted up.
    pub id: u64,
    pub peer: Endpoint,
    /// The time since the connection was made.
    pub age: Duration,
    /// Bytes that went through it in either direction since then, with headers.
    pub bytes: u64,
    pub stats: PathStats,
}

/// All data connections of a channel taken together. Sums and smallest values are those of the live
/// connections. Totals count up since the channel was made and include connections that have ended,
/// so that their differences are rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PathSample {
    /// Live connections.
    pub streams: u32,
    /// Mean smoothed round-trip time: as the sender measures it, or, while this end receives, as
    /// the receiver estimates it, which takes some data. `None` if no connection has one.
    pub rtt: Option<Duration>,
    /// The shortest of all live connections, if it is known. Only senders measure it once data
    /// flows.
    pub min_rtt: Option<Duration>,
    /// Total of payload and headers that went through the connections, in bytes.
    pub bytes: u64,
    /// Total of segments sent with data, and of segments sent again.
    pub segments_sent: u64,
    pub retransmitted: u64,
    /// Total of segments received with data, and of segments that came out of order, which is how a
    /// receiver sees losses.
    pub segments_received: u64,
    pub out_of_order: u64,
    /// The windows that the peers offer, in bytes.
    pub send_window: u64,
    pub smallest_send_window: Option<u32>,
    /// The windows that this end offers, in bytes.
    pub receive_window: u64,
    pub smallest_receive_window: Option<u32>,
    /// Congestion windows, in bytes.
    pub congestion_window: u64,
    pub smallest_congestion_window: Option<u64>,
    /// Send and receive buffers, in bytes.
    pub send_buffer: u64,
    pub receive_buffer: u64,
    /// Total of the time with data to send, summed over connections, and the parts of it in which
    /// the peer's window or the own send buffer limited them.
    pub busy: Duration,
    pub receive_window_limited: Duration,
    pub send_buffer_limited: Duration,
}

/// The data connections of a channel: a handle for any thread, which does not keep them open.
#[derive(Clone, Default)]
pub struct Flows(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    made: u64,
    receiving: bool,
    live: Vec<Entry>,
    /// The totals of the connections that have ended.
    ended: PathSample,
    /// Connections that have ended since the last transfer began, as they were in the end: at most
    /// [`MOST_GONE`].
    gone: Vec<Flow>,
}

/// How many ended connections are kept.
const MOST_GONE: usize = 64;

struct Entry {
    id: u64,
    peer: Endpoint,
    since: Instant,
    bytes: Arc<AtomicU64>,
    handle: Arc<dyn ConnectionHandle>,
}

impl Flows {
    /// The statistics of every live connection.
    pub fn sample(&self) -> Vec<Flow> {
        self.0.lock().live.iter().filter_map(Entry::sample).collect()
    }

    /// Connections that have ended since the last transfer began, as they were in the end: at most
    /// 64. In MODE S, each ends with its transfer.
    pub fn gone(&self) -> Vec<Flow> {
        self.0.lock().gone.clone()
    }

    /// All connections taken together.
    pub fn path(&self) -> PathSample {
        let registry = self.0.lock();
        let mut all = registry.ended.clone();
        let mut round_trips = RoundTrips::default();
        for flow in registry.live.iter().filter_map(Entry::sample) {
            all.add_totals(&flow);
            all.add_state(&flow);
            round_trips.add(&flow.stats, registry.receiving);
        }
        all.rtt = round_trips.mean();
        all
    }

    /// Whether these are the connections of the same channel.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The internet addresses of the peers of all live connections. This needs no statistics.
    pub fn peers(&self) -> Vec<SocketAddr> {
        self.0.lock().live.iter().filter_map(|entry| entry.peer.socket().ok()).collect()
    }

    /// Sets the congestion control of every live connection.
    pub(crate) fn set_congestion(&self, name: &str) {
        let tuning = Tuning { congestion: Some(name.to_owned()), ..Tuning::default() };
        for entry in &self.0.lock().live {
            entry.handle.tune(&tuning);
        }
    }

    /// A transfer starts.
    pub(crate) fn set_receiving(&self, receiving: bool) {
        let mut registry = self.0.lock();
        registry.receiving = receiving;
        registry.gone.clear();
    }

    /// Lists a connection until the returned value is dropped. Dropped before the connection, it
    /// keeps the final statistics.
    pub(crate) fn register(&self, handle: Arc<dyn ConnectionHandle>, peer: Endpoint) -> Listed {
        let mut registry = self.0.lock();
        registry.made += 1;
        let (id, bytes) = (registry.made, Arc::<AtomicU64>::default());
        registry.live.push(Entry { id, peer, since: Instant::now(), bytes: Arc::clone(&bytes), handle });
        Listed { flows: self.clone(), id, bytes, observed: None }
    }
}

impl fmt::Debug for Flows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flows").field("live", &self.0.lock().live.len()).finish_non_exhaustive()
    }
}

impl Entry {
    /// `None` if the driver has no statistics.
    fn sample(&self) -> Option<Flow> {
        Some(Flow {
            id: self.id,
            peer: self.peer.clone(),
            age: self.since.elapsed(),
            bytes: self.bytes.load(Ordering::Relaxed),
            stats: self.handle.stats()?,
        })
    }
}

impl PathSample {
    fn add_totals(&mut self, flow: &Flow) {
        let stats = &flow.stats;
        self.bytes += flow.bytes;
        self.segments_sent += stats.sent;
        self.retransmitted += stats.retransmitted;
        self.segments_received += stats.received;
        self.out_of_order += stats.out_of_order;
        self.busy += stats.limits.busy;
        self.receive_window_limited += stats.limits.receive_window;
        self.send_buffer_limited += stats.limits.send_buffer;
    }

    fn add_state(&mut self, flow: &Flow) {
        let PathStats { send_window, receive_window, min_rtt, congestion_window, .. } = flow.stats;
        self.streams += 1;
        self.min_rtt = smaller(self.min_rtt, min_rtt);
        self.send_window += u64::from(send_window.unwrap_or(0));
        self.smallest_send_window = smaller(self.smallest_send_window, send_window);
        self.receive_window += u64::from(receive_window.unwrap_or(0));
        self.smallest_receive_window = smaller(self.smallest_receive_window, receive_window);
        self.congestion_window += congestion_window;
        self.smallest_congestion_window = smaller(self.smallest_congestion_window, Some(congestion_window));
        self.send_buffer += flow.stats.send_buffer.unwrap_or(0) as u64;
        self.receive_buffer += flow.stats.receive_buffer.unwrap_or(0) as u64;
    }
}

/// Returns the smaller one of those that are known.
fn smaller<T: Ord>(a: Option<T>, b: Option<T>) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Round-trip times of several connections.
#[derive(Default)]
struct RoundTrips {
    sum: Duration,
    count: u32,
    /// Those of the handshakes, as long as a receiver has no better ones.
    other_sum: Duration,
    other_count: u32,
}

impl RoundTrips {
    fn add(&mut self, stats: &PathStats, receiving: bool) {
        let known = if receiving { stats.receiver_rtt } else { stats.rtt };
        if let Some(known) = known {
            self.sum += known;
            self.count += 1;
        } else if let Some(rtt) = stats.rtt {
            self.other_sum += rtt;
            self.other_count += 1;
        }
    }

    fn mean(&self) -> Option<Duration> {
        self.sum.checked_div(self.count).or_else(|| self.other_sum.checked_div(self.other_count))
    }
}

/// See [`Flows::register`].
pub(crate) struct Listed {
    flows: Flows,
    id: u64,
    bytes: Arc<AtomicU64>,
    /// Dropped when the connection ends, while its statistics are still available.
    observed: Option<Box<dyn Send>>,
}

impl Listed {
    /// Reports the connection to an observer.
    pub(crate) fn observe(
        &mut self,
        observer: &dyn FlowObserver,
        local: SocketAddr,
        peer: SocketAddr,
        handle: Arc<dyn ConnectionHandle>,
    ) {
        let receiving = self.flows.0.lock().receiving;
        let flow = OpenFlow { local, peer, receiving, bytes: self.counter(), handle };
        self.observed = Some(observer.opened(flow));
    }

    /// The bytes that went through the connection, for other threads.
    pub(crate) fn counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.bytes)
    }

    /// `n` bytes went through the connection.
    pub(crate) fn moved(&self, n: usize) {
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        drop(self.observed.take());
        let mut registry = self.flows.0.lock();
        if let Some(at) = registry.live.iter().position(|entry| entry.id == self.id) {
            let entry = registry.live.swap_remove(at);
            if let Some(flow) = entry.sample() {
                registry.ended.add_totals(&flow);
                if registry.gone.len() < MOST_GONE {
                    registry.gone.push(flow);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::{Read, Write};
    use std::net::Ipv4Addr;

    use ropewalk_transport::{Tcp, testing};

    use super::*;

    #[test]
    fn connections_are_listed_until_they_end_and_counted_beyond() {
        let (mut near, mut far) = testing::pair(&Tcp, (Ipv4Addr::LOCALHOST, 0));
        let peer = near.peer_addr().unwrap();
        let flows = Flows::default();
        let listed = flows.register(near.handle(), peer.clone());
        let other = flows.register(far.handle(), peer);
        near.write_all(&[7; 5000]).unwrap();
        far.read_exact(&mut [0; 5000]).unwrap();
        listed.moved(5000);
        let all = flows.sample();
        assert_eq!(all.iter().map(|flow| (flow.id, flow.bytes)).collect::<Vec<_>>(), [(1, 5000), (2, 0)]);
        assert!(all[0].stats.sent > 0 && all[1].stats.received > 0);
        assert!(all[0].stats.send_buffer.unwrap() > 0 && all[0].stats.receive_buffer.unwrap() > 0);
        let path = flows.path();
        assert_eq!((path.streams, path.bytes), (2, 5000));
        assert!(path.rtt.is_some() && path.segments_sent > 0 && path.congestion_window > 0);
        assert!(path.smallest_congestion_window.unwrap() <= path.congestion_window / 2);
        drop(listed);
        drop(near);
        let path = flows.path();
        assert_eq!((path.streams, path.bytes), (1, 5000));
        assert!(path.segments_sent > 0);
        assert_eq!(flows.gone().iter().map(|flow| (flow.id, flow.bytes)).collect::<Vec<_>>(), [(1, 5000)]);
        flows.set_receiving(true);
        assert!(flows.gone().is_empty());
        assert!(flows.is(&flows.clone()) && !flows.is(&Flows::default()));
        drop(other);
        assert_eq!((flows.path().streams, flows.path().rtt), (0, None));
    }

    #[test]
    fn receiver_prefers_its_own_round_trip_times() {
        let stats = |rtt, receiver_rtt: Option<u64>| PathStats {
            rtt: Some(Duration::from_millis(rtt)),
            receiver_rtt: receiver_rtt.map(Duration::from_millis),
            ..PathStats::default()
        };
        let mean = |receiving| {
            let mut all = RoundTrips::default();
            for stats in [stats(10, None), stats(20, Some(40)), stats(30, Some(60))] {
                all.add(&stats, receiving);
            }
            all.mean()
        };
        assert_eq!(mean(false), Some(Duration::from_millis(20)));
        assert_eq!(mean(true), Some(Duration::from_millis(50)));
        let mut fresh = RoundTrips::default();
        fresh.add(&stats(10, None), true);
        assert_eq!(fresh.mean(), Some(Duration::from_millis(10)));
    }
}
