use std::ffi::OsString;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;
use ropewalk_client::{Cancel, Event, EventSink, Location, Pair, SyncLevel, copy};

use super::cp::STOPPING;
use crate::credentials::{self, Side};
use crate::exit::{Exit, usage};
use crate::output::{Human, Loudness, harmless, say};
use crate::selection::Selection;
use crate::settings::{ConnectionFlags, Layers, Settings};
use crate::sites::Used;
use crate::{signals, units};

const HELP: &str = "\
Exit codes: 0 no differences, 1 differences, or a failed comparison; others as in `ropewalk cp`";

#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Check {
    /// A file or a tree: a path or a URL
    #[arg(value_name = "SOURCE")]
    source: OsString,
    /// Its copy
    #[arg(value_name = "DESTINATION")]
    destination: OsString,
    /// Compare sizes and checksums, which the servers compute. Otherwise a file differs if its size
    /// differs or if the destination is older
    #[arg(long)]
    checksum: bool,
    /// Compare sizes only
    #[arg(long, conflicts_with = "checksum")]
    size_only: bool,
    /// Print errors only; the exit code is the result
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    selection: Selection,
    #[command(flatten)]
    connection: ConnectionFlags,
}

impl Check {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut sites = Used::default();
        let source = sites.parse(Side::Source, &self.source)?;
        let destination = sites.parse(Side::Destination, &self.destination)?;
        let has_names = |place: &Location| matches!(place, Location::Local(_) | Location::Remote(_));
        if !has_names(&source) || !has_names(&destination) {
            return Err(usage("expected two paths or URLs"));
        }
        let Settings { mut options, password_files, .. } =
            Layers::load_at(&self.connection.0, &sites)?.settings()?;
        // The differences are what a copy would change to bring the destination up to date.
        (options.dry_run, options.selection.recursive, options.storage.into_directories) =
            (true, true, false);
        options.selection.sync = Some(match (self.checksum, self.size_only) {
            (true, _) => SyncLevel::Checksum,
            (_, true) => SyncLevel::Size,
            _ => SyncLevel::Time,
        });
        options.selection.delete = false;
        self.selection.apply(&mut options)?;
        options.selection.delete = !self.selection.lists();
        let mut pairs = vec![Pair { source, destination, window: None }];
        let places = credentials::sides(&mut pairs);
        credentials::complete(&mut options, &password_files, true, places, sites.hops)?;

        let cancel = Cancel::new();
        signals::watch(&cancel, STOPPING)?;
        let human = Human::plain(Loudness::Normal, &cancel);
        let differences = Differences { human, quiet: self.quiet, count: AtomicU64::new(0) };
        let summary = copy(pairs, &options, &differences, &cancel)?;
        let count = differences.count.into_inner();
        if let Some(error) = differences.human.lost() {
            say(format_args!("ropewalk: cannot write to standard output: {error}"));
            return Ok(Exit::of_io(error));
        }
        if !self.quiet && !summary.interrupted {
            say(match count {
                0 if summary.files_failed > 0 => "No differences in what could be compared".to_owned(),
                0 => "No differences".to_owned(),
                count => units::count(count, "difference"),
            });
        }
        Ok(match Exit::of_summary(&summary) {
            Exit::Done if count > 0 => Exit::Failed,
            exit => exit,
        })
    }
}

/// Prints each change that a copy would make as a difference, one on a line.
struct Differences {
    human: Human,
    quiet: bool,
    count: AtomicU64,
}

impl EventSink for Differences {
    fn event(&self, event: Event) {
        let line = match event {
            Event::WouldCopy { source, replaces: true, .. } => format!("differs: {}", harmless(&source)),
            Event::WouldCopy { source, .. } => format!("only at the source: {}", harmless(&source)),
            Event::WouldMake { source, .. } => format!("only at the source: {}/", harmless(&source)),
            Event::WouldRemove { path } => format!("only at the destination: {}", harmless(&path)),
            Event::Finished(_) => return,
            other => return self.human.event(other),
        };
        self.count.fetch_add(1, Ordering::Relaxed);
        if !self.quiet {
            self.human.result(format_args!("{line}"));
        }
    }
}
