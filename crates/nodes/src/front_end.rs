//! The front end's side: it accepts nodes, holds their leases, and lends their connections to
//! sessions.
//!
//! One thread accepts connections; each node has a thread that receives its renewals. Sessions take
//! connections on their own threads ([`FrontEnd::choose`]). A node whose lease ends or whose
//! connection closes is no longer a member, and its transfers fail.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::accounts::{Accounts, ChannelPurse, OpenAccount};
use crate::link::{Link, LinkError};
use crate::message::{Greeting, Lease, Notice, Welcome, version};
use crate::placement::{Placement, Suits};
use crate::registry::{Membership, NodeId, Registry};
use crate::token::JoinToken;

/// How often threads check whether the front end has ended or a lease has expired.
const LOOK: Duration = Duration::from_millis(500);
/// How often limits are looked at, which may have changed, while a node has channels.
const LIMITS: Duration = Duration::from_millis(50);
/// The least time between two messages with grants to a node.
const GRANTS: Duration = Duration::from_millis(5);
/// A new connection has to send its greeting within this time.
const GREETING: Duration = Duration::from_secs(10);
/// The time within which a node has to offer another connection. It keeps some ready, and opens a
/// new one when one is taken.
const CONNECTION: Duration = Duration::from_secs(3);
/// The maximum number of connections that have not yet proved that they come from a node.
const MOST_UNPROVEN: usize = 64;
/// The maximum number of connections of a node that wait for a session. A node keeps two.
const MOST_READY: usize = 16;

/// The nodes of a server.
pub struct FrontEnd {
    listener: TcpListener,
    address: SocketAddr,
    token: JoinToken,
    pub(crate) registry: Mutex<Registry>,
    /// How many times a node has joined, or begun to leave.
    changes: AtomicU64,
    /// Connections of members that wait for a session.
    ready: Mutex<BTreeMap<NodeId, Ready>>,
    arrived: Condvar,
    pub(crate) accounts: Accounts,
    unproven: AtomicUsize,
    ended: AtomicBool,
}

/// The connections of a member that wait for a session.
struct Ready {
    /// The secret number of the membership. Its connections show it, so that no node can offer a
    /// connection in the name of another one, or in that of a membership at an earlier front end.
    number: u64,
    links: VecDeque<Link>,
}

impl FrontEnd {
    /// Listens for nodes of the same version of the program, which are accepted from
    /// [`Self::start`] on.
    ///
    /// # Errors
    /// The system cannot listen at the address.
    pub fn bind(address: SocketAddr, token: JoinToken, program: &str) -> io::Result<Arc<Self>> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(Arc::new(Self {
            address: listener.local_addr()?,
            listener,
            token,
            registry: Mutex::new(Registry::new(&version(program))),
            changes: AtomicU64::new(0),
            ready: Mutex::default(),
            arrived: Condvar::new(),
            accounts: Accounts::default(),
            unproven: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        }))
    }

    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nodes from now on, until [`Self::end`].
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(self: &Arc<Self>) -> io::Result<()> {
        let front_end = Arc::clone(self);
        thread::Builder::new().name("nodes".into()).spawn(move || front_end.accept())?;
        Ok(())
    }

    /// Accepts no more nodes, and releases the members.
    pub fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.ready.lock().clear();
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        let mut registry = self.registry.lock();
        registry.expire(Instant::now());
        registry.len()
    }

    /// The members as they are now.
    pub fn list(&self) -> Vec<Membership> {
        let mut registry = self.registry.lock();
        registry.expire(Instant::now());
        registry.members()
    }

    /// Drains the node of this name, so that it gets no new channels. Returns `false` if there is
    /// none.
    pub fn drain(&self, name: &str) -> bool {
        let mut registry = self.registry.lock();
        registry.expire(Instant::now());
        let found = registry.find(name);
        found.into_iter().for_each(|id| registry.drain(id));
        self.changes.fetch_add(1, Ordering::Release);
        found.is_some()
    }

    /// How many times a node has joined, or begun to leave.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Lends the session a connection of each of up to `count` nodes with an address that `suits`,
    /// those with the most free capacity. `current` has the connections that the session holds now;
    /// their nodes are kept if no others are better. The channel is on no node if none is
    /// available.
    pub fn choose(
        self: &Arc<Self>,
        suits: Suits,
        count: usize,
        current: Vec<Chosen>,
    ) -> (Vec<Chosen>, Placement) {
        // A node that joins or begins to leave from now on is news.
        let changes = self.changes();
        let chosen = self.choose_now(&*suits, count, current);
        let nodes = chosen.iter().map(|chosen| chosen.id).collect();
        (chosen, Placement::new(Arc::clone(self), suits, nodes, changes))
    }

    fn choose_now(
        self: &Arc<Self>,
        suits: &dyn Fn(IpAddr) -> bool,
        count: usize,
        mut current: Vec<Chosen>,
    ) -> Vec<Chosen> {
        current.retain(|chosen| !chosen.broken);
        // A chosen node may leave before it has given a connection.
        for _ in 0..4 {
            let own: Vec<NodeId> = current.iter().map(|chosen| chosen.id).collect();
            let best = self.registry.lock().choose(suits, &own, count, Instant::now());
            let wanted = best.len();
            let mut chosen = Vec::new();
            for (id, address) in best {
                let same = current.iter().position(|chosen| chosen.id == id);
                chosen.extend(match same {
                    Some(at) => Some(Chosen { address, ..current.swap_remove(at) }),
                    None => self.lend(id, address),
                });
            }
            if chosen.len() == wanted {
                return chosen;
            }
            current.append(&mut chosen);
        }
        Vec::new()
    }

    fn lend(self: &Arc<Self>, id: NodeId, address: IpAddr) -> Option<Chosen> {
        let name = {
            let mut registry = self.registry.lock();
            registry.channel_opened(id);
            registry.name(id).unwrap_or_default().to_owned()
        };
        let counted = Counted { front_end: Arc::clone(self), id };
        if let Some(link) = self.take(id) {
            return Some(Chosen { link, id, name, address, broken: false, counted });
        }
        // One that has begun to leave meanwhile keeps its other channels until they are closed.
        if self.registry.lock().takes_channels(id) {
            tracing::warn!(node = name, "a node has no connection for a session");
            self.remove(id);
        }
        None
    }

    /// Whether the node is still a member.
    fn is_member(&self, id: NodeId) -> bool {
        let mut registry = self.registry.lock();
        registry.expire(Instant::now());
        registry.is_member(id)
    }

    fn take(&self, id: NodeId) -> Option<Link> {
        let until = Instant::now() + CONNECTION;
        let mut ready = self.ready.lock();
        loop {
            while let Some(mut link) = ready.get_mut(&id)?.links.pop_front() {
                // A node sends nothing before it receives an order, so anything else means that the
                // link has ended.
                if matches!(link.ready(), Ok(None)) {
                    return Some(link);
                }
            }
            if !self.registry.lock().takes_channels(id)
                || self.arrived.wait_until(&mut ready, until).timed_out()
            {
                return None;
            }
        }
    }

    fn remove(&self, id: NodeId) -> Option<String> {
        self.ready.lock().remove(&id);
        self.arrived.notify_all();
        self.accounts.close_all(id);
        self.registry.lock().leave(id)
    }

    /// Wakes the sessions that wait for a connection of a node.
    fn wake_waiting(&self) {
        // One that has just looked at the registry waits now.
        drop(self.ready.lock());
        self.arrived.notify_all();
    }

    fn accept(self: Arc<Self>) {
        let look = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        while !self.ended.load(Ordering::SeqCst) {
            let _ = poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&look));
            let Ok((stream, peer)) = self.listener.accept() else { continue };
            if self.unproven.fetch_add(1, Ordering::SeqCst) >= MOST_UNPROVEN {
                self.unproven.fetch_sub(1, Ordering::SeqCst);
                tracing::warn!(%peer, "too many connections have not proved that they come from nodes");
                continue;
            }
            let front_end = Arc::clone(&self);
            let serve = move || {
                let greeted = Link::accept(stream, &front_end.token).and_then(|mut link| {
                    let greeting = link.expect(GREETING)?.message()?;
                    Ok((link, greeting))
                });
                front_end.unproven.fetch_sub(1, Ordering::SeqCst);
                match greeted {
                    Ok((link, greeting)) => front_end.greeted(link, greeting),
                    Err(error) => tracing::warn!(%peer, %error, "a node was not let in"),
                }
            };
            if let Err(error) = thread::Builder::new().name("node".into()).spawn(serve) {
                self.unproven.fetch_sub(1, Ordering::SeqCst);
                tracing::error!(%error, "no thread for a node");
            }
        }
    }

    fn greeted(self: &Arc<Self>, mut link: Link, greeting: Greeting) {
        let announcement = match greeting {
            Greeting::Ready(number) => return self.keep_ready(link, number),
            Greeting::Join(announcement) => announcement,
        };
        // A name that is refused may have any length.
        let name: String = announcement.name.chars().take(100).collect();
        let peer = link.peer();
        let number = match secret_number() {
            Ok(number) => number,
            Err(error) => return tracing::error!(node = ?name, %error, "a node cannot join"),
        };
        let joined = {
            let mut ready = self.ready.lock();
            let joined = self.registry.lock().join(announcement.clone(), peer, Instant::now());
            joined.inspect(|id| {
                ready.insert(*id, Ready { number, links: VecDeque::new() });
                self.changes.fetch_add(1, Ordering::Release);
            })
        };
        let id = match joined {
            Ok(id) => id,
            Err(refused) => {
                tracing::warn!(node = ?name, %peer, reason = %refused, "a node was refused");
                let _ = link.send(&Welcome::Refused(refused));
                return;
            }
        };
        tracing::info!(node = name, %peer, addresses = ?announcement.addresses, "a node has joined");
        let mut drains = false;
        let held = link.send(&Welcome::Joined(number)).and_then(|()| self.hold(&mut link, id, &mut drains));
        let why = match held {
            Ok(()) => "the front end ends".to_owned(),
            Err(LinkError::Closed) if drains => "it has drained".to_owned(),
            // It has closed the connection while an answer to it was under way.
            Err(LinkError::Io(error)) if drains && error.kind() == io::ErrorKind::ConnectionReset => {
                "it has drained".to_owned()
            }
            Err(error) => error.to_string(),
        };
        self.remove(id);
        tracing::info!(node = name, %peer, reason = why, "a node has left");
    }

    /// Takes a connection that waits for a session, unless the node has left or has enough of them.
    fn keep_ready(&self, link: Link, number: u64) {
        let mut ready = self.ready.lock();
        match ready.values_mut().find(|ready| ready.number == number) {
            Some(ready) if ready.links.len() < MOST_READY => ready.links.push_back(link),
            Some(_) => tracing::warn!(peer = %link.peer(), "a node has too many connections that wait"),
            None => tracing::debug!(peer = %link.peer(), "a connection of no member"),
        }
        self.arrived.notify_all();
    }

    /// Receives the messages of a member, and sends it grants, until its membership ends. `drains`
    /// is set when the node says that it drains.
    fn hold(&self, link: &mut Link, id: NodeId, drains: &mut bool) -> Result<(), LinkError> {
        while !self.ended.load(Ordering::SeqCst) {
            let (grants, next) = self.accounts.settle(id);
            if !grants.is_empty() {
                link.send(&Notice::Grants(grants))?;
            }
            let pause = next.map_or(LOOK, |next| next.clamp(GRANTS, LIMITS));
            let mut frame = link.receive(pause)?;
            while let Some(lease) = frame.map(|frame| frame.message()).transpose()? {
                match lease {
                    Lease::Renew { elsewhere } => {
                        if self.registry.lock().renew(id, elsewhere, Instant::now()) {
                            link.send(&Notice::Renewed)?;
                        }
                    }
                    Lease::Drain => {
                        *drains = true;
                        self.registry.lock().drain(id);
                        self.changes.fetch_add(1, Ordering::Release);
                        self.wake_waiting();
                    }
                    Lease::Spent(reports) => {
                        let unknown = self.accounts.report(id, &reports);
                        if !unknown.is_empty() {
                            link.send(&Notice::Closed(unknown))?;
                        }
                    }
                }
                frame = link.ready()?;
            }
            if !self.is_member(id) {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "its lease has run out").into());
            }
        }
        Ok(())
    }
}

/// A number that cannot be guessed, and is not 0.
fn secret_number() -> Result<u64, getrandom::Error> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes).max(1))
}

/// A connection of a node that is lent to a session. It counts as a channel of the node until it is
/// dropped.
pub struct Chosen {
    pub link: Link,
    /// The address at which peers reach the node.
    pub address: IpAddr,
    pub name: String,
    /// The link has failed, and cannot be used any more.
    pub broken: bool,
    id: NodeId,
    counted: Counted,
}

impl Chosen {
    /// Whether the node still renews its lease.
    pub fn is_alive(&self) -> bool {
        self.counted.front_end.is_member(self.id)
    }

    /// The node has broken the rules of the messages: it gets no new channels until it joins again.
    pub fn distrust(&self) {
        self.counted.front_end.registry.lock().drain(self.id);
    }

    /// Opens the account of a data channel.
    pub fn open_account(&self, purse: ChannelPurse) -> OpenAccount {
        OpenAccount::new(&self.counted.front_end, self.id, purse)
    }
}

/// Counts a channel of a node until it is dropped.
struct Counted {
    front_end: Arc<FrontEnd>,
    id: NodeId,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.front_end.registry.lock().channel_closed(self.id);
    }
}
