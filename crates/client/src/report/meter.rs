//! What one transfer tells the report.

use super::*;
use crate::tune::Seat;

/// Follows one transfer's progress into the report.
pub(crate) struct Meter<'r> {
    report: &'r Report,
    account: Arc<Account>,
    /// The path that is tuned, and whose place there it is.
    lane: Option<(Arc<Lane>, u64)>,
    bytes: u64,
    streams: u32,
}

impl<'r> Meter<'r> {
    pub(crate) fn new(report: &'r Report, task: &Task) -> Self {
        Self { report, account: task.account.clone(), lane: None, bytes: 0, streams: 0 }
    }

    /// What moves goes over this path.
    pub(crate) fn on(mut self, seat: Option<&Seat>) -> Self {
        self.lane = seat.map(|seat| (seat.lane().clone(), seat.id()));
        self
    }

    /// The transfer has moved `bytes` so far, over `streams` connections.
    pub(crate) fn update(&mut self, bytes: u64, streams: u32) {
        let more = bytes.saturating_sub(self.bytes);
        self.bytes = self.bytes.max(bytes);
        self.report.there(&self.account, signed(more));
        self.report.bytes_moved.fetch_add(more, Ordering::Relaxed);
        if let Some((lane, seat)) = &self.lane {
            lane.add(*seat, more);
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

    /// Of what this transfer moved, the destination has only `kept` for certain; the rest comes again.
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
