//! OPTS (RFC 2389 section 4, GFD.20 section 3.5): parsing and printing of its arguments.

use bstr::ByteSlice;

use crate::command::arguments::{Arguments, number, number32};
use crate::command::print::Line;
use crate::command::{ChecksumAlgorithm, CommandError, parse};
use crate::congestion::{self, CongestionName};
use crate::facts::FactSet;

/// The request of an OPTS command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Options {
    Retr(RetrOptions),
    /// OPTS PASV, EPSV or SPAS `AllowDelayed=0|1;`, which are equivalent.
    Passive {
        delayed: bool,
    },
    /// OPTS MLST, MLSD or MLSR `Type;Size;`: the facts that listings show. The three commands share
    /// one list. Unknown names are ignored.
    Facts(FactSet),
    Mlsr(RecursionOptions),
    /// OPTS CKSM `markers=n;`: seconds between 113 markers, 0 for none.
    Checksum {
        markers: u32,
    },
    /// OPTS STOR `Replace=0|1;`, a Ropewalk extension: whether an upload replaces an existing file
    /// when it is complete, as a rename does. This also replaces a symbolic link, or a file without
    /// write permission.
    Store {
        replaces: bool,
    },
    /// OPTS UTF8 ON. It has no effect, because paths are raw bytes. There is no OFF.
    Utf8,
}

/// OPTS RETR. Fields that are `None` do not change; at least one field is `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetrOptions {
    pub layout: Option<Layout>,
    /// Block size of the blocked layout, in bytes.
    pub block_size: Option<u64>,
    /// Number of streams at the start, at least 1.
    pub parallelism: Option<u32>,
    /// Seconds between 112 markers, 0 for none.
    pub markers: Option<u32>,
    /// Ropewalk extension: `Checksum=CRC32C;`, or `Checksum=;` to disable it. Only combinable
    /// algorithms are accepted.
    pub checksum: Option<Option<ChecksumAlgorithm>>,
    /// Ropewalk extension: `Congestion=bbr;` for later data connections, or `Congestion=default;`
    /// for the server's default.
    pub congestion: Option<Option<CongestionName>>,
    /// Ropewalk extension: `PathInfo=1;`. In MODE E the server then sends 115 markers in addition
    /// to 112 markers: about the path if it sends, and about its storage in both directions.
    pub path_info: Option<bool>,
    /// Ropewalk extension: `Resend=1;`. In MODE E the server may send the last blocks of slow
    /// streams again on others.
    pub resend: Option<bool>,
    /// Ropewalk extension: `Nodes=N;`. In MODE E the server then reports by a 115 marker that a
    /// data channel over up to `N` data nodes which is made now would be better than the present
    /// one, because nodes have joined. 0: it reports nothing.
    pub nodes: Option<u32>,
}

/// The value of `StripeLayout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    Partitioned,
    Blocked,
}

/// OPTS MLSR. Fields that are `None` do not change; at least one field is `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecursionOptions {
    /// `onerror=continue` or `fail`.
    pub continue_on_error: Option<bool>,
    /// `traversesymboliclinks=true` or `false`.
    pub traverse_links: Option<bool>,
}

impl Options {
    pub(crate) fn parse(mut args: Arguments<'_>) -> Result<Self, CommandError> {
        let kind = args.word()?;
        let text = args.optional_text().ok_or(CommandError::Options)?;
        match kind.to_ascii_uppercase().as_slice() {
            b"RETR" => retrieve(&text).map(Self::Retr),
            b"PASV" | b"EPSV" | b"SPAS" => {
                switch(&text, b"AllowDelayed").map(|delayed| Self::Passive { delayed })
            }
            b"MLST" | b"MLSD" => Some(Self::Facts(facts(&text))),
            b"MLSR" if text.contains(&b'=') => recursion(&text).map(Self::Mlsr),
            b"MLSR" => Some(Self::Facts(facts(&text))),
            b"CKSM" => markers(&text).map(|markers| Self::Checksum { markers }),
            b"UTF8" if text.trim().eq_ignore_ascii_case(b"ON") => Some(Self::Utf8),
            b"STOR" => switch(&text, b"Replace").map(|replaces| Self::Store { replaces }),
            _ => None,
        }
        .ok_or(CommandError::Options)
    }

    pub(crate) fn print(&self, line: &mut Line) {
        match self {
            Self::Retr(options) => {
                line.word("RETR");
                line.word(options.assignments());
            }
            Self::Passive { delayed } => {
                line.word("PASV");
                line.word(format!("AllowDelayed={};", u8::from(*delayed)));
            }
            Self::Facts(facts) => {
                line.word("MLST");
                let names: String = facts.iter().flat_map(|fact| [fact.name(), ";"]).collect();
                // The `;` is required even if no fact is selected.
                line.word(if names.is_empty() { ";" } else { &names });
            }
            Self::Mlsr(options) => {
                line.word("MLSR");
                line.word(options.assignments());
            }
            Self::Checksum { markers } => {
                line.word("CKSM");
                line.word(format!("markers={markers};"));
            }
            Self::Utf8 => {
                line.word("UTF8");
                line.word("ON");
            }
            Self::Store { replaces } => {
                line.word("STOR");
                line.word(format!("Replace={};", u8::from(*replaces)));
            }
        }
    }
}

impl RetrOptions {
    fn assignments(&self) -> String {
        let mut text = String::new();
        match self.layout {
            Some(Layout::Partitioned) => text.push_str("StripeLayout=Partitioned;"),
            Some(Layout::Blocked) => text.push_str("StripeLayout=Blocked;"),
            None => {}
        }
        if let Some(n) = self.block_size {
            text.push_str(&format!("BlockSize={n};"));
        }
        if let Some(n) = self.parallelism {
            text.push_str(&format!("Parallelism={n},{n},{n};"));
        }
        if let Some(n) = self.markers {
            text.push_str(&format!("markers={n};"));
        }
        if let Some(algorithm) = self.checksum {
            text.push_str(&format!("Checksum={};", algorithm.map_or("", ChecksumAlgorithm::name)));
        }
        match self.congestion {
            Some(Some(name)) => text.push_str(&format!("Congestion={name};")),
            Some(None) => text.push_str("Congestion=default;"),
            None => {}
        }
        if let Some(on) = self.path_info {
            text.push_str(&format!("PathInfo={};", u8::from(on)));
        }
        if let Some(on) = self.resend {
            text.push_str(&format!("Resend={};", u8::from(on)));
        }
        if let Some(most) = self.nodes {
            text.push_str(&format!("Nodes={most};"));
        }
        text
    }
}

impl RecursionOptions {
    fn assignments(&self) -> String {
        let mut text = String::new();
        if let Some(go_on) = self.continue_on_error {
            text.push_str(if go_on { "onerror=continue;" } else { "onerror=fail;" });
        }
        if let Some(traverse) = self.traverse_links {
            text.push_str(&format!("traversesymboliclinks={traverse};"));
        }
        text
    }
}

/// Parses `Key=value;...`, and returns the keys in lower case. Every assignment has to end with
/// `;`.
fn assignments(text: &[u8]) -> Option<Vec<(Vec<u8>, &[u8])>> {
    let text = text.trim().strip_suffix(b";")?;
    text.split_str(";")
        .map(|assignment| {
            let (key, value) = assignment.trim().split_once_str("=")?;
            Some((key.to_ascii_lowercase(), value))
        })
        .collect()
}

fn retrieve(text: &[u8]) -> Option<RetrOptions> {
    let mut options = RetrOptions::default();
    for (key, value) in assignments(text)? {
        match key.as_slice() {
            b"parallelism" => {
                // The value is start, minimum, maximum. Only the start is used.
                let mut numbers = value.split_str(",");
                options.parallelism = Some(number32(numbers.next()?)?.max(1));
            }
            b"stripelayout" => {
                options.layout = Some(match value.to_ascii_lowercase().as_slice() {
                    b"partitioned" => Layout::Partitioned,
                    b"blocked" => Layout::Blocked,
                    _ => return None,
                });
            }
            b"blocksize" => options.block_size = Some(number(value)?),
            b"markers" => options.markers = Some(number32(value)?),
            b"checksum" if value.is_empty() => options.checksum = Some(None),
            b"checksum" => {
                let algorithm = parse::algorithm(value).ok().filter(|a| a.is_combinable())?;
                options.checksum = Some(Some(algorithm));
            }
            b"congestion" if value.eq_ignore_ascii_case(congestion::DEFAULT) => {
                options.congestion = Some(None);
            }
            b"congestion" => options.congestion = Some(Some(CongestionName::parse(value).ok()?)),
            b"resend" => options.resend = Some(number(value)? != 0),
            b"pathinfo" => options.path_info = Some(number(value)? != 0),
            b"nodes" => options.nodes = Some(number32(value)?),
            _ => return None,
        }
    }
    Some(options)
}

/// Parses `NAME=0|1;`. Like GCT, this accepts a missing `;`.
fn switch(text: &[u8], name: &[u8]) -> Option<bool> {
    let text = text.trim();
    let (key, value) = text.strip_suffix(b";").unwrap_or(text).split_once_str("=")?;
    let number = number(value)?;
    key.eq_ignore_ascii_case(name).then_some(number != 0)
}

fn facts(text: &[u8]) -> FactSet {
    let names = text.split_str(";").map(|name| name.trim());
    FactSet::from_names(names.map(|name| name.strip_suffix(b"*").unwrap_or(name)))
}

fn recursion(text: &[u8]) -> Option<RecursionOptions> {
    let mut options = RecursionOptions::default();
    for (key, value) in assignments(text)? {
        let value = value.to_ascii_lowercase();
        match (key.as_slice(), value.as_slice()) {
            (b"onerror", b"continue") => options.continue_on_error = Some(true),
            (b"onerror", b"fail") => options.continue_on_error = Some(false),
            (b"traversesymboliclinks", b"true") => options.traverse_links = Some(true),
            (b"traversesymboliclinks", b"false") => options.traverse_links = Some(false),
            _ => return None,
        }
    }
    Some(options)
}

fn markers(text: &[u8]) -> Option<u32> {
    let mut seconds = None;
    for (key, value) in assignments(text)? {
        if key != b"markers" {
            return None;
        }
        seconds = Some(number32(value)?);
    }
    seconds
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::command::Command;

    fn parse(text: &str) -> Result<Command, CommandError> {
        Command::parse(text.as_bytes())
    }

    fn retr(options: RetrOptions) -> Result<Command, CommandError> {
        Ok(Command::Opts(Options::Retr(options)))
    }

    #[test]
    fn opts_retr_accepts_only_valid_assignments() {
        let parallel = RetrOptions { parallelism: Some(4), ..RetrOptions::default() };
        for line in
            ["OPTS RETR Parallelism=4,4,4;", "opts retr parallelism=4;", "OPTS RETR Parallelism=4,x,-1;"]
        {
            assert_eq!(parse(line), retr(parallel), "{line}");
        }
        assert_eq!(
            parse("OPTS RETR Parallelism=0;"),
            retr(RetrOptions { parallelism: Some(1), ..RetrOptions::default() })
        );
        assert_eq!(
            parse("OPTS RETR StripeLayout=Blocked;BlockSize=65536; Parallelism=4,4,4;"),
            retr(RetrOptions { layout: Some(Layout::Blocked), block_size: Some(65536), ..parallel })
        );
        assert_eq!(
            parse("OPTS RETR Checksum=crc32c;"),
            retr(RetrOptions { checksum: Some(Some(ChecksumAlgorithm::Crc32c)), ..RetrOptions::default() })
        );
        assert_eq!(
            parse("OPTS RETR Checksum=;"),
            retr(RetrOptions { checksum: Some(None), ..RetrOptions::default() })
        );
        let congestion = |name: Option<&str>| {
            let name = name.map(|name| name.parse().unwrap());
            retr(RetrOptions { congestion: Some(name), ..RetrOptions::default() })
        };
        assert_eq!(parse("OPTS RETR Congestion=BBR;"), congestion(Some("bbr")));
        assert_eq!(parse("OPTS RETR congestion=Default;"), congestion(None));
        for (line, on) in [("OPTS RETR Resend=1;", true), ("OPTS RETR resend=0;", false)] {
            assert_eq!(parse(line), retr(RetrOptions { resend: Some(on), ..RetrOptions::default() }));
        }
        for (line, on) in [("OPTS RETR PathInfo=1;", true), ("OPTS RETR pathinfo=0;", false)] {
            assert_eq!(parse(line), retr(RetrOptions { path_info: Some(on), ..RetrOptions::default() }));
        }
        for (line, most) in [("OPTS RETR Nodes=64;", 64), ("OPTS RETR nodes=0;", 0)] {
            assert_eq!(parse(line), retr(RetrOptions { nodes: Some(most), ..RetrOptions::default() }));
        }
        for arguments in [
            "RETR",
            "RETR Nodes=all;",
            "RETR Congestion=;",
            "RETR Congestion=a b;",
            "RETR Congestion=a_name_that_is_too_long;",
            "RETR PathInfo=yes;",
            "RETR ;",
            "RETR Parallelism=4,4,4",
            "RETR Parallelism=x;",
            "RETR Parallelism=-4,4,4;",
            "RETR Parallelism=99999999999;",
            "RETR StripeLayout=Foo;",
            "RETR BlockSize=x;",
            "RETR foo=1;",
            "RETR Checksum=MD5;",
            "RETR Checksum=foo;",
            "STOR x",
            "UTF8",
            "UTF8 OFF",
            "FOO",
        ] {
            assert_eq!(parse(&format!("OPTS {arguments}")), Err(CommandError::Options), "{arguments}");
        }
        assert_eq!(parse("OPTS"), Err(CommandError::Syntax));
    }

    #[test]
    fn opts_other_than_retr_are_parsed() {
        assert_eq!(parse("OPTS UTF8 ON"), Ok(Command::Opts(Options::Utf8)));
        assert_eq!(parse("opts utf8 on"), Ok(Command::Opts(Options::Utf8)));
        let passive = |delayed| Ok(Command::Opts(Options::Passive { delayed }));
        assert_eq!(parse("OPTS PASV AllowDelayed=1;"), passive(true));
        assert_eq!(parse("OPTS PASV AllowDelayed=1"), passive(true));
        assert_eq!(parse("OPTS EPSV allowdelayed=0;"), passive(false));
        assert_eq!(parse("OPTS SPAS AllowDelayed=x;"), Err(CommandError::Options));
        assert_eq!(parse("OPTS SPAS Foo=1;"), Err(CommandError::Options));

        let facts = |names: &[&str]| Ok(Command::Opts(Options::Facts(FactSet::from_names(names))));
        assert_eq!(parse("OPTS MLST Type;Size*;"), facts(&["Type", "Size"]));
        assert_eq!(parse("OPTS MLSD type"), facts(&["Type"]));
        assert_eq!(parse("OPTS MLST foo;"), facts(&[]));
        assert_eq!(parse("OPTS MLSR ;"), facts(&[]));
        assert_eq!(parse("OPTS MLST "), Err(CommandError::Options));
        assert_eq!(parse("OPTS MLSC Type;"), Err(CommandError::Options));

        let options = RecursionOptions { continue_on_error: Some(true), traverse_links: Some(false) };
        assert_eq!(
            parse("OPTS MLSR onerror=continue;traversesymboliclinks=false;"),
            Ok(Command::Opts(Options::Mlsr(options)))
        );
        assert_eq!(parse("OPTS MLSR onerror=x;"), Err(CommandError::Options));

        assert_eq!(parse("OPTS CKSM markers=5;"), Ok(Command::Opts(Options::Checksum { markers: 5 })));
        assert_eq!(parse("OPTS CKSM markers=x;"), Err(CommandError::Options));
        assert_eq!(parse("OPTS CKSM foo=5;"), Err(CommandError::Options));
    }
}
