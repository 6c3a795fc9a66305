//! The open sessions as an administrator sees them, and the order to end one.
//!
//! The host owns the table; each connection has its [`Presence`] in it until it closes. The thread
//! that runs the session writes what it does, and the thread of the admin socket reads it. A
//! session that the administrator has ended notices when it next looks whether it may continue.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use ropewalk_engine::Progress;
use ropewalk_protocol::path::VirtualPath;

use crate::config::TransferDirection;

/// All open sessions, by number.
#[derive(Default)]
pub(crate) struct Presences(Mutex<BTreeMap<u64, Arc<Presence>>>);

pub(crate) struct Presence {
    pub(crate) id: u64,
    pub(crate) peer: SocketAddr,
    pub(crate) since: SystemTime,
    ended: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    user: Option<User>,
    activity: Activity,
    /// Bytes of transfers and listings that are over.
    moved: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    /// The name in limits.
    pub(crate) counted_as: String,
}

/// The present work of a session.
#[derive(Clone, Default)]
pub(crate) enum Activity {
    /// It waits for its client, or does something that takes no time.
    #[default]
    Idle,
    /// It waits for its turn.
    Waiting {
        /// In the queue, from 1; unknown in the first moment.
        position: Option<u32>,
    },
    /// It carries out a command that moves no data, such as a checksum.
    Working,
    /// A transfer or listing.
    Moving { command: &'static str, path: VirtualPath, progress: Arc<Progress> },
}

/// A session at one time.
pub(crate) struct Snapshot {
    pub(crate) user: Option<User>,
    pub(crate) activity: Activity,
    /// Bytes of the transfer or listing under way.
    pub(crate) bytes: u64,
    /// Bytes of all transfers and listings.
    pub(crate) total: u64,
}

/// Keeps a session in the table until it is dropped.
pub(crate) struct Present {
    presences: Arc<Presences>,
    presence: Arc<Presence>,
}

impl Presences {
    pub(crate) fn enter(self: &Arc<Self>, id: u64, peer: SocketAddr) -> Present {
        let presence = Arc::new(Presence {
            id,
            peer,
            since: SystemTime::now(),
            ended: AtomicBool::new(false),
            state: Mutex::default(),
        });
        self.0.lock().insert(id, Arc::clone(&presence));
        Present { presences: Arc::clone(self), presence }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Presence>> {
        self.0.lock().values().cloned().collect()
    }

    /// Has a session end. False if there is none with this number.
    pub(crate) fn end(&self, id: u64) -> bool {
        let found = self.0.lock().get(&id).cloned();
        found.is_some_and(|presence| {
            presence.ended.store(true, Ordering::SeqCst);
            true
        })
    }
}

impl Presence {
    /// Whether the administrator has ended the session.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn log_in(&self, user: User) {
        self.state.lock().user = Some(user);
    }

    pub(crate) fn set(&self, activity: Activity) {
        self.state.lock().activity = activity;
    }

    /// The transfer or listing under way is over.
    pub(crate) fn moved(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.moved = state.moved.saturating_add(bytes);
        state.activity = Activity::Idle;
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let bytes = match &state.activity {
            Activity::Moving { progress, .. } => progress.bytes(),
            Activity::Idle | Activity::Waiting { .. } | Activity::Working => 0,
        };
        Snapshot {
            user: state.user.clone(),
            activity: state.activity.clone(),
            bytes,
            total: state.moved.saturating_add(bytes),
        }
    }
}

impl Activity {
    pub(crate) fn direction(&self) -> Option<TransferDirection> {
        match self {
            Self::Moving { command: "STOR" | "APPE" | "ESTO", .. } => Some(TransferDirection::Upload),
            Self::Moving { .. } => Some(TransferDirection::Download),
            Self::Idle | Self::Waiting { .. } | Self::Working => None,
        }
    }
}

impl std::ops::Deref for Present {
    type Target = Presence;

    fn deref(&self) -> &Presence {
        &self.presence
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.presences.0.lock().remove(&self.presence.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_listed_with_its_bytes_until_it_closes() {
        let presences = Arc::<Presences>::default();
        let present = presences.enter(7, ([127, 0, 0, 1], 5000).into());
        let progress = Arc::new(Progress::new());
        progress.report(&[30], 1, [std::time::Duration::ZERO; 5]);
        present.moved(12);
        let path = VirtualPath::root();
        present.set(Activity::Moving { command: "STOR", path, progress });
        let snapshot = presences.all().first().map(|presence| presence.snapshot());
        let seen = snapshot.map(|seen| (seen.bytes, seen.total, seen.activity.direction()));
        assert_eq!(seen, Some((30, 42, Some(TransferDirection::Upload))));
        assert!(!present.is_ended() && !presences.end(8));
        assert!(presences.end(7) && present.is_ended());
        drop(present);
        assert!(presences.all().is_empty() && !presences.end(7));
    }
}
