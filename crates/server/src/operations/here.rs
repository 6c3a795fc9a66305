//! Listings on the control connection: MLSC.

use std::ops::ControlFlow;

use ropewalk_protocol::facts::EntryKind;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::server::{Event, Failure, ListForm, Outcome};
use ropewalk_storage::{Error, ErrorKind};

use super::{Answer, directory};
use crate::session::job::Job;

/// Entries that are reported at a time.
const CHUNK: usize = 512;

pub(super) fn list_here(job: &mut Job<'_>, path: &VirtualPath) -> Answer {
    job.context.reported.note_many();
    let host = job.host;
    let login = job.context.login.as_deref().ok_or(Failure::NotAllowed)?;
    let _acting = login.acting()?;
    job.dialogue.share(job.permit);
    let mut chunk = Vec::new();
    let (mut count, mut first_chunk) = (0, true);
    let stopped = || Error::new(ErrorKind::Interrupted, "list", path.as_bytes());
    let result = directory::list(host, login, ListForm::Facts, path, &|| true, &mut |entry| {
        count += u64::from(!matches!(entry.kind, EntryKind::CurrentDirectory | EntryKind::ParentDirectory));
        chunk.push(entry);
        if chunk.len() >= CHUNK {
            first_chunk = false;
            let mut flow = job.dialogue.event(Event::Entries(std::mem::take(&mut chunk)));
            if flow.is_continue() {
                flow = job.dialogue.check();
            }
            if flow.is_break() {
                return Err(stopped());
            }
        }
        Ok(())
    });
    if let (true, Some(first)) = (first_chunk, chunk.first_mut())
        && first.kind == EntryKind::CurrentDirectory
    {
        first.count = Some(count);
    }
    let flow = match result {
        Ok(()) if !chunk.is_empty() => job.dialogue.event(Event::Entries(chunk)),
        _ => ControlFlow::Continue(()),
    };
    match job.dialogue.broken_off() {
        Some(failure) => Err(failure),
        None if flow.is_break() => Err(Failure::Aborted),
        None => result.map(|()| Outcome::Done),
    }
}
