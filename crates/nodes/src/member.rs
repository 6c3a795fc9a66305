//! The node's side: a node that has joined one front end or several.
//!
//! Each front end has a [`Membership`] with a thread of its own, so that a front end that is lost
//! or slow does not disturb the others. Here is the common part of the memberships: the
//! announcement, the end of the node, and the count of sessions. A node that drains finishes its
//! transfers and then returns.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use crate::link::{Frame, Link, LinkError};
use crate::membership::{Joined, Membership, SessionLease};
use crate::message::version;
use crate::registry::{Announcement, JoinError};
use crate::token::JoinToken;

/// The reason why a node is not a member.
#[derive(Debug, thiserror::Error)]
pub enum JoinFailure {
    #[error("a node needs the address of a front end")]
    NoFrontEnd,
    #[error("the front end {0} is named twice")]
    Twice(String),
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
/// ends, when [`SessionLease::is_valid`] is false, or between two orders once
/// [`SessionLease::is_draining`] is true.
pub type Serve = dyn Fn(Link, Frame, &SessionLease) + Send + Sync;

/// A node.
pub struct Member {
    common: Arc<Common>,
    memberships: Vec<Arc<Membership>>,
}

/// The common part of the memberships of a node.
pub(crate) struct Common {
    pub(crate) token: JoinToken,
    pub(crate) announcement: Announcement,
    /// There are other front ends than this one.
    pub(crate) has_several: bool,
    draining: AtomicBool,
    stopping: AtomicBool,
    /// The number of sessions of all front ends that are being served.
    pub(crate) sessions: AtomicU32,
}

impl Common {
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.stopping.load(Ordering::SeqCst)
            || self.is_draining() && self.sessions.load(Ordering::SeqCst) == 0
    }
}

impl Member {
    /// Joins the front ends with these addresses. Those that cannot be joined now are tried again
    /// by [`Self::run`], if there is another one. If `announcement` has no address, the node
    /// announces to each front end the one from which it reaches it.
    ///
    /// # Errors
    /// No front end can be reached, has the token, and accepts the node; or an address is wrong.
    pub fn join(
        front_ends: &[String],
        token: JoinToken,
        mut announcement: Announcement,
    ) -> Result<(Arc<Self>, Vec<Joined>), JoinFailure> {
        announcement.version = version(&announcement.version);
        if let Some(twice) = front_ends.iter().enumerate().find(|(at, name)| front_ends[..*at].contains(name))
        {
            return Err(JoinFailure::Twice(twice.1.clone()));
        }
        let common = Arc::new(Common {
            token,
            announcement,
            has_several: front_ends.len() > 1,
            draining: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            sessions: AtomicU32::new(0),
        });
        let make = |address: &String| Membership::new(address, &common).map(Arc::new);
        let memberships = front_ends.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        // Front ends that are silent delay the others by one time limit, and not each in turn.
        let results: Vec<_> = thread::scope(|scope| {
            let joining: Vec<_> =
                memberships.iter().map(|membership| scope.spawn(move || membership.join())).collect();
            let panicked = || JoinFailure::Thread(io::Error::other("it has panicked"));
            joining.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
        });
        let (mut joined, mut failed) = (Vec::new(), None);
        for result in results {
            match result {
                Ok(found) => joined.push(found),
                Err(JoinFailure::Address { address, source })
                    if source.kind() == io::ErrorKind::InvalidInput =>
                {
                    return Err(JoinFailure::Address { address, source });
                }
                Err(failure) => {
                    if common.has_several {
                        tracing::warn!(node = common.announcement.name, error = %failure, "a front end is missing");
                    }
                    failed.get_or_insert(failure);
                }
            }
        }
        match failed {
            Some(failure) if joined.is_empty() => Err(failure),
            _ if joined.is_empty() => Err(JoinFailure::NoFrontEnd),
            _ => Ok((Arc::new(Self { common, memberships }), joined)),
        }
    }

    /// Accepts no new sessions, and lets [`Self::run`] return when the running transfers have
    /// ended.
    pub fn drain(&self) {
        self.common.draining.store(true, Ordering::SeqCst);
    }

    /// Lets [`Self::run`] return at once.
    pub fn stop(&self) {
        self.drain();
        self.common.stopping.store(true, Ordering::SeqCst);
    }

    pub fn is_draining(&self) -> bool {
        self.common.is_draining()
    }

    /// Renews the leases until the node has drained.
    ///
    /// # Errors
    /// The only front end was lost, and refuses the node when it joins again.
    pub fn run(&self, joined: Vec<Joined>, serve: &Arc<Serve>) -> Result<(), JoinFailure> {
        let mut joined: Vec<Option<Joined>> = joined.into_iter().map(Some).collect();
        let mut own = |membership: &Membership| {
            joined
                .iter_mut()
                .find(|joined| joined.as_ref().is_some_and(|joined| joined.is_of(membership)))?
                .take()
        };
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for membership in &self.memberships {
                let joined = own(membership);
                let thread = thread::Builder::new()
                    .name("membership".into())
                    .spawn_scoped(scope, move || membership.run(joined, serve));
                match thread {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        self.stop();
                        return Err(JoinFailure::Thread(error));
                    }
                }
            }
            let mut result = Ok(());
            for thread in threads {
                let ended = thread.join();
                result = result.and(ended.unwrap_or_else(|_| {
                    tracing::error!("the thread of a membership has panicked");
                    Ok(())
                }));
            }
            result
        })
    }
}
