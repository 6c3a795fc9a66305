//! The end of the process: the destructors of UCX must not run while threads use it, and shared
//! memory that is not released stays on the host.

use std::io;
use std::sync::Once;
use std::time::Duration;

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};

/// Read by each thread that uses UCX; written, and never released, at the end of the process.
static USE: RwLock<()> = RwLock::new(());
/// A thread that does not stop within this time is stuck in UCX.
const PATIENCE: Duration = Duration::from_secs(1);

/// How many threads have a worker.
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();
/// How long the end of the process waits for them: they have only to release what was closed.
const RELEASE: Duration = Duration::from_millis(250);

/// A thread that has a worker.
pub(crate) struct Running;

impl Running {
    pub(crate) fn new() -> Self {
        *RUNNING.lock() += 1;
        Self
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        *RUNNING.lock() -= 1;
        ENDED.notify_all();
    }
}

/// The permission to use UCX, which a thread must not keep while it sleeps. At the end of the
/// process this never returns. A thread may take it several times.
pub(crate) fn permission() -> RwLockReadGuard<'static, ()> {
    USE.read_recursive()
}

/// Makes the process stop the threads before it runs the destructors of UCX.
///
/// # Errors
/// The C library has no memory left.
pub(super) fn stop_threads_at_exit() -> io::Result<()> {
    static REGISTERED: Once = Once::new();
    let mut status = 0;
    // SAFETY: the function lives forever.
    REGISTERED.call_once(|| status = unsafe { libc::atexit(stop_threads) });
    if status == 0 { Ok(()) } else { Err(io::ErrorKind::OutOfMemory.into()) }
}

extern "C" fn stop_threads() {
    ENDED.wait_while_for(&mut RUNNING.lock(), |running| *running > 0, RELEASE);
    std::mem::forget(USE.try_write_for(PATIENCE));
}
