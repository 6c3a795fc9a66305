//! Threads that the system may refuse: a run goes on without them where it can.

use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

use crate::RemoteError;

/// As [`Scope::spawn`], which panics where there is no thread to be had.
pub(crate) fn spawn_in<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, RemoteError> {
    Builder::new().spawn_scoped(scope, run).map_err(RemoteError::Threads)
}

/// What a thread gave; its panic goes on in this one.
pub(crate) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Both at the same time, or one after the other.
pub(crate) fn both<A: Send, B>(one: impl Fn() -> A + Sync, other: impl FnOnce() -> B) -> (A, B) {
    scope(|scope| match spawn_in(scope, &one) {
        Ok(thread) => {
            let other = other();
            (join(thread), other)
        }
        Err(_) => (one(), other()),
    })
}
