//! The orders of one session: channels are made here, transfers in `transfer`.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ropewalk_engine::{ChannelSettings, DataChannel};
use ropewalk_gsi::{Expected, Identity, Trust, dcsc};
use ropewalk_layers::{
    GsiLayer, KeyLayer, Layer, Level, Peer, Policy, SessionSecurity, Stack, StackBuilder, TlsLayer,
};
use ropewalk_nodes::{
    ChannelOrder, Frame, GsiOrder, Link, LinkError, MoveFailure, Order, ReceiveOrder, Report, SecurityOrder,
    SendOrder, SessionLease, TlsOrder, TlsProof,
};
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_protocol::stack::StackSpec;
use ropewalk_tls::{Binding, Server, ServerIdentity, ServerSecrets, SslVersion, X509};
use ropewalk_transport::{Listener, Options, Tuning};

use super::Shared;
use super::grants::Grants;
use super::line::Line;
use super::transfer;

/// How often an idle session looks whether the node drains.
const LOOK: Duration = Duration::from_millis(200);

/// Carries out the orders that come over `link`, of which `first` is one, until the front end
/// closes it, its lease ends, or the node drains.
pub(super) fn serve(shared: &Arc<Shared>, link: Link, first: Frame, lease: &SessionLease) {
    ropewalk_storage::thread_starts();
    let peer = link.peer();
    let mut session = Session { shared, lease, link, channel: None };
    let mut next = Some(first);
    let result = loop {
        let frame = match next.take() {
            Some(frame) => frame,
            None if !lease.is_valid() => break Ok(()),
            None if lease.is_draining() => break session.link.send(&Report::Left),
            None => match session.link.receive(LOOK) {
                Ok(frame) => {
                    next = frame;
                    continue;
                }
                Err(error) => break Err(error),
            },
        };
        if let Err(error) = frame.message().and_then(|order| session.carry_out(order)) {
            break Err(error);
        }
    };
    match result {
        Ok(()) | Err(LinkError::Closed) => {}
        Err(error) => tracing::warn!(%peer, %error, "a session of the front end has broken"),
    }
}

struct Session<'s> {
    shared: &'s Arc<Shared>,
    lease: &'s SessionLease,
    link: Link,
    channel: Option<GrantedChannel>,
}

/// The data channel of a session, and the grants for it.
struct GrantedChannel {
    data: DataChannel,
    grants: Grants,
}

impl Session<'_> {
    fn carry_out(&mut self, order: Order) -> Result<(), LinkError> {
        let answer = match order {
            Order::Listen { address, channel } => {
                // Its port may be the only one.
                self.channel = None;
                match self.listen(address, &channel) {
                    Ok((made, bound)) => {
                        self.channel = Some(made);
                        Report::Listening(bound)
                    }
                    Err(failure) => Report::Failed(failure),
                }
            }
            Order::Connect { addresses, channel } => {
                self.channel = None;
                match self.connect(addresses, &channel) {
                    Ok(made) => {
                        self.channel = Some(made);
                        Report::Done
                    }
                    Err(failure) => Report::Failed(failure),
                }
            }
            Order::Discard => {
                if let Some(channel) = &mut self.channel {
                    drop(channel.data.discard());
                }
                Report::Done
            }
            Order::Send(_) | Order::SendBytes(_) | Order::Receive(_) => return self.transfer(order),
            // The transfer for which they were meant has ended.
            Order::BytesEnd { .. } | Order::Streams(_) | Order::Abort => return Ok(()),
        };
        self.link.send(&answer)
    }

    fn transfer(&mut self, order: Order) -> Result<(), LinkError> {
        let Some(GrantedChannel { data: channel, grants }) = &mut self.channel else {
            let failure = MoveFailure::Connection("there is no data channel".into());
            return self.link.send(&Report::Ended(Err(failure)));
        };
        let line = RefCell::new(Line::new(&mut self.link, channel.parallelism(), self.lease));
        if let Order::Send(SendOrder { moves, .. })
        | Order::SendBytes(moves)
        | Order::Receive(ReceiveOrder { moves, .. }) = &order
        {
            grants.begin(&moves.grant);
        }
        let result = match order {
            Order::Send(order) => transfer::send(self.shared, channel, &order, &line),
            Order::SendBytes(moves) => transfer::send_bytes(self.shared, channel, &moves, &line),
            Order::Receive(order) => transfer::receive(self.shared, channel, &order, &line),
            _ => return Ok(()),
        };
        grants.end();
        if let Ok(moved) = &result {
            tracing::debug!(bytes = moved.bytes, streams = moved.streams, "a transfer has ended");
        }
        line.into_inner().end(result)
    }

    fn listen(
        &self,
        address: IpAddr,
        order: &ChannelOrder,
    ) -> Result<(GrantedChannel, SocketAddr), MoveFailure> {
        let stack = self.stack(order)?;
        let mut options = options(order, self.shared.data_ports);
        stack.apply_protocol(&mut options);
        let listen = |address| stack.driver.listen(SocketAddr::new(address, 0).into(), &options);
        let listener: Box<dyn Listener> = match listen(address) {
            // Behind an address translation the node does not have the address that it announces.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => listen(unspecified(address)),
            result => result,
        }
        .map_err(|error| MoveFailure::Connection(format!("cannot listen on {address}: {error}")))?;
        let bound = listener
            .local_addr()
            .and_then(|bound| bound.socket())
            .map_err(|error| MoveFailure::Connection(error.to_string()))?;
        let grants = Grants::new(self.lease, order.account);
        let mut settings = settings(order, options, &grants);
        settings.only_from = order.only_from;
        let (pool, budget) = (Arc::clone(&self.shared.streams), Arc::clone(&self.shared.budget));
        let mut channel = DataChannel::passive(listener, settings, pool, budget);
        channel.set_patient(false);
        Ok((GrantedChannel { data: channel, grants }, bound))
    }

    fn connect(
        &self,
        addresses: Vec<SocketAddr>,
        order: &ChannelOrder,
    ) -> Result<GrantedChannel, MoveFailure> {
        let stack = self.stack(order)?;
        let mut options = options(order, None);
        stack.apply_protocol(&mut options);
        let grants = Grants::new(self.lease, order.account);
        let settings = settings(order, options, &grants);
        let (pool, budget) = (Arc::clone(&self.shared.streams), Arc::clone(&self.shared.budget));
        let mut channel = DataChannel::active(stack.driver, addresses, settings, pool, budget);
        channel.set_patient(false);
        Ok(GrantedChannel { data: channel, grants })
    }

    /// The layer with the credential of a session of the front end.
    fn gsi(&self, order: &GsiOrder) -> Result<GsiLayer, String> {
        let (authorities, further) = (&self.shared.authorities, &order.further_authorities);
        if !authorities.is_dir() && !order.own_authorities && further.is_empty() {
            return Err(format!(
                "data connections with certificates need trusted authorities at the node, and there is no \
                 directory {}",
                authorities.display()
            ));
        }
        let settings = &self.shared.gsi;
        let credential = std::str::from_utf8(order.credential.bytes()).map_err(|error| error.to_string())?;
        let credential = dcsc::parse(credential).map_err(|error| error.to_string())?;
        let trust = Trust::directory(authorities)
            .with_pem_anchors(further.as_bytes())
            .map_err(|error| format!("the further authorities of the front end: {error}"))?;
        let identity = match order.own_authorities {
            true => dcsc::identity(credential, Some(&trust), settings).map_err(|error| error.to_string()),
            false => Identity::new(Arc::new(credential), Arc::new(trust), settings)
                .map_err(|error| error.to_string()),
        };
        let level = if order.protected { Level::Protected } else { Level::Clear };
        Ok(GsiLayer { identity: identity?, expected: Expected::Subject(order.expected.clone()), level })
    }

    /// The front end has checked what the session has to have.
    fn stack(&self, order: &ChannelOrder) -> Result<Stack, MoveFailure> {
        let failed = |error: String| MoveFailure::Connection(error);
        let key = order.key.as_ref().map(|(number, secret)| KeyLayer::new(*number, secret)).transpose();
        let key = key.map_err(|error| failed(format!("cannot use the data key: {error}")))?;
        let spec: Option<StackSpec> = match order.stack.as_deref().map(str::parse).transpose() {
            Ok(spec) => spec,
            Err(_) => return Err(failed("the stack string cannot be read".into())),
        };
        let layer: Option<Arc<dyn Layer>> = match &order.security {
            Some(SecurityOrder::Gsi(gsi)) => Some(Arc::new(self.gsi(gsi).map_err(failed)?)),
            Some(SecurityOrder::Tls(order)) => Some(Arc::new(tls(order).map_err(failed)?)),
            None => None,
        };
        let security = SessionSecurity { key: key.map(Arc::new), layer, peer: Some(order.peer) };
        StackBuilder::new(&self.shared.registry)
            .allowing(&order.drivers)
            .build(spec.as_ref(), security, Policy::default())
            .map_err(|refusal| failed(refusal.to_string()))
    }
}

/// The layer with the secrets of a session of the front end.
fn tls(order: &TlsOrder) -> Result<TlsLayer, String> {
    let certificate = order.client_certificate.as_ref().map(|pem| X509::from_pem(pem.as_bytes()));
    let certificate =
        certificate.transpose().map_err(|error| format!("the certificate of the client: {error}"))?;
    let identity = order.identity.as_ref().map(|identity| ServerIdentity {
        certificates: identity.certificates.clone(),
        key: identity.key.bytes().clone(),
    });
    let secrets = ServerSecrets {
        identity,
        ticket_keys: order.ticket_keys.bytes().clone(),
        min_version: if order.only_tls13 { SslVersion::TLS1_3 } else { SslVersion::TLS1_2 },
    };
    let session = order.session.as_ref().map(|session| session.bytes().as_slice());
    let server =
        Server::on_behalf(&secrets, session, certificate.as_ref()).map_err(|error| error.to_string())?;
    let client = match order.proof {
        TlsProof::Certificate => Peer::Same { certificate },
        TlsProof::Address(address) => Peer::From { certificate, address },
        TlsProof::Nothing => Peer::Anybody,
    };
    let binding = order.binding.bytes().as_slice().try_into();
    let binding = Binding::of(binding.map_err(|_| "the binding has another length than 32 bytes")?);
    Ok(TlsLayer::Server { server, binding, client })
}

fn unspecified(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn options(order: &ChannelOrder, ports: Option<(u16, u16)>) -> Options {
    let tuning = Tuning {
        send_buffer: order.send_buffer,
        receive_buffer: order.receive_buffer,
        congestion: order.congestion.clone(),
        ..Tuning::default()
    };
    Options { tuning, ports, ..Options::default() }
}

fn settings(order: &ChannelOrder, options: Options, grants: &Grants) -> ChannelSettings {
    ChannelSettings {
        bandwidth: None,
        granted: Some(grants.rate()),
        mode: if order.extended_block { Mode::ExtendedBlock } else { Mode::Stream },
        representation: RepresentationType::Image,
        parallelism: order.parallelism,
        block_size: order.block_size,
        options,
        connect_timeout: Duration::from_millis(order.connect_timeout_ms),
        stall_timeout: (order.stall_timeout_ms > 0).then(|| Duration::from_millis(order.stall_timeout_ms)),
        max_streams: order.max_streams,
        only_from: None,
    }
}
