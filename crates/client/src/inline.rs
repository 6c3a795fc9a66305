//! The sum that a server tells with the last reply of a transfer (our extension).

use bstr::ByteSlice;
use ropewalk_protocol::reply::Reply;

/// From `226-Checksum: CRC32C 0123abcd`.
pub(crate) fn inline_sum(reply: &Reply) -> Option<String> {
    reply.lines().find_map(|line| {
        let rest = line.trim().strip_prefix(b"Checksum:")?.to_str().ok()?;
        let value = rest.split_whitespace().nth(1)?;
        Some(value.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_where_there_is_one() {
        let reply = Reply::coded(226, ["Checksum: CRC32C 0123abcd", "Transfer Complete."]);
        assert_eq!(inline_sum(&reply).as_deref(), Some("0123abcd"));
        assert_eq!(inline_sum(&Reply::new(226, "Transfer Complete.")), None);
    }
}
