//! Stores with a limited rate.
//!
//! A store is a FUSE file system (`/dev/fuse`, fuse(4)) that passes requests through to a directory
//! in memory and delays reads and writes as a slow device would. This works for any program, on any
//! kernel with FUSE. Block throttling by control groups would not limit data in the page cache, and
//! would leave names behind.
//!
//! Some features are not passed through: extended attributes and access lists, O_TMPFILE, reflinks
//! and other ioctl(2), holes in SEEK_DATA and SEEK_HOLE. Such a request fails as on other file
//! systems without the feature, or the kernel does it in another way. A file with several names has
//! an inode number for each name.
//!
//! When a file is opened for the first time after the store has become slow, the kernel drops the
//! cached data of the file. From then on data that was read once stays in the kernel's cache.
//! Writes are passed through at once.

mod attributes;
mod backing;
mod meter;
mod nodes;
mod passthrough;
mod server;

pub(crate) use server::DiskServer;
