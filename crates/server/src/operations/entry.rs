//! The table of operations.
//!
//! [`Entry::of`] lists them: the name in the audit trail, the permit, the use of the data channel,
//! and the function of each operation. A new command of a host needs one entry here, and the
//! compiler asks for it. Its syntax, help and replies are in `protocol` (see ARCHITECTURE.md).

use ropewalk_protocol::command::Password;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Direction, Failure, Operation, Outcome, ProfileRequest};
use ropewalk_protocol::slots::SlotsCommand;
use ropewalk_protocol::space::SpaceCommand;

use super::{
    Answer, buffers, channel, checksum, files, here, listing, profile, relay, scitag, security, slots, space,
    stack, transfer, uploads, usage,
};
use crate::host::audit::Decision;
use crate::session::job::Job;

type Run = Box<dyn FnOnce(&mut Job<'_>) -> Answer + Send>;

/// An operation that is about to be carried out.
pub(crate) struct Entry {
    /// The command, for the audit trail.
    command: &'static str,
    pub(super) path: Option<VirtualPath>,
    audit: Audit,
    pub(crate) permit: Permits,
    pub(crate) data: Data,
    /// A few replies to earlier commands may wait until it ends, because it is short or sends them
    /// itself before it waits.
    pub(crate) keeps_replies: bool,
    /// The operation once more, if it can fail only because another session is about to release
    /// what it needs ([`crate::session::context::Retry`]).
    pub(crate) again: Option<Operation>,
    run: Run,
}

/// The permit that an operation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permits {
    /// None: it takes no time.
    None,
    /// One of those for listings, which do not wait for transfers.
    Listing,
    /// One of those for transfers and everything else that can take long.
    Transfer,
}

/// How an operation uses the data channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    None,
    Download,
    Upload,
    /// Data that the server generates: a listing, a profile.
    Generated,
}

/// Which results of an operation are entered in the audit trail.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Audit {
    /// Refusals by the rules of the account.
    Rules,
    /// Also refusals by other settings.
    Settings,
    /// All: the operation changes what the session may do.
    All,
}

impl Entry {
    /// The entry of an operation.
    pub(crate) fn of(operation: Operation) -> Self {
        use Operation as O;
        use ProfileRequest as P;
        match operation {
            // Commands of RFC 959, RFC 3659 and GFD.20.
            O::Listen(listen) if listen.one_port => {
                Self::new("SITE ONEPORT", move |job| channel::listen_at_one_port(job, &listen))
                    .audited(Audit::Settings)
            }
            O::Listen(listen) => {
                Self::new("PASV", move |job| channel::listen(job, &listen).map(Outcome::Addresses))
                    .audited(Audit::Settings)
            }
            O::Connect(connect) => {
                Self::new("PORT", move |job| channel::connect(job, *connect)).audited(Audit::Settings)
            }
            O::CloseChannel => Self::new("", |job| {
                job.context.channel = None;
                Ok(Outcome::Done)
            }),
            O::SetNetStack(net) => Self::new("SITE SETNETSTACK", move |job| stack::set_net_stack(job, &net))
                .audited(Audit::Settings),
            O::SetDiskStack(disk) => {
                Self::new("SITE SETDISKSTACK", move |job| stack::set_disk_stack(job, disk.as_ref()))
                    .audited(Audit::Settings)
            }
            O::AdviseBuffers { ceiling } => {
                Self::new("", move |job| Ok(Outcome::Advice(buffers::report(job, ceiling))))
            }
            O::Transfer(wanted) => {
                let (command, data) = match wanted.direction {
                    Direction::Retrieve => ("RETR", Data::Download),
                    Direction::Store => ("STOR", Data::Upload),
                };
                let path = wanted.path.clone();
                Self::new(command, move |job| transfer::transfer(job, &wanted))
                    .at(path)
                    .with(Permits::Transfer, data)
            }
            O::List(list) => {
                let path = list.path.clone();
                Self::new("LIST", move |job| listing::list(job, &list))
                    .at(path)
                    .with(Permits::Listing, Data::Generated)
            }
            O::ListHere { path } => {
                Self::on("MLSC", path, here::list_here).with(Permits::Listing, Data::None)
            }
            O::ChangeDirectory(path) => Self::file("CWD", path, files::change_directory),
            O::Stat { path, follow } => {
                Self::file("MLST", path, move |job, path| files::stat(job, path, follow))
            }
            O::Size(path) => Self::file("SIZE", path, files::size),
            O::MakeDirectory(path) => Self::file("MKD", path, files::make_directory),
            O::RemoveDirectory(path) => {
                let again = O::RemoveDirectory(path.clone());
                Self::file("RMD", path, files::remove_directory).retried(again)
            }
            O::Delete(path) => Self::file("DELE", path, files::delete),
            O::Rename { from, to } => {
                let again = O::Rename { from: from.clone(), to: to.clone() };
                Self::file("RNTO", from, move |job, from| files::rename(job, from, &to)).retried(again)
            }
            O::SetModified { path, modified } => {
                Self::file("MFMT", path, move |job, path| files::set_modified(job, path, modified))
            }
            O::Checksum { algorithm, offset, length, path, marker_interval } => {
                Self::on("CKSM", path, move |job, path| {
                    let range = checksum::Wanted { algorithm, offset, length, marker_interval };
                    checksum::checksum(job, path, &range)
                })
                .with(Permits::Transfer, Data::None)
            }
            O::SecurityBegin(mechanism) => {
                Self::new("AUTH", move |job| security::begin(job, mechanism)).audited(Audit::Settings)
            }
            O::SecurityToken(token) => Self::new("", move |job| security::token(job, &token)),
            O::DataCredential(blob) => Self::new("DCSC", move |job| {
                security::data_credential(job, blob.as_ref().map(Password::expose))
            })
            .audited(Audit::All),
            // The runner authenticates on a thread of its own.
            O::Login { .. } => {
                Self::new("", |_| Err(Failure::Refused { code: 503, text: "Login out of turn.".into() }))
            }
            O::ClientInfo(info) => Self::new("", move |job| {
                tracing::info!(session = job.context.id, client = ?info, "client");
                Ok(Outcome::Done)
            }),

            // SITE commands.
            O::ChangeMode { path, mode } => {
                Self::file("SITE CHMOD", path, move |job, path| files::change_mode(job, path, mode))
            }
            O::ChangeGroup { path, group } => {
                Self::file("SITE CHGRP", path, move |job, path| files::change_group(job, path, &group))
            }
            O::Truncate { path, length } => {
                Self::file("SITE TRNC", path, move |job, path| files::truncate(job, path, length))
            }
            O::Symlink { target, link } => {
                Self::file("SITE SYMLINK", link, move |job, link| files::symlink(job, &target, link))
            }
            O::DeleteTree(path) => {
                Self::file("SITE RDEL", path, files::remove_tree).with(Permits::Transfer, Data::None)
            }
            O::Ranges(path) => {
                Self::file("SITE RANGES", path, files::ranges).with(Permits::Listing, Data::None)
            }
            O::Usage { token, path } => Self::file("SITE USAGE", path, move |job, path| {
                usage::usage(job, token.as_ref().map(|token| token.as_slice()), path)
            }),
            O::Slots(SlotsCommand::Reserve(request)) => {
                Self::new("SITE SLOTS RESERVE", move |job| slots::reserve(job, &request))
            }
            O::Slots(SlotsCommand::Extend { token, seconds }) => {
                Self::new("SITE SLOTS EXTEND", move |job| slots::extend(job, &token, seconds))
            }
            O::Slots(SlotsCommand::Release(token)) => {
                Self::new("SITE SLOTS RELEASE", move |job| slots::release(job, &token))
            }
            O::Slots(SlotsCommand::Use(token)) => {
                Self::new("SITE SLOTS USE", move |job| slots::use_token(job, token.as_deref()))
            }
            O::Slots(SlotsCommand::List) => Self::new("SITE SLOTS LIST", slots::list),
            O::Space(SpaceCommand::Reserve { bytes, seconds, path }) => {
                Self::file("SITE SPACE RESERVE", path, move |job, path| {
                    space::reserve(job, bytes, seconds, path)
                })
            }
            O::Space(SpaceCommand::Extend { token, seconds }) => {
                Self::new("SITE SPACE EXTEND", move |job| space::extend(job, &token, seconds))
            }
            O::Space(SpaceCommand::Release(token)) => {
                Self::new("SITE SPACE RELEASE", move |job| space::release(job, &token))
            }
            O::Space(SpaceCommand::Use(token)) => {
                Self::new("SITE SPACE USE", move |job| space::draw_on(job, token.as_deref()))
            }
            O::Space(SpaceCommand::List) => Self::new("SITE SPACE LIST", space::list),
            O::Upload(request) => {
                let path = request.path.clone();
                Self::on("SITE UPLOAD", path, move |job, _| uploads::perform(job, &request))
                    .with(Permits::Listing, Data::None)
                    .keeping_replies()
            }
            O::ChangeRoot(path) => Self::file("SITE CHROOT", path, files::change_root).audited(Audit::All),
            O::Restrict(list) => {
                Self::new("SITE RESTRICT", files::as_user(move |job| files::restrict(job, &list)))
                    .audited(Audit::All)
            }
            O::HopLogin(login) => {
                Self::new("SITE HOPLOGIN", move |job| relay::keep_log_in(job, login)).audited(Audit::Rules)
            }
            O::SciTag(command) => Self::new("SITE SCITAG", move |job| scitag::command(job, command)),
            O::TaskId(task) => Self::new("", move |job| relay::name_task(job, task)),
            O::Profile(request) => {
                let (command, path, audit, permit) = match &request {
                    P::Start { .. } => ("SITE PROFILE", None, Audit::All, Permits::Transfer),
                    P::ReadDisk(path) | P::WriteDisk(path) => {
                        ("SITE PROFILE BASELINE", Some(path.clone()), Audit::All, Permits::Transfer)
                    }
                    P::Iperf => ("SITE PROFILE BASELINE", None, Audit::All, Permits::Transfer),
                    P::Processor | P::Stop => ("", None, Audit::Rules, Permits::Transfer),
                    // The client asks for the time, which must not be the time before a wait.
                    P::Clock => ("", None, Audit::Rules, Permits::None),
                };
                let entry = Self::new(command, move |job| profile::answer(job, request));
                Self { path, ..entry }.audited(audit).with(permit, Data::None)
            }
            O::FetchProfile(fetch) => {
                Self::new("", move |job| profile::fetch(job, &fetch)).with(Permits::Transfer, Data::Generated)
            }
        }
    }

    fn new(command: &'static str, run: impl FnOnce(&mut Job<'_>) -> Answer + Send + 'static) -> Self {
        Self {
            command,
            path: None,
            audit: Audit::Rules,
            permit: Permits::None,
            data: Data::None,
            keeps_replies: false,
            again: None,
            run: Box::new(run),
        }
    }

    /// An operation on a path.
    fn on(
        command: &'static str,
        path: VirtualPath,
        run: impl FnOnce(&mut Job<'_>, &VirtualPath) -> Answer + Send + 'static,
    ) -> Self {
        let audited = path.clone();
        Self::new(command, move |job| run(job, &path)).at(audited)
    }

    /// An operation on a path, all of which acts for the session's user.
    fn file(
        command: &'static str,
        path: VirtualPath,
        run: impl FnOnce(&mut Job<'_>, &VirtualPath) -> Answer + Send + 'static,
    ) -> Self {
        let audited = path.clone();
        Self::new(command, files::as_user(move |job| run(job, &path))).at(audited)
    }

    fn at(self, path: VirtualPath) -> Self {
        Self { path: Some(path), ..self }
    }

    fn with(self, permit: Permits, data: Data) -> Self {
        Self { permit, data, ..self }
    }

    /// A few replies until now need not be sent before it begins.
    fn keeping_replies(self) -> Self {
        Self { keeps_replies: true, ..self }
    }

    fn audited(self, audit: Audit) -> Self {
        Self { audit, ..self }
    }

    fn retried(self, again: Operation) -> Self {
        Self { again: Some(again), ..self }
    }

    /// Carries the operation out, and enters the result in the audit trail.
    pub(crate) fn perform(self, job: &mut Job<'_>) -> Answer {
        let Self { command, path, audit, run, .. } = self;
        let answer = run(job);
        let failure = answer.as_ref().err();
        if let Some(decision) = audit.decision(failure) {
            let line = job.context.audit_line("command", decision);
            let mut line = line.command(command, path.as_ref().map(VirtualPath::as_bytes));
            if let Some(failure) = failure {
                line = line.because(failure);
            }
            job.host.audit.write(&line);
        }
        answer
    }
}

impl Audit {
    /// The decision that this result of an operation is; `None` if it is none.
    fn decision(self, failure: Option<&Failure>) -> Option<Decision> {
        match failure {
            None if self == Self::All => Some(Decision::Accepted),
            Some(Failure::NotAllowed) => Some(Decision::Refused),
            Some(_) if self == Self::All => Some(Decision::Refused),
            Some(Failure::Refused { .. }) if self == Self::Settings => Some(Decision::Refused),
            // A bearer token does not permit replacing a file.
            Some(Failure::Refused { code: 553, .. }) => Some(Decision::Refused),
            _ => None,
        }
    }
}
