//! Transfers that are resumed after a crash of the host: a journal is trusted only as far as its
//! content can be verified.

mod common;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use common::*;
use ropewalk_client::{Cancel, ChecksumPolicy, Event, FsyncPolicy, Location, Options, Pair};
use ropewalk_storage::checksum::{Algorithm, Hasher};
use ropewalk_tests::files::{damage, ensure_same, write_random};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::Kind;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 24 * MIB;

/// Makes the journal at `path` look like one from an earlier boot. Its header has the boot at byte
/// 16, and ends with a checksum.
fn reboot(path: &Path) -> Result<()> {
    let file = fs::File::options().read(true).write(true).open(path).with_context(|| format!("{path:?}"))?;
    let mut fixed = [0; 32];
    file.read_exact_at(&mut fixed, 0)?;
    let length = u32::from_le_bytes([fixed[8], fixed[9], fixed[10], fixed[11]]) as usize;
    let mut header = vec![0; length];
    file.read_exact_at(&mut header, 0)?;
    header[16..32].fill(7);
    let mut hasher = Hasher::new(Algorithm::Crc32c);
    hasher.update(&header[..length - 4]);
    let sum = u32::from_str_radix(&hasher.finish(), 16)?;
    header[length - 4..].copy_from_slice(&sum.to_le_bytes());
    Ok(file.write_all_at(&header, 0)?)
}

/// Stops a copy when more than 8 MiB of it have arrived and `enough` returns `true`.
fn stopped(pair: &Pair, options: &Options, enough: &(dyn Fn() -> bool + Sync)) -> Result<()> {
    let cancel = Cancel::new();
    let told = run_until(vec![pair.clone()], options, &cancel, &|event| {
        if matches!(event, Event::Progress { bytes, .. } if *bytes > 8 * MIB) && enough() {
            cancel.cancel();
        }
    })?;
    ensure!(told.summary.interrupted, "{:?}", told.summary);
    Ok(())
}

/// Checks that the damaged range of the part file is sent again, and little more, and that the copy
/// is right.
fn taken_up(bench: &Bench, pair: &Pair, options: &Options, directory: &Path, name: &str) -> Result<()> {
    let part = directory.join(format!(".{name}.ropewalk-part"));
    reboot(&directory.join(format!(".{name}.ropewalk-journal")))?;
    damage(&part, 3 * MIB + 5)?;
    let told = run_pairs(vec![pair.clone()], options)?.succeeded()?;
    ensure_same(&bench.local.join("f"), &directory.join(name))?;
    let summary = &told.summary;
    ensure!(summary.bytes + summary.bytes_resumed == SIZE && summary.retries == 0, "{summary:?}");
    ensure!(summary.bytes_resumed >= 4 * MIB, "{summary:?}");
    ensure_clean(directory)
}

#[test]
fn blocks_of_a_download_are_proved_after_a_reboot() -> Result<()> {
    each(&gridftp(), |bench| {
        write_random(&bench.local.join("f"), SIZE, 1)?;
        fs::copy(bench.local.join("f"), bench.remote.join("f"))?;
        let proxy = Proxy::start(bench.server.address())?;
        proxy.set_rate(Some(10 * MIB));
        // The checksums of blocks are CRC-32C; with another algorithm a block has none.
        let checksum = match bench.server.kind() {
            Kind::Ropewalk => ChecksumPolicy::Default,
            _ => return Ok(()),
        };
        let options = options().with(|o| o.integrity.checksum = checksum);
        let source = place(&bench.server.url_at(proxy.address(), "f"));
        let pair = Pair { source, destination: bench.here("back"), window: None };
        stopped(&pair, &options, &|| true)?;
        proxy.set_rate(None);
        taken_up(&bench, &pair, &options, bench.local.path(), "back")
    })
}

#[test]
fn blocks_of_an_upload_are_proved_after_a_reboot_of_the_server() -> Result<()> {
    each(&gridftp(), |bench| {
        if bench.server.kind() != Kind::Ropewalk {
            return Ok(());
        }
        write_random(&bench.local.join("f"), SIZE, 1)?;
        let proxy = Proxy::start(bench.server.address())?;
        proxy.set_rate(Some(10 * MIB));
        let options = {
            let mut o = options();
            o.state_directory = Some(bench.local.directory("state")?);
            o
        };
        let destination = place(&bench.server.url_at(proxy.address(), "up"));
        let pair = Pair { source: bench.here("f"), destination, window: None };
        // Data that the client has sent may not have arrived yet.
        stopped(&pair, &options, &|| proxy.moved() > 10 * MIB)?;
        proxy.set_rate(None);
        taken_up(&bench, &pair, &options, bench.remote.path(), "up")
    })
}

#[test]
fn without_sums_only_what_was_forced_to_the_disk_is_believed() -> Result<()> {
    each(&gridftp(), |bench| {
        write_random(&bench.remote.join("f"), SIZE, 1)?;
        let proxy = Proxy::start(bench.server.address())?;
        let journal = bench.local.join(".back.ropewalk-journal");
        let pair = Pair {
            source: place(&bench.server.url_at(proxy.address(), "f")),
            destination: Location::Local(bench.local.join("back")),
            window: None,
        };
        for (fsync, some) in [(FsyncPolicy::AtEnd, false), (FsyncPolicy::EachMarker, true)] {
            proxy.set_rate(Some(8 * MIB));
            let options = options().with(|o| {
                o.integrity.checksum = ChecksumPolicy::None;
                o.integrity.fsync = fsync;
            });
            let begun = std::time::Instant::now();
            // This is longer than the time between two checkpoints.
            stopped(&pair, &options, &|| begun.elapsed().as_millis() > 1300)?;
            reboot(&journal)?;
            proxy.set_rate(None);
            let told = run_pairs(vec![pair.clone()], &options)?.succeeded()?;
            ensure!((told.summary.bytes_resumed > 0) == some, "{fsync:?}: {:?}", told.summary);
            ensure_same(&bench.remote.join("f"), &bench.local.join("back"))?;
            fs::remove_file(bench.local.join("back"))?;
        }
        Ok(())
    })
}
