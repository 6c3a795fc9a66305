//! What a session remembers between commands.

use std::collections::BTreeSet;

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

/// Seconds between markers, unless TREV says otherwise.
const MARKER_INTERVAL: u32 = 5;

/// The largest PBSZ that is agreed on where the context wraps data, in bytes.
pub(super) const MAX_PROTECTION_BUFFER: u32 = 1 << 20;
/// The smallest one: a message's own bytes are about a hundred.
pub(super) const MIN_PROTECTION_BUFFER: u32 = 512;

/// Everything that commands set.
#[derive(Debug)]
pub(super) struct State {
    /// The name after USER.
    pub(super) user: Option<BString>,
    /// A log-in that was refused before a password came, for the host to take note of.
    pub(super) refused: Option<RefusedLogin>,
    /// How many of them there were.
    pub(super) refusals: u32,
    /// The local user, once logged in.
    pub(super) local_user: Option<String>,
    pub(super) directory: VirtualPath,
    /// Where it was after the log-in.
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
    /// SITE CHROOT was given.
    pub(super) rooted: bool,
    /// SITE RESTRICT was given.
    pub(super) restricted: bool,
    pub(super) faults: BTreeSet<String>,
    pub(super) rename_from: Option<VirtualPath>,
    pub(super) symlink_from: Option<VirtualPath>,
    /// REST, for the next transfer.
    pub(super) restart: Option<RangeSet>,
    pub(super) upload: UploadAttributes,
    /// The client is authenticated and the control connection protected.
    pub(super) secured: bool,
    /// Nobody can listen to the control connection, which ssh carries.
    pub(super) within_ssh: bool,
    /// By TLS (RFC 4217).
    pub(super) tls: bool,
    /// By a context that protects data connections too ([`Outcome::Wrapped`]).
    pub(super) wraps: bool,
    /// PBSZ was given, without which PROT is refused under TLS and where the context wraps data.
    pub(super) sized: bool,
    /// What it agreed on, in bytes.
    pub(super) protection_buffer: u32,
    /// [`Action::Protect`] is to follow the reply that is being made.
    pub(super) protects: bool,
    pub(super) authentication: DataAuthentication,
    pub(super) protection: Protection,
    /// SITE DATAKEY, for the next data channel.
    pub(super) data_key: Option<DataKey>,
    /// The number of the last one.
    pub(super) last_data_key: Option<u64>,
}

/// The data channel, as far as the session has to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    None,
    /// The host has made one.
    Made,
    /// To be made by the next transfer (delayed passive).
    Delayed(Listen, PassiveKind),
}

#[derive(Debug)]
pub(super) struct DataOptions {
    pub(super) parallelism: u32,
    pub(super) layout: Option<Layout>,
    pub(super) block_size: Option<u64>,
    pub(super) send_buffer: Option<u64>,
    pub(super) receive_buffer: Option<u64>,
    /// ABUF.
    pub(super) automatic_buffers: Option<u64>,
    pub(super) congestion: Option<CongestionName>,
    /// 115 markers are wanted beside those of `send_markers`.
    pub(super) path_info: bool,
    /// Seconds between 112 markers when sending.
    pub(super) send_markers: u32,
    /// Seconds between 112 markers when receiving in MODE E.
    pub(super) perf_interval: u32,
    /// Seconds between 111 markers when receiving in MODE E.
    pub(super) restart_interval: u32,
    pub(super) checksum: Option<ChecksumAlgorithm>,
    /// Uploads take the place of what has their name.
    pub(super) replaces: bool,
    /// The next passive command may be delayed.
    pub(super) delayed: bool,
    /// EPSV ALL was given.
    pub(super) epsv_only: bool,
}

/// For the next upload.
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
        }
    }

    /// That of a control connection that is protected by TLS from now on: whatever was said in clear is forgotten.
    pub(super) fn within_tls() -> Self {
        Self { secured: true, tls: true, ..Self::new() }
    }

    /// Data connections made now are protected.
    pub(super) fn protects_data(&self) -> bool {
        (self.tls || self.wraps || self.authenticates_data()) && self.protection != Protection::Clear
    }

    pub(super) fn is_logged_in(&self) -> bool {
        self.local_user.is_some()
    }

    /// Nobody else reads or writes on the control connection.
    pub(super) fn is_private(&self) -> bool {
        self.secured || self.within_ssh
    }

    /// Data connections are authenticated by GSI (DCAU A or S).
    pub(super) fn authenticates_data(&self) -> bool {
        self.secured && !self.tls && !self.wraps && self.authentication != DataAuthentication::None
    }

    /// The options that a data channel made now gets. A key serves no other one.
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
