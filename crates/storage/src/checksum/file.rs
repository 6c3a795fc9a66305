//! The checksum of a range of a file in a store. The work can be stopped by the caller.

use std::cell::Cell;

use super::{Algorithm, Hasher};
use crate::{Pages, ReadHandle, Result};

/// Large enough that system calls cost little, small enough to stay in the nearest caches between
/// reading and summing.
const BUFFER: usize = 128 << 10;

thread_local! {
    /// The buffer is kept per thread, because touching new memory takes longer than summing a file
    /// of this size.
    static KEPT: Cell<Option<Pages>> = const { Cell::new(None) };
}

/// The checksum of `length` bytes (`None`: to the end) of a file from `offset`, in lowercase
/// hexadecimal.
///
/// If the file ends earlier, its bytes up to the end are summed. `progress` is called with the
/// number of bytes summed so far, several times per MiB. Its error stops the work and is returned.
///
/// # Errors
/// The file cannot be read, or the error of `progress`.
pub fn checksum_file(
    handle: &dyn ReadHandle,
    algorithm: Algorithm,
    offset: u64,
    length: Option<u64>,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<String> {
    let end = length.map_or(u64::MAX, |length| offset.saturating_add(length));
    let mut hasher = Hasher::new(algorithm);
    let mut buffer = KEPT.take().unwrap_or_else(|| Pages::new(BUFFER));
    let mut at = offset;
    while at < end {
        let want = usize::try_from(end - at).unwrap_or(BUFFER).min(BUFFER);
        let got = handle.read_at(&mut buffer[..want], at)?;
        if got == 0 {
            break;
        }
        hasher.update(&buffer[..got]);
        at += got as u64;
        progress(at - offset)?;
    }
    KEPT.set(Some(buffer));
    Ok(hasher.finish())
}
