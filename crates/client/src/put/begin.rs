//! What comes before the data: which ranges, over which channel, by which commands.

use super::*;

/// From this round trip on, a file that we send goes over one session.
const FAR: Duration = Duration::from_millis(5);

impl Flow<'_> {
    pub(super) fn begin(&mut self, mut task: Task) -> Result<Begun, RemoteError> {
        let ctx = self.worker.ctx;
        let options = ctx.options();
        let settled = |error: RemoteError, task: Task| {
            self.worker.failed(Job::File(task), error).map(|()| Begun::Settled)
        };
        let source = match Source::open(&mut task, &*ctx.store) {
            Ok(source) => source,
            Err(e) => return settled(e, task),
        };
        if options.storage.in_place
            && !task.destination_program
            && self.session.is_here()
            && let Place::Local(path) = &task.source
            && let Ok(here) = ctx.store.stat(path, true)
        {
            if !self.pipeline.is_empty() {
                return Ok(Begun::Later(task));
            }
            if let Err(e) = self.session.is_apart(&task, (here.device, here.inode)) {
                return settled(e, task);
            }
        }
        ctx.tell_of_times(&self.session);
        let resumable = options.recovery.resume
            && !options.storage.in_place
            && !options.data.ascii
            && task.window.is_none()
            && !task.apart
            && !task.is_to_device()
            && task.size.is_some_and(|size| size > SMALL);
        let known = ctx.states.claim(&mut task, resumable, self.session.shares_part_names());
        let ask = known.is_some()
            || task.compares()
            || task.confirm
            || self.session.would_truncate(&task)
            || (resumable && self.cuts(&task));
        if ask && !self.pipeline.is_empty() {
            return Ok(Begun::Later(task));
        }
        if let Err(e) = self.session.spare_beginning(&task) {
            return settled(e, task);
        }
        if task.compares() || task.confirm {
            match self.same_already(&task) {
                Ok(Some(proof)) => {
                    let path = task.destination.path();
                    // The session that sent it may have ended before.
                    if task.confirm
                        && let Err(e) = self.worker.preserve(&mut self.session, &task, &path)
                    {
                        return settled(e, task);
                    }
                    self.worker.have_already(task, proof);
                    return Ok(Begun::Settled);
                }
                Ok(None) => {}
                Err(e) => return settled(e, task),
            }
        }
        let staging = match options.storage.in_place {
            true => Staging::InPlace,
            false => Staging::apart(&task, &self.session, options, known.is_some()),
        };
        let present = match known {
            Some(known) => match staging.received(&mut self.session, known, &task) {
                Ok(present) => present,
                Err(e) => return settled(e, task),
            },
            None => RangeSet::new(),
        };
        let can = &self.session.can;
        let manner = match self.worker.ctx.check(&self.session) {
            Ok(check) => {
                let expect =
                    can.may_expect_checksums() && self.session.preferred_mode() == Mode::ExtendedBlock;
                Manner { check, atomic: can.replace, staging, expect, present: present.clone() }
            }
            Err(e) => return settled(e, task),
        };
        ctx.report.anew(&mut task);
        let upload = match Upload::begin(task.clone(), source, manner) {
            Ok(upload) => upload,
            Err(e) => return settled(e, task),
        };
        if resumable {
            ctx.states.save(&upload.task, &present);
        }
        ctx.report.started(&upload.task, present.len());
        let whole = upload.wanted.clone();
        if self.shares(&upload)
            && present.is_empty()
            && let Err(e) = upload.staging.clear(&mut self.session)
        {
            ctx.report.put_back();
            return settled(e, upload.task.clone());
        }
        Ok(Begun::Yes(upload, whole))
    }

    /// Whether a file of this size would be cut up between sessions.
    pub(super) fn cuts(&self, task: &Task) -> bool {
        self.session.can.partial
            && self.worker.ctx.divides_files(&self.session)
            && !self.suffices()
            && self.session.preferred_mode() == Mode::ExtendedBlock
            && task.size.is_some_and(|size| size >= 2 * RANGE)
            && self.worker.ctx.range_size(RANGE, self.participant.as_ref(), 1).is_some()
    }

    /// Whether one session carries whatever the path does. Between two ranges of a file streams wait for each other and for
    /// round trips; where these are short, the server's single thread is what binds.
    fn suffices(&self) -> bool {
        let tuned = self.participant.is_some() && self.worker.ctx.options().tuning.files == crate::Auto::Auto;
        tuned && self.session.control.rtt() >= FAR
    }

    /// Whether several sessions share out what is left of this file.
    pub(super) fn shares(&self, upload: &Upload) -> bool {
        let left = (upload.wanted.end - upload.wanted.start).saturating_sub(upload.resumed);
        let ranged = matches!(upload.source, UploadSource::Ranged(_));
        !upload.is_direct() && ranged && left >= 2 * RANGE && self.cuts(&upload.task)
    }

    /// Takes as much of a range as this session should move now, and leaves the rest to whoever comes next.
    pub(super) fn cut_range(&self, upload: &Arc<Upload>, range: Range<u64>) -> Range<u64> {
        if !self.shares(upload) {
            return range;
        }
        self.worker.cut_range(upload, range, self.participant.as_ref(), self.session.streams_of_channel())
    }

    /// How it was proved that the destination has the same bytes; `None` where it has not.
    pub(super) fn same_already(&mut self, task: &Task) -> Result<Option<String>, RemoteError> {
        let Place::Local(path) = &task.source else { return Ok(None) };
        let Some(algorithm) = self.worker.ctx.comparison(&[&self.session.can]) else { return Ok(None) };
        let theirs = self.session.checksum(&task.destination.path(), algorithm, None, task.size);
        let Some(theirs) = task.unless_missing(theirs)? else { return Ok(None) };
        let ours = self.worker.ctx.local_sum(path, algorithm)?;
        Ok(proved(algorithm, &ours, &theirs))
    }

    /// Sends the commands of a transfer.
    pub(super) fn send(
        &mut self,
        upload: Arc<Upload>,
        range: Range<u64>,
        mut data: RangeSet,
        mode: Mode,
    ) -> Result<(), RemoteError> {
        let size = upload.task.length();
        let whole = upload.task.window.is_none() && range == upload.wanted;
        let present = upload.present();
        let path = upload.path.clone();
        let mut commands = Vec::new();
        if let Some(plan) = upload.staging.upload() {
            let in_flight = |id: &UploadId| {
                let mut plans = self.pipeline.slots().filter_map(|slot| slot.file.staging.upload());
                *id == plan.id || plans.any(|plan| plan.id == *id)
            };
            commands = self.session.releases(in_flight);
            self.session.begins(&plan.id);
            let at = match mode {
                Mode::Stream if whole => present.prefix(),
                Mode::Stream => range.start,
                // Offsets on the wire stay those of the file.
                Mode::ExtendedBlock => 0,
            };
            if mode == Mode::Stream {
                data = RangeSet::from_range(at..range.end);
            }
            commands.extend(plan.transfer(at));
        } else {
            if let Some((algorithm, value)) = &upload.expected {
                let command = Command::Scks { algorithm: *algorithm, value: value.as_str().into() };
                commands.push((Purpose::Expect, command));
            }
            let preserve = self.worker.ctx.options().preserve;
            if let Some(command) = upload.asks_for_place(&self.session.can, preserve) {
                commands.push((Purpose::Replaced, command));
            }
            if whole && let Some(size) = size.filter(|size| *size > SMALL) {
                commands.push((Purpose::Hint, Command::Allo(size)));
            }
            match mode {
                _ if whole && present.is_empty() => commands.push((Purpose::Transfer, Command::Stor(path))),
                Mode::ExtendedBlock => {
                    // Offsets on the wire stay those of the file; ESTO does not truncate.
                    commands.push((Purpose::Transfer, Command::Esto { place: Placement::Adjusted(0), path }));
                }
                Mode::Stream => {
                    let at = if whole { present.prefix() } else { range.start };
                    data = RangeSet::from_range(at..range.end);
                    if upload.task.window.is_some() && self.session.can.partial {
                        // STOR from the beginning would leave nothing of what is there.
                        let place = Placement::Adjusted(at);
                        commands.push((Purpose::Transfer, Command::Esto { place, path }));
                    } else {
                        if at > 0 {
                            commands.push((Purpose::Restart, Command::Rest(Restart::Offset(at))));
                        }
                        commands.push((Purpose::Transfer, Command::Stor(path)));
                    }
                }
            }
        }
        // Those that stand before it would be about the next file.
        let mut named =
            commands.iter().filter(|(purpose, _)| matches!(purpose, Purpose::Begin | Purpose::Transfer));
        let sendable = named.try_for_each(|(_, command)| self.session.control.check(command));
        if let Err(e) = sendable {
            return self.worker.failed(Job::Put(upload, range), e);
        }
        self.pipeline.submit(Submission {
            file: upload,
            range,
            data,
            origin: 0,
            own: Duration::ZERO,
            commands: Sides { source: Vec::new(), destination: commands },
        });
        self.send_commands()
    }

    /// Sends the commands that the pipeline has made.
    pub(super) fn send_commands(&mut self) -> Result<(), RemoteError> {
        while let Some(outgoing) = self.pipeline.next_command() {
            let sent = self.session.control.queue(&outgoing.command);
            sent.inspect_err(|_| self.culprit = Some(outgoing.id))?;
            if matches!(outgoing.purpose, Purpose::Checksum | Purpose::Size | Purpose::Commit)
                && let Some(slot) = self.pipeline.slot(outgoing.id)
            {
                let bytes = slot.file.wanted.start.saturating_add(slot.file.bytes());
                self.session.control.last_reads(Some(bytes));
            }
        }
        Ok(())
    }
}
