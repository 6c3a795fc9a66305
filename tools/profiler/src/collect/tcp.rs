//! Samples TCP connections ten times a second.
//!
//! A thread lists the connections with sock_diag(7), keeps a series for each connection that fits
//! [`Sockets`], and shares the inodes of those that carry data with other collectors
//! ([`Carrying`]). Memory is bounded: when there are too many samples, every other one is dropped.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::sampler::Sampler;
use super::sock_diag::{Diagnostics, Seen};
use super::{Collector, Unavailable};
use crate::profile::{CollectorName, Connection, ConnectionSample, HostProfile};

const INTERVAL: Duration = Duration::from_millis(100);
/// Limits on connections with a series, and on samples of all connections together. At the limit of
/// samples, every other sample is dropped, and from then on only every other moment is sampled.
const CONNECTIONS: usize = 256;
const SAMPLES: usize = 100_000;
/// Connections that moved fewer bytes carry no data: they are control connections.
pub(super) const CARRIES: u64 = 128 << 10;

/// Selects the connections to sample: those that match all of these criteria. A connection of this
/// host with itself appears twice, once for each end.
#[derive(Clone, Debug, Default)]
pub struct Sockets {
    /// Ports on either side; empty means any.
    pub ports: Vec<u16>,
    /// Addresses of the other side; empty means any.
    pub peers: Vec<IpAddr>,
    /// Ports of the other side that are left out: those of control connections.
    pub except: Vec<u16>,
    /// Only sockets of this process.
    pub own: bool,
    pub chosen: Option<Chosen>,
}

/// A function that chooses connections at each sample, by address and port of the other side.
#[derive(Clone)]
pub struct Chosen(Arc<dyn Fn() -> HashSet<SocketAddr> + Send + Sync>);

impl Chosen {
    /// `choose` is called ten times a second.
    pub fn new(choose: impl Fn() -> HashSet<SocketAddr> + Send + Sync + 'static) -> Self {
        Self(Arc::new(choose))
    }
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Chosen")
    }
}

/// The selections that have to be evaluated at each sample.
pub(super) struct Moment {
    own: Option<HashSet<u32>>,
    chosen: Option<HashSet<SocketAddr>>,
}

impl Sockets {
    pub(super) fn now(&self) -> Moment {
        Moment { own: self.own.then(own_sockets), chosen: self.chosen.as_ref().map(|chosen| (chosen.0)()) }
    }

    pub(super) fn fit(&self, seen: &Seen, moment: &Moment) -> bool {
        let port = |port| self.ports.contains(&port);
        // Either address may be written as ::ffff:A.B.C.D.
        let remote = seen.remote.ip().to_canonical();
        let is_remote = |peer: &IpAddr| peer.to_canonical() == remote;
        (self.ports.is_empty() || port(seen.local.port()) || port(seen.remote.port()))
            && (self.peers.is_empty() || self.peers.iter().any(is_remote))
            && !self.except.contains(&seen.remote.port())
            && moment.own.as_ref().is_none_or(|own| own.contains(&seen.inode))
            && moment.chosen.as_ref().is_none_or(|chosen| chosen.contains(&seen.remote))
    }
}

/// The inodes of this process's sockets (proc_pid_fd(5)).
fn own_sockets() -> HashSet<u32> {
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let target = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
    let inode = |target: std::path::PathBuf| {
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    open.filter_map(target).filter_map(inode).collect()
}

/// The inodes of the sockets that carry data, as of the last sample. The TCP collector reads the
/// kernel's list once for all collectors. `None` until the collector is started.
#[derive(Clone, Default)]
pub(super) struct Carrying(Arc<Mutex<Option<HashSet<u32>>>>);

impl Carrying {
    pub(super) fn now(&self) -> Option<HashSet<u32>> {
        self.0.lock().clone()
    }

    fn set(&self, inodes: HashSet<u32>) {
        *self.0.lock() = Some(inodes);
    }
}

/// Polls the kernel.
pub(super) struct Tcp {
    sockets: Sockets,
    carrying: Carrying,
    sampler: Option<Sampler<State>>,
}

struct State {
    sockets: Sockets,
    carrying: Carrying,
    diagnostics: Diagnostics,
    zero: Instant,
    series: Series,
    error: Option<std::io::Error>,
}

/// The connections and their samples.
#[derive(Default)]
struct Series {
    connections: HashMap<u64, (usize, Connection)>,
    samples: usize,
    left_out: HashMap<u64, ()>,
    /// One of 2^`thinned` moments is kept.
    thinned: u32,
    moment: u64,
}

impl Tcp {
    pub(super) fn new(sockets: Sockets) -> Self {
        Self { sockets, carrying: Carrying::default(), sampler: None }
    }

    /// The set of sockets that carry data, for other collectors.
    pub(super) fn carrying(&self) -> Carrying {
        self.carrying.clone()
    }
}

impl Collector for Tcp {
    fn name(&self) -> CollectorName {
        CollectorName::Tcp
    }

    fn start(&mut self) -> Result<(), Unavailable> {
        let diagnostics = Diagnostics::open().map_err(|error| Unavailable::of("sock_diag", &error))?;
        let state = State {
            sockets: self.sockets.clone(),
            carrying: self.carrying.clone(),
            diagnostics,
            zero: Instant::now(),
            series: Series::default(),
            error: None,
        };
        let sampler = Sampler::start("profile-tcp", INTERVAL, state, State::look);
        self.sampler = Some(sampler.map_err(|error| Unavailable::of("a thread", &error))?);
        self.carrying.0.lock().get_or_insert_default();
        Ok(())
    }

    fn stop(&mut self) {
        self.sampler.iter_mut().for_each(Sampler::stop);
    }

    fn finish(self: Box<Self>, profile: &mut HostProfile) -> Result<String, Unavailable> {
        let state = self.sampler.and_then(Sampler::finish);
        let state = state.ok_or_else(|| Unavailable::Failed("the thread that reads TCP_INFO died".into()))?;
        profile.connections_left_out = state.series.left_out.len() as u64;
        let detail = format!("{} connections", state.series.connections.len());
        profile.connections = state.series.into_connections();
        match state.error {
            Some(error) => Err(Unavailable::of("sock_diag", &error)),
            None => Ok(detail),
        }
    }
}

impl State {
    fn look(&mut self) {
        if self.error.is_some() || !self.series.next_moment() {
            return;
        }
        let time = self.zero.elapsed().as_secs_f64();
        let (sockets, series) = (&self.sockets, &mut self.series);
        let moment = sockets.now();
        let mut carrying = HashSet::new();
        if moment.chosen.as_ref().is_none_or(|chosen| !chosen.is_empty()) {
            let looked = self.diagnostics.connections(|seen| {
                if sockets.fit(&seen, &moment) {
                    let moved = seen.sample.acknowledged.max(seen.sample.received).unwrap_or(0);
                    if moved >= CARRIES {
                        carrying.insert(seen.inode);
                    }
                    series.add(time, seen);
                }
            });
            self.error = looked.err();
        }
        if self.error.is_some() {
            // Nothing updates the set from now on.
            carrying.clear();
        }
        self.carrying.set(carrying);
    }
}

impl Series {
    /// Whether this moment is one to keep.
    fn next_moment(&mut self) -> bool {
        self.moment += 1;
        self.moment.is_multiple_of(1 << self.thinned.min(20))
    }

    fn add(&mut self, time: f64, seen: Seen) {
        let count = self.connections.len();
        if count >= CONNECTIONS && !self.connections.contains_key(&seen.cookie) {
            if self.left_out.len() < SAMPLES {
                self.left_out.insert(seen.cookie, ());
            }
            return;
        }
        let (_, connection) = self.connections.entry(seen.cookie).or_insert_with(|| {
            let (local, remote) = (seen.local.to_string(), seen.remote.to_string());
            (count, Connection { local, remote, congestion: seen.congestion, samples: Vec::new() })
        });
        connection.samples.push(ConnectionSample { time, ..seen.sample });
        self.samples += 1;
        if self.samples >= SAMPLES {
            self.thin();
        }
    }

    /// Keeps the first sample, every other one, and the last of each connection.
    fn thin(&mut self) {
        self.thinned += 1;
        self.samples = 0;
        for (_, connection) in self.connections.values_mut() {
            let last = connection.samples.len().saturating_sub(1);
            let mut at = 0;
            connection.samples.retain(|_| {
                at += 1;
                (at - 1) % 2 == 0 || at - 1 == last
            });
            self.samples += connection.samples.len();
        }
    }

    /// The connections in the order in which they appeared.
    fn into_connections(self) -> Vec<Connection> {
        let mut all: Vec<(usize, Connection)> = self.connections.into_values().collect();
        all.sort_by_key(|(order, _)| *order);
        all.into_iter().map(|(_, connection)| connection).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn seen(cookie: u64) -> Seen {
        Seen {
            cookie,
            inode: 7,
            local: "10.0.0.1:2811".parse().unwrap(),
            remote: "10.0.0.2:50000".parse().unwrap(),
            congestion: "cubic".into(),
            sample: ConnectionSample::default(),
        }
    }

    #[test]
    fn sockets_fit_when_all_criteria_match() {
        let sockets = |ports: &[u16], peers: &[&str]| Sockets {
            ports: ports.to_vec(),
            peers: peers.iter().map(|peer| peer.parse().unwrap()).collect(),
            ..Sockets::default()
        };
        let fit = |sockets: Sockets| sockets.fit(&seen(1), &sockets.now());
        for (ports, peers, fits) in [
            (vec![], vec![], true),
            (vec![2811], vec![], true),
            (vec![50000], vec!["10.0.0.2"], true),
            (vec![], vec!["::ffff:10.0.0.2"], true),
            (vec![80], vec![], false),
            (vec![2811], vec!["10.0.0.1"], false),
        ] {
            assert_eq!(fit(sockets(&ports, &peers)), fits, "{ports:?} {peers:?}");
        }
        let chosen = |remote: &str| {
            let remote: SocketAddr = remote.parse().unwrap();
            Some(Chosen::new(move || HashSet::from([remote])))
        };
        assert!(fit(Sockets { chosen: chosen("10.0.0.2:50000"), ..Sockets::default() }));
        assert!(!fit(Sockets { chosen: chosen("10.0.0.1:2811"), ..Sockets::default() }));
        assert!(fit(Sockets { except: vec![2811], ..Sockets::default() }));
        assert!(!fit(Sockets { except: vec![50000], ..Sockets::default() }));
        assert!(!fit(Sockets { own: true, ..Sockets::default() }));
    }

    #[test]
    fn series_when_full_thins_samples() {
        let mut series = Series::default();
        for moment in 0..3000 {
            if series.next_moment() {
                for cookie in 0..300 {
                    series.add(f64::from(moment), seen(cookie));
                }
            }
        }
        assert_eq!((series.connections.len(), series.left_out.len()), (CONNECTIONS, 44));
        assert!(series.samples <= SAMPLES && series.samples > SAMPLES / 4, "{}", series.samples);
        let all = series.into_connections();
        let times: Vec<f64> = all[0].samples.iter().map(|sample| sample.time).collect();
        assert!(times.is_sorted() && times[0] == 0.0 && *times.last().unwrap() > 2900.0);
    }

    #[test]
    fn tcp_on_loopback_samples_both_ends() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _server = listener.accept().unwrap();
        let mut tcp = Tcp::new(Sockets { ports: vec![port], own: true, ..Sockets::default() });
        tcp.start().unwrap();
        let mut profile = HostProfile::default();
        assert_eq!(Box::new(tcp).finish(&mut profile), Ok("2 connections".into()));
        assert!(profile.connections.iter().all(|connection| !connection.samples.is_empty()));
    }
}
