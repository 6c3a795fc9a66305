//! The namespaces of one host.

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

/// A host: its namespaces.
pub(crate) struct HostSpace {
    name: String,
    spaces: Arc<Spaces>,
}

/// What a thread goes into to be on a host.
pub(crate) struct Spaces {
    /// Its network.
    pub(crate) net: OwnedFd,
    /// Its view of the file system.
    pub(crate) mount: OwnedFd,
    /// Its name.
    pub(crate) uts: OwnedFd,
    /// The lab's processes, for the children of the thread.
    pub(crate) pid: OwnedFd,
}

impl HostSpace {
    /// Makes a host. `hosts` is its `/etc/hosts`.
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

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its namespaces.
    pub(crate) fn spaces(&self) -> &Arc<Spaces> {
        &self.spaces
    }
}

impl Spaces {
    /// Runs something on the host's network; files are this process's own.
    pub(crate) fn on_network<T: Send>(&self, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
        aside(|| {
            self.enter_network()?;
            work()
        })
    }

    /// Moves the calling thread to the host's network, for good. Sockets that it makes stay there.
    pub(crate) fn enter_network(&self) -> io::Result<()> {
        enter(&self.net, LinkNameSpaceType::Network)
    }

    /// Runs something on the host: its network, its files, its name. Processes started there belong to the lab.
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
        // Without one there is nothing to cover, and the machine's /etc is not the lab's to change.
        return Ok(());
    }
    let directory = format!("{LAB_DIR}/.hosts");
    base::make_dir(&directory)?;
    let file = format!("{directory}/{name}");
    fs::write(&file, hosts)?;
    mount_bind(&file, "/etc/hosts")?;
    Ok(())
}

/// `/sys/class/net` shows the interfaces of the namespace in which `/sys` was mounted.
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
