use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};

use bstr::BStr;
use clap::Args;
use ropewalk_client::Entry;

use crate::client::{Client, Sessions, parse_targets};
use crate::exit::Exit;
use crate::listing::each_entry;
use crate::output::{EntryLine, json_line, long_line, shown_name};
use crate::settings::ConnectionFlags;

#[derive(Debug, Args)]
pub struct Ls {
    /// Directories or files: paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:); the
    /// last component may be a pattern
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// Type, permissions, owner, group, size and time (UTC)
    #[arg(short, long)]
    long: bool,
    /// Include everything beneath
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Sizes with units
    #[arg(short = 'H', long)]
    human_readable: bool,
    /// One JSON object for each entry
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Ls {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let mut sessions = Sessions::new(&client);
        let terminal = io::stdout().is_terminal();
        let mut out = BufWriter::new(io::stdout().lock());
        let headings = targets.len() > 1 && !self.json;
        let mut space = "";
        let exit = client.each(&targets, |target| {
            if headings {
                writeln!(out, "{space}{}:", target.text)?;
                space = "\n";
            }
            let result =
                each_entry(&client, &mut sessions, target, self.recursive, &mut |entry, location| {
                    self.entry(entry, location, terminal, &mut out)
                });
            out.flush()?;
            result
        })?;
        sessions.quit();
        Ok(exit)
    }

    fn entry(&self, entry: &Entry, location: &BStr, terminal: bool, out: &mut impl Write) -> io::Result<()> {
        if self.json {
            return json_line(out, &EntryLine::new(entry, location));
        }
        if self.long {
            return long_line(out, entry, self.human_readable, terminal);
        }
        out.write_all(&shown_name(&entry.name, terminal))?;
        out.write_all(b"\n")
    }
}
