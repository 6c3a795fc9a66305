//! The data channel of a session, between the command that makes it and the transfers over it.

use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use ropewalk_engine::{Bandwidth, Discarded, Parallelism};
use ropewalk_nodes::Placement;
use ropewalk_protocol::congestion::CongestionName;
use ropewalk_protocol::server::{ChannelOptions, Mode};
use ropewalk_protocol::stack::{DriverSpec, StackSpec};

use crate::config::Data;
use crate::session::data_plane::DataPlane;

/// The session's data channel.
pub(crate) struct Channel {
    pub(crate) data: Box<dyn DataPlane>,
    pub(crate) options: ChannelOptions,
    /// The client connects.
    pub(crate) passive: bool,
    /// Its connections go to a control port (SITE ONEPORT), so that also a receiver may connect.
    pub(crate) one_port: bool,
    /// The host to which the server connects; the client's address for a passive channel.
    pub(crate) peer: IpAddr,
    /// Its connections start with TLS. Some clients wait for the preliminary reply before they
    /// start it (RFC 4217 section 7).
    pub(crate) tls: bool,
    /// The larger of the socket buffers in bytes, if they were set.
    pub(crate) buffer: Option<usize>,
    /// The client may have sent data that no transfer has received.
    pub(crate) desynchronized: bool,
    /// Its part of the limits on the rate, which also pays for bytes on data nodes.
    pub(crate) bandwidth: Option<Arc<Bandwidth>>,
    /// Shows when a channel that is made now would be on better data nodes; `None`: the channel can
    /// be on none. The observer of a transfer shares it.
    pub(crate) placement: Option<Arc<Mutex<Placement>>>,
}

impl Channel {
    /// Looks for better data nodes during a transfer whose client uses up to `most` nodes, in
    /// total as many as `allowed`. 0: the client does not want to know.
    pub(crate) fn looks_for_nodes(&self, most: u32, allowed: usize) -> Option<NodeNews> {
        let placement = self.placement.as_ref().filter(|_| most > 0)?;
        Some(NodeNews { placement: Arc::clone(placement), most: allowed.min(most as usize) })
    }

    /// Whether the next transfer uses existing connections.
    pub(crate) fn is_connected(&self) -> bool {
        self.data.cached() > 0
    }

    /// Discards connections after a failed transfer or listing: data that was sent for it must not
    /// become part of the next one. In MODE E no data comes for a download that was refused, and
    /// its connections stay.
    pub(crate) fn tidy(&mut self) -> Option<Discarded> {
        let wrong = std::mem::take(&mut self.desynchronized) || self.options.mode == Mode::Stream;
        wrong.then(|| self.data.discard()).flatten()
    }

    /// As [`Self::tidy`], for an upload that was refused before it became an operation.
    pub(crate) fn decline(&mut self) -> Option<Discarded> {
        self.data.discard()
    }

    /// Whether the preliminary reply has to be sent before the data connection is ready.
    pub(crate) fn replies_early(&self) -> bool {
        self.tls && !self.is_connected()
    }

    /// Sets the number of streams between transfers (SITE STREAMS).
    pub(crate) fn set_streams(&mut self, n: u32) {
        self.data.set_parallelism(n);
    }

    /// The stream control of a transfer, for SITE STREAMS.
    pub(crate) fn streams(&self) -> Option<Parallelism> {
        (self.options.mode == Mode::ExtendedBlock).then(|| self.data.parallelism())
    }

    /// Sets the congestion control of future connections; `choice` is the client's. One that the
    /// stack string names stays.
    pub(crate) fn set_congestion(&mut self, choice: Option<CongestionName>, config: &Data) {
        let named = self.options.stack.as_ref().and_then(named_congestion);
        self.data.set_congestion(named.or_else(|| congestion(choice, config)));
    }
}

/// News of data nodes during a transfer.
pub(crate) struct NodeNews {
    placement: Arc<Mutex<Placement>>,
    most: usize,
}

impl NodeNews {
    /// See [`Placement::improves`].
    pub(crate) fn take(&self) -> Option<u32> {
        self.placement.lock().improves(self.most).map(|count| count as u32)
    }
}

/// The congestion control that a driver of the stack has as an option.
fn named_congestion(stack: &StackSpec) -> Option<String> {
    let mut options = stack.drivers().iter().flat_map(DriverSpec::options);
    let named = options.find(|option| option.key() == "congestion")?;
    Some(String::from_utf8_lossy(named.value()).to_ascii_lowercase())
}

pub(crate) fn congestion(choice: Option<CongestionName>, config: &Data) -> Option<String> {
    choice.map(|name| name.to_string()).or_else(|| config.congestion.clone())
}
