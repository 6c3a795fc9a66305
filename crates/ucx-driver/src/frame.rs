//! The frames in a UCP stream.
//!
//! A frame has a header of eight bytes: its kind, the version of the protocol, two zeroes, and a
//! number of four bytes, the most significant first. Only [`Frame::Data`] has more, as many bytes
//! as its number says. Each end begins with OPEN, which says how many bytes of data it takes;
//! CREDIT adds to that. FINISH ends the data of one direction. CLOSE also says that the sender of
//! it reads no more; DONE answers CLOSE, after which both ends let go of the connection. A
//! connection that ends without CLOSE was aborted.

use bytes::{Buf, Bytes, BytesMut};

pub(crate) const HEADER: usize = 8;
/// The most bytes of data in one frame.
pub(crate) const MOST_DATA: usize = 256 << 10;
const VERSION: u8 = 1;

const OPEN: u8 = 1;
const DATA: u8 = 2;
const CREDIT: u8 = 3;
const FINISH: u8 = 4;
const CLOSE: u8 = 5;
const DONE: u8 = 6;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    Open(u32),
    /// Bytes of a data frame, which may be only some of them.
    Data(Bytes),
    Credit(u32),
    Finish,
    Close,
    Done,
}

impl Frame {
    pub(crate) fn encode(&self) -> Bytes {
        let (kind, number) = match self {
            Self::Open(number) => (OPEN, *number),
            Self::Credit(number) => (CREDIT, *number),
            Self::Data(bytes) => return data(&[bytes]),
            Self::Finish => (FINISH, 0),
            Self::Close => (CLOSE, 0),
            Self::Done => (DONE, 0),
        };
        Bytes::copy_from_slice(&header(kind, number))
    }
}

fn header(kind: u8, number: u32) -> [u8; HEADER] {
    let [a, b, c, d] = number.to_be_bytes();
    [kind, VERSION, 0, 0, a, b, c, d]
}

/// Encodes a data frame of these parts, which have no more than [`MOST_DATA`] bytes together.
pub(crate) fn data(parts: &[&[u8]]) -> Bytes {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = BytesMut::with_capacity(HEADER + length);
    frame.extend_from_slice(&header(DATA, u32::try_from(length).unwrap_or(u32::MAX)));
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    frame.freeze()
}

/// The bytes are no frame; the text says why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) String);

/// Finds the frames in the bytes that arrive.
#[derive(Default)]
pub(crate) struct Reader {
    header: Vec<u8>,
    /// How many bytes of a data frame are still to come.
    left: usize,
}

impl Reader {
    /// Takes the next frame, or the next bytes of one, from the front of `bytes`.
    ///
    /// # Errors
    /// The bytes are no frame, or have another version.
    pub(crate) fn next(&mut self, bytes: &mut Bytes) -> Result<Option<Frame>, Malformed> {
        loop {
            if self.left > 0 && !bytes.is_empty() {
                let data = bytes.split_to(bytes.len().min(self.left));
                self.left -= data.len();
                return Ok(Some(Frame::Data(data)));
            }
            while self.header.len() < HEADER {
                if bytes.is_empty() {
                    return Ok(None);
                }
                self.header.push(bytes.get_u8());
            }
            let mut header = &std::mem::take(&mut self.header)[..];
            let (kind, version, zeroes, number) =
                (header.get_u8(), header.get_u8(), header.get_u16(), header.get_u32());
            if version != VERSION {
                return Err(Malformed(format!("version {version} of its protocol, not {VERSION}")));
            }
            match (kind, zeroes, number) {
                (OPEN, 0, _) => return Ok(Some(Frame::Open(number))),
                (CREDIT, 0, _) => return Ok(Some(Frame::Credit(number))),
                (FINISH, 0, 0) => return Ok(Some(Frame::Finish)),
                (CLOSE, 0, 0) => return Ok(Some(Frame::Close)),
                (DONE, 0, 0) => return Ok(Some(Frame::Done)),
                (DATA, 0, _) if number as usize <= MOST_DATA => self.left = number as usize,
                _ => return Err(Malformed(format!("an unknown frame ({kind}, {zeroes}, {number})"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frames_in_pieces_of_any_size_are_read_as_they_were_sent() {
        let frames = || {
            [
                Frame::Open(7),
                Frame::Data(Bytes::from_static(b"hello world")),
                Frame::Credit(u32::MAX),
                Frame::Data(Bytes::new()),
                Frame::Finish,
                Frame::Close,
                Frame::Done,
            ]
        };
        let all: Vec<u8> = frames().iter().flat_map(Frame::encode).collect();
        for size in 1..=all.len() {
            let (mut reader, mut data, mut others) = (Reader::default(), Vec::new(), Vec::new());
            for piece in all.chunks(size) {
                let mut piece = Bytes::copy_from_slice(piece);
                while let Some(frame) = reader.next(&mut piece).unwrap() {
                    match frame {
                        Frame::Data(bytes) => data.extend(bytes),
                        other => others.push(other),
                    }
                }
            }
            assert_eq!(data, b"hello world");
            let mut expected = Vec::from(frames());
            expected.retain(|frame| !matches!(frame, Frame::Data(_)));
            assert_eq!(others, expected, "{size}");
        }
    }

    #[test]
    fn next_with_an_unknown_or_too_large_frame_or_another_version_fails() {
        let refused =
            |bytes: [u8; HEADER]| Reader::default().next(&mut Bytes::copy_from_slice(&bytes)).unwrap_err().0;
        assert!(refused([9, 1, 0, 0, 0, 0, 0, 0]).contains("unknown"));
        assert!(refused([OPEN, 1, 0, 1, 0, 0, 0, 0]).contains("unknown"));
        assert!(refused([DATA, 1, 0, 0, 0, 4, 0, 1]).contains("unknown"));
        assert!(refused([OPEN, 2, 0, 0, 0, 0, 0, 0]).contains("version 2"));
    }
}
