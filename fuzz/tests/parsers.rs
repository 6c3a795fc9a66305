//! All parsers of bytes that a peer sends.

#![allow(clippy::unwrap_used)]

use bstr::ByteSlice;
use ropewalk_fuzz::{Decisions, ITERATIONS, soup};
use ropewalk_glob::Pattern;
use ropewalk_protocol::ascii::{FromWire, ToWire};
use ropewalk_protocol::client::answer;
use ropewalk_protocol::command::Command;
use ropewalk_protocol::error_class::ErrorClass;
use ropewalk_protocol::facts::{Entry, Fact, FactSet, decode, encode};
use ropewalk_protocol::feature::Features;
use ropewalk_protocol::line::{Ending, LineDecoder};
use ropewalk_protocol::marker::Marker;
use ropewalk_protocol::mode_e::Header;
use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::range::RangeSet;
use ropewalk_protocol::reply::{ParserLimits, Reply, ReplyParser};
use ropewalk_protocol::stack::StackSpec;
use ropewalk_protocol::url::{Target, Url};
use ropewalk_protocol::{date, host_port, listing};

const COMMAND_WORDS: &[&[u8]] = &[
    b"RETR ",
    b"STOR ",
    b"ERET P ",
    b"ESTO A ",
    b"OPTS RETR ",
    b"OPTS MLST ",
    b"OPTS PASV ",
    b"OPTS CKSM ",
    b"OPTS MLSR ",
    b"SITE ",
    b"CHMOD ",
    b"CLIENTINFO ",
    b"SCITAG ",
    b"UTIME ",
    b"STORATTR ",
    b"SYMLINK ",
    b"TRNC ",
    b"SBUF ",
    b"RANGES ",
    b"STREAMS ",
    b"UPLOAD BEGIN a size=5;UNIX.mode=0644; f",
    b"UPLOAD COMMIT a checksum.crc32c=00;",
    b"ESTO U ",
    b"Congestion=bbr;",
    b"PathInfo=1;",
    b"Nodes=2;",
    b"CKSM ",
    b"SCKS ",
    b"MD5 ",
    b"CRC32C ",
    b"XXH3-128 ",
    b"REST ",
    b"PORT ",
    b"EPRT ",
    b"EPSV ",
    b"SPOR ",
    b"SPAS ",
    b"DCAU ",
    b"DCSC ",
    b"PROT ",
    b"PBSZ ",
    b"TYPE ",
    b"MODE ",
    b"STRU ",
    b"ALLO ",
    b"MFMT ",
    b"TREV ",
    b"PERF ",
    b"HELP ",
    b"LANG ",
    b"USER ",
    b"PASS ",
    b"AUTH ",
    b"MIC ",
    b"127,0,0,1,179,129",
    b"|2|::1|6446|",
    b"Parallelism=4,4,4;",
    b"StripeLayout=Blocked;",
    b"BlockSize=1;",
    b"markers=5;",
    b"Checksum=;",
    b"AllowDelayed=1;",
    b"modify=20010203040506;",
    b"checksum.md5=ab;",
    b"20010203040506 ",
    b"0-5,7-9",
    b"18446744073709551615 ",
    b"-1 ",
    b" /a b",
    b"name=\"x\" ",
    b"\xff",
    b"\"",
    b"=",
    b";",
    b" ",
];

/// A parsed command prints to a line with the same meaning.
#[test]
fn command() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let line = soup(input, COMMAND_WORDS);
        if let Ok(command) = Command::parse(&line) {
            match command.to_line() {
                Ok(printed) => assert_eq!(Command::parse(&printed), Ok(command)),
                Err(error) => assert!(matches!(error.byte, b'\n' | 0)),
            }
        }
    });
}

const REPLY_WORDS: &[&[u8]] = &[
    b"\r\n",
    b"\n",
    b"220 ",
    b"220-",
    b"211-Extensions\r\n",
    b"211 End.\r\n",
    b" MDTM\r\n",
    b"421 ",
    b"226-",
    b"226 ",
    b"226 \r\n",
    b"112-Perf Marker\r\n",
    b"112 End.\r\n",
    b"999 ",
    b"\xff",
    b"250-",
    b"250 ",
    b"600-",
    b"CKSM MD5:10;X:y;",
    b" MLST Type*;Size;\r\n",
    b"GlobusError: v=1 c=PATH_NOT_FOUND",
    b"229-",
    b"229 End\r\n",
    b"227 ",
    b"127,0,0,1,1,1",
    b"(|||5|)",
    b"257 \"/a\"\"b\" x",
    b"213 ",
    b"Checksum: CRC32C 0a1b2c3d",
];

/// Replies are unchanged after printing and parsing, limits are respected, input may be split
/// anywhere, and functions that read replies accept any.
const STACK_WORDS: &[&[u8]] = &[
    b"tcp",
    b"gsi",
    b"udt",
    b"rate",
    b"popen:argv=#",
    b"sndbuf=",
    b":",
    b";",
    b",",
    b"=",
    b"default",
    b"\xff",
];

/// A parsed stack prints to something that parses to the same stack.
#[test]
fn stack() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        if let Ok(Some(stack)) = StackSpec::parse(&soup(input, STACK_WORDS)) {
            assert!(!stack.drivers().is_empty());
            assert_eq!(StackSpec::parse(&stack.to_bytes()), Ok(Some(stack)));
        }
    });
}

#[test]
fn reply() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let (cut, line_limit) = (1 + choose.below(40), 20 + choose.below(200));
        let limits = ParserLimits { lines: 5, bytes: 300, stray: 50 };
        let wire = soup(choose.0, REPLY_WORDS);
        let read = |cut: usize| {
            let (mut lines, mut parser) =
                (LineDecoder::new(Ending::Lf, line_limit), ReplyParser::new(limits));
            let mut replies = Vec::new();
            for chunk in wire.chunks(cut) {
                lines.push(chunk);
                loop {
                    match lines.next_line() {
                        Ok(Some(line)) => match parser.line(line) {
                            Ok(reply) => replies.extend(reply),
                            Err(error) => return (replies, Some(error.to_string())),
                        },
                        Ok(None) => break,
                        Err(error) => return (replies, Some(error.to_string())),
                    }
                }
                assert!(lines.buffered() <= line_limit + 1 + cut);
            }
            (replies, None)
        };
        let (replies, error) = read(cut);
        assert_eq!(read(wire.len().max(1)), (replies.clone(), error));
        for reply in replies {
            assert!(reply.lines().len() <= limits.lines);
            let mut again = ReplyParser::default();
            let bytes = reply.to_bytes();
            let parsed: Vec<Reply> = bytes.lines().filter_map(|line| again.line(line).unwrap()).collect();
            assert_eq!(parsed, std::slice::from_ref(&reply));
            read_answers(&reply);
        }
    });
}

fn read_answers(reply: &Reply) {
    let _ = answer::address(reply, std::net::Ipv4Addr::LOCALHOST.into());
    let _ = (answer::size(reply), answer::modified(reply), answer::path(reply), answer::ranges(reply));
    let _ = (answer::checksum(reply), answer::inline_checksum(reply), answer::entry(reply));
    let _ = (ErrorClass::of(reply), Features::new(reply.body()));
}

const MARKER_WORDS: &[&[u8]] = &[
    b"Timestamp:",
    b"Stripe Index:",
    b"Stripe Bytes Transferred:",
    b"Total Stripe Count:",
    b"Bytes Processed:",
    b"|",
    b"Range Marker ",
    b"Path ",
    b"rtt=1 minrtt=2 ",
    b"retrans=3 sent=4 ",
    b"cwnd=5 streams=6 ",
    b"limited=rwnd",
    b"0-5",
    b",",
    b"18446744073709551615",
    b"1795289146.2",
    b" ",
    b"\xff",
    b"-",
];

/// A parsed marker prints to a reply with the same meaning.
#[test]
fn marker() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let code = 110 + choose.below(6) as u16;
        let text = soup(choose.0, MARKER_WORDS);
        let mut lines: Vec<_> = text.split_str("|").map(<[u8]>::to_vec).collect();
        if code == 112 || code == 113 {
            lines.insert(0, b"Marker".to_vec());
            lines.push(b"End.".to_vec());
        }
        if let Some(Ok(marker)) = Marker::from_reply(&Reply::coded(code, lines)) {
            assert_eq!(Marker::from_reply(&marker.to_reply()), Some(Ok(marker)));
        }
    });
}

/// A set of ranges behaves like a table with one flag per byte.
#[test]
fn ranges() {
    const SIZE: usize = 64;
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let (mut set, mut flags) = (RangeSet::new(), [false; SIZE]);
        while !choose.is_empty() {
            let (insert, a, b) = (choose.below(2) == 0, choose.below(SIZE), choose.below(SIZE));
            let range = a as u64..b as u64;
            if insert {
                set.insert(range);
            } else {
                set.remove(range);
            }
            flags[a.min(b)..b].fill(insert);
            assert!((0..SIZE).all(|at| set.contains(at as u64..at as u64 + 1) == flags[at]));
            assert_eq!(set.len(), flags.iter().filter(|f| **f).count() as u64);
        }
        if !set.is_empty() {
            assert_eq!(RangeSet::parse(set.to_string().as_bytes()), Ok(set));
        }
    });
}

/// Parsed ranges print to text that parses to the same set.
#[test]
fn ranges_in_text() {
    const WORDS: &[&[u8]] =
        &[b"-", b",", b"0", b"5", b"99", b"18446744073709551615", b"18446744073709551616", b" ", b"\xff"];
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, WORDS);
        if let Ok(set) = RangeSet::parse(&text)
            && !set.is_empty()
        {
            assert_eq!(RangeSet::parse(set.to_string().as_bytes()), Ok(set));
        }
    });
}

const FACT_WORDS: &[&[u8]] = &[
    b"Type=",
    b"file;",
    b"dir;",
    b"cdir;",
    b"slink;",
    b"OS.unix=slink:/x;",
    b"OS.unix=chr-1/2;",
    b"Modify=",
    b"20010203040506;",
    b"Size=",
    b"Perm=",
    b"UNIX.mode=",
    b"0644;",
    b"UNIX.owner=",
    b"UNIX.uid=",
    b"UNIX.group=",
    b"UNIX.gid=",
    b"Unique=",
    b"fe00-99c50d;",
    b"UNIX.slink=",
    b"X.count=",
    b"Error=",
    b"%20",
    b"%",
    b";",
    b"=",
    b" ",
    b"\xff",
    b"18446744073709551615;",
];

/// A parsed entry prints to a line that prints to the same line again; values and dates are
/// preserved.
#[test]
fn facts() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let line = soup(input, FACT_WORDS);
        let facts: FactSet = Fact::ALL.into_iter().collect();
        if let Ok(entry) = Entry::parse(&line) {
            let mut printed = Vec::new();
            entry.print(facts, &mut printed);
            let again = Entry::parse(&printed).unwrap();
            assert_eq!(again.name, entry.name);
            let mut twice = Vec::new();
            again.print(facts, &mut twice);
            assert_eq!(twice.as_bstr(), printed.as_bstr());
        }
        assert_eq!(decode(encode(&line).as_bytes()), line);
        if let Ok(seconds) = date::parse(&line) {
            assert_eq!(date::parse(date::Stamp(seconds).to_string().as_bytes()), Ok(seconds));
        }
    });
}

const LISTING_WORDS: &[&[u8]] = &[
    b"-rw-r--r-- ",
    b"drwxr-sr-t ",
    b"lrwxrwxrwx ",
    b"crw-rw-rw- ",
    b"  1 ",
    b" root ",
    b"    root ",
    b" 4096 ",
    b" Nov ",
    b" 21 ",
    b"10:00 ",
    b" 2001 ",
    b"2001-02-03 ",
    b"04:05:06 ",
    b"name",
    b" -> ",
    b"total 5",
    b"\r\n",
    b"1, 3 ",
    b" ",
    b"\xff",
    b"Feb 29 ",
    b"-rw-r--r--   1     root     root            6 Feb  3 04:05 a b\r\n",
];

/// The name of an entry is the end of its line, and is preserved by printing and parsing.
#[test]
fn long_listing() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let now = [None, Some(0), Some(1_795_288_659), Some(i64::MAX), Some(i64::MIN)][choose.below(5)];
        let data = soup(choose.0, LISTING_WORDS);
        for line in listing::lines(&data) {
            let Some(entry) = listing::parse_long(line, now) else {
                continue;
            };
            assert!(entry.target.is_some() || line.ends_with(&entry.name));
            let mut printed = Vec::new();
            listing::print_long(&entry, now.unwrap_or_default(), &mut printed);
            assert!(printed.contains_str(listing::on_one_line(&entry.name)));
        }
    });
}

const URL_WORDS: &[&[u8]] = &[
    b"gsiftp://",
    b"ftp://",
    b"file://",
    b"file:/",
    b"sshftp://",
    b"user:pass@",
    b"[::1]",
    b"[fe80::1%25eth0]",
    b"[",
    b"]",
    b"host",
    b"127.0.0.1",
    b":2811",
    b":99999",
    b"/",
    b"%2F",
    b"%00",
    b"%0d",
    b"%",
    b"@",
    b":",
    b"/~/",
    b";type=i",
    b"\xc3\xa9",
    b"\xff",
];

/// A parsed URL prints to one with the same meaning; the password appears nowhere else.
#[test]
fn url() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, URL_WORDS).to_str_lossy().into_owned();
        let _ = (Target::parse(&text), Target::looks_like_url(&text));
        if let Ok(url) = Url::parse(&text) {
            assert_eq!(Url::parse(&url.to_string_with_password()).as_ref(), Ok(&url));
            assert_eq!(Url::parse(&url.to_string()), Ok(Url { password: None, ..url.clone() }));
            assert!(url.path.starts_with(b"/") && !url.path.contains_str("\n") && !url.path.contains(&0));
        }
    });
}

const ADDRESS_WORDS: &[&[u8]] = &[
    b"127,0,0,1,179,129",
    b"|1|127.0.0.1|5|",
    b"|2|::1|5|",
    b"(|||6446|)",
    b"(|2|::1|6446|)",
    b"Entering Passive Mode (",
    b")",
    b".",
    b",",
    b"|",
    b" ",
    b"255",
    b"256",
    b"0",
    b"65535",
    b"65536",
    b"!",
    b"\xff",
    b"1",
    b"2",
    b"::ffff:1.2.3.4",
];

/// Parsed addresses print to ones with the same meaning.
#[test]
fn addresses() {
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let text = soup(input, ADDRESS_WORDS);
        if let Ok(address) = host_port::parse_classic(&text) {
            assert_eq!(
                host_port::parse_classic(host_port::Classic(address).to_string().as_bytes()),
                Ok(address)
            );
        }
        if let Ok(address) = host_port::parse_extended(&text) {
            assert_eq!(
                host_port::parse_extended(host_port::Extended(address).to_string().as_bytes()),
                Ok(address)
            );
        }
        if let Ok(addresses) = host_port::parse_list(&text) {
            assert_eq!(host_port::parse_list(host_port::print_list(&addresses).as_bytes()), Ok(addresses));
        }
        if let Ok(address) = host_port::parse_pasv_reply(&text) {
            assert_ne!(address.port(), 0);
        }
        if let Ok((_, port)) = host_port::parse_epsv_reply(&text) {
            assert_ne!(port, 0);
        }
        let _ = host_port::parse_spas_lines(text.lines());
    });
}

/// A path is normal for any input, and does not leave its root.
#[test]
fn path() {
    const WORDS: &[&[u8]] = &[b"/", b"..", b".", b"/../", b"//", b"a", b"\xff", b" ", b"~"];
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let n = choose.below(20);
        let (base, given) = (soup(&choose.bytes(n), WORDS), soup(choose.0, WORDS));
        let Ok(base) = VirtualPath::parse(&base) else {
            return;
        };
        if let Ok(path) = base.join(&given) {
            assert_eq!(VirtualPath::parse(path.as_bytes()).as_ref(), Ok(&path));
            assert!(path.components().all(|c| !matches!(c.as_bytes(), b"" | b"." | b"..")));
            assert_eq!(path.beneath(&base).relative_to(&base), Some(path));
        }
    });
}

/// Text may be split anywhere, and is unchanged after encoding and decoding.
#[test]
fn ascii() {
    const WORDS: &[&[u8]] = &[b"\r", b"\n", b"\r\n", b"\xff"];
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let cut = 1 + choose.below(10);
        let text = soup(choose.0, WORDS);
        let (mut wire, mut back, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in text.chunks(cut) {
            ToWire.convert(chunk, &mut wire);
        }
        let mut state = FromWire::default();
        for chunk in wire.chunks(cut) {
            state.convert(chunk, &mut back);
        }
        state.finish(&mut back);
        assert_eq!(back.as_bstr(), text.as_bstr());
        ToWire.convert(&text, &mut whole);
        assert_eq!(whole, wire);
    });
}

/// Any 17 bytes are a header, and encode to the same bytes.
#[test]
fn header() {
    bolero::check!().with_iterations(ITERATIONS).with_type::<[u8; Header::LEN]>().for_each(|bytes| {
        assert_eq!(Header::from_bytes(*bytes).to_bytes(), *bytes);
    });
}

#[test]
fn patterns() {
    const WORDS: &[&[u8]] = &[b"*", b"**/", b"?", b"[", b"[!a-", b"]", b"{", b",", b"}", b"\\", b"/", b"a"];
    bolero::check!().with_iterations(ITERATIONS).for_each(|input: &[u8]| {
        let mut choose = Decisions(input);
        let name = choose.bytes(20);
        let pattern = soup(choose.0, WORDS);
        Pattern::shell(&pattern).matches(&name);
        if let Ok(pattern) = Pattern::path(&pattern) {
            pattern.matches(&name);
        }
        let escaped: Vec<u8> = name.iter().flat_map(|&byte| [b'\\', byte]).collect();
        assert!(Pattern::shell(&escaped).matches(&name));
        assert!(Pattern::path(&escaped).unwrap().matches(&name));
    });
}
