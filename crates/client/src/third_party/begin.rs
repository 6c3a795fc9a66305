//! Before the data moves: the channel between the servers, the ranges, the commands.

use super::*;

impl<'w> Flow<'w> {
    /// Makes the two servers ready for each other.
    pub(super) fn connect(&mut self, mode: Mode, streams: u32, check: Check) -> Result<(), RemoteError> {
        self.peers.channel = None;
        for session in [&self.peers.servers.source, &self.peers.servers.destination] {
            if session.has_private_tls_data() {
                // Each server would wait for the other one to be the client of TLS (RFC 4217,
                // section 7).
                let what = "protect data on its way to another server with TLS (PROT P): let it come through here \
                            (--through-here), or let it travel in clear (--data-protection clear)";
                let (peer, what) = (session.control.peer().to_owned(), what.to_owned());
                return Err(RemoteError::Unsupported { peer, what });
            }
        }
        // Each server shares a key with us, and none with the other.
        if self.peers.servers.source.wraps_data() || self.peers.servers.destination.wraps_data() {
            let what = "protect data between two servers with Kerberos: leave --data-protection out (data connections are \
                        then bound by a one-time key where both servers know it)";
            return Err(RemoteError::Unsupported {
                peer: self.peers.servers.source.control.peer().to_owned(),
                what: what.to_owned(),
            });
        }
        if self.peers.servers.source.authenticates_data()
            != self.peers.servers.destination.authenticates_data()
        {
            let what = "be one end of a transfer between two servers of which only one authenticates data connections; \
                        use --no-dcau, or gsiftp:// for both";
            return Err(RemoteError::Unsupported {
                peer: self.peers.servers.source.control.peer().to_owned(),
                what: what.to_owned(),
            });
        }
        agree(&mut self.peers.servers.source, &mut self.peers.servers.destination)?;
        let inline = check.inline();
        self.peers.servers.destination.end_channel();
        self.peers.servers.source.end_channel();
        self.peers.renewal = None;
        let extended = mode == Mode::ExtendedBlock;
        let spread =
            |addresses| Spread::of(&self.worker.ctx.options().tuning, self.participant.is_some(), addresses);
        self.peers.spread = spread(1);
        let parallelism = extended.then_some(self.peers.spread.each(streams));
        self.peers.servers.source.wants_path = self.participant.is_some() && streams > 1;
        self.peers.servers.source.wants_resend = self.peers.servers.destination.can.resend;
        self.peers.servers.destination.wants_resend = self.peers.servers.source.can.resend;
        self.peers.servers.source.wants_congestion(self.participant.as_ref());
        self.peers.binding = self.peers.servers.source.bind_with(&self.peers.servers.destination)?;
        self.peers.meeting = self.choose_meeting()?;
        let binding = self.peers.binding.as_ref();
        if self.peers.meeting != Meeting::Announced {
            if parallelism.is_some() {
                self.peers.servers.destination.frequent_markers()?;
            }
            self.meet_at_control_port(mode, parallelism, inline)?;
        } else if self.delayed() {
            // The address comes after STOR.
            let delayed = Command::Opts(Opts::Passive { delayed: true });
            self.peers.servers.destination.prepare(mode, None, inline, None, Some(delayed))?;
            self.peers.servers.destination.prepare(mode, None, inline, binding, Some(Command::Pasv))?;
            self.peers.servers.source.prepare(mode, parallelism, inline, None, None)?;
        } else {
            if parallelism.is_some() {
                self.peers.servers.destination.frequent_markers()?;
            }
            let addresses = self.peers.servers.destination.passive_addresses(mode, inline, binding)?;
            self.peers.spread = spread(addresses.len() as u32);
            let parallelism = extended.then_some(self.peers.spread.each(streams));
            let prepared = self.peers.servers.source.prepare(
                mode,
                parallelism,
                inline,
                binding,
                Some(active(addresses)),
            );
            prepared.map_err(|e| self.cannot_point(e))?;
        }
        self.peers.channel = Some((mode, streams));
        Ok(())
    }

    pub(super) fn delayed(&self) -> bool {
        self.peers.meeting == Meeting::Announced
            && self.worker.ctx.options().data.delayed_passive
            && self.peers.servers.destination.can.delayed_passive
    }

    /// Tells the source where to connect to.
    pub(super) fn point(&mut self, address: SocketAddr) -> Result<(), RemoteError> {
        if let Some(binding) = &self.peers.binding {
            self.peers.servers.source.call(&binding.command())?;
        }
        let refused = self.peers.servers.source.call(&port(address));
        refused.map(drop).map_err(|e| self.cannot_point(e))
    }

    fn cannot_point(&self, error: RemoteError) -> RemoteError {
        match error {
            RemoteError::Refused { command, reply, .. } if matches!(&*command, "PORT" | "EPRT" | "SPOR") => {
                let (peer, other) =
                    (&self.peers.servers.source.endpoint.name, &self.peers.servers.destination.endpoint.name);
                RemoteError::NoThirdParty { peer: peer.clone(), other: other.clone(), reply }
            }
            other => other,
        }
    }

    pub(super) fn begin(&mut self, task: &mut Task) -> Result<Begun<Relay>, RemoteError> {
        let ctx = self.worker.ctx;
        let in_place = ctx.options().storage.in_place;
        let resumable = self.peers.servers.source.can.restart && self.is_resumable(task);
        let locks = self.peers.servers.destination.shares_part_names();
        let mut known = ctx.states.claim(task, resumable, locks);
        let alone = task.size.is_none_or(|size| size >= 2 * RANGE)
            || task.tries.total > 0
            || task.compares()
            || task.confirm
            || in_place
            || known.is_some()
            || self.worker.careful.get() > 0;
        if alone && !self.pipeline.is_empty() {
            return Ok(Begun::Later);
        }
        if !task.starts_program() {
            self.peers.servers.source.is_another_file(task, &mut self.peers.servers.destination, in_place)?;
        }
        ctx.tell_of_times(&self.peers.servers.destination);
        if alone && !task.source_program {
            let entry = self.peers.servers.source.stat(&task.source.path())?;
            if self.peers.servers.source.differs(task, &entry) {
                // The bytes that have come are of another version.
                known = None;
            }
            // The sums differed because a program writes to the source.
            let summed = self.check()?.algorithm().is_some();
            let grew = entry.size.zip(task.size).is_some_and(|(now, before)| now > before);
            task.grows |= summed && task.tries.total > 0 && grew;
            task.size = entry.size.or(task.size);
            task.modified = entry.modified.or(task.modified);
            task.mode = entry.mode.or(task.mode);
        }
        if (task.compares() || task.confirm)
            && let Some(proof) = between::same_already(&mut self.peers.servers, ctx, task)?
        {
            return self.have_already(task, proof);
        }
        let check = self.check()?;
        let (staging, present) = self.stage(task, known)?;
        ctx.report.anew(task);
        let relay = Relay::begin(task.clone(), check, staging, present, false);
        self.begun(relay.clone(), &relay, resumable)
    }

    /// The source is still of the size and time that it had.
    pub(super) fn unchanged(&mut self, task: &Task) -> Result<(), RemoteError> {
        let path = task.source.path();
        let entry = self.peers.servers.source.stat(&path)?;
        if self.peers.servers.source.differs(task, &entry) {
            Err(RemoteError::SourceChanged { path })
        } else {
            Ok(())
        }
    }

    /// Whether one of the two servers is faster with several sessions for a big file.
    pub(super) fn cuts(&self) -> bool {
        self.worker.ctx.divides_files(&self.peers.servers.source)
            || self.worker.ctx.divides_files(&self.peers.servers.destination)
    }

    /// Whether several pairs of sessions share out what is left of this file.
    pub(super) fn shares(&self, relay: &Relay) -> bool {
        let can = self.cuts()
            && !self.peers.servers.destination.is_alone()
            && self.peers.servers.source.can.partial
            && self.peers.servers.destination.can.partial
            && self.mode() == Mode::ExtendedBlock;
        let whole = relay.whole();
        let left = (whole.end - whole.start).saturating_sub(relay.resumed);
        can && !relay.is_direct()
            && whole.end != u64::MAX
            && left >= 2 * RANGE
            && self.worker.ctx.range_size(RANGE, self.participant.as_ref(), 1).is_some()
    }

    /// Tells the source, whenever that changes, how many streams it should use.
    pub(super) fn tell_streams(&mut self) -> Result<(), RemoteError> {
        if let Some(granted) = self.peers.servers.source.control.take_granted() {
            let streams = self.peers.spread.all(granted);
            self.peers.channel = self.peers.channel.map(|(mode, _)| (mode, streams));
        }
        let Some(streams) = self.wanted.as_ref().and_then(Wanted::news) else { return Ok(()) };
        self.peers.servers.source.control.set_streams(streams)
    }

    /// Decides, when a marker has reported what has moved, whether the transfers are broken off for
    /// data nodes that have joined.
    pub(super) fn look_for_nodes(&mut self) {
        if !self.peers.servers.want_new_channel() || self.pipeline.slots().any(|slot| slot.file.is_direct()) {
            return;
        }
        let moved = self.peers.moved;
        match &self.peers.renewal {
            Some((renewal, before)) => self.peers.renews |= renewal.is_due(Instant::now(), moved - before),
            None => {
                let front = self.pipeline.front().map_or(0, |slot| slot.own.bytes(&slot.range));
                self.peers.renewal = Some((self.renewal(front), moved));
            }
        }
    }

    pub(super) fn check(&self) -> Result<Check, RemoteError> {
        let (ctx, servers) = (self.worker.ctx, &self.peers.servers);
        let check = between::check(servers, ctx, true)?;
        let compares = !ctx.options().data.ascii && ctx.options().integrity.checksum != ChecksumPolicy::None;
        if check == Check::Size && compares {
            let both = servers.names();
            ctx.report.warn_once(format!("{both} have no checksum in common: only sizes are compared"));
        }
        Ok(check)
    }

    /// The commands of a transfer for both.
    pub(super) fn submission(
        &mut self,
        part: Part<Relay>,
        mode: Mode,
    ) -> Result<Submission<Relay, Moving<'w>>, RemoteError> {
        let Part { file: relay, range, data } = part;
        let whole = range == relay.whole() && relay.task.window.is_none();
        // No more than it had: the rest is none of this try's.
        let grows = relay.task.grows && self.peers.servers.source.can.partial && relay.task.size.is_some();
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
        // Blocks say where they belong; other data begins behind what is there.
        let offset = if let Some(Restart::Offset(there)) = restart { origin + there } else { origin };
        let at = At {
            size: relay.task.length().filter(|_| whole),
            offset,
            restart: restart.clone(),
            adjusted: (!whole).then_some(origin),
        };
        let to_destination = self.receiving(&relay, at)?;
        self.peers.servers.source.control.check(&retrieve)?;
        let mut to_source = Vec::new();
        to_source.extend(restart.map(|restart| (Purpose::Restart, Command::Rest(restart))));
        to_source.push((Purpose::Transfer, retrieve));
        let meter = Meter::new(&self.worker.ctx.report, &relay.task).on(self.participant.as_ref());
        Ok(Submission {
            file: relay,
            range,
            data,
            origin,
            own: Moving::new(meter, present),
            commands: Sides { source: to_source, destination: to_destination },
        })
    }

    /// Sends the commands of a transfer: first those of the destination, which come first in the
    /// pipeline.
    pub(super) fn send_transfer(&mut self, id: u64) -> Result<(), RemoteError> {
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
            let answer = self.peers.servers.destination.control.answer()?;
            if let Answer::Preliminary(reply) = &answer
                && reply.code() == 127
            {
                let peer = self.peers.servers.destination.control.remote_addr().ip();
                return match answer::address(reply, peer) {
                    Ok(address) => {
                        reachable(address, peer, (self.peers.servers.destination.control.peer(), false))
                    }
                    Err(_) => Err(self.peers.servers.destination.nonsense("STOR", reply)),
                };
            }
            self.hear(Side::Destination, answer);
            if let Some(error) = self.pipeline.slot_mut(id).and_then(|slot| slot.error.take()) {
                return Err(error);
            }
        }
    }
}
