//! The data of downloads.

use super::*;

impl Flow<'_> {
    /// We listen: the peer's connections come before its preliminary reply.
    pub(super) fn await_begin(&mut self) -> Result<(), RemoteError> {
        let limit = self.worker.ctx.options().timeouts.connect;
        let fresh = self.peers.session.channel().is_some_and(|c| c.data.cached() == 0);
        if !fresh {
            let answer = self.peers.session.control.answer()?;
            Sender::hear(self, Side::Source, answer);
            return Ok(());
        }
        let answer = loop {
            // A server that has the transfer in a queue connects later.
            match self.peers.session.control.answer_until(Instant::now() + limit)? {
                Some(answer @ Answer::Queued(_)) => Sender::hear(self, Side::Source, answer),
                answer => break answer,
            }
        };
        match answer {
            Some(answer) => {
                Sender::hear(self, Side::Source, answer);
                Ok(())
            }
            None if self.peers.session.other_driver().is_some() => {
                self.peers.session.driver_failed("the server made no data connection");
                Err(RemoteError::Desynchronized)
            }
            None => {
                self.avoid_listening();
                let peer = self.peers.session.control.peer().to_owned();
                Err(RemoteError::NoDataConnection { peer, limit })
            }
        }
    }

    /// Takes the data of one range.
    pub(super) fn receive(&mut self, id: u64) -> Result<(), RemoteError> {
        let ctx = self.worker.ctx;
        let Some(mut channel) = self.peers.session.take_channel() else {
            let what = "send: the data channel is gone".to_owned();
            return Err(RemoteError::Unsupported {
                peer: self.peers.session.control.peer().to_owned(),
                what,
            });
        };
        let Some(slot) = self.pipeline.slot(id) else { return Err(RemoteError::Desynchronized) };
        let (download, accept, origin) = (slot.file.clone(), slot.data.clone(), slot.origin);
        let (range, accept_len) = (slot.range.clone(), slot.data.len());
        let path = download.task.source.path();
        // Where what is asked for reaches to the end of the file.
        let end = Some(download.end()).filter(|end| accept.end() == *end);
        let progress = Arc::new(Progress::new());
        let mut meter = Meter::new(&ctx.report, &download.task).on(self.participant.as_ref());
        let moving = self.participant.as_ref().map(|participant| participant.moves(Some(progress.clone())));
        // Other sessions may move other ranges of it.
        let there = || download.present().intersection(range.clone()).len();
        let before = there();
        let written = |range: Range<u64>, sum: Option<u32>| download.record(range, sum);
        let job = ReceiveJob {
            sink: download.handle(),
            origin,
            accept,
            checksum: download.check.in_passing(),
            sparse: download.sparse,
            written: &written,
        };
        let moves = self.peers.session.changes_driver(accept_len);
        let (straggler, streams) = (self.straggler(&download), channel.streams);
        let renewal = (channel.mode == Mode::ExtendedBlock).then(|| self.renewal(0));
        let (pipeline, participant) = (&mut self.pipeline, self.participant.as_ref());
        let mut judge = |answer: Answer| {
            hear(pipeline, ctx, participant, Side::Source, answer);
            let failed = pipeline.slot(id).is_none_or(|slot| slot.error.is_some());
            if failed { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let mut watch = Watch::new(
            &mut self.peers.session.control,
            &mut judge,
            Some(&mut meter),
            ctx.options().timeouts.stall,
            &ctx.cancel,
            path.clone(),
        );
        if let Some(wanted) = &self.wanted {
            watch = watch.streams(wanted, channel.data.parallelism());
        }
        let idle = || {
            let rate = participant?.typical_rate(streams)?;
            Some(Idle { sessions: ctx.queue.idle(), rate })
        };
        watch = watch.yielding(straggler, &idle).moving(&moves).renewing(renewal);
        let secure = || download.checkpoint();
        if ctx.options().integrity.fsync == FsyncPolicy::EachMarker {
            watch = watch.secured(&secure);
        }
        let result = channel.data.receive(&job, &mut watch, &progress);
        let failure = watch.failure.take();
        if let Ok(received) = &result {
            meter.update(received.bytes, received.streams);
        }
        meter.finish(&progress);
        if result.is_err() {
            meter.failed(there().saturating_sub(before));
        }
        drop((meter, moving));
        if self.wanted.is_some() {
            // SITE STREAMS has changed the number meanwhile: the next channel sets its own.
            self.peers.session.forget_parallelism();
        }
        match result {
            Ok(received) => {
                self.pipeline.moved(id, Moved { ranges: Some(received.ranges), sums: received.pieces });
                if channel.mode == Mode::ExtendedBlock {
                    self.peers.session.keep_channel(channel);
                }
                Ok(())
            }
            Err(source) => {
                let came = !matches!(source, ropewalk_engine::Error::NoConnection { .. });
                if channel.listening && !came && self.peers.session.other_driver().is_none() {
                    self.avoid_listening();
                }
                drop(channel);
                let peer = self.peers.session.control.peer().to_owned();
                let grew = end.is_some_and(|end| goes_beyond(&source, end));
                let mut error = failure.unwrap_or_else(|| match grew {
                    true => RemoteError::Grew { peer, path },
                    false => RemoteError::data(&peer, path, source),
                });
                if matches!(error, RemoteError::Data { .. }) {
                    self.last_words(Side::Source, |pipeline| {
                        let over = |slot: &Slot<_, _>| slot.has_ended(Side::Source) || slot.error.is_some();
                        pipeline.slot(id).is_none_or(over)
                    });
                }
                error = error.or_refusal(self.pipeline.slot_mut(id).and_then(|slot| slot.error.take()));
                if matches!(error, RemoteError::Data { .. } | RemoteError::Stalled { .. })
                    && self.peers.session.other_driver().is_some()
                {
                    self.peers.session.driver_failed(&error.to_string());
                    error = RemoteError::Desynchronized;
                }
                // In MODE S the next file has a new channel in any case. Otherwise all that is in
                // the pipeline is lost.
                let alone = self.pipeline.len() == 1 && !error.breaks_session();
                self.pipeline.fail(id, error);
                if alone { Ok(()) } else { Err(RemoteError::Desynchronized) }
            }
        }
    }

    /// Detects that this session delays the end of a file that several sessions move.
    fn straggler(&self, download: &Download) -> Option<Straggler> {
        // A server that can change the streams of a transfer deals its blocks itself.
        self.participant.as_ref().filter(|_| download.piece.is_cut() && self.wanted.is_none())?;
        let left = self.pipeline.slots().filter(|slot| !slot.has_moved()).map(|slot| slot.data.len());
        let left = left.fold(0, u64::saturating_add);
        Some(Straggler::new(left, self.peers.session.control.rtt(), Instant::now()))
    }

    /// Whether the server could not connect to this host, or failed before it did without a reason.
    /// It must not try again.
    pub(super) fn no_way_back(&mut self) -> bool {
        let fresh = self.peers.session.channel().is_some_and(|c| c.listening && c.data.cached() == 0);
        let suspicious = |slot: &Slot<Download, Duration>| match &slot.error {
            Some(RemoteError::Refused { reply, .. }) => {
                !slot.has_begun(Side::Source) && reply_kind(reply) == FailureKind::Other
            }
            _ => false,
        };
        if !fresh || !self.pipeline.front().is_some_and(suspicious) {
            return false;
        }
        self.avoid_listening();
        self.pipeline.forgive();
        true
    }

    pub(super) fn avoid_listening(&self) {
        self.peers.session.endpoint.unreachable_back.store(true, Ordering::Relaxed);
        self.worker.ctx.report.warn_once(format!(
            "{} cannot open data connections to this host (a firewall or NAT?): single connections to it are used \
             instead, which is slower",
            self.peers.session.endpoint.name
        ));
    }
}

/// Whether bytes came that a file which ends at `end` does not have.
fn goes_beyond(error: &ropewalk_engine::Error, end: u64) -> bool {
    use ropewalk_engine::Error as E;
    use ropewalk_protocol::mode_e::ReceiveError;
    match error {
        E::TooMuch { .. } => true,
        E::Protocol { source: ReceiveError::OutsideAccepted { offset, count, origin, .. }, .. } => {
            origin.saturating_add(*offset).saturating_add(*count) > end
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_engine::Error;
    use ropewalk_protocol::mode_e::ReceiveError;

    use super::*;

    #[test]
    fn only_what_a_file_does_not_have_makes_it_grow() {
        let peer = || ([127, 0, 0, 1], 1).into();
        let block = |offset, count, origin| Error::Protocol {
            peer: peer(),
            stream: 0,
            source: ReceiveError::OutsideAccepted { offset, count, origin, nearest: None },
        };
        assert!(goes_beyond(&Error::TooMuch { peer: peer(), expected: 5 }, 5));
        assert!(goes_beyond(&block(3, 3, 0), 5) && goes_beyond(&block(1, 3, 2), 5));
        assert!(goes_beyond(&block(u64::MAX, 3, 2), 5));
        assert!(!goes_beyond(&block(1, 3, 1), 5));
    }
}
