//! The data channel of a session.

use ropewalk_engine::ChannelSettings;
use ropewalk_protocol::client::answer;
use ropewalk_protocol::opts::Layout;

use super::one_port::Way;
use super::*;

/// A data channel and its properties.
pub(crate) struct Channel {
    pub data: DataChannel,
    pub mode: Mode,
    /// As they were asked for.
    pub streams: u32,
    /// How these are spread over the addresses of the server.
    pub spread: Spread,
    /// We listen: the peer's preliminary reply follows its connections.
    pub listening: bool,
    /// Its connections are authenticated or bound, which needs both sides: the peer's preliminary
    /// reply comes only afterwards.
    pub authenticated: bool,
    /// Made for sending, so that we choose the number of streams.
    pub sending: bool,
    /// For a sending server: the number of streams that it was asked for.
    pub wanted: Option<Wanted>,
}

impl Session {
    /// The MODE of transfers of whole files.
    pub(crate) fn preferred_mode(&self) -> Mode {
        match self.setup.options.data.mode {
            DataMode::Stream => Mode::Stream,
            DataMode::Extended => Mode::ExtendedBlock,
            DataMode::Auto if self.can.extended && !self.setup.options.data.ascii => Mode::ExtendedBlock,
            DataMode::Auto => Mode::Stream,
        }
    }

    /// Sends the commands that change the session to this MODE and these data channel options, as
    /// far as they differ, and `last` after them, all at once. Returns the reply to `last`. If that
    /// makes a data channel, `binding` is its key.
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
        if let Some(size) = self.setup.options.data.stripe_block
            && parallelism.is_some()
            && !self.tells_layout
        {
            options.layout = Some(if size > 0 { Layout::Blocked } else { Layout::Partitioned });
            options.block_size = (size > 0).then_some(size);
        }
        if self.can.inline_checksum && self.inline != inline {
            options.checksum = Some(inline);
        }
        if self.can.path_markers && self.wants_path && !self.tells_path && mode == Mode::ExtendedBlock {
            (options.markers, options.path_info) = (Some(PATH_MARKERS), Some(true));
        }
        if self.can.resend && self.wants_resend != self.resends && mode == Mode::ExtendedBlock {
            options.resend = Some(self.wants_resend);
        }
        if self.can.nodes && !self.tells_nodes && mode == Mode::ExtendedBlock {
            options.nodes = Some(self.most_nodes());
        }
        let congestion = self.wanted_congestion.filter(|_| self.can.congestion);
        if congestion != self.congestion {
            // A separate command: a server that does not permit it must not refuse the other
            // options.
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
                    self.tells_layout |= options.layout.is_some();
                    self.tells_path |= options.path_info == Some(true);
                    self.tells_nodes |= options.nodes.is_some();
                    self.resends = options.resend.unwrap_or(self.resends);
                    if options.checksum.is_some() {
                        self.inline = inline;
                    }
                }
                _ => {}
            }
            // Commands after a refused one are still executed.
            answer = answer.and_then(|_| reply.map(Some));
        }
        Ok(answer?.filter(|_| asked))
    }

    /// Records that the server may have changed its number of streams.
    pub(crate) fn forget_parallelism(&mut self) {
        self.parallelism = None;
    }

    /// Number of streams with which the channel was made; 0 without a channel.
    pub(crate) fn streams_of_channel(&self) -> u32 {
        self.channel.as_ref().map_or(0, |channel| channel.streams)
    }

    /// The number of streams of the channel, if it is one of MODE E that moves data in this
    /// direction, no other driver is wanted and no better data nodes have joined.
    pub(crate) fn reusable(&self, sending: bool) -> Option<u32> {
        let stays = !self.must_change_driver() && !self.control.wants_new_channel;
        let channel = self.channel.as_ref().filter(|_| stays)?;
        (channel.mode == Mode::ExtendedBlock && channel.sending == sending).then_some(channel.streams)
    }

    /// The last channel, if it can be reused.
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

    /// Ends the channel, so that a new one is made.
    pub(crate) fn end_channel(&mut self) {
        self.channel = None;
        self.control.wants_new_channel = false;
    }

    /// A channel for receiving from this server. In MODE S the server is passive; in MODE E we
    /// listen, unless the server can be passive while it sends.
    pub(crate) fn receiving(
        &mut self,
        mode: Mode,
        streams: u32,
        inline: Option<Algorithm>,
    ) -> Result<(), RemoteError> {
        self.end_channel();
        self.trust_each_other()?;
        self.change_driver()?;
        let extended = mode == Mode::ExtendedBlock;
        let parallelism = extended.then_some(self.spread(1).each(streams));
        self.uses_one_port()?;
        let striped = self.may_stripe(mode) && !self.cannot_call_back();
        self.channel = Some(if extended && (!self.can.passive_sender || striped) {
            self.listen(mode, streams, inline)?
        } else {
            let binding = self.bind()?;
            let options = self.driver_options();
            let way = self.way(mode, parallelism, inline, binding.as_ref(), &options)?;
            let streams = if extended { streams } else { 1 };
            self.connect(mode, streams, way, binding.as_ref(), options)?
        });
        Ok(())
    }

    /// Sets the congestion control that the server is to use for its next data: the tuner's choice,
    /// or with a fixed number of streams the one that the user named.
    pub(crate) fn wants_congestion(&mut self, participant: Option<&Participant>) {
        let fixed = self.setup.options.fixed_congestion();
        self.wanted_congestion =
            participant.map_or(fixed, |participant| participant.path_tuner().congestion());
        let Some(name) = fixed.filter(|_| !self.can.congestion) else { return };
        let peer = self.control.peer();
        if self.setup.warned_of_congestion.add(peer) {
            self.setup.events.event(Event::Warning {
                message: format!(
                    "{peer} lets no client choose its congestion control: --congestion {name} has \
                     no effect on the data that it sends"
                ),
            });
        }
    }

    /// A channel for sending to this server, which is passive.
    pub(crate) fn sending(
        &mut self,
        mode: Mode,
        streams: u32,
        inline: Option<Algorithm>,
    ) -> Result<(), RemoteError> {
        self.end_channel();
        self.trust_each_other()?;
        self.change_driver()?;
        if mode == Mode::ExtendedBlock {
            self.frequent_markers()?;
        }
        let binding = self.bind()?;
        let congestion = self.setup.options.fixed_congestion().map(str::to_owned);
        let mut options = self.driver_options();
        options.tuning.congestion = congestion;
        let way = self.way(mode, None, inline, binding.as_ref(), &options)?;
        let channel = self.connect(mode, streams, way, binding.as_ref(), options)?;
        self.channel = Some(Channel { sending: true, ..channel });
        Ok(())
    }

    /// Requests more frequent markers than the usual five seconds. Bytes without a restart marker
    /// are sent again after a failure, and between two servers performance markers are the only
    /// sign of progress.
    pub(crate) fn frequent_markers(&mut self) -> Result<(), RemoteError> {
        if self.can.extended && !self.markers_asked {
            self.markers_asked = true;
            let often = |markers| Command::Trev { markers, seconds: MARKERS };
            // A server that does not know the option uses its own interval.
            self.control.suggest(&often(MarkerKind::Restart))?;
            self.control.suggest(&often(MarkerKind::Performance))?;
        }
        Ok(())
    }

    /// Whether the server cannot reach us, so that we must not listen.
    pub(crate) fn cannot_call_back(&self) -> bool {
        self.endpoint.unreachable_back.load(Ordering::Relaxed)
    }

    /// The user's options, or those derived from the path.
    fn driver_options(&self) -> DriverOptions {
        let mut options = self.setup.driver_options();
        let known = self.path_tuner.as_ref().filter(|_| self.setup.options.tuning.tcp_buffer.is_none());
        if let Some(buffer) = known.and_then(|path_tuner| path_tuner.buffer()) {
            buffer.apply(&mut options.tuning);
        }
        options
    }

    fn connect(
        &self,
        mode: Mode,
        streams: u32,
        way: Way,
        binding: Option<&Binding>,
        mut options: DriverOptions,
    ) -> Result<Channel, RemoteError> {
        let stack = self.data_stack(binding, way.driver)?;
        stack.apply(&mut options);
        options.token = way.token;
        let spread = self.spread(way.addresses.len() as u32);
        let settings = self.channel_settings(mode, spread.each(streams), options);
        let mut data = DataChannel::active(
            stack.driver,
            way.addresses,
            settings,
            self.setup.shared.pool.clone(),
            self.setup.shared.budget.clone(),
        );
        data.set_resend(self.resends);
        data.set_marking(self.setup.marking(self.net_stack().as_ref()));
        let authenticated = self.authenticates_data() || binding.is_some();
        Ok(Channel {
            data,
            mode,
            streams,
            spread,
            listening: false,
            authenticated,
            sending: false,
            wanted: None,
        })
    }

    fn channel_settings(&self, mode: Mode, streams: u32, options: DriverOptions) -> ChannelSettings {
        let settings = self.setup.channel_settings(mode, streams, None, options);
        let connect_timeout = match self.other_driver() {
            Some(_) => settings.connect_timeout.min(stack::PATIENCE),
            None => settings.connect_timeout,
        };
        ChannelSettings { connect_timeout, ..settings }
    }

    fn listen(
        &mut self,
        mode: Mode,
        streams: u32,
        inline: Option<Algorithm>,
    ) -> Result<Channel, RemoteError> {
        let reserved = self.setup.options.path.address;
        let local = SocketAddr::new(reserved.unwrap_or(self.control.local_addr().ip()), 0);
        if local.ip().is_unspecified() {
            let what = "connect to us: only ssh knows the way to it (through another host, or by an \
                        alias); use --mode stream";
            return Err(RemoteError::Unsupported {
                peer: self.control.peer().to_owned(),
                what: what.to_owned(),
            });
        }
        let broken = |source| RemoteError::Control { peer: "the local listener".to_owned(), source };
        let binding = self.bind()?;
        let stack = self.data_stack(binding.as_ref(), None)?;
        let mut options = self.driver_options();
        stack.apply(&mut options);
        let listener = stack.driver.listen(local.into(), &options).map_err(broken)?;
        let address = advertised(listener.local_addr().and_then(|local| local.socket()).map_err(broken)?);
        let senders = self.senders(mode, inline)?;
        let addresses = vec![address; senders as usize];
        let spread = self.spread(senders);
        self.prepare(mode, Some(spread.each(streams)), inline, binding.as_ref(), Some(active(addresses)))?;
        let settings = self.channel_settings(mode, spread.each(streams), options);
        let mut data = DataChannel::passive(
            listener,
            settings,
            self.setup.shared.pool.clone(),
            self.setup.shared.budget.clone(),
        );
        data.set_resend(self.resends);
        data.set_marking(self.setup.marking(self.net_stack().as_ref()));
        data.set_senders(senders);
        let authenticated = self.authenticates_data() || binding.is_some();
        Ok(Channel {
            data,
            mode,
            streams,
            spread,
            listening: true,
            authenticated,
            sending: false,
            wanted: None,
        })
    }

    /// The address at which the server listens for a channel with these options: PASV, or EPSV if
    /// the control connection is IPv6.
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
            return Err(RemoteError::Desynchronized);
        };
        let Ok(address) = answer::address(&reply, remote.ip()) else {
            return Err(self.nonsense(if remote.is_ipv6() { "EPSV" } else { "PASV" }, &reply));
        };
        if remote.is_ipv6() {
            return Ok(address);
        }
        let proves = binding.is_some() || self.authenticates_data();
        let address = reachable(address, remote.ip(), (self.control.peer(), proves))?;
        self.setup.permits_data(self.control.peer(), remote.ip(), address)
    }
}

/// PORT or EPRT for one address, SPOR for several (GFD.20 section 3.4).
pub(crate) fn active(mut addresses: Vec<SocketAddr>) -> Command {
    match (addresses.pop(), addresses.is_empty()) {
        (Some(address), true) => port(address),
        (last, _) => {
            addresses.extend(last);
            Command::Spor(addresses)
        }
    }
}

/// PORT, or EPRT for IPv6 addresses (RFC 2428).
pub(crate) fn port(address: SocketAddr) -> Command {
    match address {
        SocketAddr::V4(v4) => Command::Port(v4),
        SocketAddr::V6(_) => Command::Eprt(address),
    }
}
