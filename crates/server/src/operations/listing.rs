//! Listings over a data channel: LIST, NLST, MLSD, MLSR.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use ropewalk_engine::Progress;
use ropewalk_protocol::server::{Direction, Failure, List, ListForm, Outcome};

use super::channel;
use super::observer::{Markers, Observer};
use super::rows::{CHUNKS, PAUSE, Reader, Rows};
use super::transfer::{Started, announce};
use super::{Answer, directory, entries, scitag, tree};
use crate::accounts::login::Login;
use crate::host::Host;
use crate::session::data_channel::Channel;
use crate::session::job::Job;

pub(super) fn list(job: &mut Job<'_>, list: &List) -> Answer {
    job.context.reported.note_many();
    let progress = Arc::new(Progress::new());
    let log = Started::now(job, command(list.form), &list.path, &progress);
    let result = announce(job, list.delayed.as_ref()).and_then(|()| {
        scitag::mark(job, None, None);
        let mut channel = channel::take(job, Direction::Retrieve)?;
        let result = send(job, &mut channel, list, &progress);
        job.context.channel = Some(channel);
        result
    });
    log.ended(job, &progress, result.as_ref().err());
    result.map(|()| Outcome::Listed { bytes: progress.bytes() })
}

fn command(form: ListForm) -> &'static str {
    match form {
        ListForm::Long => "LIST",
        ListForm::Names => "NLST",
        ListForm::Facts => "MLSD",
        ListForm::Recursive => "MLSR",
    }
}

/// Sends a listing. A directory may have millions of entries, and the client may be slow: rows are
/// made on a thread of their own while others are sent, a few chunks ahead.
fn send(job: &mut Job<'_>, channel: &mut Channel, list: &List, progress: &Progress) -> Result<(), Failure> {
    let login = job.context.login()?;
    let host: &Host = job.host;
    let (sender, chunks) = mpsc::sync_channel(CHUNKS);
    let rows = Rows::new(list.form, list.facts, entries::now(), sender);
    let unwanted = AtomicBool::new(false);
    thread::scope(|scope| {
        let maker = thread::Builder::new().name("listing".into());
        maker
            .spawn_scoped(scope, || make(host, login, list, &|| !unwanted.load(Ordering::Relaxed), rows))
            .map_err(|error| Failure::Busy(format!("No thread for a listing: {error}")))?;
        // However this ends, the other thread ends too.
        let _end = Unwanted(&unwanted);
        job.dialogue.share(job.permit);
        // A path that cannot be listed is reported before a data connection is made.
        let first = loop {
            match chunks.recv_timeout(PAUSE) {
                Ok(first) => break first?,
                Err(RecvTimeoutError::Disconnected) => break Vec::new(),
                Err(RecvTimeoutError::Timeout) if job.dialogue.check().is_continue() => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(job.dialogue.broken_off().unwrap_or(Failure::Aborted));
                }
            }
        };
        let mut reader = Reader::new(first, chunks);
        job.dialogue.reply_early(channel);
        let mut observer = Observer::new(&mut job.dialogue, Markers::none());
        let result = channel.data.send_reader(&mut reader, &mut observer, progress);
        match (job.dialogue.broken_off(), reader.failure.take(), result) {
            (Some(failure), _, _) | (None, Some(failure), _) => Err(failure),
            (None, None, Err(failure)) => Err(failure),
            (None, None, Ok(_)) => Ok(()),
        }
        // The reader is dropped here, so that the other thread does not wait for it.
    })
}

/// Reports on drop that the listing is no longer wanted.
struct Unwanted<'a>(&'a AtomicBool);

impl Drop for Unwanted<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn make(host: &Host, login: &Login, list: &List, still_wanted: directory::StillWanted<'_>, mut rows: Rows) {
    let result = login.acting().and_then(|_acting| match list.form {
        ListForm::Recursive => tree::list(host, login, list, still_wanted, &mut |entry| rows.entry(entry)),
        form => directory::list(host, login, form, &list.path, still_wanted, &mut |entry| rows.entry(entry)),
    });
    rows.end(result);
}
