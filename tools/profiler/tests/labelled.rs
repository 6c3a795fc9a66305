//! Profiles recorded in the lab (`ropewalk lab findings profiler`), reduced to the data that rules
//! use, with the known cause that the lab produced. Most of them were once judged wrongly.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use ropewalk_profiler::profile::Profile;
use ropewalk_profiler::verdict::{CauseKind, Verdict};

const RECORDED: &[(&str, CauseKind, Option<&str>)] = &[
    // Other traffic on a short queue, and a queue that bursts overflow: neither shows in the median
    // round trip.
    ("cross-traffic-get", CauseKind::CongestionLoss, None),
    ("shallow-queue-get", CauseKind::CongestionLoss, None),
    // Nothing is wrong: the losses are those of a full link.
    ("capacity-put-gct", CauseKind::PathCapacity, None),
    ("loss-put", CauseKind::NonCongestiveLoss, None),
    // There are no counters for a file system in user space, but the program was seen waiting for
    // it.
    ("destination-disk-put-gct", CauseKind::DestinationDisk, Some("right")),
    // The first server sleeps between pieces of 64 KiB, of which one is always in flight; the
    // second is stopped for most of the time.
    ("limited-server-get-vsftpd", CauseKind::PeerServer, Some("right")),
    ("napping-server-get-gct", CauseKind::PeerServer, Some("right")),
    // The data arrived in a fraction of the time, through windows that were full.
    ("checksum-get", CauseKind::CpuChecksum, None),
    // The processors were also busy with other programs.
    ("small-files-get", CauseKind::SmallFiles, None),
    // The send buffer looks full of each file.
    ("small-files-put", CauseKind::SmallFiles, None),
    // On a path of microseconds, some data is in flight in every sample, and any buffer is full.
    ("copy-get", CauseKind::CpuCopy, Some("right")),
    ("interrupt-get", CauseKind::CpuInterrupt, Some("left")),
    // The receiver waited for a processor, but the path was full.
    ("capacity-8-streams-put", CauseKind::PathCapacity, None),
];

#[test]
fn recorded_profiles_yield_their_causes() {
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
