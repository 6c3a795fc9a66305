//! Commands of the control connection (RFC 959, 2228, 2389, 2428, 3659; GFD.20 and the additions of
//! GCT).
//!
//! A command is parsed from one line without its line end, and printed to such a line.

pub(crate) mod arguments;
mod error;
pub(crate) mod parse;
pub(crate) mod print;

use std::fmt;
use std::net::{SocketAddr, SocketAddrV4};
use std::str::FromStr;

use bstr::BString;
pub use error::CommandError;
pub use print::UnprintableCommand;
use zeroize::Zeroize;

use crate::opts::Options;
use crate::range::RangeSet;
use crate::server::{Family, Mode, RepresentationType, Window};
use crate::site::SiteCommand;

/// A checksum algorithm, with the name that FEAT, CKSM and SCKS use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ChecksumAlgorithm {
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

impl ChecksumAlgorithm {
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

    /// The name in CKSM and FEAT.
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
            Self::Xxh3_128 => "XXH3-128",
        }
    }

    /// Whether the sums of adjacent chunks can be combined, so that chunks may be summed out of
    /// order.
    pub fn is_combinable(self) -> bool {
        matches!(self, Self::Adler32 | Self::Crc32 | Self::Crc32c)
    }

    /// Number of hexadecimal digits of a checksum.
    pub fn digits(self) -> usize {
        match self {
            Self::Adler32 | Self::Crc32 | Self::Crc32c => 8,
            Self::Md5 | Self::Xxh3_128 => 32,
            Self::Sha1 => 40,
            Self::Blake3 | Self::Sha256 => 64,
            Self::Sha512 => 128,
        }
    }
}

impl fmt::Display for ChecksumAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The name is not that of a checksum algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown checksum algorithm {0:?}; known are {known}", known = ChecksumAlgorithm::ALL.map(ChecksumAlgorithm::name).join(", "))]
pub struct UnknownAlgorithm(pub String);

/// Accepts names in any case, with or without `-` and `_` (`sha-256`).
impl FromStr for ChecksumAlgorithm {
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

/// The argument of PASS. `Debug` never shows it, and its memory is cleared on drop.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Password(BString);

impl Password {
    pub fn new(password: impl Into<BString>) -> Self {
        Self(password.into())
    }

    /// The password itself. Use it only to check or to send it.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Password {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(***)")
    }
}

/// The argument of EPSV (RFC 2428).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpsvArgument {
    Family(Family),
    All,
}

/// The argument of REST: the ranges that the destination already has (RFC 3659 section 5, GFD.20
/// section 3.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Restart {
    /// All bytes before this offset: `REST 100`.
    Offset(u64),
    /// `REST 0-100,200-300`, where the ends are exclusive. Never empty.
    Ranges(RangeSet),
}

impl Restart {
    pub fn ranges(&self) -> RangeSet {
        match self {
            Self::Offset(n) => RangeSet::from_range(0..*n),
            Self::Ranges(set) => set.clone(),
        }
    }
}

/// Data channel authentication (GFD.20 section 3.2.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataAuthentication {
    None,
    SelfAuthentication,
    /// The peer must have this subject name.
    Subject(BString),
}

/// Protection of the data channel (RFC 2228 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    Clear,
    Safe,
    Private,
}

/// The kind of markers whose interval TREV sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerKind {
    Restart,
    Performance,
}

/// How a protected command was wrapped (RFC 2228 section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrapping {
    Mic,
    Conf,
    Enc,
}

/// The part of a file that ERET requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Retrieval {
    /// `P offset length`
    Partial(Window),
    /// `name="parameters"`: a storage module.
    Module { name: BString, parameters: BString },
}

/// The place to which ESTO writes data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// `A offset`
    Adjusted(u64),
    /// `U offset`: the path is the ID of an upload ([`crate::upload`], a Ropewalk extension).
    Upload(u64),
    /// `name="parameters"`: a storage module.
    Module { name: BString, parameters: BString },
}

/// One command. Paths are raw bytes, as the client sent them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Abor,
    Abuf(u64),
    Adat(BString),
    Allo(u64),
    Appe(BString),
    Auth(BString),
    Cdup,
    /// If `length` is `None`, the sum covers the rest of the file (-1 on the wire).
    Cksm {
        algorithm: ChecksumAlgorithm,
        offset: u64,
        length: Option<u64>,
        path: BString,
    },
    Cwd(BString),
    Dcau(DataAuthentication),
    /// A credential for the data channel: a type letter, and a blob that includes a private key.
    Dcsc {
        kind: u8,
        blob: Option<Password>,
    },
    Dele(BString),
    Eprt(SocketAddr),
    Epsv(Option<EpsvArgument>),
    Eret {
        what: Retrieval,
        path: BString,
    },
    Esto {
        place: Placement,
        path: BString,
    },
    Feat,
    Help(Option<BString>),
    /// Only EN is supported.
    Lang(Option<BString>),
    List(Option<BString>),
    Mdtm(BString),
    /// `modified`: seconds since 1970.
    Mfmt {
        modified: i64,
        path: BString,
    },
    Mkd(BString),
    Mlsc(Option<BString>),
    Mlsd(Option<BString>),
    Mlsr(Option<BString>),
    Mlst(Option<BString>),
    Mode(Mode),
    Nlst(Option<BString>),
    Noop,
    Opts(Options),
    Pass(Password),
    Pasv,
    Pbsz(u64),
    Port(SocketAddrV4),
    Prot(Protection),
    /// MIC, CONF or ENC, with its argument in base64.
    Protected(Wrapping, BString),
    Pwd,
    Quit,
    Rest(Restart),
    Retr(BString),
    Rmd(BString),
    Rnfr(BString),
    Rnto(BString),
    Sbuf(u64),
    Scks {
        algorithm: ChecksumAlgorithm,
        value: BString,
    },
    Site(SiteCommand),
    Size(BString),
    Spas(Option<Family>),
    /// Never empty.
    Spor(Vec<SocketAddr>),
    Stat(Option<BString>),
    Stor(BString),
    Stru,
    Syst,
    /// `seconds` 0 disables these markers.
    Trev {
        markers: MarkerKind,
        seconds: u32,
    },
    Type(RepresentationType),
    User(BString),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_algorithm_names_in_any_case_are_parsed() {
        for algorithm in ChecksumAlgorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
            assert_eq!(algorithm.name().to_lowercase().parse(), Ok(algorithm));
        }
        assert_eq!("sha-256".parse(), Ok(ChecksumAlgorithm::Sha256));
        assert_eq!("Adler-32".parse(), Ok(ChecksumAlgorithm::Adler32));
    }

    #[test]
    fn checksum_algorithm_unknown_name_lists_known_names() {
        let text = "md6".parse::<ChecksumAlgorithm>().map_err(|e| e.to_string());
        assert!(text.is_err_and(|text| text.contains("\"md6\"") && text.contains("MD5")));
    }
}
