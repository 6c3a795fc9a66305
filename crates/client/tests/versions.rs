//! Sources that are replaced while they are copied: the copy is one whole version.

mod common;

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use common::*;
use ropewalk_client::Auto;
use ropewalk_tests::files::{ensure_same, write_random};
use ropewalk_tests::proxy::Proxy;
use ropewalk_tests::server::Kind;

const SIZE: u64 = 144 << 20;

/// Each session has its own file open, and detects no change.
#[test]
fn ranges_of_two_files_do_not_become_one() -> Result<()> {
    let Some(bench) = Bench::new(Kind::Ropewalk)? else { return Ok(()) };
    let (source, next) = (bench.remote.join("f"), bench.remote.join("next"));
    write_random(&source, SIZE, 1)?;
    write_random(&next, SIZE, 2)?;
    for (file, age) in [(&source, 100), (&next, 50)] {
        let file = fs::File::options().write(true).open(file)?;
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age))?;
    }
    let proxy = Proxy::start(bench.server.address())?;
    proxy.set_rate(Some(SIZE));
    let from = place(&format!("ftp://{}/f", proxy.address()));
    let several = options().with(|o| o.tuning.files = Auto::Set(2));
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| run(from, bench.here("f"), &several));
        proxy.wait_for(SIZE / 8, Duration::from_secs(30))?;
        fs::rename(&next, &source)?;
        proxy.set_rate(None);
        let told = copying.join().map_err(|_| anyhow::anyhow!("panicked"))??;
        told.succeeded()?;
        ensure!(proxy.data_connections() > 1);
        ensure_same(&source, &bench.local.join("f"))
    })
}
