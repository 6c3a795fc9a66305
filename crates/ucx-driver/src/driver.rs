//! The driver: it makes connections and listeners.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_transport::ports::ports;
use ropewalk_transport::{Connection, Driver, Endpoint, Listener, Options, Wait};
use ropewalk_udp::{Queue, QueueListener, Waker, first_free};

use crate::connection::UcxConnection;
use crate::inspection::Inspection;
use crate::link::Link;
use crate::sys::{self, Context, NewWorker};
use crate::worker::{self, Purpose};

/// The environment variable with another file of the library.
const VARIABLE: &str = "ROPEWALK_UCX_LIBRARY";
const FILE: &str = "libucp.so.0";
/// How many bytes a peer may send before they are read: the default, and the bounds of `rcvbuf`.
const WINDOW: usize = 4 << 20;
const WINDOWS: (usize, usize) = (1 << 20, 1 << 30);

/// The driver.
#[derive(Clone, Debug)]
pub struct Ucx {
    library: PathBuf,
    transports: Option<String>,
}

impl Default for Ucx {
    /// The library that `ROPEWALK_UCX_LIBRARY` names or that the system has, with the transports of
    /// `UCX_TLS`.
    fn default() -> Self {
        let library = std::env::var_os(VARIABLE).unwrap_or_else(|| FILE.into());
        Self { library: library.into(), transports: None }
    }
}

impl Ucx {
    /// Uses this file of the library.
    #[must_use]
    pub fn with_library(self, library: impl Into<PathBuf>) -> Self {
        Self { library: library.into(), ..self }
    }

    /// Uses these transports, in the form of `UCX_TLS`, instead of those of the environment.
    #[must_use]
    pub fn with_transports(self, transports: impl Into<String>) -> Self {
        Self { transports: Some(transports.into()), ..self }
    }

    /// Asks the library for its version, and for the transports and devices of this host that its
    /// settings permit.
    ///
    /// # Errors
    /// The library cannot be used (`Unsupported`), or cannot start.
    pub fn inspect(&self) -> io::Result<Inspection> {
        let _permission = sys::permission();
        let context = Context::get(&self.library, self.transports.as_deref())?;
        Ok(Inspection::new(context.version(), &context.description()?))
    }

    fn worker(&self) -> io::Result<NewWorker> {
        NewWorker::new(Context::get(&self.library, self.transports.as_deref())?)
    }
}

impl Driver for Ucx {
    fn name(&self) -> &'static str {
        "ucx"
    }

    fn read_option(&self, key: &str, value: &[u8], options: &mut Options) -> bool {
        key == "rcvbuf" && options.tuning.read_option(key, value)
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let address = address.socket()?;
        let permission = sys::permission();
        let mut worker = self.worker()?;
        let address = first_free(ports(address.port(), options.ports), |port| {
            worker.listen(SocketAddr::new(address.ip(), port))
        })?;
        drop(permission);
        let (queue, waker) = (Queue::new()?, Waker::new()?);
        worker::start(worker, Arc::clone(&waker), Purpose::Listen(Arc::clone(&queue), ring(options)))?;
        Ok(Box::new(QueueListener::new(queue, waker, address)))
    }

    /// UCX chooses the local address and port.
    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let peer = address.socket()?;
        let waker = Waker::new()?;
        let link = Link::new(Arc::clone(&waker))?;
        let permission = sys::permission();
        let worker = self.worker()?;
        drop(permission);
        worker::start(worker, waker, Purpose::Connect(peer, Arc::clone(&link), ring(options)))?;
        let connection = UcxConnection::new(link);
        connection.wait_until_connected(timeout, wait)?;
        Ok(Box::new(connection))
    }
}

/// The size of the ring of a connection, in whole pages.
fn ring(options: &Options) -> usize {
    let (least, most) = WINDOWS;
    let bytes = options.tuning.receive_buffer.unwrap_or(WINDOW).clamp(least, most);
    bytes.next_multiple_of(sys::HEADER)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use bytes::Bytes;
    use ropewalk_tests::peers;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    /// Answers a connection by OPEN of version 1, until `over`.
    fn old_peer(worker: NewWorker, over: &AtomicBool) {
        let worker = worker.start();
        let mut connections = Vec::new();
        while !over.load(Ordering::SeqCst) {
            if !worker.progress() {
                thread::yield_now();
            }
            for request in worker.take_requests() {
                let connection = worker.accept(request).unwrap();
                connection.send(Bytes::from_static(&[1, 1, 0, 0, 0, 64, 0, 0]));
                connections.push(connection);
            }
        }
        let closing: Vec<_> = connections.into_iter().map(|connection| connection.close(None)).collect();
        while !closing.iter().all(sys::Closing::is_over) {
            worker.progress();
        }
    }

    #[test]
    fn connect_to_a_peer_of_version_1_fails_at_once_and_names_both_versions() {
        let ucx = Ucx::default().with_transports("tcp,self");
        let mut worker = match ucx.worker() {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                peers::skip(&error.to_string());
                return;
            }
            worker => worker.unwrap(),
        };
        let address = worker.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        let over = AtomicBool::new(false);
        let error = thread::scope(|scope| {
            scope.spawn(|| old_peer(worker, &over));
            let result = ucx.connect(address.into(), &Options::default(), PATIENCE);
            over.store(true, Ordering::SeqCst);
            result.err().unwrap()
        });
        assert!(error.to_string().contains("version 1 of its protocol, not 2"), "{error}");
    }
}
