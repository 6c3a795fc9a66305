//! Measures the rates that parts of a host reach without a transfer: its disks past the page cache,
//! and checksums and encryption on one processor.
//!
//! Every measurement ends after a given time and writes no more than a file of a given size.

pub mod fio;
pub mod iperf;

use std::io;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use openssl::symm::{Cipher, encrypt_aead};
use ropewalk_storage::checksum::{Algorithm, block_sum};
use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl, fdatasync, fstat};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Limits of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub time: Duration,
    /// Size of the file that is written, in bytes; beyond this, the file is overwritten from its
    /// beginning.
    pub file: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { time: Duration::from_secs(4), file: 1 << 30 }
    }
}

/// The rate of a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskRate {
    pub bytes_per_second: f64,
    /// Whether the page cache was bypassed (`O_DIRECT`). On a file system that cannot do that, the
    /// file was removed from the cache before it was read, and written data was synchronised to the
    /// disk.
    pub direct: bool,
}

/// Rates of one processor, in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ProcessorRates {
    /// CRC32C, which Ropewalk's programs use.
    pub checksum: f64,
    /// AES-256-GCM in records of the size that TLS uses.
    pub encryption: f64,
}

/// A disk could not be measured.
#[derive(Debug, Error)]
pub enum BaselineError {
    #[error("the file has {found} bytes, expected at least {least} for a measurement")]
    TooSmall { found: u64, least: u64 },
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("encryption: {0}")]
    Encryption(#[from] openssl::error::ErrorStack),
}

impl From<Errno> for BaselineError {
    fn from(errno: Errno) -> Self {
        Self::Io(errno.into())
    }
}

const BLOCK: usize = 1 << 20;
/// The alignment that direct reads and writes require of memory, lengths and offsets.
const ALIGNMENT: usize = 4096;
const RECORD: usize = 16 << 10;
/// Number of bytes after which written data is synchronised to the disk, if it is not written
/// directly.
const SYNC: u64 = 64 << 20;

/// Reads the file repeatedly from its beginning. This changes the flags of the open file, so the
/// file has to be opened for this purpose alone.
///
/// # Errors
/// The file has less than 1 MiB, or cannot be read.
pub fn read_disk(file: BorrowedFd<'_>, limits: Limits) -> Result<DiskRate, BaselineError> {
    let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
    if size < BLOCK as u64 {
        return Err(BaselineError::TooSmall { found: size, least: BLOCK as u64 });
    }
    let mut direct = go_direct(file);
    let mut at = 0;
    let bytes_per_second = rate(limits.time, |buffer| {
        if at == 0 && !direct {
            // Dirty pages stay in the cache. That does not matter when other programs write.
            let _ = fadvise(file, 0, None, Advice::DontNeed);
        }
        let n = match retry_on_intr(|| pread(file, &mut *buffer, at)) {
            Err(Errno::INVAL) if direct => {
                direct = leave_direct(file)?;
                0
            }
            result => result?,
        };
        at = if n < BLOCK { 0 } else { at + n as u64 };
        Ok(n)
    })?;
    Ok(DiskRate { bytes_per_second, direct })
}

/// Overwrites the file repeatedly from its beginning. This changes the flags of the open file, so
/// the file has to be opened for this purpose alone.
///
/// # Errors
/// The file cannot be written, for example because there is no space.
pub fn write_disk(file: BorrowedFd<'_>, limits: Limits) -> Result<DiskRate, BaselineError> {
    let mut direct = go_direct(file);
    let (mut at, mut written) = (0, 0);
    let bytes_per_second = rate(limits.time, |buffer| {
        let n = match retry_on_intr(|| pwrite(file, buffer, at)) {
            Err(Errno::INVAL) if direct => {
                direct = leave_direct(file)?;
                0
            }
            result => result?,
        };
        written += n as u64;
        // A short write may end anywhere, but direct writes must begin at a multiple of the block
        // size.
        at = if n < BLOCK || at + 2 * n as u64 > limits.file { 0 } else { at + n as u64 };
        // Otherwise this would measure memory.
        if !direct && written % SYNC < n as u64 {
            fdatasync(file)?;
        }
        Ok(n)
    })?;
    Ok(DiskRate { bytes_per_second, direct })
}

/// Switches to direct access. Returns whether the file system supports it.
fn go_direct(file: BorrowedFd<'_>) -> bool {
    fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, flags | OFlags::DIRECT)).is_ok()
}

/// Switches direct access off: some file systems support it, but not for every file.
fn leave_direct(file: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = fcntl_getfl(file)?;
    fcntl_setfl(file, flags - OFlags::DIRECT)?;
    Ok(false)
}

/// The rate at which `step` processes blocks, in bytes per second.
fn rate(time: Duration, mut step: impl FnMut(&mut [u8]) -> io::Result<usize>) -> Result<f64, BaselineError> {
    let mut memory = vec![0; BLOCK + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let buffer = &mut memory[start..start + BLOCK];
    // Avoid runs of zeros, which some disks do not write.
    buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at.wrapping_mul(2_654_435_761) >> 11) as u8);
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < time {
        bytes += step(buffer)? as u64;
    }
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}

/// Measures both rates of one processor, for half a second each.
///
/// # Errors
/// The library has no AES-256-GCM.
pub fn processor() -> Result<ProcessorRates, BaselineError> {
    const TIME: Duration = Duration::from_millis(500);
    let data = vec![0x5a; BLOCK];
    let checksum = rate(TIME, |_| {
        std::hint::black_box(block_sum(Algorithm::Crc32c, std::hint::black_box(&data)));
        Ok(BLOCK)
    })?;
    let (key, nonce, mut tag) = ([7; 32], [9; 12], [0; 16]);
    let encryption = rate(TIME, |_| {
        let record = std::hint::black_box(&data[..RECORD]);
        let sealed = encrypt_aead(Cipher::aes_256_gcm(), &key, Some(&nonce), &[], record, &mut tag);
        std::hint::black_box(sealed.map_err(io::Error::other)?);
        Ok(RECORD)
    })?;
    Ok(ProcessorRates { checksum, encryption })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsFd;

    use super::*;

    const SHORT: Limits = Limits { time: Duration::from_millis(50), file: 3 << 20 };

    #[test]
    fn disk_rates_are_measured_and_the_file_stays_small() {
        let file = tempfile::tempfile().unwrap();
        assert!(write_disk(file.as_fd(), SHORT).unwrap().bytes_per_second > 1e3);
        let size = file.metadata().unwrap().len();
        assert!((1 << 20..=3 << 20).contains(&size), "{size}");
        assert!(read_disk(file.as_fd(), SHORT).unwrap().bytes_per_second > 1e3);
        file.set_len(100).unwrap();
        assert!(matches!(
            read_disk(file.as_fd(), SHORT),
            Err(BaselineError::TooSmall { found: 100, least: 1_048_576 })
        ));
    }

    #[test]
    fn disk_rates_when_direct_access_is_missing_are_measured() {
        // A file in memory.
        let file = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        assert!(write_disk(file.as_fd(), SHORT).unwrap().bytes_per_second > 1e3);
        assert!(read_disk(file.as_fd(), SHORT).unwrap().bytes_per_second > 1e3);
    }

    #[test]
    fn processor_measures_both_rates() {
        let rates = processor().unwrap();
        assert!(rates.checksum > 1e6 && rates.encryption > 1e6, "{rates:?}");
    }
}
