//! FEAT (RFC 2389): what the server offers, and what a client reads out of it.

use bstr::{BStr, BString, ByteSlice};

use crate::command::ChecksumAlgorithm;
use crate::reply::Reply;

/// Lines of FEAT in GCT's order, with the command that each is about (empty: none).
const LINES: [(&str, &str); 20] = [
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
];

/// Our own extensions, in the last line, each with the command that it is about.
const EXTENSIONS: [(&str, &str); 5] = [
    ("PassiveSender", ""),
    ("InlineChecksum", ""),
    ("Ranges", "SITE RANGES"),
    ("Streams", "SITE STREAMS"),
    ("PathMarkers", ""),
];

/// Offered where the site allows any ([`Offer::congestion`]).
const CONGESTION: &str = "Congestion";

/// Offered on protected control connections ([`Offer::data_keys`]).
const DATA_KEYS: (&str, &str) = ("DataKey", "SITE DATAKEY");

/// Offered where the site has it, after log-in ([`Offer::profiling`]).
const PROFILE: (&str, &str) = ("Profile", "SITE PROFILE");

/// Offered where the site takes bearer tokens ([`Offer::tokens`]).
const TOKENS: &str = "Tokens";

/// What the lines of a server depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// As in GCT, checksums are offered only after log-in.
    pub logged_in: bool,
    /// A client may choose the congestion control of data connections.
    pub congestion: bool,
    /// AUTH GSSAPI is offered.
    pub gssapi: bool,
    /// AUTH TLS is offered (RFC 4217).
    pub tls: bool,
    /// The control connection is protected, so that data connections can be bound to it ([`crate::data_key`]).
    pub data_keys: bool,
    /// Bearer tokens are taken ([`crate::server::TOKEN_USER`]).
    pub tokens: bool,
    /// The server measures its host for those who may ask for it ([`crate::profiling`]).
    pub profiling: bool,
}

/// Algorithms with their cost, the cheaper the lower: GCT's first, with its numbers.
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

/// The server's answer to FEAT. `allowed` is asked for `VERB` and `SITE VERB`.
pub fn reply(offer: Offer, allowed: impl Fn(&str) -> bool) -> Reply {
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
    let possible = |verb: &str| verb.is_empty() || allowed(verb) && allowed("SITE");
    let keys = offer.data_keys.then_some(&DATA_KEYS);
    let profile = (offer.profiling && offer.logged_in).then_some(&PROFILE);
    let own = EXTENSIONS
        .iter()
        .chain(keys)
        .chain(profile)
        .filter(|(_, verb)| possible(verb))
        .map(|(name, _)| *name);
    let own: String = own
        .chain(offer.congestion.then_some(CONGESTION))
        .chain(offer.tokens.then_some(TOKENS))
        .flat_map(|name| [name, ";"])
        .collect();
    lines.push(format!("ROPEWALK {own}"));
    Reply::indented(211, "Extensions supported", lines, "End.")
}

/// A fact that a server can give, and whether it does so without being asked (RFC 3659 section 7.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedFact {
    pub name: BString,
    pub by_default: bool,
}

/// What a server offers, from its answer to FEAT. `Default` is a server without FEAT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    pub abuf: bool,
    /// Checksum algorithms with their cost, in the server's order, those that we know.
    pub checksums: Vec<(ChecksumAlgorithm, u32)>,
    /// The server has CKSM, whatever its algorithms.
    pub cksm: bool,
    pub dcau: bool,
    /// `PASV AllowDelayed;`
    pub delayed_passive: bool,
    pub epsv: bool,
    pub eprt: bool,
    pub eret: bool,
    pub esto: bool,
    /// Facts of MLST and MLSD; `None`: the server has neither.
    pub facts: Option<Vec<OfferedFact>>,
    /// GET and PUT (GFD.47).
    pub get_put: bool,
    pub mdtm: bool,
    pub mfmt: bool,
    pub mlsc: bool,
    pub mlsr: bool,
    pub parallel: bool,
    /// `REST STREAM`
    pub rest_stream: bool,
    pub sbuf: bool,
    pub size: bool,
    pub spas: bool,
    pub spor: bool,
    pub store_attributes: bool,
    pub utf8: bool,
    pub whoami: bool,
    /// Ours: MODE E with the connecting client as receiver.
    pub passive_sender: bool,
    /// Ours: `OPTS RETR Checksum=`.
    pub inline_checksum: bool,
    /// Ours: `SITE RANGES`.
    pub ranges: bool,
    /// Ours: `SITE STREAMS`, see [`crate::streams`].
    pub streams: bool,
    /// Ours: `OPTS RETR PathInfo=1;`, see [`crate::marker::PathMarker`].
    pub path_markers: bool,
    /// Ours: `OPTS RETR Congestion=`.
    pub congestion: bool,
    /// Ours: `SITE DATAKEY`, see [`crate::data_key`].
    pub data_keys: bool,
    /// Ours: `SITE PROFILE`, see [`crate::profiling`].
    pub profile: bool,
    /// All lines, without the space before them.
    pub lines: Vec<BString>,
}

/// The rest of a line that begins with a label, in any case.
fn after<'a>(line: &'a [u8], label: &str) -> Option<&'a [u8]> {
    let (head, rest) = line.split_at_checked(label.len())?;
    head.eq_ignore_ascii_case(label.as_bytes()).then_some(rest)
}

impl Features {
    /// Reads a 211 reply. As GCT does, a feature is there when a line begins with its label.
    pub fn parse(reply: &Reply) -> Self {
        let mut features = Self::default();
        if !reply.is_success() {
            return features;
        }
        for line in reply.body() {
            features.line(line.trim());
            features.lines.push(line.trim().into());
        }
        features
    }

    /// Whether a line begins with `label`.
    pub fn has(&self, label: &str) -> bool {
        self.lines.iter().any(|line| after(line, label).is_some())
    }

    pub fn checksum_cost(&self, algorithm: ChecksumAlgorithm) -> Option<u32> {
        self.checksums.iter().find(|(a, _)| *a == algorithm).map(|(_, cost)| *cost)
    }

    /// Whether this is the line of our own extensions' server.
    pub fn is_ropewalk(&self) -> bool {
        self.has("ROPEWALK")
    }

    fn line(&mut self, line: &[u8]) {
        let flags: [(&str, &mut bool); 22] = [
            ("ABUF", &mut self.abuf),
            ("CKSM", &mut self.cksm),
            ("DCAU", &mut self.dcau),
            ("PASV AllowDelayed", &mut self.delayed_passive),
            ("EPSV", &mut self.epsv),
            ("EPRT", &mut self.eprt),
            ("ERET", &mut self.eret),
            ("ESTO", &mut self.esto),
            ("GETPUT", &mut self.get_put),
            ("MDTM", &mut self.mdtm),
            ("MFMT", &mut self.mfmt),
            ("MLSC", &mut self.mlsc),
            ("MLSR", &mut self.mlsr),
            ("PARALLEL", &mut self.parallel),
            ("REST STREAM", &mut self.rest_stream),
            ("SBUF", &mut self.sbuf),
            ("SIZE", &mut self.size),
            ("SPAS", &mut self.spas),
            ("SPOR", &mut self.spor),
            ("STORATTR", &mut self.store_attributes),
            ("UTF8", &mut self.utf8),
            ("WHOAMI", &mut self.whoami),
        ];
        for (label, flag) in flags {
            *flag |= after(line, label).is_some();
        }
        if let Some(sums) = after(line, "CKSM") {
            self.checksums.extend(sums.split(|b| b";, ".contains(b)).filter_map(checksum));
        }
        if let Some(facts) = after(line, "MLST") {
            let offered = self.facts.get_or_insert_default();
            offered.extend(facts.split_str(";").filter_map(|fact| offered_fact(fact.trim().as_bstr())));
        }
        if let Some(own) = after(line, "ROPEWALK") {
            for extension in own.split_str(";").map(|e| e.trim()) {
                match extension {
                    b"PassiveSender" => self.passive_sender = true,
                    b"InlineChecksum" => self.inline_checksum = true,
                    b"Ranges" => self.ranges = true,
                    b"Streams" => self.streams = true,
                    b"PathMarkers" => self.path_markers = true,
                    b"Congestion" => self.congestion = true,
                    b"DataKey" => self.data_keys = true,
                    b"Profile" => self.profile = true,
                    _ => {}
                }
            }
        }
    }
}

/// `MD5:10`; other servers list names only, with spaces or commas.
fn checksum(text: &[u8]) -> Option<(ChecksumAlgorithm, u32)> {
    const UNKNOWN_COST: u32 = 10;
    let (name, cost) = text.trim().split_once_str(":").unwrap_or((text.trim(), b""));
    let algorithm = name.to_str().ok()?.parse().ok()?;
    Some((algorithm, cost.to_str().ok().and_then(|cost| cost.parse().ok()).unwrap_or(UNKNOWN_COST)))
}

fn offered_fact(text: &BStr) -> Option<OfferedFact> {
    let (name, by_default) = match text.strip_suffix(b"*") {
        Some(name) => (name, true),
        None => (text.as_bytes(), false),
    };
    (!name.is_empty()).then(|| OfferedFact { name: name.into(), by_default })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offered_lines() {
        let offer = |logged_in| Offer {
            logged_in,
            congestion: false,
            gssapi: false,
            tls: false,
            data_keys: false,
            tokens: false,
            profiling: false,
        };
        let before = reply(offer(false), |_| true).to_bytes();
        let lines: Vec<&[u8]> = before.lines().collect();
        assert_eq!(lines[0], b"211-Extensions supported");
        assert_eq!(lines[1], b" STORATTR");
        assert_eq!(
            lines[lines.len() - 2],
            b" ROPEWALK PassiveSender;InlineChecksum;Ranges;Streams;PathMarkers;"
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
            let without = Features::parse(&reply(offer(true), |verb| verb != gone));
            assert!(!without.streams && without.path_markers && !without.congestion, "{gone}");
        }
    }

    #[test]
    fn own_features_come_back() {
        let offer = Offer {
            logged_in: true,
            congestion: true,
            gssapi: false,
            tls: false,
            data_keys: true,
            tokens: true,
            profiling: true,
        };
        let features = Features::parse(&reply(offer, |_| true));
        assert_eq!(features.checksums, CHECKSUMS);
        assert!(features.cksm && features.dcau && features.parallel && features.rest_stream && features.sbuf);
        assert!(features.eret && features.esto && features.spas && features.spor && features.delayed_passive);
        assert!(
            features.passive_sender && features.inline_checksum && features.ranges && features.is_ropewalk()
        );
        assert!(features.streams && features.path_markers && features.congestion && features.data_keys);
        assert!(features.profile);
        for without in [Offer { profiling: false, ..offer }, Offer { logged_in: false, ..offer }] {
            assert!(!Features::parse(&reply(without, |_| true)).profile);
        }
        let tokens = |offer| reply(offer, |_| true).to_bytes().find(b"Tokens;").is_some();
        assert!(tokens(offer) && !tokens(Offer { tokens: false, ..offer }));
        let clear = Offer { data_keys: false, ..offer };
        assert!(!Features::parse(&reply(clear, |_| true)).data_keys);
        assert!(!Features::parse(&reply(offer, |verb| verb != "SITE DATAKEY")).data_keys);
        assert!(!features.get_put && !features.epsv);
        let facts = features.facts.unwrap_or_default();
        assert_eq!(facts.len(), 13);
        assert_eq!(facts[0], OfferedFact { name: "Type".into(), by_default: true });
        assert_eq!(facts[4], OfferedFact { name: "Charset".into(), by_default: false });
    }

    #[test]
    fn other_servers() {
        let plain = Reply::indented(
            211,
            "Features:",
            ["rest stream", " MLST size*;", "AUTH TLS;", "PASV", "CKSM MD5", "ROPEWALK Other;"],
            "End",
        );
        let features = Features::parse(&plain);
        assert!(
            features.rest_stream && features.has("AUTH TLS") && !features.delayed_passive && !features.ranges
        );
        assert_eq!(features.checksum_cost(ChecksumAlgorithm::Md5), Some(10));
        assert_eq!(features.facts.map(|f| f.len()), Some(1));
        assert_eq!(Features::parse(&Reply::new(500, "FEAT?")), Features::default());
        assert_eq!(Features::parse(&Reply::new(211, "no-features")), Features::default());
    }
}
