//! The rules, one for each cause.

mod asymmetric_path;
mod congestion_loss;
mod cpu;
mod cpu_competing;
mod destination_disk;
mod kernel_ceiling;
mod non_congestive_loss;
mod path_capacity;
mod peer_server;
mod receiver_window;
mod sender_buffer;
mod small_files;
mod source_disk;
mod too_many_streams;

pub(crate) use cpu::kind_of;

use super::Rule;

/// All rules. Of causes with equal confidence, that of the earlier rule is ranked first: causes at
/// the hosts come before causes on the path.
pub fn all() -> &'static [&'static dyn Rule] {
    &[
        &source_disk::SourceDisk,
        &destination_disk::DestinationDisk,
        &cpu_competing::CpuCompeting,
        &cpu::Cpu,
        &kernel_ceiling::KernelCeiling,
        &sender_buffer::SenderBuffer,
        &receiver_window::ReceiverWindow,
        &small_files::SmallFiles,
        &path_capacity::PathCapacity,
        &congestion_loss::CongestionLoss,
        &non_congestive_loss::NonCongestiveLoss,
        &too_many_streams::TooManyStreams,
        &asymmetric_path::AsymmetricPath,
        &peer_server::PeerServer,
    ]
}

/// Evidence for the tests of the rules: an unremarkable transfer of 1 GB in 10 s over 60 ms, with
/// one stream and no limit.
#[cfg(test)]
pub(super) mod samples {
    use super::super::{End, Evidence, Path};
    use crate::profile::{Processor, StageTime, Stages};

    pub(crate) fn quiet() -> Evidence {
        let end = |name: &str| End {
            name: name.into(),
            busiest: Some(Processor {
                name: "0".into(),
                user: 0.1,
                system: 0.2,
                idle: 0.7,
                ..Processor::default()
            }),
            all: Some(Processor {
                name: "all".into(),
                user: 0.1,
                system: 0.1,
                idle: 0.8,
                ..Processor::default()
            }),
            processors: 4.0,
            send_ceiling: Some(67_108_864.0),
            receive_ceiling: Some(67_108_864.0),
            receive_buffer: Some(30e6),
            unread: Some(0.0),
            out_of_order: Some(0.0),
            stages: Some(Stages {
                stream_seconds: 10.0,
                socket: StageTime { busy: 1.0, waited: 8.0 },
                ..Stages::default()
            }),
            ..End::default()
        };
        Evidence {
            bytes: 1e9,
            seconds: 10.0,
            rate: 1e8,
            peak: Some(1.1e8),
            variation: Some(0.2),
            files: 1.0,
            streams: 1.0,
            files_in_flight: 1.0,
            rtt: Some(0.06),
            path: Some(Path {
                rtt: 0.061,
                min_rtt: Some(0.06),
                loss: Some(0.0),
                congestion_window: 6e6,
                send_window: Some(12e6),
                largest_send_window: Some(13e6),
                mss: 1448.0,
                send_buffer: Some(20e6),
                congestion: vec!["cubic".into()],
                ..Path::default()
            }),
            source: Some(end("left")),
            destination: Some(end("right")),
            ..Evidence::default()
        }
    }

    /// The sender has too little to send.
    pub(crate) fn starved() -> Evidence {
        let mut evidence = quiet();
        evidence.path.as_mut().into_iter().for_each(|path| path.application_limited = 0.9);
        evidence
    }
}
