//! Division of big files among sessions. A session takes the range that it should move now, and
//! queues the rest for the next session that is free.

use std::ops::Range;
use std::sync::Arc;

use crate::in_flight::InFlight;
use crate::path_defaults::cut_range;
use crate::tune::Participant;
use crate::work::Job;
use crate::worker::Worker;

impl Worker<'_> {
    /// Shortens a range to what a session with this many streams should move now; the rest is
    /// queued for the next worker.
    pub(crate) fn cut_range<F: InFlight>(
        &self,
        file: &Arc<F>,
        range: Range<u64>,
        participant: Option<&Participant>,
        streams: u32,
    ) -> Range<u64> {
        // This range may be short although much of the file is left, so the queued ranges count,
        // too.
        let left = self.ahead(file, range.end - range.start);
        match self.ctx.range_size(left, participant, streams) {
            Some(size) => self.cut(file, range, size),
            None => range,
        }
    }

    /// `bytes` plus the queued bytes of the same file. A data channel that is opened now may be
    /// used for all of them.
    pub(crate) fn ahead<F: InFlight>(&self, file: &Arc<F>, bytes: u64) -> u64 {
        // Undivided files are skipped: there are many small ones, and the queue may be long.
        if !file.piece().is_cut() {
            return bytes;
        }
        let bytes_of = |job: &Job| match F::of_job(job) {
            Some((other, range)) if Arc::ptr_eq(other, file) => range.end - range.start,
            _ => 0,
        };
        self.ctx.queue.sum(bytes_of).saturating_add(bytes)
    }

    /// About the first `size` bytes of a range; the rest is queued for the next worker.
    fn cut<F: InFlight>(&self, file: &Arc<F>, range: Range<u64>, size: u64) -> Range<u64> {
        let (now, rest) = cut_range(range, &file.present(), size);
        if let Some(rest) = rest {
            file.expect(1);
            file.piece().set_size(size);
            self.ctx.queue.push_urgent([file.clone().job(rest)]);
        }
        now
    }

    /// Shortens a job before a log-in, which takes many round trips, so that other workers need not
    /// wait for it to get the rest of a file that is already divided.
    pub(crate) fn cut_before_log_in(&self, job: Job) -> Job {
        match job {
            Job::Get(file, range) => self.cut_as_before(file, range),
            Job::Put(file, range) => self.cut_as_before(file, range),
            Job::Third(file, range) => self.cut_as_before(file, range),
            whole @ (Job::File(_) | Job::Sum(_)) => whole,
        }
    }

    fn cut_as_before<F: InFlight>(&self, file: Arc<F>, range: Range<u64>) -> Job {
        let range = match file.piece().size() {
            0 => range,
            // A failed file is dropped whole.
            _ if file.has_failed() => range,
            size => self.cut(&file, range, size),
        };
        file.job(range)
    }
}
