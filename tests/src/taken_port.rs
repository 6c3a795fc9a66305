//! A port that no server can listen at.
//!
//! A server whose only data ports are this one can take data connections only where it listens
//! already.

use std::net::{TcpListener, UdpSocket};
use std::path::Path;

use anyhow::Result;

use crate::server::{Kind, Server, Setup};

/// A port of this host that is taken over TCP and UDP while the value lives.
#[derive(Debug)]
pub struct TakenPort {
    pub port: u16,
    _sockets: (TcpListener, UdpSocket),
}

impl TakenPort {
    /// # Errors
    /// No TCP port is free.
    pub fn new() -> Result<Self> {
        loop {
            let tcp = TcpListener::bind("0.0.0.0:0")?;
            let port = tcp.local_addr()?.port();
            if let Ok(udp) = UdpSocket::bind(("0.0.0.0", port)) {
                return Ok(Self { port, _sockets: (tcp, udp) });
            }
        }
    }

    /// The value of `--data-ports` that names this port only.
    pub fn range(&self) -> String {
        format!("{0}-{0}", self.port)
    }

    /// The table `data` of a server's settings that names this port only, with these further lines.
    pub fn setting(&self, lines: &str) -> String {
        format!("[data]\nports = [{0}, {0}]\n{lines}", self.port)
    }

    /// A server for anonymous users, with these arguments, that has this port for data only.
    ///
    /// # Errors
    /// The server does not start.
    pub fn server(&self, root: &Path, arguments: &[&str]) -> Result<Server> {
        let setup = Setup::new(Kind::Ropewalk, root).argument("--data-ports").argument(self.range());
        arguments.iter().fold(setup, |setup, argument| setup.argument(*argument)).start()
    }
}
