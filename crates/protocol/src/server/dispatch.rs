//! Checks a command line, and translates it into the step that the session takes next.

use std::net::SocketAddr;

use bstr::{BString, ByteSlice};

use super::action::*;
use super::config::{RequiredProtection, TOKEN_USER};
use super::data::TransferKind;
use super::failure::aborted;
use super::pending::{ContentsPending, PassiveKind, Pending};
use super::session::{Session, Step};
use super::state::UploadAttributes;
use crate::command::parse::split_verb;
use crate::command::{Command, CommandError, DataAuthentication, MarkerKind, Protection};
use crate::congestion::CongestionName;
use crate::feature::{self, Offer};
use crate::help;
use crate::listing::has_line_end;
use crate::opts::{Options, RetrOptions};
use crate::path::VirtualPath;
use crate::reply::Reply;
use crate::scitag::{InvalidSciTag, SciTag, split_flow};

/// Commands that are accepted before the log-in.
const BEFORE_LOGIN: [&str; 9] = ["ABOR", "ADAT", "AUTH", "FEAT", "HELP", "NOOP", "PASS", "QUIT", "USER"];

/// Further commands that are accepted before the log-in on a control connection with TLS (RFC 4217
/// section 12.2).
const WITHIN_TLS: [&str; 3] = ["CCC", "PBSZ", "PROT"];

/// Number of log-ins, refused before a password was received, that end a session.
const MAX_REFUSALS: u32 = 10;

/// Commands that do not start if an ABOR follows them in the queue.
const LONG: [&str; 14] = [
    "APPE",
    "CKSM",
    "ERET",
    "ESTO",
    "LIST",
    "MLSC",
    "MLSD",
    "MLSR",
    "NLST",
    "RETR",
    "SITE RANGES",
    "SITE RDEL",
    "SITE UPLOAD",
    "STOR",
];

const OPTIONS_SET: &str = "OPTS Command Successful.";

fn reply(code: u16, text: &str) -> Step {
    Step::Reply(Reply::new(code, text))
}

fn simple(operation: Operation) -> Step {
    Step::Perform(operation, Pending::Simple)
}

impl Session {
    /// Determines the step for a line. `abandoned` is true if an ABOR follows it in the queue.
    pub(super) fn command(&mut self, line: &[u8], abandoned: bool) -> Step {
        let step = self.gate(line, abandoned).and_then(|step| match step {
            Some(step) => Ok(step),
            None => self.execute(Command::parse(line)?),
        });
        // If there is no data channel, the transfer was not attempted, so the settings for the next
        // transfer are kept.
        let stays = matches!(step, Err(CommandError::NoDataChannel | CommandError::ChannelClosed(_)));
        let step = step.unwrap_or_else(|error| Step::Reply(error.reply()));
        if matches!(&step, Step::Reply(reply) if reply.code() >= 400) && !stays {
            self.forget(line);
        }
        step
    }

    /// Resets the settings for the next transfer or rename when the command to which they apply is
    /// refused, so that they do not apply to a later command.
    fn forget(&mut self, line: &[u8]) {
        let state = &mut self.state;
        match &*name_of(line) {
            b"STOR" | b"APPE" | b"ESTO" => {
                state.restart = None;
                state.upload = UploadAttributes::default();
            }
            b"RETR" | b"ERET" => state.restart = None,
            b"RNFR" | b"RNTO" => state.rename_from = None,
            b"SITE SYMLINKFROM" | b"SITE SYMLINKTO" => state.symlink_from = None,
            b"USER" => state.user = None,
            _ => {}
        }
    }

    /// Checks everything that does not depend on the command's arguments: whether it is known,
    /// enabled and allowed in this state. Returns `None` if the command may be executed.
    fn gate(&mut self, line: &[u8], abandoned: bool) -> Result<Option<Step>, CommandError> {
        let (verb, rest) = split_verb(line)?;
        if !self.config.knows(&verb) {
            return Err(CommandError::UnknownCommand);
        }
        let mut name = verb;
        if name == "SITE" {
            let word = rest.trim_start_with(|c| c == ' ').split_str(" ").next().unwrap_or_default();
            let word = word.to_ascii_uppercase();
            if word.is_empty() {
                return Err(CommandError::Syntax);
            }
            let word = word.to_str().map_err(|_| CommandError::UnknownSite)?;
            if !self.config.knows_site(word) {
                return Err(CommandError::UnknownSite);
            }
            name = format!("SITE {word}");
        }
        let early = BEFORE_LOGIN.contains(&name.as_str())
            || name == "SITE HELP"
            || self.state.tls && WITHIN_TLS.contains(&name.as_str());
        if !self.state.is_logged_in() && !early {
            return Ok(Some(reply(530, "Please login with USER and PASS.")));
        }
        let verb = name.split(' ').next().unwrap_or_default();
        if self.state.faults.contains(name.as_str()) || self.state.faults.contains(verb) {
            return Ok(Some(reply(501, "Fault requested.")));
        }
        match name.as_str() {
            "USER" | "PASS" if self.state.is_logged_in() => {
                Ok(Some(reply(503, "You are already logged in.")))
            }
            "USER" | "PASS" if self.config.security_required && (!self.state.secured || self.state.tls) => {
                Ok(Some(self.refuse_login(&name, rest, "Must perform GSSAPI authentication")))
            }
            "USER" | "PASS"
                if self.config.required != RequiredProtection::None
                    && !self.state.secured
                    && !self.state.within_ssh =>
            {
                let how = if self.config.tls { "AUTH TLS" } else { "AUTH GSSAPI" };
                let text = format!("Log-in in clear is refused here: send {how} first.");
                Ok(Some(self.refuse_login(&name, rest, &text)))
            }
            // Refused at USER, before the client sends the token itself.
            "USER" if rest == TOKEN_USER => Ok(self.refuse_token()),
            "AUTH" if self.state.is_logged_in() && self.config.tls => {
                Ok(Some(reply(503, "AUTH has to come before the log-in.")))
            }
            "AUTH" | "ADAT" if self.state.is_logged_in() => Err(CommandError::UnknownCommand),
            "AUTH" | "ADAT" if self.state.secured => Ok(Some(reply(503, "You are already authenticated."))),
            "AUTH" if self.mechanism(rest).is_none() => Ok(Some(reply(504, "Unknown authentication type."))),
            "CCC" => Ok(Some(reply(533, "The control connection stays as protected as it is."))),
            long if abandoned && LONG.contains(&long) => {
                self.state.restart = None;
                Ok(Some(Step::Reply(aborted())))
            }
            _ => Ok(None),
        }
    }

    /// Refuses the announcement of a bearer token. Returns `None` if the token may be sent.
    fn refuse_token(&mut self) -> Option<Step> {
        // A password that the client sends after all must not be used for the name in an earlier
        // USER.
        self.state.user = None;
        if !self.config.tokens {
            return Some(self.refuse_login("USER", TOKEN_USER, "This server takes no bearer tokens."));
        }
        if self.state.secured {
            return None;
        }
        let how = match (self.config.tls, self.config.gssapi) {
            (true, _) => ": send AUTH TLS first",
            (false, true) => ": send AUTH GSSAPI first",
            (false, false) => ", which this server does not offer",
        };
        let text = format!("A bearer token is taken on a protected control connection only{how}.");
        Some(self.refuse_login("USER", TOKEN_USER, &text))
    }

    /// Replies 530 to USER or PASS, independently of the user. After [`MAX_REFUSALS`] refusals the
    /// session ends, because each refusal is logged.
    fn refuse_login(&mut self, verb: &str, argument: &[u8], text: &str) -> Step {
        if verb == "USER" {
            self.state.refused = Some(RefusedLogin { user: argument.into(), reason: text.to_owned() });
            self.state.refusals += 1;
        }
        if self.state.refusals >= MAX_REFUSALS {
            return Step::Goodbye(Reply::new(
                421,
                format!("{text} That was said often enough; closing control connection."),
            ));
        }
        reply(530, text)
    }

    /// The mechanism that the argument of AUTH selects, if it is offered. `SSL` and `TLS-P` would
    /// imply protected data without PROT (RFC 4217 section 17), and are not supported.
    fn mechanism(&self, argument: &[u8]) -> Option<Mechanism> {
        match argument.trim().to_ascii_uppercase().as_slice() {
            b"GSSAPI" if self.config.gssapi => Some(Mechanism::Gssapi),
            b"TLS" | b"TLS-C" if self.config.tls => Some(Mechanism::Tls),
            _ => None,
        }
    }

    fn execute(&mut self, command: Command) -> Result<Step, CommandError> {
        Ok(match command {
            Command::Abor => reply(226, "Abort successful"),
            Command::Abuf(ceiling) => {
                Step::Perform(Operation::AdviseBuffers { ceiling }, Pending::AdviseBuffers(ceiling))
            }
            Command::Allo(bytes) => {
                self.state.upload.allocated = Some(bytes);
                reply(200, "ALLO command successful.")
            }
            Command::Appe(path) => self.transfer(TransferKind::append(), &path)?,
            Command::Cdup => {
                let parent = self.state.directory.parent().unwrap_or_else(VirtualPath::root);
                change_directory(parent)
            }
            Command::Cksm { algorithm, offset, length, path } => {
                let path = self.resolve(&path)?;
                let pending = Pending::Checksum(path.clone());
                let marker_interval = self.state.checksum_markers;
                Step::Perform(
                    Operation::Checksum { algorithm, offset, length, path, marker_interval },
                    pending,
                )
            }
            Command::Cwd(path) => change_directory(self.resolve(&path)?),
            Command::Adat(token) => Step::Perform(Operation::SecurityToken(token), Pending::SecurityToken),
            Command::Auth(argument) => match self.mechanism(&argument) {
                Some(mechanism) => {
                    Step::Perform(Operation::SecurityBegin(mechanism), Pending::SecurityBegin(mechanism))
                }
                None => reply(504, "Unknown authentication type."),
            },
            Command::Dcau(mode) if self.state.wraps && mode != DataAuthentication::None => reply(
                504,
                "With Kerberos there is DCAU N alone: PROT S or P protects data connections, SITE DATAKEY binds clear ones.",
            ),
            Command::Dcau(mode) if self.state.secured && !self.state.tls => {
                self.set_data_authentication(mode)
            }
            Command::Dcau(DataAuthentication::None) => reply(200, "DCAU N."),
            // Without security there is no identity to authenticate.
            Command::Dcau(_) => reply(504, "Bad DCAU mode."),
            Command::Dcsc { kind, blob } if self.state.secured && !self.state.tls => {
                match (kind.to_ascii_uppercase(), blob) {
                    (b'P', Some(blob)) => self.set_data_credential(Some(blob)),
                    (b'D', None) => self.set_data_credential(None),
                    _ => return Err(CommandError::InvalidArguments),
                }
            }
            Command::Dele(path) => simple(Operation::Delete(self.resolve(&path)?)),
            Command::Eprt(address) => self.active(vec![address], None),
            Command::Epsv(argument) => self.extended_passive(argument),
            Command::Eret { what, path } => self.transfer(TransferKind::partial(what)?, &path)?,
            Command::Esto { place, path } => self.transfer(TransferKind::adjusted(place)?, &path)?,
            Command::Feat => {
                let offer = Offer {
                    logged_in: self.state.is_logged_in(),
                    congestion: !self.config.congestion.is_empty(),
                    gssapi: self.config.gssapi,
                    tls: self.config.tls,
                    data_keys: self.state.is_private(),
                    hop_logins: self.config.hop_logins && self.state.is_private(),
                    // A session through ssh has no control port.
                    one_port: self.config.one_port && !self.state.within_ssh,
                    quic_port: self.config.quic_port && !self.state.within_ssh,
                    nodes: self.config.nodes,
                    tokens: self.config.tokens,
                    profiling: self.config.profiling,
                    replaces: self.config.replaces,
                    drivers: &self.config.drivers,
                };
                Step::Reply(feature::reply(offer, |name| self.config.allows(name)))
            }
            Command::Help(subject) => Step::Reply(self.help(subject.as_ref())),
            Command::Lang(_) => reply(200, "lang set to EN."),
            Command::List(path) => self.list(ListForm::Long, path)?,
            Command::Mdtm(path) => {
                Step::Perform(Operation::Stat { path: self.resolve(&path)?, follow: true }, Pending::Modified)
            }
            Command::Mfmt { modified, path } => {
                let operation = Operation::SetModified { path: self.resolve(&path)?, modified };
                Step::Perform(operation, Pending::SetModified { modified, given: path })
            }
            Command::Mkd(path) => {
                let path = self.resolve_new(&path)?;
                Step::Perform(Operation::MakeDirectory(path.clone()), Pending::MakeDirectory(path))
            }
            Command::Mlsc(path) => {
                let (path, given) = self.resolve_or_here(path)?;
                let contents = ContentsPending { given, lines: Vec::new() };
                Step::Perform(Operation::ListHere { path }, Pending::Contents(Box::new(contents)))
            }
            Command::Mlsd(path) => self.list(ListForm::Facts, path)?,
            Command::Mlsr(path) => self.list(ListForm::Recursive, path)?,
            Command::Mlst(path) => {
                let (path, given) = self.resolve_or_here(path)?;
                Step::Perform(Operation::Stat { path, follow: true }, Pending::Facts(given))
            }
            Command::Mode(mode) => self.set_mode(mode),
            Command::Nlst(path) => self.list(ListForm::Names, path)?,
            Command::Noop => reply(200, "NOOP command successful."),
            Command::Opts(options) => self.set_options(options),
            Command::Pass(password) => match self.state.user.clone() {
                Some(user) => Step::Perform(Operation::Login { user, password }, Pending::Login),
                None => reply(503, "Login with USER first."),
            },
            Command::Pasv => self.passive(PassiveKind::Pasv, Some(Family::V4)),
            Command::Pbsz(_) if self.state.tls => {
                // TLS has its own block size (RFC 4217 section 9).
                self.state.sized = true;
                reply(200, "PBSZ=0")
            }
            Command::Pbsz(size) if self.state.wraps => self.set_protection_buffer(size),
            Command::Pbsz(size) => reply(200, &format!("PBSZ={size}")),
            Command::Port(address) => self.active(vec![SocketAddr::V4(address)], None),
            Command::Prot(level) if self.state.tls => self.set_tls_protection(level)?,
            Command::Prot(Protection::Safe | Protection::Private)
                if self.state.wraps && !self.state.sized =>
            {
                reply(503, "Send PBSZ before PROT.")
            }
            Command::Prot(level) if self.state.secured => self.set_protection(level),
            Command::Prot(Protection::Clear) => reply(200, "Protection level set to C."),
            Command::Prot(level) => return Err(CommandError::ProtectionLevel(level.letter().into())),
            Command::Pwd => {
                let text = [b"\"", self.state.directory.as_bytes(), b"\" is current directory."].concat();
                Step::Reply(Reply::new(257, text))
            }
            Command::Quit => Step::Goodbye(Reply::new(221, "Goodbye.")),
            Command::Rest(restart) => {
                self.state.restart = Some(restart.ranges());
                reply(350, "Restart Marker OK. Send STORE or RETR to initiate transfer.")
            }
            Command::Retr(path) => self.transfer(TransferKind::retrieve(), &path)?,
            Command::Rmd(path) => simple(Operation::RemoveDirectory(self.resolve(&path)?)),
            Command::Rnfr(path) => {
                let path = self.resolve(&path)?;
                self.state.rename_from = None;
                let operation = Operation::Stat { path: path.clone(), follow: false };
                Step::Perform(operation, Pending::RenameFrom(path))
            }
            Command::Rnto(path) => {
                let from = self.state.rename_from.take().ok_or(CommandError::InvalidArguments)?;
                let to = self.resolve_new(&path)?;
                simple(Operation::Rename { from, to })
            }
            Command::Sbuf(bytes) => {
                self.set_buffers(Some(bytes), Some(bytes));
                reply(200, "SBUF Command Successful.")
            }
            Command::Scks { algorithm, value } => {
                self.expect_checksum(algorithm, &value);
                reply(200, "OK.")
            }
            Command::Site(command) => self.site(command)?,
            Command::Size(path) => Step::Perform(Operation::Size(self.resolve(&path)?), Pending::Size),
            Command::Spas(family) => self.passive(PassiveKind::Spas { extended: family.is_some() }, family),
            Command::Spor(addresses) => self.active(addresses, None),
            Command::Stat(None) => reply(212, "GridFTP server status."),
            Command::Stat(Some(given)) => {
                let path = self.resolve(&given)?;
                let operation = Operation::Stat { path: path.clone(), follow: true };
                Step::Perform(operation, Pending::Status { path, given })
            }
            Command::Stor(path) => self.transfer(TransferKind::store(), &path)?,
            Command::Stru => reply(200, "STRU F ok."),
            Command::Syst => reply(215, "UNIX Type: L8"),
            Command::Trev { markers, seconds } => {
                match markers {
                    MarkerKind::Restart => self.state.options.restart_interval = seconds,
                    MarkerKind::Performance => self.state.options.perf_interval = seconds,
                }
                reply(200, "Command Successful.")
            }
            Command::Type(representation) => {
                self.state.representation = representation;
                reply(
                    200,
                    match representation {
                        RepresentationType::Ascii => "Type set to A.",
                        RepresentationType::Image => "Type set to I.",
                    },
                )
            }
            Command::User(user) => {
                let text = [b"Password required for ", &user[..], b"."].concat();
                self.state.user = Some(user);
                Step::Reply(Reply::new(331, text))
            }
            // HELP does not list these commands, and it decides which commands are known.
            Command::Dcsc { .. } | Command::Protected(..) => {
                return Err(CommandError::UnknownCommand);
            }
        })
    }

    /// Resolves a path of the client. A leading `~` is the directory of the log-in, as in GCT; a
    /// file of that name is `./~`.
    pub(super) fn resolve(&self, given: &[u8]) -> Result<VirtualPath, CommandError> {
        let state = &self.state;
        let (given, _) = self.split_flow(given)?;
        let resolved = match given.strip_prefix(b"~") {
            Some(rest) if rest.iter().all(|byte| *byte == b'/') => Ok(state.home.clone()),
            Some([b'/', rest @ ..]) => state.home.join(rest.trim_start_with(|c| c == '/')),
            _ => state.directory.join(given),
        };
        resolved.map_err(|_| CommandError::InvalidArguments)
    }

    /// Takes the SciTag from the end of a path (`?scitag.flow=147`), if the settings let it be one.
    pub(super) fn split_flow<'g>(&self, given: &'g [u8]) -> Result<(&'g [u8], Option<SciTag>), CommandError> {
        if !self.config.flow_in_paths {
            return Ok((given, None));
        }
        split_flow(given).map_err(|InvalidSciTag| CommandError::InvalidArguments)
    }

    /// Resolves the path at which the client creates a new name. Names with CR or LF are refused:
    /// files that already have such a name can only be read, renamed and removed.
    pub(super) fn resolve_new(&self, given: &[u8]) -> Result<VirtualPath, CommandError> {
        let path = self.resolve(given)?;
        match path.file_name() {
            Some(name) if has_line_end(name) => Err(CommandError::NameWithLineEnd),
            _ => Ok(path),
        }
    }

    /// Resolves a path of the client, by default the working directory. Also returns the text of
    /// the path for replies.
    pub(super) fn resolve_or_here(
        &self,
        given: Option<BString>,
    ) -> Result<(VirtualPath, BString), CommandError> {
        match given {
            Some(given) => Ok((self.resolve(&given)?, given)),
            None => Ok((self.state.directory.clone(), self.state.directory.as_bytes().into())),
        }
    }

    pub(super) fn help(&self, subject: Option<&BString>) -> Reply {
        help::reply(subject.map(|s| s.as_bstr()), |name| self.config.allows(name))
    }

    fn set_options(&mut self, options: Options) -> Step {
        let state = &mut self.state;
        match options {
            Options::Retr(options) => return self.set_retrieve_options(options),
            Options::Passive { delayed } => state.options.delayed = delayed,
            Options::Facts(facts) => state.facts = facts,
            Options::Mlsr(recursion) => {
                state.continue_on_error = recursion.continue_on_error.unwrap_or(state.continue_on_error);
                state.traverse_links = recursion.traverse_links.unwrap_or(state.traverse_links);
            }
            Options::Checksum { markers } => state.checksum_markers = markers,
            Options::Store { replaces: true } if !self.config.replaces => {
                return reply(504, "Uploads are written in place here.");
            }
            Options::Store { replaces } => state.options.replaces = replaces,
            Options::Utf8 => {}
        }
        reply(200, OPTIONS_SET)
    }

    fn set_retrieve_options(&mut self, wanted: RetrOptions) -> Step {
        let allowed = &self.config.congestion;
        if let Some(Some(name)) = wanted.congestion
            && !allowed.contains(&name)
        {
            let names: Vec<_> = allowed.iter().map(CongestionName::as_str).collect();
            let text = match names.as_slice() {
                [] => format!("Congestion control {name} cannot be set: this site leaves no choice."),
                names => format!("Congestion control {name} is not allowed here, only {}.", names.join(", ")),
            };
            return reply(501, &text);
        }
        let options = &mut self.state.options;
        options.layout = wanted.layout.or(options.layout);
        options.block_size = wanted.block_size.or(options.block_size);
        options.parallelism = wanted.parallelism.unwrap_or(options.parallelism);
        options.send_markers = wanted.markers.unwrap_or(options.send_markers);
        options.checksum = wanted.checksum.unwrap_or(options.checksum);
        options.congestion = wanted.congestion.unwrap_or(options.congestion);
        options.resend = wanted.resend.unwrap_or(options.resend);
        options.path_info = wanted.path_info.unwrap_or(options.path_info);
        options.nodes = wanted.nodes.unwrap_or(options.nodes);
        reply(200, OPTIONS_SET)
    }
}

/// Whether this is an upload, regardless of its arguments.
pub(super) fn is_upload(line: &[u8]) -> bool {
    matches!(&*name_of(line), b"STOR" | b"APPE" | b"ESTO")
}

/// The verb of a line in upper case, with the sub-command of SITE. The line need not be valid.
fn name_of(line: &[u8]) -> Vec<u8> {
    let mut words = line.split_str(" ").filter(|word| !word.is_empty());
    let mut name = words.next().unwrap_or_default().to_ascii_uppercase();
    if name == b"SITE" {
        name.push(b' ');
        name.extend(words.next().unwrap_or_default().to_ascii_uppercase());
    }
    name
}

fn change_directory(path: VirtualPath) -> Step {
    Step::Perform(Operation::ChangeDirectory(path.clone()), Pending::ChangeDirectory(path))
}
