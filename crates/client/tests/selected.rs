//! Copies of some files of a tree: by lists, sizes and ages.

mod common;

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use common::*;
use ropewalk_client::{Limits, Location, Options, SyncLevel};

const DAY: Duration = Duration::from_secs(86_400);

fn mirror() -> Options {
    options().with(|o| {
        o.selection.sync = Some(SyncLevel::Size);
        o.selection.delete = true;
        o.storage.into_directories = false;
    })
}

fn aged(path: &Path, age: Duration) -> Result<()> {
    let then = SystemTime::now().checked_sub(age).context("a time")?;
    Ok(File::options().append(true).open(path)?.set_modified(then)?)
}

fn with_slash(location: Location) -> Location {
    match location {
        Location::Local(mut path) => {
            path.push("");
            Location::Local(path)
        }
        Location::Remote(mut url) => {
            url.path.push(b'/');
            Location::Remote(url)
        }
        other => other,
    }
}

#[test]
fn list_copies_its_files_and_tells_what_is_not_there() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        for name in ["a/b/f", "a/b/g", "a/d/x/y", "top", "*", "other/z", "e n"] {
            write(&from.join(name), name.as_bytes())?;
        }
        let listed = |names: &[&str]| {
            options().with(|o| {
                o.selection.listed = Some(names.iter().map(|name| (*name).into()).collect());
                o.storage.into_directories = false;
            })
        };
        let (source, destination) = (with_slash(source), with_slash(destination));
        let some = listed(&["a/b/f", "a/d", "*", "e n"]);
        let told = run(source.clone(), destination.clone(), &some)?.succeeded()?.summary;
        ensure!(told.files_done == 4, "{told:?}");
        for name in ["a/b/f", "a/d/x/y", "*", "e n"] {
            ensure!(fs::read(to.join(name))? == name.as_bytes(), "{name}");
        }
        for name in ["a/b/g", "top", "other"] {
            ensure!(!to.join(name).exists(), "{name}");
        }
        let told =
            run(source.clone(), destination.clone(), &listed(&["top", "a/none", "no/where", "top/f"]))?;
        let failed: Vec<&str> = told.summary.failures.iter().map(|failure| &*failure.source).collect();
        ensure!(failed.len() == 3 && told.summary.files_done == 1, "{failed:?}");
        for name in ["/a/none", "/no/where", "/top/f"] {
            ensure!(failed.iter().any(|source| source.ends_with(name)), "{name}: {failed:?}");
        }
        ensure!(!to.join("no").exists());
        // A file that a filter excludes is not missing. The run before has failed in part: without
        // `resume: false`, this run would skip the files that it had finished.
        let filters = vec![(false, "/a".to_owned())];
        let told = run(
            source,
            destination,
            &listed(&["a/b/g", "top"]).with(|o| {
                o.selection.filters = filters;
                o.recovery.resume = false;
            }),
        )?;
        ensure!(told.succeeded()?.summary.files_done == 1 && !to.join("a/b/g").exists());
        Ok(())
    })
}

#[test]
fn limits_leave_out_at_the_source_and_keep_at_the_destination() -> Result<()> {
    each_way(&gridftp(), |from, source, to, destination| {
        for (name, size, age) in [("small", 10, 2), ("large", 5000, 2), ("new", 100, 0), ("d/old", 100, 30)] {
            write(&from.join(name), &vec![b'x'; size])?;
            aged(&from.join(name), age * DAY)?;
        }
        // Of these files the source has another version, or none.
        for (name, size, age) in
            [("large", 7, 2), ("gone", 50, 2), ("gone-large", 5000, 2), ("e/gone-old", 50, 30)]
        {
            write(&to.join(name), &vec![b'y'; size])?;
            aged(&to.join(name), age * DAY)?;
        }
        let limits = Limits { max_size: Some(1000), max_age: Some(7 * DAY), ..Limits::default() };
        let told = run(source.clone(), destination.clone(), &mirror().with(|o| o.selection.limits = limits))?;
        let told = told.succeeded()?.summary;
        ensure!((told.files_done, told.removed) == (2, 1), "{told:?}");
        for (name, size) in
            [("small", 10), ("new", 100), ("large", 7), ("gone-large", 5000), ("e/gone-old", 50)]
        {
            ensure!(fs::metadata(to.join(name)).is_ok_and(|found| found.len() == size), "{name}");
        }
        ensure!(!to.join("gone").exists() && !to.join("d/old").exists());
        // The limits at the other end.
        let limits = Limits { min_size: Some(5000), min_age: Some(DAY), ..Limits::default() };
        let told =
            run(source, destination, &options().with(|o| o.selection.limits = limits))?.succeeded()?.summary;
        ensure!(told.files_done == 1, "{told:?}");
        Ok(())
    })
}

#[test]
fn limits_are_for_files_that_are_named_too() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.local.join("f"), &[0; 100])?;
        let limits = Limits { min_size: Some(101), ..Limits::default() };
        let told = run(bench.here("f"), bench.url("f"), &options().with(|o| o.selection.limits = limits))?
            .succeeded()?
            .summary;
        ensure!((told.files_done, told.files_skipped) == (0, 1), "{told:?}");
        ensure!(!bench.remote.join("f").exists());
        Ok(())
    })
}
