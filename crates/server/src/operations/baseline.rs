//! SITE PROFILE BASELINE: the rates of disks and processors of this host, for accounts that may
//! take profiles.

use std::os::fd::BorrowedFd;

use ropewalk_protocol::path::VirtualPath;
use ropewalk_protocol::profiling::ProfileAnswer;
use ropewalk_protocol::server::Failure;
use ropewalk_security::Access;
use ropewalk_storage::{DiskFile, Kind, WriteOptions};
use rustix::io::Errno;

use super::files::system;
use super::profile::measurements;
use crate::accounts::virtual_devices;
use crate::failure::failure;
use crate::host::profiling::{Slot, StartError};
use crate::measurements::{DiskRate, IperfError};
use crate::session::job::Job;

/// At most this fraction of a disk's free space is written, so that other programs do not run out
/// of space.
const SPARED: u64 = 10;

/// The permit to keep this host busy, which is one for a profile.
fn slot(job: &Job<'_>) -> Result<Slot, Failure> {
    let most = job.context.settings.config.profiling.at_once;
    job.host.profiling.slot(most).ok_or_else(|| Failure::Busy(StartError::TooMany(most).to_string()))
}

fn no_disk() -> Failure {
    Failure::Refused { code: 550, text: "There is no disk behind this path.".into() }
}

fn answer(rate: Result<DiskRate, String>) -> Result<ProfileAnswer, Failure> {
    match rate {
        Ok(DiskRate { bytes_per_second, direct }) => Ok(ProfileAnswer::Disk { bytes_per_second, direct }),
        Err(error) => Err(Failure::Refused { code: 550, text: format!("No rate of the disk: {error}.") }),
    }
}

/// Reads the file with the rights of the session's user, for a few seconds.
pub(super) fn read(job: &mut Job<'_>, path: &VirtualPath) -> Result<ProfileAnswer, Failure> {
    let _slot = slot(job)?;
    let login = job.context.login()?;
    let acting = login.acting()?;
    let place = login.existing(path, Access::Read)?;
    let file = login.store.open_read(&place).map_err(failure)?;
    drop(acting);
    if file.metadata().map_err(failure)?.kind != Kind::File {
        return Err(system(Errno::INVAL, "open"));
    }
    let descriptor: BorrowedFd<'_> = file.descriptor().ok_or_else(no_disk)?;
    if virtual_devices::is_name(path) {
        return Err(no_disk());
    }
    answer(measurements(job)?.read_disk(descriptor))
}

/// Writes a file beside the path, which need not exist, with the rights of the session's user. The
/// name of the file is removed before anything is written, so that nothing is left of it in any
/// case.
pub(super) fn write(job: &mut Job<'_>, path: &VirtualPath) -> Result<ProfileAnswer, Failure> {
    let _slot = slot(job)?;
    let login = job.context.login()?;
    let acting = login.acting()?;
    // An upload creates missing directories in the nearest one that exists.
    let mut directory = path.clone();
    let is_directory = |path: &VirtualPath| {
        let place = login.existing(path, Access::Create).ok()?;
        Some(login.store.stat(&place, true).ok()?.kind == Kind::Directory)
    };
    while is_directory(&directory) != Some(true) {
        directory = directory.parent().ok_or_else(no_disk)?;
    }
    let name = format!(".ropewalk-baseline-{:x}-{}", job.context.id, std::process::id());
    let path = directory.child(name.as_bytes()).map_err(|_| system(Errno::NAMETOOLONG, "open"))?;
    // Both rights are needed, since the file is removed as well.
    let place = login.entry(&path, Access::Create)?;
    login.entry(&path, Access::Write)?;
    let parent = place.parent().unwrap_or_else(VirtualPath::root);
    let most = login.store.free_space(&parent).map_err(failure)?.map(|free| free / SPARED);
    let options = WriteOptions { create: true, truncate: false, exclusive: true, mode: 0o600 };
    let file = login.store.open_write(&place, options).map_err(failure)?;
    login.store.remove_file(&place).map_err(failure)?;
    drop(acting);
    let descriptor = file.disk().and_then(DiskFile::descriptor).ok_or_else(no_disk)?;
    answer(measurements(job)?.write_disk(descriptor, most))
}

pub(super) fn processor(job: &mut Job<'_>) -> Result<ProfileAnswer, Failure> {
    let _slot = slot(job)?;
    let rates = measurements(job)?.processor().map_err(Failure::Busy)?;
    Ok(ProfileAnswer::Processor { checksum: rates.checksum, encryption: rates.encryption })
}

/// Starts iperf3 for one test, at the address of the control connection.
pub(super) fn iperf(job: &mut Job<'_>) -> Result<ProfileAnswer, Failure> {
    let config = &job.context.settings.config;
    let refused = |text: String| Err(Failure::Refused { code: 550, text });
    if !config.profiling.iperf3 {
        return refused("This server runs no iperf3 (profiling.iperf3 in its settings).".into());
    }
    let (address, ports) = (config.data.interface.unwrap_or(job.context.local.ip()), config.data.ports);
    // The port of the last server may be the only one in the range.
    job.context.iperf = None;
    let most = config.profiling.at_once;
    let Some(slot) = job.host.profiling.iperf_slot(most) else {
        return Err(Failure::Busy(format!("{most} iperf3 run already: try again later.")));
    };
    match measurements(job)?.iperf(address, ports, Box::new(slot)) {
        Ok(server) => {
            let port = server.port();
            tracing::info!(
                session = job.context.id,
                user = job.context.user(),
                port,
                "an iperf3 was started"
            );
            job.context.iperf = Some(server);
            Ok(ProfileAnswer::Iperf { port })
        }
        Err(IperfError::Unavailable(text)) => refused(format!("{text}.")),
        Err(IperfError::Failed(text)) => Err(Failure::Busy(text)),
    }
}
