//! What `ropewalk profile` does: measuring at each end while a transfer runs, and putting together what was found.

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
