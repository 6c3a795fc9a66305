//! Incremental checksums for all algorithms of the protocol.

use md5::Digest;

use super::{Algorithm, block_sum, combine};

/// A checksum of bytes that come in order.
#[derive(Clone)]
pub struct Hasher(State);

#[derive(Clone)]
enum State {
    Combinable { algorithm: Algorithm, sum: u32 },
    Blake3(Box<blake3::Hasher>),
    Md5(md5::Md5),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
    Xxh3(Box<xxhash_rust::xxh3::Xxh3>),
}

impl Hasher {
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Adler32 | Algorithm::Crc32 | Algorithm::Crc32c => {
                State::Combinable { algorithm, sum: block_sum(algorithm, b"") }
            }
            Algorithm::Blake3 => State::Blake3(Box::default()),
            Algorithm::Md5 => State::Md5(md5::Md5::new()),
            Algorithm::Sha1 => State::Sha1(sha1::Sha1::new()),
            Algorithm::Sha256 => State::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => State::Sha512(sha2::Sha512::new()),
            Algorithm::Xxh3_128 => State::Xxh3(Box::default()),
        })
    }

    pub fn update(&mut self, data: &[u8]) {
        match &mut self.0 {
            State::Combinable { algorithm, sum } => {
                let next = block_sum(*algorithm, data);
                *sum = combine(*algorithm, *sum, next, data.len() as u64);
            }
            State::Blake3(hasher) => {
                hasher.update(data);
            }
            State::Md5(hasher) => hasher.update(data),
            State::Sha1(hasher) => hasher.update(data),
            State::Sha256(hasher) => hasher.update(data),
            State::Sha512(hasher) => hasher.update(data),
            State::Xxh3(hasher) => hasher.update(data),
        }
    }

    /// The sum in lowercase hexadecimal, most significant byte first.
    pub fn finish(self) -> String {
        match self.0 {
            State::Combinable { sum, .. } => format!("{sum:08x}"),
            State::Blake3(hasher) => hex(hasher.finalize().as_bytes()),
            State::Md5(hasher) => hex(&hasher.finalize()),
            State::Sha1(hasher) => hex(&hasher.finalize()),
            State::Sha256(hasher) => hex(&hasher.finalize()),
            State::Sha512(hasher) => hex(&hasher.finalize()),
            State::Xxh3(hasher) => format!("{:032x}", hasher.digest128()),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(algorithm: Algorithm, data: &[u8]) -> String {
        let mut hasher = Hasher::new(algorithm);
        for part in data.chunks(4) {
            hasher.update(part);
        }
        hasher.finish()
    }

    /// The published check values (RFC 1950, 3720, 1321, 3174, 6234; those of XXH3 and BLAKE3 from
    /// their own tools).
    #[test]
    fn hasher_returns_published_check_values() {
        for (algorithm, expected) in [
            (Algorithm::Adler32, "091e01de"),
            (Algorithm::Crc32, "cbf43926"),
            (Algorithm::Crc32c, "e3069283"),
            (Algorithm::Md5, "25f9e794323b453885f5181f1b624d0b"),
            (Algorithm::Sha1, "f7c3bc1d808e04732adf679965ccc34ca7ae3441"),
            (Algorithm::Sha256, "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225"),
        ] {
            assert_eq!(sum(algorithm, b"123456789"), expected, "{algorithm}");
        }
        assert!(sum(Algorithm::Sha512, b"abc").starts_with("ddaf35a193617abacc417349ae204131"));
        assert_eq!(
            sum(Algorithm::Blake3, b""),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
        assert_eq!(sum(Algorithm::Xxh3_128, b""), "99aa06d3014798d86001c324468d497f");
    }

    #[test]
    fn hasher_of_empty_input_returns_initial_sums() {
        assert_eq!(sum(Algorithm::Adler32, b""), "00000001");
        assert_eq!(sum(Algorithm::Crc32c, b""), "00000000");
        assert_eq!(sum(Algorithm::Md5, b""), "d41d8cd98f00b204e9800998ecf8427e");
    }
}
