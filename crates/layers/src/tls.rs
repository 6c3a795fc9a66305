//! TLS on data connections (RFC 4217 section 7). The FTP server is the TLS server, whichever side
//! connects. A client must resume the session of the control connection or present its certificate
//! again; otherwise the connection is refused (see [`Peer`] for the exceptions).

use std::io::{self, ErrorKind};
use std::net::IpAddr;

use ropewalk_tls::{
    Binding, Client, Established, Handshake as Machine, HandshakeError, Server, Ticket, X509,
};
use ropewalk_transport::{Connection, Endpoint, Interest};

use crate::outgoing::Outgoing;
use crate::protected::{Protected, Silence};
use crate::reader::{RecordReader, over};
use crate::{Assurance, Handshake, Layer, Progress};

/// How a client proves that it is the client of the control connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// The client must resume the session of the control connection, or present the certificate
    /// that it used there.
    Same {
        certificate: Option<X509>,
    },
    /// Like `Same`, but a client without either proof is accepted if it has this address.
    From {
        certificate: Option<X509>,
        address: IpAddr,
    },
    Anybody,
}

/// TLS in one of its roles.
#[derive(Clone, Debug)]
pub enum TlsLayer {
    Server {
        server: Server,
        /// The binding of the control connection.
        binding: Binding,
        client: Peer,
    },
    Client {
        /// The session of the control connection; `certificate` is the server's there. A server
        /// that does not resume the session must present that certificate again.
        ticket: Ticket,
        certificate: X509,
    },
}

impl Layer for TlsLayer {
    fn name(&self) -> &'static str {
        "tls"
    }

    /// A server that accepts any client ([`Peer::Anybody`]) does so because its site wants it.
    fn assurance(&self) -> Assurance {
        Assurance { bound: true, protected: true }
    }

    fn begin(&self, mut connection: Box<dyn Connection>, _: bool) -> io::Result<Box<dyn Handshake>> {
        connection.set_nonblocking(true)?;
        let machine = match self {
            Self::Server { server, binding, .. } => server.accept_data(binding),
            Self::Client { ticket, .. } => Client::resume(ticket),
        };
        let mut handshake = TlsHandshake {
            addresses: connection.local_addr().and_then(|local| Ok((local, connection.peer_addr()?))).ok(),
            connection: Some(connection),
            machine: machine.map_err(io::Error::other)?,
            layer: self.clone(),
            out: Outgoing::default(),
            reader: RecordReader::default(),
            end: None,
        };
        if matches!(self, Self::Client { .. }) {
            handshake.step(&[]);
        }
        Ok(Box::new(handshake))
    }
}

impl TlsLayer {
    /// Whether the peer is that of the control connection.
    fn check(
        &self,
        established: &Established,
        addresses: Option<&(Endpoint, Endpoint)>,
    ) -> Result<(), String> {
        if established.resumed {
            return Ok(());
        }
        let same = |certificate: &X509| established.certificate().as_ref() == Some(certificate);
        let stranger = "its TLS session is not that of the control connection (a client has to resume it)";
        match self {
            Self::Client { certificate, .. } if same(certificate) => Ok(()),
            Self::Client { .. } => {
                Err("the certificate on the data connection is not that of the control connection".to_owned())
            }
            Self::Server { client: Peer::Anybody, .. } => Ok(()),
            Self::Server { client: Peer::Same { certificate }, .. } => {
                if certificate.as_ref().is_some_and(same) { Ok(()) } else { Err(stranger.to_owned()) }
            }
            Self::Server { client: Peer::From { certificate, address }, .. } => {
                let near = addresses.is_some_and(|(_, peer)| peer.ip() == Some(address.to_canonical()));
                if near || certificate.as_ref().is_some_and(same) { Ok(()) } else { Err(stranger.to_owned()) }
            }
        }
    }
}

struct TlsHandshake {
    /// `None` after the connection was handed over.
    connection: Option<Box<dyn Connection>>,
    addresses: Option<(Endpoint, Endpoint)>,
    machine: Machine,
    layer: TlsLayer,
    out: Outgoing,
    reader: RecordReader,
    /// The result of the handshake. The bytes in `out` must be sent first.
    end: Option<Result<Box<Established>, HandshakeError>>,
}

impl TlsHandshake {
    fn step(&mut self, record: &[u8]) {
        self.end = self.machine.step(record, &mut self.out.bytes).transpose();
    }
}

impl Handshake for TlsHandshake {
    fn connection(&self) -> io::Result<&dyn Connection> {
        self.connection.as_deref().ok_or_else(over)
    }

    fn advance(&mut self) -> io::Result<Progress> {
        loop {
            let connection = self.connection.as_mut().ok_or_else(over)?;
            if !self.out.send(connection.as_mut())? {
                return Ok(Progress::Waits(Interest::Write));
            }
            match self.end.take() {
                Some(Err(error)) => return Err(failed(&error)),
                Some(Ok(established)) => {
                    self.layer.check(&established, self.addresses.as_ref()).map_err(|text| {
                        io::Error::new(ErrorKind::PermissionDenied, format!("the data connection: {text}"))
                    })?;
                    let silence = match self.layer {
                        TlsLayer::Server { .. } => Silence::Breaks,
                        TlsLayer::Client { .. } => Silence::BreaksLingering,
                    };
                    let connection = self.connection.take().ok_or_else(over)?;
                    let protected = Protected::new(connection, established.records, silence);
                    return Ok(Progress::Done(protected.between(self.addresses.take())));
                }
                None => {}
            }
            match self.reader.read(connection.as_mut())? {
                Some(record) => self.step(&record),
                None => return Ok(Progress::Waits(Interest::Read)),
            }
        }
    }
}

fn failed(error: &HandshakeError) -> io::Error {
    let kind = match error {
        HandshakeError::Certificate(_) => ErrorKind::PermissionDenied,
        HandshakeError::Closed => ErrorKind::UnexpectedEof,
        _ => ErrorKind::InvalidData,
    };
    io::Error::new(kind, format!("TLS on the data connection: {error}"))
}
