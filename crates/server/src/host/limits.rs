//! How many sessions there are: in all, by address, by user.
//!
//! A session holds its permits until it is dropped. The counts may be used from every thread.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::config;
use crate::host::throttle::network;

#[derive(Default)]
pub(crate) struct SessionCounts(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    all: u32,
    addresses: HashMap<IpAddr, u32>,
    users: HashMap<String, u32>,
}

/// The permit for one session, held until it is dropped.
pub(crate) struct SessionPermit {
    counts: Arc<SessionCounts>,
    address: IpAddr,
    ended: Box<dyn Fn() + Send + Sync>,
}

/// The permit for one session of a user, held until it is dropped.
pub(crate) struct UserPermit {
    counts: Arc<SessionCounts>,
    user: String,
}

impl SessionCounts {
    pub(crate) fn sessions(&self) -> usize {
        self.counts().all as usize
    }

    /// Admits one more session from `address`; `None` if there are too many. `ended` is called
    /// after the session has ended.
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        limits: &config::Limits,
        ended: impl Fn() + Send + Sync + 'static,
    ) -> Option<SessionPermit> {
        let here = address.to_canonical().is_loopback();
        let address = network(address);
        let mut counts = self.counts();
        if limits.sessions > 0 && counts.all >= limits.sessions {
            return None;
        }
        // Without a limit for each address, one address leaves some sessions to others. A client on
        // this host may be a gateway for many.
        let most = match limits.sessions_per_address {
            0 if !here => limits.sessions - limits.sessions / 4,
            most => most,
        };
        if !take(&mut counts.addresses, address, most) {
            return None;
        }
        counts.all += 1;
        Some(SessionPermit { counts: Arc::clone(self), address, ended: Box::new(ended) })
    }

    /// Admits one more session of `user`, who may have up to `limit`; 0 is no limit.
    pub(crate) fn admit_user(self: &Arc<Self>, user: &str, limit: u32) -> Option<UserPermit> {
        let admitted = take(&mut self.counts().users, user.to_owned(), limit);
        admitted.then(|| UserPermit { counts: Arc::clone(self), user: user.to_owned() })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock()
    }
}

fn take<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: K, limit: u32) -> bool {
    let count = counts.entry(key).or_default();
    if limit > 0 && *count >= limit {
        return false;
    }
    *count += 1;
    true
}

fn give_back<K: Eq + Hash>(counts: &mut HashMap<K, u32>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        let mut counts = self.counts.counts();
        counts.all -= 1;
        give_back(&mut counts.addresses, &self.address);
        drop(counts);
        (self.ended)();
    }
}

impl Drop for UserPermit {
    fn drop(&mut self) {
        give_back(&mut self.counts.counts().users, &self.user);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn session_permit_when_dropped_is_available_again() {
        let counts = Arc::new(SessionCounts::default());
        let limits = config::Limits { sessions: 3, sessions_per_address: 2, ..config::Limits::default() };
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let first = counts.admit(a, &limits, || ()).unwrap();
        let _second = counts.admit(a, &limits, || ()).unwrap();
        assert!(counts.admit(a, &limits, || ()).is_none());
        let _third = counts.admit(b, &limits, || ()).unwrap();
        assert!(counts.admit(b, &limits, || ()).is_none());
        drop(first);
        assert_eq!(counts.sessions(), 2);
        assert!(counts.admit(a, &limits, || ()).is_some());
    }

    #[test]
    fn sessions_of_one_address_leave_some_to_others() {
        let counts = Arc::new(SessionCounts::default());
        let limits = config::Limits { sessions: 4, ..config::Limits::default() };
        let admit = |from: [u8; 4]| counts.admit(IpAddr::from(from), &limits, || ());
        let all: Vec<_> = (0..4).map_while(|_| admit([10, 0, 0, 1])).collect();
        assert_eq!(all.len(), 3);
        assert!(admit([10, 0, 0, 2]).is_some());
        drop(all);
        // A gateway may connect from there.
        assert_eq!((0..4).map_while(|_| admit([127, 0, 0, 1])).collect::<Vec<_>>().len(), 4);
    }

    #[test]
    fn sessions_of_user_beyond_limit_are_refused() {
        let counts = Arc::new(SessionCounts::default());
        let one = counts.admit_user("ann", 1).unwrap();
        assert!(counts.admit_user("ann", 1).is_none());
        assert!(counts.admit_user("bob", 1).is_some());
        drop(one);
        assert!(counts.admit_user("ann", 1).is_some());
        assert!(counts.counts().users.is_empty());
    }
}
