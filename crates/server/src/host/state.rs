//! The values that all sessions of a server share.
//!
//! [`Host`] is made once when the server is bound and lives as long as its sessions. Sessions keep
//! the settings with which they began; a reload replaces those for new ones.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mio::Waker;
use parking_lot::{Mutex, RwLock};
use ropewalk_engine::{BufferBudget, Pool};
use ropewalk_layers::{QuicPort, Registry, Router};
use ropewalk_paths::HookManager;
use ropewalk_security::Verifier;
use ropewalk_transport::NetManager;

use crate::config::{Fixed, Log, Problem, Severity};
use crate::error::{Error, Result};
use crate::host::audit::{self, Audit};
use crate::host::bandwidth::BandwidthLimits;
use crate::host::checksum_cache::ChecksumCache;
use crate::host::claims::Claims;
use crate::host::expiry::Expiry;
use crate::host::limits::SessionCounts;
use crate::host::load::{Buffers, Load, Shortage};
use crate::host::names::Names;
use crate::host::nodes::Nodes;
use crate::host::parts::{Appends, SharedParts};
use crate::host::presence::Presences;
use crate::host::profiling::Profiling;
use crate::host::reservations::Reservations;
use crate::host::routes::Routes;
use crate::host::space::Space;
use crate::host::stores::Stores;
use crate::host::throttle::Throttle;
use crate::host::transfer_log::TransferLog;
use crate::host::uploads::Uploads;
use crate::host::writers::Writers;
use crate::measurements::Measurements;
use crate::relay::Relay;
use crate::settings::Settings;

/// The time that running operations get to end after the server was stopped at once.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// The phases of the server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Phase {
    Running,
    /// No new connections and commands are accepted; transfers may finish until the deadline.
    Draining,
    Stopping,
}

pub(crate) struct Host {
    settings: RwLock<Arc<Settings>>,
    phase: AtomicU8,
    /// The time at which transfers have to end.
    deadline: Mutex<Option<Instant>>,
    next_session: AtomicU64,
    /// Settings that reloads do not change.
    pub(crate) fixed: Fixed,
    pub(crate) stores: Stores,
    /// Wakes the reactor.
    waker: Waker,
    pub(crate) limits: Arc<SessionCounts>,
    pub(crate) presences: Arc<Presences>,
    pub(crate) bandwidth: BandwidthLimits,
    pub(crate) throttle: Throttle,
    pub(crate) verifier: Verifier,
    /// Threads for further streams of transfers.
    pub(crate) streams: Arc<Pool>,
    pub(crate) budget: Arc<BufferBudget>,
    pub(crate) load: Load,
    /// The drivers and layers of data connections.
    pub(crate) registry: Registry,
    /// The data channels that are reached through the control port.
    pub(crate) router: Arc<Router>,
    /// Channels over QUIC can share a port, at which the registry's driver listens.
    pub(crate) has_quic_port: bool,
    pub(crate) names: Names,
    /// Connects to other servers on behalf of sessions, if this is a relay.
    pub(crate) relay: Option<Arc<Relay>>,
    /// Data nodes, if this is a front end.
    pub(crate) nodes: Option<Arc<Nodes>>,
    pub(crate) checksums: ChecksumCache,
    pub(crate) parts: SharedParts,
    pub(crate) appends: Appends,
    pub(crate) writers: Writers,
    pub(crate) uploads: Uploads,
    pub(crate) routes: Routes,
    /// Quotas, if there are any.
    pub(crate) space: Option<Arc<Space>>,
    /// Reservations of permits and of a rate, if there is a file for them.
    pub(crate) reservations: Option<Reservations>,
    /// The space on disks that uploads under way still need.
    pub(crate) claims: Claims,
    /// Makes room on full disks.
    pub(crate) expiry: Expiry,
    /// Measures the host for SITE PROFILE.
    pub(crate) measurements: Option<Arc<dyn Measurements>>,
    /// The transfers and the profiles of users that may take profiles.
    pub(crate) profiling: Arc<Profiling>,
    pub(crate) transfer_log: TransferLog,
    pub(crate) audit: Audit,
    /// The user of the only session, if it came through ssh.
    pub(crate) ssh_user: OnceLock<String>,
}

/// The parts of a host that were opened before it.
pub(crate) struct Opened {
    pub(crate) waker: Waker,
    pub(crate) nodes: Option<Nodes>,
    pub(crate) relay: Option<Arc<Relay>>,
    pub(crate) quic_port: Option<QuicPort>,
}

impl Host {
    pub(crate) fn new(
        settings: Settings,
        stores: Stores,
        measurements: Option<Arc<dyn Measurements>>,
        opened: Opened,
    ) -> Result<Arc<Self>> {
        let Opened { waker, nodes, relay, quic_port } = opened;
        let config = &settings.config;
        let (active, checks) = (config.limits.active as usize, config.limits.password_checks);
        let streams = active.saturating_mul(config.data.max_streams as usize).min(4096);
        let transfer_log = TransferLog::open(&config.log)?;
        let audit = Audit::open(&config.log)?;
        let fixed = config.fixed();
        let registry = match &config.paths.hook {
            Some(hook) => {
                let policy = config.paths.failing_hook.into();
                let manager: Arc<dyn NetManager> = Arc::new(HookManager::new(hook.clone(), policy, |why| {
                    tracing::warn!("a data connection continues without its hook: {why}");
                }));
                Registry::standard_at(quic_port.clone()).managed(&manager)
            }
            None => Registry::standard_at(quic_port.clone()),
        };
        let space = Space::open(config).map_err(|(setting, text)| {
            Error::Config(vec![Problem { severity: Severity::Error, setting: setting.into(), text }])
        })?;
        if space.is_some() && !stores.have_identities() {
            let text = "quotas need directories of this host, and the storage is another one".to_owned();
            return Err(Error::Config(vec![Problem {
                severity: Severity::Error,
                setting: "quota".into(),
                text,
            }]));
        }
        let bandwidth = BandwidthLimits::default();
        bandwidth.set(config);
        let reservations = Reservations::open(config, &bandwidth).map_err(|(setting, text)| {
            Error::Config(vec![Problem { severity: Severity::Error, setting: setting.into(), text }])
        })?;
        let memory = usize::try_from(config.data.buffer_memory).unwrap_or(usize::MAX);
        Ok(Arc::new(Self {
            phase: AtomicU8::new(Phase::Running as u8),
            deadline: Mutex::new(None),
            next_session: AtomicU64::new(1),
            fixed,
            stores,
            waker,
            limits: Arc::default(),
            presences: Arc::default(),
            bandwidth,
            throttle: Throttle::default(),
            verifier: Verifier::new(checks),
            streams: Arc::new(Pool::new("stream", streams)),
            budget: BufferBudget::new(memory),
            load: Load::of_host(),
            registry,
            router: Arc::default(),
            has_quic_port: quic_port.is_some(),
            names: Names::default(),
            relay,
            nodes: nodes.map(Arc::new),
            checksums: ChecksumCache::default(),
            parts: SharedParts::default(),
            appends: Appends::default(),
            writers: Writers::default(),
            uploads: Uploads::default(),
            routes: Routes::default(),
            space,
            reservations,
            claims: Claims::default(),
            expiry: Expiry::new(config.space.expire_parts_after),
            measurements,
            profiling: Arc::default(),
            transfer_log,
            audit,
            ssh_user: OnceLock::new(),
            settings: RwLock::new(Arc::new(settings.with_quic_port(quic_port.is_some()))),
        }))
    }

    /// The settings for sessions that begin now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }

    pub(crate) fn reopen_logs(&self, log: &Log) -> Result<()> {
        // Both files are opened, or nothing changes.
        let audit = audit::open(log)?;
        self.transfer_log.reopen(log)?;
        self.audit.replace(audit);
        Ok(())
    }

    pub(crate) fn replace_settings(&self, settings: Settings) -> Result<()> {
        self.reopen_logs(&settings.config.log)?;
        self.bandwidth.set(&settings.config);
        *self.settings.write() = Arc::new(settings.with_quic_port(self.has_quic_port));
        Ok(())
    }

    /// The buffers of all transfers.
    pub(crate) fn buffers(&self) -> Buffers {
        Buffers { used: self.budget.used() as u64, total: self.budget.total() as u64 }
    }

    /// Why new transfers have to wait, but for permits.
    pub(crate) fn shortage(&self) -> Option<Shortage> {
        self.load.shortage(&self.settings().config.limits, self.buffers())
    }

    pub(crate) fn next_session(&self) -> u64 {
        self.next_session.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::SeqCst) {
            0 => Phase::Running,
            1 => Phase::Draining,
            _ => Phase::Stopping,
        }
    }

    /// Starts the end of the server, or brings it forward.
    pub(crate) fn end(&self, phase: Phase, grace: Duration) {
        let mut deadline = self.deadline.lock();
        let at = Instant::now() + grace;
        *deadline = Some(deadline.map_or(at, |before| before.min(at)));
        drop(deadline);
        self.phase.fetch_max(phase as u8, Ordering::SeqCst);
        self.wake();
    }

    /// Whether transfers have to end now.
    pub(crate) fn must_end(&self) -> bool {
        self.phase() != Phase::Running && self.deadline.lock().is_some_and(|at| at <= Instant::now())
    }

    /// The time from which a server that was stopped no longer waits for hanging sessions, for
    /// instance in a store that does not answer.
    pub(crate) fn given_up(&self) -> Option<Instant> {
        if self.phase() != Phase::Stopping {
            return None;
        }
        self.deadline.lock().map(|at| at + STOP_PATIENCE)
    }

    /// A session has ended, perhaps the last one.
    pub(crate) fn session_ended(&self) {
        if self.phase() != Phase::Running {
            self.wake();
        }
    }

    /// Makes the reactor look at the state of the server and of parked sessions.
    pub(crate) fn wake(&self) {
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "the reactor cannot be woken");
        }
    }
}
