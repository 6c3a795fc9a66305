//! The admission of connections that have just been accepted.
//!
//! The reactor calls [`admit`] on its own thread, so nothing here waits. A client that is not
//! admitted gets one line with the reason.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::net::{TcpStream, UnixStream};
use ropewalk_protocol::reply::Reply;
use ropewalk_security::canonical;
use socket2::{SockRef, TcpKeepalive};

use crate::host::{Host, Phase};
use crate::scheduling::connection::Connection;
use crate::scheduling::scheduler::Scheduler;
use crate::session::control::Stream;

/// A client that is gone without closing its connection is noticed after a little more than two
/// minutes.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20));

const OFFLINE: &str = "Service temporarily offline. Closing control connection.";

/// Makes a session for the connection, or refuses it with a reply. `implicit`: TLS starts at once,
/// so that the client could not read a clear reply.
pub(crate) fn admit(
    scheduler: &Scheduler,
    stream: TcpStream,
    peer: SocketAddr,
    implicit: bool,
) -> Option<Box<Connection>> {
    let host = &scheduler.host;
    let refuse = |stream, code, text: &str| if implicit { None } else { refuse(stream, code, text) };
    let settings = host.settings();
    let address = canonical(peer.ip());
    if !settings.access.permits(address) {
        tracing::info!(%peer, "connection refused: address not allowed");
        return refuse(stream, 421, "Service not available to this address. Closing control connection.");
    }
    if let Some(text) = &settings.config.offline {
        let text = if text.is_empty() { OFFLINE } else { text };
        return refuse(stream, 422, text);
    }
    let ended = {
        let host = Arc::downgrade(host);
        move || {
            if let Some(host) = host.upgrade() {
                host.session_ended();
            }
        }
    };
    let Some(permit) = host.limits.admit(address, &settings.config.limits, ended) else {
        tracing::warn!(%peer, "connection refused: too many sessions");
        return refuse(
            stream,
            421,
            "Service busy: Connection limit exceeded. Please try again later. Closing control connection.",
        );
    };
    if scheduler.logins.is_crowded(address, settings.config.limits.waiting_logins) {
        tracing::warn!(%peer, "connection refused: too many log-ins wait");
        return refuse(
            stream,
            421,
            "Service busy: too many log-ins at a time. Please try again later. Closing control connection.",
        );
    }
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%peer, %error, "socket options");
    }
    match stream.local_addr() {
        Ok(local) => {
            let mut connection = Connection::new(host, settings, Stream::Tcp(stream), peer, local, permit);
            if implicit && let Err(failure) = connection.begin_within_tls() {
                tracing::error!(%peer, ?failure, "TLS cannot begin");
                return None;
            }
            Some(connection)
        }
        Err(error) => {
            tracing::debug!(%peer, %error, "connection lost at once");
            None
        }
    }
}

/// Makes a session over ssh, or refuses it with a reply. `addresses` are those of the client and of
/// this host.
pub(crate) fn admit_ssh(
    host: &Arc<Host>,
    stream: UnixStream,
    (peer, local): (SocketAddr, SocketAddr),
) -> Option<Box<Connection>> {
    let settings = host.settings();
    let address = canonical(peer.ip());
    if !settings.access.permits(address) {
        tracing::warn!(%peer, "session refused: address not allowed");
        refuse_ssh(stream, 421, "Service not available to this address. Closing control connection.");
        return None;
    }
    if let Some(text) = &settings.config.offline {
        refuse_ssh(stream, 422, if text.is_empty() { OFFLINE } else { text });
        return None;
    }
    // The server ends with this session.
    let ended = {
        let host = Arc::downgrade(host);
        move || {
            if let Some(host) = host.upgrade() {
                host.end(Phase::Stopping, Duration::ZERO);
            }
        }
    };
    let permit = host.limits.admit(address, &settings.config.limits, ended)?;
    Some(Connection::new(host, settings, Stream::Unix(stream), peer, local, permit))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    // Clients may send the end of ABOR, or Telnet signals before it, as urgent data.
    socket.set_out_of_band_inline(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)
}

fn refuse(mut stream: TcpStream, code: u16, text: &str) -> Option<Box<Connection>> {
    // One line fits into the buffer of any socket. A client that does not get it sees the
    // connection end.
    let _ = stream.write(&Reply::coded(code, text.lines()).to_bytes());
    None
}

fn refuse_ssh(mut stream: UnixStream, code: u16, text: &str) {
    // The line fits into the buffer of any socket.
    let _ = stream.write(&Reply::coded(code, text.lines()).to_bytes());
}
