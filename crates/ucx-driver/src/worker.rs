//! The thread of a UCP worker: it moves bytes between UCX and the connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use ropewalk_udp::{Failure, Queue, Waker};

use crate::connection::UcxConnection;
use crate::entry::{Entry, Served};
use crate::link::Link;
use crate::sys::{self, NewWorker, Worker};

/// How often UCX moves data before the connections are served.
const PROGRESSES: usize = 64;

/// Why there is a thread.
pub(crate) enum Purpose {
    /// Connects, with a ring of this size.
    Connect(SocketAddr, Arc<Link>, usize),
    /// Accepts connections with rings of this size.
    Listen(Arc<Queue>, usize),
}

/// Starts the thread.
///
/// # Errors
/// The system has no thread left.
pub(crate) fn start(worker: NewWorker, waker: Arc<Waker>, purpose: Purpose) -> io::Result<()> {
    let running = sys::Running::new();
    let run = move || {
        let permission = sys::permission();
        let worker = worker.start();
        let mut thread = Thread { worker, waker, connections: Vec::new(), listening: None };
        match purpose {
            Purpose::Listen(queue, ring) => thread.listening = Some((queue, ring)),
            Purpose::Connect(peer, link, ring) => match thread.worker.connect(peer) {
                Ok(endpoint) => {
                    let entry = Entry::new(thread.worker.context(), endpoint, link, ring);
                    thread.connections.push(entry);
                }
                Err(error) => link.change(|state| state.fail(Failure::from(&error))),
            },
        }
        drop(permission);
        thread.run();
        let permission = sys::permission();
        drop(thread);
        drop(permission);
        drop(running);
    };
    thread::Builder::new().name("ucx".to_owned()).spawn(run).map(drop)
}

struct Thread {
    /// Before the worker, because endpoints hold it.
    connections: Vec<Entry>,
    worker: Worker,
    waker: Arc<Waker>,
    listening: Option<(Arc<Queue>, usize)>,
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
        let Some((queue, ring)) = &self.listening else { return };
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
                let link = Link::new(Arc::clone(&self.waker))?;
                Ok(Entry::new(self.worker.context(), endpoint, link, *ring))
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
            entry.link.change(|state| state.fail(Failure::from(error)));
        }
    }
}
