//! The measurements of the host that SITE PROFILE offers.
//!
//! The server itself measures nothing. The program that embeds it passes an implementation to
//! [`crate::Server::bind_with`]; without one the server does not know SITE PROFILE.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Measures the host on which the server runs. Several sessions may call it at the same time.
pub trait Measurements: Send + Sync {
    /// Starts to measure the host. Dropping the result ends the measurement.
    fn start(&self, request: Request) -> Box<dyn Measurement>;

    /// Measures for a few seconds how fast a file can be read from its disk.
    ///
    /// # Errors
    /// A text for the client: the file is too small, or the disk cannot be measured.
    fn read_disk(&self, file: BorrowedFd<'_>) -> Result<DiskRate, String>;

    /// Measures for a few seconds how fast the disk of a file can be written. The file gets at most
    /// `most` bytes.
    ///
    /// # Errors
    /// A text for the client: there is too little room, or the disk cannot be measured.
    fn write_disk(&self, file: BorrowedFd<'_>, most: Option<u64>) -> Result<DiskRate, String>;

    /// Measures checksums and encryption on one processor for a few seconds.
    ///
    /// # Errors
    /// A text for the client.
    fn processor(&self) -> Result<ProcessorRates, String>;

    /// Starts an iperf3 server for one test, on a port of the range or on any port. `held` is
    /// dropped when the server has ended.
    ///
    /// # Errors
    /// iperf3 is missing, or no port is free.
    fn iperf(
        &self,
        address: IpAddr,
        ports: Option<(u16, u16)>,
        held: Box<dyn Send>,
    ) -> Result<Box<dyn IperfServer>, IperfError>;
}

/// The parameters of a measurement.
pub struct Request {
    /// After this time, programs that measure end by themselves.
    pub longest: Duration,
    /// Use `perf` if it is installed and allowed.
    pub perf: bool,
    /// Keep the files of the tools.
    pub raw: bool,
    /// Returns the remote ends of the connections to sample. It is called at each sample.
    pub peers: Arc<dyn Fn() -> HashSet<SocketAddr> + Send + Sync>,
    /// Paths whose file systems matter.
    pub paths: Vec<PathBuf>,
}

/// A running measurement.
pub trait Measurement {
    /// Ends the measurement. `times` are those of the user's transfers.
    ///
    /// # Errors
    /// The result cannot be printed.
    fn finish(self: Box<Self>, times: StreamTimes) -> Result<Measured, String>;
}

/// The result of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The profile of the host as JSON.
    pub profile: Vec<u8>,
    pub raw: Vec<RawFile>,
}

/// A file of a tool.
#[derive(Clone, Debug)]
pub struct RawFile {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// How the streams of transfers spent their time, in seconds summed over the streams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StreamTimes {
    /// Duration of the streams.
    pub total: f64,
    /// Reading files.
    pub source: f64,
    pub checksum: f64,
    pub encryption: f64,
    /// Waiting for the network.
    pub network: f64,
    /// Writing files.
    pub destination: f64,
}

/// The rate of a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskRate {
    pub bytes_per_second: f64,
    /// The page cache was bypassed.
    pub direct: bool,
}

/// Rates of one processor, in bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessorRates {
    pub checksum: f64,
    pub encryption: f64,
}

/// An iperf3 server. It ends after one test, or when this value is dropped.
pub trait IperfServer: Send {
    fn port(&self) -> u16;
}

/// Why no iperf3 server was started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IperfError {
    /// iperf3 is not installed or not allowed: trying again does not help.
    #[error("{0}")]
    Unavailable(String),
    #[error("{0}")]
    Failed(String),
}
