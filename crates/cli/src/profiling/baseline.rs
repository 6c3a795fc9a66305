//! What the parts of a transfer reach by themselves.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use openssl::symm::{Cipher, encrypt_aead};
use ropewalk_client::{Cancel, EventSink, Location, Options, Pair};
use ropewalk_profiler::profile::{Baselines, Outcome, Workload, WorkloadKind};
use ropewalk_storage::checksum::{Algorithm, block_sum};

use super::places::Kind;
use super::transfer::run;
use crate::output::say;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    /// Memory to memory over the same path, both ways
    Path,
    /// Reading the source, writing beside the destination, past the page cache, where they are on this host
    Disk,
    /// Checksums and encryption on one processor of this host
    Cpu,
}

/// Bytes with which the path is tried first, and at most.
const FIRST: u64 = 32 << 20;
const MOST: u64 = 1 << 40;
/// How long each part is measured.
const TIME: Duration = Duration::from_secs(4);
const BLOCK: usize = 1 << 20;
/// What direct reads and writes want of memory.
const ALIGNMENT: usize = 4096;
/// A disk is not filled with more.
const FILE: u64 = 8 << 30;
const RECORD: usize = 16 << 10;

/// Measures what is wanted; what cannot be is said, and left out.
pub(crate) fn measure(
    parts: &[Part],
    pair: &Pair,
    options: &Options,
    events: &dyn EventSink,
    cancel: &Cancel,
) -> Baselines {
    let mut found = Baselines::default();
    let told = |what: &str, result: anyhow::Result<f64>| match result {
        Ok(rate) => Some(rate),
        Err(error) => {
            say(format_args!("ropewalk: baseline of {what}: {}", crate::message(&error)));
            None
        }
    };
    if parts.contains(&Part::Path) {
        let path = |pair: &Pair| path(pair, options, events, cancel);
        found.path = told("the path", path(pair));
        let back = Pair { source: pair.destination.clone(), destination: pair.source.clone(), window: None };
        found.path_back = told("the path back", path(&back));
    }
    if parts.contains(&Part::Disk) {
        if let Location::Local(path) = &pair.source {
            found.source_disk = told("the source's disk", read_disk(path));
        }
        if let Location::Local(path) = &pair.destination {
            found.destination_disk = told("the destination's disk", write_disk(path));
        }
    }
    if parts.contains(&Part::Cpu) {
        found.checksum = Some(checksum());
        found.encryption = told("encryption", encryption());
    }
    found
}

/// Share of what the slowest part by itself reaches, of those that took part and were measured.
pub(crate) fn share(workload: &Workload, baselines: &Baselines) -> Option<f64> {
    let reads = matches!(workload.kind, WorkloadKind::DiskToMemory | WorkloadKind::DiskToDisk);
    let writes = matches!(workload.kind, WorkloadKind::MemoryToDisk | WorkloadKind::DiskToDisk);
    let parts = [
        baselines.path,
        baselines.source_disk.filter(|_| reads),
        baselines.destination_disk.filter(|_| writes),
    ];
    let slowest = parts.into_iter().flatten().min_by(f64::total_cmp).filter(|rate| *rate > 0.0)?;
    Some(workload.rate() / slowest)
}

/// Bytes per second from memory to memory.
fn path(pair: &Pair, options: &Options, events: &dyn EventSink, cancel: &Cancel) -> anyhow::Result<f64> {
    let options = Kind::MemMem.options(options);
    let mut size = FIRST;
    loop {
        let pair = Kind::MemMem.pair(pair, size, &options)?;
        let moved = run(&pair, &options, events, cancel);
        if let Outcome::Failed(why) = moved.workload.outcome {
            bail!("{why}");
        }
        let rate = moved.workload.rate();
        let seconds = moved.workload.seconds;
        if seconds >= TIME.as_secs_f64() / 2.0 || size >= MOST {
            return Ok(rate);
        }
        // Beginnings are slow: what is next takes longer than this says, and not much shorter.
        size = ((rate * TIME.as_secs_f64()) as u64).clamp(size * 4, MOST);
    }
}

/// Bytes per second.
fn read_disk(path: &Path) -> anyhow::Result<f64> {
    if let Some(rate) = fio("read", path, fs::metadata(path)?.len())? {
        return Ok(rate);
    }
    let (mut file, _) = open(OpenOptions::new().read(true), path)?;
    let length = file.metadata()?.len();
    if length < BLOCK as u64 {
        bail!("{} is too small for a measurement", path.display());
    }
    rate(|buffer| match file.read(buffer)? {
        0 => file.rewind().map(|()| 0),
        n => Ok(n),
    })
}

/// Bytes per second into a file beside `path`, which goes again.
fn write_disk(path: &Path) -> anyhow::Result<f64> {
    let path = std::path::absolute(path)?;
    let directory = if path.is_dir() { &path } else { path.parent().context("it has no directory")? };
    let file = tempfile::Builder::new().prefix(".ropewalk-baseline-").tempfile_in(directory)?;
    if let Some(rate) = fio("write", file.path(), FILE.min(1 << 30))? {
        return Ok(rate);
    }
    let (mut out, direct) = open(OpenOptions::new().write(true), file.path())?;
    let mut written = 0;
    rate(|buffer| {
        if written >= FILE {
            out.rewind()?;
            written = 0;
        }
        let n = out.write(buffer)?;
        written += n as u64;
        // Otherwise it would be memory that is measured.
        if !direct && written % (64 << 20) == 0 {
            out.sync_data()?;
        }
        Ok(n)
    })
}

/// Past the page cache, where the file system can; whether it is.
fn open(options: &mut OpenOptions, path: &Path) -> io::Result<(File, bool)> {
    let direct = options.clone().custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32).open(path);
    match direct {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            Ok((options.open(path)?, false))
        }
        Err(error) => Err(error),
    }
}

/// How fast `step` goes through blocks.
fn rate(mut step: impl FnMut(&mut [u8]) -> io::Result<usize>) -> anyhow::Result<f64> {
    let mut memory = vec![0; BLOCK + ALIGNMENT];
    let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
    let buffer = &mut memory[start..start + BLOCK];
    // No runs of zeros, which some disks do not write.
    buffer.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at.wrapping_mul(2_654_435_761) >> 11) as u8);
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TIME {
        bytes += step(buffer)? as u64;
    }
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}

/// As fio says; `None` where it is not installed.
fn fio(what: &str, path: &Path, size: u64) -> anyhow::Result<Option<f64>> {
    let mut command = Command::new("fio");
    command.args(["--name=ropewalk", "--bs=1M", "--direct=1", "--time_based", "--output-format=json"]);
    command.arg(format!("--rw={what}")).arg(format!("--size={size}"));
    command.arg(format!("--runtime={}", TIME.as_secs()));
    if what == "read" {
        command.arg("--readonly");
    }
    // Colons part several names.
    let name = path.to_str().context("its name is no UTF-8")?.replace('\\', "\\\\").replace(':', "\\:");
    command.arg(format!("--filename={name}")).stdin(Stdio::null()).stderr(Stdio::null());
    let output = match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        output => output.context("fio")?,
    };
    // Not with this file system, say.
    if !output.status.success() {
        return Ok(None);
    }
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).context("what fio says")?;
    Ok(told["jobs"][0][what]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0))
}

/// Bytes per second of the checksum that our programs use.
fn checksum() -> f64 {
    let data = vec![0x5a; BLOCK];
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TIME / 8 {
        std::hint::black_box(block_sum(Algorithm::Crc32c, std::hint::black_box(&data)));
        bytes += BLOCK as u64;
    }
    bytes as f64 / begin.elapsed().as_secs_f64()
}

/// Bytes per second of AES-256-GCM, in records as TLS has them.
fn encryption() -> anyhow::Result<f64> {
    let (data, key, nonce) = (vec![0x5a; RECORD], [7; 32], [9; 12]);
    let mut tag = [0; 16];
    let (begin, mut bytes) = (Instant::now(), 0_u64);
    while begin.elapsed() < TIME / 8 {
        std::hint::black_box(encrypt_aead(Cipher::aes_256_gcm(), &key, Some(&nonce), &[], &data, &mut tag)?);
        bytes += RECORD as u64;
    }
    Ok(bytes as f64 / begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_slowest_part_that_took_part_counts() {
        let baselines = Baselines {
            path: Some(100.0),
            source_disk: Some(50.0),
            destination_disk: Some(200.0),
            ..Baselines::default()
        };
        let workload = |kind| Workload { kind, bytes: 400, seconds: 10.0, ..Workload::default() };
        for (kind, is) in [
            (WorkloadKind::MemoryToMemory, 0.4),
            (WorkloadKind::MemoryToDisk, 0.4),
            (WorkloadKind::DiskToDisk, 0.8),
        ] {
            assert_eq!(share(&workload(kind), &baselines), Some(is), "{kind:?}");
        }
        assert_eq!(share(&workload(WorkloadKind::DiskToDisk), &Baselines::default()), None);
    }

    #[test]
    fn processors_and_disks_have_rates() {
        assert!(checksum() > 1e6 && encryption().unwrap() > 1e6);
        let directory = tempfile::tempdir().unwrap();
        assert!(write_disk(&directory.path().join("new")).unwrap() > 1e5);
        assert!(fs::read_dir(directory.path()).unwrap().next().is_none(), "something was left behind");
        assert!(read_disk(&directory.path().join("none")).is_err());
    }
}
