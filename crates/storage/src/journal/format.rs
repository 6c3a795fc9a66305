//! The binary format of a journal: a header with the key of the source, and records of fixed size.
//! Numbers are little-endian. Header and records have CRC-32C checks, so damage is detected.

use std::ops::Range;

use super::JournalKey;
use super::boot::BootId;
use crate::checksum::{Algorithm, block_sum, combine};

/// Length of a record in bytes. It divides the size of a disk block, so a crash never leaves half a
/// record.
pub(super) const RECORD: usize = 32;

const MAGIC: [u8; 8] = *b"ROPEJNL1";
/// Length of the fields before the source in bytes: magic, length, seed, boot id, size, modified,
/// flags, length of the source.
const FIXED: usize = 8 + 4 + 4 + 16 + 8 + 8 + 4 + 4;
const HAS_SIZE: u32 = 1;
const HAS_MODIFIED: u32 = 2;
/// Far more than a URL needs.
pub(super) const LONGEST_HEADER: usize = 64 << 10;

/// The CRC-32C of `bytes` after data whose sum is `sum`.
pub(super) fn crc32c_append(sum: u32, bytes: &[u8]) -> u32 {
    combine(Algorithm::Crc32c, sum, block_sum(Algorithm::Crc32c, bytes), bytes.len() as u64)
}

/// The seed is part of the check of each record, so that records of an older journal in reused disk
/// blocks are not accepted.
pub(super) fn new_seed() -> u32 {
    fastrand::u32(..)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) seed: u32,
    pub(super) boot: BootId,
    pub(super) key: JournalKey,
}

impl Header {
    /// Encodes the header. It ends with the CRC-32C of all bytes before, and its length is a
    /// multiple of [`RECORD`].
    pub(super) fn encode(&self) -> Vec<u8> {
        let JournalKey { source, size, modified } = &self.key;
        let length = (FIXED + source.len() + 4).next_multiple_of(RECORD);
        let flags = size.map_or(0, |_| HAS_SIZE) | modified.map_or(0, |_| HAS_MODIFIED);
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&(length as u32).to_le_bytes());
        bytes.extend_from_slice(&self.seed.to_le_bytes());
        bytes.extend_from_slice(&self.boot.0);
        bytes.extend_from_slice(&size.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(&modified.unwrap_or(0).to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&(source.len() as u32).to_le_bytes());
        bytes.extend_from_slice(source.as_bytes());
        bytes.resize(length - 4, 0);
        bytes.extend_from_slice(&block_sum(Algorithm::Crc32c, &bytes).to_le_bytes());
        bytes
    }

    /// Parses the header at the start of `bytes`. Returns it with its length, or what is wrong with
    /// it.
    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, usize), &'static str> {
        if !bytes.starts_with(&MAGIC) {
            return Err("it is no journal, or one of another version");
        }
        let length = u32_at(bytes, 8).ok_or("its header is cut off")? as usize;
        let whole = bytes.get(..length).ok_or("its header is cut off")?;
        if length < FIXED + 4 || !length.is_multiple_of(RECORD) {
            return Err("its header is damaged");
        }
        let (content, check) = whole.split_at(length - 4);
        if u32_at(check, 0) != Some(block_sum(Algorithm::Crc32c, content)) {
            return Err("its header is damaged");
        }
        Self::fields(content).map(|header| (header, length)).ok_or("its header is damaged")
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        let flags = u32_at(bytes, 48)?;
        let size = u64_at(bytes, 32)?;
        let modified = i64::from_le_bytes(array(bytes, 40)?);
        let source = bytes.get(FIXED..)?.get(..u32_at(bytes, 52)? as usize)?;
        Some(Self {
            seed: u32_at(bytes, 12)?,
            boot: BootId(array(bytes, 16)?),
            key: JournalKey {
                source: String::from_utf8(source.to_vec()).ok()?,
                size: (flags & HAS_SIZE != 0).then_some(size),
                modified: (flags & HAS_MODIFIED != 0).then_some(modified),
            },
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Bytes that the store has taken, with their CRC-32C if it is known.
    Data { range: Range<u64>, sum: Option<u32> },
    /// The bytes of the first `records` records are on stable storage.
    Synced { records: u64 },
    /// All records before this one are void; those after it were verified under this boot.
    Boot { id: BootId },
}

impl Record {
    pub(super) fn encode(&self, seed: u32) -> [u8; RECORD] {
        let (kind, first, second, sum) = match self {
            Self::Data { range, sum } => {
                let kind = if sum.is_some() { 1 } else { 2 };
                (kind, range.start.to_le_bytes(), (range.end - range.start).to_le_bytes(), sum.unwrap_or(0))
            }
            Self::Synced { records } => (3u32, records.to_le_bytes(), [0; 8], 0),
            Self::Boot { id: BootId(id) } => {
                let (mut first, mut second) = ([0; 8], [0; 8]);
                first.copy_from_slice(&id[..8]);
                second.copy_from_slice(&id[8..]);
                (4, first, second, 0)
            }
        };
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&first);
        bytes[8..16].copy_from_slice(&second);
        bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        bytes[20..24].copy_from_slice(&kind.to_le_bytes());
        let check = crc32c_append(seed, &bytes[..28]);
        bytes[28..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Returns `None` for a damaged record.
    pub(super) fn parse(bytes: &[u8; RECORD], seed: u32) -> Option<Self> {
        if u32_at(bytes, 28) != Some(crc32c_append(seed, &bytes[..28])) {
            return None;
        }
        let (first, second, sum) = (u64_at(bytes, 0)?, u64_at(bytes, 8)?, u32_at(bytes, 16)?);
        let data = |sum| Some(Self::Data { range: first..first.checked_add(second)?, sum });
        match u32_at(bytes, 20)? {
            1 => data(Some(sum)),
            2 => data(None),
            3 => Some(Self::Synced { records: first }),
            4 => Some(Self::Boot { id: BootId(array(bytes, 0)?) }),
            _ => None,
        }
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn header_is_parsed_back_and_damage_is_detected(
            source: String, size: Option<u64>, modified: Option<i64>, seed: u32, boot: [u8; 16], flip: usize,
        ) {
            let header = Header { seed, boot: BootId(boot), key: JournalKey { source, size, modified } };
            let mut bytes = header.encode();
            prop_assert_eq!(bytes.len() % RECORD, 0);
            prop_assert_eq!(Header::parse(&bytes), Ok((header, bytes.len())));
            let at = flip % bytes.len();
            bytes[at] ^= 1 << (flip % 8);
            prop_assert!(Header::parse(&bytes).is_err());
        }

        #[test]
        fn header_parse_of_any_bytes_fails(bytes: Vec<u8>) {
            prop_assert!(Header::parse(&bytes).is_err());
            let bytes = [&MAGIC[..], &bytes].concat();
            prop_assert!(Header::parse(&bytes).is_err());
        }

        #[test]
        fn record_is_parsed_back_and_damage_is_detected(start in 0..u64::MAX / 2, length in 0..u64::MAX / 2, sum: Option<u32>, seed: u32,
            flip in 0usize..RECORD * 8,
        ) {
            let data = Record::Data { range: start..start + length, sum };
            for record in [data, Record::Synced { records: start }, Record::Boot { id: BootId([7; 16]) }] {
                let mut bytes = record.encode(seed);
                prop_assert_eq!(Record::parse(&bytes, seed), Some(record));
                prop_assert_eq!(Record::parse(&bytes, seed ^ 1), None);
                bytes[flip / 8] ^= 1 << (flip % 8);
                prop_assert_eq!(Record::parse(&bytes, seed), None);
            }
        }
    }

    #[test]
    fn record_parse_refuses_range_beyond_64_bits() {
        let mut bytes = Record::Data { range: 0..u64::MAX, sum: None }.encode(1);
        bytes[0] = 1;
        let check = crc32c_append(1, &bytes[..28]);
        bytes[28..].copy_from_slice(&check.to_le_bytes());
        assert_eq!(Record::parse(&bytes, 1), None);
    }
}
