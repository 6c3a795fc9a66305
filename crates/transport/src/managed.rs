//! A driver that reports each step of its connections to a manager, as GCT's `net_manager` does.
//!
//! The manager may change the attributes and the addresses of a connection, or refuse it. It is
//! called in the thread that makes or accepts the connection, which waits for it. Bytes pass
//! through untouched: connections keep their fast path.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::{
    Breaker, Connection, ConnectionHandle, Driver, Endpoint, FastPath, Interest, Listener, Options,
    Readiness, TurnedDown, Wait,
};

/// A step of a connection, with the names of GCT's network managers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetEventKind {
    PreListen,
    PostListen,
    EndListen,
    PreAccept,
    PostAccept,
    PreConnect,
    PostConnect,
    PreClose,
    PostClose,
}

impl NetEventKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::PreListen => "pre_listen",
            Self::PostListen => "post_listen",
            Self::EndListen => "end_listen",
            Self::PreAccept => "pre_accept",
            Self::PostAccept => "post_accept",
            Self::PreConnect => "pre_connect",
            Self::PostConnect => "post_connect",
            Self::PreClose => "pre_close",
            Self::PostClose => "post_close",
        }
    }
}

/// An attribute of a connection. The scope is the name of a driver; the driver's options of stack
/// strings are its attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetAttribute {
    pub scope: String,
    pub name: String,
    pub value: String,
}

/// A step of a connection, as the manager sees it.
#[derive(Clone, Copy, Debug)]
pub struct NetEvent<'a> {
    pub kind: NetEventKind,
    /// The name of the driver.
    pub transport: &'a str,
    /// The task, as the client has named it.
    pub task: Option<&'a str>,
    pub local: Option<&'a Endpoint>,
    pub remote: Option<&'a Endpoint>,
    pub attributes: &'a [NetAttribute],
}

/// The changes of a manager. Attributes count before the socket is made, the local address after
/// `post_listen` (it is announced to the peer), the remote one after `pre_connect`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetChanges {
    pub local: Option<Endpoint>,
    pub remote: Option<Endpoint>,
    pub attributes: Vec<NetAttribute>,
}

/// Sees the steps of data connections.
pub trait NetManager: Send + Sync {
    /// # Errors
    /// The step must not be taken, or its result not be used. After `pre_close`, `post_close` and
    /// `end_listen` an error has no effect.
    fn event(&self, event: &NetEvent<'_>) -> io::Result<NetChanges>;
}

/// Reports the steps of another driver's connections to a manager.
pub struct Managed {
    inner: Arc<dyn Driver>,
    manager: Arc<dyn NetManager>,
}

impl Managed {
    pub fn new(inner: Arc<dyn Driver>, manager: Arc<dyn NetManager>) -> Self {
        Self { inner, manager }
    }

    /// The options with the attributes that the manager has set. Those that the driver does not
    /// have are ignored, as in GCT.
    fn with_attributes(&self, options: &Options, changes: &NetChanges) -> Options {
        let mut options = options.clone();
        for NetAttribute { scope, name, value } in &changes.attributes {
            if *scope == self.inner.name() {
                self.inner.read_option(&name.to_ascii_lowercase(), value.as_bytes(), &mut options);
            }
        }
        options
    }
}

/// The attributes of a connection that is to be made.
fn attributes(transport: &str, options: &Options) -> Vec<NetAttribute> {
    let attribute = |name: &str, value: Option<usize>| {
        let (scope, name) = (transport.to_owned(), name.to_owned());
        value.map(|value| NetAttribute { scope, name, value: value.to_string() })
    };
    [("sndbuf", options.tuning.send_buffer), ("rcvbuf", options.tuning.receive_buffer)]
        .into_iter()
        .filter_map(|(name, value)| attribute(name, value))
        .collect()
}

impl Driver for Managed {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn read_option(&self, key: &str, value: &[u8], options: &mut Options) -> bool {
        self.inner.read_option(key, value, options)
    }

    fn encrypts(&self) -> bool {
        self.inner.encrypts()
    }

    fn shares_port(&self) -> bool {
        self.inner.shares_port()
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let transport = self.inner.name();
        let event = NetEvent {
            kind: NetEventKind::PreListen,
            transport,
            task: options.task.as_deref(),
            local: Some(&address),
            remote: None,
            attributes: &attributes(transport, options),
        };
        let changes = self.manager.event(&event)?;
        let options = self.with_attributes(options, &changes);
        let inner = self.inner.listen(changes.local.unwrap_or(address), &options)?;
        let mut listener = ManagedListener {
            local: inner.local_addr()?,
            inner,
            transport,
            task: options.task.clone(),
            manager: Arc::clone(&self.manager),
            accepting: AtomicBool::new(false),
        };
        let changes = listener.report(NetEventKind::PostListen, None)?;
        if let Some(local) = changes.local {
            listener.local = local;
        }
        Ok(Box::new(listener))
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let transport = self.inner.name();
        let event = NetEvent {
            kind: NetEventKind::PreConnect,
            transport,
            task: options.task.as_deref(),
            local: None,
            remote: Some(&address),
            attributes: &attributes(transport, options),
        };
        let changes = self.manager.event(&event)?;
        let options = self.with_attributes(options, &changes);
        let inner = self.inner.connect_waiting(changes.remote.unwrap_or(address), &options, timeout, wait)?;
        let connection = ManagedConnection::new(inner, transport, &options.task, &self.manager);
        connection.report(NetEventKind::PostConnect)?;
        Ok(Box::new(connection))
    }
}

struct ManagedListener {
    inner: Box<dyn Listener>,
    /// The address that is announced.
    local: Endpoint,
    transport: &'static str,
    task: Option<Arc<str>>,
    manager: Arc<dyn NetManager>,
    /// `pre_accept` was reported for the next connection.
    accepting: AtomicBool,
}

impl ManagedListener {
    fn report(&self, kind: NetEventKind, remote: Option<&Endpoint>) -> io::Result<NetChanges> {
        let (transport, task, local) = (self.transport, self.task.as_deref(), Some(&self.local));
        self.manager.event(&NetEvent { kind, transport, task, local, remote, attributes: &[] })
    }
}

impl Listener for ManagedListener {
    fn local_addr(&self) -> io::Result<Endpoint> {
        Ok(self.local.clone())
    }

    fn accept(&self, deadline: Instant) -> io::Result<Option<Box<dyn Connection>>> {
        if !self.accepting.swap(true, Ordering::Relaxed) {
            self.report(NetEventKind::PreAccept, None)?;
        }
        let Some(inner) = self.inner.accept(deadline)? else { return Ok(None) };
        self.accepting.store(false, Ordering::Relaxed);
        let connection = ManagedConnection::new(inner, self.transport, &self.task, &self.manager);
        connection.report(NetEventKind::PostAccept)?;
        Ok(Some(Box::new(connection)))
    }

    fn turn_away(&self) -> Vec<Box<dyn Connection>> {
        self.inner.turn_away()
    }

    fn close_late(&self) {
        self.inner.close_late();
    }

    fn turned_down(&self) -> Option<TurnedDown> {
        self.inner.turned_down()
    }

    fn readiness(&self) -> Readiness<'_> {
        self.inner.readiness()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        self.inner.breaker()
    }
}

impl Drop for ManagedListener {
    fn drop(&mut self) {
        // The listener ends in any case.
        let _ = self.report(NetEventKind::EndListen, None);
    }
}

struct ManagedConnection {
    /// `None` only while it is dropped.
    inner: Option<Box<dyn Connection>>,
    transport: &'static str,
    task: Option<Arc<str>>,
    manager: Arc<dyn NetManager>,
    local: Option<Endpoint>,
    remote: Option<Endpoint>,
}

impl ManagedConnection {
    fn new(
        inner: Box<dyn Connection>,
        transport: &'static str,
        task: &Option<Arc<str>>,
        manager: &Arc<dyn NetManager>,
    ) -> Self {
        let (local, remote) = (inner.local_addr().ok(), inner.peer_addr().ok());
        let (task, manager) = (task.clone(), Arc::clone(manager));
        Self { inner: Some(inner), transport, task, manager, local, remote }
    }

    fn report(&self, kind: NetEventKind) -> io::Result<()> {
        let (local, remote) = (self.local.as_ref(), self.remote.as_ref());
        let (transport, task) = (self.transport, self.task.as_deref());
        self.manager.event(&NetEvent { kind, transport, task, local, remote, attributes: &[] }).map(drop)
    }

    fn inner(&self) -> &dyn Connection {
        self.inner.as_deref().expect("the connection is not being dropped")
    }

    fn inner_mut(&mut self) -> &mut dyn Connection {
        self.inner.as_deref_mut().expect("the connection is not being dropped")
    }
}

impl Drop for ManagedConnection {
    fn drop(&mut self) {
        // The connection ends in any case.
        let _ = self.report(NetEventKind::PreClose);
        self.inner = None;
        let _ = self.report(NetEventKind::PostClose);
    }
}

impl Read for ManagedConnection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner_mut().read(buffer)
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.inner_mut().read_vectored(buffers)
    }
}

impl Write for ManagedConnection {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.inner_mut().write(data)
    }

    fn write_vectored(&mut self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.inner_mut().write_vectored(data)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner_mut().flush()
    }
}

impl Connection for ManagedConnection {
    fn readiness(&self, interest: Interest) -> Readiness<'_> {
        self.inner().readiness(interest)
    }

    fn peer_closed(&self) -> bool {
        self.inner().peer_closed()
    }

    fn fast_path(&self) -> FastPath<'_> {
        self.inner().fast_path()
    }

    fn discard(&mut self, most: usize) -> io::Result<Option<usize>> {
        self.inner_mut().discard(most)
    }

    fn buffered(&self) -> usize {
        self.inner().buffered()
    }

    fn set_time_limit(&mut self, limit: Duration) -> io::Result<()> {
        self.inner_mut().set_time_limit(limit)
    }

    fn set_nonblocking(&mut self, on: bool) -> io::Result<()> {
        self.inner_mut().set_nonblocking(on)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.inner_mut().finish()
    }

    fn reset_on_drop(&mut self) -> io::Result<()> {
        self.inner_mut().reset_on_drop()
    }

    fn breaker(&self) -> io::Result<Breaker> {
        self.inner().breaker()
    }

    fn local_addr(&self) -> io::Result<Endpoint> {
        self.inner().local_addr()
    }

    fn peer_addr(&self) -> io::Result<Endpoint> {
        self.inner().peer_addr()
    }

    fn channel_binding(&self) -> Option<[u8; 32]> {
        self.inner().channel_binding()
    }

    fn sealing(&self) -> Duration {
        self.inner().sealing()
    }

    fn handle(&self) -> Arc<dyn ConnectionHandle> {
        self.inner().handle()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{Ipv4Addr, SocketAddr};

    use parking_lot::Mutex;

    use super::*;
    use crate::Tcp;

    /// Sends connections to a fixed address, and announces it.
    #[derive(Default)]
    struct Recorder {
        seen: Mutex<Vec<&'static str>>,
        refused: Option<NetEventKind>,
        remote: Option<Endpoint>,
        announced: Option<Endpoint>,
    }

    impl NetManager for Recorder {
        fn event(&self, event: &NetEvent<'_>) -> io::Result<NetChanges> {
            self.seen.lock().push(event.kind.name());
            if self.refused == Some(event.kind) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let mut changes = NetChanges::default();
            match event.kind {
                NetEventKind::PreConnect => changes.remote.clone_from(&self.remote),
                NetEventKind::PostListen => changes.local.clone_from(&self.announced),
                _ => {}
            }
            Ok(changes)
        }
    }

    fn managed(recorder: Recorder) -> (Managed, Arc<Recorder>) {
        let recorder = Arc::new(recorder);
        (Managed::new(Arc::new(Tcp), recorder.clone()), recorder)
    }

    fn anywhere() -> Endpoint {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    #[test]
    fn contract_of_drivers_holds() {
        crate::testing::contract(&managed(Recorder::default()).0, (Ipv4Addr::LOCALHOST, 0));
    }

    #[test]
    fn events_come_in_the_order_of_a_connection() {
        let (driver, recorder) = managed(Recorder::default());
        let listener = driver.listen(anywhere(), &Options::default()).unwrap();
        let soon = Duration::from_secs(10);
        let near = driver.connect(listener.local_addr().unwrap(), &Options::default(), soon).unwrap();
        let far = listener.accept(Instant::now() + soon).unwrap().unwrap();
        drop(near);
        drop(listener);
        drop(far);
        let expected = [
            "pre_listen",
            "post_listen",
            "pre_connect",
            "post_connect",
            "pre_accept",
            "post_accept",
            "pre_close",
            "post_close",
            "end_listen",
            "pre_close",
            "post_close",
        ];
        assert_eq!(*recorder.seen.lock(), expected);
    }

    #[test]
    fn addresses_of_the_manager_are_announced_and_used() {
        let public: SocketAddr = "192.0.2.1:7".parse().unwrap();
        let (driver, _) = managed(Recorder { announced: Some(public.into()), ..Recorder::default() });
        let announced = driver.listen(anywhere(), &Options::default()).unwrap().local_addr().unwrap();
        assert_eq!(announced, public.into());
        let real = Tcp.listen(anywhere(), &Options::default()).unwrap();
        let remote = Some(real.local_addr().unwrap());
        let (driver, _) = managed(Recorder { remote: remote.clone(), ..Recorder::default() });
        let connection = driver.connect(public.into(), &Options::default(), Duration::from_secs(10)).unwrap();
        assert_eq!(connection.peer_addr().ok(), remote);
    }

    #[test]
    fn manager_that_refuses_ends_the_step() {
        for refused in [NetEventKind::PreListen, NetEventKind::PostListen] {
            let (driver, _) = managed(Recorder { refused: Some(refused), ..Recorder::default() });
            let error = driver.listen(anywhere(), &Options::default()).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
        let real = Tcp.listen(anywhere(), &Options::default()).unwrap();
        for refused in [NetEventKind::PreConnect, NetEventKind::PostConnect] {
            let (driver, _) = managed(Recorder { refused: Some(refused), ..Recorder::default() });
            let to = real.local_addr().unwrap();
            let error = driver.connect(to, &Options::default(), Duration::from_secs(10)).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
    }
}
