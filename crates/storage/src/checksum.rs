//! Checksums: of a whole file, of blocks as they pass, and of a file joined from blocks.

mod algorithm;
mod combine;
mod file;
mod hasher;
mod pieces;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use combine::{block_sum, combine};
pub use file::checksum_file;
pub use hasher::Hasher;
pub use pieces::Pieces;
