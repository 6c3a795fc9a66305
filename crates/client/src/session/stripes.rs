//! Servers that move one file with several hosts, which have an address each (SPAS, SPOR: GFD.20
//! section 3.4).
//!
//! A sender connects to every address of a server, because each of its hosts waits for an end of
//! file. To receive, this end gives the server its own address several times: as many hosts connect
//! to it, and each ends the file for its own connections.

use ropewalk_protocol::host_port::parse_spas_lines;
use ropewalk_protocol::server::Family;

use super::*;
use crate::Auto;

/// The most hosts that may send one file to this end.
const MOST_SENDERS: u32 = 64;

impl Session {
    /// Whether a transfer in this MODE may use several addresses of the server.
    pub(super) fn may_stripe(&self, mode: Mode) -> bool {
        let wanted = self.setup.options.data.stripes.is_some_and(|stripes| stripes != Auto::Set(1));
        wanted && mode == Mode::ExtendedBlock && self.can.striped
    }

    /// How the streams of a channel are spread over so many addresses of the server.
    pub(super) fn spread(&self, addresses: u32) -> Spread {
        Spread::of(&self.setup.options.tuning, self.path_tuner.is_some(), addresses)
    }

    /// The most data nodes of the server that a channel in MODE E is to have.
    pub(super) fn most_nodes(&self) -> u32 {
        match self.setup.options.data.stripes.filter(|_| self.may_stripe(Mode::ExtendedBlock)) {
            Some(Auto::Set(count)) => count.clamp(1, MOST_SENDERS),
            Some(Auto::Auto) => MOST_SENDERS,
            None => 1,
        }
    }

    /// The addresses at which the server listens for a sender: more than one if it is striped.
    pub(crate) fn passive_addresses(
        &mut self,
        mode: Mode,
        inline: Option<Algorithm>,
        binding: Option<&Binding>,
    ) -> Result<Vec<SocketAddr>, RemoteError> {
        if !self.may_stripe(mode) {
            return Ok(vec![self.passive(mode, None, inline, binding)?]);
        }
        let remote = self.control.remote_addr();
        let command = Command::Spas(remote.is_ipv6().then_some(Family::V6));
        let Some(reply) = self.prepare(mode, None, inline, binding, Some(command))? else {
            return Err(RemoteError::Desynchronized);
        };
        let Ok(addresses) = parse_spas_lines(reply.body()) else {
            return Err(self.nonsense("SPAS", &reply));
        };
        let proves = binding.is_some() || self.authenticates_data();
        let server = (self.control.peer(), proves);
        let permits = |address| self.setup.permits_data(server.0, remote.ip(), address);
        let reached = addresses.into_iter().map(|address| reachable(address, remote.ip(), server));
        reached.map(|address| address.and_then(permits)).collect()
    }

    /// The number of hosts of the server that are to send to this end.
    pub(super) fn senders(&mut self, mode: Mode, inline: Option<Algorithm>) -> Result<u32, RemoteError> {
        if !self.may_stripe(mode) {
            return Ok(1);
        }
        let count = match self.setup.options.data.stripes {
            Some(Auto::Set(count)) => count,
            // The server has as many as it would listen with.
            _ => self.passive_addresses(mode, inline, None)?.len() as u32,
        };
        Ok(count.clamp(1, MOST_SENDERS))
    }
}
