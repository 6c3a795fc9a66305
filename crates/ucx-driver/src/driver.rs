//! The driver: it makes connections and listeners.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_transport::ports::ports;
use ropewalk_transport::{Connection, Driver, Endpoint, Listener, Options, Wait};
use ropewalk_udp::{Queue, QueueListener, Waker, first_free};

use crate::inspection::Inspection;
use crate::link::{Link, Queues, UcxConnection};
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
        worker::start(worker, Arc::clone(&waker), Purpose::Listen(Arc::clone(&queue), window(options)))?;
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
        let link = Link::new(Arc::clone(&waker), Queues::new(window(options)), None)?;
        let permission = sys::permission();
        let worker = self.worker()?;
        drop(permission);
        worker::start(worker, waker, Purpose::Connect(peer, Arc::clone(&link)))?;
        let connection = UcxConnection::new(link);
        connection.wait_until_connected(timeout, wait)?;
        Ok(Box::new(connection))
    }
}

fn window(options: &Options) -> u32 {
    let (least, most) = WINDOWS;
    let bytes = options.tuning.receive_buffer.unwrap_or(WINDOW).clamp(least, most);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
