//! Measuring a running lab: connections, hosts, commands, the machine, ten times a second.

pub(crate) mod cpu;
mod diag;
mod recorder;

pub(crate) use diag::Diagnostics;
pub(crate) use recorder::{DiskMeter, HostSource, Recorder, Recording, Sources, Watched};
