//! What comes before the data: which ranges, over which channel, by which commands.

use super::*;
use crate::place::is_device;

impl Flow<'_> {
    /// Opens the destination, and cuts a big file up between the sessions.
    pub(super) fn begin(&mut self, task: &mut Task) -> Result<Begun<Download>, RemoteError> {
        let ctx = self.worker.ctx;
        let options = ctx.options();
        // Another try, or a size that nobody knows: ask first. A part that may be there is of this version of the
        // source, or of none: listings may not tell the time.
        let resumable = options.recovery.resume && task.size.is_some_and(|size| size > SMALL);
        let unknown = task.size.is_none() || task.modified.is_none() && resumable;
        let ask = (unknown || task.tries.total > 0) && !task.source_program;
        if (ask || task.compares()) && !self.pipeline.is_empty() {
            return Ok(Begun::Later);
        }
        if ask && !options.data.ascii {
            match self.peers.session.stat(&task.source.path()) {
                Ok(entry) => {
                    task.size = entry.size;
                    task.modified = entry.modified.or(task.modified);
                    task.mode = entry.mode.or(task.mode);
                }
                // Only the time was to be known.
                Err(e) if !e.breaks_session() && task.size.is_some() && task.tries.total == 0 => {
                    tracing::debug!(%e, "nothing is known of its time");
                }
                Err(e) => return Err(e),
            }
        }
        if task.size == Some(0) && is_made_up(&task.source.path()) {
            task.size = None;
        }
        if options.data.ascii {
            // Line ends are translated: nobody knows how long it will be.
            task.size = None;
        }
        if task.compares() && self.same_already(task)? {
            ctx.report.needless(task, "same checksum");
            self.worker.done();
            return Ok(Begun::Settled);
        }
        if task.window.is_some() && !self.peers.session.can.partial {
            return Err(self.no_parts());
        }
        // As with uploads to devices: of what nobody keeps there is nothing to prove, unless it was asked for.
        let measured = matches!(task.destination, Place::Measure(_))
            && options.integrity.checksum == ChecksumPolicy::Default;
        let check = ctx.check(&self.peers.session)?;
        let check = if measured || task.source_program { Check::Size } else { check };
        ctx.report.anew(task);
        // What nobody can prove to be of one version with the rest is not gone on with.
        let resume = options.recovery.resume && (task.modified.is_some() || !matches!(check, Check::Size));
        let download = Download::begin(task.clone(), check, &ctx.store, options, resume)?;
        if let Some(reason) = download.started_over() {
            tracing::info!(file = %download.task.destination.display(), reason, "begins anew");
        }
        ctx.report.started(&download.task, download.present().len());
        // Of a file that grows it is asked when all has come: what is the same then was there.
        let early = matches!(check, Check::Asked(_)) && !download.task.grows;
        if early && self.cuts(&download, &download.whole()) {
            // It takes as long as the data, and need not wait for it.
            download.expect(1);
            ctx.queue.push_urgent([Job::Sum(download.clone())]);
        }
        Ok(Begun::Yes(download))
    }

    fn no_parts(&self) -> RemoteError {
        let what = "send a part of a file (no ERET)".to_owned();
        RemoteError::Unsupported { peer: self.peers.session.control.peer().to_owned(), what }
    }

    /// Has the server compute the checksum of a source, while other sessions move its data.
    pub(super) fn ask_sum(&mut self, download: Arc<Download>) -> Result<(), RemoteError> {
        let algorithm = download.check.algorithm().filter(|_| !download.has_failed());
        let Some(algorithm) = algorithm else {
            self.worker.done();
            return Ok(());
        };
        let command = checksum_command(algorithm, &download.task, &download.task.source.path());
        self.pipeline.submit_checksum(Submission {
            file: download,
            range: 0..0,
            data: RangeSet::new(),
            origin: 0,
            own: Duration::ZERO,
            commands: Sides { source: vec![(Purpose::Checksum, command)], destination: Vec::new() },
        });
        self.send_commands()
    }

    /// Whether several sessions share out what is left of this file.
    pub(super) fn cuts(&self, download: &Download, range: &Range<u64>) -> bool {
        let can = self.peers.session.can.partial
            && self.peers.session.preferred_mode() == Mode::ExtendedBlock
            && !download.in_order();
        let size = download.task.length();
        can && range.end != u64::MAX
            && self.worker.ctx.divides_files(&self.peers.session)
            && size.is_some_and(|size| size.saturating_sub(download.resumed) >= 2 * RANGE)
            && self.worker.ctx.range_size(RANGE, self.participant.as_ref(), 1).is_some()
    }

    /// `sync` by checksum: whether the destination has the same bytes.
    pub(super) fn same_already(&mut self, task: &Task) -> Result<bool, RemoteError> {
        let Place::Local(path) = &task.destination else { return Ok(false) };
        let Some(algorithm) = self.worker.ctx.comparison(&[&self.peers.session.can]) else {
            return Ok(false);
        };
        let command = checksum_command(algorithm, task, &task.source.path());
        let reply = match self.peers.session.call_reading(&command, task.size) {
            Ok(reply) => reply,
            Err(e) if e.breaks_session() => return Err(e),
            Err(_) => return Ok(false),
        };
        let ours = self.worker.ctx.local_sum(path, algorithm);
        Ok(ours.is_ok_and(|ours| crate::verify::same(&ours, &reply.text().to_str_lossy())))
    }

    /// The commands of a transfer.
    pub(super) fn submission(
        &mut self,
        part: Part<Download>,
        mode: Mode,
    ) -> Result<Submission<Download, Duration>, RemoteError> {
        let Part { file: download, range, data: mut missing } = part;
        let path = download.task.source.path();
        let whole = range.start == 0 && download.task.length().is_none_or(|n| range.end >= n);
        let grows = download.task.grows && self.peers.session.can.partial && download.task.size.is_some();
        let partial = download.task.window.is_some() || !whole || grows;
        let (origin, command) = if partial {
            let length = range.end.saturating_sub(range.start);
            // An open end: as much as there is.
            let length = if range.end == u64::MAX { i64::MAX as u64 - range.start } else { length };
            let what = Retrieval::Partial(Window { offset: range.start, length });
            (range.start, Command::Eret { what, path: path.clone() })
        } else {
            (0, Command::Retr(path.clone()))
        };
        // What is there counts from the beginning of the window.
        let there = missing.complement(range.clone()).shift_down(origin);
        let restart = match mode {
            _ if there.is_empty() => None,
            Mode::ExtendedBlock => Some(Restart::Ranges(there)),
            Mode::Stream if there.prefix() > 0 && self.peers.session.can.restart => {
                missing = RangeSet::from_range(origin + there.prefix()..range.end);
                Some(Restart::Offset(there.prefix()))
            }
            Mode::Stream => {
                missing = RangeSet::from_range(range.clone());
                None
            }
        };
        if partial && !self.peers.session.can.partial {
            return Err(self.no_parts());
        }
        let sum = (matches!(download.check, Check::Asked(_)) && whole)
            .then(|| download.check.algorithm())
            .flatten()
            .map(|algorithm| checksum_command(algorithm, &download.task, &path));
        // A REST before it would be about the next file.
        self.peers.session.control.check(&command)?;
        let mut commands = Vec::new();
        commands.extend(restart.map(|restart| (Purpose::Restart, Command::Rest(restart))));
        commands.push((Purpose::Transfer, command));
        commands.extend(sum.map(|command| (Purpose::Checksum, command)));
        // Of a range that is not the last it would say too little. Servers answer it when the transfer is over.
        // Pure-FTPd answers 500 at once to a command that comes while it sends, in place of the transfer's own reply.
        if mode == Mode::ExtendedBlock
            && self.peers.session.can.facts
            && download.is_unwatched()
            && download.task.size.is_some_and(|size| range == (0..size))
        {
            commands.push((Purpose::Version, Command::Mlst(Some(path))));
        }
        Ok(Submission {
            file: download,
            range,
            data: missing,
            origin,
            own: Duration::ZERO,
            commands: Sides { source: commands, destination: Vec::new() },
        })
    }
}

/// Of devices, and of files that are made while they are read, servers tell that they are empty.
fn is_made_up(path: &[u8]) -> bool {
    is_device(path) || path.starts_with(b"/sys/")
}
