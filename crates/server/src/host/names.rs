//! Names of users and groups. The system is asked for each at most once in [`FRESH`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// After this time the system is asked again.
const FRESH: Duration = Duration::from_secs(300);
/// The most users, and the most groups, that are remembered.
const MOST: usize = 4096;

#[derive(Default)]
pub(crate) struct Names {
    users: Mutex<Known>,
    groups: Mutex<Known>,
}

type Known = HashMap<u32, (Arc<str>, Instant)>;

impl Names {
    /// The name of the user, or the number if there is no name.
    pub(crate) fn user(&self, uid: u32) -> Arc<str> {
        look_up(&self.users, uid, || {
            uzers::get_user_by_uid(uid).map(|user| user.name().to_string_lossy().into_owned())
        })
    }

    /// The name of the group, or the number if there is no name.
    pub(crate) fn group(&self, gid: u32) -> Arc<str> {
        look_up(&self.groups, gid, || {
            uzers::get_group_by_gid(gid).map(|group| group.name().to_string_lossy().into_owned())
        })
    }
}

/// The number of a group, from its name or number.
pub(crate) fn gid(group: &[u8]) -> Option<u32> {
    let group = std::str::from_utf8(group).ok()?;
    group.parse().ok().or_else(|| uzers::get_group_by_name(group).map(|group| group.gid()))
}

fn look_up(known: &Mutex<Known>, id: u32, ask: impl FnOnce() -> Option<String>) -> Arc<str> {
    let now = Instant::now();
    let lock = || known.lock();
    if let Some((name, at)) = lock().get(&id)
        && now.duration_since(*at) < FRESH
    {
        return Arc::clone(name);
    }
    // Not under the lock: a directory service can be slow.
    let name: Arc<str> = ask().unwrap_or_else(|| id.to_string()).into();
    let mut known = lock();
    if known.len() >= MOST {
        known.clear();
    }
    known.insert(id, (Arc::clone(&name), now));
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_number_is_its_own_name() {
        let names = Names::default();
        assert_eq!(&*names.user(0), "root");
        assert_eq!(&*names.user(0), "root");
        assert_eq!(&*names.user(4_000_000_001), "4000000001");
        assert_eq!(gid(b"root"), Some(0));
        assert_eq!(gid(b"12"), Some(12));
        assert_eq!(gid(b"no such group"), None);
        assert_eq!(gid(b"\xff"), None);
    }
}
