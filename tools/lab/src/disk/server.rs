//! Mounts a slow store and serves it. The FUSE session runs on threads of this process and ends
//! when the last mount has gone. The limits are off while the lab is built and while it is removed.

use super::{backing::Backing, meter::Device};
use crate::{netns::Base, record::DiskMeter, scenario::Disk};
use fuser::{Config, Session, SessionACL};
use rustix::{
    fs::{CWD, Mode, OFlags},
    mount::{MountFlags, mount},
};
use std::{
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::PermissionsExt,
    },
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

/// Number of threads that handle requests. A request that waits for the device blocks one of them.
const THREADS: usize = 16;

/// A store that is being served.
pub(crate) struct DiskServer {
    device: Arc<Device>,
    meter: Arc<DiskMeter>,
    ended: Receiver<()>,
}

impl DiskServer {
    /// Mounts a store at a directory of the lab. It has no limits until [`Self::start`] is called.
    ///
    /// # Errors
    /// `NotFound` if this machine has no FUSE.
    pub(crate) fn mount(base: &Base, at: &str, limit: &Disk) -> io::Result<Self> {
        let backing = format!("{at}.backing");
        let (root, fuse) = base.with_files(|| {
            fs::create_dir_all(&backing)?;
            fs::set_permissions(&backing, fs::Permissions::from_mode(0o1777))?;
            let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
            let root = rustix::fs::openat(CWD, backing.as_str(), flags, Mode::empty())?;
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            let fuse = rustix::fs::openat(CWD, "/dev/fuse", flags, Mode::empty())?;
            mount_fuse(at, &fuse)?;
            Ok((root, fuse))
        })?;
        let meter = Arc::new(DiskMeter::default());
        let device = Arc::new(Device::new(limit.clone(), meter.clone()));
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        let files = Backing::new(root, device.clone());
        let session = Session::from_fd(files, fuse, SessionACL::All, config)?;
        let (end, ended) = mpsc::channel();
        thread::Builder::new().name("lab-disk".into()).spawn(move || {
            // The session ends when the last mount has gone. It returns an error then, which has no
            // further meaning.
            let _ = session.run();
            let _ = end.send(());
        })?;
        Ok(Self { device, meter, ended })
    }

    /// Applies the limits and starts counting from 0.
    pub(crate) fn start(&self) {
        for counter in [&self.meter.read, &self.meter.written, &self.meter.busy] {
            counter.store(0, Ordering::Relaxed);
        }
        self.device.limit(true);
    }

    /// Removes the limits, so that no program waits for the store when the lab ends.
    pub(crate) fn release(&self) {
        self.device.limit(false);
    }

    /// The counters of the store.
    pub(crate) fn meter(&self) -> Arc<DiskMeter> {
        self.meter.clone()
    }

    /// Bytes read, bytes written, seconds busy.
    pub(crate) fn moved(&self) -> (u64, u64, f64) {
        let busy = Duration::from_nanos(self.meter.busy.load(Ordering::Relaxed));
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        (load(&self.meter.read), load(&self.meter.written), busy.as_secs_f64())
    }

    /// Waits until the session has ended, which is after the lab's namespaces have gone.
    pub(crate) fn join(self) {
        // A process from outside may still be in one of the namespaces; it must not delay the lab.
        let _ = self.ended.recv_timeout(Duration::from_secs(2));
    }
}

fn mount_fuse(at: &str, fuse: &OwnedFd) -> io::Result<()> {
    let options = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read={}",
        fuse.as_raw_fd(),
        1 << 20
    );
    let options = CString::new(options)?;
    // Without MS_NODEV, so that programs can write to a /dev/null that a scenario makes there.
    Ok(mount("ropewalk-lab", at, "fuse", MountFlags::NOSUID, Some(options.as_c_str()))?)
}
