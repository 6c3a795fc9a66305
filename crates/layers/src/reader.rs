//! Reads TLS records one at a time from a non-blocking connection. It reads no byte beyond a
//! record, because clear data may follow the handshake.

use std::io::{self, ErrorKind};

use ropewalk_transport::Connection;

/// The longest TLS record in bytes, without its header.
const MAX_RECORD: usize = (16 << 10) + 2048;
const HEADER: usize = 5;

/// The received part of the current record. No byte beyond the record is read.
#[derive(Default)]
pub(crate) struct RecordReader(Vec<u8>);

impl RecordReader {
    /// Returns one complete record, or `None` if more of it must come.
    pub(crate) fn read(&mut self, connection: &mut dyn Connection) -> io::Result<Option<Vec<u8>>> {
        let record = &mut self.0;
        loop {
            let wanted = match record.get(..HEADER) {
                None => HEADER,
                Some(header) => {
                    // Content types of TLS are 20 to 26.
                    if !(0x14..=0x1a).contains(&header[0]) {
                        let text = "what came on the data connection is no TLS record";
                        return Err(io::Error::new(ErrorKind::InvalidData, text));
                    }
                    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
                    if length > MAX_RECORD {
                        let text = format!("a TLS record of {length} bytes");
                        return Err(io::Error::new(ErrorKind::InvalidData, text));
                    }
                    HEADER + length
                }
            };
            let had = record.len();
            if had == wanted && had > HEADER {
                return Ok(Some(std::mem::take(record)));
            }
            if had >= HEADER && wanted == HEADER {
                let text = "an empty TLS record";
                return Err(io::Error::new(ErrorKind::InvalidData, text));
            }
            record.resize(wanted, 0);
            let result = connection.read(&mut record[had..]);
            record.truncate(had + *result.as_ref().unwrap_or(&0));
            match result {
                Ok(0) => {
                    let text = "the peer ended the data connection during the handshake";
                    return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
                }
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

pub(crate) fn over() -> io::Error {
    io::Error::other("the handshake is over")
}
