//! A logged-in control session, with its data channel.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bstr::{BString, ByteSlice};
use ropewalk_engine::DataChannel;
use ropewalk_protocol::command::{Command, MarkerKind, Password};
use ropewalk_protocol::congestion::CongestionName;
use ropewalk_protocol::host_port::{parse_epsv_reply, parse_pasv_reply};
use ropewalk_protocol::opts::{Options as Opts, RetrOptions};
use ropewalk_protocol::reply::Reply;
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_protocol::site::SiteCommand;
use ropewalk_protocol::url::Scheme;
use ropewalk_storage::checksum::Algorithm;
use ropewalk_transport::SocketOptions;

use crate::abilities::Abilities;
use crate::binding::Binding;
use crate::control::Control;
use crate::error::is_unknown_command;
use crate::features::Features;
use crate::place::{Endpoint, Serving};
use crate::security::Secured;
use crate::security::can_protect;
use crate::setup::{Setup, advertised, reachable};
use crate::task::Task;
use crate::tls;
use crate::tune::{Lane, MOST_BUFFER, NEAR, Wanted};
use crate::verify::wire;
use crate::{DataMode, Entry, RemoteError};

/// The user that the server's gridmap has for our certificate.
const MAPPED: &str = ":globus-mapping:";
/// Seconds between signs of life while the server computes a checksum.
const CHECKSUM_MARKERS: u32 = 30;
/// Seconds between markers of what a server receives.
const MARKERS: u32 = 1;

/// Seconds between two of a sending server's markers of the path.
const PATH_MARKERS: u32 = 1;

pub(crate) struct Session<'e> {
    pub control: Control<'e>,
    pub endpoint: Arc<Endpoint>,
    /// It moves data.
    pub serving: Option<Serving>,
    pub can: Abilities,
    pub setup: Arc<Setup<'e>>,
    pub greeting: String,
    pub features: Vec<String>,
    mode: Mode,
    parallelism: Option<u32>,
    inline: Option<Algorithm>,
    /// The congestion control that the server was asked for, and the one that it should use.
    congestion: Option<&'static str>,
    pub wanted_congestion: Option<&'static str>,
    /// Whether the server was asked to tell of the path while it sends, and whether it should be.
    tells_path: bool,
    pub wants_path: bool,
    channel: Option<Channel>,
    /// The path that its data takes, where that is tuned.
    pub lane: Option<Arc<Lane>>,
    /// The control connection is protected.
    pub(crate) security: Option<Secured>,
    /// The session has TLS.
    pub(crate) tls: Option<tls::OverTls>,
    pub(crate) kerberos: Option<crate::kerberos::Secured>,
    pub(crate) data_trust: crate::data_trust::DataTrust,
    /// TREV was sent.
    markers_asked: bool,
}

/// A data channel and how it was made.
pub(crate) struct Channel {
    pub data: DataChannel,
    pub mode: Mode,
    pub streams: u32,
    /// We listen: the peer's preliminary reply says that its connections are there.
    pub listening: bool,
    /// Its connections are authenticated or bound, which takes both sides: the peer's preliminary reply comes only after it.
    pub authenticated: bool,
    /// Made for sending (the number of streams is ours to choose).
    pub sending: bool,
    /// Of a server that sends: how many streams it has been told of.
    pub wanted: Option<Wanted>,
}

impl<'e> Session<'e> {
    /// Connects, logs in and finds out what the server can do.
    pub(crate) fn open(endpoint: &Arc<Endpoint>, setup: &Arc<Setup<'e>>) -> Result<Self, RemoteError> {
        let url = &endpoint.url;
        can_protect(&setup.options, endpoint.end, url.scheme)
            .map_err(|reason| RemoteError::Security { peer: endpoint.name.clone(), reason })?;
        let options = &setup.options;
        let control = match url.scheme {
            Scheme::Sshftp => Control::through_ssh(endpoint, options, setup.events, &setup.cancel)?,
            _ => Control::connect(&url.host, url.port, options, setup.events, &setup.cancel)?,
        };
        let mut session = Self {
            control,
            serving: None,
            endpoint: endpoint.clone(),
            can: Abilities::default(),
            setup: setup.clone(),
            greeting: String::new(),
            features: Vec::new(),
            mode: Mode::Stream,
            parallelism: None,
            inline: None,
            congestion: None,
            wanted_congestion: None,
            tells_path: false,
            wants_path: false,
            channel: None,
            lane: None,
            security: None,
            tls: None,
            kerberos: None,
            data_trust: crate::data_trust::DataTrust::default(),
            markers_asked: false,
        };
        let tls = session.wants_tls();
        if tls == Some(tls::Begin::AtOnce) {
            session.begin_tls(tls::Begin::AtOnce)?;
        }
        let greeting = session.control.finish()?;
        if session.control.is_ssh() && greeting.code() == 500 {
            let (peer, reason) = (session.control.peer().to_owned(), crate::error::text(&greeting));
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
        Ok(session)
    }

    fn log_in(&mut self) -> Result<(), RemoteError> {
        if self.log_in_by_token()? {
            return Ok(());
        }
        let options = &self.setup.options;
        let url = &self.endpoint.url;
        let user: BString = match (&url.user, &options.user) {
            _ if url.scheme == Scheme::Sshftp => crate::ssh::ftp_user(url, options),
            (Some(user), _) => user.clone(),
            (None, Some(user)) => user.as_str().into(),
            (None, None) if self.security.is_some() || self.kerberos.is_some() => MAPPED.into(),
            (None, None) => "anonymous".into(),
        };
        let nameless = url.user.is_none() && user == "anonymous" && options.user.is_none();
        let anonymous = user == "anonymous" || user == "ftp";
        let named = !anonymous && (url.user.is_some() || options.user.is_some());
        let anonymous = anonymous || url.password.is_none() && options.password.is_none();
        let password = match (&url.password, &options.password) {
            _ if url.scheme == Scheme::Sshftp => Password::new("dummy"),
            (Some(password), _) => password.clone(),
            // Somebody's, who is named.
            (None, Some(password)) if named => password.clone(),
            _ if self.security.is_some() || self.kerberos.is_some() => Password::new("dummy"),
            _ => Password::new("ropewalk@"),
        };
        let mut reply = self.control.call(&Command::User(user))?;
        let asked = reply.code() == 331;
        if asked {
            self.warn_of_clear_password(anonymous);
            reply = self.control.call(&Command::Pass(password))?;
        }
        // 202: a password was not needed. 332 (account) nobody asks for any more.
        if !reply.is_success() {
            let peer = self.control.peer().to_owned();
            return Err(if nameless && asked && reply.code() == 530 {
                RemoteError::Nameless { peer, reply }
            } else {
                RemoteError::Login { peer, reply }
            });
        }
        Ok(())
    }

    /// FEAT, and what holds for the whole session.
    fn introduce(&mut self) -> Result<(), RemoteError> {
        let representation =
            if self.setup.options.ascii { RepresentationType::Ascii } else { RepresentationType::Image };
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
                let features = Arc::new(Features::new(&told));
                let reply = self.control.finish()?;
                self.accept("TYPE", reply)?;
                // A server that cannot tell just now says nothing of the next session.
                if told.is_success() || told.code() >= 500 {
                    self.endpoint.learned(features.clone());
                }
                features
            }
        };
        self.features = features.lines.iter().map(|line| line.trim().as_bstr().to_string()).collect();
        self.can = Abilities::new(features.lines.iter().map(|line| line.as_bstr()));
        if self.can.extended {
            let scheme = if self.control.is_ssh() { "sshftp" } else { "gsiftp" };
            let version = env!("CARGO_PKG_VERSION");
            let who = format!("scheme={scheme};appname=\"ropewalk\";appver=\"{version}\";");
            // Servers that do not know these may refuse them.
            self.control.suggest(&Command::Site(SiteCommand::ClientInfo(who.into())))?;
            self.control.suggest(&Command::Opts(Opts::Checksum { markers: CHECKSUM_MARKERS }))?;
            if let Some(size) = self.setup.options.tcp_buffer {
                self.control.suggest(&Command::Sbuf(size))?;
            } else if self.can.is_ours() && self.control.rtt() >= NEAR {
                self.control.suggest(&Command::Abuf(MOST_BUFFER))?;
            }
        }
        if self.can.dsi && self.can.facts && !self.can.is_ours() {
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

    /// globus-gridftp-server drops bytes above 0x7f from paths, and takes one file for another: of this name it finds the root.
    fn leaves_out_what_is_not_ascii(&mut self) -> Result<bool, RemoteError> {
        let reply = self.control.call(&Command::Mlst(Some("/\u{e9}".into())))?;
        Ok(reply.is_success() && !reply.lines().any(|line| line.contains(&0xc3)))
    }

    /// Its server's process knows nothing of what other sessions write: ours started by ssh, which keeps a journal of what
    /// came.
    pub(crate) fn is_alone(&self) -> bool {
        self.control.is_ssh() && self.can.is_ours()
    }

    /// The command's answer must not be a refusal.
    pub(crate) fn call(&mut self, command: &Command) -> Result<Reply, RemoteError> {
        let reply = self.control.call(command)?;
        self.accept(command.verb(), reply)
    }

    /// Sends all commands at once; gives the final replies in order.
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
                    self.accept(command.verb(), reply)
                }
                Err(e) => Err(e),
            });
        }
        Ok(replies)
    }

    pub(crate) fn accept(&self, command: &str, reply: Reply) -> Result<Reply, RemoteError> {
        if reply.is_failure() { Err(self.refused(command, reply)) } else { Ok(reply) }
    }

    pub(crate) fn refused(&self, command: &str, reply: Reply) -> RemoteError {
        RemoteError::Refused { peer: self.control.peer().to_owned(), command: command.to_owned(), reply }
    }

    /// The MODE that transfers of whole files use here.
    pub(crate) fn preferred_mode(&self) -> Mode {
        match self.setup.options.mode {
            DataMode::Stream => Mode::Stream,
            DataMode::Extended => Mode::ExtendedBlock,
            DataMode::Auto if self.can.extended && !self.setup.options.ascii => Mode::ExtendedBlock,
            DataMode::Auto => Mode::Stream,
        }
    }

    /// Sends the commands that bring the session to this MODE and these data channel options, for those that differ,
    /// and `last` after them, all at once. Gives the answer to `last`. Where that makes a data channel, `binding` is its key.
    pub(crate) fn prepare(
        &mut self,
        mode: Mode,
        parallelism: Option<u32>,
        inline: Option<Algorithm>,
        binding: Option<&Binding>,
        last: Option<Command>,
    ) -> Result<Option<Reply>, RemoteError> {
        let mut commands = Vec::new();
        if self.mode != mode {
            self.channel = None;
            commands.push(Command::Mode(mode));
        }
        let mut options = RetrOptions::default();
        if let Some(n) = parallelism
            && self.parallelism != parallelism
        {
            options.parallelism = Some(n);
        }
        if self.can.inline_checksum && self.inline != inline {
            options.checksum = Some(inline.map(wire));
        }
        if self.can.path_markers && self.wants_path && !self.tells_path && mode == Mode::ExtendedBlock {
            (options.markers, options.path_info) = (Some(PATH_MARKERS), Some(true));
        }
        let congestion = self.wanted_congestion.filter(|_| self.can.congestion);
        if mode == Mode::ExtendedBlock && congestion != self.congestion {
            // Not among the others: a server that does not allow it must not refuse those too.
            let name = congestion.and_then(|name| name.parse::<CongestionName>().ok());
            let options = RetrOptions { congestion: Some(name), ..RetrOptions::default() };
            self.control.suggest(&Command::Opts(Opts::Retr(options)))?;
            self.congestion = congestion;
        }
        if options != RetrOptions::default() {
            commands.push(Command::Opts(Opts::Retr(options)));
        }
        let asked = last.is_some();
        commands.extend(binding.map(Binding::command));
        commands.extend(last);
        let mut answer = Ok(None);
        for (command, reply) in commands.iter().zip(self.calls(&commands)?) {
            match command {
                _ if reply.is_err() => {}
                Command::Mode(mode) => self.mode = *mode,
                Command::Opts(Opts::Retr(options)) => {
                    self.parallelism = options.parallelism.or(self.parallelism);
                    self.tells_path |= options.path_info == Some(true);
                    if options.checksum.is_some() {
                        self.inline = inline;
                    }
                }
                _ => {}
            }
            // Those behind one that is refused are carried out all the same.
            answer = answer.and_then(|_| reply.map(Some));
        }
        Ok(answer?.filter(|_| asked))
    }

    /// The server's own number of streams may have changed.
    pub(crate) fn forget_parallelism(&mut self) {
        self.parallelism = None;
    }

    /// Streams with which the channel was made; 0 where there is none yet.
    pub(crate) fn streams_of_channel(&self) -> u32 {
        self.channel.as_ref().map_or(0, |channel| channel.streams)
    }

    /// The channel that was made last, where it can be used again.
    pub(crate) fn channel(&mut self) -> Option<&mut Channel> {
        self.channel.as_mut()
    }

    pub(crate) fn take_channel(&mut self) -> Option<Channel> {
        self.channel.take()
    }

    pub(crate) fn keep_channel(&mut self, channel: Channel) {
        self.channel = Some(channel);
    }

    pub(crate) fn drop_channel(&mut self) {
        self.channel = None;
    }

    /// A channel for receiving from this server: in MODE S it is passive; in MODE E we listen, unless the server can
    /// be the passive side while it sends.
    pub(crate) fn receiving(
        &mut self,
        mode: Mode,
        streams: u32,
        inline: Option<Algorithm>,
    ) -> Result<(), RemoteError> {
        self.channel = None;
        self.trust_each_other()?;
        let extended = mode == Mode::ExtendedBlock;
        let parallelism = extended.then_some(streams);
        self.channel = Some(if extended && !self.can.passive_sender {
            self.listen(mode, streams, inline)?
        } else {
            let binding = self.bind()?;
            let address = self.passive(mode, parallelism, inline, binding.as_ref())?;
            self.connect(mode, if extended { streams } else { 1 }, address, binding.as_ref())
        });
        Ok(())
    }

    /// A channel for sending to this server, which is passive.
    pub(crate) fn sending(
        &mut self,
        mode: Mode,
        streams: u32,
        inline: Option<Algorithm>,
    ) -> Result<(), RemoteError> {
        self.channel = None;
        self.trust_each_other()?;
        if mode == Mode::ExtendedBlock {
            self.frequent_markers()?;
        }
        let binding = self.bind()?;
        let address = self.passive(mode, None, inline, binding.as_ref())?;
        let channel = self.connect(mode, streams, address, binding.as_ref());
        self.channel = Some(Channel { sending: true, ..channel });
        Ok(())
    }

    /// Markers more often than the five seconds that are usual: what no restart marker told of is sent again, and
    /// between two servers performance markers are all that is known of progress.
    pub(crate) fn frequent_markers(&mut self) -> Result<(), RemoteError> {
        if self.can.extended && !self.markers_asked {
            self.markers_asked = true;
            let often = |markers| Command::Trev { markers, seconds: MARKERS };
            // A server that does not know it has its own interval.
            self.control.suggest(&often(MarkerKind::Restart))?;
            self.control.suggest(&often(MarkerKind::Performance))?;
        }
        Ok(())
    }

    /// Whether we should not be asked to listen any more.
    pub(crate) fn cannot_call_back(&self) -> bool {
        self.endpoint.unreachable_back.load(Ordering::Relaxed)
    }

    /// As asked for; else by what is known of the path.
    fn socket_options(&self) -> SocketOptions {
        let mut options = self.setup.socket_options();
        let known = self.lane.as_ref().filter(|_| self.setup.options.tcp_buffer.is_none());
        if let Some(buffer) = known.and_then(|lane| lane.buffer()) {
            buffer.apply(&mut options);
        }
        options
    }

    fn connect(&self, mode: Mode, streams: u32, address: SocketAddr, binding: Option<&Binding>) -> Channel {
        let settings = self.setup.channel_settings(mode, streams, None, self.socket_options());
        let data = DataChannel::active(
            self.data_driver(binding),
            vec![address],
            settings,
            self.setup.pool.clone(),
            self.setup.budget.clone(),
        );
        let authenticated = self.authenticates_data() || binding.is_some();
        Channel { data, mode, streams, listening: false, authenticated, sending: false, wanted: None }
    }

    fn listen(
        &mut self,
        mode: Mode,
        streams: u32,
        inline: Option<Algorithm>,
    ) -> Result<Channel, RemoteError> {
        let local = SocketAddr::new(self.control.local_addr().ip(), 0);
        if local.ip().is_unspecified() {
            let what = "connect to us: the way to it is known to ssh only (a host between, or a name of ssh's own); use \
                        --mode stream";
            return Err(RemoteError::Unsupported {
                peer: self.control.peer().to_owned(),
                what: what.to_owned(),
            });
        }
        let broken = |source| RemoteError::Control { peer: "the local listener".to_owned(), source };
        let binding = self.bind()?;
        let driver = self.data_driver(binding.as_ref());
        let listener = driver.listen(local, &self.socket_options()).map_err(broken)?;
        let address = advertised(listener.local_addr().map_err(broken)?);
        self.prepare(mode, Some(streams), inline, binding.as_ref(), Some(port(address)))?;
        let settings = self.setup.channel_settings(mode, streams, None, self.socket_options());
        let data =
            DataChannel::passive(listener, settings, self.setup.pool.clone(), self.setup.budget.clone());
        let authenticated = self.authenticates_data() || binding.is_some();
        Ok(Channel { data, mode, streams, listening: true, authenticated, sending: false, wanted: None })
    }

    /// Where the server listens for a channel with these options: PASV, or EPSV where the control connection is IPv6.
    pub(crate) fn passive(
        &mut self,
        mode: Mode,
        parallelism: Option<u32>,
        inline: Option<Algorithm>,
        binding: Option<&Binding>,
    ) -> Result<SocketAddr, RemoteError> {
        let remote = self.control.remote_addr();
        let command = if remote.is_ipv6() { Command::Epsv(None) } else { Command::Pasv };
        let Some(reply) = self.prepare(mode, parallelism, inline, binding, Some(command))? else {
            return Err(RemoteError::Cancelled);
        };
        if remote.is_ipv6() {
            return match parse_epsv_reply(reply.text()) {
                Ok((ip, port)) => Ok(SocketAddr::new(ip.unwrap_or(remote.ip()), port)),
                Err(_) => Err(self.nonsense("EPSV", &reply)),
            };
        }
        match parse_pasv_reply(reply.text()) {
            Ok(address) => {
                let proves = binding.is_some() || self.authenticates_data();
                reachable(address.into(), remote.ip(), (self.control.peer(), proves))
            }
            Err(_) => Err(self.nonsense("PASV", &reply)),
        }
    }

    pub(crate) fn nonsense(&self, command: &str, reply: &Reply) -> RemoteError {
        let reason = format!("{command} was answered with {}", crate::error::text(reply));
        RemoteError::Nonsense { peer: self.control.peer().to_owned(), reason }
    }

    /// Says NOOP where the connection was quiet for long: firewalls forget connections, servers close them.
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

    /// Whether the server tells another size or time of a file than it did (by LIST only the day may be known).
    pub(crate) fn differs(&self, task: &Task, entry: &Entry) -> bool {
        differs(task, entry, self.can.facts)
    }

    /// How long this session may stay quiet before [`Session::keep_alive`] is due.
    pub(crate) fn keepalive_due(&self) -> Duration {
        // Not at once after an answer, whatever was asked for.
        self.setup.options.keepalive.max(Duration::from_secs(1)).saturating_sub(self.control.quiet())
    }

    /// Has the server end what it does for this session, and waits for that, for so long at most (see [`Control::leave`]).
    /// `transferring`: a transfer is all that it does, and may be waiting for a data connection.
    pub(crate) fn leave(&mut self, limit: Duration, transferring: bool) -> bool {
        self.channel = None;
        self.control.leave(limit, transferring || self.can.is_ours())
    }

    /// Removes what has arrived and is of no use, whether that can be or not. `busy`: other answers are due, before which nobody can
    /// wait for this one.
    pub(crate) fn remove_leftover(&mut self, part: BString, busy: bool) -> Result<(), RemoteError> {
        let remove = Command::Dele(part);
        if busy { self.control.suggest(&remove) } else { self.control.call(&remove).map(drop) }
    }

    /// QUIT. Nobody waits for the answer.
    pub(crate) fn quit(mut self) {
        self.channel = None;
        let _ = self.control.send(&Command::Quit);
    }

    /// For an optional command: `false` where the server does not know it.
    pub(crate) fn try_call(&mut self, command: &Command) -> Result<bool, RemoteError> {
        let reply = self.control.call(command)?;
        if reply.is_failure() && is_unknown_command(&reply) {
            return Ok(false);
        }
        self.accept(command.verb(), reply).map(|_| true)
    }
}

/// Whether a file has another size or, where they are known `exactly`, another time than it had.
pub(crate) fn differs(task: &Task, entry: &Entry, exactly: bool) -> bool {
    let times = task.modified.zip(entry.modified).filter(|_| exactly);
    let sizes = task.size.zip(entry.size);
    sizes.is_some_and(|(old, new)| old != new) || times.is_some_and(|(old, new)| old != new)
}

/// PORT, or EPRT for IPv6 addresses (RFC 2428).
pub(crate) fn port(address: SocketAddr) -> Command {
    match address {
        SocketAddr::V4(v4) => Command::Port(v4),
        SocketAddr::V6(_) => Command::Eprt(address),
    }
}
