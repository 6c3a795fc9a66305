//! Commands that create data channels, and commands that use them.

use std::mem;
use std::net::SocketAddr;

use bstr::{BString, ByteSlice};

use super::action::*;
use super::config::RequiredProtection;
use super::pending::{DataPending, PassiveKind, Pending};
use super::session::{Session, Step};
use super::state::{Channel, MAX_PROTECTION_BUFFER, MIN_PROTECTION_BUFFER, UploadAttributes};
use crate::command::{
    CommandError, DataAuthentication, EpsvArgument, Password, Placement, Protection, Retrieval,
};
use crate::data_key::DataKey;
use crate::one_port::Token;
use crate::path::VirtualPath;
use crate::reply::Reply;

/// The differences between RETR, STOR, APPE, ERET and ESTO.
#[derive(Debug)]
pub(super) struct TransferKind {
    direction: Direction,
    window: Option<Window>,
    adjust: Option<u64>,
    append: bool,
    /// The path of the command is the ID of an upload.
    upload: bool,
}

impl TransferKind {
    pub(super) fn retrieve() -> Self {
        Self { direction: Direction::Retrieve, window: None, adjust: None, append: false, upload: false }
    }

    pub(super) fn store() -> Self {
        Self { direction: Direction::Store, ..Self::retrieve() }
    }

    pub(super) fn append() -> Self {
        Self { append: true, ..Self::store() }
    }

    /// # Errors
    /// Storage modules are not supported.
    pub(super) fn partial(what: Retrieval) -> Result<Self, CommandError> {
        match what {
            Retrieval::Partial(window) => Ok(Self { window: Some(window), ..Self::retrieve() }),
            Retrieval::Module { .. } => Err(CommandError::Partial),
        }
    }

    /// # Errors
    /// Storage modules are not supported.
    pub(super) fn adjusted(place: Placement) -> Result<Self, CommandError> {
        match place {
            Placement::Adjusted(offset) => Ok(Self { adjust: Some(offset), ..Self::store() }),
            Placement::Upload(offset) => Ok(Self { adjust: Some(offset), upload: true, ..Self::store() }),
            Placement::Module { .. } => Err(CommandError::Partial),
        }
    }
}

impl Session {
    /// PASV, EPSV, SPAS. If `family` is `None`, it is that of the control connection.
    pub(super) fn passive(&mut self, kind: PassiveKind, family: Option<Family>) -> Step {
        if let Some(step) = self.only_epsv(matches!(kind, PassiveKind::Epsv | PassiveKind::OnePort)) {
            return step;
        }
        let striped = matches!(kind, PassiveKind::Spas { .. });
        let one_port = kind == PassiveKind::OnePort;
        let listen = Listen { family, striped, one_port, channel: self.channel_options() };
        // The old channel is closed, even if the command fails.
        let before = mem::replace(&mut self.state.channel, Channel::None);
        if !self.state.options.delayed || one_port {
            return Step::Perform(Operation::Listen(listen), Pending::Listen(kind));
        }
        self.state.channel = Channel::Delayed(listen, kind);
        let reply = Reply::new(200, "Passive delayed.");
        match before {
            Channel::Made => Step::Perform(Operation::CloseChannel, Pending::CloseChannel(reply)),
            _ => Step::Reply(reply),
        }
    }

    pub(super) fn extended_passive(&mut self, argument: Option<EpsvArgument>) -> Step {
        match argument {
            Some(EpsvArgument::All) => {
                self.state.options.epsv_only = true;
                Step::Reply(Reply::new(229, "EPSV ALL Successful."))
            }
            Some(EpsvArgument::Family(family)) => self.passive(PassiveKind::Epsv, Some(family)),
            None => self.passive(PassiveKind::Epsv, None),
        }
    }

    /// PORT, EPRT, SPOR; with `token`, SITE ONEPORT.
    pub(super) fn active(&mut self, addresses: Vec<SocketAddr>, token: Option<Token>) -> Step {
        if let Some(step) = self.only_epsv(false) {
            return step;
        }
        self.state.channel = Channel::None;
        let connect = Connect { addresses, token, channel: self.channel_options() };
        Step::Perform(Operation::Connect(Box::new(connect)), Pending::Connect)
    }

    /// The options for a data channel that is created now.
    fn channel_options(&mut self) -> ChannelOptions {
        let options = self.state.channel_options();
        let encrypting = &self.config.encrypting_drivers;
        let encrypts =
            options.stack.as_ref().is_some_and(|stack| encrypting.iter().any(|name| stack.has(name)));
        self.state.channel_encrypts = encrypts && options.key.is_some();
        options
    }

    /// Refuses other commands that create data channels after EPSV ALL (RFC 2428 section 4).
    fn only_epsv(&self, is_epsv: bool) -> Option<Step> {
        let refused = self.state.options.epsv_only && !is_epsv;
        refused.then(|| Step::Reply(Reply::new(503, "Only EPSV is allowed after EPSV ALL.")))
    }

    /// Takes the data channel for a transfer or listing. For a delayed channel, returns the request
    /// that creates it.
    fn channel(&mut self) -> Result<Option<(Listen, PassiveKind)>, CommandError> {
        match mem::replace(&mut self.state.channel, Channel::Made) {
            Channel::Made => Ok(None),
            Channel::Delayed(listen, kind) => Ok(Some((listen, kind))),
            none @ Channel::None => {
                self.state.channel = none;
                Err(CommandError::NoDataChannel)
            }
            closed @ Channel::Closed(by) => {
                self.state.channel = closed;
                Err(CommandError::ChannelClosed(by))
            }
        }
    }

    pub(super) fn transfer(&mut self, kind: TransferKind, given: &BString) -> Result<Step, CommandError> {
        let store = kind.direction == Direction::Store;
        let upload = if kind.upload { Some(self.begun_upload(given)?) } else { None };
        let path = match &upload {
            Some((_, path)) => path.clone(),
            None if store => self.resolve_new(given)?,
            None => self.resolve(given)?,
        };
        let (_, scitag) = self.split_flow(given)?;
        if let Some(refusal) = self.refuse_clear() {
            return Ok(refusal);
        }
        let delayed = self.channel()?;
        let restart = self.state.restart.take();
        let attributes = if store { mem::take(&mut self.state.upload) } else { UploadAttributes::default() };
        // An upload has attributes of its own.
        let attributes = if upload.is_some() { UploadAttributes::default() } else { attributes };
        let options = &self.state.options;
        // GCT sends markers for uploads in MODE E, and for downloads if OPTS RETR requested them.
        let (perf_interval, restart_interval) = match (store, self.state.mode) {
            (true, Mode::ExtendedBlock) => (options.perf_interval, options.restart_interval),
            (true, Mode::Stream) => (0, 0),
            (false, _) => (options.send_markers, 0),
        };
        let storage_info = options.path_info && self.state.mode == Mode::ExtendedBlock && perf_interval > 0;
        let path_info = storage_info && !store;
        let nodes = if self.state.mode == Mode::ExtendedBlock { options.nodes } else { 0 };
        let (listen, delayed) = delayed.unzip();
        let pending = DataPending {
            path: path.clone(),
            mode: self.state.mode,
            delayed,
            perf: perf_interval > 0,
            restart: restart_interval > 0,
            receives: store,
            path_info,
            storage_info,
            nodes: nodes > 0,
            checksum: options.checksum,
            begun: false,
            queued: false,
        };
        // `REST 0` cancels an earlier REST.
        let restarted = restart.as_ref().is_some_and(|there| !there.is_empty());
        let transfer = Transfer {
            direction: kind.direction,
            path,
            scitag,
            window: kind.window,
            adjust: kind.adjust,
            append: kind.append,
            restarted,
            replaces: options.replaces && store && !restarted && !kind.append && kind.adjust.is_none(),
            present: restart.unwrap_or_default(),
            upload: upload.map(|(id, _)| id),
            allocated: attributes.allocated,
            expected: attributes.expected,
            modified: attributes.modified,
            mode: self.state.mode,
            representation: self.state.representation,
            inline_checksum: options.checksum,
            perf_interval,
            restart_interval,
            path_info,
            resend: options.resend,
            storage_info,
            nodes,
            congestion: options.congestion,
            delayed: listen,
        };
        Ok(Step::Perform(Operation::Transfer(Box::new(transfer)), Pending::Data(Box::new(pending))))
    }

    pub(super) fn list(&mut self, form: ListForm, given: Option<BString>) -> Result<Step, CommandError> {
        let given = match form {
            ListForm::Long | ListForm::Names => given.and_then(|g| without_flags(&g)),
            ListForm::Facts | ListForm::Recursive => given,
        };
        let (path, _) = self.resolve_or_here(given)?;
        if let Some(refusal) = self.refuse_clear() {
            return Ok(refusal);
        }
        let delayed = self.channel()?;
        let (listen, delayed) = delayed.unzip();
        let pending = DataPending::plain(path.clone(), self.state.mode, delayed);
        let list = List {
            form,
            path,
            facts: self.state.facts,
            continue_on_error: self.state.continue_on_error,
            traverse_links: self.state.traverse_links,
            mode: self.state.mode,
            representation: self.state.representation,
            delayed: listen,
        };
        Ok(Step::Perform(Operation::List(Box::new(list)), Pending::Data(Box::new(pending))))
    }

    /// SITE PROFILE FETCH.
    pub(super) fn fetch_profile(&mut self, raw: Option<BString>) -> Result<Step, CommandError> {
        if let Some(refusal) = self.refuse_clear() {
            return Ok(refusal);
        }
        let delayed = self.channel()?;
        let (listen, delayed) = delayed.unzip();
        let pending = DataPending::plain(VirtualPath::root(), self.state.mode, delayed);
        let fetch = FetchProfile { raw, mode: self.state.mode, delayed: listen };
        Ok(Step::Perform(Operation::FetchProfile(Box::new(fetch)), Pending::Data(Box::new(pending))))
    }

    /// MODE. Cached connections of the other mode cannot be used any more.
    pub(super) fn set_mode(&mut self, mode: Mode) -> Step {
        let letter = match mode {
            Mode::Stream => 'S',
            Mode::ExtendedBlock => 'E',
        };
        let reply = Reply::new(200, format!("Mode set to {letter}."));
        if mem::replace(&mut self.state.mode, mode) == mode {
            return Step::Reply(reply);
        }
        self.leave_channel(reply, "MODE")
    }

    /// DCAU on a protected control connection.
    pub(super) fn set_data_authentication(&mut self, wanted: DataAuthentication) -> Step {
        let letter = match wanted {
            DataAuthentication::None => 'N',
            DataAuthentication::SelfAuthentication => 'A',
            DataAuthentication::Subject(_) => 'S',
        };
        let reply = Reply::new(200, format!("DCAU {letter}."));
        if self.state.authentication == wanted {
            return Step::Reply(reply);
        }
        self.state.authentication = wanted;
        self.state.data_key = None;
        self.leave_channel(reply, "DCAU")
    }

    /// PROT on a protected control connection.
    pub(super) fn set_protection(&mut self, wanted: Protection) -> Step {
        let reply = Reply::new(200, format!("Protection level set to {}.", wanted.letter()));
        if mem::replace(&mut self.state.protection, wanted) == wanted {
            return Step::Reply(reply);
        }
        self.state.data_key = None;
        self.leave_channel(reply, "PROT")
    }

    /// PBSZ if the context wraps data (RFC 2228 section 3): agrees on the requested size, or on the
    /// largest supported size.
    pub(super) fn set_protection_buffer(&mut self, wanted: u64) -> Step {
        let size = u32::try_from(wanted).unwrap_or(u32::MAX).min(MAX_PROTECTION_BUFFER);
        if size < MIN_PROTECTION_BUFFER {
            let text = format!("PBSZ {wanted}: {MIN_PROTECTION_BUFFER} bytes are the least.");
            return Step::Reply(Reply::new(501, text));
        }
        let reply = Reply::new(200, format!("PBSZ={size}"));
        self.state.sized = true;
        if mem::replace(&mut self.state.protection_buffer, size) == size {
            return Step::Reply(reply);
        }
        self.leave_channel(reply, "PBSZ")
    }

    /// PROT on a control connection with TLS (RFC 4217 section 9).
    pub(super) fn set_tls_protection(&mut self, wanted: Protection) -> Result<Step, CommandError> {
        match wanted {
            Protection::Clear | Protection::Private if !self.state.sized => {
                Ok(Step::Reply(Reply::new(503, "Send PBSZ 0 before PROT.")))
            }
            // A driver may encrypt in place of TLS: the data channel shows whether it does.
            Protection::Clear
                if self.config.required == RequiredProtection::Data
                    && self.config.encrypting_drivers.is_empty() =>
            {
                Ok(Step::Reply(Reply::new(534, "Data has to be protected here: send PROT P.")))
            }
            Protection::Clear | Protection::Private => Ok(self.set_protection(wanted)),
            other => Err(CommandError::ProtectionLevel(other.letter().into())),
        }
    }

    /// Refuses a transfer or listing whose data would be sent in clear although protection is
    /// required.
    fn refuse_clear(&self) -> Option<Step> {
        let state = &self.state;
        let is_protected = state.protects_data() || state.channel_encrypts;
        if self.config.required != RequiredProtection::Data || is_protected {
            return None;
        }
        let mut text = "Data has to be protected here: send PROT P first.".to_owned();
        if !self.config.encrypting_drivers.is_empty() {
            let drivers = self.config.encrypting_drivers.join(" or ");
            text += &format!(" SITE SETNETSTACK {drivers} with SITE DATAKEY protects it too.");
        }
        Some(Step::Reply(Reply::new(521, text)))
    }

    /// SITE DATAKEY: sets or removes the key for the next data channel.
    pub(super) fn set_data_key(&mut self, key: Option<DataKey>) -> Step {
        let reply = |code, text: String| Step::Reply(Reply::new(code, text));
        let state = &mut self.state;
        if !state.is_private() {
            // An eavesdropper could have read the key (RFC 2228 section 4 for the code).
            return reply(533, "SITE DATAKEY needs a protected control connection.".to_owned());
        }
        let Some(key) = key else {
            state.data_key = None;
            return reply(200, "The next data channel has no key.".to_owned());
        };
        let number = key.number();
        if let Some(last) = state.last_data_key.filter(|last| number <= *last) {
            return reply(
                501,
                format!("Data key {number:016x} is not new: its number has to be above {last:016x}."),
            );
        }
        // The number counts as used, even if the key is refused below.
        state.last_data_key = Some(number);
        state.data_key = None;
        if state.authentication != DataAuthentication::None {
            return reply(
                503,
                "Data connections are authenticated: send DCAU N before a data key.".to_owned(),
            );
        }
        // If the context of the control connection wraps data, a key is useful all the same: it
        // refuses another host that is first to connect to a port.
        if state.protection != Protection::Clear && !state.wraps {
            return reply(503, "Data connections are protected: send PROT C before a data key.".to_owned());
        }
        state.data_key = Some(key);
        reply(200, format!("Data key {number:016x} is for the next data channel."))
    }

    /// DCSC. Cached connections of another identity cannot be used any more.
    pub(super) fn set_data_credential(&mut self, credential: Option<Password>) -> Step {
        self.state.channel.close("DCSC");
        Step::Perform(Operation::DataCredential(credential), Pending::DataCredential)
    }

    /// Closes the data channel, because it was created with other settings than this command has
    /// set.
    fn leave_channel(&mut self, reply: Reply, command: &'static str) -> Step {
        match self.state.channel.close(command) {
            Channel::Made => Step::Perform(Operation::CloseChannel, Pending::CloseChannel(reply)),
            Channel::None | Channel::Closed(_) | Channel::Delayed(..) => Step::Reply(reply),
        }
    }
}

/// The path of LIST and NLST. Options of `ls` before it are ignored, with the spaces after them.
fn without_flags(given: &[u8]) -> Option<BString> {
    let mut rest = given;
    while rest.starts_with(b"-") {
        rest = rest.split_once_str(" ").map_or(&b""[..], |(_, rest)| rest.trim_start_with(|c| c == ' '));
    }
    (!rest.is_empty()).then(|| rest.into())
}
