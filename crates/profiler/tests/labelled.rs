//! Profiles that were recorded in the lab (`ropewalk lab findings profiler`), cut to what rules look at, and what we had made
//! of the path or the hosts. Most of them were judged wrongly once.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use ropewalk_profiler::profile::Profile;
use ropewalk_profiler::verdict::{CauseKind, Verdict};

const RECORDED: &[(&str, CauseKind, Option<&str>)] = &[
    // Others on a short queue, and a queue that bursts overflow: neither shows in the median round trip.
    ("cross-traffic-get", CauseKind::CongestionLoss, None),
    ("shallow-queue-get", CauseKind::CongestionLoss, None),
    // Nothing is wrong: the losses are those of a full link.
    ("capacity-put-gct", CauseKind::PathCapacity, None),
    ("loss-put", CauseKind::NonCongestiveLoss, None),
    // Nobody counts for a file system in user space; the program was seen to wait for it.
    ("destination-disk-put-gct", CauseKind::DestinationDisk, Some("right")),
    // It sleeps between pieces of 64 KiB, of which one is always on its way; it is stopped for most of the time.
    ("limited-server-get-vsftpd", CauseKind::PeerServer, Some("right")),
    ("napping-server-get-gct", CauseKind::PeerServer, Some("right")),
    // The data came in a fraction of the time, through windows that were full.
    ("checksum-get", CauseKind::CpuChecksum, None),
    // On processors that others kept busy.
    ("small-files-get", CauseKind::SmallFiles, None),
    // Its send buffer looks full of each file.
    ("small-files-put", CauseKind::SmallFiles, None),
    // Over microseconds, something is on its way whenever one looks, and any buffer is full.
    ("copy-get", CauseKind::CpuCopy, Some("right")),
    ("interrupt-get", CauseKind::CpuInterrupt, Some("left")),
    // The receiver waited for a processor, but the path was full.
    ("capacity-8-streams-put", CauseKind::PathCapacity, None),
];

#[test]
fn recorded_profiles() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/samples/labelled");
    for (name, kind, host) in RECORDED {
        let bytes = std::fs::read(directory.join(name).with_added_extension("json")).unwrap();
        let verdict = Verdict::of(&Profile::from_json(&bytes).unwrap());
        let first = verdict.causes.first().map(|cause| (cause.kind, cause.host.as_deref()));
        let (found, at) = first.unwrap_or_else(|| panic!("{name}: nothing"));
        assert!(found == *kind && (host.is_none() || at == *host), "{name}: {:#?}", verdict.causes);
    }
    assert_eq!(std::fs::read_dir(directory).unwrap().count(), RECORDED.len(), "one is not tested");
}
