//! The threads that keep the accounts while the server runs: one ends reservations and writes the
//! ledger, and one counts files.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Space;
use super::counting;

/// Changes reach the ledger after this time.
const PAUSE: Duration = Duration::from_secs(1);

/// Keeps the accounts until it is dropped, and then writes them.
pub(crate) struct Keeper {
    space: Arc<Space>,
    /// Dropped to end the threads.
    stop: Vec<Sender<()>>,
    writer: Option<JoinHandle<()>>,
}

impl Keeper {
    /// # Errors
    /// The system has no thread.
    pub(crate) fn start(space: &Arc<Space>, count_interval: Duration) -> io::Result<Self> {
        let (writing, counting) = (channel(), channel());
        let writer = start("ledger", space, move |space| write(space, &writing.1))?;
        // It may hang in a file system, so it is not waited for.
        drop(start("counting", space, move |space| counting::run(space, &counting.1, count_interval))?);
        Ok(Self { space: Arc::clone(space), stop: vec![writing.0, counting.0], writer: Some(writer) })
    }
}

fn start(
    name: &str,
    space: &Arc<Space>,
    run: impl FnOnce(&Arc<Space>) + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let space = Arc::clone(space);
    thread::Builder::new().name(name.into()).spawn(move || run(&space))
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.clear();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
        self.space.save();
        if let Err(error) = self.space.ledger.lock().sync() {
            tracing::error!(%error, "the ledger of quotas is perhaps not on the disk");
        }
    }
}

fn write(space: &Arc<Space>, stop: &Receiver<()>) {
    while stop.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
        space.expire();
        space.save();
    }
}
