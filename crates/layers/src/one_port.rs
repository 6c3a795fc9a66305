//! The driver for data connections to a control port (`SITE ONEPORT`).
//!
//! At the side that listens, a [`Router`] of the whole process hands each connection to the
//! listener of its token, until that is dropped. At the side that connects, a [`ControlPort`] sends
//! the token before it hands the connection over. Layers lie above both, and the engine sees
//! ordinary connections. A listener keeps a limited number of connections, and refuses more.

use std::collections::{HashMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use ropewalk_protocol::one_port::{Answer, Token};
use ropewalk_transport::{
    Breaker, Connection, Driver, Endpoint, Interest, Listener, Options, Readiness, Signal, Tcp, Tuning, Wait,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// The time limit for the greeting and the answer of the server.
const LIMIT: Duration = Duration::from_secs(30);
/// Connections that wait at one listener. More than a transfer usually has streams.
const MOST_WAITING: usize = 128;
/// Bytes that are examined at a time for the end of the answer.
const PEEK: usize = 4096;

/// The data channels of this process that are reached through its control port.
#[derive(Default)]
pub struct Router {
    queues: Mutex<HashMap<Token, Arc<Queue>>>,
}

/// Why a connection was not handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRouted {
    #[error("no data channel has this token")]
    Unknown,
    #[error("too many data connections wait")]
    Crowded,
}

impl Router {
    /// Makes a token, and the driver whose listener gets the connections with it.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn channel(self: &Arc<Self>) -> io::Result<(Token, Arc<dyn Driver>)> {
        let mut bytes = [0; 16];
        openssl::rand::rand_bytes(&mut bytes)?;
        let token = Token::new(bytes);
        Ok((token, Arc::new(ListeningPort { router: Arc::clone(self), token })))
    }

    /// Hands a connection to the listener of `token`. `begin` answers the peer and returns the
    /// socket. It is called only if the listener has room.
    ///
    /// # Errors
    /// No listener has the token, or it has no room.
    pub fn hand_over(
        &self,
        token: &Token,
        begin: impl FnOnce() -> Option<TcpStream>,
    ) -> Result<(), NotRouted> {
        let queue = self.queues.lock().get(token).cloned().ok_or(NotRouted::Unknown)?;
        let mut state = queue.state.lock();
        if state.aborted {
            return Err(NotRouted::Unknown);
        }
        if state.waiting.len() >= MOST_WAITING {
            return Err(NotRouted::Crowded);
        }
        if let Some(socket) = begin() {
            state.waiting.push_back(socket);
            queue.filled.set(true);
            queue.changed.notify_all();
        }
        Ok(())
    }
}

/// The connections of one channel that wait to be accepted.
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    filled: Signal,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<TcpStream>,
    aborted: bool,
}

impl Queue {
    fn abort(&self) {
        let mut state = self.state.lock();
        state.aborted = true;
        state.waiting.clear();
        self.filled.set(true);
        self.changed.notify_all();
    }
}

/// Makes the listener of one token.
struct ListeningPort {
    router: Arc<Router>,
    token: Token,
}

impl Driver for ListeningPort {
    fn name(&self) -> &'static str {
        Tcp.name()
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let queue =
            Arc::new(Queue { state: Mutex::default(), changed: Condvar::new(), filled: Signal::new()? });
        self.router.queues.lock().insert(self.token, Arc::clone(&queue));
        Ok(Box::new(RoutedListener {
            router: Arc::clone(&self.router),
            token: self.token,
            queue,
            address,
            tuning: options.tuning.clone(),
        }))
    }

    fn connect_waiting(
        &self,
        _: Endpoint,
        _: &Options,
        _: Duration,
        _: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        Err(ErrorKind::Unsupported.into())
    }
}

struct RoutedListener {
    router: Arc<Router>,
    token: Token,
    queue: Arc<Queue>,
    address: Endpoint,
    tuning: Tuning,
}

impl Listener for RoutedListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        Ok(self.address.clone())
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        let mut state = self.queue.state.lock();
        loop {
            if state.aborted {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            if let Some(socket) = state.waiting.pop_front() {
                self.queue.filled.set(!state.waiting.is_empty());
                // A connection that has failed meanwhile is not an error of the listener.
                if let Ok(connection) = Tcp::adopt(socket, &self.tuning) {
                    return Ok(Some(connection));
                }
                continue;
            }
            if self.queue.changed.wait_until(&mut state, deadline).timed_out() && state.waiting.is_empty() {
                return Ok(None);
            }
        }
    }

    fn readiness(&self) -> Readiness<'_> {
        self.queue.filled.readiness()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        let queue = Arc::downgrade(&self.queue);
        Ok(Breaker::new(move || {
            if let Some(queue) = Weak::upgrade(&queue) {
                queue.abort();
            }
        }))
    }
}

impl Drop for RoutedListener {
    fn drop(&mut self) {
        self.router.queues.lock().remove(&self.token);
        self.queue.abort();
    }
}

/// Connects to a control port and announces the data connection by its token.
pub struct ControlPort {
    inner: Arc<dyn Driver>,
    token: Token,
}

impl ControlPort {
    /// `inner` connects to the port.
    pub fn new(inner: Arc<dyn Driver>, token: Token) -> Self {
        Self { inner, token }
    }
}

impl Driver for ControlPort {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn listen(&self, _: Endpoint, _: &Options) -> io::Result<Box<dyn Listener>> {
        Err(ErrorKind::Unsupported.into())
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let mut connection = self.inner.connect_waiting(address, options, timeout, wait)?;
        let deadline = Instant::now() + timeout.min(LIMIT);
        connection.set_nonblocking(true)?;
        // The buffer of a new socket has room for the line.
        connection.write_all(self.token.line().as_bytes())?;
        await_answer(connection.as_mut(), deadline, wait)?;
        connection.set_nonblocking(false)?;
        Ok(connection)
    }
}

/// Reads the greeting and the answer, and nothing beyond them, because data may follow.
fn await_answer(connection: &mut dyn Connection, deadline: Instant, wait: &mut dyn Wait) -> io::Result<()> {
    let mut answer = Answer::default();
    let mut bytes = [0; PEEK];
    loop {
        let socket = connection.fast_path().socket().ok_or(ErrorKind::Unsupported)?;
        match recv(socket, &mut bytes[..], RecvFlags::PEEK) {
            Ok((0, _)) => {
                let text = "the server closed the data connection at its control port";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
            }
            Ok((n, _)) => {
                let refused = |error| io::Error::new(ErrorKind::ConnectionRefused, error);
                let (consumed, complete) = answer.advance(&bytes[..n]).map_err(refused)?;
                connection.read_exact(&mut bytes[..consumed])?;
                if complete {
                    return Ok(());
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let (fd, events) = connection.readiness(Interest::Read);
                if !wait.wait(fd, events, deadline)? {
                    let text = "the server did not answer the data connection at its control port in time";
                    return Err(io::Error::new(ErrorKind::TimedOut, text));
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}
