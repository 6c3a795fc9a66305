//! Lets a run report its events to a sink that the caller only lends.
//!
//! A run has threads and sessions of its own and keeps its sink in an `Arc`. [`lend`] starts the
//! run on another thread, and its events come back to the calling thread, which passes them on. A
//! thread that reports an event waits until the sink has returned, as if it had called the sink
//! itself; if the sink panics, so does that thread, and in the end the caller of [`lend`].

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};

use crate::model::threads::spawn_in;
use crate::{Event, EventSink, RemoteError};

/// Sends events to the thread that has the borrowed sink, and waits until each is handled.
struct Bridge(Sender<(Event, SyncSender<()>)>);

impl EventSink for Bridge {
    fn event(&self, event: Event) {
        let (handled, wait) = sync_channel(1);
        if self.0.send((event, handled)).is_err() || wait.recv().is_err() {
            // Panics without a message, because the sink's own panic has printed one.
            resume_unwind(Box::new("the sink of events panicked"));
        }
    }
}

/// Calls `run` with a sink whose events go to `events`.
///
/// # Errors
/// The system cannot start a thread, or `run` returns an error.
pub(crate) fn lend<T: Send, E: From<RemoteError> + Send>(
    events: &dyn EventSink,
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
            }
            if panicked.is_none() {
                // The run waits for this message.
                let _ = handled.send(());
            }
        }
        let result = run.join();
        match (panicked, result) {
            (Some(panic), _) | (None, Err(panic)) => resume_unwind(panic),
            (None, Ok(result)) => result,
        }
    })
}
