//! The end of the process: the destructors of UCX must not run while threads use it.

use std::io;
use std::sync::Once;
use std::time::Duration;

use parking_lot::{RwLock, RwLockReadGuard};

/// Read by each thread that uses UCX; written, and never released, at the end of the process.
static USE: RwLock<()> = RwLock::new(());
/// A thread that does not stop within this time is stuck in UCX.
const PATIENCE: Duration = Duration::from_secs(1);

/// The permission to use UCX, which a thread must not keep while it sleeps. At the end of the
/// process this never returns.
pub(crate) fn permission() -> RwLockReadGuard<'static, ()> {
    USE.read()
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
    std::mem::forget(USE.try_write_for(PATIENCE));
}
