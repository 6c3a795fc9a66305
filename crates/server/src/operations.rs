//! The operations that sessions ask for, carried out with storage and engine.
//!
//! [`Entry`] has the table of all operations. Each runs on the thread of its session, with a
//! [`Job`](crate::session::job::Job) that lends it the session and the host, and returns what the
//! session needs for its reply.

mod baseline;
mod buffers;
mod channel;
mod checksum;
mod destination;
mod directory;
mod entries;
mod entry;
mod files;
mod here;
mod listing;
mod node;
mod observer;
mod part_names;
mod path_watch;
mod plan;
mod profile;
mod programs;
mod relay;
mod retrieve;
mod room;
mod rows;
mod scitag;
mod security;
mod slots;
mod space;
mod stack;
mod store;
mod transfer;
mod tree;
mod uploads;
mod usage;

use ropewalk_protocol::server::{Failure, Outcome};

pub(crate) use entry::{Data, Entry, Permits};
pub(crate) use room::low_disk;
pub(crate) use stack::DISK_DRIVERS;

use crate::session::dialogue::EndOfInput;
use crate::session::job::Job;

pub(crate) type Answer = Result<Outcome, Failure>;

/// Why an operation that has waited for its permit must not start: the client has aborted it or is
/// gone.
pub(crate) fn broken_off(job: &mut Job<'_>) -> Option<Failure> {
    // `broken_off` returns the reason.
    let _ = job.dialogue.drain(EndOfInput::default());
    job.dialogue.broken_off()
}
