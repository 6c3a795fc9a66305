//! Stores of limited rate.
//!
//! A FUSE file system (`/dev/fuse`, fuse(4)) that passes everything on to a directory in memory, and lets reads and writes take
//! the time that a slow device would take. So it works for any program, on any kernel with FUSE; block throttling by control
//! groups would not reach what the page cache takes up, and would leave names behind. What is not passed on, and fails as on
//! other file systems that do not have it, or is done by the kernel in another way: extended attributes and access lists,
//! O_TMPFILE, reflinks and other ioctl(2), holes in SEEK_DATA and SEEK_HOLE. A file of several names has a number for each.
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
