//! A server's description of itself, for the sessions after the first.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use bstr::BString;
use ropewalk_protocol::reply::Reply;

/// The reply to FEAT of one session. Later ones use it without waiting for their own reply, which
/// saves a round trip, and compare that one when it comes.
#[derive(Debug)]
pub(crate) struct FeaturesReply {
    /// Lines of the reply, without the first and the last; empty if the server does not know FEAT.
    pub lines: Vec<BString>,
    /// Whether it drops non-ASCII characters from names, once that was tested.
    pub ascii_only: OnceLock<bool>,
    /// Another session got another reply: there may be several servers behind one address, or the
    /// server is a new one.
    outdated: AtomicBool,
}

impl FeaturesReply {
    pub(crate) fn new(reply: &Reply) -> Self {
        Self { lines: lines(reply), ascii_only: OnceLock::new(), outdated: AtomicBool::new(false) }
    }

    /// Whether another session got the same reply.
    pub(crate) fn is_same_as(&self, reply: &Reply) -> bool {
        let same = self.lines == lines(reply);
        if !same {
            self.mark_outdated();
        }
        same
    }

    pub(crate) fn mark_outdated(&self) {
        self.outdated.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_current(&self) -> bool {
        !self.outdated.load(Ordering::Relaxed)
    }
}

fn lines(reply: &Reply) -> Vec<BString> {
    if reply.is_success() { reply.body().map(Into::into).collect() } else { Vec::new() }
}
