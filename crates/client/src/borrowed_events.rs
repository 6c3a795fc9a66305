//! Lets a run report its events to a sink that the caller only lends.
//!
//! A run has threads and sessions of its own and keeps its sink in an `Arc`. [`lend`] starts the
//! run on another thread, and its events come back to the calling thread, which passes them on. A
//! thread that reports an event waits until the sink has returned, as if it had called the sink
//! itself. If the sink panics, the run is cancelled and the panic goes on once the run has ended.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};

use crate::threads::spawn_in;
use crate::{Cancel, Event, EventSink, RemoteError};

/// Sends events to the thread that has the borrowed sink, and waits until each is handled.
struct Bridge(Sender<(Event, SyncSender<()>)>);

impl EventSink for Bridge {
    fn event(&self, event: Event) {
        let (handled, wait) = sync_channel(0);
        if self.0.send((event, handled)).is_ok() {
            // An error too says that the event was taken: the other thread drops its end.
            let _ = wait.recv();
        }
    }
}

/// Calls `run` with a sink whose events go to `events`. `cancel` stops the run if `events` panics.
///
/// # Errors
/// The system gives no thread; else those of `run`.
pub(crate) fn lend<T: Send, E: From<RemoteError> + Send>(
    events: &dyn EventSink,
    cancel: &Cancel,
    run: impl FnOnce(&Arc<dyn EventSink>) -> Result<T, E> + Send,
) -> Result<T, E> {
    let (send, receive) = channel();
    let sink: Arc<dyn EventSink> = Arc::new(Bridge(send));
    std::thread::scope(|scope| {
        let run = spawn_in(scope, move || run(&sink))?;
        let mut panicked = None;
        for (event, handled) in receive {
            if panicked.is_none() {
                panicked = catch_unwind(AssertUnwindSafe(|| events.event(event))).err();
                if panicked.is_some() {
                    cancel.cancel();
                }
            }
            drop(handled);
        }
        let result = run.join();
        match (panicked, result) {
            (Some(panic), _) | (None, Err(panic)) => resume_unwind(panic),
            (None, Ok(result)) => result,
        }
    })
}
