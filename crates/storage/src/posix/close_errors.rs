//! File systems that report late which data they could not keep.
//!
//! Data for another machine's disk (NFS, CIFS, many FUSE file systems) is sent there later. That
//! the disk or a quota is full may be reported only when the file is closed.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::unistd::close;
use parking_lot::Mutex;
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};

use super::kinds::{is_local, system_of};

/// How long an answer is cached, because a device number may be reused for another file system.
const LASTS: Duration = Duration::from_secs(60);
/// How many devices are remembered.
const MOST: usize = 1024;

/// Whether the file system with this device number may report errors when the file is closed. The
/// file system is queried rarely, not for each file.
pub(super) fn may_report(file: BorrowedFd<'_>, device: u64) -> bool {
    static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Mutex::default);
    let known = || KNOWN.lock();
    let now = Instant::now();
    if let Some(late) = known().recall(device, now) {
        return late;
    }
    // Not under the lock, because the query does not return while a file server is silent. If the
    // kind is unknown, the file is closed, which does no harm.
    let late = system_of(file).is_none_or(|(system, _)| !is_local(system));
    known().remember(device, now, late);
    late
}

#[derive(Default)]
struct Known(HashMap<u64, (bool, Instant)>);

impl Known {
    fn recall(&self, device: u64, now: Instant) -> Option<bool> {
        let (late, since) = self.0.get(&device)?;
        (now.saturating_duration_since(*since) < LASTS).then_some(*late)
    }

    fn remember(&mut self, device: u64, now: Instant, late: bool) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(device, (late, now));
    }
}

/// Closes a copy of the descriptor, which sends the written data, and returns the error of close.
pub(super) fn close_copy(file: BorrowedFd<'_>) -> Result<(), Errno> {
    retry_on_intr(|| {
        let copy = fcntl_dupfd_cloexec(file, 0)?;
        close(copy).map_err(|errno| Errno::from_raw_os_error(errno as i32))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn recall_expires_after_some_time() {
        let (mut known, begin) = (Known::default(), Instant::now());
        let at = |second| begin + Duration::from_secs(second);
        known.remember(1, at(0), false);
        known.remember(2, at(30), true);
        for (device, second, late) in
            [(1, 0, Some(false)), (1, 59, Some(false)), (1, 60, None), (2, 60, Some(true)), (3, 60, None)]
        {
            assert_eq!(known.recall(device, at(second)), late, "{device} after {second} s");
        }
        for device in 0..3000 {
            known.remember(device, begin, false);
        }
        assert!(known.0.len() <= MOST);
    }

    #[test]
    fn close_copy_keeps_the_file_open() {
        let file = tempfile::tempfile().unwrap();
        close_copy(file.as_fd()).unwrap();
        std::io::Write::write_all(&mut &file, b"x").unwrap();
    }
}
