//! Sending what is produced in order only: listings, pipes, text.

use std::io::{self, Read};
use std::os::fd::BorrowedFd;
use std::time::Instant;

use ropewalk_protocol::mode_e::Header;
use ropewalk_protocol::server::Mode;
use rustix::event::PollFlags;

use crate::Stage;
use crate::block_reader::write_all;
use crate::budget::MIN_BUFFER;
use crate::connect::Core;
use crate::error::{Error, Result};
use crate::job::Sent;
use crate::watch::Watch;
use crate::wire::{Wire, retry};

/// Bytes that are sent in one go.
const CHUNK: usize = 256 << 10;

/// See `DataChannel::send_reader` and `send_polled`.
pub(crate) fn send(
    core: &Core,
    cache: &mut Vec<Wire>,
    source: &mut dyn Read,
    descriptor: Option<BorrowedFd<'_>>,
    watch: &mut Watch<'_>,
) -> Result<Sent> {
    let progress = watch.progress;
    let mut bytes = 0;
    let streams = send_with(core, cache, watch, 0, &mut |watch, out| {
        out.resize(CHUNK, 0);
        let (mut filled, mut more) = (0, true);
        while filled < CHUNK {
            let began = Instant::now();
            let read = retry(|| source.read(&mut out[filled..]));
            progress.add_time(Stage::Source, began.elapsed());
            match (read, descriptor) {
                (Ok(0), _) => {
                    more = false;
                    break;
                }
                (Ok(n), _) => filled += n,
                (Err(e), _) if e.kind() != io::ErrorKind::WouldBlock => return Err(Error::Reader(e)),
                // More may come only after a long time.
                (Err(_), _) if filled > 0 => break,
                (Err(_), Some(descriptor)) => {
                    watch.wait_for_store(descriptor, PollFlags::IN, Stage::Source)?;
                    continue;
                }
                (Err(_), None) => {
                    watch.excuse();
                    watch.check(&[], &mut Vec::new())?;
                    continue;
                }
            }
            watch.excuse();
        }
        out.truncate(filled);
        progress.add_bytes(filled as u64);
        bytes += filled as u64;
        Ok(more)
    })?;
    Ok(Sent { bytes, streams, pieces: None })
}

/// Sends what `produce` appends, until it returns false. `start` is where the data begins on the
/// wire of MODE E. Returns the number of streams.
pub(crate) fn send_with(
    core: &Core,
    cache: &mut Vec<Wire>,
    watch: &mut Watch<'_>,
    start: u64,
    produce: &mut dyn FnMut(&mut Watch<'_>, &mut Vec<u8>) -> Result<bool>,
) -> Result<u32> {
    let control = &core.control;
    let mut data = Vec::with_capacity(MIN_BUFFER);
    let mut more = true;
    let mut produce = |watch: &mut Watch<'_>, data: &mut Vec<u8>| {
        data.clear();
        produce(watch, data)
    };
    if core.settings.mode == Mode::Stream {
        let mut wire = core.open(watch)?;
        watch.progress.set_streams(1);
        let result = (|| {
            watch.begun(false)?;
            while more {
                more = produce(watch, &mut data)?;
                write_all(&mut wire, [&data, &[], &[]], control, watch)?;
                watch.check(&[], &mut Vec::new())?;
            }
            Ok(())
        })();
        wire.close(result)?;
        return Ok(1);
    }
    let reused = !cache.is_empty();
    let mut wires = std::mem::take(cache);
    if !reused {
        wires.push(core.open(watch)?);
    }
    watch.begun(reused)?;
    core.reach_all(&mut wires, watch)?;
    let mut offset = start;
    while more {
        more = produce(watch, &mut data)?;
        if !data.is_empty() {
            let header = Header::data(offset, data.len() as u64).to_bytes();
            write_all(&mut wires[0], [&header, &data, &[]], control, watch)?;
            offset += data.len() as u64;
        }
        watch.check(&[], &mut Vec::new())?;
    }
    if let (Some(_), false) = (core.listener(), reused) {
        accept_all(core, &mut wires, watch)?;
    }
    let streams = wires.len() as u32;
    watch.progress.set_streams(streams);
    // Each receiver gets an end of file, on the first connection to it.
    for at in (0..wires.len()).rev() {
        let address = wires[at].address;
        let same = |wire: &Wire| wire.address == address;
        let count = wires.iter().filter(|wire| same(wire)).count() as u64;
        let end = match wires[..at].iter().any(same) {
            true => Header::end_of_data(),
            false => Header::end_of_file(count),
        };
        write_all(&mut wires[at], [&end.to_bytes(), &[], &[]], control, watch)?;
    }
    cache.append(&mut wires);
    Ok(streams)
}

/// A peer that connects to a sender makes as many connections as were agreed on.
fn accept_all(core: &Core, wires: &mut Vec<Wire>, watch: &mut Watch<'_>) -> Result<()> {
    let wanted = core.settings.parallelism.max(1) as usize;
    let deadline = Instant::now() + core.settings.connect_timeout;
    while wires.len() < wanted {
        if let Some(wire) = core.accept()? {
            wires.push(wire);
        } else if Instant::now() >= deadline {
            return Err(core.missing(wires.len(), wanted, core.settings.connect_timeout));
        } else {
            watch.wait(&core.newcomers(), Some(deadline), &mut Vec::new())?;
        }
    }
    Ok(())
}
