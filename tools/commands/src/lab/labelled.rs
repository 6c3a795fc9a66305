//! `ropewalk lab findings profiler`: transfers with a known bottleneck, and the profiler's verdicts
//! on them.

mod cases;
mod drawn;
mod scene;
mod table;

pub(super) use scene::SSH;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, anyhow};
use ropewalk_lab::report::findings::Section;
use ropewalk_lab::run::{RunOptions, Stop, run};
use ropewalk_profiler::profile::Profile;
use ropewalk_profiler::verdict::{Cause, CauseKind, Verdict};
use serde::Serialize;

use self::cases::{Case, Set};
use self::scene::Scene;
use super::{of_run, of_scenario, stop_at_signal};
use crate::exit::{Exit, usage};
use crate::output::{json_line, say};

/// Largest profile that is read.
const LARGEST: u64 = 64 << 20;

/// The line of a case in the file of results.
#[derive(Serialize)]
struct Judged {
    case: String,
    set: Set,
    label: CauseKind,
    /// Whether the first cause is the right one, at the right host.
    right: bool,
    /// From 1; absent if it is not among the causes.
    rank: Option<usize>,
    first: Option<CauseKind>,
    confidence: f64,
    /// Bytes per second: measured, expected at most, and without the bottleneck.
    rate: f64,
    ceiling: Option<f64>,
    control: Option<f64>,
    causes: Vec<Cause>,
}

impl Judged {
    fn new(case: &Case, profile: &Profile, control: Option<&Profile>) -> Self {
        let causes = Verdict::of(profile).causes;
        let is_it = |cause: &Cause| {
            case.label.contains(&cause.kind) && (case.host.is_none() || case.host == cause.host.as_deref())
        };
        let rank = causes.iter().position(is_it).map(|at| at + 1);
        Self {
            case: case.name.clone(),
            set: case.set,
            label: case.label[0],
            right: rank == Some(1),
            rank,
            first: causes.first().map(|cause| cause.kind),
            confidence: causes.first().map_or(0.0, |cause| cause.confidence),
            rate: profile.workload.rate(),
            ceiling: case.ceiling,
            control: control.map(|profile| profile.workload.rate()),
            causes,
        }
    }
}

/// Runs those cases of `wanted` (all if empty) that have no profile in the directory named after
/// `output`, at most `jobs` at the same time, and judges all cases with a profile. Lines are
/// written to `output`. With `run_none` it only judges.
pub(super) fn study(
    wanted: &[String],
    output: &Path,
    jobs: u16,
    run_none: bool,
) -> anyhow::Result<(Exit, Section)> {
    let all = cases::all();
    if let Some(name) = wanted.iter().find(|name| all.iter().all(|case| case.name != **name)) {
        let names: Vec<&str> = all.iter().map(|case| case.name.as_str()).collect();
        return Err(usage(format!("there is no case {name}; there are {}", names.join(", "))));
    }
    let directory = std::path::absolute(output)?.with_extension("profiles");
    fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    let file_of = |case: &Case| directory.join(&case.name).with_added_extension("json");
    let is_due = |case: &&Case| {
        !run_none && (wanted.is_empty() || wanted.contains(&case.name)) && !file_of(case).exists()
    };
    // Processors are shared, so cases that they limit run one at a time.
    let (heavy, light): (Vec<&Case>, Vec<&Case>) =
        all.iter().filter(is_due).partition(|case| case.scene.is_wide());
    let stop = stop_at_signal("ropewalk: stopping, taking the lab down (press Ctrl-C again to quit now)")?;
    let failed = [(light, jobs), (heavy, 1)].map(|(cases, jobs)| run_all(&cases, jobs, &file_of, &stop));
    let there = all.iter().map(|case| (case, file_of(case))).filter(|(_, file)| file.exists());
    let judged = there.map(|(case, file)| judge(case, &file)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut lines = Vec::new();
    for line in &judged {
        json_line(&mut lines, line)?;
    }
    fs::write(output, lines).with_context(|| format!("cannot write {}", output.display()))?;
    let exit = match failed {
        _ if stop.is_stopped() => Exit::Interrupted,
        [false, false] => Exit::Done,
        _ => Exit::Failed,
    };
    Ok((exit, table::section(&judged)))
}

/// Runs cases and reports failures. Returns whether one failed.
fn run_all(cases: &[&Case], jobs: u16, file_of: &(impl Fn(&Case) -> PathBuf + Sync), stop: &Stop) -> bool {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let work = || {
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)).filter(|_| !stop.is_stopped())
        {
            let file = file_of(case);
            let measured = measure(&case.scene, &case.name, &file, stop).and_then(|()| {
                case.control
                    .as_ref()
                    .map_or(Ok(()), |scene| measure(scene, &case.name, &control_of(&file), stop))
            });
            match measured.and_then(|()| judge(case, &file)) {
                Ok(judged) => tell(&judged),
                Err(error) => {
                    say(format_args!("ropewalk: {}: {error:#}", case.name));
                    failed.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    failed.into_inner()
}

/// The profile without the bottleneck.
fn control_of(file: &Path) -> PathBuf {
    file.with_extension("control.json")
}

fn measure(scene: &Scene, name: &str, file: &Path, stop: &Stop) -> anyhow::Result<()> {
    // The file is moved to its name once it is complete.
    let part = file.with_added_extension("part");
    let scenario = scene.scenario(name, &part).map_err(of_scenario)?;
    let kept = match run(&scenario, &RunOptions { stop: stop.clone(), ..RunOptions::default() }) {
        Ok(_) => fs::rename(&part, file).with_context(|| format!("no profile at {}", part.display())),
        Err(error) => Err(of_run(error)),
    };
    if kept.is_err() {
        // Removes the file if it exists.
        let _ = fs::remove_file(&part);
    }
    kept
}

fn judge(case: &Case, file: &Path) -> anyhow::Result<Judged> {
    let control = control_of(file);
    let control = control.exists().then(|| read(&control)).transpose()?;
    Ok(Judged::new(case, &read(file)?, control.as_ref()))
}

fn read(file: &Path) -> anyhow::Result<Profile> {
    let wrong = || anyhow!("{} is not a profile", file.display());
    if fs::metadata(file)?.len() > LARGEST {
        return Err(wrong());
    }
    Profile::from_json(&fs::read(file)?).with_context(wrong)
}

fn tell(judged: &Judged) {
    let causes: Vec<String> = judged
        .causes
        .iter()
        .map(|cause| {
            let host = cause.host.as_deref().unwrap_or("-");
            format!("{} {host} {:.2}", table::name(cause.kind), cause.confidence)
        })
        .collect();
    let mark = if judged.right { "right" } else { "WRONG" };
    say(format_args!(
        "{mark}  {}: {}; it says {}",
        judged.case,
        table::name(judged.label),
        causes.join(", ")
    ));
}
