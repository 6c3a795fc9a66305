//! What comes before the data: which ranges, over which channel, by which commands.

use super::*;

/// From this round trip on, a file that we send goes over one session.
const FAR: Duration = Duration::from_millis(5);

impl Flow<'_> {
    pub(super) fn begin(&mut self, task: &mut Task) -> Result<Begun<Upload>, RemoteError> {
        let ctx = self.worker.ctx;
        let options = ctx.options();
        let source = Source::open(task, &*ctx.store)?;
        if options.storage.in_place
            && !task.destination_program
            && self.peers.session.is_here()
            && let Place::Local(path) = &task.source
            && let Ok(here) = ctx.store.stat(path, true)
        {
            if !self.pipeline.is_empty() {
                return Ok(Begun::Later);
            }
            self.peers.session.is_apart(task, (here.device, here.inode))?;
        }
        ctx.tell_of_times(&self.peers.session);
        let resumable = self.is_resumable(task);
        let known = ctx.states.claim(task, resumable, self.peers.session.shares_part_names());
        let ask = known.is_some()
            || task.compares()
            || task.confirm
            || self.peers.session.would_truncate(task)
            || (resumable && self.cuts(task));
        if ask && !self.pipeline.is_empty() {
            return Ok(Begun::Later);
        }
        self.peers.session.spare_beginning(task)?;
        if (task.compares() || task.confirm)
            && let Some(proof) = self.same_already(task)?
        {
            return self.have_already(task, proof);
        }
        let (staging, present) = self.stage(task, known)?;
        let check = ctx.check(&self.peers.session)?;
        let can = &self.peers.session.can;
        let expect = can.may_expect_checksums() && self.peers.session.preferred_mode() == Mode::ExtendedBlock;
        let manner = Manner { check, atomic: can.replace, staging, expect, present };
        ctx.report.anew(task);
        let upload = Upload::begin(task.clone(), source, manner)?;
        self.begun(upload.clone(), &upload, resumable)
    }

    /// Whether a file of this size would be cut up between sessions.
    pub(super) fn cuts(&self, task: &Task) -> bool {
        self.peers.session.can.partial
            && self.worker.ctx.divides_files(&self.peers.session)
            && !self.suffices()
            && self.peers.session.preferred_mode() == Mode::ExtendedBlock
            && task.size.is_some_and(|size| size >= 2 * RANGE)
            && self.worker.ctx.range_size(RANGE, self.participant.as_ref(), 1).is_some()
    }

    /// Whether one session carries whatever the path does. Between two ranges of a file streams wait for each other and for
    /// round trips; where these are short, the server's single thread is what binds.
    fn suffices(&self) -> bool {
        let tuned = self.participant.is_some() && self.worker.ctx.options().tuning.files == crate::Auto::Auto;
        tuned && self.peers.session.control.rtt() >= FAR
    }

    /// Whether several sessions share out what is left of this file.
    pub(super) fn shares(&self, upload: &Upload) -> bool {
        let left = (upload.wanted.end - upload.wanted.start).saturating_sub(upload.resumed);
        let ranged = matches!(upload.source, UploadSource::Ranged(_));
        !upload.is_direct() && ranged && left >= 2 * RANGE && self.cuts(&upload.task)
    }

    /// How it was proved that the destination has the same bytes; `None` where it has not.
    pub(super) fn same_already(&mut self, task: &Task) -> Result<Option<String>, RemoteError> {
        let Place::Local(path) = &task.source else { return Ok(None) };
        let Some(algorithm) = self.worker.ctx.comparison(&[&self.peers.session.can]) else { return Ok(None) };
        let theirs = self.peers.session.checksum(&task.destination.path(), algorithm, None, task.size);
        let Some(theirs) = task.unless_missing(theirs)? else { return Ok(None) };
        let ours = self.worker.ctx.local_sum(path, algorithm)?;
        Ok(proved(algorithm, &ours, &theirs))
    }

    /// The commands of a transfer.
    pub(super) fn submission(
        &mut self,
        part: Part<Upload>,
        mode: Mode,
    ) -> Result<Submission<Upload, Duration>, RemoteError> {
        let Part { file: upload, range, mut data } = part;
        let whole = upload.task.window.is_none() && range == upload.wanted;
        let present = upload.present();
        let mut commands = Vec::new();
        if let Some((algorithm, value)) =
            upload.expected.as_ref().filter(|_| upload.staging.upload().is_none())
        {
            let command = Command::Scks { algorithm: *algorithm, value: value.as_str().into() };
            commands.push((Purpose::Expect, command));
        }
        let offset = match mode {
            Mode::Stream if whole => present.prefix(),
            Mode::Stream => range.start,
            // Offsets on the wire stay those of the file.
            Mode::ExtendedBlock => 0,
        };
        if mode == Mode::Stream {
            data = RangeSet::from_range(offset..range.end);
        }
        // STOR from the beginning would leave nothing of a file whose window is sent.
        let into = upload.task.window.is_some() && self.peers.session.can.partial;
        // ESTO does not truncate.
        let truncates = whole && present.is_empty() || mode == Mode::Stream && !into;
        commands.extend(self.receiving(
            &upload,
            At {
                size: upload.task.length().filter(|_| whole),
                offset,
                restart: (truncates && offset > 0).then_some(Restart::Offset(offset)),
                adjusted: (!truncates).then_some(offset),
            },
        )?);
        Ok(Submission {
            file: upload,
            range,
            data,
            origin: 0,
            own: Duration::ZERO,
            commands: Sides { source: Vec::new(), destination: commands },
        })
    }
}
