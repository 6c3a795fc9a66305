//! The data channel of a session, between the command that makes it and the transfers over it.

use std::net::IpAddr;

use ropewalk_engine::{DataChannel, Discarded, Parallelism};
use ropewalk_protocol::congestion::CongestionName;
use ropewalk_protocol::server::{ChannelOptions, Mode};

use crate::config::Data;

/// The session's data channel.
pub(crate) struct Channel {
    pub(crate) data: DataChannel,
    pub(crate) options: ChannelOptions,
    /// The client's side connects.
    pub(crate) passive: bool,
    /// Where we connect to; the client's own address where we do not.
    pub(crate) peer: IpAddr,
    /// Its connections begin with TLS, for which some clients wait until they have the preliminary reply (RFC 4217 section 7).
    pub(crate) tls: bool,
    /// The larger of the socket buffers in bytes, where they were set.
    pub(crate) buffer: Option<usize>,
    /// The client may have sent data that no transfer has taken.
    pub(crate) out_of_step: bool,
}

impl Channel {
    /// The next transfer uses connections that are there.
    pub(crate) fn is_connected(&self) -> bool {
        self.data.cached() > 0
    }

    /// A transfer or listing has failed: what was sent for it must not become that of the next one. In MODE E nothing comes
    /// for a download that was refused, and its connections stay.
    pub(crate) fn tidy(&mut self) -> Option<Discarded> {
        let wrong = std::mem::take(&mut self.out_of_step) || self.options.mode == Mode::Stream;
        wrong.then(|| self.data.discard())
    }

    /// As [`Self::tidy`], for an upload that no operation was made of.
    pub(crate) fn decline(&mut self) -> Discarded {
        self.data.discard()
    }

    /// The preliminary reply has to come before the data connection is ready.
    pub(crate) fn replies_early(&self) -> bool {
        self.tls && !self.is_connected()
    }

    /// SITE STREAMS between transfers.
    pub(crate) fn set_streams(&mut self, n: u32) {
        self.data.set_parallelism(n);
    }

    /// By which SITE STREAMS changes the transfer under way.
    pub(crate) fn streams(&self) -> Option<Parallelism> {
        (self.options.mode == Mode::ExtendedBlock).then(|| self.data.parallelism())
    }

    /// For connections from now on; `choice` is the client's.
    pub(crate) fn set_congestion(&mut self, choice: Option<CongestionName>, config: &Data) {
        self.data.set_congestion(congestion(choice, config));
    }
}

pub(crate) fn congestion(choice: Option<CongestionName>, config: &Data) -> Option<String> {
    choice.map(|name| name.to_string()).or_else(|| config.congestion.clone())
}
