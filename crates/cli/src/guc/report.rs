//! Prints events in the format of GCT's program.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use ropewalk_client::{Cancel, DANGLING, Event, EventSink, FileId, Options, Pair};

use super::expand::{escaped, show_with_password};
use super::options::Guc;
use super::pending::{self, Facts};
use super::perf::Perf;
use crate::output::{say, shown_text};

pub(super) struct Report {
    verbose: bool,
    performance: bool,
    /// Whether the list of copied sources is needed at the end.
    accounts: bool,
    goes_on: bool,
    cancel: Cancel,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    active: HashMap<FileId, Active>,
    /// Bytes of the run so far.
    total: u64,
    /// How often each source was copied, or found to be up to date.
    done: HashMap<String, usize>,
    would_copy: String,
    given: Given,
    failures: u64,
    /// Multi-line replies that are not complete yet, by peer: the prefix of the last line.
    replies: HashMap<String, String>,
}

/// The requested pairs, by the names that events use.
#[derive(Default)]
struct Given {
    /// Lines of pairs that name one file each, by source and destination.
    lines: HashMap<String, HashMap<String, String>>,
    /// URLs of both ends of all pairs.
    trees: HashMap<String, String>,
}

impl Given {
    /// The URL of an entry of a tree, in the form in which the tree's URL was given.
    fn url(&self, name: &str) -> String {
        if let Some(url) = self.trees.get(name) {
            return url.clone();
        }
        let parents = name.rmatch_indices('/').flat_map(|(at, _)| [at + 1, at]);
        for at in parents {
            if let Some(url) = self.trees.get(&name[..at]) {
                return format!(
                    "{}/{}",
                    url.trim_end_matches('/'),
                    escaped(name[at..].trim_start_matches('/').as_bytes())
                );
            }
        }
        as_url(name)
    }
}

struct Active {
    source: String,
    perf: Perf,
    /// Whether the file's data goes to standard output, so that lines must not.
    quiet: bool,
}

impl Report {
    pub(super) fn new(guc: &Guc, cancel: &Cancel) -> Self {
        Self {
            verbose: guc.verbose,
            performance: guc.performance,
            accounts: guc.dump_file.is_some(),
            goes_on: guc.goes_on(),
            cancel: cancel.clone(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns the pairs that were not copied. If a source is named several times, all of its
    /// copies must have succeeded.
    pub(super) fn left<'p>(&self, pairs: &'p [Pair], options: &Options) -> Vec<&'p Pair> {
        let mut due: HashMap<String, usize> = HashMap::new();
        for pair in pairs {
            *due.entry(pair.source.in_events(options)).or_default() += 1;
        }
        let state = self.state();
        let is_left = |pair: &&Pair| {
            let source = pair.source.in_events(options);
            state.done.get(&source) < due.get(&source)
        };
        pairs.iter().filter(is_left).collect()
    }

    /// Registers the pairs to copy. `as_is`: the user gave these pairs; they were not found in a
    /// directory or by a pattern.
    pub(super) fn given(&self, pairs: &[Pair], as_is: bool, options: &Options) {
        if !options.dry_run {
            return;
        }
        let mut state = self.state();
        for pair in pairs {
            let source = pair.source.in_events(options);
            if as_is {
                let destination = pair.destination.in_events(options);
                let lines = state.given.lines.entry(source.clone()).or_default();
                lines.insert(destination, pending::given(pair));
            }
            state.given.trees.insert(source, show_with_password(&pair.source));
            let destination = show_with_password(&pair.destination);
            state.given.trees.insert(pair.destination.in_events(options), destination);
        }
    }

    pub(super) fn would_copy(&self) -> String {
        self.state().would_copy.clone()
    }

    /// Number of files that failed permanently.
    pub(super) fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Counts a source of unknown type.
    pub(super) fn lost(&self) {
        self.state().failures += 1;
    }

    /// Prints one heading for a reply, however many lines it has.
    fn reply(&self, peer: String, line: &str) {
        let mut state = self.state();
        if let Some(end) = state.replies.get(&peer) {
            if line.starts_with(end) {
                state.replies.remove(&peer);
                say(format_args!("{line}\n"));
            } else {
                say(line);
            }
            return;
        }
        let several = line.get(3..4) == Some("-");
        say(format_args!("debug: response from {peer}:\n{line}{}", if several { "" } else { "\n" }));
        if several {
            state.replies.insert(peer, format!("{} ", &line[..3]));
        }
    }

    fn failed(&self, id: FileId, source: &str, error: &str, retry_in: Option<f64>) {
        let mut state = self.state();
        if retry_in.is_some() {
            return;
        }
        state.active.remove(&id);
        // The copy was cancelled, by the user or by the time limit.
        if self.cancel.is_cancelled() {
            return;
        }
        state.failures += 1;
        // As with GCT, a list of pending files has the given pair: the source may exist when the
        // list is copied.
        for (_, line) in state.given.lines.remove(source).into_iter().flatten() {
            state.would_copy += &line;
        }
        // Without -c the run ends at the first error: the other files were not started.
        match (self.goes_on, state.failures) {
            (true, _) => say(format_args!("\ncontinuing on error: {error}\n")),
            (false, 1) => say(format_args!("\nerror: {error}\n")),
            (false, _) => {}
        }
    }
}

impl EventSink for Report {
    fn event(&self, event: Event) {
        match event {
            Event::FileStarted { id, source, destination, .. } => {
                let mut state = self.state();
                // A retry concerns the same file.
                if state.active.contains_key(&id) {
                    return;
                }
                // As with GCT: printed lines would become part of the data.
                let quiet = source == "-" || destination == "-";
                if self.verbose && !quiet {
                    print(&announcement(&as_url(&source), &as_url(&destination), self.performance));
                }
                let perf = Perf::new(Instant::now(), state.total);
                state.active.insert(id, Active { source, perf, quiet });
            }
            Event::Progress { bytes, .. } => {
                let mut state = self.state();
                state.total = bytes;
                if self.performance {
                    // With several files in flight the line is about the one that started first.
                    let first = state.active.iter_mut().min_by_key(|(id, _)| **id);
                    if let Some(line) = first
                        .filter(|(_, active)| !active.quiet)
                        .and_then(|(_, active)| active.perf.progress(Instant::now(), bytes))
                    {
                        print(&line);
                    }
                }
            }
            Event::FileDone { id, bytes, seconds, .. } => {
                let mut state = self.state();
                let Some(mut active) = state.active.remove(&id) else { return };
                if self.performance && !active.quiet {
                    print(&format!("{}\n", active.perf.done(Instant::now(), bytes, seconds)));
                }
                if self.accounts {
                    *state.done.entry(active.source).or_default() += 1;
                }
            }
            Event::FileSkipped { source, reason } => {
                if reason == DANGLING {
                    let source = shown_text(&source, io::stderr().is_terminal());
                    say(format_args!("warning: {source}: {DANGLING}; it is left out"));
                }
                if self.accounts {
                    *self.state().done.entry(source).or_default() += 1;
                }
            }
            Event::FileFailed { id, source, error, retry_in } => self.failed(id, &source, &error, retry_in),
            Event::WouldCopy { source, destination, size, modified, mode, .. } => {
                let mut state = self.state();
                let given = &state.given;
                let facts = Facts { size, modified, mode };
                let line = given.lines.get(&source).and_then(|lines| lines.get(&destination)).cloned();
                let found = || pending::found(&given.url(&source), &given.url(&destination), facts);
                let line = line.unwrap_or_else(found);
                state.would_copy += &line;
            }
            Event::WouldMake { source, destination, modified, mode } => {
                let facts = Facts { size: None, modified, mode };
                let mut state = self.state();
                let given = &state.given;
                let line = pending::directory(&given.url(&source), &given.url(&destination), facts);
                state.would_copy += &line;
            }
            Event::Warning { message } => say(format_args!("warning: {message}")),
            Event::Dialogue { peer, direction: '>', line } => {
                say(format_args!("debug: sending command to {peer}:\n{line}\n"));
            }
            Event::Dialogue { peer, line, .. } => self.reply(peer, &line),
            _ => {}
        }
    }
}

/// Prints to standard output. A failure is ignored: the copy is still wanted.
fn print(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// GCT writes URLs throughout.
fn as_url(name: &str) -> String {
    if name.starts_with('/') {
        return format!("file://{}", escaped(name.as_bytes()));
    }
    let Some((scheme, rest)) = name.split_once("://") else { return name.to_owned() };
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    format!("{scheme}://{host}{}", escaped(path.as_bytes()))
}

/// The lines before a file: the directories, then the names; one name if both are the same.
fn announcement(source: &str, destination: &str, performance: bool) -> String {
    let (source_directory, source_name) = cut(source);
    let (destination_directory, destination_name) = cut(destination);
    let names = if source_name == destination_name || destination_name.is_empty() {
        source_name.to_owned()
    } else {
        format!("{source_name}  ->  {destination_name}")
    };
    let end = if performance { "\n" } else { "" };
    format!("Source: {source_directory}\nDest:   {destination_directory}\n  {names}\n{end}")
}

fn cut(url: &str) -> (&str, &str) {
    url.split_at(url.rfind('/').map_or(0, |at| at + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_match_gct() {
        assert_eq!(
            announcement("ftp://h:1/tmp/d/big", "file:///dev/null", true),
            "Source: ftp://h:1/tmp/d/\nDest:   file:///dev/\n  big  ->  null\n\n"
        );
        assert_eq!(
            announcement("ftp://h/d/a", "file:///out/a", false),
            "Source: ftp://h/d/\nDest:   file:///out/\n  a\n"
        );
    }

    #[test]
    fn urls_have_escaped_names() {
        assert_eq!(as_url("/d/a b%\u{1b}"), "file:///d/a%20b%25%1B");
        assert_eq!(as_url("ftp://[::1]:21/d/a b"), "ftp://[::1]:21/d/a%20b");
        assert_eq!(as_url("/d/x://y/z"), "file:///d/x://y/z");
    }

    #[test]
    fn report_of_a_run_finds_the_pending_pairs() {
        let cancel = Cancel::new();
        let report = Report::new(
            &Guc { continue_on_error: true, dump_file: Some("left".into()), ..Guc::default() },
            &cancel,
        );
        let started = |id, name: &str| Event::FileStarted {
            id,
            source: format!("/s/{name}"),
            destination: format!("/d/{name}"),
            size: None,
            resumed_from: 0,
        };
        report.event(started(0, "a"));
        report.event(started(1, "b"));
        report.event(Event::FileDone { id: 0, bytes: 1, seconds: 0.1, checksum: None });
        report.event(Event::FileFailed {
            id: 1,
            source: "/s/b".into(),
            error: "gone".into(),
            retry_in: None,
        });
        report.event(Event::FileSkipped { source: "/s/c".into(), reason: "same".into() });
        assert_eq!(report.state().done, HashMap::from([("/s/a".into(), 1), ("/s/c".into(), 1)]));
        let pair = |source: &str, destination: &str| {
            let at = |path: &str| ropewalk_client::Location::Local(path.into());
            Pair { source: at(source), destination: at(destination), window: None }
        };
        let pairs =
            [pair("/s/a", "/d/a"), pair("/s/b", "/d/b"), pair("/s/c", "/d/c"), pair("/s/c", "/d/other")];
        // One of the two copies of `c` is missing, and it is unknown which.
        assert_eq!(report.left(&pairs, &Options::default()), [&pairs[1], &pairs[2], &pairs[3]]);
        assert_eq!(report.left(&pairs[..3], &Options::default()), [&pairs[1]]);
        assert_eq!(report.failures(), 1);
        assert!(!cancel.is_cancelled());
    }
}
