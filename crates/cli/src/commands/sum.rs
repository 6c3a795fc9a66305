use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};

use bstr::ByteSlice as _;
use clap::Args;
use ropewalk_client::{Error, Window};
use ropewalk_storage::checksum::Algorithm;
use serde::Serialize;

use crate::client::{Client, Place, Sessions, parse_targets};
use crate::exit::Exit;
use crate::output::{json_line, shown_name};
use crate::settings::ConnectionFlags;
use crate::{local, units};

#[derive(Debug, Args)]
pub struct Sum {
    /// Files: paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// adler32, blake3, crc32, crc32c, md5, sha1, sha256, sha512 or xxh3-128; servers support some
    /// of them
    #[arg(short, long, value_name = "NAME", default_value = "sha256")]
    algorithm: Algorithm,
    /// Start at this byte
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "0")]
    offset: u64,
    /// Number of bytes
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    length: Option<u64>,
    /// One JSON object for each file
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// The line that md5sum and its relatives print and accept: two spaces before the name. A backslash
/// at the start of the line announces that backslashes, line feeds and carriage returns in the name
/// are escaped.
fn line(checksum: &str, name: &[u8], terminal: bool) -> Vec<u8> {
    let escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r");
    let mark = if escaped == name { "" } else { "\\" };
    let shown = shown_name(&escaped, terminal);
    [mark.as_bytes(), checksum.as_bytes(), b"  ", &shown, b"\n"].concat()
}

#[derive(Serialize)]
struct Line<'a> {
    location: &'a str,
    algorithm: &'a str,
    checksum: &'a str,
}

impl Sum {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let mut sessions = Sessions::new(&client);
        let window = (self.offset > 0 || self.length.is_some())
            .then_some(Window { offset: self.offset, length: self.length });
        let exit = client.each(&targets, |target| {
            let checksum = match target.place()? {
                Place::Local(path) => local::checksum(path, self.algorithm, window)?,
                Place::Remote(url) => sessions.with(url, |remote, path| {
                    if window.is_some() {
                        local::within(remote.size(path)?, window)?;
                    }
                    remote.checksum(path, self.algorithm, window)
                })?,
            };
            let mut out = io::stdout().lock();
            if self.json {
                let line =
                    Line { location: &target.text, algorithm: self.algorithm.name(), checksum: &checksum };
                return Ok(json_line(&mut out, &line).map_err(Error::output)?);
            }
            let line = line(&checksum, &target.name, out.is_terminal());
            Ok(out.write_all(&line).map_err(Error::output)?)
        })?;
        sessions.quit();
        Ok(exit)
    }
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn lines_match_sha256sum() {
        assert_eq!(line("ab", b"\xff x", false), b"ab  \xff x\n");
        assert_eq!(line("ab", b"a\n\\b\r", false), b"\\ab  a\\n\\\\b\\r\n");
        assert_eq!(line("ab", b"\x1b[31m", true).iter().filter(|byte| **byte == 0x1b).count(), 0);
    }
}
