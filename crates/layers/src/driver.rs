//! A driver that adds a layer to the connections of another driver. `connect` returns a connection
//! after the layer's handshake; the caller's `Wait` does all waiting. A failed handshake closes
//! the connection.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_transport::{Connection, Driver, Endpoint, Listener, Options, Wait};

use crate::listener::LIMIT;
use crate::{Handshake, Layer, LayeredListener, Progress};

/// Adds a layer to the connections that another driver makes.
pub struct LayeredDriver {
    inner: Arc<dyn Driver>,
    layer: Arc<dyn Layer>,
    spared: Option<IpAddr>,
}

impl LayeredDriver {
    pub fn new(inner: Arc<dyn Driver>, layer: Arc<dyn Layer>) -> Self {
        Self { inner, layer, spared: None }
    }

    /// Sets the expected peer of its listeners, see [`LayeredListener::sparing`].
    pub fn sparing(self, address: IpAddr) -> Self {
        Self { spared: Some(address), ..self }
    }
}

impl Driver for LayeredDriver {
    fn name(&self) -> &'static str {
        self.layer.name()
    }

    fn listen(&self, address: Endpoint, options: &Options) -> io::Result<Box<dyn Listener>> {
        let listener = self.inner.listen(address, options)?;
        let listener = LayeredListener::new(listener, Arc::clone(&self.layer))?;
        Ok(Box::new(match self.spared {
            Some(address) => listener.sparing(address),
            None => listener,
        }))
    }

    fn connect_waiting(
        &self,
        address: Endpoint,
        options: &Options,
        timeout: Duration,
        wait: &mut dyn Wait,
    ) -> io::Result<Box<dyn Connection>> {
        let connection = self.inner.connect_waiting(address, options, timeout, wait)?;
        // The handshake gets the full timeout, however long connecting took, because the peer
        // starts its time limit here as well.
        let deadline = Instant::now() + timeout.min(LIMIT);
        let mut handshake = self.layer.begin(connection, true)?;
        shake(handshake.as_mut(), deadline, wait)
    }
}

fn shake(
    handshake: &mut dyn Handshake,
    deadline: Instant,
    wait: &mut dyn Wait,
) -> io::Result<Box<dyn Connection>> {
    loop {
        match handshake.advance()? {
            Progress::Done(mut connection) => {
                connection.set_nonblocking(false)?;
                return Ok(connection);
            }
            Progress::Waits(interest) => {
                let (fd, events) = handshake.connection()?.readiness(interest);
                if !wait.wait(fd, events, deadline)? {
                    let text = "the peer did not finish the authentication of the data connection in time";
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
            }
        }
    }
}
