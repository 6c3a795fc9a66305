//! The namespaces of one host: network, mounts and host name. They are held by descriptors only.
//! Functions run in them on a thread of their own, because a thread that has entered a namespace is
//! not used for anything else.

use super::{Base, LAB_DIR, aside, base, enter, link::set_up, root, unshare};
use ropewalk_netlink::Netlink;
use rustix::{
    fs::CWD,
    mount::{MountFlags, MoveMountFlags, mount, mount_bind, move_mount},
    thread::{LinkNameSpaceType, UnshareFlags},
};
use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::Arc,
};

/// A host with its namespaces.
pub(crate) struct HostSpace {
    name: String,
    spaces: Arc<Spaces>,
}

/// The namespaces that a thread enters to be on a host.
pub(crate) struct Spaces {
    /// The network.
    pub(crate) net: OwnedFd,
    /// The view of the file system.
    pub(crate) mount: OwnedFd,
    /// The host name.
    pub(crate) uts: OwnedFd,
    /// The lab's PID namespace, for child processes of the thread.
    pub(crate) pid: OwnedFd,
}

impl HostSpace {
    /// Creates a host. `hosts` is the text of its `/etc/hosts`.
    pub(crate) fn new(base: &Base, name: &str, hosts: &str) -> io::Result<Self> {
        let (net, mount, uts) = aside(|| {
            base.enter_files()?;
            unshare(UnshareFlags::NEWNS | UnshareFlags::NEWNET | UnshareFlags::NEWUTS)?;
            rustix::system::sethostname(name.as_bytes())?;
            bind_hosts(name, hosts)?;
            mount_sys()?;
            set_up(&mut Netlink::route()?, "lo")?;
            let own = |kind| base::own_namespace(&base.proc, kind);
            Ok((own("net")?, own("mnt")?, own("uts")?))
        })?;
        let spaces = Spaces { net, mount, uts, pid: base.pid.try_clone()? };
        Ok(Self { name: name.to_owned(), spaces: Arc::new(spaces) })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn spaces(&self) -> &Arc<Spaces> {
        &self.spaces
    }
}

impl Spaces {
    /// Runs `work` on the host's network, with the file system of this process.
    pub(crate) fn on_network<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        aside(|| {
            self.enter_network()?;
            work()
        })
    }

    /// Moves the calling thread to the host's network permanently. Sockets created by it belong to
    /// that network.
    pub(crate) fn enter_network(&self) -> io::Result<()> {
        enter(&self.net, LinkNameSpaceType::Network)
    }

    /// Runs `work` with the host's network, file system and name. Processes started by it belong to
    /// the lab.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        aside(|| {
            unshare(UnshareFlags::FS)?;
            self.enter_network()?;
            enter(&self.uts, LinkNameSpaceType::HostNameAndNISDomainName)?;
            enter(&self.pid, LinkNameSpaceType::ProcessID)?;
            enter(&self.mount, LinkNameSpaceType::Mount)?;
            work()
        })
    }
}

fn bind_hosts(name: &str, hosts: &str) -> io::Result<()> {
    if !root::exists("/etc/hosts") {
        // If the machine has no /etc/hosts, there is nothing to bind over, and the lab does not
        // change the machine's /etc.
        return Ok(());
    }
    let directory = format!("{LAB_DIR}/.hosts");
    base::make_dir(&directory)?;
    let file = format!("{directory}/{name}");
    fs::write(&file, hosts)?;
    mount_bind(&file, "/etc/hosts")?;
    Ok(())
}

/// Mounts `/sys` again, because `/sys/class/net` shows the interfaces of the namespace in which it
/// was mounted.
fn mount_sys() -> io::Result<()> {
    const CGROUPS: &str = "/sys/fs/cgroup";
    let cgroups = root::exists(CGROUPS).then(|| root::copy(Path::new(CGROUPS))).transpose()?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("sysfs", "/sys", "sysfs", flags, None)?;
    if let Some(cgroups) = cgroups {
        move_mount(cgroups.as_fd(), "", CWD, CGROUPS, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    Ok(())
}
