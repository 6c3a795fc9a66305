//! `ropewalk report`: profiles as text and as pages.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use ropewalk_profiler::profile::Profile;
use ropewalk_profiler::report::{self, Extras, MOST_COMPARED, Side};

use crate::exit::{Exit, usage};
use crate::output::{colour_wanted, harmless, say};
use crate::whole;

/// Explain why a transfer was slow, from the profile (JSON) that was written of it: a summary for
/// the terminal, and with --html a page with all figures, which is one file, needs nothing else and
/// runs no scripts.
///
/// With --compare, two to six profiles are put side by side, the earliest first: changes in
/// settings, rate and causes.
#[derive(Debug, Args)]
pub struct Report {
    /// Profiles; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Write the page to this file (- is standard output)
    #[arg(long, value_name = "OUT")]
    html: Option<PathBuf>,
    /// Put the profiles side by side
    #[arg(long)]
    compare: bool,
    /// Link a file, or the files of a directory, in the page: raw data, which must be beneath the
    /// page's directory
    #[arg(long, value_name = "PATH", requires = "html", conflicts_with = "compare")]
    raw: Vec<PathBuf>,
}

/// Most linked files of one directory.
const LINKED: usize = 200;

impl Report {
    pub fn run(self) -> anyhow::Result<Exit> {
        if self.compare && !(2..=MOST_COMPARED).contains(&self.files.len()) {
            return Err(usage(format!(
                "--compare takes 2 to {MOST_COMPARED} profiles, not {}",
                self.files.len()
            )));
        }
        if self.html.is_some() && !self.compare && self.files.len() > 1 {
            return Err(usage("--html writes one page: give one profile, or --compare"));
        }
        if let Some(out) =
            self.html.as_ref().filter(|out| self.files.iter().any(|file| whole::is_same(file, out)))
        {
            return Err(usage(format!("--html {}: that is a profile", shown(out))));
        }
        if self.files.iter().filter(|file| is_dash(file)).count() > 1 {
            return Err(usage("standard input can be read once only"));
        }
        let profiles = self.files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<Profile>>>()?;
        let names: Vec<String> = self.files.iter().map(|file| file.to_string_lossy().into_owned()).collect();
        let sides: Vec<Side<'_>> =
            names.iter().zip(&profiles).map(|(name, profile)| Side { name, profile }).collect();
        if let Some(out) = &self.html {
            let page = match profiles.as_slice() {
                [profile] if !self.compare => report::html(profile, &Extras { raw: self.raw_files(out)? }),
                _ => report::compare_html(&sides),
            };
            if is_dash(out) {
                return Ok(io::stdout().lock().write_all(page.as_bytes()).map(|()| Exit::Done)?);
            }
            whole::write(out, page.as_bytes()).with_context(|| format!("cannot write {}", shown(out)))?;
        }
        let mut terminal = io::stdout().lock();
        let colour = colour_wanted(terminal.is_terminal());
        let width = width();
        if self.compare {
            terminal.write_all(report::compare_terminal(&sides, width, colour).as_bytes())?;
        } else {
            for (number, side) in sides.iter().enumerate() {
                if sides.len() > 1 {
                    let blank = if number > 0 { "\n" } else { "" };
                    writeln!(terminal, "{blank}{}:", harmless(side.name))?;
                }
                terminal.write_all(report::terminal(side.profile, width, colour).as_bytes())?;
            }
        }
        if let Some(out) = &self.html {
            say(format_args!("ropewalk: all figures are in {}", shown(out)));
        }
        Ok(Exit::Done)
    }

    /// Names relative to the page.
    fn raw_files(&self, out: &Path) -> anyhow::Result<Vec<String>> {
        let mut names = Vec::new();
        if self.raw.is_empty() {
            return Ok(names);
        }
        let page = if is_dash(out) { std::path::absolute("page")? } else { std::path::absolute(out)? };
        let base = page.parent().unwrap_or(Path::new("/"));
        for given in &self.raw {
            let context = || format!("--raw {}", shown(given));
            let mut files = vec![given.clone()];
            if fs::metadata(given).with_context(context)?.is_dir() {
                let entries = fs::read_dir(given).with_context(context)?.collect::<io::Result<Vec<_>>>();
                files = entries
                    .with_context(context)?
                    .iter()
                    .map(fs::DirEntry::path)
                    .filter(|path| path.is_file())
                    .collect();
                files.sort();
                files.truncate(LINKED);
            }
            for file in files {
                let file = std::path::absolute(file)?;
                let name = file.strip_prefix(base).map_err(|_| {
                    usage(format!(
                        "{} is not beneath {}, the directory of the page",
                        shown(&file),
                        shown(base)
                    ))
                })?;
                let name = name.to_str().ok_or_else(|| usage(format!("{} is not UTF-8", shown(&file))))?;
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn shown(path: &Path) -> String {
    harmless(&path.to_string_lossy())
}

/// The file may come from anyone.
fn read(path: &Path) -> anyhow::Result<Profile> {
    let context = || format!("cannot read {}", shown(path));
    let limit = Profile::LARGEST as u64 + 1;
    let mut bytes = Vec::new();
    if is_dash(path) {
        io::stdin().lock().take(limit).read_to_end(&mut bytes).with_context(context)?;
    } else {
        File::open(path).with_context(context)?.take(limit).read_to_end(&mut bytes).with_context(context)?;
    }
    Profile::from_json(&bytes)
        .map_err(|error| anyhow::anyhow!("{}: {}", shown(path), harmless(&error.to_string())))
}

pub(crate) fn width() -> usize {
    let columns = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
    if columns == 0 { 80 } else { columns }
}
