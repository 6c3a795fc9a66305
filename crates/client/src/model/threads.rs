//! Threads that the system may refuse: a run continues without them if possible.

use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

use crate::RemoteError;

/// The same as [`Scope::spawn`], which panics if the thread cannot be started.
pub(crate) fn spawn_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, RemoteError> {
    Builder::new().spawn_scoped(scope, run).map_err(RemoteError::Threads)
}

/// Returns a thread's result; its panic continues in this thread.
pub(crate) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs both at the same time, or one after the other.
pub(crate) fn both<A: Send, B>(one: impl Fn() -> A + Sync, other: impl FnOnce() -> B) -> (A, B) {
    scope(|scope| match spawn_in(scope, &one) {
        Ok(thread) => {
            let other = other();
            (join(thread), other)
        }
        Err(_) => (one(), other()),
    })
}
