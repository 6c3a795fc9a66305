//! What a server can do, from FEAT and from what it refused.

use bstr::BStr;
use ropewalk_protocol::command::ChecksumAlgorithm;
use ropewalk_storage::checksum::Algorithm;

use crate::verify::wire;

/// Found out at log-in; `false` may be set later where a command was refused after all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    /// MODE E with parallel streams (GFD.20).
    pub extended: bool,
    /// ERET P and ESTO A.
    pub partial: bool,
    /// MLST and MLSD (RFC 3659 section 7).
    pub facts: bool,
    /// MLSR: a whole tree in one listing.
    pub recursive: bool,
    pub size: bool,
    pub restart: bool,
    /// MFMT; GridFTP servers also have SITE UTIME.
    pub set_time: bool,
    pub delayed_passive: bool,
    /// OPTS PASV AllowDelayed.
    pub checksums: Vec<ChecksumAlgorithm>,
    /// SCKS before STOR: the server refuses what does not have this sum. Known only after a try.
    pub expect_checksum: bool,
    /// Our extensions.
    pub passive_sender: bool,
    pub inline_checksum: bool,
    pub ranges: bool,
    /// SITE STREAMS.
    pub streams: bool,
    /// OPTS RETR PathInfo.
    pub path_markers: bool,
    /// OPTS RETR Congestion.
    pub congestion: bool,
    /// DSI: globus-gridftp-server, and ours.
    pub dsi: bool,
    /// DCSC.
    pub data_credentials: bool,
    /// SITE DATAKEY.
    pub data_keys: bool,
    /// SITE PROFILE.
    pub profile: bool,
}

impl Abilities {
    /// From the lines of FEAT, without their leading space.
    pub(crate) fn new<'a>(lines: impl Iterator<Item = &'a BStr>) -> Self {
        let mut can = Self::default();
        for line in lines {
            let line = String::from_utf8_lossy(line).trim().to_ascii_uppercase();
            let (name, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match name {
                "PARALLEL" => can.extended = true,
                "ERET" | "ESTO" => can.partial = true,
                "MLST" => can.facts = true,
                "MLSR" => can.recursive = true,
                "DSI" => can.dsi = true,
                "SIZE" => can.size = true,
                "REST" => can.restart = true,
                "MFMT" => can.set_time = true,
                "DCSC" => can.data_credentials = rest.contains('P'),
                "PASV" => can.delayed_passive = rest.contains("ALLOWDELAYED"),
                "CKSM" => can.checksums = algorithms(rest),
                "ROPEWALK" => {
                    can.passive_sender = rest.contains("PASSIVESENDER;");
                    can.inline_checksum = rest.contains("INLINECHECKSUM;");
                    can.ranges = rest.contains("RANGES;");
                    can.streams = rest.contains("STREAMS;");
                    can.path_markers = rest.contains("PATHMARKERS;");
                    can.congestion = rest.contains("CONGESTION;");
                    can.data_keys = rest.contains("DATAKEY;");
                    can.profile = rest.contains("PROFILE;");
                }
                _ => {}
            }
        }
        can.expect_checksum = !can.checksums.is_empty() && can.extended;
        can
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.ranges
    }

    pub(crate) fn knows(&self, algorithm: Algorithm) -> bool {
        self.checksums.contains(&wire(algorithm))
    }
}

/// `MD5:10;ADLER32:10;`: names, each with what it costs.
fn algorithms(list: &str) -> Vec<ChecksumAlgorithm> {
    list.split(|c: char| c == ';' || c == ',' || c.is_whitespace())
        .filter_map(|item| item.split(':').next()?.trim_end_matches('*').parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Abilities {
        Abilities::new(text.lines().map(Into::into))
    }

    #[test]
    fn gct() {
        let can = of(
            "CKSM MD5:10;ADLER32:10;SHA1:10;SHA256:11;SHA512:12;\nDSI file-13.24\nMFMT\nMLSR\nMLSC\nUTF8\n\
                      DCAU\nPARALLEL\nSIZE\nMLST Type*;Size*;\nERET\nESTO\nSPAS\nSPOR\nREST STREAM\nMDTM\nPASV AllowDelayed;",
        );
        assert!(
            can.extended && can.partial && can.facts && can.recursive && can.restart && can.delayed_passive
        );
        assert!(can.knows(Algorithm::Adler32) && !can.knows(Algorithm::Crc32c));
        assert!(!can.is_ours());
    }

    #[test]
    fn plain_ftp() {
        let can = of("EPRT\nEPSV\nMDTM\nPASV\nREST STREAM\nSIZE\nTVFS");
        assert!(!can.extended && !can.facts && can.size && can.restart && !can.expect_checksum);
    }

    #[test]
    fn ours() {
        let can = of("CKSM CRC32C:1;\nPARALLEL\nROPEWALK PassiveSender;InlineChecksum;Ranges;DataKey;");
        assert!(can.passive_sender && can.inline_checksum && can.ranges && can.data_keys);
    }
}
