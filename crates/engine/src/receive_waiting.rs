//! Receiving into a destination that takes bytes in order, and only as fast as a reader takes them
//! from there: a pipe, a terminal.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use ropewalk_protocol::ascii::FromWire;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::server::RepresentationType;
use ropewalk_storage::checksum::{Pieces, block_sum};
use rustix::event::PollFlags;

use crate::Stage;
use crate::connect::Core;
use crate::error::Result;
use crate::job::{ReceiveJob, Received};
use crate::ordered_receive;
use crate::watch::Watch;
use crate::wire::Wire;

/// The bytes follow one another from where the first accepted range begins; positions mean nothing
/// there.
pub(crate) fn receive(
    core: &Core,
    cache: &mut Vec<Wire>,
    job: &ReceiveJob<'_>,
    watch: &mut Watch<'_>,
) -> Result<Received> {
    let begin = job.accept.iter().next().map_or(0, |range| range.start);
    let pieces = job.checksum.filter(|algorithm| algorithm.is_combinable()).map(Pieces::new);
    let mut outflow = Outflow { job, at: begin, pieces };
    let mut text = (core.settings.representation == RepresentationType::Ascii).then(FromWire::default);
    let mut local = Vec::new();
    let start = begin.saturating_sub(job.origin);
    let received = ordered_receive::receive_with(core, cache, watch, start, &mut |watch, _, data| {
        let Some(text) = &mut text else { return outflow.put(data, core, watch) };
        local.clear();
        text.convert(data, &mut local);
        outflow.put(&local, core, watch)
    })?;
    if let Some(mut text) = text {
        local.clear();
        text.finish(&mut local);
        outflow.put(&local, core, watch)?;
    }
    Ok(Received {
        bytes: outflow.at - begin,
        streams: received.streams,
        ranges: RangeSet::from_range(begin..outflow.at),
        pieces: outflow.pieces,
    })
}

struct Outflow<'j> {
    job: &'j ReceiveJob<'j>,
    at: u64,
    pieces: Option<Pieces>,
}

impl Outflow<'_> {
    fn put(&mut self, mut data: &[u8], core: &Core, watch: &mut Watch<'_>) -> Result<()> {
        while !data.is_empty() {
            let began = Instant::now();
            let taken = self.job.sink.write_now(data, self.at)?;
            watch.progress.add_time(Stage::Destination, began.elapsed());
            let Some(n) = taken else {
                let descriptor: Option<BorrowedFd<'_>> = self.job.sink.wait_descriptor();
                match descriptor {
                    Some(descriptor) => {
                        watch.wait_for_store(descriptor, PollFlags::OUT, Stage::Destination)?;
                    }
                    None => watch.check(&[], &mut Vec::new())?,
                }
                continue;
            };
            // It takes its time, but takes.
            watch.excuse();
            let (part, rest) = data.split_at(n);
            let range = self.at..self.at + n as u64;
            let sum = self.pieces.as_mut().map(|pieces| {
                let sum = block_sum(pieces.algorithm(), part);
                pieces.insert(range.clone(), sum);
                sum
            });
            watch.progress.add_bytes(n as u64);
            self.at = range.end;
            (self.job.written)(range.clone(), sum)?;
            watch.progress.add_received(range, &core.budget)?;
            data = rest;
        }
        Ok(())
    }
}
