//! The block header of MODE E (GFD.20 section 3.4.1).

use std::fmt;

/// The first byte of a header: flags of the block (GFD.20 section 3.4.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Descriptor(u8);

impl Descriptor {
    /// End of record. It has no meaning here.
    pub const END_OF_RECORD: Self = Self(0x80);
    /// EOF: the offset field is the number of connections, and so of the EODs to expect; there is
    /// no payload.
    pub const END_OF_FILE: Self = Self(0x40);
    /// The sender suspects errors in the payload. No known program sends this.
    pub const SUSPECTED_ERRORS: Self = Self(0x20);
    /// A restart marker. No known program sends this.
    pub const RESTART: Self = Self(0x10);
    /// EOD: this connection carries no more data for this file.
    pub const END_OF_DATA: Self = Self(0x08);
    /// The sender will close the connection, so the receiver must not keep it.
    pub const CLOSE: Self = Self(0x04);
    /// Ropewalk extension: another stream may carry the payload as well. Without payload, the
    /// offset field is the number of bytes of the file that the transfer moves.
    pub const RESENT: Self = Self(0x02);

    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Descriptor({:#04x})", self.0)
    }
}

/// The header of each block: 17 bytes on the wire, with big-endian numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    pub descriptor: Descriptor,
    /// Number of payload bytes that follow.
    pub count: u64,
    /// Position of the payload, in bytes; with EOF, the number of EODs to expect.
    pub offset: u64,
}

impl Header {
    /// Length on the wire in bytes.
    pub const LEN: usize = 17;

    /// A block of data.
    pub const fn data(offset: u64, count: u64) -> Self {
        Self { descriptor: Descriptor(0), count, offset }
    }

    /// EOD alone: this connection is done.
    pub const fn end_of_data() -> Self {
        Self { descriptor: Descriptor::END_OF_DATA, count: 0, offset: 0 }
    }

    /// EOF and EOD in one header: this connection is done, and the transfer has `streams`
    /// connections, including this one.
    pub const fn end_of_file(streams: u64) -> Self {
        Self { descriptor: Descriptor::END_OF_FILE.union(Descriptor::END_OF_DATA), count: 0, offset: streams }
    }

    /// CLOSE alone: retires a connection that was kept from an earlier transfer.
    pub const fn close() -> Self {
        Self { descriptor: Descriptor::CLOSE, count: 0, offset: 0 }
    }

    /// Ropewalk extension: a block that another stream may carry as well.
    pub const fn resent(offset: u64, count: u64) -> Self {
        Self { descriptor: Descriptor::RESENT, count, offset }
    }

    /// Ropewalk extension: the transfer moves `bytes` bytes of the file.
    pub const fn total(bytes: u64) -> Self {
        Self { descriptor: Descriptor::RESENT, count: 0, offset: bytes }
    }

    pub const fn is_resent(&self) -> bool {
        self.descriptor.contains(Descriptor::RESENT)
    }

    pub const fn is_end_of_file(&self) -> bool {
        self.descriptor.contains(Descriptor::END_OF_FILE)
    }

    pub const fn is_end_of_data(&self) -> bool {
        self.descriptor.contains(Descriptor::END_OF_DATA)
    }

    pub const fn is_close(&self) -> bool {
        self.descriptor.contains(Descriptor::CLOSE)
    }

    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = self.descriptor.0;
        bytes[1..9].copy_from_slice(&self.count.to_be_bytes());
        bytes[9..].copy_from_slice(&self.offset.to_be_bytes());
        bytes
    }

    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let number = |at: usize| bytes[at..at + 8].iter().fold(0, |n, b| n << 8 | u64::from(*b));
        Self { descriptor: Descriptor(bytes[0]), count: number(1), offset: number(9) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn header_is_encoded_as_specified() {
        let header = Header::data(0x0102_0304_0506_0708, 262_144);
        assert_eq!(header.to_bytes(), *b"\x00\0\0\0\0\0\x04\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
        assert_eq!(Header::end_of_file(4).to_bytes(), *b"\x48\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x04");
        assert_eq!(Header::end_of_data().to_bytes(), *b"\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(Header::close().to_bytes()[0], 0x04);
    }

    #[test]
    fn header_flags_are_read_from_descriptor() {
        let header = Header { descriptor: Descriptor::from_bits(0x4c), ..Header::default() };
        assert!(header.is_end_of_file() && header.is_end_of_data() && header.is_close());
        assert!(!Header::data(0, 1).is_end_of_file());
        assert_eq!(format!("{:?}", header.descriptor), "Descriptor(0x4c)");
    }

    proptest! {
        #[test]
        fn header_decoded_is_encoded_back(bytes: [u8; 17]) {
            prop_assert_eq!(Header::from_bytes(bytes).to_bytes(), bytes);
        }
    }
}
