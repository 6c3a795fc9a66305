//! Runs a shell or another program on a host of a running lab.

use super::{RunError, process, registry};
use crate::netns::Spaces;
use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
};
use std::{env, io, os::fd::OwnedFd, process::ExitStatus};

/// Runs a program on a host of a running lab, at the terminal of this process, and waits until it
/// ends. Without a command it runs a shell (`$SHELL`, or `/bin/sh`). The program is killed when the
/// lab ends.
///
/// # Errors
/// [`RunError::NoSuchLab`], [`RunError::NoSuchHost`], [`RunError::NotRoot`], [`RunError::Spawn`].
pub fn shell(lab: &str, host: &str, command: &[String]) -> Result<ExitStatus, RunError> {
    let info = registry::find(lab)?;
    let Some(of_host) = info.hosts.get(host) else {
        let hosts = info.hosts.keys().cloned().collect();
        return Err(RunError::NoSuchHost { lab: lab.to_owned(), host: host.to_owned(), hosts });
    };
    let open = |descriptor: i32| -> Result<OwnedFd, RunError> {
        let path = format!("/proc/{}/fd/{descriptor}", info.process);
        rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            if error == Errno::ACCESS || error == Errno::PERM {
                return RunError::NotRoot;
            }
            RunError::Build { what: format!("enter lab {lab}"), error: error.into() }
        })
    };
    let [net, mount, uts, pid] = of_host.namespaces;
    let spaces = Spaces { net: open(net)?, mount: open(mount)?, uts: open(uts)?, pid: open(pid)? };
    run(&spaces, host, of_host, command)
}

fn run(
    spaces: &Spaces,
    host: &str,
    of_host: &registry::HostInfo,
    command: &[String],
) -> Result<ExitStatus, RunError> {
    let arguments = match command {
        [] => vec![env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into())],
        given => given.to_vec(),
    };
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => RunError::NotRoot,
        _ => RunError::Spawn {
            name: "shell".into(),
            host: host.to_owned(),
            program: arguments[0].clone(),
            error,
        },
    };
    let mut program = process::prepare(&arguments, &of_host.environment, &of_host.directory);
    // The thread that starts the program is on the host; the calling thread is not.
    let mut child = spaces.inside(|| program.spawn()).map_err(failed)?;
    child.wait().map_err(failed)
}
