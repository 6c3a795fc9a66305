//! Measures a disk of this host with fio, a program that is widely known.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::Limits;
use crate::collect::Unavailable;
use crate::collect::child;

/// Time that fio may take for its start and end, in addition to the time of the measurement. After
/// that it is killed.
const GRACE: Duration = Duration::from_secs(10);
const ANSWER: u64 = 1 << 20;

/// The direction of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// fio never opens the file for writing.
    Read,
    /// fio overwrites the contents of the file.
    Write,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// The rate past the page cache, in bytes per second, with `limits.file` bytes of the file at
/// `path`. Returns `None` if fio is not installed or cannot do this with the file system.
///
/// # Errors
/// fio did not end in time and was killed, or its output is not understood.
pub fn disk(work: Work, path: &Path, limits: Limits) -> Result<Option<f64>, Unavailable> {
    run(Command::new("fio"), work, path, limits, GRACE)
}

fn run(
    mut command: Command,
    work: Work,
    path: &Path,
    limits: Limits,
    grace: Duration,
) -> Result<Option<f64>, Unavailable> {
    command.args(["--name=ropewalk", "--bs=1M", "--direct=1", "--time_based", "--output-format=json"]);
    command.arg(format!("--rw={}", work.name())).arg(format!("--size={}", limits.file));
    command.arg(format!("--runtime={}", limits.time.as_secs().max(1)));
    if work == Work::Read {
        command.arg("--readonly");
    }
    command.arg(named(path));
    let output = match child::run(command, limits.time + grace, ANSWER) {
        Err(Unavailable::Missing(_)) => return Ok(None),
        output => output?,
    };
    // For example, fio cannot do this with the file system.
    if !output.status.success() {
        return Ok(None);
    }
    let told: Value = serde_json::from_str(&output.text)
        .map_err(|error| Unavailable::Failed(format!("fio says what is no JSON: {error}")))?;
    Ok(told["jobs"][0][work.name()]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0))
}

/// Escapes a path: fio takes colons as separators of several names.
fn named(path: &Path) -> OsString {
    let mut name = b"--filename=".to_vec();
    for &byte in path.as_os_str().as_bytes() {
        if matches!(byte, b'\\' | b':') {
            name.push(b'\\');
        }
        name.push(byte);
    }
    OsString::from_vec(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script, "fio"]);
        command
    }

    const SHORT: Limits = Limits { time: Duration::from_millis(50), file: 1 << 20 };
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn fio_run_parses_rate_or_reports_failure() {
        let says = |script: &str| run(shell(script), Work::Read, Path::new("/x"), SHORT, LONG);
        assert_eq!(says(r#"echo '{"jobs":[{"read":{"bw_bytes":5e6}}]}'"#), Ok(Some(5e6)));
        assert_eq!(says(r#"echo '{"jobs":[{"read":{"bw_bytes":0}}]}'"#), Ok(None));
        assert_eq!(says("exit 1"), Ok(None));
        assert!(matches!(says("echo fio"), Err(Unavailable::Failed(why)) if why.contains("no JSON")));
        let missing = run(Command::new("ropewalk-no-fio"), Work::Write, Path::new("/x"), SHORT, LONG);
        assert_eq!(missing, Ok(None));
    }

    #[test]
    fn fio_when_it_does_not_end_is_killed() {
        let stuck = run(shell("sleep infinity"), Work::Read, Path::new("/x"), SHORT, Duration::ZERO);
        assert!(matches!(stuck, Err(Unavailable::Failed(why)) if why.contains("did not end")));
    }

    #[test]
    fn named_escapes_colons() {
        assert_eq!(named(Path::new("/a:b\\c")), "--filename=/a\\:b\\\\c");
    }
}
