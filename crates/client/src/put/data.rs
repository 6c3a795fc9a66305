//! The data of uploads.

use std::os::fd::AsFd;

use super::*;

impl Flow<'_> {
    /// Sends the data of one range.
    pub(super) fn transfer(&mut self, id: u64) -> Result<(), RemoteError> {
        let ctx = self.worker.ctx;
        let (Some(mut channel), Some(slot)) = (self.peers.session.take_channel(), self.pipeline.slot(id))
        else {
            return Err(RemoteError::Desynchronized);
        };
        let (upload, ranges, range) = (slot.file.clone(), slot.data.clone(), slot.range.clone());
        let path = upload.task.source.path();
        let progress = Arc::new(Progress::new());
        let mut meter = Meter::new(&ctx.report, &upload.task).on(self.participant.as_ref());
        let moving = self.participant.as_ref().map(|participant| participant.moves(Some(progress.clone())));
        // Other sessions may move other ranges of it.
        let there = || upload.present().intersection(range.clone()).len();
        let before = there();
        let moves = self.peers.session.changes_driver(ranges.len());
        let renewal = (channel.mode == Mode::ExtendedBlock && !upload.is_direct()).then(|| self.renewal(0));
        let pipeline = &mut self.pipeline;
        let mut judge = |answer: Answer| {
            hear(pipeline, ctx, None, Side::Destination, answer);
            let failed = pipeline.slot(id).is_none_or(|slot| slot.error.is_some());
            // Behind a refused file, the server has no file for the last data, and takes none.
            let of_no_use = upload.has_failed() || failed || pipeline.is_behind_refusal(id);
            if of_no_use { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut watch = Watch::new(
            &mut self.peers.session.control,
            &mut judge,
            Some(&mut meter),
            ctx.options().timeouts.stall,
            &ctx.cancel,
            path.clone(),
        );
        if matches!(upload.source, UploadSource::Ranged(_)) {
            watch = watch.moving(&moves).renewing(renewal);
        }
        let mut stream_sum = None;
        let result = match &upload.source {
            UploadSource::Ranged(handle) => {
                let job = SendJob {
                    source: handle.clone(),
                    ranges,
                    origin: 0,
                    // A small file was summed when it was read.
                    checksum: upload.check.in_passing().filter(|_| upload.expected.is_none()),
                    expected_size: upload.task.size.filter(|_| !upload.task.grows),
                    resend: self.peers.session.resends,
                    feed: None,
                };
                channel.data.send(&job, &mut watch, &progress)
            }
            UploadSource::Stream(stream) => match stream
                .open(upload.task.window, upload.spent.clone())
                .and_then(|reader| Ok((reader.descriptor()?, reader)))
            {
                Ok((descriptor, reader)) => {
                    let hasher = upload.check.algorithm().map(Hasher::new);
                    let mut reader = Summing { reader, hasher };
                    let sent =
                        channel.data.send_polled(&mut reader, descriptor.as_fd(), &mut watch, &progress);
                    stream_sum = reader.hasher.map(Hasher::finish);
                    sent
                }
                Err(e) => Err(ropewalk_engine::Error::Reader(e)),
            },
        };
        let failure = watch.failure.take();
        if let Ok(sent) = &result {
            meter.update(sent.bytes, sent.streams);
        }
        meter.finish(&progress);
        if result.is_err() {
            meter.failed(there().saturating_sub(before));
        }
        drop((meter, moving));
        match result {
            Ok(sent) => {
                if let (UploadSource::Stream(_), Some(slot)) = (&upload.source, self.pipeline.slot_mut(id)) {
                    upload.streamed(sent.bytes, stream_sum);
                    slot.data = RangeSet::from_range(0..sent.bytes);
                }
                self.pipeline.moved(id, Moved { ranges: None, sums: sent.pieces });
                if channel.mode == Mode::ExtendedBlock {
                    self.peers.session.keep_channel(channel);
                }
                Ok(())
            }
            // It goes back with the session.
            Err(_) if failure.is_none() && self.pipeline.is_behind_refusal(id) => Ok(()),
            // Nothing of that is news of it, or of those behind it.
            Err(_) if upload.has_failed() => Err(RemoteError::Desynchronized),
            Err(source) => {
                drop(channel);
                let mut error = failure
                    .unwrap_or_else(|| RemoteError::data(self.peers.session.control.peer(), path, source));
                if matches!(error, RemoteError::Data { .. }) {
                    let over = |slot: &Slot<_, _>| {
                        slot.has_ended(Side::Destination) || slot.error.is_some() && !slot.awaits_refusal()
                    };
                    self.last_words(Side::Destination, |pipeline| {
                        pipeline.slot(id).is_none_or(over) || pipeline.is_behind_refusal(id)
                    });
                    // One before it was refused, and the server closed the connections of both.
                    if self.pipeline.is_behind_refusal(id) {
                        return Ok(());
                    }
                }
                error = error.or_refusal(self.pipeline.slot_mut(id).and_then(|slot| slot.error.take()));
                if matches!(error, RemoteError::Data { .. } | RemoteError::Stalled { .. })
                    && self.peers.session.other_driver().is_some()
                {
                    self.peers.session.driver_failed(&error.to_string());
                    error = RemoteError::Desynchronized;
                }
                let refused = matches!(error, RemoteError::Refused { .. });
                if refused {
                    self.worker.careful.set(CAREFUL);
                }
                self.pipeline.fail(id, upload.once_only(error));
                // The last command was answered: the session is as good as new, its channel is not.
                let clean = refused && self.pipeline.len() == 1 && self.pipeline.pending() == 0;
                if clean { Ok(()) } else { Err(RemoteError::Desynchronized) }
            }
        }
    }
}
