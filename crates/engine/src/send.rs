//! Sending.

use ropewalk_protocol::ascii::ToWire;
use ropewalk_protocol::server::{Mode, RepresentationType};
use ropewalk_storage::checksum::block_sum;

use crate::block_reader::BlockReader;
use crate::budget::MIN_BUFFER;
use crate::connect::Core;
use crate::error::Result;
use crate::job::{SendJob, Sent};
use crate::watch::Watch;
use crate::wire::Wire;
use crate::{ordered_send, send_blocks};

pub(crate) fn send(core: &Core, cache: &mut Vec<Wire>, job: &SendJob, watch: &mut Watch<'_>) -> Result<Sent> {
    match (core.settings.mode, core.settings.representation) {
        (Mode::ExtendedBlock, RepresentationType::Image) => send_blocks::send(core, cache, job, watch),
        (Mode::Stream, RepresentationType::Image) => send_stream(core, job, watch),
        (_, RepresentationType::Ascii) => send_text(core, cache, job, watch),
    }
}

/// MODE S: the ranges back to back, then the end of the connection.
fn send_stream(core: &Core, job: &SendJob, watch: &mut Watch<'_>) -> Result<Sent> {
    let mut wire = core.open(watch)?;
    let progress = watch.progress;
    progress.set_streams(1);
    let mut reader = BlockReader::new(job, progress, &core.control, &core.budget, usize::MAX);
    let result = (|| {
        watch.begun(false)?;
        for range in job.ranges.iter() {
            reader.send(&mut wire, &[], range, &[], watch)?;
        }
        reader.check_size()
    })();
    wire.close(result)?;
    Ok(Sent { bytes: reader.bytes, streams: 1, pieces: reader.pieces.take() })
}

/// TYPE A: lengths change on the way, so that the bytes go in order over one stream in MODE E as
/// well.
fn send_text(core: &Core, cache: &mut Vec<Wire>, job: &SendJob, watch: &mut Watch<'_>) -> Result<Sent> {
    let mut reader = BlockReader::new(job, watch.progress, &core.control, &core.budget, usize::MAX);
    let mut buffer = core.budget.take(MIN_BUFFER);
    let mut ranges = job.ranges.iter();
    let mut now = 0..0;
    let start = job.ranges.iter().next().map_or(0, |range| range.start.saturating_sub(job.origin));
    let streams = ordered_send::send_with(core, cache, watch, start, &mut |_, out| {
        if now.start == now.end {
            let Some(range) = ranges.next() else {
                reader.check_size()?;
                return Ok(false);
            };
            now = range;
        }
        let n = (now.end - now.start).min(buffer.len() as u64) as usize;
        let part = &mut buffer[..n];
        reader.read(part, now.start, now.end)?;
        if let Some(pieces) = &mut reader.pieces {
            pieces.insert(now.start..now.start + n as u64, block_sum(pieces.algorithm(), part));
        }
        ToWire.convert(part, out);
        now.start += n as u64;
        reader.sent(n);
        Ok(true)
    })?;
    Ok(Sent { bytes: reader.bytes, streams, pieces: reader.pieces.take() })
}
