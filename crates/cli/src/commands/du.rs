use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write};

use clap::Args;
use ropewalk_client::{Usage, du};
use serde::Serialize;

use crate::client::{Client, Target, parse_targets};
use crate::exit::Exit;
use crate::listing::unread_for;
use crate::output::{json_line, shown_name};
use crate::settings::ConnectionFlags;
use crate::units;

#[derive(Debug, Args)]
pub struct Du {
    /// Trees or files: paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// Plain numbers of bytes
    #[arg(short, long)]
    bytes: bool,
    /// One JSON object for each location
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Serialize)]
struct Line<'a> {
    location: &'a str,
    bytes: u64,
    files: u64,
    directories: u64,
    links: u64,
}

impl Du {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let options = client.options.clone().with(|o| o.selection.recursive = true);
        client.each(&targets, |target| {
            let usage = du(&target.location, &options, &client.events, &client.cancel)?;
            self.print(target, &usage)?;
            if usage.errors > 0 {
                let reason = format!(
                    "the sum is too small: {} could not be read",
                    units::count(usage.errors, "place")
                );
                return Err(unread_for(usage.failed_for, reason).into());
            }
            Ok(())
        })
    }

    fn print(&self, target: &Target, usage: &Usage) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            let line = Line {
                location: &target.text,
                bytes: usage.bytes,
                files: usage.files,
                directories: usage.directories,
                links: usage.links,
            };
            return json_line(&mut out, &line);
        }
        if self.bytes {
            write!(out, "{}\t", usage.bytes)?;
        } else {
            let size = units::size(usage.bytes);
            let files = units::count(usage.files, "file");
            write!(out, "{size}\t{files}\t")?;
        }
        out.write_all(&shown_name(&target.name, out.is_terminal()))?;
        out.write_all(b"\n")
    }
}
