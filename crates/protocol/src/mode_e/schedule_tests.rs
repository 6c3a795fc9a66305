//! Sender and receiver with any schedule, and receivers of any bytes.

#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;

use proptest::prelude::*;

use super::tests::header;
use super::*;
use crate::range::RangeSet;

/// Drives one connection as an engine does: received bytes are in a queue, which is read in chunks
/// of at most `piece` bytes.
fn drain(
    stream: &mut StreamReceiver,
    transfer: &mut Receiver,
    wire: &mut VecDeque<u8>,
    piece: usize,
    file: &mut Vec<u8>,
) -> Result<(), ReceiveError> {
    while !wire.is_empty() {
        match stream.want() {
            Want::Header { missing } => {
                assert!((1..=Header::LEN).contains(&missing));
                let bytes: Vec<u8> = wire.drain(..piece.min(wire.len())).collect();
                let taken = stream.header_bytes(&bytes, transfer)?;
                assert!(taken <= missing && taken > 0);
                for b in bytes[taken..].iter().rev() {
                    wire.push_front(*b);
                }
            }
            Want::Payload { file_offset, left, .. } => {
                let n = (left.min(piece as u64) as usize).min(wire.len());
                let end = file_offset as usize + n;
                file.resize(file.len().max(end), 0);
                for (at, b) in wire.drain(..n).enumerate() {
                    file[file_offset as usize + at] = b;
                }
                stream.payload(n as u64, transfer)?;
            }
            Want::Nothing(_) => break,
        }
    }
    Ok(())
}

/// One step of a random schedule.
#[derive(Clone, Debug)]
enum Step {
    /// This stream (modulo the number of streams) sends its next block.
    Send(usize),
    Add,
    /// The stream fails, if it has carried no data.
    Remove(usize),
    /// The stream ends before the others, if it may.
    Leave(usize),
    /// The receiver reads from this stream.
    Receive(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => any::<usize>().prop_map(Step::Send),
        1 => Just(Step::Add),
        1 => any::<usize>().prop_map(Step::Remove),
        1 => any::<usize>().prop_map(Step::Leave),
        3 => (any::<usize>(), 1usize..40).prop_map(|(s, n)| Step::Receive(s, n)),
    ];
    prop::collection::vec(step, 0..80)
}

struct Pipe {
    id: StreamId,
    receiver: Option<StreamReceiver>,
    wire: VecDeque<u8>,
    removed: bool,
}

struct World {
    sender: Sender,
    transfer: Receiver,
    pipes: Vec<Pipe>,
    source: Vec<u8>,
    file: Vec<u8>,
}

impl World {
    fn send(&mut self, at: usize) {
        let pipe = &mut self.pipes[at];
        match self.sender.next(pipe.id) {
            Some(Next::Block(block)) => {
                pipe.wire.extend(block.header.to_bytes());
                let start = block.file_offset as usize;
                pipe.wire.extend(&self.source[start..start + block.header.count as usize]);
            }
            Some(Next::End(header)) => pipe.wire.extend(header.to_bytes()),
            Some(other) => unreachable!("{other:?}"),
            None => {}
        }
    }

    fn add(&mut self) {
        if let Ok(id) = self.sender.add_stream() {
            self.pipes.push(Pipe { id, receiver: None, wire: VecDeque::new(), removed: false });
        }
    }

    fn receive(&mut self, at: usize, piece: usize) {
        let pipe = &mut self.pipes[at];
        if !pipe.removed && !pipe.wire.is_empty() {
            let stream = pipe.receiver.get_or_insert_with(|| self.transfer.add_stream().unwrap());
            drain(stream, &mut self.transfer, &mut pipe.wire, piece, &mut self.file).unwrap();
        }
    }
}

proptest! {
    /// With any schedule, the received file is the sent file, and the transfer is complete exactly
    /// at the end.
    #[test]
    fn sender_and_receiver_with_any_schedule_transfer_the_file(
        steps in steps(),
        length in 0usize..200,
        block_size in 1u64..50,
        origin in 0u64..100,
        holes in prop::collection::vec((0u64..200, 0u64..200), 0..4),
    ) {
        let mut ranges = RangeSet::from_range(0..length as u64).intersection(origin..u64::MAX);
        for (a, b) in holes {
            ranges.remove(a..b);
        }
        let accept = ranges.shift_down(origin);
        let mut world = World {
            sender: Sender::new(ranges.clone(), origin, block_size).unwrap(),
            transfer: Receiver::new(accept.clone(), 0, 200),
            pipes: Vec::new(),
            source: (0..length).map(|i| (i * 7 + 1) as u8).collect(),
            file: Vec::new(),
        };
        world.add();
        for step in steps {
            let n = world.pipes.len();
            match step {
                Step::Send(s) => world.send(s % n),
                Step::Add => world.add(),
                Step::Receive(s, piece) => world.receive(s % n, piece),
                Step::Leave(s) => {
                    let pipe = &mut world.pipes[s % n];
                    if let Some(header) = world.sender.leave(pipe.id) {
                        prop_assert!(world.sender.active() > 0);
                        pipe.wire.extend(header.to_bytes());
                    }
                }
                Step::Remove(s) => {
                    let pipe = &mut world.pipes[s % n];
                    if pipe.receiver.is_none() && world.sender.remove_stream(pipe.id).is_ok() {
                        pipe.removed = true;
                    }
                }
            }
            prop_assert!(!world.transfer.is_complete() || world.sender.is_finished());
        }
        // At the end, each stream sends until no data is left.
        if world.sender.needs_stream() {
            world.add();
        }
        for at in 0..world.pipes.len() {
            while !world.pipes[at].removed && {
                let before = world.pipes[at].wire.len();
                world.send(at);
                world.pipes[at].wire.len() > before
            } {}
        }
        for at in 0..world.pipes.len() {
            prop_assert!(at == 0 || !world.transfer.is_complete() || world.pipes[at..].iter().all(|p| p.removed || p.wire.is_empty()));
            world.receive(at, 13);
        }
        prop_assert!(world.sender.is_finished());
        prop_assert!(world.transfer.is_complete());
        prop_assert_eq!(world.transfer.ended(), world.sender.streams());
        for range in accept.iter() {
            let (start, end) = (range.start as usize, range.end as usize);
            let from = start + origin as usize;
            prop_assert_eq!(&world.file[start..end], &world.source[from..from + end - start]);
        }
    }

    /// Blocks of another implementation: any division of the file, assigned to any streams in any
    /// order, and read in chunks of any size.
    #[test]
    fn receiver_with_any_interleaving_restores_file(
        cuts in prop::collection::vec((1usize..20, 0usize..4, any::<u8>()), 0..20),
        order in any::<prop::sample::Index>(),
        eod_with_payload: bool,
        piece in 1usize..40,
    ) {
        let mut wires = vec![VecDeque::new(); 4];
        let (mut blocks, mut source) = (Vec::new(), Vec::new());
        for (count, stream, byte) in cuts {
            blocks.push((source.len(), count, stream));
            source.extend(std::iter::repeat_n(byte, count));
        }
        if !blocks.is_empty() {
            let at = order.index(blocks.len());
            blocks.rotate_left(at);
        }
        for (i, (offset, count, stream)) in blocks.iter().enumerate() {
            let last = !blocks[i + 1..].iter().any(|b| b.2 == *stream);
            let bits = if last && eod_with_payload { 0x08 } else { 0 };
            wires[*stream].extend(header(bits, *count as u64, *offset as u64));
            wires[*stream].extend(&source[*offset..*offset + *count]);
        }
        for (stream, wire) in wires.iter_mut().enumerate() {
            if !eod_with_payload || !blocks.iter().any(|b| b.2 == stream) {
                wire.extend(header(0x08, 0, 0));
            }
        }
        // EOF comes first on one of the streams.
        for b in header(0x40, 0, 4).iter().rev() {
            wires[order.index(4)].push_front(*b);
        }
        let mut transfer = Receiver::new(RangeSet::from_range(0..source.len() as u64), 0, 4);
        let mut streams: Vec<_> = (0..4).map(|_| transfer.add_stream().unwrap()).collect();
        let mut file = Vec::new();
        // Read from the streams in turn, one chunk at a time.
        while wires.iter().any(|w| !w.is_empty()) {
            for (stream, wire) in streams.iter_mut().zip(&mut wires) {
                let mut part: VecDeque<u8> = wire.drain(..piece.min(wire.len())).collect();
                drain(stream, &mut transfer, &mut part, piece, &mut file).unwrap();
                prop_assert!(part.is_empty());
            }
        }
        prop_assert!(transfer.is_complete());
        prop_assert!(streams.iter().all(|s| s.want() == Want::Nothing(End::Reusable)));
        prop_assert_eq!(file, source);
    }

    /// Invalid headers are errors; the wanted payload is always within the accepted ranges.
    #[test]
    fn receiver_on_any_bytes_accepts_only_valid_ranges(bytes: Vec<u8>, mut wild: Vec<(u8, u64, u64)>, origin in 0u64..10, piece in 1usize..30) {
        let accept: RangeSet = [5..20, 30..1000].into_iter().collect();
        let mut transfer = Receiver::new(accept.clone(), origin, 3);
        let mut stream = transfer.add_stream().unwrap();
        let mut wire = bytes;
        for (bits, count, offset) in wild.drain(..) {
            wire.extend(header(bits & 0x4c, count % 40, offset % 1100));
        }
        let mut at = 0;
        while at < wire.len() {
            match stream.want() {
                Want::Header { .. } => match stream.header_bytes(&wire[at..wire.len().min(at + piece)], &mut transfer) {
                    Ok(n) => at += n,
                    Err(_) => break,
                },
                Want::Payload { file_offset, left, .. } => {
                    prop_assert!(accept.contains(file_offset..file_offset + left));
                    let n = left.min((wire.len() - at) as u64);
                    if stream.payload(n, &mut transfer).is_err() {
                        break;
                    }
                    at += n as usize;
                }
                Want::Nothing(_) => break,
            }
        }
        prop_assert!(transfer.ended() <= 1);
    }
}
