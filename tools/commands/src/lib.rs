//! The commands of `ropewalk` that measure, emulate and predict, beside transfers: `model`,
//! `buffers`, `doctor`, `report`, `profile` and `lab`; and the measurements that `serve` offers.
//!
//! The program includes them with its feature `tools`. Flags, settings and output are those of
//! `ropewalk-cli`.
#![forbid(unsafe_code)]
// Each command returns an error that `exit::Exit::of_error` turns into an exit code.
#![allow(clippy::missing_errors_doc)]

pub mod buffers;
pub mod doctor;
pub mod lab;
pub mod measurements;
pub mod model;
mod picture;
pub mod profile;
mod profiling;
pub mod report;

use ropewalk_cli::{credentials, exit, message, output, settings, signals, sites, units, whole};
