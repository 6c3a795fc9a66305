//! Programs in place of files: the driver `popen` of SITE SETDISKSTACK.
//!
//! A download sends the output of the program, an upload writes its input; the path of the command
//! names nothing. Nothing can be resumed or proved, and there are no ranges: each transfer starts
//! the program again. It fails if the program fails, with the last message of the program.

use std::sync::Arc;
use std::time::Duration;

use ropewalk_engine::{Progress, ReceiveJob};
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::{Direction, Failure, Mode, RepresentationType, Transfer};
use ropewalk_storage::{Program, ProgramInput, ReadHandle, WriteHandle};

use super::channel;
use super::observer::{Markers, Observer};
use super::retrieve::send_all;
use super::transfer::Checksum;
use crate::failure::failure;
use crate::session::dialogue::EndOfInput;
use crate::session::job::Job;

/// RETR with a program in place of the file.
pub(super) fn retrieve(
    job: &mut Job<'_>,
    program: &Program,
    transfer: &Transfer,
    progress: &Progress,
) -> Result<Checksum, Failure> {
    is_whole(transfer)?;
    let mut channel = channel::take(job, Direction::Retrieve)?;
    let source: Arc<dyn ReadHandle> = Arc::new(program.open_read().map_err(failure)?);
    tell(job, program);
    job.dialogue.share(job.permit);
    job.dialogue.reply_early(&channel);
    let mut observer = Observer::new(&mut job.dialogue, Markers::new(transfer.perf_interval, 0, 0));
    let result = send_all(&mut channel, transfer, &source, &mut observer, progress);
    observer.last_markers(progress, result.is_ok(), true);
    let result = result.map_err(|error| job.dialogue.broken_off().unwrap_or(error));
    job.context.channel = Some(channel);
    result.map(|_| None)
}

/// STOR with a program in place of the file.
pub(super) fn store(
    job: &mut Job<'_>,
    program: &Program,
    transfer: &Transfer,
    progress: &Progress,
) -> Result<Checksum, Failure> {
    is_whole(transfer)?;
    let mut channel = channel::take(job, Direction::Store)?;
    // Until all data has arrived.
    channel.desynchronized = true;
    let input = Arc::new(program.open_write().map_err(failure)?);
    tell(job, program);
    let writing = job.host.writers.begin(job.context.user(), &transfer.path);
    let end = match transfer.mode {
        Mode::ExtendedBlock => EndOfInput::DiedUnlessQueued,
        Mode::Stream => EndOfInput::DiedUnlessQuit,
    };
    job.dialogue.share(job.permit);
    job.dialogue.reply_early(&channel);
    // Restart markers would promise that the program can be resumed.
    let markers = Markers::new(transfer.perf_interval, 0, 0);
    let mut observer = Observer::of_upload(&mut job.dialogue, markers, end, writing.writer());
    let receive = ReceiveJob {
        sink: Arc::clone(&input) as Arc<dyn WriteHandle>,
        origin: 0,
        accept: RangeSet::from_range(0..u64::MAX),
        checksum: None,
        sparse: false,
        written: &|_, _| Ok(()),
    };
    let result = channel.data.receive(&receive, &mut observer, progress);
    drop(receive);
    channel.desynchronized = result.is_err();
    observer.last_markers(progress, result.is_ok(), false);
    // The end of the data may be the death of the client.
    if result.is_err() || transfer.mode == Mode::Stream {
        let _ = observer.drain();
    }
    job.context.channel = Some(channel);
    if let Some(failure) = job.dialogue.broken_off() {
        return Err(failure);
    }
    let received = result?;
    if let Some(size) = transfer.allocated
        && transfer.mode == Mode::Stream
        && transfer.representation == RepresentationType::Image
        && received.bytes < size
    {
        let bytes = received.bytes;
        let text = format!("the data connection ended after {bytes} of the {size} bytes announced");
        return Err(Failure::DataBroken(text));
    }
    end_of_input(job, input, &transfer.path)?;
    job.dialogue.share(None);
    Ok(None)
}

/// Waits until the program has done its work on the last bytes.
fn end_of_input(job: &mut Job<'_>, input: Arc<ProgramInput>, path: &VirtualPath) -> Result<(), Failure> {
    let limit = job.context.settings.config.data.stall_timeout;
    let limit = Some(limit).filter(|limit| *limit > Duration::ZERO);
    let ended = ProgramInput::finish(input, limit, &mut || job.dialogue.proceed(path));
    ended.map_err(|error| job.dialogue.broken_off().unwrap_or_else(|| failure(error)))
}

/// A program has no positions and no earlier bytes, and cannot be read again.
fn is_whole(transfer: &Transfer) -> Result<(), Failure> {
    let command = if transfer.upload.is_some() {
        "SITE UPLOAD"
    } else if transfer.window.is_some() {
        "ERET"
    } else if transfer.adjust.is_some() {
        "ESTO"
    } else if transfer.append {
        "APPE"
    } else if transfer.restarted || !transfer.present.is_empty() {
        "REST"
    } else if transfer.expected.is_some() {
        "a checksum to compare"
    } else {
        return Ok(());
    };
    let text = format!("A program in place of a file takes no {command}: send RETR or STOR.");
    Err(Failure::Refused { code: 504, text })
}

fn tell(job: &Job<'_>, program: &Program) {
    tracing::info!(
        session = job.context.id, user = job.context.user(), path = %program.path.display(), argv = ?program.argv,
        "a program stands for a file"
    );
}
