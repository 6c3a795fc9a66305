//! A node's membership at one front end: it renews the lease, and keeps connections ready for
//! sessions.
//!
//! The thread of [`Membership::run`] renews the lease, passes the grants of the front end to data
//! channels, and reports what they have spent. Each waiting connection has a thread; when its first
//! order arrives, another thread opens the next connection. If the front end is lost, the node
//! joins again as soon as it can.
//!
//! The front end answers renewals. A node without an answer for the time of a lease ends its
//! sessions itself: the front end may have given their transfers to other nodes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ropewalk_limits::{Grant, Spent};

use crate::link::{Frame, Link, LinkError};
use crate::member::{Common, JoinFailure, Serve};
use crate::message::{Greeting, Lease, Notice, Report, Welcome};
use crate::registry::{JoinError, LEASE, RENEWAL};
use crate::wake::Wake;

/// The number of connections that wait for orders.
const READY: usize = 2;
/// How often threads check whether the node drains.
const LOOK: Duration = Duration::from_millis(200);
/// The pause before the next attempt to connect to the front end.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause before the next attempt to join a front end that refuses the node.
const REFUSED: Duration = Duration::from_secs(10);
const WELCOME: Duration = Duration::from_secs(10);

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

/// See the module.
pub(crate) struct Membership {
    front_end: String,
    common: Arc<Common>,
    present: Mutex<Present>,
    /// The number of sessions of this front end that are being served.
    sessions: AtomicU32,
    /// The data channels, by the numbers of their accounts.
    spenders: Mutex<BTreeMap<u64, Arc<dyn Spender>>>,
    /// Reports of transfers that have ended.
    reports: Mutex<Vec<(u64, Spent)>>,
    wake: Wake,
}

/// The present membership.
struct Present {
    /// The number that the front end has given; 0 if the node is no member.
    number: u64,
    /// The address that was joined; the name may have those of several front ends.
    address: Option<SocketAddr>,
    /// When the node sent the last renewal that was answered. The lease at the front end ends
    /// later.
    renewed: Instant,
}

impl Membership {
    pub(crate) fn new(front_end: &str, common: &Arc<Common>) -> Result<Self, JoinFailure> {
        Ok(Self {
            front_end: front_end.to_owned(),
            common: Arc::clone(common),
            present: Mutex::new(Present { number: 0, address: None, renewed: Instant::now() }),
            sessions: AtomicU32::new(0),
            spenders: Mutex::default(),
            reports: Mutex::default(),
            wake: Wake::new().map_err(JoinFailure::Wake)?,
        })
    }

    /// Joins the front end.
    ///
    /// # Errors
    /// The front end cannot be reached, does not have the token, or refuses the node.
    pub(crate) fn join(&self) -> Result<Joined, JoinFailure> {
        let Self { front_end, common, .. } = self;
        let failed = |source| JoinFailure::Link { address: front_end.clone(), source };
        let addresses = front_end
            .to_socket_addrs()
            .map_err(|source| JoinFailure::Address { address: front_end.clone(), source })?;
        let mut link = Err(LinkError::Io(io::ErrorKind::NotFound.into()));
        for address in addresses {
            link = Link::connect(address, &common.token);
            if link.is_ok() {
                break;
            }
        }
        let mut link = link.map_err(failed)?;
        let mut announcement = common.announcement.clone();
        if announcement.addresses.is_empty() {
            let own = link.local().map_err(|error| failed(error.into()))?.ip().to_canonical();
            announcement.addresses.push(own);
        }
        let sent = Instant::now();
        let answer = link.send(&Greeting::Join(announcement)).and_then(|()| link.expect(WELCOME)?.message());
        match answer.map_err(failed)? {
            Welcome::Joined(number) => {
                *self.present.lock() = Present { number, address: Some(link.peer()), renewed: sent };
                Ok(Joined { link, front_end: front_end.clone() })
            }
            Welcome::Refused(reason) => Err(JoinFailure::Refused { address: front_end.clone(), reason }),
        }
    }

    /// Renews the lease until the node has drained. Without `joined`, it joins first.
    ///
    /// # Errors
    /// The front end was lost, and refuses the node when it joins again.
    pub(crate) fn run(
        self: &Arc<Self>,
        mut joined: Option<Joined>,
        serve: &Arc<Serve>,
    ) -> Result<(), JoinFailure> {
        for _ in 0..READY {
            self.keep_ready(serve).map_err(JoinFailure::Thread)?;
        }
        let node = &self.common.announcement.name;
        let mut message = "joined";
        loop {
            let Some(Joined { mut link, .. }) = joined.take() else {
                match self.join_again()? {
                    Some(again) => joined = Some(again),
                    None => return Ok(()),
                }
                tracing::info!(node, front_end = self.front_end, "{message}");
                continue;
            };
            message = "joined again";
            let Err(error) = self.renew(&mut link) else { return Ok(()) };
            self.present.lock().number = 0;
            self.spenders.lock().values().for_each(|spender| spender.close());
            tracing::warn!(node, front_end = self.front_end, %error, "the front end is lost; joining again");
        }
    }

    /// Renews the lease until all sessions have ended after a drain, or the connection fails.
    fn renew(&self, link: &mut Link) -> Result<(), LinkError> {
        let (mut next, mut looked, mut drains) = (Instant::now(), Instant::now(), false);
        let (mut unanswered, mut load) = (VecDeque::new(), 0);
        loop {
            if self.common.is_draining() && !drains {
                link.send(&Lease::Drain)?;
                drains = true;
            }
            if self.common.has_ended() {
                return Ok(());
            }
            let now = Instant::now();
            let looks = now.saturating_duration_since(looked) >= LOOK;
            if looks {
                looked = now;
            }
            let elsewhere = self.sessions_elsewhere();
            // The front end needs to know soon that the work for others has changed.
            if now >= next || looks && elsewhere != load {
                link.send(&Lease::Renew { elsewhere })?;
                unanswered.push_back(now);
                load = elsewhere;
                next = now + RENEWAL;
            }
            if self.present.lock().renewed.elapsed() >= LEASE {
                let text = format!("it has not answered for {} s", LEASE.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
            }
            self.wake.clear();
            let reports = self.spent(looks);
            if !reports.is_empty() {
                link.send(&Lease::Spent(reports))?;
            }
            // This also finds out if the front end closes.
            let mut is_idle = true;
            while let Some(frame) = link.ready()? {
                match frame.message()? {
                    Notice::Renewed => {
                        if let Some(sent) = unanswered.pop_front() {
                            self.present.lock().renewed = sent;
                        }
                    }
                    Notice::Grants(grants) => self.grant(&grants),
                    Notice::Closed(accounts) => self.close(&accounts),
                }
                is_idle = false;
            }
            if is_idle {
                link.wait_with(self.wake.as_fd(), LOOK.saturating_sub(looked.elapsed()))?;
            }
        }
    }

    /// The number of sessions of other front ends.
    fn sessions_elsewhere(&self) -> u32 {
        // If one begins or ends meanwhile, the next report has it.
        let own = self.sessions.load(Ordering::SeqCst);
        self.common.sessions.load(Ordering::SeqCst).saturating_sub(own)
    }

    fn spent(&self, looks: bool) -> Vec<(u64, Spent)> {
        let mut reports = std::mem::take(&mut *self.reports.lock());
        for (account, spender) in &*self.spenders.lock() {
            let report = if looks { spender.look() } else { None }.or_else(|| spender.report());
            reports.extend(report.map(|report| (*account, report)));
        }
        reports
    }

    fn grant(&self, grants: &[(u64, Grant)]) {
        let spenders = self.spenders.lock();
        for (account, grant) in grants {
            if let Some(spender) = spenders.get(account) {
                spender.grant(grant);
            }
        }
    }

    fn close(&self, accounts: &[u64]) {
        let spenders = self.spenders.lock();
        accounts.iter().filter_map(|account| spenders.get(account)).for_each(|spender| spender.close());
    }

    /// Joins again after the front end was lost, or was not there. Returns `None` if the node has
    /// drained in the meantime.
    fn join_again(&self) -> Result<Option<Joined>, JoinFailure> {
        // The front end may not have noticed yet that the old connection is closed, so the name may
        // still be taken.
        let taken_until = Instant::now() + 2 * LEASE;
        let mut next = Instant::now();
        loop {
            if self.common.has_ended() {
                return Ok(None);
            }
            if Instant::now() < next {
                thread::sleep(LOOK);
                continue;
            }
            next = Instant::now() + PAUSE;
            match self.join() {
                Ok(joined) => return Ok(Some(joined)),
                Err(JoinFailure::Refused { reason: JoinError::NameTaken { .. }, .. })
                    if Instant::now() < taken_until => {}
                // The others are still served, and an administrator may correct this one.
                Err(error @ JoinFailure::Refused { .. }) if self.common.has_several => {
                    tracing::warn!(node = self.common.announcement.name, %error, "a front end is missing");
                    next = Instant::now() + REFUSED;
                }
                Err(refused @ JoinFailure::Refused { .. }) => return Err(refused),
                Err(error) => tracing::debug!(%error, "the front end is not there yet"),
            }
        }
    }

    /// Opens a connection that waits for a session, on its own thread.
    fn keep_ready(self: &Arc<Self>, serve: &Arc<Serve>) -> io::Result<()> {
        let (membership, serve) = (Arc::clone(self), Arc::clone(serve));
        let wait = move || {
            let Some((link, first, lease)) = membership.wait() else { return };
            let counted = Counted::new(&membership);
            if let Err(error) = membership.keep_ready(&serve) {
                tracing::error!(%error, "no thread for the next session");
            }
            serve(link, first, &lease);
            drop(counted);
        };
        thread::Builder::new().name("session".into()).spawn(wait).map(drop)
    }

    /// Waits for the first order of a session. Returns `None` if the node drains.
    fn wait(self: &Arc<Self>) -> Option<(Link, Frame, SessionLease)> {
        while !self.common.is_draining() {
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

    fn ready(self: &Arc<Self>) -> Result<Option<(Link, Frame, SessionLease)>, LinkError> {
        let (number, address) = {
            let present = self.present.lock();
            (present.number, present.address)
        };
        let Some(address) = address.filter(|_| number != 0) else {
            thread::sleep(LOOK);
            return Ok(None);
        };
        let mut link = Link::connect(address, &self.common.token)?;
        link.send(&Greeting::Ready(number))?;
        let lease = SessionLease { membership: Arc::clone(self), number };
        while !self.common.is_draining() && lease.is_valid() {
            if let Some(first) = link.receive(LOOK)? {
                return Ok(Some((link, first, lease)));
            }
        }
        // A session may have taken the connection just now.
        link.send(&Report::Left)?;
        Ok(None)
    }
}

/// Counts a session until it is dropped.
struct Counted(Arc<Membership>);

impl Counted {
    fn new(membership: &Arc<Membership>) -> Self {
        membership.common.sessions.fetch_add(1, Ordering::SeqCst);
        membership.sessions.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(membership))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::SeqCst);
        self.0.common.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The lease under which the orders of a session have come.
pub struct SessionLease {
    membership: Arc<Membership>,
    number: u64,
}

impl SessionLease {
    /// Whether the node is still the same member of the front end, and the front end has answered
    /// its renewals. If not, the front end may have given the transfers to other nodes.
    pub fn is_valid(&self) -> bool {
        let present = self.membership.present.lock();
        present.number == self.number && present.renewed.elapsed() < LEASE
    }

    /// Whether the session has to end after the present order.
    pub fn is_draining(&self) -> bool {
        self.membership.common.is_draining()
    }

    /// Passes the grants of an account on to `spender`, until the returned value is dropped.
    pub fn register(&self, account: u64, spender: Arc<dyn Spender>) -> Registered {
        self.membership.spenders.lock().insert(account, spender);
        Registered { membership: Arc::clone(&self.membership), account }
    }

    /// Returns the function by which a channel says that it has a report that is due.
    pub fn waking(&self) -> impl Fn() + Send + Sync + use<> {
        let membership = Arc::clone(&self.membership);
        move || membership.wake.wake()
    }
}

/// See [`SessionLease::register`].
pub struct Registered {
    membership: Arc<Membership>,
    account: u64,
}

impl Registered {
    /// Sends a report, such as that of a transfer that has ended.
    pub fn report(&self, spent: Spent) {
        self.membership.reports.lock().push((self.account, spent));
        self.membership.wake.wake();
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.membership.spenders.lock().remove(&self.account);
    }
}

/// The connection of a new membership.
pub struct Joined {
    link: Link,
    front_end: String,
}

impl Joined {
    pub(crate) fn is_of(&self, membership: &Membership) -> bool {
        self.front_end == membership.front_end
    }
}
