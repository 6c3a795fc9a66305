//! `ropewalk lab findings case-study`: repeats the case study of Nguyen, Kettimuthu and others
//! (FTProfiler) in the lab.
//!
//! Each part is a scenario that takes less than three minutes. Its results are kept, so that the
//! same command resumes after an interruption. A part whose files are removed is measured again.

mod build;
mod figures;
mod paper;
mod parts;
mod sections;

use std::fs;
use std::path::Path;

use anyhow::{Context, anyhow};
use ropewalk_lab::report::findings::Section;
use ropewalk_lab::run::{RunError, RunOptions, Stop, run};
use ropewalk_profiler::profile::Profile;

use self::parts::Part;
use super::progress::RunProgress;
use super::{of_run, of_scenario, stop_at_signal};
use crate::exit::{Exit, usage};
use crate::output::say;

/// Largest profile that is read.
const LARGEST: u64 = 64 << 20;

/// Runs those parts of `wanted` (all if empty) that have no results in the directory `output`, and
/// writes the sections of all parts that have results.
pub(super) fn study(
    wanted: &[String],
    output: &Path,
    run_none: bool,
) -> anyhow::Result<(Exit, Vec<Section>)> {
    let all = parts::all();
    if let Some(name) = wanted.iter().find(|name| all.iter().all(|part| part.name != **name)) {
        let names: Vec<&str> = all.iter().map(|part| part.name).collect();
        return Err(usage(format!("there is no part {name}; there are {}", names.join(", "))));
    }
    let directory = std::path::absolute(output)?;
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let mut exit = Exit::Done;
    if !run_none {
        let program = build::program()?;
        let stop = stop_at_signal(
            "ropewalk: stopping, taking the lab down (press Ctrl-C again to \
                                   quit now)",
        )?;
        for part in &all {
            let there = part.files.iter().all(|file| directory.join(file).exists());
            if there || !(wanted.is_empty() || wanted.iter().any(|name| name == part.name)) {
                continue;
            }
            say(format_args!("ropewalk: {}", part.name));
            match measure(part, &directory, stop.clone()) {
                Ok(()) => build::note(&directory, part.name, &program)?,
                Err(error) if matches!(error.downcast_ref(), Some(RunError::Stopped)) => {
                    return Ok((Exit::Interrupted, vec![]));
                }
                Err(error) => {
                    say(format_args!("ropewalk: {}: {}", part.name, crate::message(&error)));
                    exit = Exit::Failed;
                }
            }
        }
    }
    Ok((exit, sections::all(&Results { directory: &directory })?))
}

fn measure(part: &Part, directory: &Path, stop: Stop) -> anyhow::Result<()> {
    // Results are moved into the directory once they are complete.
    let out = tempfile::Builder::new().prefix(".part-").tempdir_in(directory)?;
    let scenario = part.scenario(out.path()).map_err(of_scenario)?;
    let progress = RunProgress::new(true);
    let options = RunOptions { stop, events: Some(progress.events()), ..RunOptions::default() };
    let result = run(&scenario, &options);
    progress.finish();
    match result {
        Ok(_) => {}
        Err(error @ RunError::Stopped) => return Err(error.into()),
        Err(error) => return Err(of_run(error)),
    }
    for file in &part.files {
        let from = out.path().join(file);
        fs::rename(&from, directory.join(file)).with_context(|| format!("it wrote no {file}"))?;
    }
    Ok(())
}

/// The results, by file.
struct Results<'a> {
    directory: &'a Path,
}

impl Results<'_> {
    /// `None` if it was not measured yet.
    fn bytes(&self, file: &str) -> anyhow::Result<Option<Vec<u8>>> {
        let path = self.directory.join(file);
        if !path.exists() {
            return Ok(None);
        }
        if fs::metadata(&path)?.len() > LARGEST {
            return Err(anyhow!("{} is not a profile: it is too large", path.display()));
        }
        fs::read(&path).map(Some).with_context(|| format!("cannot read {}", path.display()))
    }

    fn profile(&self, file: &str) -> anyhow::Result<Option<Profile>> {
        let read =
            |bytes: Vec<u8>| Profile::from_json(&bytes).with_context(|| format!("{file} is not a profile"));
        self.bytes(file)?.map(read).transpose()
    }
}
