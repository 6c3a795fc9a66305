//! Runs only the MODE E codec, so that `bench/codec` can count its instructions.
//!
//! `codec-cost BLOCKS [resend]`: a sender distributes this number of blocks to four streams; a
//! receiver takes their headers, each in two segments, and records the ranges that arrived. No
//! payload is moved. With `resend` the receiver is ready for blocks that are sent again, but none
//! is.

#![forbid(unsafe_code)]

use std::hint::black_box;

use anyhow::{Context, Result, ensure};
use ropewalk_protocol::mode_e::{Next, Receiver, Sender, StreamId, StreamReceiver, Want};
use ropewalk_protocol::range::RangeSet;

const BLOCK: u64 = 1 << 20;
const STREAMS: usize = 4;

fn main() -> Result<()> {
    let blocks: u64 = std::env::args().nth(1).context("usage: codec-cost BLOCKS")?.parse()?;
    let file = 0..blocks * BLOCK;
    let mut sender = Sender::new(RangeSet::from_range(file.clone()), 0, BLOCK)?;
    let mut receiver = Receiver::new(RangeSet::from_range(file.clone()), 0, 64);
    if std::env::args().nth(2).is_some_and(|word| word == "resend") {
        receiver = receiver.with_resend();
    }
    let mut come = RangeSet::new();
    let mut streams: Vec<Option<(StreamId, StreamReceiver)>> = Vec::new();
    for _ in 0..STREAMS {
        streams.push(Some((sender.add_stream()?, receiver.add_stream()?)));
    }
    while !receiver.is_complete() {
        for slot in &mut streams {
            let Some((id, stream)) = slot else { continue };
            match sender.next(*id) {
                Some(Next::Block(block)) => {
                    take(stream, &mut receiver, black_box(block.header.to_bytes()))?;
                    let Want::Payload { file_offset, left, .. } = stream.want() else {
                        anyhow::bail!("no payload is wanted after the header of a block");
                    };
                    stream.payload(left / 2, &mut receiver)?;
                    stream.payload(left - left / 2, &mut receiver)?;
                    come.insert(file_offset..file_offset + left);
                }
                Some(Next::End(header)) => {
                    take(stream, &mut receiver, black_box(header.to_bytes()))?;
                    *slot = None;
                }
                // Nothing is sent again here.
                Some(Next::Header(_) | Next::Wait) | None => *slot = None,
            }
        }
    }
    ensure!(come == RangeSet::from_range(file), "not all came: {come}");
    Ok(())
}

/// Passes a header that arrives in two segments.
fn take(stream: &mut StreamReceiver, receiver: &mut Receiver, header: [u8; 17]) -> Result<()> {
    stream.header_bytes(&header[..9], receiver)?;
    stream.header_bytes(&header[9..], receiver)?;
    Ok(())
}
