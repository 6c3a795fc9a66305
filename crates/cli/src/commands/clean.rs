use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::anyhow;
use bstr::{BString, ByteSlice};
use clap::Args;
use ropewalk_client::{Entry, Error, Location, parse_location};
use ropewalk_storage::{Kind, is_temporary_name};

use crate::client::{Client, Place, Sessions, Target, parse_targets};
use crate::exit::{Exit, usage};
use crate::listing::each_entry;
use crate::output::{say, shown_name};
use crate::settings::ConnectionFlags;
use crate::utc;

/// An interrupted copy keeps its partial files beside the destination, so that the same command can
/// resume. Running transfers are not touched: their files are younger.
#[derive(Debug, Args)]
pub struct Clean {
    /// Directories: paths, or URLs (ftp:, ftpes:, ftps:, gsiftp:, sshftp:, file:)
    #[arg(required = true, value_name = "LOCATION")]
    locations: Vec<OsString>,
    /// Last changed before this date (2026-01-31, 2026-01-31T12:00:00Z; UTC), or at least this long
    /// ago
    #[arg(long, value_name = "DATE|AGE", default_value = "7d", value_parser = utc::parse)]
    older: i64,
    /// Only print which files would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Clean {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut targets = parse_targets(&self.locations)?;
        let mut client = Client::new(&self.connection.0, &mut targets)?;
        // The targets of links are not beneath the given directories.
        client.options.preserve.links = true;
        let mut sessions = Sessions::new(&client);
        let exit = client.each(&targets, |target| {
            let (mut found, mut unknown) = (Vec::<BString>::new(), 0_u64);
            let listed = each_entry(&client, &mut sessions, target, true, &mut |entry, location| {
                if self.matches(entry) {
                    found.push(location.into());
                }
                unknown += u64::from(entry.modified.is_none() && is_left(entry));
                Ok(())
            });
            if let (true, Ok(Place::Remote(url))) = (found.is_empty(), target.place())
                && sessions.with(url, |remote, _| Ok(remote.hides_unfinished()))?
            {
                say(format_args!(
                    "ropewalk: {}: this server does not list the partial files of interrupted \
                     uploads; `ropewalk clean` on its host finds them",
                    target.text
                ));
            }
            let (mut left, mut failed) = (0_u64, None);
            for location in &found {
                if client.cancel.is_cancelled() {
                    break;
                }
                let shown = shown_name(location.as_bstr(), true);
                match if self.dry_run { Ok(()) } else { remove(target, location, &mut sessions) } {
                    Ok(()) => {}
                    // The copy that owned it has resumed or cleaned up.
                    Err(error) if Exit::of_error(&error) == Exit::NotFound => continue,
                    Err(error) => {
                        say(format_args!("ropewalk: {}: {error:#}", shown.as_bstr()));
                        left += 1;
                        failed = Some(error);
                        continue;
                    }
                }
                let what = if self.dry_run { "would remove" } else { "removed" };
                say(format_args!("ropewalk: {what} {}", shown.as_bstr()));
            }
            if client.cancel.is_cancelled() {
                return Err(Error::cancelled().into());
            }
            // An unreadable directory does not keep the others from being cleaned.
            listed.and(match failed {
                None if unknown > 0 => Err(anyhow!(
                    "{unknown} partial files stay: the server's listings do not have their times"
                )),
                None => Ok(()),
                Some(last) => Err(last.context(format!("{left} could not be removed; the last one"))),
            })
        })?;
        sessions.quit();
        Ok(exit)
    }

    fn matches(&self, entry: &Entry) -> bool {
        is_left(entry) && entry.modified.is_some_and(|time| time < self.older)
    }
}

/// Whether interrupted copies leave files with such names.
fn is_left(entry: &Entry) -> bool {
    let name = entry.name.rsplit_once_str("/").map_or(entry.name.as_bytes(), |(_, name)| name);
    matches!(entry.kind, Kind::File | Kind::Symlink) && is_temporary_name(name.as_bstr())
}

fn remove(target: &Target, location: &BString, sessions: &mut Sessions<'_>) -> anyhow::Result<()> {
    let given = OsStr::from_bytes(location);
    match target.place()? {
        Place::Local(_) => Ok(fs::remove_file(Path::new(given))?),
        Place::Remote(_) => match parse_location(given)? {
            Location::Remote(url) => Ok(sessions.with(&url, |remote, path| remote.remove(path, false))?),
            _ => Err(usage("expected a URL")),
        },
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
        clean: Clean,
    }

    #[test]
    fn clean_removes_old_partial_files_only() {
        let clean = Command::try_parse_from(["clean", "/x"]).unwrap().clean;
        let entry = |name: &str, modified| Entry { modified, ..Entry::new(name, Kind::File) };
        assert!(clean.matches(&entry("d/.a.ropewalk-part", Some(946_684_800))));
        assert!(clean.matches(&entry(".a.ropewalk-journal", Some(946_684_800))));
        assert!(!clean.matches(&entry("d/.a.ropewalk-part", Some(i64::MAX))), "young");
        assert!(!clean.matches(&entry("d/.a.ropewalk-part", None)), "of unknown age");
        assert!(!clean.matches(&entry("d/a.ropewalk-part", Some(0))), "another name");
        let directory = Entry { modified: Some(0), ..Entry::new(".a.ropewalk-part", Kind::Directory) };
        assert!(!clean.matches(&directory));
    }
}
