//! Stores of limited rate.
//!
//! A FUSE file system (`/dev/fuse`, fuse(4)) that passes everything on to a directory in memory, and lets reads and writes take
//! the time that a slow device would take. So it works for any program, with any call, on any kernel with FUSE; block
//! throttling by control groups would not reach what the page cache takes up, and would leave names behind.
//!
//! The kernel's cache of a file is thrown away when the file is opened, so a file that is read again is slow again, as with
//! a file that is larger than the memory. Writes are passed on at once.

mod attributes;
mod backing;
mod meter;
mod nodes;
mod passthrough;
mod server;

pub(crate) use server::DiskServer;
