//! Where the two servers of a transfer meet: which of them listens, and at which port.
//!
//! The way that has worked is kept for the pair of servers and the run. When a server reports that
//! there was no data connection, the pair goes on to the next way: first the control port of the
//! destination, then that of the source, which serves if only the source can be reached.

use ropewalk_protocol::command::Command;
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::Mode;
use ropewalk_protocol::site::SiteCommand;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_transfer::Side;

use super::Flow;
use crate::RemoteError;
use crate::place::Meeting;

/// The reply of a server that could not make a data connection (RFC 959 section 4.2.1).
const CANNOT_CONNECT: u16 = 425;

impl Meeting {
    /// The server that connects to the other one.
    pub(super) fn connects(self) -> Side {
        match self {
            Self::Announced | Self::DestinationPort => Side::Source,
            Self::SourcePort => Side::Destination,
        }
    }
}

impl Flow<'_> {
    /// The way that the next channel takes.
    ///
    /// # Errors
    /// The user wants one port, and a server does not offer it.
    pub(super) fn choose_meeting(&self) -> Result<Meeting, RemoteError> {
        let forced = self.worker.ctx.options().data.one_port;
        if forced {
            self.peers.servers.source.uses_one_port()?;
            self.peers.servers.destination.uses_one_port()?;
        }
        if !self.both_have_one_port() {
            return Ok(Meeting::Announced);
        }
        Ok(match self.peers.servers.source.endpoint.meeting(&self.peers.servers.destination.endpoint.name) {
            Meeting::Announced if forced => Meeting::DestinationPort,
            meeting => meeting,
        })
    }

    /// Makes one server listen at its control port, and tells the other one to connect to it.
    pub(super) fn meet_at_control_port(
        &mut self,
        mode: Mode,
        parallelism: Option<u32>,
        inline: Option<Algorithm>,
    ) -> Result<(), RemoteError> {
        let (listening, connecting) = match self.peers.meeting.connects() {
            Side::Source => (&mut self.peers.servers.destination, &mut self.peers.servers.source),
            Side::Destination => (&mut self.peers.servers.source, &mut self.peers.servers.destination),
        };
        let binding = self.peers.binding.as_ref();
        let (token, address) = listening.one_port_channel(mode, parallelism, inline, binding)?;
        let command = Command::Site(SiteCommand::OnePort(Some((token, address))));
        connecting.prepare(mode, parallelism, inline, binding, Some(command)).map(drop)
    }

    /// A server has sent a final reply. If the two could not connect to each other, the next try
    /// takes another way. Both servers report that, each after its own time limit.
    pub(super) fn check_meeting(&mut self, reply: &Reply) {
        if reply.code() != CANNOT_CONNECT || self.peers.moved > 0 || !self.both_have_one_port() {
            return;
        }
        let (source, destination) =
            (&self.peers.servers.source.endpoint, &self.peers.servers.destination.endpoint);
        let (next, from, to) = match self.peers.meeting {
            Meeting::Announced => (Meeting::DestinationPort, source, destination),
            Meeting::DestinationPort => (Meeting::SourcePort, destination, source),
            Meeting::SourcePort => return,
        };
        self.peers.channel = None;
        if source.meet_next(&destination.name, self.peers.meeting, next) {
            self.worker.ctx.report.warn_once(format!(
                "{} cannot open a data connection to {}: {} connects to the control port of {} instead",
                source.name, destination.name, from.name, to.name
            ));
        }
    }

    fn both_have_one_port(&self) -> bool {
        self.peers.servers.source.offers_one_port() && self.peers.servers.destination.offers_one_port()
    }
}
