//! The work of `ropewalk profile`: measures at each end during a transfer, and combines the
//! results.

pub(crate) mod baseline;
pub(crate) mod collector;
mod end;
mod patience;
mod places;
pub(crate) mod raw;
mod remote;
mod ssh;
pub(crate) mod sweep;
mod transfer;

pub(crate) use end::{Ends, Measured, now};
pub(crate) use places::Kind;
pub(crate) use ssh::SshEnd;
pub(crate) use transfer::{Moved, run};
