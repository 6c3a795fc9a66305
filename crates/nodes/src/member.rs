//! The node's side: it joins a front end, renews the lease, and keeps connections ready for
//! sessions.
//!
//! The thread of [`Member::run`] renews the lease, passes the grants of the front end to data
//! channels, and reports what they have spent. Each waiting connection has a thread; when its first
//! order arrives, another thread opens the next connection. If the front end is lost, the node
//! joins again as soon as it can. A node that drains finishes its transfers and then returns.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_limits::{Grant, Spent};

use crate::link::{Frame, Link, LinkError};
use crate::message::{Greeting, Lease, Notice, Welcome, version};
use crate::registry::{Announcement, JoinError, LEASE, RENEWAL};
use crate::token::JoinToken;
use crate::wake::Wake;

/// The number of connections that wait for orders.
const READY: usize = 2;
/// How often threads check whether the node drains.
const LOOK: Duration = Duration::from_millis(200);
/// The pause before the next attempt to connect to the front end.
const PAUSE: Duration = Duration::from_secs(1);
const WELCOME: Duration = Duration::from_secs(10);

/// The reason why a node is not a member.
#[derive(Debug, thiserror::Error)]
pub enum JoinFailure {
    #[error("{address} is no address of a front end: {source}")]
    Address { address: String, source: io::Error },
    #[error("cannot join the front end at {address}: {source}")]
    Link { address: String, source: LinkError },
    #[error("the front end at {address} refuses the node: {reason}")]
    Refused { address: String, reason: JoinError },
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot make a descriptor: {0}")]
    Wake(io::Error),
}

/// Carries out the orders of one session; the frame is the first of them. It returns when the link
/// ends, or between two orders once [`Member::is_draining`] is true.
pub type Serve = dyn Fn(Link, Frame, &Arc<Member>) + Send + Sync;

/// A data channel that moves no more than it is granted.
pub trait Spender: Send + Sync {
    fn grant(&self, grant: &Grant);
    /// The report that is due.
    fn report(&self) -> Option<Spent>;
    /// Several times a second: the report that has to be repeated, or with which unused bytes are
    /// returned.
    fn look(&self) -> Option<Spent>;
    /// There will be no more grants.
    fn close(&self);
}

/// A node that has joined.
pub struct Member {
    front_end: String,
    token: JoinToken,
    announcement: Announcement,
    /// The number of the membership; 0 if there is none.
    id: AtomicU64,
    draining: AtomicBool,
    stopping: AtomicBool,
    /// The number of sessions that are being served.
    active: AtomicUsize,
    /// The data channels, by the numbers of their accounts.
    spenders: Mutex<BTreeMap<u64, Arc<dyn Spender>>>,
    /// Reports of transfers that have ended.
    reports: Mutex<Vec<(u64, Spent)>>,
    wake: Wake,
}

impl Member {
    /// Joins the front end. If `announcement` has no address, the node announces the one from which
    /// it reaches the front end.
    ///
    /// # Errors
    /// The front end cannot be reached, does not have the token, or refuses the node.
    pub fn join(
        front_end: &str,
        token: JoinToken,
        mut announcement: Announcement,
    ) -> Result<(Arc<Self>, Joined), JoinFailure> {
        announcement.version = version(&announcement.version);
        let wake = Wake::new().map_err(JoinFailure::Wake)?;
        let (link, id) = join(front_end, &token, &mut announcement)?;
        let member = Arc::new(Self {
            front_end: front_end.to_owned(),
            token,
            announcement,
            id: AtomicU64::new(id),
            draining: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            spenders: Mutex::default(),
            reports: Mutex::default(),
            wake,
        });
        Ok((member, Joined(link)))
    }

    /// The addresses that the node has announced.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.announcement.addresses
    }

    /// Accepts no new sessions, and lets [`Self::run`] return when the running transfers have
    /// ended.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// Lets [`Self::run`] return at once.
    pub fn stop(&self) {
        self.drain();
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Passes the grants of an account on to `spender`, until the returned value is dropped.
    pub fn register(self: &Arc<Self>, account: u64, spender: Arc<dyn Spender>) -> Registered {
        self.spenders.lock().insert(account, spender);
        Registered { member: Arc::clone(self), account }
    }

    /// A channel has a report that is due.
    pub fn wake(&self) {
        self.wake.wake();
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Renews the lease until the node has drained.
    ///
    /// # Errors
    /// The front end was lost, and refuses the node when it joins again.
    pub fn run(self: &Arc<Self>, joined: Joined, serve: &Arc<Serve>) -> Result<(), JoinFailure> {
        for _ in 0..READY {
            self.keep_ready(serve).map_err(JoinFailure::Thread)?;
        }
        let mut link = joined.0;
        loop {
            let lost = match self.renew(&mut link) {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            self.id.store(0, Ordering::SeqCst);
            self.spenders.lock().values().for_each(|spender| spender.close());
            tracing::warn!(node = self.announcement.name, error = %lost, "the front end is lost; joining again");
            match self.join_again()? {
                Some(again) => link = again,
                None => return Ok(()),
            }
            tracing::info!(node = self.announcement.name, "joined again");
        }
    }

    /// Renews the lease until all sessions have ended after a drain, or the connection fails.
    fn renew(&self, link: &mut Link) -> Result<(), LinkError> {
        let (mut next, mut looked, mut told) = (Instant::now(), Instant::now(), false);
        loop {
            if self.is_draining() && !told {
                link.send(&Lease::Drain)?;
                told = true;
            }
            if self.has_ended() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= next {
                link.send(&Lease::Renew)?;
                next = now + RENEWAL;
            }
            let looks = now.saturating_duration_since(looked) >= LOOK;
            if looks {
                looked = now;
            }
            self.wake.clear();
            let reports = self.spent(looks);
            if !reports.is_empty() {
                link.send(&Lease::Spent(reports))?;
            }
            // This also finds out if the front end closes.
            let mut is_idle = true;
            while let Some(frame) = link.ready()? {
                self.notice(frame.message()?);
                is_idle = false;
            }
            if is_idle {
                link.wait_with(self.wake.as_fd(), LOOK.saturating_sub(looked.elapsed()))?;
            }
        }
    }

    fn spent(&self, looks: bool) -> Vec<(u64, Spent)> {
        let mut reports = std::mem::take(&mut *self.reports.lock());
        for (account, spender) in &*self.spenders.lock() {
            let report = if looks { spender.look() } else { None }.or_else(|| spender.report());
            reports.extend(report.map(|report| (*account, report)));
        }
        reports
    }

    fn notice(&self, notice: Notice) {
        let spenders = self.spenders.lock();
        match notice {
            Notice::Grants(grants) => {
                for (account, grant) in grants {
                    if let Some(spender) = spenders.get(&account) {
                        spender.grant(&grant);
                    }
                }
            }
            Notice::Closed(accounts) => {
                accounts
                    .iter()
                    .filter_map(|account| spenders.get(account))
                    .for_each(|spender| spender.close());
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.stopping.load(Ordering::SeqCst) || self.is_draining() && self.active.load(Ordering::SeqCst) == 0
    }

    /// Joins again after the front end was lost. Returns `None` if the node has drained in the
    /// meantime.
    fn join_again(&self) -> Result<Option<Link>, JoinFailure> {
        // The front end may not have noticed yet that the old connection is closed, so the name may
        // still be taken.
        let taken_until = Instant::now() + 2 * LEASE;
        loop {
            if self.has_ended() {
                return Ok(None);
            }
            match join(&self.front_end, &self.token, &mut self.announcement.clone()) {
                Ok((link, id)) => {
                    self.id.store(id, Ordering::SeqCst);
                    return Ok(Some(link));
                }
                Err(JoinFailure::Refused { reason: JoinError::NameTaken { .. }, .. })
                    if Instant::now() < taken_until => {}
                Err(refused @ JoinFailure::Refused { .. }) => return Err(refused),
                Err(error) => tracing::debug!(%error, "the front end is not there yet"),
            }
            thread::sleep(PAUSE);
        }
    }

    /// Opens a connection that waits for a session, on its own thread.
    fn keep_ready(self: &Arc<Self>, serve: &Arc<Serve>) -> io::Result<()> {
        let (member, serve) = (Arc::clone(self), Arc::clone(serve));
        let wait = move || {
            let Some((link, first)) = member.wait() else { return };
            member.active.fetch_add(1, Ordering::SeqCst);
            if let Err(error) = member.keep_ready(&serve) {
                tracing::error!(%error, "no thread for the next session");
            }
            serve(link, first, &member);
            member.active.fetch_sub(1, Ordering::SeqCst);
        };
        thread::Builder::new().name("session".into()).spawn(wait).map(drop)
    }

    /// Waits for the first order of a session. Returns `None` if the node drains.
    fn wait(&self) -> Option<(Link, Frame)> {
        while !self.is_draining() {
            match self.ready() {
                Ok(Some(found)) => return Some(found),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "a connection that was ready has ended");
                    thread::sleep(LOOK);
                }
            }
        }
        None
    }

    fn ready(&self) -> Result<Option<(Link, Frame)>, LinkError> {
        let id = self.id.load(Ordering::SeqCst);
        if id == 0 {
            thread::sleep(LOOK);
            return Ok(None);
        }
        let mut link = dial(&self.front_end, &self.token)?;
        link.send(&Greeting::Ready(id))?;
        while !self.is_draining() && self.id.load(Ordering::SeqCst) == id {
            if let Some(first) = link.receive(LOOK)? {
                return Ok(Some((link, first)));
            }
        }
        Ok(None)
    }
}

/// See [`Member::register`].
pub struct Registered {
    member: Arc<Member>,
    account: u64,
}

impl Registered {
    /// Sends a report, such as that of a transfer that has ended.
    pub fn report(&self, spent: Spent) {
        self.member.reports.lock().push((self.account, spent));
        self.member.wake();
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.member.spenders.lock().remove(&self.account);
    }
}

/// The connection of a new membership.
pub struct Joined(Link);

fn join(
    address: &str,
    token: &JoinToken,
    announcement: &mut Announcement,
) -> Result<(Link, u64), JoinFailure> {
    let failed = |source| JoinFailure::Link { address: address.to_owned(), source };
    addresses(address).map_err(|source| JoinFailure::Address { address: address.to_owned(), source })?;
    let mut link = dial(address, token).map_err(failed)?;
    if announcement.addresses.is_empty() {
        announcement.addresses.push(link.local().map_err(|error| failed(error.into()))?.ip().to_canonical());
    }
    let answer =
        link.send(&Greeting::Join(announcement.clone())).and_then(|()| link.expect(WELCOME)?.message());
    match answer.map_err(failed)? {
        Welcome::Joined(id) => Ok((link, id)),
        Welcome::Refused(reason) => Err(JoinFailure::Refused { address: address.to_owned(), reason }),
    }
}

fn addresses(address: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(address.to_socket_addrs()?.collect())
}

fn dial(address: &str, token: &JoinToken) -> Result<Link, LinkError> {
    let mut last = LinkError::Io(io::ErrorKind::NotFound.into());
    for address in addresses(address)? {
        match Link::connect(address, token) {
            Ok(link) => return Ok(link),
            Err(error) => last = error,
        }
    }
    Err(last)
}
