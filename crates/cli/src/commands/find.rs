use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};

use anyhow::bail;
use bstr::{BStr, ByteSlice};
use clap::{Args, ValueEnum};
use ropewalk_client::Entry;
use ropewalk_glob::{Pattern, PatternError};
use ropewalk_storage::Kind;

use crate::client::{Client, Sessions, parse_targets};
use crate::exit::Exit;
use crate::listing::each_entry;
use crate::output::{EntryLine, json_line, shown_name};
use crate::settings::ConnectionFlags;
use crate::{units, utc};

#[derive(Debug, Args)]
pub struct Find {
    /// Directories: paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// The name (the last component) matches this pattern
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    name: Option<Pattern>,
    /// Files, directories or symbolic links, which are not followed
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<Type>,
    /// More than (+), less than (-) or exactly this many bytes, for example +10M
    #[arg(long, value_name = "[+-]SIZE", value_parser = bound, allow_hyphen_values = true)]
    size: Option<Bound>,
    /// Changed after this date (2026-01-31, 2026-01-31T12:00:00Z; UTC) or within this time (2d, 6h)
    #[arg(long, value_name = "DATE|AGE", value_parser = utc::parse)]
    newer: Option<i64>,
    /// Changed before this date or longer ago than this
    #[arg(long, value_name = "DATE|AGE", value_parser = utc::parse)]
    older: Option<i64>,
    /// End each line with a NUL byte instead of a line feed
    #[arg(short = '0', long, conflicts_with = "json")]
    print0: bool,
    /// One JSON object for each entry
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Type {
    #[value(name = "f")]
    File,
    #[value(name = "d")]
    Directory,
    #[value(name = "l")]
    Link,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Above(u64),
    Below(u64),
    Exactly(u64),
}

fn glob(given: &str) -> Result<Pattern, PatternError> {
    Pattern::path(given.as_bytes())
}

fn bound(given: &str) -> Result<Bound, String> {
    match given.as_bytes().first() {
        Some(b'+') => units::parse_size(&given[1..]).map(Bound::Above),
        Some(b'-') => units::parse_size(&given[1..]).map(Bound::Below),
        _ => units::parse_size(given).map(Bound::Exactly),
    }
}

impl Find {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let client = Client::new(&self.connection.0, &mut targets)?;
        let mut sessions = Sessions::new(&client);
        let terminal = io::stdout().is_terminal();
        let mut out = BufWriter::new(io::stdout().lock());
        let exit = client.each(&targets, |target| {
            let mut unknown = 0_u64;
            let result = each_entry(&client, &mut sessions, target, true, &mut |entry, location| {
                let timeless = entry.modified.is_none() && (self.newer.is_some() || self.older.is_some());
                match self.matches(entry) {
                    true if timeless => unknown += 1,
                    true if self.is_of_time(entry) => self.print(entry, location, terminal, &mut out)?,
                    _ => {}
                }
                Ok(())
            });
            out.flush()?;
            result?;
            if unknown > 0 {
                bail!("{unknown} entries are skipped: the server's listings do not have their times");
            }
            Ok(())
        })?;
        sessions.quit();
        Ok(exit)
    }

    fn print(&self, entry: &Entry, location: &BStr, terminal: bool, out: &mut impl Write) -> io::Result<()> {
        if self.json {
            return json_line(out, &EntryLine::new(entry, location));
        }
        out.write_all(&shown_name(location, terminal))?;
        out.write_all(if self.print0 { b"\0" } else { b"\n" })
    }

    fn matches(&self, entry: &Entry) -> bool {
        let name = entry.name.rsplit_once_str("/").map_or(entry.name.as_bytes(), |(_, name)| name);
        let kind = match self.kind {
            None => true,
            Some(Type::File) => entry.kind == Kind::File,
            Some(Type::Directory) => entry.kind == Kind::Directory,
            Some(Type::Link) => entry.kind == Kind::Symlink,
        };
        // An unknown value does not match.
        let size = match (self.size, entry.size) {
            (None, _) => true,
            (Some(Bound::Above(bound)), Some(size)) => size > bound,
            (Some(Bound::Below(bound)), Some(size)) => size < bound,
            (Some(Bound::Exactly(bound)), Some(size)) => size == bound,
            (Some(_), None) => false,
        };
        kind && size && self.name.as_ref().is_none_or(|pattern| pattern.matches(name))
    }

    fn is_of_time(&self, entry: &Entry) -> bool {
        self.newer.is_none_or(|bound| entry.modified.is_some_and(|time| time > bound))
            && self.older.is_none_or(|bound| entry.modified.is_some_and(|time| time < bound))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        find: Find,
    }

    fn matches(flags: &str) -> bool {
        let entry =
            Entry { size: Some(4096), modified: Some(946_684_800), ..Entry::new("sub/data.h5", Kind::File) };
        let words = ["find", "/x"].into_iter().chain(flags.split_whitespace());
        let find = Command::try_parse_from(words).unwrap().find;
        find.matches(&entry) && find.is_of_time(&entry)
    }

    #[test]
    fn conditions_select_entries() {
        for flags in [
            "",
            "--name *.h5",
            "--type f",
            "--size +1K",
            "--size -1M",
            "--size 4K",
            "--newer 1999-12-31",
            "--older 1h",
        ] {
            assert!(matches(flags), "{flags}");
        }
        for flags in [
            "--name *.txt",
            "--name sub*",
            "--type d",
            "--size +4K",
            "--size -4096",
            "--newer 1h",
            "--older 1999-01-01",
        ] {
            assert!(!matches(flags), "{flags}");
        }
    }
}
