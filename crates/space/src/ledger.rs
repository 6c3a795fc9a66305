//! The ledger: the text in which accounts survive a restart.
//!
//! Each line has a checksum and one record as JSON. Later lines count, so that the server appends
//! what has changed, and writes the file again when it has become long. A line that was cut off or
//! damaged by a crash ends the ledger: the lines before it count, and the scan at the start finds
//! the rest.

use serde::{Deserialize, Serialize};

use crate::book::AccountKey;

/// The first line.
pub const HEAD: &str = "ropewalk space ledger 1\n";

/// A line of a ledger is not longer.
const LONGEST: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    Account(AccountRecord),
    Reservation(ReservationRecord),
    /// The reservation with this token has ended.
    Ended {
        token: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountRecord {
    #[serde(flatten)]
    pub key: AccountKey,
    pub bytes: u64,
    pub files: u64,
    /// Seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_since: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRecord {
    pub token: String,
    pub user: String,
    /// Of the host.
    pub directory: String,
    pub accounts: Vec<AccountKey>,
    pub bytes: u64,
    pub left: u64,
    /// Seconds since 1970.
    pub end: u64,
}

/// The records of a ledger.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    pub records: Vec<Record>,
    /// The number of bytes that could be read; more have come from a crash, or from others.
    pub valid: usize,
}

/// A record as a line.
pub fn line(record: &Record) -> String {
    // Maps with string keys always have a form in JSON.
    let json = serde_json::to_string(record).unwrap_or_default();
    format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
}

/// Whether the ledger can keep a record.
pub fn can_keep(record: &Record) -> bool {
    line(record).len() <= LONGEST
}

/// Reads a ledger up to the first line that is damaged. One with another first line is empty.
pub fn read(bytes: &[u8]) -> Contents {
    let mut contents = Contents::default();
    let Some(mut rest) = bytes.strip_prefix(HEAD.as_bytes()) else { return contents };
    contents.valid = HEAD.len();
    while let Some(end) = rest.iter().take(LONGEST).position(|&byte| byte == b'\n') {
        let Some(record) = record(&rest[..end]) else { break };
        contents.records.push(record);
        contents.valid += end + 1;
        rest = &rest[end + 1..];
    }
    contents
}

fn record(line: &[u8]) -> Option<Record> {
    let line = std::str::from_utf8(line).ok()?;
    let (sum, json) = line.split_once(' ')?;
    let right = sum.len() == 8 && u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(json.as_bytes());
    if right { serde_json::from_str(json).ok() } else { None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn account(holder: &str, bytes: u64) -> Record {
        let key = AccountKey { quota: "atlas".into(), holder: holder.into() };
        Record::Account(AccountRecord { key, bytes, files: 2, soft_since: Some(7) })
    }

    proptest! {
        #[test]
        fn ledger_cut_anywhere_keeps_whole_lines(
            holders in proptest::collection::vec(".{0,12}", 0..6),
            cut in any::<prop::sample::Index>(),
            flip in any::<Option<prop::sample::Index>>(),
        ) {
            let records: Vec<_> = holders.iter().map(|holder| account(holder, u64::MAX)).collect();
            let lines: Vec<_> = records.iter().map(line).collect();
            let mut text = HEAD.as_bytes().to_vec();
            text.extend(lines.concat().bytes());
            text.truncate(cut.index(text.len() + 1));
            let whole = read(&text);
            prop_assert!(records.starts_with(&whole.records));
            let complete = text.iter().filter(|byte| **byte == b'\n').count();
            prop_assert_eq!(whole.records.len() + usize::from(complete > 0), complete);
            if let Some(flip) = flip && !text.is_empty() {
                let at = flip.index(text.len());
                text[at] ^= 1;
                prop_assert!(records.starts_with(&read(&text).records));
            }
        }

        #[test]
        fn ledger_of_any_bytes_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let text = [HEAD.as_bytes(), &bytes].concat();
            prop_assert!(read(&text).valid >= HEAD.len());
            prop_assert_eq!(read(&bytes).records, []);
        }
    }
}
