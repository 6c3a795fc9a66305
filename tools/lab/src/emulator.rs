//! The emulated path: a user-space router between two TUN interfaces.
//!
//! The caller opens one [`Tun`] in each of two network namespaces and starts an [`Emulator`] on
//! them. The emulator forwards the packets of both directions on a thread of its own.
//!
//! ```no_run
//! use ropewalk_lab::emulator::{Change, Emulator, Options, Path, Tun};
//! # fn in_namespace<T>(_: &str, f: impl FnOnce() -> T) -> T { f() }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let path = Path::default();
//! // Each call runs on a thread that is in the namespace; the caller sets addresses and routes.
//! let left = in_namespace("left", || Tun::open("wan0", path.mtu, true))?;
//! let right = in_namespace("right", || Tun::open("wan0", path.mtu, true))?;
//! let emulator = Emulator::start(Options { path, ..Options::default() }, left, right)?;
//! let control = emulator.control(); // may be cloned and sent to other threads
//! control.apply(&Change { mtu: Some(9000), ..Change::default() })?;
//! println!("{:?}", control.snapshot()?.forward);
//! let report = emulator.stop(); // counters, time series, lateness
//! # let _ = report; Ok(()) }
//! ```
//!
//! When the process ends, the kernel removes both interfaces, however the process ended.

mod change;
mod checksum;
mod codel;
mod config;
mod driver;
mod handle;
mod histogram;
mod jitter;
mod lane;
pub mod link;
mod loss;
pub mod packet;
mod red;
mod socket;
mod stats;
mod steps;
#[allow(unsafe_code)]
mod sys;
mod tun;
pub mod units;
mod wire;

pub use change::{Change, Patch, check_schedule};
pub use config::{Codel, ConfigError, Direction, Loss, Path, Queue, Red, Reorder};
pub use handle::{Control, ControlError, Emulator, EmulatorError, Options};
pub use histogram::{Histogram, Spread};
pub use socket::{AskError, ControlSocket, Request, ask};
pub use stats::{Counters, Report, Sample, Snapshot, Step, Timing};
pub(crate) use sys::set_pacing;
pub use tun::{Tun, TunError};
pub use units::Rate;
pub use wire::Travelling;
