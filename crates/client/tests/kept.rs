//! Attributes of the sources that copies preserve: times, modes, links and holes.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::Preserve;
use ropewalk_tests::files::{ensure_same, write_sparse};
use ropewalk_tests::server::Kind;

#[test]
fn attributes_are_kept_when_asked() -> Result<()> {
    each(&gridftp(), |bench| {
        let file = bench.local.join("s/d/f");
        write(&file, b"x")?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640))?;
        symlink("f", bench.local.join("s/d/link"))?;
        let old = fs::FileTimes::new()
            .set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000));
        fs::File::options().write(true).open(&file)?.set_times(old)?;
        fs::File::open(bench.local.join("s/d"))?.set_times(old)?;
        let options = options().with(|o| o.preserve = Preserve { times: true, modes: true, links: true });
        run(bench.here("s/"), bench.url("up/"), &options)?.succeeded()?;
        // GCT's server makes links absolute, and reports them so.
        let target = if bench.server.kind() == Kind::Gct { bench.remote.join("up/d/f") } else { "f".into() };
        ensure!(fs::read_link(bench.remote.join("up/d/link"))? == target);
        fs::remove_file(bench.remote.join("up/d/link"))?;
        symlink("f", bench.remote.join("up/d/link"))?;
        fs::File::open(bench.remote.join("up/d"))?.set_times(old)?;
        run(bench.url("up/"), bench.here("back/"), &options)?.succeeded()?;
        run(bench.url("up/"), bench.url("third/"), &options)?.succeeded()?;
        for top in [bench.remote.join("up"), bench.local.join("back"), bench.remote.join("third")] {
            let metadata = fs::metadata(top.join("d/f"))?;
            ensure!(
                (metadata.mtime(), metadata.mode() & 0o777) == (1_000_000_000, 0o640),
                "{top:?}: {metadata:?}"
            );
            ensure!(fs::metadata(top.join("d"))?.mtime() == 1_000_000_000, "{top:?}");
            ensure!(fs::read_to_string(top.join("d/link"))? == "x", "{top:?}");
        }
        Ok(())
    })
}

/// globus-gridftp-server makes no dangling links.
#[test]
fn links_that_lead_nowhere_are_kept() -> Result<()> {
    let ours: Vec<Kind> = gridftp().into_iter().filter(|kind| *kind == Kind::Ropewalk).collect();
    each(&ours, |bench| {
        write(&bench.local.join("s/f"), b"x")?;
        for (target, name) in [("gone", "a"), ("../../f", "b"), ("f", "c")] {
            symlink(target, bench.local.join("s").join(name))?;
        }
        let options = options().with(|o| o.preserve = Preserve { times: false, modes: false, links: true });
        run(bench.here("s/"), bench.url("t/"), &options)?.succeeded()?;
        run(bench.url("t/"), bench.url("u/"), &options)?.succeeded()?;
        for (target, name) in [("gone", "a"), ("../../f", "b"), ("f", "c")] {
            for top in ["t", "u"] {
                ensure!(
                    fs::read_link(bench.remote.join(top).join(name))? == std::path::Path::new(target),
                    "{top}/{name}"
                );
            }
        }
        Ok(())
    })
}

#[test]
fn links_are_followed_and_circles_noticed() -> Result<()> {
    each(&gridftp(), |bench| {
        write(&bench.remote.join("s/d/f"), b"x")?;
        symlink("d", bench.remote.join("s/dirlink"))?;
        symlink("d/f", bench.remote.join("s/filelink"))?;
        symlink("..", bench.remote.join("s/d/up"))?;
        let told = run(bench.url("s/"), bench.here("back/"), &options())?;
        for name in ["d/f", "dirlink/f", "filelink"] {
            ensure!(bench.local.join("back").join(name).is_file(), "{name}");
        }
        ensure!(told.summary.files_done < 20 && told.summary.files_failed >= 1, "{:?}", told.summary);
        Ok(())
    })
}

#[test]
fn holes_stay_holes() -> Result<()> {
    each(&gridftp(), |bench| {
        let file = bench.local.join("f");
        write_sparse(&file, 64 << 20, &[(1 << 20, 5000), (40 << 20, 70_000)], 7)?;
        run(bench.here("f"), bench.url("up"), &options())?.succeeded()?;
        run(bench.url("up"), bench.here("back"), &options())?.succeeded()?;
        for copied in [bench.remote.join("up"), bench.local.join("back")] {
            ensure_same(&file, &copied)?;
            ensure!(fs::metadata(&copied)?.blocks() * 512 < 8 << 20, "{copied:?}");
        }
        Ok(())
    })
}
