//! Selects files of the sources: `--exclude` and related options, lists of names, sizes and ages.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bstr::{BString, ByteSlice};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use ropewalk_client::{Limits, Options};

use crate::exit::usage;
use crate::units;

#[derive(Debug, Args)]
pub(crate) struct Selection {
    #[command(flatten)]
    patterns: Patterns,
    /// Copy only the files that FILE (`-`: standard input) lists, a path beneath the source on each
    /// line, to the same path beneath the destination; a directory stands for everything in it
    #[arg(long, value_name = "FILE")]
    files_from: Option<PathBuf>,
    /// Paths of --files-from end with a NUL byte, as `find -print0` writes them
    #[arg(short = '0', long, requires = "files_from")]
    null: bool,
    /// Skip larger files
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    max_size: Option<u64>,
    /// Skip smaller files
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size)]
    min_size: Option<u64>,
    /// Skip files last changed longer ago than this: 12h, 7d
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    max_age: Option<Duration>,
    /// Skip files last changed within this time
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    min_age: Option<Duration>,
}

impl Selection {
    /// Whether there is a list of files, which requires that source and destination are
    /// directories.
    pub(crate) fn lists(&self) -> bool {
        self.files_from.is_some()
    }

    /// Whether the list comes from standard input.
    pub(crate) fn reads_stdin(&self) -> bool {
        self.files_from.as_ref().is_some_and(|path| path.as_os_str() == "-")
    }

    /// Reads the named files, and applies the selection to the options of a copy.
    ///
    /// # Errors
    /// A file cannot be read, or lists a path that is not beneath the source.
    pub(crate) fn apply(&self, options: &mut Options) -> anyhow::Result<()> {
        options.selection.filters = self.patterns.rules()?;
        options.selection.limits = Limits {
            min_size: self.min_size,
            max_size: self.max_size,
            min_age: self.min_age,
            max_age: self.max_age,
        };
        let Some(path) = &self.files_from else { return Ok(()) };
        if options.selection.delete {
            return Err(usage("--delete and --files-from cannot be used together"));
        }
        let name = if self.reads_stdin() { "standard input".to_owned() } else { path.display().to_string() };
        let text = read(path).map_err(|error| usage(format!("cannot read {name}: {error}")))?;
        options.selection.listed = Some(paths(&text, self.null).map_err(|e| usage(format!("{name}: {e}")))?);
        options.selection.recursive = true;
        Ok(())
    }
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if path.as_os_str() != "-" {
        return fs::read(path);
    }
    let mut text = Vec::new();
    std::io::stdin().lock().read_to_end(&mut text)?;
    Ok(text)
}

/// The paths of a list, in the form that listings of the source have.
fn paths(text: &[u8], null: bool) -> Result<Vec<BString>, String> {
    let all: Vec<&[u8]> = if null { text.split_str(b"\0").collect() } else { text.lines().collect() };
    let mut found = Vec::new();
    for given in all.into_iter().filter(|given| !given.is_empty()) {
        let parts: Vec<&[u8]> = given.split_str(b"/").filter(|part| !matches!(*part, b"" | b".")).collect();
        if parts.contains(&b"..".as_slice()) {
            return Err(format!("{:?} leads out of the source", given.as_bstr()));
        }
        found.push(BString::from(bstr::join("/", parts)));
    }
    Ok(found)
}

/// `--include` and `--exclude`, and files of them, in the order of the command line: the last match
/// decides.
#[derive(Clone, Debug, Default)]
struct Patterns(Vec<(bool, Given)>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Given {
    Glob(String),
    File(PathBuf),
}

impl Patterns {
    fn rules(&self) -> anyhow::Result<Vec<(bool, String)>> {
        let mut rules = Vec::new();
        for (include, given) in &self.0 {
            match given {
                Given::Glob(glob) => rules.push((*include, glob.clone())),
                Given::File(path) => {
                    let text = fs::read_to_string(path)
                        .map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
                    rules.extend(globs(&text).map(|glob| (*include, glob.to_owned())));
                }
            }
        }
        Ok(rules)
    }
}

/// One pattern on a line; empty lines and those that begin with `#` are ignored.
fn globs(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
}

impl Args for Patterns {
    fn augment_args(command: Command) -> Command {
        let argument = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Append);
        let pattern = |name| argument(name).value_name("GLOB").allow_hyphen_values(true);
        let file = |name| argument(name).value_name("FILE").value_parser(value_parser!(PathBuf));
        command
            .arg(pattern("exclude").help("Exclude matches, by path beneath the source"))
            .arg(pattern("include").help(
                "Include matches that an earlier --exclude excludes (the \
                                          directories above must be included, too)",
            ))
            .arg(file("exclude-from").help(
                "An --exclude for each line of FILE; empty lines and \
                                            those that begin with # are ignored",
            ))
            .arg(file("include-from").help("An --include for each line of FILE"))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Patterns {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut found = Vec::new();
        for (name, include) in [("include", true), ("exclude", false)] {
            let globs = matches.get_many::<String>(name).into_iter().flatten().cloned().map(Given::Glob);
            let places = matches.indices_of(name).into_iter().flatten();
            found.extend(places.zip(globs).map(|(index, given)| (index, include, given)));
        }
        for (name, include) in [("include-from", true), ("exclude-from", false)] {
            let files = matches.get_many::<PathBuf>(name).into_iter().flatten().cloned().map(Given::File);
            let places = matches.indices_of(name).into_iter().flatten();
            found.extend(places.zip(files).map(|(index, given)| (index, include, given)));
        }
        found.sort_by_key(|(index, ..)| *index);
        Ok(Self(found.into_iter().map(|(_, include, given)| (include, given)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        selection: Selection,
    }

    fn applied(words: &[&str]) -> anyhow::Result<Options> {
        let mut options = Options::default();
        Program::try_parse_from([&["cp"], words].concat())?.selection.apply(&mut options)?;
        Ok(options)
    }

    #[test]
    fn patterns_and_pattern_files_keep_their_order() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("patterns");
        fs::write(&file, "# ours\n\n*.tmp\n /odd \n-dash\n").unwrap();
        let file = file.to_str().unwrap();
        let options =
            applied(&["--exclude", "*", "--include-from", file, "--include", "*.h5", "--exclude", "-tmp*"]);
        let expected = [
            (false, "*"),
            (true, "*.tmp"),
            (true, " /odd "),
            (true, "-dash"),
            (true, "*.h5"),
            (false, "-tmp*"),
        ];
        assert_eq!(
            options.unwrap().selection.filters,
            expected.map(|(include, glob)| (include, glob.to_owned()))
        );
        assert!(applied(&["--exclude-from", "/nonexistent/file"]).is_err());
    }

    #[test]
    fn list_has_paths_beneath_the_source_only() {
        let lines = b"a\r\n./b//c/\n\n/d\n#e\n f\n";
        let found = paths(lines, false).unwrap();
        assert_eq!(found, ["a", "b/c", "d", "#e", " f"]);
        assert_eq!(paths(b"a\nb\0c\0", true).unwrap(), ["a\nb", "c"]);
        assert_eq!(paths(b".\n", false).unwrap(), [""]);
        for bad in ["..", "a/../../b", "/.."] {
            assert!(paths(bad.as_bytes(), false).is_err(), "{bad}");
        }
    }

    #[test]
    fn size_and_age_limits_are_parsed() {
        let options =
            applied(&["--max-size", "1GiB", "--min-size", "10K", "--max-age", "7d", "--min-age", "12h"]);
        let hours = |hours: u64| Some(Duration::from_secs(3600 * hours));
        let expected = Limits {
            min_size: Some(10 << 10),
            max_size: Some(1 << 30),
            min_age: hours(12),
            max_age: hours(7 * 24),
        };
        assert_eq!(options.unwrap().selection.limits, expected);
        assert!(applied(&["--max-size", "7d"]).is_err() && applied(&["-0"]).is_err());
    }
}
