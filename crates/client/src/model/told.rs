//! What a server said of itself, for the sessions after the first.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bstr::BString;
use ropewalk_protocol::reply::Reply;

/// The answer to FEAT that one session had. Further ones go by it without waiting for their own, which saves a round trip, and
/// compare that when it comes.
#[derive(Debug)]
pub(crate) struct Told {
    /// Of the reply, without the first and the last; none where the server does not know FEAT.
    pub lines: Vec<BString>,
    /// It leaves out of names what is not ASCII, once that was tried.
    pub ascii_only: OnceLock<bool>,
    /// A session was told something else: behind one address there may be several servers, or the server is a new one.
    outdated: AtomicBool,
}

impl Told {
    pub(crate) fn new(reply: &Reply) -> Self {
        Self { lines: lines(reply), ascii_only: OnceLock::new(), outdated: AtomicBool::new(false) }
    }

    /// Whether another session is told the same.
    pub(crate) fn are_those_of(&self, reply: &Reply) -> bool {
        let same = self.lines == lines(reply);
        if !same {
            self.hold_no_more();
        }
        same
    }

    pub(crate) fn hold_no_more(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }

    pub(crate) fn hold(&self) -> bool {
        !self.outdated.load(Ordering::Relaxed)
    }
}

fn lines(reply: &Reply) -> Vec<BString> {
    if reply.is_success() { reply.body().map(Into::into).collect() } else { Vec::new() }
}
