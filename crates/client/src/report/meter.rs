//! Reports the progress of one transfer.

use super::*;
use crate::tune::Participant;

/// Adds the progress of one transfer to the report.
pub(crate) struct Meter<'r> {
    report: &'r Report,
    account: Arc<Account>,
    /// The tuned path, and the number of the transfer's participant there.
    path_tuner: Option<(Arc<PathTuner>, u64)>,
    bytes: u64,
    streams: u32,
}

impl<'r> Meter<'r> {
    pub(crate) fn new(report: &'r Report, task: &Task) -> Self {
        Self { report, account: task.account.clone(), path_tuner: None, bytes: 0, streams: 0 }
    }

    /// Sets the path over which the data moves.
    pub(crate) fn on(mut self, participant: Option<&Participant>) -> Self {
        self.path_tuner = participant.map(|participant| (participant.path_tuner().clone(), participant.id()));
        self
    }

    /// The transfer has moved `bytes` so far, over `streams` connections.
    pub(crate) fn update(&mut self, bytes: u64, streams: u32) {
        let more = bytes.saturating_sub(self.bytes);
        self.bytes = self.bytes.max(bytes);
        self.report.there(&self.account, signed(more));
        self.report.bytes_moved.fetch_add(more, Ordering::Relaxed);
        if let Some((path_tuner, participant)) = &self.path_tuner {
            path_tuner.add(*participant, more);
        }
        self.report.streams.fetch_add(i64::from(streams) - i64::from(self.streams), Ordering::Relaxed);
        self.streams = streams;
        self.report.progress();
    }

    /// The engine's figures of a transfer, at its end.
    pub(crate) fn finish(&mut self, progress: &Progress) {
        let streams = self.streams.max(progress.streams());
        self.update(progress.bytes(), streams);
        self.report.stages(progress);
    }

    /// Records that the transfer failed. The destination certainly has only `kept` of the moved
    /// bytes; the rest is moved again.
    pub(crate) fn failed(&mut self, kept: u64) {
        self.report.there(&self.account, -signed(self.bytes.saturating_sub(kept)));
        self.bytes = 0;
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        self.report.streams.fetch_sub(i64::from(self.streams), Ordering::Relaxed);
    }
}
