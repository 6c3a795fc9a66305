//! Uploads to a Ropewalk server, with and without SITE UPLOAD.

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::{ChecksumPolicy, Event};
use ropewalk_storage::checksum::Algorithm;
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::scratch::Scratch;
use ropewalk_tests::server::Kind;

/// The commands by which a file gets its name and attributes: those of an upload, and those of a
/// part file.
const OF_UPLOAD: [&str; 2] = ["SITE UPLOAD BEGIN ", "SITE UPLOAD COMMIT "];
const OF_PART: [&str; 2] = ["RNFR ", "RNTO "];

fn are_named_by(bench: &Bench, used: [&str; 2], unused: &[&str]) -> Result<()> {
    write_random(&bench.local.join("big"), 9 << 20, 1)?;
    write_random(&bench.local.join("small"), 1000, 2)?;
    for (n, checksum) in
        [ChecksumPolicy::Default, ChecksumPolicy::None, ChecksumPolicy::Require(Algorithm::Md5)]
            .into_iter()
            .enumerate()
    {
        let options = options().with(|o| {
            o.trace_control = true;
            o.integrity.checksum = checksum;
            (o.preserve.times, o.preserve.modes) = (true, true);
        });
        let (up, third) = (format!("up{n}"), format!("third{n}"));
        let through = options.clone().with(|o| o.data.through_here = true);
        for (from, to, name, options) in [
            (bench.here("big"), up.clone(), "big", &options),
            (bench.url(&up), third.clone(), "big", &options),
            (bench.url(&third), format!("through{n}"), "big", &through),
            (bench.here("small"), format!("small{n}"), "small", &options),
            (bench.url(&format!("small{n}")), format!("moved{n}"), "small", &options),
        ] {
            let told = run(from, bench.url(&to), options)?.succeeded()?;
            let sent = |command: &str| {
                told.count(|event| {
                    matches!(event, Event::Dialogue { direction: '>', line, .. } if line.starts_with(command))
                })
            };
            let copied = bench.remote.join(&to);
            ensure_same(&bench.local.join(name), &copied)?;
            let (old, new) = (fs::metadata(bench.local.join(name))?, fs::metadata(&copied)?);
            ensure!((old.mtime(), old.mode()) == (new.mtime(), new.mode()), "{to}");
            // Small files whose checksum is announced go directly to their names.
            if !to.starts_with("small") {
                ensure!(used.iter().all(|command| sent(command) == 1), "{to}: {:?}", told.events);
            }
            ensure!(unused.iter().all(|command| sent(command) == 0), "{to}: {:?}", told.events);
        }
    }
    Ok(())
}

#[test]
fn files_are_committed_if_the_server_announces_uploads() -> Result<()> {
    let Some(bench) = Bench::new(Kind::Ropewalk)? else { return Ok(()) };
    are_named_by(&bench, OF_UPLOAD, &OF_PART)
}

/// The server behaves like one of an earlier version.
#[test]
fn part_files_are_renamed_if_the_server_has_no_uploads() -> Result<()> {
    let directory = Scratch::new()?;
    let config = directory.join("server.toml");
    write(&config, b"disabled_commands = ['SITE UPLOAD']")?;
    let with = |setup: ropewalk_tests::server::Setup| setup.argument("--config").argument(&config);
    let Some(bench) = Bench::with(Kind::Ropewalk, with)? else { return Ok(()) };
    are_named_by(&bench, OF_PART, &OF_UPLOAD)
}
