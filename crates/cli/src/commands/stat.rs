use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};

use bstr::ByteSlice;
use clap::Args;
use ropewalk_client::{Entry, Error};

use crate::client::{Client, Place, Sessions, parse_targets};
use crate::exit::Exit;
use crate::output::{EntryLine, harmless, json_line, kind_name, mode_text};
use crate::settings::ConnectionFlags;
use crate::{listing, local, units, utc};

#[derive(Debug, Args)]
pub struct Stat {
    /// Paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// One JSON object for each location
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Stat {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let mut sessions = Sessions::new(&client);
        let terminal = io::stdout().is_terminal();
        let exit = client.each(&targets, |target| {
            let entry = match target.place()? {
                Place::Local(path) => local::stat(path)?,
                Place::Remote(url) => sessions.with(url, listing::stat)?,
            };
            let mut out = io::stdout().lock();
            if self.json {
                let line = EntryLine::new(&entry, target.text.as_str().into());
                return Ok(json_line(&mut out, &line).map_err(Error::output)?);
            }
            let text = describe(&target.text, &entry, terminal);
            Ok(out.write_all(text.as_bytes()).map_err(Error::output)?)
        })?;
        sessions.quit();
        Ok(exit)
    }
}

fn describe(location: &str, entry: &Entry, terminal: bool) -> String {
    let clean = |text: &str| if terminal { harmless(text) } else { text.to_owned() };
    let mut text = format!("{}\n  type      {}\n", clean(location), kind_name(entry.kind));
    let mut line = |name: &str, value: String| text += &format!("  {name:<9} {value}\n");
    if let Some(size) = entry.size {
        line("size", format!("{size} ({})", units::size(size)));
    }
    if let Some(modified) = entry.modified {
        line("modified", format!("{} UTC", utc::show(modified)));
    }
    if let Some(mode) = entry.mode {
        line("mode", format!("{mode:04o} ({})", mode_text(entry.kind, Some(mode))));
    }
    if let Some(owner) = &entry.owner {
        line("owner", clean(owner));
    }
    if let Some(group) = &entry.group {
        line("group", clean(group));
    }
    if let Some(target) = &entry.target {
        line("points to", clean(&target.to_str_lossy()));
    }
    text
}

#[cfg(test)]
mod tests {
    use ropewalk_storage::Kind;

    use super::*;

    #[test]
    fn stat_shows_known_attributes_only() {
        let entry = Entry { size: Some(2048), modified: Some(0), ..Entry::new("a", Kind::File) };
        assert_eq!(
            describe("ftp://h/a", &entry, true),
            "ftp://h/a\n  type      file\n  size      2048 (2.00 KiB)\n  modified  1970-01-01 00:00:00 UTC\n"
        );
    }
}
