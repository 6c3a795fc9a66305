//! Scenarios: the description of a lab.
//!
//! A scenario is a TOML file. [`Document`] reads one, can change single values (as a sweep does),
//! and returns the [`Scenario`] that it describes, after checking it. Errors are reported with
//! their lines.
//!
//! ```toml
//! title = "two hosts, 100 ms apart"
//! kernel = { congestion = "cubic" }
//!
//! [hosts.left]
//! [hosts.right]
//!
//! [[links]]
//! between = ["left", "right"]
//! path = { round_trip = "100ms", both = { rate = "100Mbit/s", queue = 100 } }
//!
//! [[servers]]
//! name = "iperf"
//! host = "right"
//! run = ["iperf3", "-s", "-p", "{port:iperf}"]
//! ready = { port = "{port:iperf}" }
//!
//! [[commands]]
//! name = "upload"
//! host = "left"
//! run = ["iperf3", "-c", "{addr:right}", "-p", "{port:iperf}", "-t", "10"]
//! ```
//!
//! Commands, file texts, paths and environments may contain these placeholders:
//!
//! - `{addr:HOST}` and `{addr6:HOST}`: the address at which this host reaches another host;
//! - `{port:NAME}`: a TCP port, which is the same for all uses of the name;
//! - `{dir}` and `{dir:HOST}`: the directory of a host for this run;
//! - `{disk}` and `{disk:HOST}`: the directory of a host's disk;
//! - `{host}`: the name of this host;
//! - `{seed}`: the seed of the scenario;
//! - `{ropewalk}`: the running executable;
//! - `{NAME}`: a variable of the scenario.
//!
//! Other braces are left unchanged, and `{{dir}` stands for the text `{dir}`.

mod check;
mod document;
mod model;
pub mod template;
mod topology;
mod units;

pub use document::{Document, ScenarioError};
pub(crate) use document::{Step, parse_field};
pub use model::*;
pub use topology::{Interface, Route, Topology};
pub(crate) use topology::{V4_PREFIX, V6_PREFIX, networks};
pub use units::{ByteRate, Size, Time};
