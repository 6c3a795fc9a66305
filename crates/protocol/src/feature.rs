//! FEAT (RFC 2389): the lines that the server sends, and the features that a client reads from
//! them.

use bstr::{BStr, ByteSlice};

use crate::command::ChecksumAlgorithm;
use crate::reply::Reply;

/// Lines of FEAT in GCT's order, each with the command that it needs (empty: none).
const LINES: [(&str, &str); 21] = [
    ("STORATTR", "SITE STORATTR"),
    ("MFMT", "MFMT"),
    ("WHOAMI", "SITE WHOAMI"),
    ("MLSR", "MLSR"),
    ("MLSC", "MLSC"),
    ("UTF8", ""),
    ("LANG EN", "LANG"),
    ("DCAU", "DCAU"),
    ("PARALLEL", ""),
    ("SIZE", "SIZE"),
    (
        "MLST Type*;Size*;Modify*;Perm*;Charset;UNIX.mode*;UNIX.owner*;UNIX.uid*;UNIX.group*;UNIX.gid*;\
         Unique*;UNIX.slink*;X.count;",
        "MLST",
    ),
    ("ERET", "ERET"),
    ("ESTO", "ESTO"),
    ("SPAS", "SPAS"),
    ("SPOR", "SPOR"),
    ("REST STREAM", "REST"),
    ("MDTM", "MDTM"),
    ("PASV AllowDelayed;", "PASV"),
    ("SBUF", "SBUF"),
    ("ABUF", "ABUF"),
    // An extension of Ropewalk for all servers and clients (docs/extensions.md).
    ("SCITAG 65-65535", "SITE SCITAG"),
];

/// Ropewalk extensions, which are on the last line, each with the command that it needs.
const EXTENSIONS: [(&str, &str); 10] = [
    ("PassiveSender", ""),
    ("InlineChecksum", ""),
    ("Ranges", "SITE RANGES"),
    ("Streams", "SITE STREAMS"),
    ("PathMarkers", ""),
    ("Resend", ""),
    ("Usage", "SITE USAGE"),
    ("Space", "SITE SPACE"),
    ("SpaceExtend", "SITE SPACE"),
    ("Slots", "SITE SLOTS"),
];

/// Offered if uploads are not written in place ([`Offer::replaces`]).
const REPLACE: [(&str, &str); 2] = [("Replace", "OPTS"), ("Upload", "SITE UPLOAD")];

/// Offered if the site allows at least one algorithm ([`Offer::congestion`]).
const CONGESTION: &str = "Congestion";

/// Offered on protected control connections ([`Offer::data_keys`]).
const DATA_KEYS: (&str, &str) = ("DataKey", "SITE DATAKEY");

/// Offered by relays on protected control connections ([`Offer::hop_logins`]).
const HOP_LOGIN: (&str, &str) = ("HopLogin", "SITE HOPLOGIN");

/// Offered if the control port takes data connections ([`Offer::one_port`]).
const ONE_PORT: (&str, &str) = ("OnePort", "SITE ONEPORT");

/// Offered if all channels over QUIC can share a UDP port ([`Offer::quic_port`]).
const QUIC_PORT: (&str, &str) = ("QuicPort", "SITE ONEPORT");

/// Offered after log-in if the site enables it ([`Offer::profiling`]).
const PROFILE: (&str, &str) = ("Profile", "SITE PROFILE");

/// Offered by front ends of data nodes ([`Offer::nodes`]).
const NODES: (&str, &str) = ("Nodes", "OPTS");

/// Offered if the server has a list of drivers ([`Offer::drivers`]), with the list as its value.
const DRIVERS: (&str, &str) = ("Drivers", "SITE SETNETSTACK");

/// Offered if the site accepts bearer tokens ([`Offer::tokens`]).
const TOKENS: &str = "Tokens";

/// The state of the server and of the session on which the lines of FEAT depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer<'a> {
    /// The client has logged in. As in GCT, checksums are offered only after log-in.
    pub logged_in: bool,
    /// A client may choose the congestion control algorithm of data connections.
    pub congestion: bool,
    /// AUTH GSSAPI is offered.
    pub gssapi: bool,
    /// AUTH TLS is offered (RFC 4217).
    pub tls: bool,
    /// The control connection is protected, so data connections can be bound to it
    /// ([`crate::data_key`]).
    pub data_keys: bool,
    /// The server is a relay that takes log-ins for servers behind it ([`crate::hop_login`]), and
    /// the control connection is protected.
    pub hop_logins: bool,
    /// Data connections can go to the control port ([`crate::one_port`]).
    pub one_port: bool,
    /// `SITE ONEPORT` also makes channels over QUIC.
    pub quic_port: bool,
    /// The server accepts bearer tokens ([`crate::server::TOKEN_USER`]).
    pub tokens: bool,
    /// The server profiles its host for clients that have the permission ([`crate::profiling`]).
    pub profiling: bool,
    /// An upload can replace an existing file when it is complete.
    pub replaces: bool,
    /// The server has data nodes, which may join while data moves.
    pub nodes: bool,
    /// The drivers that a stack of SITE SETNETSTACK can have.
    pub drivers: &'a [String],
}

/// Checksum algorithms with their cost: the lower, the cheaper. Those of GCT come first, with GCT's
/// costs.
const CHECKSUMS: [(ChecksumAlgorithm, u32); 9] = [
    (ChecksumAlgorithm::Md5, 10),
    (ChecksumAlgorithm::Adler32, 10),
    (ChecksumAlgorithm::Sha1, 10),
    (ChecksumAlgorithm::Sha256, 11),
    (ChecksumAlgorithm::Sha512, 12),
    (ChecksumAlgorithm::Crc32, 9),
    (ChecksumAlgorithm::Crc32c, 9),
    (ChecksumAlgorithm::Xxh3_128, 9),
    (ChecksumAlgorithm::Blake3, 9),
];

/// The server's reply to FEAT. `allowed` is called with `VERB` and `SITE VERB`.
pub fn reply(offer: Offer<'_>, allowed: impl Fn(&str) -> bool) -> Reply {
    let mut lines = Vec::with_capacity(LINES.len() + 6);
    if offer.logged_in && allowed("CKSM") {
        let sums: String =
            CHECKSUMS.iter().map(|(algorithm, cost)| format!("{}:{cost};", algorithm.name())).collect();
        lines.push(format!("CKSM {sums}"));
    }
    if offer.tls {
        lines.extend(["AUTH TLS", "PBSZ", "PROT"].map(str::to_owned));
    }
    if offer.gssapi && allowed("DCSC") {
        lines.push("DCSC P,D".to_owned());
    }
    lines.extend(
        LINES.iter().filter(|(_, verb)| verb.is_empty() || allowed(verb)).map(|(line, _)| (*line).to_owned()),
    );
    let possible =
        |verb: &str| verb.is_empty() || allowed(verb) && (!verb.starts_with("SITE ") || allowed("SITE"));
    let keys = offer.data_keys.then_some(&DATA_KEYS);
    let profile = (offer.profiling && offer.logged_in).then_some(&PROFILE);
    let own = EXTENSIONS
        .iter()
        .chain(REPLACE.iter().filter(|_| offer.replaces))
        .chain(keys)
        .chain(offer.hop_logins.then_some(&HOP_LOGIN))
        .chain(offer.one_port.then_some(&ONE_PORT))
        .chain(offer.quic_port.then_some(&QUIC_PORT))
        .chain(profile)
        .chain(offer.nodes.then_some(&NODES))
        .filter(|(_, verb)| possible(verb))
        .map(|(name, _)| *name);
    let (drivers, verb) = DRIVERS;
    let drivers = (!offer.drivers.is_empty() && possible(verb))
        .then(|| format!("{drivers}={}", offer.drivers.join(",")));
    let own: String = own
        .chain(drivers.as_deref())
        .chain(offer.congestion.then_some(CONGESTION))
        .chain(offer.tokens.then_some(TOKENS))
        .flat_map(|name| [name, ";"])
        .collect();
    lines.push(format!("ROPEWALK {own}"));
    Reply::indented(211, "Extensions supported", lines, "End.")
}

/// The features of a server, from its reply to FEAT. `Default` is a server without FEAT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// GridFTP: MODE E and parallel streams (`PARALLEL`).
    pub extended: bool,
    /// The supported checksum algorithms that this client knows, in the server's order.
    pub checksums: Vec<ChecksumAlgorithm>,
    /// `DCSC P`: credentials for data connections.
    pub data_credentials: bool,
    /// OPTS PASV AllowDelayed.
    pub delayed_passive: bool,
    /// `DSI`: the server is globus-gridftp-server.
    pub dsi: bool,
    /// MLST and MLSD (RFC 3659 section 7).
    pub facts: bool,
    /// ERET and ESTO (GFD.20 section 3).
    pub partial: bool,
    /// MLSR: a whole tree in one listing.
    pub recursive: bool,
    /// REST (RFC 3659 section 5).
    pub restart: bool,
    /// MFMT; GridFTP servers also have SITE UTIME.
    pub set_time: bool,
    pub size: bool,
    /// SPAS (GFD.20 section 3.4).
    pub striped: bool,
    /// Ropewalk extension: `SITE SCITAG`, see [`crate::scitag`].
    pub scitag: bool,
    /// Ropewalk extension: MODE E in which the connecting client is the receiver.
    pub passive_sender: bool,
    /// Ropewalk extension: `OPTS RETR Checksum=`.
    pub inline_checksum: bool,
    /// Ropewalk extension: `SITE RANGES`.
    pub ranges: bool,
    /// Ropewalk extension: `SITE STREAMS`, see [`crate::streams`].
    pub streams: bool,
    /// Ropewalk extension: `OPTS RETR PathInfo=1;`, see [`crate::marker::PathMarker`].
    pub path_markers: bool,
    /// Ropewalk extension: MODE E in which blocks of slow streams are sent again on others, and
    /// `OPTS RETR Resend=1;`.
    pub resend: bool,
    /// Ropewalk extension: `OPTS STOR Replace=1;`.
    pub replace: bool,
    /// Ropewalk extension: `SITE UPLOAD`, see [`crate::upload`].
    pub upload: bool,
    /// Ropewalk extension: `SITE SPACE`, see [`crate::space`].
    pub space: bool,
    /// Ropewalk extension: `SITE SPACE EXTEND`.
    pub space_extend: bool,
    /// Ropewalk extension: `SITE SLOTS`, see [`crate::slots`].
    pub slots: bool,
    /// Ropewalk extension: `OPTS RETR Congestion=`.
    pub congestion: bool,
    /// Ropewalk extension: `SITE DATAKEY`, see [`crate::data_key`].
    pub data_keys: bool,
    /// Ropewalk extension: `SITE HOPLOGIN`, see [`crate::hop_login`].
    pub hop_login: bool,
    /// Ropewalk extension: `SITE ONEPORT`, see [`crate::one_port`].
    pub one_port: bool,
    /// Ropewalk extension: `SITE ONEPORT` for channels over QUIC.
    pub quic_port: bool,
    /// Ropewalk extension: `SITE PROFILE`, see [`crate::profiling`].
    pub profile: bool,
    /// Ropewalk extension: `OPTS RETR Nodes=`.
    pub nodes: bool,
    /// Ropewalk extension: the drivers that a stack of SITE SETNETSTACK can have, in lower case.
    /// Empty if the server does not list them.
    pub drivers: Vec<String>,
}

impl Features {
    /// Reads the lines of FEAT between the first and the last, with or without their leading space.
    pub fn new<'a>(lines: impl IntoIterator<Item = &'a BStr>) -> Self {
        let mut features = Self::default();
        for line in lines {
            features.line(&line.trim().to_str_lossy().to_ascii_uppercase());
        }
        features
    }

    fn line(&mut self, line: &str) {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        match name {
            "CKSM" => self.checksums = algorithms(rest),
            "DCSC" => self.data_credentials = rest.contains('P'),
            "DSI" => self.dsi = true,
            "ERET" | "ESTO" => self.partial = true,
            "MFMT" => self.set_time = true,
            "MLSR" => self.recursive = true,
            "MLST" => self.facts = true,
            "PARALLEL" => self.extended = true,
            "PASV" => self.delayed_passive = rest.contains("ALLOWDELAYED"),
            "REST" => self.restart = true,
            "SCITAG" => self.scitag = true,
            "SIZE" => self.size = true,
            "SPAS" => self.striped = true,
            "ROPEWALK" => rest.split(';').for_each(|extension| self.extension(extension.trim())),
            _ => {}
        }
    }

    fn extension(&mut self, name: &str) {
        if let Some(drivers) = name.strip_prefix("DRIVERS=") {
            self.drivers = drivers.split(',').map(str::to_ascii_lowercase).collect();
            return;
        }
        match name {
            "PASSIVESENDER" => self.passive_sender = true,
            "INLINECHECKSUM" => self.inline_checksum = true,
            "RANGES" => self.ranges = true,
            "STREAMS" => self.streams = true,
            "PATHMARKERS" => self.path_markers = true,
            "RESEND" => self.resend = true,
            "REPLACE" => self.replace = true,
            "UPLOAD" => self.upload = true,
            "SPACE" => self.space = true,
            "SPACEEXTEND" => self.space_extend = true,
            "SLOTS" => self.slots = true,
            "CONGESTION" => self.congestion = true,
            "DATAKEY" => self.data_keys = true,
            "HOPLOGIN" => self.hop_login = true,
            "ONEPORT" => self.one_port = true,
            "QUICPORT" => self.quic_port = true,
            "PROFILE" => self.profile = true,
            "NODES" => self.nodes = true,
            _ => {}
        }
    }

    pub fn knows(&self, algorithm: ChecksumAlgorithm) -> bool {
        self.checksums.contains(&algorithm)
    }

    /// Whether to send SCKS before STOR, so that the server refuses a file with another checksum.
    /// FEAT has no line for SCKS; the client assumes it of GridFTP servers that offer checksums.
    pub fn may_expect_checksums(&self) -> bool {
        self.extended && !self.checksums.is_empty()
    }
}

/// Parses `MD5:10;ADLER32:10;`: names with their costs. Other servers list only names, separated by
/// spaces or commas.
fn algorithms(list: &str) -> Vec<ChecksumAlgorithm> {
    list.split(|c: char| c == ';' || c == ',' || c.is_whitespace())
        .filter_map(|item| item.split(':').next()?.trim_end_matches('*').parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(reply: &Reply) -> Features {
        Features::new(reply.body())
    }

    #[test]
    fn feat_reply_lists_only_offered_lines() {
        let offer = |logged_in| Offer {
            logged_in,
            congestion: false,
            gssapi: false,
            tls: false,
            data_keys: false,
            hop_logins: false,
            one_port: false,
            quic_port: false,
            tokens: false,
            profiling: false,
            replaces: true,
            nodes: false,
            drivers: &[],
        };
        let before = reply(offer(false), |_| true).to_bytes();
        let lines: Vec<&[u8]> = before.lines().collect();
        assert_eq!(lines[0], b"211-Extensions supported");
        assert_eq!(lines[1], b" STORATTR");
        assert_eq!(
            lines[lines.len() - 2],
            b" ROPEWALK PassiveSender;InlineChecksum;Ranges;Streams;PathMarkers;Resend;Usage;Space;SpaceExtend;Slots;Replace;Upload;"
        );
        assert_eq!(lines[lines.len() - 1], b"211 End.");
        assert!(!before.contains_str("CKSM"));
        assert!(!before.contains_str("GETPUT"));

        let after = reply(offer(true), |_| true).to_bytes();
        assert!(after.lines().nth(1).is_some_and(|l| {
            l.starts_with(b" CKSM MD5:10;ADLER32:10;SHA1:10;SHA256:11;SHA512:12;CRC32:")
        }));
        assert!(!reply(offer(true), |verb| verb != "ERET").to_bytes().contains_str("ERET"));
        for gone in ["SITE STREAMS", "SITE"] {
            let without = of(&reply(offer(true), |verb| verb != gone));
            assert!(!without.streams && without.path_markers && without.replace, "{gone}");
        }
        assert!(!of(&reply(offer(true), |verb| verb != "OPTS")).replace);
        let in_place = of(&reply(Offer { replaces: false, ..offer(true) }, |_| true));
        assert!(!in_place.replace && !in_place.upload);
    }

    #[test]
    fn features_of_own_reply_are_read_back() {
        let drivers = ["tcp", "gsi", "rate"].map(str::to_owned);
        let offer = Offer {
            logged_in: true,
            congestion: true,
            gssapi: true,
            tls: false,
            data_keys: true,
            hop_logins: true,
            one_port: true,
            quic_port: true,
            tokens: true,
            profiling: true,
            replaces: true,
            nodes: true,
            drivers: &drivers,
        };
        let features = of(&reply(offer, |_| true));
        assert_eq!(features.checksums, CHECKSUMS.map(|(algorithm, _)| algorithm));
        let all = Features {
            extended: true,
            checksums: features.checksums.clone(),
            data_credentials: true,
            delayed_passive: true,
            dsi: false,
            facts: true,
            partial: true,
            recursive: true,
            restart: true,
            set_time: true,
            size: true,
            scitag: true,
            striped: true,
            passive_sender: true,
            inline_checksum: true,
            ranges: true,
            streams: true,
            path_markers: true,
            resend: true,
            replace: true,
            upload: true,
            space: true,
            space_extend: true,
            slots: true,
            congestion: true,
            data_keys: true,
            hop_login: true,
            one_port: true,
            quic_port: true,
            profile: true,
            nodes: true,
            drivers: drivers.to_vec(),
        };
        assert_eq!(features, all);
        assert!(features.ranges && features.may_expect_checksums());
        for without in [Offer { profiling: false, ..offer }, Offer { logged_in: false, ..offer }] {
            assert!(!of(&reply(without, |_| true)).profile);
        }
        let tokens = |offer| reply(offer, |_| true).to_bytes().find(b"Tokens;").is_some();
        assert!(tokens(offer) && !tokens(Offer { tokens: false, ..offer }));
        let clear = Offer { data_keys: false, ..offer };
        assert!(!of(&reply(clear, |_| true)).data_keys);
        assert!(!of(&reply(offer, |verb| verb != "SITE DATAKEY")).data_keys);
        assert!(!of(&reply(Offer { hop_logins: false, ..offer }, |_| true)).hop_login);
        assert!(!of(&reply(offer, |verb| verb != "SITE HOPLOGIN")).hop_login);
        assert!(!of(&reply(Offer { nodes: false, ..offer }, |_| true)).nodes);
        assert!(!of(&reply(offer, |verb| verb != "OPTS")).nodes);
        assert!(
            reply(offer, |_| true)
                .to_bytes()
                .contains_str("Profile;Nodes;Drivers=tcp,gsi,rate;Congestion;Tokens;")
        );
        assert_eq!(of(&reply(offer, |verb| verb != "SITE SETNETSTACK")).drivers, [""; 0]);
    }

    /// The lines are those of globus-gridftp-server 13.24.
    #[test]
    fn features_of_gct_are_read() {
        let text = "CKSM MD5:10;ADLER32:10;SHA1:10;SHA256:11;SHA512:12;\nDSI file-13.24\nMFMT\nMLSR\nMLSC\nUTF8\nDCAU\n\
                    PARALLEL\nSIZE\nMLST Type*;Size*;\nERET\nESTO\nSPAS\nSPOR\nREST STREAM\nMDTM\nPASV AllowDelayed;";
        let can = Features::new(text.lines().map(Into::into));
        assert!(can.extended && can.partial && can.facts && can.recursive && can.restart && can.dsi);
        assert!(can.delayed_passive && can.may_expect_checksums() && !can.ranges);
        assert!(can.knows(ChecksumAlgorithm::Adler32) && !can.knows(ChecksumAlgorithm::Crc32c));
    }

    #[test]
    fn features_of_other_servers_are_read() {
        let lines = [
            " rest stream",
            " MLST size*;",
            "AUTH TLS;",
            "PASV",
            "CKSM MD5, sha1",
            "ROPEWALK Other;xRanges;",
        ];
        let features = Features::new(lines.map(Into::into));
        assert!(features.restart && features.facts && !features.delayed_passive && !features.ranges);
        assert_eq!(features.checksums, [ChecksumAlgorithm::Md5, ChecksumAlgorithm::Sha1]);
        let plain = "EPRT\nEPSV\nMDTM\nPASV\nREST STREAM\nSIZE\nTVFS".lines();
        let plain = Features::new(plain.map(Into::into));
        assert_eq!(plain, Features { restart: true, size: true, ..Features::default() });
        assert!(!plain.may_expect_checksums());
    }
}
