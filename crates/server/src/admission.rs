//! Who gets in: what is done with a connection that has just been accepted.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::net::TcpStream;
use ropewalk_protocol::reply::Reply;
use ropewalk_security::canonical;
use socket2::{SockRef, TcpKeepalive};

use crate::connection::Connection;
use crate::host::Host;

/// A client that has gone without a word is noticed after two minutes and a bit.
const KEEPALIVE: TcpKeepalive =
    TcpKeepalive::new().with_time(Duration::from_secs(60)).with_interval(Duration::from_secs(20));

/// A session for the connection; or `None`, after a word to the client.
pub(crate) fn admit(host: &Arc<Host>, stream: TcpStream, peer: SocketAddr) -> Option<Box<Connection>> {
    let settings = host.settings();
    let address = canonical(peer.ip());
    if !settings.access.permits(address) {
        tracing::info!(%peer, "connection refused: address not allowed");
        return refuse(stream, 421, "Service not available to this address. Closing control connection.");
    }
    if let Some(text) = &settings.config.offline {
        let text =
            if text.is_empty() { "Service temporarily offline. Closing control connection." } else { text };
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
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%peer, %error, "socket options");
    }
    match stream.local_addr() {
        Ok(local) => Some(Connection::new(host, settings, stream, peer, local, permit)),
        Err(error) => {
            tracing::debug!(%peer, %error, "connection lost at once");
            None
        }
    }
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    // Clients may send the end of ABOR, or Telnet signals before it, as urgent data.
    socket.set_out_of_band_inline(true)?;
    socket.set_tcp_keepalive(&KEEPALIVE)
}

fn refuse(mut stream: TcpStream, code: u16, text: &str) -> Option<Box<Connection>> {
    // One line fits into any socket's buffer; a client that does not get it sees the connection end.
    let _ = stream.write(&Reply::coded(code, text.lines()).to_bytes());
    None
}
