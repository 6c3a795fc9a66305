//! What comes before the data: the channel between the servers, the ranges, the commands.

use super::*;

impl Flow<'_> {
    pub(super) fn resumable(&self, task: &Task) -> bool {
        let options = self.worker.ctx.options();
        options.recovery.resume
            && !options.storage.in_place
            && !options.data.ascii
            && self.source.can.restart
            && task.window.is_none()
            && !task.apart
            && !task.is_to_device()
            && task.size.is_some_and(|size| size > SMALL)
    }

    /// Makes the two servers ready for each other.
    pub(super) fn connect(&mut self, mode: Mode, streams: u32, check: Check) -> Result<(), RemoteError> {
        self.channel = None;
        for session in [&self.source, &self.destination] {
            if session.has_private_tls_data() {
                // Both servers would wait for the other one to be TLS's client (RFC 4217 section 7).
                let what = "protect data on its way to another server with TLS (PROT P): let it come through here \
                            (--through-here), or let it travel in clear (--data-protection clear)";
                let (peer, what) = (session.control.peer().to_owned(), what.to_owned());
                return Err(RemoteError::Unsupported { peer, what });
            }
        }
        // Each server shares a key with us, and none with the other.
        if self.source.wraps_data() || self.destination.wraps_data() {
            let what = "protect data between two servers with Kerberos: leave --data-protection out (data connections are \
                        then bound by a one-time key where both servers know it)";
            return Err(RemoteError::Unsupported {
                peer: self.source.control.peer().to_owned(),
                what: what.to_owned(),
            });
        }
        if self.source.authenticates_data() != self.destination.authenticates_data() {
            let what = "be one end of a transfer between two servers of which only one authenticates data connections; \
                        use --no-dcau, or gsiftp:// for both";
            return Err(RemoteError::Unsupported {
                peer: self.source.control.peer().to_owned(),
                what: what.to_owned(),
            });
        }
        agree(&mut self.source, &mut self.destination)?;
        let inline = if let Check::Inline(algorithm) = check { Some(algorithm) } else { None };
        self.destination.drop_channel();
        self.source.drop_channel();
        let parallelism = (mode == Mode::ExtendedBlock).then_some(streams);
        self.source.wants_path = self.participant.is_some() && streams > 1;
        self.source.wants_resend = self.destination.can.resend;
        self.destination.wants_resend = self.source.can.resend;
        self.source.wants_congestion(self.participant.as_ref());
        self.binding = self.source.bind_with(&self.destination)?;
        self.meeting = self.choose_meeting()?;
        let binding = self.binding.as_ref();
        if self.meeting != Meeting::Announced {
            if parallelism.is_some() {
                self.destination.frequent_markers()?;
            }
            self.meet_at_control_port(mode, parallelism, inline)?;
        } else if self.delayed() {
            // The address comes after STOR.
            let delayed = Command::Opts(Opts::Passive { delayed: true });
            self.destination.prepare(mode, None, inline, None, Some(delayed))?;
            self.destination.prepare(mode, None, inline, binding, Some(Command::Pasv))?;
            self.source.prepare(mode, parallelism, inline, None, None)?;
        } else {
            if parallelism.is_some() {
                self.destination.frequent_markers()?;
            }
            let addresses = self.destination.passive_addresses(mode, inline, binding)?;
            let prepared = self.source.prepare(mode, parallelism, inline, binding, Some(active(addresses)));
            prepared.map_err(|e| self.cannot_point(e))?;
        }
        self.channel = Some((mode, streams));
        Ok(())
    }

    pub(super) fn delayed(&self) -> bool {
        self.meeting == Meeting::Announced
            && self.worker.ctx.options().data.delayed_passive
            && self.destination.can.delayed_passive
    }

    /// Tells the source where to connect to.
    pub(super) fn point(&mut self, address: SocketAddr) -> Result<(), RemoteError> {
        if let Some(binding) = &self.binding {
            self.source.call(&binding.command())?;
        }
        let refused = self.source.call(&port(address));
        refused.map(drop).map_err(|e| self.cannot_point(e))
    }

    fn cannot_point(&self, error: RemoteError) -> RemoteError {
        match error {
            RemoteError::Refused { command, reply, .. } if matches!(&*command, "PORT" | "EPRT" | "SPOR") => {
                let (peer, other) = (&self.source.endpoint.name, &self.destination.endpoint.name);
                RemoteError::NoThirdParty { peer: peer.clone(), other: other.clone(), reply }
            }
            other => other,
        }
    }

    pub(super) fn begin(
        &mut self,
        mut task: Task,
        ask: bool,
        mut known: Option<RangeSet>,
        resumable: bool,
    ) -> Result<Option<Part>, RemoteError> {
        let ctx = self.worker.ctx;
        if !task.starts_program() {
            self.source.is_another_file(&task, &mut self.destination, ctx.options().storage.in_place)?;
        }
        ctx.tell_of_times(&self.destination);
        if ask {
            let entry = self.source.stat(&task.source.path())?;
            if self.source.differs(&task, &entry) {
                // What came is of another version.
                known = None;
            }
            // Sums differed because somebody writes to it.
            let summed = self.check()?.algorithm().is_some();
            let grew = entry.size.zip(task.size).is_some_and(|(now, before)| now > before);
            task.grows |= summed && task.tries.total > 0 && grew;
            task.size = entry.size.or(task.size);
            task.modified = entry.modified.or(task.modified);
            task.mode = entry.mode.or(task.mode);
        }
        if (task.compares() || task.confirm)
            && let Some(proof) = self.same_already(&task)?
        {
            if task.confirm {
                // The session that gave it its name may have ended before.
                self.worker.preserve(&mut self.destination, &task, &task.destination.path())?;
            }
            self.worker.have_already(task, proof);
            return Ok(None);
        }
        let check = self.check()?;
        let staging = match ctx.options().storage.in_place {
            true => Staging::InPlace,
            false => Staging::apart(&task, &self.destination, ctx.options(), known.is_some()),
        };
        let mut present = RangeSet::new();
        if let Some(known) = known {
            present = staging.received(&mut self.destination, known, &task)?;
        }
        ctx.report.anew(&mut task);
        let relay = Relay::begin(task, check, staging, present.clone());
        if resumable {
            ctx.states.save(&relay.task, &present);
        }
        ctx.report.started(&relay.task, present.len());
        let whole = relay.whole();
        if self.shares(&relay) && present.is_empty() {
            let cleared = relay.staging.clear(&mut self.destination);
            cleared.inspect_err(|_| ctx.report.put_back())?;
        }
        Ok(Some((relay, whole)))
    }

    /// The source is still of the size and time that it had.
    pub(super) fn unchanged(&mut self, task: &Task) -> Result<(), RemoteError> {
        let path = task.source.path();
        let entry = self.source.stat(&path)?;
        if self.source.differs(task, &entry) { Err(RemoteError::SourceChanged { path }) } else { Ok(()) }
    }

    /// Whether one of the two servers is faster with several sessions for a big file.
    pub(super) fn cuts(&self) -> bool {
        self.worker.ctx.divides_files(&self.source) || self.worker.ctx.divides_files(&self.destination)
    }

    /// Whether several pairs of sessions share out what is left of this file.
    pub(super) fn shares(&self, relay: &Relay) -> bool {
        let can = self.cuts()
            && !self.destination.is_alone()
            && self.source.can.partial
            && self.destination.can.partial
            && self.mode() == Mode::ExtendedBlock;
        let whole = relay.whole();
        let left = (whole.end - whole.start).saturating_sub(relay.resumed);
        can && !relay.is_direct()
            && whole.end != u64::MAX
            && left >= 2 * RANGE
            && self.worker.ctx.range_size(RANGE, self.participant.as_ref(), 1).is_some()
    }

    /// Takes as much of a range as this pair should move now, and leaves the rest to whoever comes next.
    pub(super) fn cut_range(&self, relay: &Arc<Relay>, range: Range<u64>) -> Range<u64> {
        if !self.shares(relay) {
            return range;
        }
        self.worker.cut_range(
            relay,
            range,
            self.participant.as_ref(),
            self.channel.map_or(0, |(_, streams)| streams),
        )
    }

    /// The data channel was made with so many streams, for so many bytes or more.
    pub(super) fn opened(&mut self, streams: u32, bytes: u64) {
        let Some(participant) = &self.participant else { return };
        participant.moves_elsewhere();
        // A destination that connects would not make the streams that are added.
        let adjustable = self.source.can.streams && self.meeting.connects() == Side::Source;
        let told = (streams > 1 && adjustable).then(|| Wanted::new(streams));
        self.wanted = told.clone();
        participant.opened(
            streams,
            useful_streams(bytes),
            told.map_or(StreamControl::Fixed, StreamControl::There),
        );
    }

    /// The data channel is there, and is used for so many bytes or more.
    pub(super) fn used_again(&self, bytes: u64) {
        let (Some(participant), Some((_, streams))) = (&self.participant, self.channel) else { return };
        let stream_control = self.wanted.clone().map_or(StreamControl::Fixed, StreamControl::There);
        participant.used_again(streams, useful_streams(bytes), stream_control);
    }

    /// Tells the source, whenever that changes, how many streams it should use.
    pub(super) fn tell_streams(&mut self) -> Result<(), RemoteError> {
        if let Some(granted) = self.source.control.take_granted() {
            self.channel = self.channel.map(|(mode, _)| (mode, granted));
        }
        let Some(streams) = self.wanted.as_ref().and_then(Wanted::news) else { return Ok(()) };
        self.source.control.set_streams(streams)
    }

    pub(super) fn check(&self) -> Result<Check, RemoteError> {
        let ctx = self.worker.ctx;
        let options = ctx.options();
        if options.data.ascii {
            return Ok(Check::Size);
        }
        let (a, b) = (&self.source.can, &self.destination.can);
        let inline = a.inline_checksum && b.inline_checksum;
        let both = format!("{} and {}", self.source.endpoint.name, self.destination.endpoint.name);
        let check = choose(options.integrity.checksum, &|x| a.knows(x) && b.knows(x), inline, &both)?;
        if check == Check::Size && options.integrity.checksum != ChecksumPolicy::None {
            ctx.report.warn_once(format!("{both} have no checksum in common: only sizes are compared"));
        }
        Ok(check)
    }

    /// How it was proved that the destination has the same bytes; `None` where it has not.
    pub(super) fn same_already(&mut self, task: &Task) -> Result<Option<String>, RemoteError> {
        let servers = [&self.source.can, &self.destination.can];
        let Some(algorithm) = self.worker.ctx.comparison(&servers) else { return Ok(None) };
        // Both at the same time.
        self.source.control.send(&checksum_command(algorithm, task, &task.source.path()))?;
        self.source.control.last_reads(task.size);
        let theirs = self.destination.checksum(&task.destination.path(), algorithm, None, task.size);
        let reply = self.source.control.finish()?;
        let ours = self.source.accept("CKSM", reply)?;
        let theirs = task.unless_missing(theirs)?;
        Ok(theirs.and_then(|theirs| proved(algorithm, &ours.text().to_str_lossy(), &theirs)))
    }

    /// Sends the commands of a transfer to both.
    pub(super) fn send(
        &mut self,
        relay: Arc<Relay>,
        range: Range<u64>,
        mode: Mode,
    ) -> Result<(), RemoteError> {
        let whole = range == relay.whole() && relay.task.window.is_none();
        // No more than it had: the rest is none of this try's.
        let grows = relay.task.grows && self.source.can.partial && relay.task.size.is_some();
        let (origin, from) = (range.start, relay.task.source.path());
        let present = relay.present().intersection(range.clone());
        let there = present.shift_down(origin);
        let restart = match mode {
            _ if there.is_empty() => None,
            Mode::ExtendedBlock => Some(Restart::Ranges(there)),
            Mode::Stream => (there.prefix() > 0).then(|| Restart::Offset(there.prefix())),
        };
        let retrieve = if whole && !grows {
            Command::Retr(from)
        } else {
            let length = if range.end == u64::MAX { i64::MAX as u64 - origin } else { range.end - origin };
            let what = Retrieval::Partial(Window { offset: origin, length });
            Command::Eret { what, path: from }
        };
        let to_destination = self.destination_commands(&relay, whole, restart.as_ref(), origin);
        // Nothing of it is on its way yet: it fails alone.
        let named = to_destination
            .iter()
            .filter(|(purpose, _)| matches!(purpose, Purpose::Begin | Purpose::Transfer));
        let sendable = named
            .map(|(_, command)| self.destination.control.check(command))
            .chain([self.source.control.check(&retrieve)])
            .collect::<Result<(), _>>();
        if let Err(e) = sendable {
            return self.worker.failed(Job::Third(relay, range), e);
        }
        let mut to_source = Vec::new();
        to_source.extend(restart.map(|restart| (Purpose::Restart, Command::Rest(restart))));
        to_source.push((Purpose::Transfer, retrieve));
        let meter = Meter::new(&self.worker.ctx.report, &relay.task).on(self.participant.as_ref());
        let mut data = RangeSet::from_range(range.clone());
        data.subtract(&present);
        let id = self.pipeline.submit(Submission {
            file: relay,
            range,
            data,
            origin,
            own: Moving::new(meter, present),
            commands: Sides { source: to_source, destination: to_destination },
        });
        if let Err(e) = self.send_transfer(id) {
            // Half of it may be on its way: nothing is known of either session.
            self.pipeline.fail(id, e);
            return Err(RemoteError::Desynchronized);
        }
        Ok(())
    }

    /// The commands with which the destination receives data from `origin` on.
    fn destination_commands(
        &mut self,
        relay: &Relay,
        whole: bool,
        restart: Option<&Restart>,
        origin: u64,
    ) -> Vec<(Purpose, Command)> {
        if let Some(plan) = relay.staging.upload() {
            let in_flight = |id: &UploadId| {
                let mut plans = self.pipeline.slots().filter_map(|slot| slot.file.staging.upload());
                *id == plan.id || plans.any(|plan| plan.id == *id)
            };
            let mut commands = self.destination.releases(in_flight);
            self.destination.begins(&plan.id);
            // Blocks say where they belong; other data begins behind what is there.
            let at = if let Some(Restart::Offset(there)) = restart { origin + there } else { origin };
            commands.extend(plan.transfer(at));
            return commands;
        }
        let mut commands = Vec::new();
        let preserve = self.worker.ctx.options().preserve;
        if let Some(command) = relay.asks_for_place(&self.destination.can, preserve) {
            commands.push((Purpose::Replaced, command));
        }
        if let Some(size) = relay.task.length().filter(|size| *size > SMALL && whole) {
            commands.push((Purpose::Hint, Command::Allo(size)));
        }
        commands.extend(restart.map(|restart| (Purpose::Restart, Command::Rest(restart.clone()))));
        let path = relay.path.clone();
        let store = if whole {
            Command::Stor(path)
        } else {
            Command::Esto { place: Placement::Adjusted(origin), path }
        };
        commands.push((Purpose::Transfer, store));
        commands
    }

    /// Sends the commands of a transfer: first the destination's, which stand first in the pipeline.
    fn send_transfer(&mut self, id: u64) -> Result<(), RemoteError> {
        let mut pointed = !self.delayed();
        while let Some(outgoing) = self.pipeline.next_command() {
            if outgoing.side == Side::Source && !std::mem::replace(&mut pointed, true) {
                let address = self.delayed_address(id)?;
                self.point(address)?;
            }
            self.send_command(outgoing)?;
        }
        Ok(())
    }

    /// Delayed passive: the address is a preliminary reply to STOR.
    pub(super) fn delayed_address(&mut self, id: u64) -> Result<SocketAddr, RemoteError> {
        loop {
            let answer = self.destination.control.answer()?;
            if let Answer::Preliminary(reply) = &answer
                && reply.code() == 127
            {
                let peer = self.destination.control.remote_addr().ip();
                return match answer::address(reply, peer) {
                    Ok(address) => reachable(address, peer, (self.destination.control.peer(), false)),
                    Err(_) => Err(self.destination.nonsense("STOR", reply)),
                };
            }
            self.hear(Side::Destination, answer);
            if let Some(error) = self.pipeline.slot_mut(id).and_then(|slot| slot.error.take()) {
                return Err(error);
            }
        }
    }
}
