use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ropewalk_client::{Cancel, Event, EventSink, Location, Pair, Preserve, SyncLevel, Window};

use crate::client::Client;
use crate::credentials::{self, Side};
use crate::exit::{Exit, usage};
use crate::output::{Human, Json, Loudness, say};
use crate::path_use::PathUse;
use crate::running::Running;
use crate::selection::Selection;
use crate::settings::{CpFlags, Layers, Settings};
use crate::sites::Used;
use crate::switching::Switching;
use crate::via::{Relays, Via};
use crate::{pairs, signals, units};

/// Printed at the first Ctrl-C.
pub(crate) const STOPPING: &str = "ropewalk: stopping; partial files are kept, rerun the same command to resume (press Ctrl-C \
     again to quit now)";

#[derive(Debug, Args)]
#[command(after_help = crate::exit::HELP)]
#[command(
    override_usage = "ropewalk cp [OPTIONS] SOURCE... DESTINATION\n       ropewalk cp [OPTIONS] --pairs FILE"
)]
pub struct Cp {
    /// Sources, then the destination: paths, `-` (standard input or output), URLs (ftp:, ftpes:,
    /// ftps:, gsiftp:, sshftp:, file:); zero:SIZE as a source and null: as a destination measure
    /// without storage. A source directory that ends with `/` stands for its contents; sources may
    /// be patterns. A destination that ends with `/` is a directory
    #[arg(value_name = "PLACE", num_args = 1.., required_unless_present = "pairs", conflicts_with = "pairs")]
    places: Vec<OsString>,
    /// Read pairs from FILE (`-`: standard input), one on a line: SOURCE DESTINATION
    /// [OFFSET[,LENGTH]], names with spaces in double quotes
    #[arg(short = 'f', long, value_name = "FILE")]
    pairs: Option<PathBuf>,
    /// Pass the data through these servers, which have to be relays (`serve --relay-to`), in this
    /// order: ftp://B:PORT, or several with commas between; for example --via ftp://b.example.org
    /// ftp://a.example.org/data/f . `auto`: over the best path through some or none of --relays, as
    /// `ropewalk route` finds it
    #[arg(long, value_name = "URLS")]
    via: Option<Via>,
    /// The relays of which --via auto may use some; for example --via auto --relays
    /// ftp://b.example.org,ftp://c.example.org
    #[arg(long, value_name = "URLS", requires = "via")]
    relays: Option<Relays>,
    /// Print what would be copied and removed, and change nothing
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Copy trees with times, permissions and links: --recursive --preserve=all
    #[arg(short, long)]
    archive: bool,
    #[command(flatten)]
    selection: Selection,
    /// Start at this byte of the source; it is written at the same offset of the destination
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    offset: Option<u64>,
    /// Copy this many bytes
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    length: Option<u64>,
    /// Print errors only
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Report each file
    #[arg(short, long)]
    verbose: bool,
    /// Write each event as a JSON object on one line of standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: CpFlags,
    /// Whether the destination is to mirror the source: directories are compared, not put into one
    /// another.
    #[arg(skip)]
    up_to_date: bool,
}

impl Cp {
    /// Adds the options that `ropewalk sync` stands for.
    pub(crate) fn bringing_up_to_date(self) -> Self {
        Self { up_to_date: true, ..self }
    }

    pub fn run(self) -> anyhow::Result<Exit> {
        let mut sites = Used::default();
        let mut pairs = self.pairs(&mut sites)?;
        match (&self.via, &self.relays) {
            (Some(Via::These(_)), Some(_)) => return Err(usage("--relays is for --via auto")),
            (Some(Via::Auto), None) => return Err(usage("--via auto needs --relays")),
            (Some(Via::These(relays)), None) => {
                let hops = &mut sites.hops;
                pairs = pairs.into_iter().map(|pair| relays.between(pair, hops)).collect::<Result<_, _>>()?;
            }
            _ => {}
        }
        let settings = self.settings(&sites)?;
        let keeper = settings.keep_socket_memory()?;
        let Settings { mut options, ref password_files, status_interval, ref log_file, .. } = settings;
        options.data.task = settings.path.task.of_run();
        self.check(&pairs, password_files.in_stdin())?;
        let places = credentials::sides(&mut pairs);
        credentials::complete(&mut options, password_files, self.pairs.is_none(), places, sites.hops)?;

        let cancel = Cancel::new();
        signals::watch(&cancel, STOPPING)?;
        let loudness = match (self.quiet, self.verbose) {
            (true, _) => Loudness::Quiet,
            (_, true) => Loudness::Verbose,
            _ => Loudness::Normal,
        };
        let human = if self.json { Human::mute(&cancel) } else { Human::new(loudness, &cancel) };
        let human = human.with_status(status_interval, log_file.as_deref()).map_err(|error| {
            let log = log_file.as_deref().map(|path| path.display().to_string()).unwrap_or_default();
            anyhow::Error::new(error).context(format!("cannot open the log {log}"))
        })?;
        let (human, json) = (Arc::new(human), Arc::new(Json::default()));
        let events: Arc<dyn EventSink> = match self.json {
            true => {
                let (human, json) = (human.clone(), json.clone());
                Arc::new(move |event: Event| {
                    json.event(event.clone());
                    human.event(event);
                })
            }
            false => human.clone(),
        };
        let mut switching = None;
        if let (Some(Via::Auto), Some(relays)) = (&self.via, &self.relays) {
            let survey = Client::with(options.clone(), &cancel);
            let best = relays.best(&survey, &pairs, &*events);
            if cancel.is_cancelled() {
                return Ok(Exit::Interrupted);
            }
            let best = best?;
            if let [routes] = &*best.routes
                && settings.path.source.is_none()
            {
                switching = Switching::of(pairs, routes, relays, &options, survey);
            }
            pairs = best.pairs;
            credentials::add_hops(&mut options, best.hops)?;
        }
        let path = match options.dry_run {
            true => None,
            false => PathUse::obtain(&settings.path, &pairs, &mut options, &events, &cancel)?,
        };
        let client = Arc::new(ropewalk_client::Client::for_job(&options));
        let through_here = options.data.through_here;
        let running = match options.dry_run {
            true => None,
            false => Running::start(&client, &pairs, options.tuning.bandwidth.as_ref(), through_here),
        };
        let result = match switching {
            Some(switching) => switching.copy(&client, pairs, options.clone(), &events, &cancel),
            None => client.copy(pairs, &options, &events, &cancel),
        };
        drop(running);
        let lost = path.and_then(PathUse::finish);
        json.finish();
        drop(keeper);
        human.finish();
        let summary = result.inspect_err(|error| human.note(format_args!("{error}")))?;
        if loudness != Loudness::Quiet {
            human.summary(&summary, options.dry_run);
        }
        if summary.files_failed > 0 && self.json {
            say(format_args!("ropewalk: {} failed", units::count(summary.files_failed, "file")));
        }
        let exit = match lost {
            // The copy was stopped for it, not by a person.
            Some(why) => {
                say(format_args!(
                    "ropewalk: the copy stopped without its path (--path-policy require): {why}"
                ));
                Exit::Failed
            }
            None => Exit::of_summary(&summary),
        };
        if let Some(error) = json.lost() {
            say(format_args!("ropewalk: events were lost: cannot write to standard output: {error}"));
            return Ok(if exit == Exit::Done { Exit::Failed } else { exit });
        }
        if let Some(error) = human.lost() {
            say(format_args!("ropewalk: cannot write to standard output: {error}"));
            return Ok(if exit == Exit::Done { Exit::of_io(error) } else { exit });
        }
        Ok(exit)
    }

    fn settings(&self, sites: &Used) -> anyhow::Result<Settings> {
        let mut settings = Layers::load_at(&self.flags.0, sites)?.settings()?;
        let options = &mut settings.options;
        if self.archive {
            options.selection.recursive = true;
            options.preserve = Preserve { times: true, modes: true, links: true };
        }
        if self.up_to_date {
            (options.selection.recursive, options.storage.into_directories) = (true, false);
            options.selection.sync = options.selection.sync.or(Some(SyncLevel::Time));
        }
        options.dry_run = self.dry_run;
        options.data.scitag = sites.scitag.or(options.data.scitag);
        self.selection.apply(options)?;
        if options.selection.delete && (options.selection.sync.is_none() || !options.selection.recursive) {
            return Err(usage("--delete needs --sync and --recursive"));
        }
        self.check_fairness()?;
        Ok(settings)
    }

    /// Flags that conflict with other flags. Flags override files and the environment, so those
    /// cannot conflict.
    fn check_fairness(&self) -> anyhow::Result<()> {
        let given = |key| self.flags.0.0.iter().find(|(name, _)| *name == key).map(|(_, value)| &**value);
        let polite = given("polite") == Some("true");
        if polite && given("share").is_some() {
            return Err(usage(
                "--polite and --share cannot be used together: a polite transfer claims no share of \
                 the path",
            ));
        }
        let asked = if polite { "--polite" } else { "--share" };
        let fixed = match (given("streams"), given("tuner")) {
            (Some(streams), _) if streams != "auto" => format!("--streams {streams}"),
            (_, Some(tuner)) if tuner != "pilot" => format!("--tuner {tuner}"),
            _ => return Ok(()),
        };
        if polite || given("share").is_some() {
            return Err(usage(format!(
                "{asked} and {fixed} cannot be used together: a fixed number of streams does not \
                 adapt to other traffic"
            )));
        }
        Ok(())
    }

    /// The pairs to copy, and the sites that they name.
    fn pairs(&self, sites: &mut Used) -> anyhow::Result<Vec<Pair>> {
        if let Some(file) = &self.pairs {
            if self.selection.lists() {
                return Err(usage("--files-from and --pairs cannot be used together"));
            }
            if self.offset.is_some() || self.length.is_some() {
                return Err(usage(
                    "--offset and --length cannot be used with --pairs: each line of the file has \
                     its own",
                ));
            }
            return pairs::read(file)?.iter().map(|line| line.pair(sites)).collect();
        }
        if self.length == Some(0) {
            return Err(usage("--length: expected at least 1 byte"));
        }
        let window = (self.offset.is_some() || self.length.is_some())
            .then(|| Window { offset: self.offset.unwrap_or(0), length: self.length });
        let Some((destination, sources)) =
            self.places.split_last().filter(|(_, sources)| !sources.is_empty())
        else {
            return Err(usage("expected a source and a destination"));
        };
        let mut destination = sites.parse(Side::Destination, destination)?;
        if self.selection.lists() {
            let [source] = sources else { return Err(usage("--files-from is for one source")) };
            if window.is_some() {
                return Err(usage("--offset and --length are for one file"));
            }
            let (source, destination) =
                (as_directory(sites.parse(Side::Source, source)?)?, as_directory(destination)?);
            return Ok(vec![Pair { source, destination, window }]);
        }
        if sources.len() > 1 {
            if window.is_some() {
                return Err(usage("--offset and --length are for one file"));
            }
            destination = as_directory(destination)?;
        }
        let mut pair = |source| {
            let source = sites.parse(Side::Source, source)?;
            Ok(Pair { source, destination: destination.clone(), window })
        };
        sources.iter().map(&mut pair).collect()
    }

    fn check(&self, pairs: &[Pair], passwords_from_stdin: usize) -> anyhow::Result<()> {
        let from_stdin = pairs.iter().filter(|pair| pair.source == Location::Standard).count()
            + passwords_from_stdin
            + usize::from(self.selection.reads_stdin())
            + usize::from(self.pairs.as_ref().is_some_and(|path| path.as_os_str() == "-"));
        if from_stdin > 1 {
            return Err(usage(
                "standard input can be used only once: for a source, the pairs, the list of files, \
                 or the password",
            ));
        }
        if self.json && pairs.iter().any(|pair| pair.destination == Location::Standard) {
            return Err(usage("standard output cannot take both the data and --json"));
        }
        Ok(())
    }
}

/// Several sources go to a directory, whether or not it ends with a slash.
fn as_directory(destination: Location) -> anyhow::Result<Location> {
    Ok(match destination {
        Location::Local(mut path) => {
            // An empty component adds a slash if there is none.
            path.push("");
            Location::Local(path)
        }
        Location::Remote(mut url) => {
            if !url.is_directory() {
                url.path.push(b'/');
            }
            Location::Remote(url)
        }
        Location::Standard => return Err(usage("only one file can go to standard output")),
        measure @ Location::Measure { .. } => measure,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        cp: Cp,
    }

    fn cp(words: &[&str]) -> Cp {
        Command::try_parse_from([&["cp"], words].concat()).unwrap().cp
    }

    #[test]
    fn fairness_with_fixed_streams_is_refused() {
        for words in [
            "--polite --share 50%",
            "--polite --streams 4",
            "--share 50 --tuner fixed",
            "-p 4 --polite",
            "--polite --tuner apt",
        ] {
            let words: Vec<&str> = words.split(' ').chain(["a", "b"]).collect();
            assert!(cp(&words).check_fairness().is_err(), "{words:?}");
        }
        for words in [
            "--polite",
            "--share 50%",
            "--no-polite --streams 4",
            "--polite -p auto",
            "--polite --tuner pilot",
        ] {
            let words: Vec<&str> = words.split(' ').chain(["a", "b"]).collect();
            assert!(cp(&words).check_fairness().is_ok(), "{words:?}");
        }
    }

    #[test]
    fn several_sources_go_to_a_directory() {
        let pairs = cp(&["a", "b", "c"]).pairs(&mut Used::default()).unwrap();
        assert_eq!(pairs.len(), 2);
        let Location::Local(path) = &pairs[1].destination else { panic!("{pairs:?}") };
        assert_eq!(path.as_os_str(), "c/");
        assert!(cp(&["a", "b", "-"]).pairs(&mut Used::default()).is_err());
        assert!(cp(&["--offset", "1", "a", "b", "c"]).pairs(&mut Used::default()).is_err());
    }

    #[test]
    fn offset_and_length_are_for_one_file() {
        let pairs = cp(&["--offset", "1K", "a", "b"]).pairs(&mut Used::default()).unwrap();
        assert_eq!(pairs[0].window, Some(Window { offset: 1024, length: None }));
        assert_eq!(cp(&["a", "b"]).pairs(&mut Used::default()).unwrap()[0].window, None);
        assert!(cp(&["--length", "0", "a", "b"]).pairs(&mut Used::default()).is_err(), "that is nothing");
    }

    #[test]
    fn flags_are_applied_to_options() {
        let options = cp(&["-a", "-n", "--sync=checksum", "--no-resume", "--delete", "-p", "4", "a", "b"])
            .settings(&Used::default());
        let options = options.unwrap().options;
        assert!(
            options.selection.recursive
                && options.preserve.links
                && options.dry_run
                && options.selection.delete
                && !options.recovery.resume
        );
        assert_eq!(options.selection.sync, Some(ropewalk_client::SyncLevel::Checksum));
        assert_eq!(options.tuning.streams, ropewalk_client::Auto::Set(4));
        assert!(cp(&["--delete", "-r", "a", "b"]).settings(&Used::default()).is_err(), "without --sync");
    }

    #[test]
    fn standard_streams_are_used_once() {
        let checked = |words: &[&str]| {
            let cp = cp(words);
            cp.check(&cp.pairs(&mut Used::default()).unwrap(), 0)
        };
        assert!(checked(&["-", "b"]).is_ok());
        assert!(checked(&["--json", "a", "-"]).is_err());
        assert!(checked(&["-", "-", "b"]).is_err());
        assert!(cp(&["-", "b"]).check(&cp(&["-", "b"]).pairs(&mut Used::default()).unwrap(), 1).is_err());
        assert!(cp(&["a", "b"]).check(&cp(&["a", "b"]).pairs(&mut Used::default()).unwrap(), 2).is_err());
    }
}
