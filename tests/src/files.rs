//! Creates files with known content and compares files.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use crate::random::Random;

const CHUNK: usize = 1 << 20;

/// Writes a file of `size` pseudo-random bytes, which depend on `seed` alone.
pub fn write_random(path: &Path, size: u64, seed: u64) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    let mut random = Random::new(seed);
    let mut left = size;
    let mut buffer = vec![0; CHUNK];
    while left > 0 {
        let count = left.min(CHUNK as u64) as usize;
        random.fill(&mut buffer[..count]);
        file.write_all(&buffer[..count])?;
        left -= count as u64;
    }
    Ok(())
}

/// Writes a sparse file of `size` bytes with random data at `pieces` (offset, length) and holes
/// elsewhere.
pub fn write_sparse(path: &Path, size: u64, pieces: &[(u64, usize)], seed: u64) -> Result<()> {
    let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    file.set_len(size)?;
    let mut random = Random::new(seed);
    for &(offset, length) in pieces {
        file.write_all_at(&random.bytes(length), offset)?;
    }
    Ok(())
}

/// Fails with the offset of the first difference unless both files hold the same bytes. Does not
/// read ranges that are holes in both files.
pub fn ensure_same(left: &Path, right: &Path) -> Result<()> {
    let size = fs::metadata(left).with_context(|| format!("{} cannot be read", left.display()))?.len();
    let other = fs::metadata(right).with_context(|| format!("{} cannot be read", right.display()))?.len();
    ensure!(size == other, "{} has {size} bytes, {} has {other}", left.display(), right.display());
    ensure_same_range(left, 0, right, 0, size)
}

/// Like [`ensure_same`], for `length` bytes from the given offset of each file.
pub fn ensure_same_range(left: &Path, from: u64, right: &Path, from_right: u64, length: u64) -> Result<()> {
    let a = File::open(left).with_context(|| format!("opening {}", left.display()))?;
    let b = File::open(right).with_context(|| format!("opening {}", right.display()))?;
    let (mut one, mut two) = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut at = 0;
    while at < length {
        // Skip ranges that are holes in both files.
        let data = next_data(&a, from + at)?
            .saturating_sub(from)
            .min(next_data(&b, from_right + at)?.saturating_sub(from_right))
            .max(at);
        if data >= length {
            break;
        }
        at = data;
        let count = (length - at).min(CHUNK as u64) as usize;
        read_at(&a, &mut one[..count], from + at).with_context(|| format!("reading {}", left.display()))?;
        read_at(&b, &mut two[..count], from_right + at)
            .with_context(|| format!("reading {}", right.display()))?;
        if one[..count] != two[..count] {
            let first = one.iter().zip(&two).position(|(x, y)| x != y).unwrap_or(0) as u64;
            bail!(
                "{} and {} differ at byte {} of the compared {length}",
                left.display(),
                right.display(),
                at + first
            );
        }
        at += count as u64;
    }
    Ok(())
}

fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    file.read_exact_at(buffer, offset)
}

/// Returns the first offset at or after `offset` that is not in a hole.
fn next_data(file: &File, offset: u64) -> Result<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(found) => Ok(found),
        Err(Errno::NXIO) => Ok(u64::MAX),
        // The file system does not report holes.
        Err(Errno::INVAL) => Ok(offset),
        Err(error) => Err(error.into()),
    }
}

/// Changes one byte of a file.
pub fn damage(path: &Path, offset: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset)?;
    file.write_all_at(&[!byte[0]], offset)?;
    Ok(())
}
