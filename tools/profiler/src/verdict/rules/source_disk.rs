//! The source disk (or whatever store the data is read from) is slower than the rest.
//!
//! The strongest of these signs counts:
//! - The engine's streams spent 30 to 80 % of their time reading. (With `sendfile`, reading is
//!   hidden in the socket's time, so the absence of this sign means nothing.)
//! - A program that does not report its stages waited in reads of files at 30 to 80 % of the
//!   moments at which it was sampled.
//! - The disk had requests for 70 to 95 % of the time: below, it is idle too often to be the limit.
//! - Processors waited for disks: from half of one processor's time to all of it.
//! - The rate is 80 to 95 % of the rate that the disk reaches by itself.
//!
//! All but the first two count only while TCP had too little to send (20 to 60 % of its samples),
//! because a busy disk may still be fast enough. A transfer from memory has no source disk.

use crate::profile::WorkloadKind;
use crate::verdict::figures::{largest, ramp};
use crate::verdict::text::{link, percent};
use crate::verdict::{Cause, CauseKind, Evidence, Rule};

pub(super) struct SourceDisk;

impl Rule for SourceDisk {
    fn judge(&self, evidence: &Evidence) -> Option<Cause> {
        if matches!(evidence.kind, WorkloadKind::MemoryToMemory | WorkloadKind::MemoryToDisk) {
            return None;
        }
        let end = evidence.source.as_ref()?;
        // Without figures of TCP, the other signs have to be enough.
        let starved = evidence.path.as_ref().map_or(0.7, |path| ramp(path.application_limited, 0.2, 0.6));
        let stage = end.stage(|stages| stages.source.spent());
        let seen = end.doing.map(|doing| doing.reading);
        let waiting = end.all.as_ref().map(|all| all.iowait * end.processors);
        let fill = evidence.baselines.source_disk.filter(|&disk| disk > 0.0).map(|disk| evidence.rate / disk);
        let confidence = largest([
            stage.map(|share| 0.95 * ramp(share, 0.3, 0.8)),
            seen.map(|share| 0.93 * ramp(share, 0.3, 0.8)),
            end.disk.as_ref().map(|disk| 0.85 * starved * ramp(disk.1, 0.7, 0.95)),
            waiting.map(|processors| 0.7 * starved * ramp(processors, 0.5, 1.0)),
            fill.map(|share| 0.95 * starved * ramp(share, 0.8, 0.95)),
        ])
        .filter(|&confidence| confidence > 0.0)?;
        let mut said = vec![format!("{} was reached", link(evidence.rate))];
        said.extend(stage.map(|share| format!("streams spent {} of their time reading", percent(share))));
        said.extend(
            seen.map(|share| format!("the program waited for reads in {} of moments", percent(share))),
        );
        said.extend(
            end.disk
                .as_ref()
                .map(|(name, used, _)| format!("{name} was busy {} of the time", percent(*used))),
        );
        said.extend(fill.map(|share| format!("that is {} of what the disk reads by itself", percent(share))));
        said.extend(evidence.path.as_ref().map(|path| {
            format!("TCP had too little to send in {} of samples", percent(path.application_limited))
        }));
        Some(Cause {
            kind: CauseKind::SourceDisk,
            host: Some(end.name.clone()),
            confidence,
            evidence: said.join("; "),
            advice: "more streams of network do not help: read from faster or more disks (striping), more files at a \
                     time if the disk serves requests in parallel, larger read-ahead"
                .into(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::profile::{Doing, StageTime};
    use crate::verdict::rules::samples::{quiet, starved};

    #[test]
    fn source_disk_when_stage_reads_is_found() {
        let mut evidence = starved();
        let end = evidence.source.as_mut().unwrap();
        end.stages.as_mut().unwrap().source = StageTime { busy: 0.5, waited: 8.0 };
        let cause = SourceDisk.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("85 %"), "{cause:?}");
        assert_eq!(cause.host.as_deref(), Some("left"));
        evidence.kind = WorkloadKind::MemoryToDisk;
        assert_eq!(SourceDisk.judge(&evidence), None);
    }

    #[test]
    fn source_disk_when_program_waits_in_reads_is_found() {
        let mut evidence = starved();
        let end = evidence.source.as_mut().unwrap();
        (end.stages, end.doing) = (None, Some(Doing { samples: 100, reading: 0.9, ..Doing::default() }));
        let cause = SourceDisk.judge(&evidence).unwrap();
        assert!(cause.confidence > 0.9 && cause.evidence.contains("90 % of moments"), "{cause:?}");
    }

    #[test]
    fn source_disk_when_sender_has_data_is_none() {
        let busy = |mut evidence: Evidence| {
            evidence.source.as_mut().unwrap().disk = Some(("sda".into(), 0.97, 1e8));
            SourceDisk.judge(&evidence)
        };
        assert!(busy(starved()).unwrap().confidence > 0.8);
        assert_eq!(busy(quiet()), None);
    }

    #[test]
    fn source_disk_when_baseline_is_reached_is_found() {
        let mut evidence = starved();
        evidence.baselines.source_disk = Some(1.02e8);
        assert!(SourceDisk.judge(&evidence).unwrap().confidence > 0.8);
        evidence.baselines.source_disk = Some(9e8);
        assert_eq!(SourceDisk.judge(&evidence), None);
    }

    #[test]
    fn source_disk_when_nothing_is_wrong_is_none() {
        assert_eq!(SourceDisk.judge(&quiet()), None);
        assert_eq!(SourceDisk.judge(&Evidence::default()), None);
    }
}
