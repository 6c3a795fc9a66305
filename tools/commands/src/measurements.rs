//! The measurements of a server (SITE PROFILE), made by the profiler.

use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use ropewalk_profiler::baseline::{self, Limits, iperf};
use ropewalk_profiler::collect::{Chosen, Collection, Options, Sockets, Unavailable};
use ropewalk_profiler::profile::{HostProfile, StageTime, Stages};
use ropewalk_server::measurements::{
    DiskRate, IperfError, IperfServer, Measured, Measurement, Measurements, ProcessorRates, RawFile, Request,
    StreamTimes,
};

/// Measures this host with the profiler.
pub struct Profiler;

impl Measurements for Profiler {
    fn start(&self, request: Request) -> Box<dyn Measurement> {
        let Request { longest, perf, raw, peers, paths } = request;
        let options = Options {
            longest,
            perf,
            raw,
            sockets: Sockets { chosen: Some(Chosen::new(move || peers())), ..Sockets::default() },
            programs: vec![std::process::id()],
            paths,
            ..Options::default()
        };
        Box::new(Running(Collection::start(&options)))
    }

    fn read_disk(&self, file: BorrowedFd<'_>) -> Result<DiskRate, String> {
        let rate = baseline::read_disk(file, Limits::default());
        rate.map(disk_rate).map_err(|error| error.to_string())
    }

    fn write_disk(&self, file: BorrowedFd<'_>, most: Option<u64>) -> Result<DiskRate, String> {
        let mut limits = Limits::default();
        limits.file = most.map_or(limits.file, |most| limits.file.min(most));
        baseline::write_disk(file, limits).map(disk_rate).map_err(|error| error.to_string())
    }

    fn processor(&self) -> Result<ProcessorRates, String> {
        let rates = baseline::processor().map_err(|error| error.to_string())?;
        Ok(ProcessorRates { checksum: rates.checksum, encryption: rates.encryption })
    }

    fn iperf(
        &self,
        address: IpAddr,
        ports: Option<(u16, u16)>,
        held: Box<dyn Send>,
    ) -> Result<Box<dyn IperfServer>, IperfError> {
        match iperf::Server::start(Some(address), ports, held) {
            Ok(server) => Ok(Box::new(Iperf(server))),
            Err(error @ (Unavailable::Missing(_) | Unavailable::Denied(_))) => {
                Err(IperfError::Unavailable(error.to_string()))
            }
            Err(error) => Err(IperfError::Failed(error.to_string())),
        }
    }
}

struct Running(Collection);

impl Measurement for Running {
    fn finish(self: Box<Self>, times: StreamTimes) -> Result<Measured, String> {
        let mut host = HostProfile { stages: Some(stages(times)), ..self.0.finish() };
        let raw = std::mem::take(&mut host.raw);
        let profile = host.to_json(HostProfile::LARGEST).map_err(|error| error.to_string())?;
        let raw = raw.into_iter().map(|file| RawFile { name: file.name, bytes: file.bytes }).collect();
        Ok(Measured { profile, raw })
    }
}

struct Iperf(iperf::Server);

impl IperfServer for Iperf {
    fn port(&self) -> u16 {
        self.0.port()
    }
}

fn disk_rate(rate: baseline::DiskRate) -> DiskRate {
    DiskRate { bytes_per_second: rate.bytes_per_second, direct: rate.direct }
}

/// Time on the network is waiting; all other time counts as work.
fn stages(times: StreamTimes) -> Stages {
    let busy = |busy| StageTime { busy, waited: 0.0 };
    Stages {
        stream_seconds: times.total,
        source: busy(times.source),
        checksum: busy(times.checksum),
        encryption: busy(times.encryption),
        socket: StageTime { busy: 0.0, waited: times.network },
        destination: busy(times.destination),
    }
}
