//! The thread of a UCP worker: it moves bytes between UCX and the connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use ropewalk_udp::{Failure, Queue, Waker};

use crate::entry::{Entry, Served};
use crate::link::{Link, Queues, UcxConnection};
use crate::sys::{self, NewWorker, Worker};

/// How often UCX moves data before the connections are served.
const PROGRESSES: usize = 64;

/// Why there is a thread.
pub(crate) enum Purpose {
    Connect(SocketAddr, Arc<Link>),
    /// Accepts connections with this window.
    Listen(Arc<Queue>, u32),
}

/// Starts the thread.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn start(worker: NewWorker, waker: Arc<Waker>, purpose: Purpose) -> io::Result<()> {
    let run = move || {
        let permission = sys::permission();
        let worker = worker.start();
        let mut thread = Thread { worker, waker, connections: Vec::new(), listening: None };
        match purpose {
            Purpose::Listen(queue, window) => thread.listening = Some((queue, window)),
            Purpose::Connect(peer, link) => match thread.worker.connect(peer) {
                Ok(endpoint) => thread.connections.push(Entry::new(endpoint, link)),
                Err(error) => link.serve(|state| state.fail(Failure::from(&error))),
            },
        }
        drop(permission);
        thread.run();
        let _permission = sys::permission();
        drop(thread);
    };
    thread::Builder::new().name("ucx".to_owned()).spawn(run).map(drop)
}

struct Thread {
    /// Before the worker, because endpoints hold it.
    connections: Vec<Entry>,
    worker: Worker,
    waker: Arc<Waker>,
    listening: Option<(Arc<Queue>, u32)>,
}

impl Thread {
    fn run(&mut self) {
        loop {
            let permission = sys::permission();
            let mut progresses = 0;
            while progresses < PROGRESSES && self.worker.progress() {
                progresses += 1;
            }
            self.accept();
            let again = self.serve();
            self.connections.retain(|entry| !entry.is_gone());
            // A listener that is dropped from now on wakes this thread.
            if self.connections.is_empty() && self.listening.is_none() {
                return;
            }
            if progresses == 0 && !again {
                match self.worker.arm() {
                    Ok(true) => {
                        let next = self.connections.iter().filter_map(Entry::next).min();
                        drop(permission);
                        self.waker.wait(&self.worker.descriptor(), next);
                    }
                    Ok(false) => {}
                    Err(error) => return self.fail(&error),
                }
            }
        }
    }

    fn accept(&mut self) {
        let Some((queue, window)) = &self.listening else { return };
        if queue.is_broken() {
            self.worker.stop_listening();
            self.listening = None;
            return;
        }
        for request in self.worker.take_requests() {
            let coming = self.connections.iter().filter(|entry| entry.next().is_some()).count();
            if !queue.has_room(coming) {
                self.worker.reject(request);
                continue;
            }
            let entry = self.worker.accept(request).and_then(|endpoint| {
                let queues = Queues::new(*window);
                Ok(Entry::new(endpoint, Link::new(Arc::clone(&self.waker), queues, None)?))
            });
            match entry {
                Ok(entry) => self.connections.push(entry),
                Err(error) => tracing::warn!(%error, "cannot accept a UCX connection"),
            }
        }
    }

    /// Returns whether there may be more to receive.
    fn serve(&mut self) -> bool {
        let mut again = false;
        for entry in std::mem::take(&mut self.connections) {
            let mut served = Served::default();
            let entry = entry.serve(&mut served);
            again |= served.again;
            if served.opened
                && let Some((queue, _)) = &self.listening
            {
                queue.push(Box::new(UcxConnection::new(Arc::clone(&entry.link))));
            }
            self.connections.push(entry);
        }
        again
    }

    fn fail(&mut self, error: &io::Error) {
        tracing::warn!(%error, "a UCX worker has failed");
        for entry in &self.connections {
            entry.link.serve(|state| state.fail(Failure::from(error)));
        }
    }
}
