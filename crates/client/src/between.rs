//! The common parts of copies between two servers, whichever way their data takes: the sessions
//! with both servers, the verification, and the cleanup after a lost session.

use std::time::Duration;

use bstr::ByteSlice;
use ropewalk_protocol::command::Command;
use ropewalk_transfer::{Checks, Purpose, Side, Slot};

use crate::RemoteError;
use crate::context::Context;
use crate::control::LAST_WORDS;
use crate::get::checksum_command;
use crate::relay::Relay;
use crate::session::Session;
use crate::task::Task;
use crate::verify::{Check, choose, proved};
use crate::worker::Worker;

/// The sessions with the two servers.
pub(crate) struct Servers {
    pub source: Session,
    pub destination: Session,
}

impl Servers {
    pub(crate) fn of(&mut self, side: Side) -> &mut Session {
        match side {
            Side::Source => &mut self.source,
            Side::Destination => &mut self.destination,
        }
    }

    pub(crate) fn longer_rtt(&self) -> Duration {
        self.source.control.rtt().max(self.destination.control.rtt())
    }

    /// Better data nodes than those of the present channel have joined one of the servers.
    pub(crate) fn want_new_channel(&self) -> bool {
        self.source.control.wants_new_channel || self.destination.control.wants_new_channel
    }

    /// The names of both, for messages.
    pub(crate) fn names(&self) -> String {
        format!("{} and {}", self.source.endpoint.name, self.destination.endpoint.name)
    }
}

/// The check of a copy. `inline` means that the servers may report checksums with their last
/// replies.
pub(crate) fn check(servers: &Servers, ctx: &Context, inline: bool) -> Result<Check, RemoteError> {
    if ctx.options().data.ascii {
        return Ok(Check::Size);
    }
    let (a, b) = (&servers.source.can, &servers.destination.can);
    let inline = inline && a.inline_checksum && b.inline_checksum;
    let knows = |algorithm| a.knows(algorithm) && b.knows(algorithm);
    choose(ctx.options().integrity.checksum, &knows, inline, &servers.names())
}

/// The commands that verify a file after all of its data has arrived.
pub(crate) fn checks<O>(servers: &Servers, ctx: &Context, slot: &Slot<Relay, O>) -> Checks {
    let (relay, mut checks) = (&slot.file, Checks::default());
    let task = &relay.task;
    if relay.is_unwatched() && servers.source.can.facts && !slot.has_asked_version() {
        checks.version = Some(Command::Mlst(Some(task.source.path())));
    }
    if relay.needs_sum() {
        if let Some(algorithm) = relay.check.algorithm() {
            checks.checksums.source = Some(checksum_command(algorithm, task, &task.source.path()));
            let sum = relay.checksum_command(algorithm, task.offset(), relay.length());
            // For an upload, the server compares the checksum at the commit.
            checks.checksums.destination = Some(sum).filter(|_| relay.staging.upload().is_none());
        }
        return checks;
    }
    if relay.staging.upload().is_some() {
        return checks;
    }
    let plain = !relay.device() && !ctx.options().data.ascii && task.window.is_none();
    if relay.check == Check::Size && servers.destination.can.size && plain && relay.length().is_some() {
        checks.size = Some(Command::Size(relay.path.clone()));
    }
    checks
}

/// The commands that set the attributes and the name of a file.
pub(crate) fn naming(servers: &Servers, ctx: &Context, relay: &Relay) -> Vec<(Purpose, Command)> {
    let sent = relay.passed_here().filter(|_| !ctx.options().data.ascii);
    relay.naming(&servers.destination, ctx.options().preserve, sent, relay.upload_proof())
}

/// The proof that the destination has the same bytes; `None` if it does not have them.
pub(crate) fn same_already(
    servers: &mut Servers,
    ctx: &Context,
    task: &Task,
) -> Result<Option<String>, RemoteError> {
    let Servers { source, destination } = servers;
    let Some(algorithm) = ctx.comparison(&[&source.can, &destination.can]) else { return Ok(None) };
    // Both servers compute their checksums at the same time.
    source.control.send(&checksum_command(algorithm, task, &task.source.path()))?;
    source.control.last_reads(task.size);
    let theirs = destination.checksum(&task.destination.path(), algorithm, None, task.size);
    let reply = source.control.finish()?;
    let ours = source.accept("CKSM", reply)?;
    let theirs = task.unless_missing(theirs)?;
    Ok(theirs.and_then(|theirs| proved(algorithm, &ours.text().to_str_lossy(), &theirs)))
}

/// Ends both sessions: first the source's, so that the destination waits for no more data; then the
/// destination's, because its server would still rename files that are about to be sent again.
/// Returns whether the destination server is known to have finished the session.
pub(crate) fn leave<'s, O: 's>(
    servers: &mut Servers,
    worker: &Worker<'_>,
    mut slots: impl Iterator<Item = &'s Slot<Relay, O>>,
) -> bool {
    let Servers { source, destination } = servers;
    worker.ctx.report.waited(source.control.waited + destination.control.waited);
    // The files behind the failed one are tried again.
    let failed = slots.find(|slot| slot.error.is_some());
    if let Some(removal) = failed.and_then(leftover) {
        worker.leave_over(&destination.endpoint, removal);
    }
    source.leave(Duration::ZERO);
    destination.leave(LAST_WORDS)
}

/// The commands that remove the data of a file that failed for good, if a later run could not
/// resume it: the source refused to send it, or it is too small.
fn leftover<O>(slot: &Slot<Relay, O>) -> Option<Vec<Command>> {
    let relay = &slot.file;
    let error = slot.error.as_ref().filter(|error| !error.is_transient())?;
    let unsent = error.refused_command() == Some("RETR");
    // If any data has arrived, the file is tried again.
    let nothing = relay.resumed == 0 && (unsent && relay.present().is_empty() || !relay.is_resumable());
    let removal = relay.staging.removal();
    (nothing && !removal.is_empty() && slot.range == relay.whole()).then_some(removal)
}
