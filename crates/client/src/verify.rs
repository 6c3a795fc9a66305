//! Chooses the checksum that verifies a copy, and computes checksums of holes.
//!
//! A checksum that the peer computes while the data passes is preferred, because it needs no second
//! read of the file. Otherwise the peer is asked for one (CKSM). If it supports none, only sizes
//! are compared.

use ropewalk_protocol::range::RangeSet;
use ropewalk_storage::checksum::{Algorithm, Pieces, block_sum, combine};

use crate::place::Place;
use crate::{ChecksumPolicy, RemoteError};

/// The way in which one file is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// Sizes are compared.
    Size,
    /// The peer computes the checksum of the data that passes, and reports it in its last reply.
    Inline(Algorithm),
    /// The peer is asked for the checksum of the file (CKSM).
    Asked(Algorithm),
}

impl Check {
    pub(crate) fn algorithm(self) -> Option<Algorithm> {
        match self {
            Self::Size => None,
            Self::Inline(algorithm) | Self::Asked(algorithm) => Some(algorithm),
        }
    }

    /// The algorithm whose checksum the peer reports with its last reply.
    pub(crate) fn inline(self) -> Option<Algorithm> {
        if let Self::Inline(algorithm) = self { Some(algorithm) } else { None }
    }

    /// The algorithm to compute while data passes.
    pub(crate) fn in_passing(self) -> Option<Algorithm> {
        self.algorithm().filter(|a| a.is_combinable())
    }
}

/// The cheapest first: algorithms that need no second read, then by speed.
const PREFERENCE: [Algorithm; 9] = [
    Algorithm::Crc32c,
    Algorithm::Adler32,
    Algorithm::Crc32,
    Algorithm::Xxh3_128,
    Algorithm::Blake3,
    Algorithm::Sha1,
    Algorithm::Md5,
    Algorithm::Sha256,
    Algorithm::Sha512,
];

/// Chooses the check of a copy between this host and a peer, or between two peers, by the
/// algorithms that CKSM supports there.
pub(crate) fn choose(
    policy: ChecksumPolicy,
    known: &dyn Fn(Algorithm) -> bool,
    inline: bool,
    peer: &str,
) -> Result<Check, RemoteError> {
    match policy {
        ChecksumPolicy::None => Ok(Check::Size),
        ChecksumPolicy::Require(algorithm) if !known(algorithm) => Err(RemoteError::Unsupported {
            peer: peer.to_owned(),
            what: format!("compute {algorithm} checksums"),
        }),
        ChecksumPolicy::Require(algorithm) if inline && algorithm.is_combinable() => {
            Ok(Check::Inline(algorithm))
        }
        ChecksumPolicy::Require(algorithm) => Ok(Check::Asked(algorithm)),
        ChecksumPolicy::Default if inline => Ok(Check::Inline(Algorithm::Crc32c)),
        ChecksumPolicy::Default => {
            Ok(PREFERENCE.into_iter().find(|a| known(*a)).map_or(Check::Size, Check::Asked))
        }
    }
}

/// The proof of a copy for users, such as `md5:...`.
pub(crate) fn proof(algorithm: Algorithm, sum: &str) -> String {
    format!("{}:{}", algorithm.name().to_ascii_lowercase(), sum.trim().to_ascii_lowercase())
}

/// The [`proof`] that both sides have the same bytes, if their checksums are equal.
pub(crate) fn proved(algorithm: Algorithm, ours: &str, theirs: &str) -> Option<String> {
    same(ours, theirs).then(|| proof(algorithm, ours))
}

/// The size that the server of `destination` reported; `None` if it did not have to report one.
pub(crate) fn said_size(destination: &Place, said: &str) -> Result<Option<u64>, RemoteError> {
    if said.is_empty() {
        return Ok(None);
    }
    // Some servers append "bytes".
    let said = said.trim();
    let digits = said.find(|c: char| !c.is_ascii_digit()).unwrap_or(said.len());
    said[..digits].parse().map(Some).map_err(|_| {
        let peer = match destination {
            Place::Remote(endpoint, _) => endpoint.name.clone(),
            here => here.display(),
        };
        RemoteError::Nonsense { peer, reason: format!("SIZE was answered with {said}") }
    })
}

/// Whether two checksums are equal, regardless of case and leading zeros (GCT prints ADLER32 with
/// `%08x`, other servers without zeros).
pub(crate) fn same(a: &str, b: &str) -> bool {
    let bare = |s: &str| s.trim().trim_start_matches('0').to_ascii_lowercase();
    bare(a) == bare(b)
}

/// Adds the checksums of the holes of `whole`, which were not sent because they are zeros.
pub(crate) fn add_holes(pieces: &mut Pieces, sent: &RangeSet, whole: std::ops::Range<u64>) {
    for hole in sent.complement(whole).iter() {
        let sum = zeros(pieces.algorithm(), hole.end - hole.start);
        pieces.insert(hole, sum);
    }
}

/// The checksum of `length` zero bytes, by doubling.
fn zeros(algorithm: Algorithm, length: u64) -> u32 {
    let mut total = block_sum(algorithm, b"");
    let (mut power, mut power_sum) = (1u64, block_sum(algorithm, b"\0"));
    let mut rest = length;
    while rest > 0 {
        if rest & 1 == 1 {
            total = combine(algorithm, total, power_sum, power);
        }
        rest >>= 1;
        if rest > 0 {
            power_sum = combine(algorithm, power_sum, power_sum, power);
            power *= 2;
        }
    }
    total
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn zeros_are_zeros() {
        for algorithm in [Algorithm::Adler32, Algorithm::Crc32, Algorithm::Crc32c] {
            for length in [0, 1, 2, 1000, 65_537] {
                assert_eq!(
                    zeros(algorithm, length),
                    block_sum(algorithm, &vec![0; length as usize]),
                    "{algorithm}"
                );
            }
        }
    }

    #[test]
    fn holes_complete_the_sum() {
        let data = [&b"abc"[..], &[0; 100], b"xyz"].concat();
        let mut pieces = Pieces::new(Algorithm::Crc32c);
        pieces.insert(0..3, block_sum(Algorithm::Crc32c, b"abc"));
        pieces.insert(103..106, block_sum(Algorithm::Crc32c, b"xyz"));
        add_holes(&mut pieces, &[0..3, 103..106].into_iter().collect(), 0..106);
        assert_eq!(pieces.total(0..106).unwrap(), format!("{:08x}", block_sum(Algorithm::Crc32c, &data)));
    }

    #[test]
    fn chooses_the_cheapest_that_the_peer_knows() {
        let gct = |a: Algorithm| {
            matches!(
                a,
                Algorithm::Md5 | Algorithm::Adler32 | Algorithm::Sha1 | Algorithm::Sha256 | Algorithm::Sha512
            )
        };
        assert_eq!(
            choose(ChecksumPolicy::Default, &gct, false, "p").unwrap(),
            Check::Asked(Algorithm::Adler32)
        );
        assert_eq!(choose(ChecksumPolicy::Default, &|_| false, false, "p").unwrap(), Check::Size);
        assert_eq!(
            choose(ChecksumPolicy::Default, &|_| true, true, "p").unwrap(),
            Check::Inline(Algorithm::Crc32c)
        );
        let md5 = ChecksumPolicy::Require(Algorithm::Md5);
        assert_eq!(choose(md5, &gct, true, "p").unwrap(), Check::Asked(Algorithm::Md5));
        assert!(choose(ChecksumPolicy::Require(Algorithm::Blake3), &gct, false, "p").is_err());
    }

    #[test]
    fn sums_are_compared_as_numbers() {
        assert!(same("00ABcd01", "abcd01"));
        assert!(!same("abcd01", "abcd02"));
        assert!(same("00000000", "0"));
    }
}
