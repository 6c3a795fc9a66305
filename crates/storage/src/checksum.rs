//! Checksums: of a whole file, of blocks as they are transferred, and of a file combined from the
//! sums of its blocks.

mod combine;
mod file;
mod hasher;
mod pieces;

pub use ropewalk_protocol::command::{ChecksumAlgorithm as Algorithm, UnknownAlgorithm};

pub use combine::{block_sum, combine};
pub use file::checksum_file;
pub use hasher::Hasher;
pub use pieces::Pieces;
