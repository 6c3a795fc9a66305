//! Values that a client reads from the replies to its commands.

use std::net::{IpAddr, SocketAddr};

use bstr::{BStr, BString, ByteSlice};

use crate::command::ChecksumAlgorithm;
use crate::date;
use crate::facts::Entry;
use crate::host_port::{self, HostPortError};
use crate::range::RangeSet;
use crate::reply::Reply;

/// Begins the line of a final reply that states the length of a listing in bytes. This is a
/// Ropewalk extension.
pub(crate) const LISTING: &str = "Listing: ";

/// Returns the address in a reply to PASV or EPSV (227, 229), or in the preliminary reply of a
/// delayed passive mode (127, 129). `peer` is the address of the control connection; a reply to
/// EPSV has only the port.
///
/// # Errors
/// The reply has no address, or its address cannot be parsed.
pub fn address(reply: &Reply, peer: IpAddr) -> Result<SocketAddr, HostPortError> {
    if reply.code() % 100 == 27 {
        // Some servers send the address in the last of several lines.
        let told = reply.lines().rev().find_map(|line| host_port::parse_pasv_reply(line).ok());
        return Ok(told.map_or_else(|| host_port::parse_pasv_reply(reply.text()), Ok)?.into());
    }
    let (ip, port) = host_port::parse_epsv_reply(reply.text())?;
    Ok(SocketAddr::new(ip.unwrap_or(peer), port))
}

/// SIZE: returns the size in bytes.
pub fn size(reply: &Reply) -> Option<u64> {
    let digits = text(reply, 213)?.to_str().ok()?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// MDTM: returns the time of modification in seconds since 1970.
pub fn modified(reply: &Reply) -> Option<i64> {
    date::parse(text(reply, 213)?).ok()
}

/// CKSM: returns the checksum in lower case. Some servers drop leading zeros, so its length is not
/// checked.
pub fn checksum(reply: &Reply) -> Option<String> {
    sum(reply.text()).filter(|_| reply.is_success())
}

/// PWD and MKD: returns the path between quotation marks (RFC 959 appendix II). RFC 959 doubles the
/// quotation marks in a path, GCT does not.
pub fn path(reply: &Reply) -> Option<BString> {
    let text = text(reply, 257)?.strip_prefix(b"\"")?;
    let mut path = BString::default();
    let mut at = 0;
    loop {
        match (*text.get(at)?, text.get(at + 1)) {
            (b'"', Some(b'"')) => at += 1,
            (b'"', None | Some(b' ' | b'.' | b';')) => return Some(path),
            _ => {}
        }
        path.push(text[at]);
        at += 1;
    }
}

/// MLST: returns the entry; its name is the path as the server sent it.
pub fn entry(reply: &Reply) -> Option<Entry> {
    Entry::parse(reply.body().next()?.trim_start().as_bstr()).ok()
}

/// Returns the checksum in the final reply of a transfer, if the server computed it during the
/// transfer. This is a Ropewalk extension.
pub fn inline_checksum(reply: &Reply) -> Option<(ChecksumAlgorithm, String)> {
    reply.lines().find_map(|line| {
        let (algorithm, value) = line.strip_prefix(b"Checksum: ")?.split_once_str(" ")?;
        let algorithm = algorithm.to_str().ok()?.parse().ok()?;
        Some((algorithm, sum(value)?))
    })
}

/// Words in the final reply of a listing that mean that the listing is not complete.
const CUT: [&str; 8] =
    ["truncated", "incomplete", "not complete", "partial", "too many", "limit reached", "exceed", "aborted"];

/// LIST, MLSD and MLSR: returns why the listing that was received (`bytes` bytes in `lines` lines)
/// is not complete, as far as the final reply shows it. Ropewalk servers state how many bytes they
/// sent, other servers state the number of lines, or that they stopped early.
pub fn cut_off(reply: &Reply, bytes: u64, lines: u64) -> Option<String> {
    let differs = |what: &str, came: u64, told: u64| {
        (came != told).then(|| format!("{came} of {told} {what} have come"))
    };
    let number = |text: &[u8]| text.to_str().ok()?.parse::<u64>().ok();
    reply.lines().find_map(|line| {
        let told = line.strip_prefix(LISTING.as_bytes()).and_then(|rest| rest.strip_suffix(b" bytes"));
        if let Some(told) = told.and_then(number) {
            return differs("bytes", bytes, told);
        }
        // pure-ftpd counts lines.
        if let Some(told) = line.trim().strip_suffix(b" matches total").and_then(number) {
            return differs("lines", lines, told);
        }
        let said = line.to_str_lossy().to_ascii_lowercase();
        CUT.iter().any(|word| said.contains(word)).then(|| format!("it says \"{}\"", line.trim().as_bstr()))
    })
}

/// SITE RANGES: returns the ranges that an interrupted upload left on disk. This is a Ropewalk
/// extension.
pub fn ranges(reply: &Reply) -> Option<RangeSet> {
    if !reply.is_success() {
        return None;
    }
    match reply.body().next().map(|line| line.trim()) {
        None | Some(b"") => Some(RangeSet::new()),
        Some(line) => RangeSet::parse(line).ok(),
    }
}

fn text(reply: &Reply, code: u16) -> Option<&BStr> {
    (reply.code() == code).then(|| reply.text().trim().as_bstr())
}

fn sum(value: &[u8]) -> Option<String> {
    let value = value.trim().to_str().ok()?.to_ascii_lowercase();
    (!value.is_empty() && value.bytes().all(|b| b.is_ascii_hexdigit())).then_some(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::Ipv4Addr;

    use super::*;
    use crate::facts::EntryKind;

    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn address_in_each_reply_form_is_found() {
        let one = "127.0.0.1:45953".parse().unwrap();
        let pasv = "Entering Passive Mode (127,0,0,1,179,129)";
        assert_eq!(address(&Reply::new(227, pasv), PEER).unwrap(), one);
        assert_eq!(address(&Reply::new(127, pasv), PEER).unwrap(), one);
        let epsv = "Entering Extended Passive Mode (|||45953|)";
        assert_eq!(address(&Reply::new(229, epsv), PEER).unwrap(), one);
        assert!(address(&Reply::new(227, "?"), PEER).is_err());
        for lines in [["listen socket created", "(127,0,0,1,179,129)"], [pasv, "End."]] {
            assert_eq!(address(&Reply::coded(227, lines), PEER).unwrap(), one);
        }
    }

    #[test]
    fn cut_off_reports_only_incomplete_listings() {
        let cut = |lines: &[&str]| cut_off(&Reply::coded(226, lines.iter().copied()), 100, 5);
        for whole in [
            &["Transfer Complete."][..],
            &["Listing: 100 bytes", "Transfer Complete."],
            &["Options: -a -l ", "5 matches total"],
            &["Directory send OK."],
        ] {
            assert_eq!(cut(whole), None, "{whole:?}");
        }
        let cut = |lines: &[&str]| cut(lines).unwrap();
        assert_eq!(cut(&["Listing: 101 bytes", "Transfer Complete."]), "100 of 101 bytes have come");
        assert_eq!(cut(&["Options: -l ", "104 matches total"]), "5 of 104 lines have come");
        let said = "it says \"Output truncated to 50 matches\"";
        assert_eq!(cut(&["Options: -a -l ", "Output truncated to 50 matches"]), said);
    }

    #[test]
    fn size_modified_and_checksum_read_only_valid_replies() {
        assert_eq!(size(&Reply::new(213, " 5 ")), Some(5));
        assert_eq!((size(&Reply::new(213, "+5")), size(&Reply::new(550, "5"))), (None, None));
        assert_eq!(modified(&Reply::new(213, "19700101000001")), Some(1));
        assert_eq!(checksum(&Reply::new(213, " 0000AB01 ")).unwrap(), "0000ab01");
        for (code, text) in [(213, "0000AB0g"), (213, ""), (550, "00")] {
            assert_eq!(checksum(&Reply::new(code, text)), None, "{code} {text}");
        }
    }

    #[test]
    fn path_with_or_without_doubled_quotes_is_read() {
        let path = |text: &str| path(&Reply::new(257, text)).map(|p| p.to_string());
        assert_eq!(path("\"/a b\" is current directory."), Some("/a b".into()));
        assert_eq!(path("\"/a\"\"b\" is"), Some("/a\"b".into()));
        assert_eq!(path("\"/a\"b\" is"), Some("/a\"b".into()));
        assert_eq!(path("\"/\""), Some("/".into()));
        assert_eq!((path("/a"), path("\"/a")), (None, None));
    }

    #[test]
    fn entry_of_mlst_reply_is_read() {
        let reply = Reply::indented(250, "status of x", ["Type=file;Size=5; /d/a b"], "End.");
        let found = entry(&reply).unwrap();
        assert_eq!((found.kind, found.size, found.name), (EntryKind::File, Some(5), "/d/a b".into()));
        assert_eq!(entry(&Reply::new(250, "x")), None);
    }

    #[test]
    fn inline_checksum_and_ranges_are_read() {
        let reply = Reply::coded(226, ["Checksum: CRC32C 0a1b2c3d", "Transfer Complete."]);
        assert_eq!(inline_checksum(&reply), Some((ChecksumAlgorithm::Crc32c, "0a1b2c3d".into())));
        assert_eq!(inline_checksum(&Reply::new(226, "Transfer Complete.")), None);
        let reply = |line: &str| Reply::indented(250, "Ranges of x", [line], "End.");
        assert_eq!(ranges(&reply("0-5,7-9")), Some([0..5, 7..9].into_iter().collect()));
        assert_eq!(ranges(&reply("")), Some(RangeSet::new()));
        assert_eq!((ranges(&reply("x")), ranges(&Reply::new(500, "x"))), (None, None));
    }
}
