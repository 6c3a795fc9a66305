//! The namespaces that all hosts of a lab share: mount, PID and IPC. [`Base`] owns them and the
//! first process of the PID namespace. When that process ends, the kernel kills all other processes
//! in it, so that dropping `Base`, or killing this process, ends the programs of the lab.

use super::{aside, enter, root, unshare};
use rustix::{
    fs::{CWD, Mode, OFlags},
    thread::{LinkNameSpaceType, UnshareFlags},
};
use std::{
    fs,
    io::{self, BufRead, BufReader, ErrorKind, Read},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
};

/// The directory of the lab's own files, which exists only in the lab's view of the file system.
pub(crate) const LAB_DIR: &str = "/ropewalk-lab";

/// The first process of a lab's PID namespace: when it ends, the kernel kills all other processes
/// of the namespace. It ends when its standard input is closed, which is at the latest when this
/// process ends. It ignores SIGCHLD, so that no orphaned process stays a zombie.
const INIT: &str =
    "mount -t proc proc /proc || exit; trap '' CHLD HUP INT TERM; echo ready; exec cat >/dev/null 2>&1";

/// A lab's mount and PID namespaces, and the process that keeps the PID namespace alive.
pub(crate) struct Base {
    mount: Option<OwnedFd>,
    pub(super) pid: OwnedFd,
    /// `/proc` as this process sees it; in the lab's `/proc` this process does not exist.
    pub(super) proc: OwnedFd,
    init: Child,
}

impl Base {
    /// Creates the namespaces.
    ///
    /// # Errors
    /// `PermissionDenied` if the process is not root.
    pub(crate) fn new() -> io::Result<Self> {
        let proc = open_dir("/proc")?;
        let (mount, init) = aside(|| {
            unshare(UnshareFlags::FS | UnshareFlags::NEWNS | UnshareFlags::NEWPID | UnshareFlags::NEWIPC)?;
            root::build()?;
            let mount = own_namespace(&proc, "mnt")?;
            Ok((mount, spawn_init()?))
        })?;
        let mut base = Self { mount: Some(mount), pid: proc_namespace(&proc, init.id(), "pid")?, proc, init };
        base.wait_ready()?;
        Ok(base)
    }

    fn wait_ready(&mut self) -> io::Result<()> {
        let mut line = String::new();
        if let Some(output) = self.init.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        if line.trim_end() == "ready" {
            return Ok(());
        }
        let mut message = String::new();
        if let Some(mut errors) = self.init.stderr.take() {
            errors.read_to_string(&mut message)?;
        }
        Err(io::Error::other(format!("the first process of the lab ended: {}", message.trim())))
    }

    /// Runs `work` with the lab's view of the file system.
    pub(crate) fn with_files<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        aside(|| {
            self.enter_files()?;
            work()
        })
    }

    pub(super) fn enter_files(&self) -> io::Result<()> {
        unshare(UnshareFlags::FS)?;
        let mount = self.mount.as_ref().ok_or(ErrorKind::NotConnected)?;
        enter(mount, LinkNameSpaceType::Mount)
    }

    /// Closes the descriptor of the lab's view of the file system.
    pub(crate) fn close(&mut self) {
        self.mount = None;
    }

    /// Kills every process of the lab and waits until the last has ended.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        // An error means that the process has ended and was waited for already.
        let _ = self.init.kill();
        self.init.wait().map(drop)
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn spawn_init() -> io::Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", INIT])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

pub(super) fn open_dir(path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The calling thread's namespace of a kind.
pub(super) fn own_namespace(proc: &OwnedFd, kind: &str) -> io::Result<OwnedFd> {
    open_namespace(proc, &format!("thread-self/ns/{kind}"))
}

fn proc_namespace(proc: &OwnedFd, pid: u32, kind: &str) -> io::Result<OwnedFd> {
    open_namespace(proc, &format!("{pid}/ns/{kind}"))
}

fn open_namespace(proc: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Creates a directory and its missing parents.
pub(super) fn make_dir(path: &str) -> io::Result<()> {
    match fs::create_dir_all(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
