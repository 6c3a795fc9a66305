//! The destination disk (or store) takes data more slowly than the path delivers it.
//!
//! The strongest of these signs counts:
//! - The receiver's streams spent 30 to 80 % of their time writing.
//! - A program that does not report its stages waited in writes to files at 30 to 80 % of the
//!   moments at which it was sampled.
//! - The disk was busy for 70 to 95 % of the time while data lay unread in the receive buffers, or
//!   while the sender saw a closed window (10 to 40 % of its time). A disk that keeps up leaves the
//!   buffers empty.
//! - The rate is 80 to 95 % of the rate that the disk reaches by itself, with the same condition.
//!
//! Unread data counts from a fifth of the receive buffer's usable half on, and in full from two
//! thirds: a slow writer shows to TCP as full buffers, while small buffers that are emptied at once
//! are another cause.

use crate::profile::WorkloadKind;
use crate::verdict::figures::{largest, ramp};
use crate::verdict::text::{link, percent};
use crate::verdict::{Cause, CauseKind, End, Evidence, Rule};

pub(super) struct DestinationDisk;

/// Share of the receive buffer's room for data that holds unread data.
pub(super) fn backlog(end: &End) -> Option<f64> {
    let room = end.receive_buffer.filter(|&bytes| bytes > 0.0)? / 2.0;
    Some((end.unread? / room).min(1.0))
}

/// How far a receiver reads too slowly for any window to help: data lies unread, or the receiver
/// writes most of the time.
pub(super) fn slow_reader(end: &End) -> f64 {
    let unread = backlog(end).map_or(0.0, |share| ramp(share, 0.2, 0.67));
    let writing = end.stage(|stages| stages.destination.spent()).or(end.doing.map(|doing| doing.writing));
    unread.max(writing.map_or(0.0, |share| ramp(share, 0.3, 0.8)))
}

impl Rule for DestinationDisk {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        if matches!(evidence.kind, WorkloadKind::MemoryToMemory | WorkloadKind::DiskToMemory) {
            return None;
        }
        let end = evidence.destination.as_ref()?;
        let backlog = backlog(end);
        let closed = evidence.path.as_ref().map(|path| path.window_limited);
        let pushed = largest([
            backlog.map(|share| ramp(share, 0.2, 0.67)),
            // A closed window without a backlog is a small window.
            closed.filter(|_| backlog.is_none()).map(|share| 0.7 * ramp(share, 0.1, 0.4)),
        ])
        .unwrap_or(0.0);
        let stage = end.stage(|stages| stages.destination.spent());
        let seen = end.doing.map(|doing| doing.writing);
        let fill =
            evidence.baselines.destination_disk.filter(|&disk| disk > 0.0).map(|disk| evidence.rate / disk);
        let confidence = largest([
            stage.map(|share| 0.95 * ramp(share, 0.3, 0.8)),
            seen.map(|share| 0.93 * ramp(share, 0.3, 0.8)),
            end.disk.as_ref().map(|disk| 0.85 * pushed * ramp(disk.1, 0.7, 0.95)),
            fill.map(|share| 0.95 * pushed * ramp(share, 0.8, 0.95)),
        ])
        .filter(|&confidence| confidence > 0.0)?;
        let mut said = vec![format!("{} was reached", link(evidence.rate))];
        said.extend(stage.map(|share| format!("streams spent {} of their time writing", percent(share))));
        said.extend(
            seen.map(|share| format!("the program waited for writes in {} of moments", percent(share))),
        );
        said.extend(
            end.disk
                .as_ref()
                .map(|(name, used, _)| format!("{name} was busy {} of the time", percent(*used))),
        );
        said.extend(
            fill.map(|share| format!("that is {} of what the disk writes by itself", percent(share))),
        );
        said.extend(
            backlog.map(|share| format!("receive buffers were {} full of unread data", percent(share))),
        );
        Some(Cause {
            kind: CauseKind::DestinationDisk,
            host: Some(end.name.clone()),
            confidence,
            evidence: said.join("; "),
            advice: "more streams of network do not help: write to faster or more disks (striping), or to a file system \
                     that allocates and writes past the page cache"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::{Doing, StageTime};
    use crate::verdict::rules::samples::quiet;

    #[test]
    fn destination_disk_when_stage_writes_is_found() {
        let mut evidence = quiet();
        evidence.destination.as_mut().unwrap().stages.as_mut().unwrap().destination =
            StageTime { busy: 9.0, waited: 0.0 };
        let cause = DestinationDisk.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("90 %"), "{cause:?}");
        evidence.kind = WorkloadKind::DiskToMemory;
        assert_eq!(DestinationDisk.judge(&evidence), None);
    }

    #[test]
    fn destination_disk_when_program_waits_in_writes_is_found() {
        let mut evidence = quiet();
        let end = evidence.destination.as_mut().unwrap();
        (end.stages, end.doing) = (None, Some(Doing { samples: 100, writing: 0.9, ..Doing::default() }));
        let cause = DestinationDisk.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("90 % of moments"), "{cause:?}");
    }

    #[test]
    fn destination_disk_when_busy_without_backlog_is_none() {
        let mut evidence = quiet();
        let end = evidence.destination.as_mut().unwrap();
        end.disk = Some(("sdb".into(), 1.0, 9e7));
        assert_eq!(DestinationDisk.judge(&evidence), None);
        evidence.destination.as_mut().unwrap().unread = Some(13e6);
        assert!(DestinationDisk.judge(&evidence).unwrap().confidence > 0.8);
    }

    #[test]
    fn destination_disk_when_window_is_small_is_none() {
        let mut evidence = quiet();
        evidence.path.as_mut().unwrap().window_limited = 0.9;
        evidence.destination.as_mut().unwrap().disk = Some(("sdb".into(), 0.9, 9e7));
        assert_eq!(DestinationDisk.judge(&evidence), None);
        assert_eq!(DestinationDisk.judge(&Evidence::default()), None);
    }
}
