//! The frames in a UCP stream.
//!
//! A frame has a header of eight bytes: its kind, the version of the protocol, two zeroes, and the
//! length of what follows in four bytes, the most significant first. Each end begins with OPEN, and
//! answers that of its peer by RING, with the memory into which the peer may write. BELL tells an
//! end to look at that memory. If ends do not share memory, DATA carries the data, and READ says
//! how far it was read. FINISH ends the data of one direction. CLOSE also says that the sender of
//! it reads no more; DONE answers CLOSE, after which both ends let go of the connection. A
//! connection that ends without CLOSE was aborted. Positions count bytes from the beginning of the
//! connection.

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub(crate) const HEADER: usize = 8;
/// The most bytes of a key.
pub(crate) const MOST_KEY: usize = 4096;
/// The most bytes behind a header.
const MOST: usize = 16 + MOST_KEY;
/// The most bytes of data in one frame.
pub(crate) const MOST_DATA: u64 = 256 << 10;
/// Version 1 moved all data through the stream.
const VERSION: u8 = 2;

const OPEN: u8 = 1;
const RING: u8 = 2;
const DATA: u8 = 3;
const READ: u8 = 4;
const BELL: u8 = 5;
const FINISH: u8 = 6;
const CLOSE: u8 = 7;
const DONE: u8 = 8;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Open,
    /// The address and length of the sender's memory, and the key to it, which is empty if the
    /// memory is not to be shared.
    Ring(u64, u64, Bytes),
    /// So many bytes of data follow, which [`Reader`] leaves where they are.
    Data(u32),
    /// The position until which the sender has read.
    Read(u64),
    Bell,
    /// The position at which the data of the sender ends.
    Finish(u64),
    Close(u64),
    Done,
}

impl Frame {
    pub(crate) fn encode(&self) -> Bytes {
        let (kind, numbers, key): (u8, &[u64], &[u8]) = match self {
            Self::Data(length) => return header(DATA, *length).freeze(),
            Self::Open => (OPEN, &[], &[]),
            Self::Ring(address, length, key) => (RING, &[*address, *length], key),
            Self::Read(position) => (READ, &[*position], &[]),
            Self::Bell => (BELL, &[], &[]),
            Self::Finish(position) => (FINISH, &[*position], &[]),
            Self::Close(position) => (CLOSE, &[*position], &[]),
            Self::Done => (DONE, &[], &[]),
        };
        let length = size_of_val(numbers) + key.len();
        let mut frame = header(kind, u32::try_from(length).unwrap_or(u32::MAX));
        numbers.iter().for_each(|&number| frame.put_u64(number));
        frame.put_slice(key);
        frame.freeze()
    }
}

fn header(kind: u8, length: u32) -> BytesMut {
    let mut frame = BytesMut::with_capacity(HEADER);
    frame.put_slice(&[kind, VERSION, 0, 0]);
    frame.put_u32(length);
    frame
}

/// The bytes are no frame; the text says why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

/// Finds the frames in the bytes that arrive.
#[derive(Default)]
pub(crate) struct Reader(BytesMut);

impl Reader {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The bytes behind the frames that were taken.
    pub(crate) fn rest(&mut self) -> &mut BytesMut {
        &mut self.0
    }

    /// Takes the next frame, if it is complete.
    ///
    /// # Errors
    /// The bytes are no frame, or have another version.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some(mut header) = self.0.get(..HEADER) else { return Ok(None) };
        let (kind, version) = (header.get_u8(), header.get_u8());
        let (zeroes, length) = (header.get_u16(), header.get_u32() as usize);
        if version != VERSION {
            return Err(Malformed(format!(
                "version {version} of its protocol, not {VERSION}: both programs must have the same version"
            )));
        }
        let fits = match kind {
            OPEN | BELL | DONE => length == 0,
            READ | FINISH | CLOSE => length == 8,
            DATA => (1..=MOST_DATA as usize).contains(&length),
            RING => (16..=MOST).contains(&length),
            _ => false,
        };
        if !fits || zeroes != 0 {
            return Err(Malformed(format!("an unknown frame ({kind}, {zeroes}, {length})")));
        }
        if kind == DATA {
            self.0.advance(HEADER);
            return Ok(Some(Frame::Data(length as u32)));
        }
        if self.0.len() < HEADER + length {
            return Ok(None);
        }
        let mut body = self.0.split_to(HEADER + length).freeze();
        body.advance(HEADER);
        Ok(Some(match kind {
            OPEN => Frame::Open,
            RING => Frame::Ring(body.get_u64(), body.get_u64(), body),
            READ => Frame::Read(body.get_u64()),
            BELL => Frame::Bell,
            FINISH => Frame::Finish(body.get_u64()),
            CLOSE => Frame::Close(body.get_u64()),
            _ => Frame::Done,
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_in_pieces_of_any_size_are_read_as_they_were_sent() {
        let frames = [
            Frame::Open,
            Frame::Ring(7, u64::MAX, Bytes::from_static(b"a key")),
            Frame::Read(1 << 40),
            Frame::Read(3),
            Frame::Bell,
            Frame::Finish(4),
            Frame::Close(5),
            Frame::Done,
        ];
        let all: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        for size in 1..=all.len() {
            let (mut reader, mut found) = (Reader::default(), Vec::new());
            for piece in all.chunks(size) {
                reader.push(piece);
                while let Some(frame) = reader.next().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames, "{size}");
        }
    }

    #[test]
    fn next_leaves_the_data_behind_its_frame() {
        let mut reader = Reader::default();
        reader.push(&Frame::Data(2).encode());
        reader.push(b"hi");
        assert_eq!(reader.next().unwrap(), Some(Frame::Data(2)));
        assert_eq!(&reader.rest()[..], b"hi");
    }

    #[test]
    fn next_with_an_unknown_or_too_large_frame_or_another_version_fails() {
        let refused = |bytes: [u8; HEADER]| {
            let mut reader = Reader::default();
            reader.push(&bytes);
            reader.next().unwrap_err().0
        };
        assert!(refused([9, 2, 0, 0, 0, 0, 0, 0]).contains("unknown"));
        assert!(refused([OPEN, 2, 0, 1, 0, 0, 0, 0]).contains("unknown"));
        assert!(refused([READ, 2, 0, 0, 0, 0, 0, 9]).contains("unknown"));
        assert!(refused([RING, 2, 0, 0, 0, 0, 0, 15]).contains("unknown"));
        assert!(refused([DATA, 2, 0, 0, 0, 4, 0, 1]).contains("unknown"));
        assert!(refused([RING, 2, 0, 0, 0, 1, 0, 0]).contains("unknown"));
    }

    /// A program with version 1 sends OPEN with its window, and refuses ours as this one does.
    #[test]
    fn next_with_a_frame_of_version_1_names_both_versions() {
        let mut reader = Reader::default();
        reader.push(&[1, 1, 0, 0, 0, 64, 0, 0]);
        let text = reader.next().unwrap_err().0;
        assert!(text.contains("version 1 of its protocol, not 2"), "{text}");
    }
}
