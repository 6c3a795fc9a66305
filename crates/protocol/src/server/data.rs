//! Commands that make data channels, and those that use them.

use std::mem;
use std::net::SocketAddr;

use bstr::{BString, ByteSlice};

use super::action::*;
use super::pending::{DataPending, PassiveKind, Pending};
use super::session::{Session, Step};
use super::state::{Channel, UploadAttributes};
use crate::command::{
    CommandError, DataAuthentication, EpsvArgument, Password, Placement, Protection, Retrieval,
};
use crate::reply::Reply;

/// What distinguishes RETR, STOR, APPE, ERET and ESTO.
#[derive(Debug)]
pub(super) struct TransferKind {
    direction: Direction,
    window: Option<Window>,
    adjust: Option<u64>,
    append: bool,
}

impl TransferKind {
    pub(super) fn retrieve() -> Self {
        Self { direction: Direction::Retrieve, window: None, adjust: None, append: false }
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
            Placement::Module { .. } => Err(CommandError::Partial),
        }
    }
}

impl Session {
    /// PASV, EPSV, SPAS: `family` `None` is that of the control connection.
    pub(super) fn passive(&mut self, kind: PassiveKind, family: Option<Family>) -> Step {
        if let Some(step) = self.only_epsv(kind == PassiveKind::Epsv) {
            return step;
        }
        let striped = matches!(kind, PassiveKind::Spas { .. });
        let listen = Listen { family, striped, channel: self.state.channel_options() };
        // Whatever comes of it, the old channel is gone.
        let before = mem::replace(&mut self.state.channel, Channel::None);
        if !self.state.options.delayed {
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

    /// PORT, EPRT, SPOR.
    pub(super) fn active(&mut self, addresses: Vec<SocketAddr>) -> Step {
        if let Some(step) = self.only_epsv(false) {
            return step;
        }
        self.state.channel = Channel::None;
        let connect = Connect { addresses, channel: self.state.channel_options() };
        Step::Perform(Operation::Connect(connect), Pending::Connect)
    }

    /// After EPSV ALL, other ways to make a data channel are refused (RFC 2428 section 4).
    fn only_epsv(&self, is_epsv: bool) -> Option<Step> {
        let refused = self.state.options.epsv_only && !is_epsv;
        refused.then(|| Step::Reply(Reply::new(503, "Only EPSV is allowed after EPSV ALL.")))
    }

    /// Takes the data channel for a transfer or listing; `None` where there is none.
    fn channel(&mut self) -> Option<Option<(Listen, PassiveKind)>> {
        match mem::replace(&mut self.state.channel, Channel::Made) {
            Channel::Made => Some(None),
            Channel::Delayed(listen, kind) => Some(Some((listen, kind))),
            Channel::None => {
                self.state.channel = Channel::None;
                None
            }
        }
    }

    pub(super) fn transfer(&mut self, kind: TransferKind, given: BString) -> Result<Step, CommandError> {
        let path = self.resolve(&given)?;
        // Without a channel it is no transfer: what was set for the next one stays.
        let Some(delayed) = self.channel() else {
            return Ok(no_channel());
        };
        let restart = self.state.restart.take();
        let store = kind.direction == Direction::Store;
        let upload = if store { mem::take(&mut self.state.upload) } else { UploadAttributes::default() };
        let options = &self.state.options;
        // GCT sends markers for uploads in MODE E, and where they were asked for with OPTS RETR.
        let (perf_interval, restart_interval) = match (store, self.state.mode) {
            (true, Mode::ExtendedBlock) => (options.perf_interval, options.restart_interval),
            (true, Mode::Stream) => (0, 0),
            (false, _) => (options.send_markers, 0),
        };
        let path_info =
            options.path_info && !store && self.state.mode == Mode::ExtendedBlock && perf_interval > 0;
        let (listen, delayed) = delayed.unzip();
        let pending = DataPending {
            path: path.clone(),
            mode: self.state.mode,
            delayed,
            perf: perf_interval > 0,
            restart: restart_interval > 0,
            receives: store,
            path_info,
            checksum: options.checksum,
            begun: false,
        };
        let transfer = Transfer {
            direction: kind.direction,
            path,
            given,
            window: kind.window,
            adjust: kind.adjust,
            append: kind.append,
            restarted: restart.is_some(),
            present: restart.unwrap_or_default(),
            allocated: upload.allocated,
            expected: upload.expected,
            modified: upload.modified,
            mode: self.state.mode,
            representation: self.state.representation,
            inline_checksum: options.checksum,
            perf_interval,
            restart_interval,
            path_info,
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
        let (path, given) = self.resolve_or_here(given)?;
        let Some(delayed) = self.channel() else {
            return Ok(no_channel());
        };
        let (listen, delayed) = delayed.unzip();
        let pending = DataPending {
            path: path.clone(),
            mode: self.state.mode,
            delayed,
            perf: false,
            restart: false,
            receives: false,
            path_info: false,
            checksum: None,
            begun: false,
        };
        let list = List {
            form,
            path,
            given,
            facts: self.state.facts,
            continue_on_error: self.state.continue_on_error,
            traverse_links: self.state.traverse_links,
            mode: self.state.mode,
            representation: self.state.representation,
            delayed: listen,
        };
        Ok(Step::Perform(Operation::List(Box::new(list)), Pending::Data(Box::new(pending))))
    }

    /// MODE: cached connections of the other mode are of no use.
    pub(super) fn set_mode(&mut self, mode: Mode) -> Step {
        let letter = match mode {
            Mode::Stream => 'S',
            Mode::ExtendedBlock => 'E',
        };
        let reply = Reply::new(200, format!("Mode set to {letter}."));
        if mem::replace(&mut self.state.mode, mode) == mode {
            return Step::Reply(reply);
        }
        self.leave_channel(reply)
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
        self.leave_channel(reply)
    }

    /// PROT on a protected control connection.
    pub(super) fn set_protection(&mut self, wanted: Protection) -> Step {
        let reply = Reply::new(200, format!("Protection level set to {}.", wanted.letter()));
        if mem::replace(&mut self.state.protection, wanted) == wanted {
            return Step::Reply(reply);
        }
        self.leave_channel(reply)
    }

    /// DCSC: connections of another identity are of no use.
    pub(super) fn set_data_credential(&mut self, credential: Option<Password>) -> Step {
        self.state.channel = Channel::None;
        Step::Perform(Operation::DataCredential(credential), Pending::DataCredential)
    }

    /// The data channel was made with other settings.
    fn leave_channel(&mut self, reply: Reply) -> Step {
        match mem::replace(&mut self.state.channel, Channel::None) {
            Channel::Made => Step::Perform(Operation::CloseChannel, Pending::CloseChannel(reply)),
            Channel::None | Channel::Delayed(..) => Step::Reply(reply),
        }
    }
}

fn no_channel() -> Step {
    Step::Reply(Reply::new(500, "Command failed"))
}

/// The path of LIST and NLST: options of `ls` before it are ignored.
fn without_flags(given: &[u8]) -> Option<BString> {
    let mut rest = given;
    while rest.starts_with(b"-") {
        rest = rest.split_once_str(" ").map_or(&b""[..], |(_, rest)| rest);
    }
    (!rest.is_empty()).then(|| rest.into())
}
