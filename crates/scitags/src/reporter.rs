//! Sends fireflies about data connections to collectors.
//!
//! One thread sends all messages of a reporter. The threads that move data hand events to it
//! through a bounded queue and never wait: if the queue is full, the message is dropped and
//! counted. The thread ends with the reporter and its last connection.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use ropewalk_protocol::scitag::SciTag;
use ropewalk_transport::{FlowObserver, OpenFlow};

use crate::{Firefly, FlowId, FlowState, FlowTransport, Usage};

/// The port of collectors.
const PORT: u16 = 10514;
/// Events that wait for the thread.
const QUEUE: usize = 1024;
/// A program that ends waits no longer for the last messages.
const FLUSH: Duration = Duration::from_millis(300);
/// Names of collectors that cannot be resolved are tried again after this time.
const RESOLVE_AGAIN: Duration = Duration::from_secs(60);
const APPLICATION: &str = concat!("ropewalk ", env!("CARGO_PKG_VERSION"));

/// A destination of fireflies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Collector {
    /// The peer of the data connection, so that routers of the path and the far site see the
    /// message.
    Peer,
    /// `host:port`.
    Host(String),
}

/// The text is no destination of fireflies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected peer, HOST or HOST:PORT, not {0:?}")]
pub struct InvalidCollector(String);

impl FromStr for Collector {
    type Err = InvalidCollector;

    fn from_str(text: &str) -> Result<Self, InvalidCollector> {
        let invalid = || InvalidCollector(text.to_owned());
        if text == "peer" {
            return Ok(Self::Peer);
        }
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        if let Ok(ip) = bare.parse::<IpAddr>() {
            return Ok(Self::Host(SocketAddr::new(ip, PORT).to_string()));
        }
        if text.parse::<SocketAddr>().is_ok_and(|address| address.port() > 0) {
            return Ok(Self::Host(text.to_owned()));
        }
        let (host, port) = match text.split_once(':') {
            None => (text, PORT),
            Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(invalid)?),
        };
        let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if host.is_empty() || !host.chars().all(valid) {
            return Err(invalid());
        }
        Ok(Self::Host(format!("{host}:{port}")))
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Peer => f.write_str("peer"),
            Self::Host(address) => f.write_str(address),
        }
    }
}

/// Sends fireflies. Clones share one thread.
#[derive(Clone, Debug)]
pub struct Reporter(Arc<Queue>);

/// The queue to the thread. When the last user drops it, the thread sends what is left and ends.
#[derive(Debug)]
struct Queue {
    events: Option<SyncSender<Event>>,
    ended: Mutex<Receiver<()>>,
    dropped: AtomicU64,
}

enum Event {
    Started(Arc<Flow>),
    Ended(Arc<Flow>, Report),
}

/// A connection.
struct Flow {
    id: FlowId,
    /// The end that is not this one.
    peer: IpAddr,
    tag: SciTag,
    started: Duration,
    open: OpenFlow,
}

/// The state of a connection at one moment.
struct Report {
    at: Duration,
    usage: Usage,
    rtt: Option<Duration>,
}

impl Reporter {
    /// Starts the thread. `interval`: between messages about an ongoing connection; zero for none.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(collectors: Vec<Collector>, interval: Duration) -> std::io::Result<Self> {
        let (events, received) = mpsc::sync_channel(QUEUE);
        let (end, ended) = mpsc::sync_channel(1);
        let sender = Sender::new(collectors, interval);
        thread::Builder::new().name("fireflies".into()).spawn(move || {
            sender.run(&received);
            // The reporter may not wait any more.
            let _ = end.try_send(());
        })?;
        let queue = Queue { events: Some(events), ended: Mutex::new(ended), dropped: AtomicU64::new(0) };
        Ok(Self(Arc::new(queue)))
    }

    /// The observer of connections with this tag.
    pub fn observer(&self, tag: SciTag, transport: FlowTransport) -> Arc<dyn FlowObserver> {
        Arc::new(Observer { queue: Arc::clone(&self.0), tag, transport })
    }
}

impl Queue {
    fn put(&self, event: Event) {
        let put = self.events.as_ref().is_some_and(|events| events.try_send(event).is_ok());
        if !put {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.events = None;
        // After the time, the program ends without the last messages.
        let _ = self.ended.lock().recv_timeout(FLUSH);
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "fireflies were not sent: too many connections at once");
        }
    }
}

#[derive(Debug)]
struct Observer {
    queue: Arc<Queue>,
    tag: SciTag,
    transport: FlowTransport,
}

impl FlowObserver for Observer {
    fn opened(&self, open: OpenFlow) -> Box<dyn Send> {
        let (source, destination) =
            if open.receiving { (open.peer, open.local) } else { (open.local, open.peer) };
        let flow = Arc::new(Flow {
            id: FlowId { source, destination, transport: self.transport },
            peer: open.peer.ip(),
            tag: self.tag,
            started: now(),
            open,
        });
        self.queue.put(Event::Started(Arc::clone(&flow)));
        Box::new(Guard { queue: Arc::clone(&self.queue), flow })
    }
}

/// Reports the end of a connection.
struct Guard {
    queue: Arc<Queue>,
    flow: Arc<Flow>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.queue.put(Event::Ended(Arc::clone(&self.flow), self.flow.report()));
    }
}

impl Flow {
    fn report(&self) -> Report {
        let sent = self.open.bytes.load(Ordering::Relaxed);
        let rtt = self.open.handle.stats().and_then(|stats| stats.rtt);
        Report { at: now(), usage: Usage { received: 0, sent }, rtt }
    }
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The state of the thread.
struct Sender {
    collectors: Vec<(Collector, Option<SocketAddr>)>,
    interval: Duration,
    resolved: Option<Instant>,
    host: String,
    sockets: [Option<UdpSocket>; 2],
    /// Connections for which messages of the interval are due. A connection whose end was dropped
    /// is found dead and removed.
    live: HashMap<FlowKey, Weak<Flow>>,
}

/// Connections that are open at the same time differ in their ends.
type FlowKey = (SocketAddr, SocketAddr);

impl Sender {
    fn new(collectors: Vec<Collector>, interval: Duration) -> Self {
        let open = |ip: IpAddr| {
            let socket = UdpSocket::bind((ip, 0)).ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        };
        Self {
            collectors: collectors.into_iter().map(|collector| (collector, None)).collect(),
            interval,
            resolved: None,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            sockets: [open(Ipv4Addr::UNSPECIFIED.into()), open(Ipv6Addr::UNSPECIFIED.into())],
            live: HashMap::new(),
        }
    }

    fn run(mut self, events: &Receiver<Event>) {
        let mut tick = Instant::now() + self.interval;
        loop {
            let event = if self.interval.is_zero() {
                events.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                events.recv_timeout(tick.saturating_duration_since(Instant::now()))
            };
            match event {
                Ok(Event::Started(flow)) => {
                    let report = Report { at: flow.started, usage: Usage::default(), rtt: None };
                    self.send(&flow, FlowState::Start, &report);
                    self.live.insert((flow.id.source, flow.id.destination), Arc::downgrade(&flow));
                }
                Ok(Event::Ended(flow, report)) => {
                    self.live.remove(&(flow.id.source, flow.id.destination));
                    self.send(&flow, FlowState::End, &report);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.interval.is_zero() && Instant::now() >= tick {
                tick = Instant::now() + self.interval;
                self.live.retain(|_, flow| flow.strong_count() > 0);
                let live: Vec<_> = self.live.values().filter_map(Weak::upgrade).collect();
                for flow in live {
                    let report = flow.report();
                    self.send(&flow, FlowState::Ongoing, &report);
                }
            }
        }
    }

    fn send(&mut self, flow: &Flow, state: FlowState, report: &Report) {
        self.resolve();
        let firefly = Firefly {
            state,
            tag: flow.tag,
            flow: flow.id,
            started: flow.started,
            now: report.at,
            usage: report.usage,
            rtt: report.rtt,
            host: &self.host,
            application: APPLICATION,
        };
        let bytes = firefly.to_bytes();
        for (collector, address) in &self.collectors {
            let address = match collector {
                Collector::Peer => Some(SocketAddr::new(flow.peer, PORT)),
                Collector::Host(_) => *address,
            };
            let Some(address) = address else { continue };
            let socket = &self.sockets[usize::from(address.is_ipv6())];
            // A message that the system does not take is lost, as if on the way.
            if let Some(Err(error)) = socket.as_ref().map(|socket| socket.send_to(&bytes, address)) {
                tracing::debug!(%error, %address, "cannot send a firefly");
            }
        }
    }

    fn resolve(&mut self) {
        let missing = |(collector, address): &(Collector, Option<SocketAddr>)| {
            *collector != Collector::Peer && address.is_none()
        };
        let due = self.resolved.is_none_or(|at| at.elapsed() >= RESOLVE_AGAIN);
        if !due || !self.collectors.iter().any(missing) {
            return;
        }
        self.resolved = Some(Instant::now());
        for (collector, address) in &mut self.collectors {
            let Collector::Host(host) = collector else { continue };
            match host.to_socket_addrs().map(|mut found| found.next()) {
                Ok(found) => *address = found,
                Err(error) => tracing::warn!(%error, %host, "cannot find the collector of fireflies"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use ropewalk_transport::{ConnectionHandle, PathStats, Tuning};

    use super::*;

    struct NoHandle;

    impl ConnectionHandle for NoHandle {
        fn stats(&self) -> Option<PathStats> {
            None
        }

        fn tune(&self, _: &Tuning) {}
    }

    #[test]
    fn collector_is_read_with_and_without_port() {
        for (text, expected) in [
            ("collector.example", "collector.example:10514"),
            ("collector.example:99", "collector.example:99"),
            ("127.0.0.1", "127.0.0.1:10514"),
            ("127.0.0.1:99", "127.0.0.1:99"),
            ("::1", "[::1]:10514"),
            ("[::1]", "[::1]:10514"),
            ("[::1]:99", "[::1]:99"),
            ("peer", "peer"),
        ] {
            assert_eq!(text.parse::<Collector>().unwrap().to_string(), expected);
        }
        for wrong in ["", ":99", "a:0", "a:x", "a b", "a:1:2", "ftp://a", "127.0.0.1:0"] {
            assert!(wrong.parse::<Collector>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn connection_that_is_received_is_reported_from_start_to_end_with_the_peer_as_source() {
        let collector = UdpSocket::bind("127.0.0.1:0").unwrap();
        collector.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let address = collector.local_addr().unwrap().to_string();
        let reporter = Reporter::start(vec![address.parse().unwrap()], Duration::from_millis(1)).unwrap();
        let bytes = Arc::new(AtomicU64::new(0));
        let guard = reporter.observer("147".parse().unwrap(), FlowTransport::Tcp).opened(OpenFlow {
            local: "192.0.2.1:1".parse().unwrap(),
            peer: "192.0.2.2:2".parse().unwrap(),
            receiving: true,
            bytes: Arc::clone(&bytes),
            handle: Arc::new(NoHandle),
        });
        let receive = || {
            let mut buffer = [0; 2000];
            let n = collector.recv(&mut buffer).unwrap();
            let json = buffer[..n].iter().position(|byte| *byte == b'{').unwrap();
            serde_json::from_slice::<serde_json::Value>(&buffer[json..n]).unwrap()
        };
        assert_eq!(receive()["flow-lifecycle"]["state"], "start");
        assert_eq!(receive()["flow-lifecycle"]["state"], "ongoing");
        bytes.store(4711, Ordering::Relaxed);
        drop(reporter);
        drop(guard);
        let end = loop {
            let message = receive();
            if message["flow-lifecycle"]["state"] == "end" {
                break message;
            }
        };
        assert_eq!(end["usage"]["sent"], 4711);
        assert_eq!(end["flow-id"]["src-ip"], "192.0.2.2");
        assert_eq!(end["flow-id"]["dst-port"], 1);
        assert_eq!(end["context"]["experiment-id"], 2);
    }
}
