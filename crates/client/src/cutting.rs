//! Big files cut up between sessions: one takes what it should move now and leaves the rest to whoever comes next.

use std::ops::Range;
use std::sync::Arc;

use crate::in_flight::InFlight;
use crate::path_defaults::cut_range;
use crate::tune::Participant;
use crate::work::Job;
use crate::worker::Worker;

impl Worker<'_> {
    /// As much of a range as a session with so many streams should move now; the rest waits for the next worker.
    pub(crate) fn cut_range<F: InFlight>(
        &self,
        file: &Arc<F>,
        range: Range<u64>,
        participant: Option<&Participant>,
        streams: u32,
    ) -> Range<u64> {
        // The range alone may be short long before the file's end.
        let left = self.ahead(file, range.end - range.start);
        match self.ctx.range_size(left, participant, streams) {
            Some(size) => self.cut(file, range, size),
            None => range,
        }
    }

    /// So many bytes of a file, and what waits of it besides: a data channel that is made now may be used for all of them.
    pub(crate) fn ahead<F: InFlight>(&self, file: &Arc<F>, bytes: u64) -> u64 {
        // Small files are many, and so may be the jobs that wait.
        if !file.piece().is_cut() {
            return bytes;
        }
        let bytes_of = |job: &Job| match F::of_job(job) {
            Some((other, range)) if Arc::ptr_eq(other, file) => range.end - range.start,
            _ => 0,
        };
        self.ctx.queue.sum(bytes_of).saturating_add(bytes)
    }

    /// The first `size` bytes of a range, or so; the rest waits for the next worker.
    fn cut<F: InFlight>(&self, file: &Arc<F>, range: Range<u64>, size: u64) -> Range<u64> {
        let (now, rest) = cut_range(range, &file.present(), size);
        if let Some(rest) = rest {
            file.expect(1);
            file.piece().set_size(size);
            self.ctx.queue.push_urgent([file.clone().job(rest)]);
        }
        now
    }

    /// Before a log-in, which takes many round trips: others need not wait for it to have the rest of a file that is cut up
    /// already.
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
            // All of it is dropped at once.
            _ if file.has_failed() => range,
            size => self.cut(&file, range, size),
        };
        file.job(range)
    }
}
