//! The privileges of the process after it has started.

use ropewalk_storage::Identity;
use rustix::io::Errno;
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::server::Server;

/// The capabilities with which root accesses files of all users.
const FILES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// The capabilities to take on the identities of sessions.
const IDENTITIES: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

impl Server {
    /// Gives up all privileges, for good, that the process does not need once it listens. It keeps
    /// CAP_SETUID and CAP_SETGID if sessions work as local accounts, and CAP_NET_BIND_SERVICE if
    /// data connections use ports below 1024. It can no longer execute programs with more rights
    /// than its own, makes no memory dumps, and debuggers of other users cannot attach. This also
    /// sets the umask of the settings.
    ///
    /// It is for programs that do nothing but serve. The main thread has to call it before other
    /// threads are made, since existing threads keep their capabilities.
    ///
    /// # Errors
    /// The system denies a change that every process may make.
    pub fn confine(&self) -> Result<()> {
        let settings = self.host().settings();
        let config = &settings.config;
        confine(config, needed(config))
            .map_err(|errno| Error::system("cannot give up privileges")(errno.into()))?;
        tell(config);
        Ok(())
    }
}

/// As [`Server::confine`], for the process of [`Server::for_ssh`], which has to call it before it
/// makes its first thread. The process works for the user as whom it runs: for root, the
/// capabilities to access files of all users stay.
///
/// # Errors
/// The system denies a change that every process may make.
pub fn confine_ssh(config: &Config) -> Result<()> {
    confine(config, FILES | for_ports(config))
        .map_err(|errno| Error::system("cannot give up privileges")(errno.into()))
}

/// As [`Server::confine`], for a data node, before it makes its first thread.
pub(crate) fn confine_node(data_ports: Option<(u16, u16)>) -> Result<()> {
    let mut config = Config::default();
    config.data.ports = data_ports;
    confine(&config, needed(&config))
        .map_err(|errno| Error::system("cannot give up privileges")(errno.into()))
}

fn confine(config: &Config, needed: CapabilitySet) -> std::result::Result<(), Errno> {
    if let Some(umask) = config.identity.umask {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(umask & 0o777));
    }
    // One byte is too little for a file, and means "none" to programs that receive dumps through a
    // pipe, which look past 0 (core(5), kernel/coredump.c).
    let core = setrlimit(Resource::Core, Rlimit { current: Some(1), maximum: Some(1) });
    // The parent process may have set the limit to 0 for good.
    core.or_else(|errno| if getrlimit(Resource::Core).maximum == Some(0) { Ok(()) } else { Err(errno) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    let before = capabilities(None)?;
    let kept = needed & before.permitted;
    if before.effective.contains(CapabilitySet::SETPCAP) {
        limit(kept)?;
    }
    clear_ambient_capability_set()?;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets)
}

fn needed(config: &Config) -> CapabilitySet {
    let mut needed = CapabilitySet::empty();
    if config.identity.mapped {
        needed |= IDENTITIES;
    }
    needed | for_ports(config)
}

fn for_ports(config: &Config) -> CapabilitySet {
    let low = |ports: Option<(u16, u16)>| ports.is_some_and(|(first, _)| first < 1024);
    if low(config.data.ports) || low(config.data.source_ports) {
        return CapabilitySet::NET_BIND_SERVICE;
    }
    CapabilitySet::empty()
}

/// Limits the rights of executed programs to `kept`.
fn limit(kept: CapabilitySet) -> std::result::Result<(), Errno> {
    for capability in (0..64).map(|number| CapabilitySet::from_bits_retain(1 << number)) {
        if kept.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel knows no further capabilities.
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn tell(config: &Config) {
    let uid = rustix::process::geteuid().as_raw();
    if config.identity.mapped && Identity::can_act() {
        tracing::info!(uid, "sessions work on files as the local accounts of their users");
    } else {
        tracing::info!(uid, "every session works on files as the server's own user");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_keeps_only_needed_capabilities() {
        let mut config = Config::default();
        assert_eq!(needed(&config), IDENTITIES);
        config.data.source_ports = Some((20, 20));
        config.identity.mapped = false;
        assert_eq!(needed(&config), CapabilitySet::NET_BIND_SERVICE);
        config.data.source_ports = Some((2000, 3000));
        assert_eq!(needed(&config), CapabilitySet::empty());
    }
}
