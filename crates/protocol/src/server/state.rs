//! State that a session keeps between commands.

use std::collections::{BTreeMap, BTreeSet};

use bstr::BString;

use super::action::*;
use super::pending::PassiveKind;
use crate::command::{ChecksumAlgorithm, DataAuthentication, Protection};
use crate::congestion::CongestionName;
use crate::data_key::DataKey;
use crate::facts::FactSet;
use crate::opts::Layout;
use crate::path::VirtualPath;
use crate::range::RangeSet;
use crate::stack::StackSpec;
use crate::upload::UploadId;

/// Seconds between markers, unless TREV sets another interval.
const MARKER_INTERVAL: u32 = 5;

/// The largest PBSZ that is accepted if the context wraps data, in bytes.
pub(super) const MAX_PROTECTION_BUFFER: u32 = 1 << 20;
/// The smallest PBSZ, in bytes: the overhead of a message is about a hundred bytes.
pub(super) const MIN_PROTECTION_BUFFER: u32 = 512;

/// Everything that commands can set.
#[derive(Debug)]
pub(super) struct State {
    /// The argument of USER.
    pub(super) user: Option<BString>,
    /// A log-in that was refused before a password was received, to be reported to the host.
    pub(super) refused: Option<RefusedLogin>,
    /// Number of such log-ins.
    pub(super) refusals: u32,
    /// The local user, after the log-in.
    pub(super) local_user: Option<String>,
    pub(super) directory: VirtualPath,
    /// The directory after the log-in.
    pub(super) home: VirtualPath,
    pub(super) mode: Mode,
    pub(super) representation: RepresentationType,
    pub(super) channel: Channel,
    pub(super) options: DataOptions,
    pub(super) facts: FactSet,
    pub(super) continue_on_error: bool,
    pub(super) traverse_links: bool,
    /// Seconds between 113 markers.
    pub(super) checksum_markers: u32,
    /// SITE CHROOT was received.
    pub(super) rooted: bool,
    /// SITE RESTRICT was received.
    pub(super) restricted: bool,
    pub(super) faults: BTreeSet<String>,
    pub(super) rename_from: Option<VirtualPath>,
    pub(super) symlink_from: Option<VirtualPath>,
    /// REST, for the next transfer.
    pub(super) restart: Option<RangeSet>,
    pub(super) upload: UploadAttributes,
    /// The uploads that SITE UPLOAD BEGIN has begun, and their files.
    pub(super) uploads: BTreeMap<UploadId, VirtualPath>,
    /// The client is authenticated and the control connection protected.
    pub(super) secured: bool,
    /// The control connection is carried by ssh, so that no other host can read it.
    pub(super) within_ssh: bool,
    /// The control connection is secured by TLS (RFC 4217).
    pub(super) tls: bool,
    /// The control connection is secured by a context that also protects data connections
    /// ([`Outcome::Wrapped`]).
    pub(super) wraps: bool,
    /// PBSZ was received. Without it, PROT is refused with TLS, and if the context wraps data.
    pub(super) sized: bool,
    /// The agreed PBSZ, in bytes.
    pub(super) protection_buffer: u32,
    /// [`Action::Protect`] has to follow the current reply.
    pub(super) protects: bool,
    pub(super) authentication: DataAuthentication,
    pub(super) protection: Protection,
    /// SITE DATAKEY, for the next data channel.
    pub(super) data_key: Option<DataKey>,
    /// The number of the last data key.
    pub(super) last_data_key: Option<u64>,
    /// SITE SETNETSTACK.
    pub(super) net_stack: Option<StackSpec>,
    /// Whether the driver of the last data channel encrypts, and the channel has a key.
    pub(super) channel_encrypts: bool,
}

/// The data channel, as far as the session has to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    None,
    /// There was one, and this command has closed it, because it was made with other settings.
    Closed(&'static str),
    /// The host has created the channel.
    Made,
    /// The next transfer creates the channel (delayed passive).
    Delayed(Listen, PassiveKind),
}

impl Channel {
    /// Closes the channel because of this command, and returns what was there before.
    pub(super) fn close(&mut self, by: &'static str) -> Self {
        let closed = match self {
            Self::Made | Self::Delayed(..) => Self::Closed(by),
            Self::None | Self::Closed(_) => return self.clone(),
        };
        std::mem::replace(self, closed)
    }
}

#[derive(Debug)]
pub(super) struct DataOptions {
    pub(super) parallelism: u32,
    pub(super) layout: Option<Layout>,
    pub(super) block_size: Option<u64>,
    pub(super) send_buffer: Option<u64>,
    pub(super) receive_buffer: Option<u64>,
    /// ABUF, in bytes.
    pub(super) automatic_buffers: Option<u64>,
    pub(super) congestion: Option<CongestionName>,
    /// The client wants 115 markers in addition to 112 markers.
    pub(super) path_info: bool,
    pub(super) resend: bool,
    /// The most data nodes of a channel of this client, which wants to know whether some have
    /// joined; 0: it does not.
    pub(super) nodes: u32,
    /// Seconds between 112 markers when sending.
    pub(super) send_markers: u32,
    /// Seconds between 112 markers when receiving in MODE E.
    pub(super) perf_interval: u32,
    /// Seconds between 111 markers when receiving in MODE E.
    pub(super) restart_interval: u32,
    pub(super) checksum: Option<ChecksumAlgorithm>,
    /// Uploads replace existing files.
    pub(super) replaces: bool,
    /// AllowDelayed=1 was received: the next transfer creates the passive channel.
    pub(super) delayed: bool,
    /// EPSV ALL was received.
    pub(super) epsv_only: bool,
}

/// Attributes for the next upload.
#[derive(Debug, Default)]
pub(super) struct UploadAttributes {
    pub(super) allocated: Option<u64>,
    pub(super) expected: Option<ExpectedChecksum>,
    pub(super) modified: Option<i64>,
}

impl State {
    pub(super) fn new() -> Self {
        Self {
            user: None,
            refused: None,
            refusals: 0,
            local_user: None,
            directory: VirtualPath::root(),
            home: VirtualPath::root(),
            mode: Mode::default(),
            representation: RepresentationType::default(),
            channel: Channel::None,
            options: DataOptions::new(),
            facts: FactSet::default(),
            continue_on_error: false,
            traverse_links: false,
            checksum_markers: 0,
            rooted: false,
            restricted: false,
            faults: BTreeSet::new(),
            rename_from: None,
            symlink_from: None,
            restart: None,
            upload: UploadAttributes::default(),
            uploads: BTreeMap::new(),
            secured: false,
            within_ssh: false,
            tls: false,
            wraps: false,
            sized: false,
            protection_buffer: MAX_PROTECTION_BUFFER,
            protects: false,
            authentication: DataAuthentication::None,
            protection: Protection::Clear,
            data_key: None,
            last_data_key: None,
            net_stack: None,
            channel_encrypts: false,
        }
    }

    /// The state of a control connection that is protected by TLS from now on. All settings that
    /// were made in clear are dropped.
    pub(super) fn within_tls() -> Self {
        Self { secured: true, tls: true, ..Self::new() }
    }

    /// Whether data connections that are made now are protected.
    pub(super) fn protects_data(&self) -> bool {
        (self.tls || self.wraps || self.authenticates_data()) && self.protection != Protection::Clear
    }

    pub(super) fn is_logged_in(&self) -> bool {
        self.local_user.is_some()
    }

    /// Whether no other host can read or write on the control connection.
    pub(super) fn is_private(&self) -> bool {
        self.secured || self.within_ssh
    }

    /// Whether data connections are authenticated by GSI (DCAU A or S).
    pub(super) fn authenticates_data(&self) -> bool {
        self.secured && !self.tls && !self.wraps && self.authentication != DataAuthentication::None
    }

    /// Returns the options for a data channel that is created now. A key is used for this channel
    /// only.
    pub(super) fn channel_options(&mut self) -> ChannelOptions {
        let layout = match (self.options.layout, self.options.block_size) {
            (Some(Layout::Partitioned), _) => StripeLayout::Partitioned,
            (Some(Layout::Blocked), block_size) => StripeLayout::Blocked { block_size },
            (None, Some(n)) => StripeLayout::Blocked { block_size: Some(n) },
            (None, None) => StripeLayout::ServerDefault,
        };
        ChannelOptions {
            mode: self.mode,
            representation: self.representation,
            parallelism: self.options.parallelism,
            layout,
            send_buffer: self.options.send_buffer,
            receive_buffer: self.options.receive_buffer,
            automatic_buffers: self.options.automatic_buffers,
            congestion: self.options.congestion,
            authentication: self.authentication.clone(),
            protection: self.protection,
            protection_buffer: self.protection_buffer,
            key: self.data_key.take(),
            stack: self.net_stack.clone(),
        }
    }
}

impl DataOptions {
    fn new() -> Self {
        Self {
            parallelism: 1,
            layout: None,
            block_size: None,
            send_buffer: None,
            receive_buffer: None,
            automatic_buffers: None,
            congestion: None,
            path_info: false,
            resend: false,
            nodes: 0,
            send_markers: 0,
            perf_interval: MARKER_INTERVAL,
            restart_interval: MARKER_INTERVAL,
            checksum: None,
            replaces: false,
            delayed: false,
            epsv_only: false,
        }
    }
}
