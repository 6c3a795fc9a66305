//! Measures GridFTP transfers and hosts, names the part of a transfer that is slow, and proposes
//! what to change.
//!
//! - [`profile`]: the measurements of both ends, stored as JSON with a schema. Data that comes from
//!   another host is checked against limits ([`profile::Profile::from_json`]).
//! - [`baseline`]: the rates that a host's disks and processors reach without a transfer.
//! - [`collect`]: the collectors: sysstat, perf, the kernel's own files, TCP_INFO.
//! - [`verdict`]: the ranked causes of the rate that was reached, each with its evidence.
//! - [`doctor`]: checks whether a host is ready for a link, and changes its settings reversibly.
//! - [`report`]: a profile for people, on a terminal and as one HTML page.
//! - [`sweep`]: the same transfer repeated with one setting varied, and the conclusions from that.
//!
//! Rates are in bytes per second, times in seconds, and shares go from 0 to 1, unless a name says
//! otherwise.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod collect;
pub mod doctor;
pub mod profile;
#[cfg(feature = "report")]
pub mod report;
pub mod sweep;
pub mod verdict;
