//! Scenarios: what a lab is built from.
//!
//! A scenario is a TOML file. [`Document`] reads one, lets single values be changed (as a sweep does), and gives the
//! [`Scenario`] that it describes, checked. What is wrong is reported with its line.
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
//! In commands, file texts, paths and environments `{...}` stands for: `{addr:HOST}` and `{addr6:HOST}`, the address of
//! another host as it is reached from this one; `{port:NAME}`, a TCP port, the same wherever the name stands; `{dir}` and
//! `{dir:HOST}`, the run's own directory of a host; `{disk}` and `{disk:HOST}`, its store; `{host}`, this host's name;
//! `{seed}`; `{ropewalk}`, this program; and `{NAME}`, a variable of the scenario. Other braces stay as they are, and `{{dir}`
//! gives `{dir}`.

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
