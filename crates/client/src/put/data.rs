//! The data of uploads.

use std::os::fd::AsFd;

use super::*;

impl Flow<'_> {
    /// Sends the data of one slot.
    pub(super) fn transfer(&mut self, at: usize) -> Result<(), RemoteError> {
        let ctx = self.worker.ctx;
        let id = self.first + at as u64;
        let Some(mut channel) = self.session.take_channel() else { return Err(RemoteError::OutOfStep) };
        let (upload, ranges) = (self.slots[at].upload.clone(), self.slots[at].data.clone());
        let path = upload.task.source.path();
        let progress = Arc::new(Progress::new());
        let mut meter = Meter::new(&ctx.report, &upload.task).on(self.seat.as_ref());
        let _moving = self.seat.as_ref().map(|seat| seat.moves(Some(progress.clone())));
        let range = self.slots[at].range.clone();
        // Other sessions may move other ranges of it.
        let there = || upload.present().intersection(range.clone()).len();
        let before = there();
        let (asks, slots, first) = (&mut self.asks, &mut self.slots, self.first);
        let mut judge = |answer: Answer| {
            hear(asks, slots, first, ctx, answer);
            let at = (id - first) as usize;
            // Behind one that was refused there is more data than the server has files for, and nobody takes it.
            let of_no_use = upload.has_failed()
                || slots[at].error.is_some()
                || slots.iter().take(at).any(Slot::entangles);
            if of_no_use { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut watch = Watch::new(
            &mut self.session.control,
            &mut judge,
            Some(&mut meter),
            ctx.options().stall,
            &ctx.cancel,
            path.clone(),
        );
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
        drop(meter);
        match result {
            Ok(sent) => {
                if let UploadSource::Stream(_) = upload.source {
                    upload.streamed(sent.bytes, stream_sum);
                    self.slots[at].data = RangeSet::from_range(0..sent.bytes);
                }
                self.slots[at].sent = Some(sent.pieces);
                if channel.mode == Mode::ExtendedBlock {
                    self.session.keep_channel(channel);
                }
                Ok(())
            }
            // It goes back with the session.
            Err(_) if failure.is_none() && self.slots.iter().take(at).any(Slot::entangles) => Ok(()),
            // Nothing of that is news of it, or of those behind it.
            Err(_) if upload.has_failed() => Err(RemoteError::OutOfStep),
            Err(source) => {
                drop(channel);
                let mut error =
                    failure.unwrap_or_else(|| RemoteError::data(self.session.control.peer(), path, source));
                if matches!(error, RemoteError::Data { .. }) {
                    let (asks, slots) = (&mut self.asks, &mut self.slots);
                    self.session.control.last_words(&mut |answer| {
                        if let Some(answer) = answer {
                            hear(asks, slots, first, ctx, answer);
                        }
                        slots[at].ended.is_some()
                            || slots[at].error.is_some()
                            || slots.iter().take(at).any(Slot::entangles)
                    });
                    // One before it was refused, and the server closed the connections of both.
                    if self.slots.iter().take(at).any(Slot::entangles) {
                        return Ok(());
                    }
                    error = self.slots[at].error.take().unwrap_or(error);
                }
                let refused = matches!(error, RemoteError::Refused { .. });
                if refused {
                    self.worker.careful.set(CAREFUL);
                }
                self.slots[at].error = Some(upload.once_only(error));
                // The last command was answered: the session is as good as new, its channel is not.
                let clean = refused && self.slots.len() == 1 && self.asks.is_empty();
                if clean { Ok(()) } else { Err(RemoteError::OutOfStep) }
            }
        }
    }
}
