//! Kills a program at a request that it makes to a provider of paths.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The moment at which the program is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The request has come, and is not carried out.
    Before,
    /// It is carried out, and not answered.
    Unanswered,
    /// So long after the answer: the program writes its journal, or sends its next request.
    Answered(Duration),
}

/// Kills the program at one of its requests.
#[derive(Debug)]
pub struct Trap {
    /// The request, from 1.
    pub request: u32,
    pub moment: Moment,
    pub program: OnceLock<Pid>,
    seen: AtomicU32,
}

impl Trap {
    pub fn new(request: u32, moment: Moment) -> Self {
        Self { request, moment, program: OnceLock::new(), seen: AtomicU32::new(0) }
    }

    /// Counts a request. Returns the moment if the program is to be killed at it.
    pub fn count(&self) -> Option<Moment> {
        let at = self.seen.fetch_add(1, Ordering::SeqCst) + 1;
        (at == self.request).then_some(self.moment)
    }

    /// Kills the program.
    pub fn spring(&self) {
        if let Moment::Answered(pause) = self.moment {
            thread::sleep(pause);
        }
        // The program may have ended by itself.
        let _ = kill_process(*self.program.wait(), Signal::KILL);
    }
}
