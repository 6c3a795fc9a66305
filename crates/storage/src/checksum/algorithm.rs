use std::fmt;
use std::str::FromStr;

/// A checksum algorithm, by the name that it has in FEAT and CKSM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Algorithm {
    Adler32,
    Blake3,
    Crc32,
    Crc32c,
    Md5,
    Sha1,
    Sha256,
    Sha512,
    Xxh3_128,
}

/// A name that stands for no checksum algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown checksum algorithm {0:?}; known are {known}", known = Algorithm::ALL.map(Algorithm::name).join(", "))]
pub struct UnknownAlgorithm(pub String);

impl Algorithm {
    pub const ALL: [Self; 9] = [
        Self::Adler32,
        Self::Blake3,
        Self::Crc32,
        Self::Crc32c,
        Self::Md5,
        Self::Sha1,
        Self::Sha256,
        Self::Sha512,
        Self::Xxh3_128,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Adler32 => "ADLER32",
            Self::Blake3 => "BLAKE3",
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Md5 => "MD5",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
            Self::Sha512 => "SHA512",
            Self::Xxh3_128 => "XXH3_128",
        }
    }

    /// Sums of adjacent blocks give the sum of both, so blocks can be summed in any order.
    pub fn combinable(self) -> bool {
        matches!(self, Self::Adler32 | Self::Crc32 | Self::Crc32c)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Names in any case; `-` and `_` do not count (`sha-256`).
impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(given: &str) -> Result<Self, UnknownAlgorithm> {
        let bare = |name: &str| -> String {
            name.chars().filter(|c| !matches!(c, '-' | '_')).map(|c| c.to_ascii_uppercase()).collect()
        };
        let wanted = bare(given);
        Self::ALL
            .into_iter()
            .find(|algorithm| bare(algorithm.name()) == wanted)
            .ok_or_else(|| UnknownAlgorithm(given.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_in_any_case() {
        for algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
            assert_eq!(algorithm.name().to_lowercase().parse(), Ok(algorithm));
        }
        assert_eq!("sha-256".parse(), Ok(Algorithm::Sha256));
        assert_eq!("Adler-32".parse(), Ok(Algorithm::Adler32));
    }

    #[test]
    fn an_unknown_name_is_told_with_the_known_ones() {
        let text = "md6".parse::<Algorithm>().map_err(|e| e.to_string());
        assert!(text.is_err_and(|text| text.contains("\"md6\"") && text.contains("MD5")));
    }
}
