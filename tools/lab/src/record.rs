//! Records a running lab ten times per second: connections, hosts, commands and the machine.

pub(crate) mod cpu;
mod diag;
mod recorder;

pub(crate) use diag::Diagnostics;
pub(crate) use recorder::{DiskMeter, HostSource, Recorder, Recording, Sources, Watched};
