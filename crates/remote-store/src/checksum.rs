//! Checksums that the far server computes.

use std::ops::ControlFlow;

use ropewalk_client::Window as Part;
use ropewalk_client::far::Far;
use ropewalk_storage::Result;
use ropewalk_storage::checksum::Algorithm;

/// The checksum of a part of a file, or the failure of the far server. `progress` is that of
/// [`Store::checksum`](ropewalk_storage::Store::checksum).
///
/// # Errors
/// That of `progress`, which stops the work.
pub(crate) fn far_checksum(
    far: &Far,
    path: &[u8],
    algorithm: Algorithm,
    part: Part,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Result<String, ropewalk_client::Error>> {
    let mut stopped = None;
    let result = far.checksum(path, algorithm, Some(part), &mut |summed| match progress(summed) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            stopped = Some(error);
            ControlFlow::Break(())
        }
    });
    stopped.map_or(Ok(result), Err)
}
