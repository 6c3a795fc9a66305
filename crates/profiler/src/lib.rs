//! Which part of a transfer is slow, and what to change.
//!
//! - [`profile`]: what was measured at both ends, as JSON with a schema. What comes from another host is believed
//!   only within limits ([`profile::Profile::from_json`]).
//! - [`baseline`]: what a host's disks and processors reach by themselves.
//! - [`collect`]: where the figures come from: sysstat, perf, the kernel's own files, TCP_INFO.
//! - [`verdict`]: causes of the rate that was reached, ranked, each with its evidence.
//! - [`doctor`]: whether a host is ready for a link, and changing what is not, with the way back.
//! - [`report`]: a profile for people, on a terminal and as one HTML page.
//! - [`sweep`]: the same transfer with one setting changed, again and again, and what that proves.
//!
//! Rates are bytes per second, times seconds, shares 0 to 1, unless a name says otherwise.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod collect;
pub mod doctor;
pub mod profile;
#[cfg(feature = "report")]
pub mod report;
pub mod sweep;
pub mod verdict;
