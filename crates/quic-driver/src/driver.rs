//! The driver: it makes connections and listeners.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_transport::ports::ports;
use ropewalk_transport::{Connection, Driver, Endpoint, Listener, Options, Wait};
use ropewalk_udp::{Fragments, Queue, QueueListener, UdpSocket, Waker, first_free};

use crate::congestion::Congestion;
use crate::link::{Link, Queues, QuicConnection};
use crate::port::{Channel, SharedPort};
use crate::settings::{Settings, canonical};
use crate::tls::Tls;
use crate::worker::{Listening, Worker};

/// A peer that has sent nothing for so long, not even an answer, is dead.
const IDLE: Duration = Duration::from_secs(30);

/// The driver.
#[derive(Clone)]
pub struct Quic {
    idle: Duration,
    port: Option<SharedPort>,
}

impl Default for Quic {
    fn default() -> Self {
        Self { idle: IDLE, port: None }
    }
}

impl Quic {
    /// A driver whose channels with a token ([`Options::token`]) listen at `port`.
    pub fn at(port: SharedPort) -> Self {
        Self { port: Some(port), ..Self::default() }
    }

    fn settings(&self, options: &Options) -> io::Result<Settings> {
        let tls = Tls::of_this_process().map_err(io::Error::other)?;
        Ok(Settings::new(options, self.idle, tls))
    }
}

impl Driver for Quic {
    fn name(&self) -> &'static str {
        "quic"
    }

    fn read_option(&self, key: &str, value: &[u8], options: &mut Options) -> bool {
        if key != "congestion" {
            return options.tuning.read_option(key, value);
        }
        let name = String::from_utf8_lossy(value).to_ascii_lowercase();
        let known = Congestion::from_name(&name).is_some();
        options.tuning.congestion = known.then_some(name);
        known
    }

    fn encrypts(&self) -> bool {
        true
    }

    fn shares_port(&self) -> bool {
        true
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let address = address.socket()?;
        if let Some(token) = options.token {
            let port = self.port.as_ref().ok_or(io::ErrorKind::Unsupported)?;
            return port.listen(token, address.ip(), self.settings(options)?);
        }
        let socket = first_free(ports(address.port(), options.ports), |port| {
            UdpSocket::bind(SocketAddr::new(address.ip(), port), Fragments::Forbidden)
        })?;
        let address = socket.local_addr()?;
        let (queue, waker) = (Queue::new()?, Waker::new()?);
        let channel = Channel { settings: self.settings(options)?, queue: Arc::clone(&queue) };
        Worker::listening(socket, Arc::clone(&waker), Listening::One(channel)).start()?;
        Ok(Box::new(QueueListener::new(queue, waker, address)))
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let peer = address.socket()?;
        let socket = first_free(ports(0, options.ports), |port| {
            UdpSocket::connect(peer, options.bind, port, Fragments::Forbidden)
        })?;
        let waker = Waker::new()?;
        let local = canonical(socket.local_addr()?);
        let addresses = Some((local, canonical(peer)));
        let link = Link::new(Arc::clone(&waker), Queues::new(), addresses)?;
        let worker = Worker::connecting(socket, waker, &self.settings(options)?, peer, Arc::clone(&link))?;
        worker.start()?;
        let connection = QuicConnection::new(link);
        connection.wait_until_connected(timeout, wait)?;
        Ok(Box::new(connection))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::{ErrorKind, Read, Write};
    use std::net::{Ipv4Addr, UdpSocket};
    use std::thread;
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// The path goes dead, as if the host of the peer had lost its power.
    #[test]
    fn connection_to_a_dead_peer_fails_after_the_idle_time() {
        let driver = Quic { idle: Duration::from_millis(600), port: None };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = driver.listen(any.into(), &Options::default()).unwrap();
        let (front, back) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
        back.connect(listener.local_addr().unwrap().socket().unwrap()).unwrap();
        let to = front.local_addr().unwrap();
        let (stop, stopped) = std::sync::mpsc::channel();
        let relay = thread::spawn(move || {
            let mut buffer = [0; 1 << 16];
            let mut peer = None;
            front.set_nonblocking(true).unwrap();
            back.set_nonblocking(true).unwrap();
            while stopped.try_recv().is_err() {
                if let Ok((length, from)) = front.recv_from(&mut buffer) {
                    peer = Some(from);
                    back.send(&buffer[..length]).unwrap();
                }
                if let (Ok(length), Some(peer)) = (back.recv(&mut buffer), peer) {
                    front.send_to(&buffer[..length], peer).unwrap();
                }
                thread::yield_now();
            }
            (front, back)
        });
        let mut near = driver.connect(to.into(), &Options::default(), PATIENCE).unwrap();
        let mut far = listener.accept(Instant::now() + PATIENCE).unwrap().unwrap();
        // Connections without data stay open.
        thread::sleep(3 * driver.idle);
        near.write_all(b"alive").unwrap();
        far.set_time_limit(PATIENCE).unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
        stop.send(()).unwrap();
        let sockets = relay.join().unwrap();
        near.set_time_limit(PATIENCE).unwrap();
        for end in [&mut near, &mut far] {
            assert_eq!(end.read(&mut [0; 5]).unwrap_err().kind(), ErrorKind::TimedOut);
            assert!(end.write(&[0; 5]).is_err() && end.peer_closed());
        }
        drop(sockets);
    }
}
