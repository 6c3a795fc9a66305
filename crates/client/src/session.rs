//! A logged-in control session, with its data channel.

mod binding;
mod channel;
mod clear;
mod data_trust;
mod hops;
mod kerberos;
mod one_port;
pub(crate) mod ops;
mod over_tls;
mod reuse;
mod security;
mod slots;
mod space;
mod stack;
mod stripes;
mod token;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use ropewalk_engine::DataChannel;
use ropewalk_protocol::command::{Command, MarkerKind, Password};
use ropewalk_protocol::congestion::CongestionName;
use ropewalk_protocol::opts::{Options as Opts, RetrOptions};
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::scitag::SciTagCommand;
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::space::SpaceCommand;
use ropewalk_protocol::upload::UploadId;
use ropewalk_protocol::url::{Scheme, Url};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_transport::Options as DriverOptions;

use crate::control::Control;
use crate::dial::Choice;
use crate::model::features_reply::FeaturesReply;
use crate::model::quirks::{ServerKind, ServerQuirks};
use crate::path_defaults::NEAR;
use crate::place::{Endpoint, Serving};
use crate::setup::{Setup, advertised, reachable};
use crate::task::{Task, differs};
use crate::tls;
use crate::tune::{MOST_BUFFER, Participant, PathTuner, Spread, Wanted};
use crate::{DataMode, Entry, Event, PasswordPrompt, RemoteError};
use ropewalk_protocol::feature::Features;

pub(crate) use binding::Binding;
pub(crate) use channel::{Channel, active, port};
pub(crate) use data_trust::agree;
pub(crate) use reuse::SessionKey;

use data_trust::DataTrust;
use reuse::Reuse;
use security::{Secured, can_protect};

/// Stands for the user that the server's gridmap assigns to our certificate.
const MAPPED: &str = ":globus-mapping:";
/// Seconds between markers while the server computes a checksum.
const CHECKSUM_MARKERS: u32 = 30;
/// Seconds between markers of received ranges.
const MARKERS: u32 = 1;

/// Seconds between markers of the path from a sending server.
const PATH_MARKERS: u32 = 1;

pub(crate) struct Session {
    pub control: Control,
    pub endpoint: Arc<Endpoint>,
    /// The session moves data.
    pub serving: Option<Serving>,
    pub can: Features,
    pub quirks: ServerQuirks,
    pub setup: Arc<Setup>,
    pub greeting: String,
    pub features: Vec<String>,
    mode: Mode,
    parallelism: Option<u32>,
    /// The server knows the layout in the options.
    tells_layout: bool,
    inline: Option<Algorithm>,
    /// The congestion control that the server was asked for, and the one that it should use.
    congestion: Option<&'static str>,
    wanted_congestion: Option<&'static str>,
    /// Whether the server was asked for path markers while it sends, and whether it should be.
    tells_path: bool,
    pub wants_path: bool,
    /// The same for blocks that are sent again: whether their receiver takes them.
    /// Both ends have agreed that blocks may be sent again.
    pub(crate) resends: bool,
    pub wants_resend: bool,
    /// The server knows how many data nodes a channel may have.
    tells_nodes: bool,
    channel: Option<Channel>,
    /// The path that its data takes, if that is tuned.
    pub path_tuner: Option<Arc<PathTuner>>,
    /// The driver that the tuner has chosen for the data connections; `None`: it never chose one.
    driver: Option<&'static str>,
    /// The control connection is protected.
    pub(crate) security: Option<Secured>,
    /// The session has TLS.
    pub(crate) tls: Option<over_tls::OverTls>,
    pub(crate) kerberos: Option<kerberos::Secured>,
    pub(crate) data_trust: DataTrust,
    /// TREV was sent.
    markers_asked: bool,
    /// `None`: only this job uses it.
    reuse: Option<Reuse>,
    /// The name of the task that the server was given (SITE TASKID).
    task: Option<String>,
    /// Uploads that the session has begun (SITE UPLOAD) and not ended.
    pub(crate) uploads: Vec<UploadId>,
}

impl Session {
    /// Connects, logs in and determines the server's features.
    pub(crate) fn open(endpoint: &Arc<Endpoint>, setup: &Arc<Setup>) -> Result<Self, RemoteError> {
        let url = &endpoint.url;
        can_protect(&setup.options, endpoint.end, url.scheme)
            .map_err(|reason| RemoteError::Security { peer: endpoint.name.clone(), reason })?;
        let options = &setup.options;
        setup.events.event(Event::Connecting { peer: endpoint.name.clone() });
        let control = match url.scheme {
            Scheme::Sshftp => Control::through_ssh(endpoint, options, &setup.events, &setup.cancel)?,
            _ => Control::connect(
                &url.host,
                url.port,
                options,
                &setup.events,
                &setup.cancel,
                Choice { gate: setup.gate.as_deref(), preferred: endpoint.address() },
            )
            .map_err(|error| with_hint(error, url))?,
        };
        endpoint.was_reached(control.remote_addr().ip());
        let mut session = Self {
            control,
            serving: None,
            endpoint: endpoint.clone(),
            can: Features::default(),
            quirks: ServerQuirks::of(ServerKind::Unknown),
            setup: setup.clone(),
            greeting: String::new(),
            features: Vec::new(),
            mode: Mode::Stream,
            parallelism: None,
            tells_layout: false,
            inline: None,
            congestion: None,
            wanted_congestion: None,
            tells_path: false,
            wants_path: false,
            resends: false,
            wants_resend: false,
            tells_nodes: false,
            channel: None,
            path_tuner: None,
            driver: None,
            security: None,
            tls: None,
            kerberos: None,
            data_trust: DataTrust::default(),
            markers_asked: false,
            reuse: None,
            task: None,
            uploads: Vec::new(),
        };
        let tls = session.wants_tls();
        if tls == Some(tls::Begin::AtOnce) {
            session.begin_tls(tls::Begin::AtOnce)?;
        }
        let greeting = session.control.finish()?;
        if session.control.is_ssh() && greeting.code() == 500 {
            let (peer, reason) = (session.control.peer().to_owned(), crate::model::error::text(&greeting));
            return Err(RemoteError::Ssh { peer, reason });
        }
        if !greeting.is_success() {
            return Err(session.refused("the connection", greeting));
        }
        session.greeting = greeting.lines().map(|l| l.to_string()).collect::<Vec<_>>().join("\n");
        if tls == Some(tls::Begin::Asked) {
            session.begin_tls(tls::Begin::Asked)?;
        }
        if session.wants_kerberos() {
            session.authenticate_by_ticket()?;
        } else if session.wants_security() {
            session.authenticate()?;
        }
        session.log_in()?;
        session.introduce()?;
        if session.kerberos.is_some() {
            session.protect_kerberos_data()?;
        } else if session.tls.is_some() {
            session.protect_tls_data()?;
        }
        session.protect_data()?;
        session.require_data_authentication()?;
        session.choose_stack()?;
        session.choose_disk_stack()?;
        session.draw_on_reservation()?;
        session.use_slots()?;
        session.give_hop_logins()?;
        session.report_stack();
        setup.events.event(Event::Connected { peer: endpoint.name.clone() });
        Ok(session)
    }

    fn log_in(&mut self) -> Result<(), RemoteError> {
        if self.log_in_by_token()? {
            return Ok(());
        }
        let options = &self.setup.options;
        let url = &self.endpoint.url;
        let user: BString = match (&url.user, &options.login.user) {
            _ if url.scheme == Scheme::Sshftp => crate::ssh::ftp_user(url, options),
            (Some(user), _) => user.clone(),
            (None, Some(user)) => user.as_str().into(),
            (None, None) if self.security.is_some() || self.kerberos.is_some() => MAPPED.into(),
            (None, None) => "anonymous".into(),
        };
        let nameless = url.user.is_none() && user == "anonymous" && options.login.user.is_none();
        let anonymous = user == "anonymous" || user == "ftp";
        let named = !anonymous && (url.user.is_some() || options.login.user.is_some());
        let proved = self.security.is_some() || self.kerberos.is_some();
        let known = match (&url.password, &options.login.password) {
            _ if url.scheme == Scheme::Sshftp => Some(Password::new("dummy")),
            (Some(password), _) => Some(password.clone()),
            // The password is for a named user.
            (None, Some(password)) if named => Some(password.clone()),
            _ if proved => Some(Password::new("dummy")),
            _ => None,
        };
        let prompt = options.prompts.password.clone().filter(|_| named && known.is_none());
        let unsaid = named && known.is_none() && prompt.is_none();
        let anonymous =
            anonymous || (url.password.is_none() && options.login.password.is_none() && prompt.is_none());
        let mut reply = self.control.call(&Command::User(user.clone()))?;
        let asked = reply.code() == 331;
        if asked {
            self.warn_of_clear_password(anonymous);
            // Not earlier: the server is authenticated now, and requires the password.
            let password = match (known, prompt) {
                (Some(known), _) => known,
                (None, Some(prompt)) => self.ask_password(&prompt, &user)?,
                (None, None) => Password::new("ropewalk@"),
            };
            reply = self.control.call(&Command::Pass(password))?;
        }
        // 202: a password was not needed. 332 (account) is not supported: it is obsolete.
        if !reply.is_success() {
            let peer = self.control.peer().to_owned();
            return Err(if nameless && asked && reply.code() == 530 {
                RemoteError::Nameless { peer, reply }
            } else if unsaid && asked {
                RemoteError::NoPassword { peer, user, reply }
            } else {
                RemoteError::Login { peer, reply }
            });
        }
        Ok(())
    }

    fn ask_password(&self, prompt: &PasswordPrompt, user: &BString) -> Result<Password, RemoteError> {
        prompt.ask(&self.endpoint.url, user.as_bstr()).map_err(|error| RemoteError::Security {
            peer: self.control.peer().to_owned(),
            reason: format!("it requires the password of {user}, which cannot be read: {error}"),
        })
    }

    /// FEAT, and the options that apply to the whole session.
    fn introduce(&mut self) -> Result<(), RemoteError> {
        let representation =
            if self.setup.options.data.ascii { RepresentationType::Ascii } else { RepresentationType::Image };
        let representation = Command::Type(representation);
        let features = match self.endpoint.features() {
            Some(known) => {
                self.control.expect_features(known.clone())?;
                self.control.expect_success(&representation, known.clone())?;
                known
            }
            None => {
                self.control.send(&Command::Feat)?;
                self.control.send(&representation)?;
                let told = self.control.finish()?;
                let features = Arc::new(FeaturesReply::new(&told));
                let reply = self.control.finish()?;
                self.accept("TYPE", reply)?;
                // A temporary failure says nothing about the next session.
                if told.is_success() || told.code() >= 500 {
                    self.endpoint.learned(features.clone());
                }
                features
            }
        };
        self.features = features.lines.iter().map(|line| line.trim().as_bstr().to_string()).collect();
        self.can = Features::new(features.lines.iter().map(|line| line.as_bstr()));
        let kind = ServerKind::of(&self.greeting, &self.can);
        tracing::debug!(peer = self.control.peer(), ?kind, "server");
        self.quirks = ServerQuirks::of(kind);
        if let Some(tag) = self.setup.options.data.scitag.filter(|_| self.can.scitag) {
            // A server that does not permit the experiment transfers without the tag.
            self.control.suggest(&Command::Site(SiteCommand::SciTag(SciTagCommand::Set(tag))))?;
        }
        if self.can.extended {
            let scheme = if self.control.is_ssh() { "sshftp" } else { "gsiftp" };
            let version = env!("CARGO_PKG_VERSION");
            let who = format!("scheme={scheme};appname=\"ropewalk\";appver=\"{version}\";");
            // Servers that do not know these commands may refuse them.
            self.control.suggest(&Command::Site(SiteCommand::ClientInfo(who.into())))?;
            self.tell_task()?;
            self.control.suggest(&Command::Opts(Opts::Checksum { markers: CHECKSUM_MARKERS }))?;
            if self.can.replace && !self.setup.options.storage.in_place {
                self.control.suggest(&Command::Opts(Opts::Store { replaces: true }))?;
            }
            if let Some(size) = self.setup.options.tuning.tcp_buffer {
                self.control.suggest(&Command::Sbuf(size))?;
            } else if self.quirks.obeys_abuf && self.control.rtt() >= NEAR {
                self.control.suggest(&Command::Abuf(MOST_BUFFER))?;
            }
        }
        if self.quirks.may_drop_non_ascii && self.can.facts {
            let ascii_only = match features.ascii_only.get() {
                Some(known) => *known,
                None => self.leaves_out_what_is_not_ascii()?,
            };
            let _ = features.ascii_only.set(ascii_only);
            self.control.ascii_only = ascii_only;
        }
        self.endpoint.saw_rtt(self.control.rtt());
        Ok(())
    }

    /// SITE SPACE USE, if the options name a reservation.
    fn draw_on_reservation(&mut self) -> Result<(), RemoteError> {
        let Some(token) = self.setup.options.end(self.endpoint.end).space_token else { return Ok(()) };
        if !self.can.space {
            let peer = self.control.peer().to_owned();
            return Err(RemoteError::Unsupported { peer, what: "reserve space".into() });
        }
        self.call(&Command::Site(SiteCommand::Space(SpaceCommand::Use(Some(token))))).map(drop)
    }

    /// Whether the server drops bytes above 0x7f from paths: with this name it then finds the root.
    fn leaves_out_what_is_not_ascii(&mut self) -> Result<bool, RemoteError> {
        let reply = self.control.call(&Command::Mlst(Some("/\u{e9}".into())))?;
        Ok(reply.is_success() && !reply.lines().any(|line| line.contains(&0xc3)))
    }

    /// Whether the server's process knows nothing about uploads of other sessions, and keeps a
    /// journal of received ranges: a server that ssh started.
    pub(crate) fn is_alone(&self) -> bool {
        self.control.is_ssh() && self.quirks.keeps_journals
    }

    /// Sends a command; a refusal is an error.
    pub(crate) fn call(&mut self, command: &Command) -> Result<Reply, RemoteError> {
        let reply = self.control.call(command)?;
        self.accept_for(command, reply)
    }

    /// The same as [`Session::call`] for a command that makes the server read this many bytes of a
    /// file.
    pub(crate) fn call_reading(
        &mut self,
        command: &Command,
        bytes: Option<u64>,
    ) -> Result<Reply, RemoteError> {
        self.control.send(command)?;
        self.control.last_reads(bytes);
        let reply = self.control.finish()?;
        self.accept_for(command, reply)
    }

    /// Sends all commands at once; returns the final replies in order.
    pub(crate) fn calls(
        &mut self,
        commands: &[Command],
    ) -> Result<Vec<Result<Reply, RemoteError>>, RemoteError> {
        let mut sent = Vec::with_capacity(commands.len());
        for command in commands {
            sent.push(match self.control.send(command) {
                Err(e) if e.breaks_session() => return Err(e),
                // One that cannot be sent; the others are on their way.
                sent => sent,
            });
        }
        let mut replies = Vec::with_capacity(commands.len());
        for (command, sent) in commands.iter().zip(sent) {
            replies.push(match sent {
                Ok(()) => {
                    let reply = self.control.finish()?;
                    self.accept_for(command, reply)
                }
                Err(e) => Err(e),
            });
        }
        Ok(replies)
    }

    pub(crate) fn accept(&self, command: &str, reply: Reply) -> Result<Reply, RemoteError> {
        if reply.is_failure() { Err(self.refused(command, reply)) } else { Ok(reply) }
    }

    pub(crate) fn accept_for(&self, command: &Command, reply: Reply) -> Result<Reply, RemoteError> {
        if reply.is_failure() { Err(self.refused(&named(command), reply)) } else { Ok(reply) }
    }

    pub(crate) fn refused(&self, command: &str, reply: Reply) -> RemoteError {
        RemoteError::Refused { peer: self.control.peer().to_owned(), command: command.to_owned(), reply }
    }

    pub(crate) fn nonsense(&self, command: &str, reply: &Reply) -> RemoteError {
        let reason = format!("{command} was answered with {}", crate::model::error::text(reply));
        RemoteError::Nonsense { peer: self.control.peer().to_owned(), reason }
    }

    /// Sends NOOP if the connection was idle for long: firewalls forget connections, servers close
    /// them.
    pub(crate) fn keep_alive(&mut self) -> Result<(), RemoteError> {
        if self.control.outstanding() == 0 && self.keepalive_due().is_zero() {
            let reply = self.control.call(&Command::Noop)?;
            // 421: it has closed the session.
            if reply.code() == 421 {
                return Err(self.refused("NOOP", reply));
            }
        }
        Ok(())
    }

    /// Whether the server reports another size or time of a file than before (LIST may have only
    /// the day).
    pub(crate) fn differs(&self, task: &Task, entry: &Entry) -> bool {
        differs(task, entry, self.can.facts)
    }

    /// How long this session may stay idle before [`Session::keep_alive`] is due.
    pub(crate) fn keepalive_due(&self) -> Duration {
        // Not directly after a reply, whatever the option says.
        self.setup.options.timeouts.keepalive.max(Duration::from_secs(1)).saturating_sub(self.control.quiet())
    }

    /// Makes the server end its work for this session, and waits for that, at most for `limit` (see
    /// [`Control::leave`]).
    pub(crate) fn leave(&mut self, limit: Duration) -> bool {
        self.channel = None;
        self.control.leave(limit, self.quirks.answers_every_abort)
    }

    /// Removes a partial file that is not usable, by these commands; failures are ignored. `busy`:
    /// other replies are due first, so that these cannot be awaited.
    pub(crate) fn remove_leftover(&mut self, removal: &[Command], busy: bool) -> Result<(), RemoteError> {
        for remove in removal {
            if busy {
                self.control.suggest(remove)?;
            } else {
                self.control.call(remove)?;
            }
        }
        Ok(())
    }

    /// Sends QUIT without waiting for the reply.
    pub(crate) fn quit(mut self) {
        self.channel = None;
        let _ = self.control.send(&Command::Quit);
    }

    /// Sends an optional command; returns `false` if the server does not know it.
    pub(crate) fn try_call(&mut self, command: &Command) -> Result<bool, RemoteError> {
        let reply = self.control.call(command)?;
        if reply.is_failure() && reply.is_unknown_command() {
            return Ok(false);
        }
        self.accept_for(command, reply).map(|_| true)
    }
}

/// Adds a hint to a refused connection at FTP's own port: the port of GridFTP, which GCT's and
/// Ropewalk servers use, may be meant.
fn with_hint(mut error: RemoteError, url: &Url) -> RemoteError {
    let refused = error.is_refused_connection();
    if let RemoteError::Connect { hint, .. } = &mut error
        && refused
        && url.port == url.scheme.default_port()
        && url.scheme != Scheme::Gsiftp
    {
        let grid = Scheme::Gsiftp.default_port();
        let other = Url { port: grid, user: None, password: None, ..url.with_path(b"/") };
        *hint = format!("; Ropewalk and other GridFTP servers listen at port {grid}: {other}");
    }
    error
}

/// A command's name in messages, with its path for commands that users know.
fn named(command: &Command) -> String {
    use Command as C;
    let verb = || command.verb().to_owned();
    match command {
        C::Cwd(_)
        | C::Dele(_)
        | C::Mkd(_)
        | C::Mlst(_)
        | C::Rmd(_)
        | C::Rnfr(_)
        | C::Rnto(_)
        | C::Size(_) => command.to_line().map_or_else(|_| verb(), |line| BString::from(line).to_string()),
        C::Cksm { path, .. } => format!("CKSM {path}"),
        C::Site(site) => format!("SITE {}", site.verb()),
        _ => verb(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::ErrorKind;

    use super::*;

    fn hint_of(url: &str, kind: ErrorKind) -> String {
        let url = Url::parse(url).unwrap();
        let error = RemoteError::Connect { peer: "h:21".into(), source: kind.into(), hint: String::new() };
        match with_hint(error, &url) {
            RemoteError::Connect { hint, .. } => hint,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn hint_when_the_default_port_refuses_names_the_port_of_gridftp() {
        let hint = hint_of("ftp://ada:secret@h/f", ErrorKind::ConnectionRefused);
        assert!(hint.ends_with("listen at port 2811: ftp://h:2811/"), "{hint}");
        let hint = hint_of("ftpes://h/f", ErrorKind::ConnectionRefused);
        assert!(hint.ends_with("ftpes://h:2811/"), "{hint}");
    }

    #[test]
    fn hint_when_a_port_was_named_or_the_connection_timed_out_is_empty() {
        for (url, kind) in [
            ("ftp://h:2121/f", ErrorKind::ConnectionRefused),
            ("gsiftp://h/f", ErrorKind::ConnectionRefused),
            ("ftp://h/f", ErrorKind::TimedOut),
        ] {
            assert_eq!(hint_of(url, kind), "", "{url}");
        }
    }
}
