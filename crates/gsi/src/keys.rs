//! Keys for delegated proxies, made ahead: making one takes much longer than the rest of a log-in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use openssl::pkey::{PKey, Private};
use openssl::rsa::Rsa;

/// Size of the keys that are held: that of nearly all certificates of users.
const BITS: u32 = 2048;
/// Nobody else waits for the thread that makes keys.
const NICE: i32 = 19;
/// How often that thread looks whether its pool is still there.
const LOOK: Duration = Duration::from_secs(1);

/// RSA keys, each given out once. A thread of lowest priority makes new ones until the pool is full again.
pub struct KeyPool {
    keys: Mutex<Vec<PKey<Private>>>,
    most: usize,
    wanted: Condvar,
    begun: AtomicBool,
    this: Weak<Self>,
}

impl std::fmt::Debug for KeyPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPool").field("keys", &self.len()).field("most", &self.most).finish_non_exhaustive()
    }
}

impl KeyPool {
    /// A pool of `most` keys, which begins empty. The thread begins when a key is asked for, and ends with the pool: a server that
    /// gives up privileges after it has read its settings has them in no thread any more.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            keys: Mutex::new(Vec::new()),
            most,
            wanted: Condvar::new(),
            begun: AtomicBool::new(false),
            this: Weak::clone(this),
        })
    }

    /// A key of this size, if there is one.
    pub fn take(&self, bits: u32) -> Option<PKey<Private>> {
        if bits != BITS {
            return None;
        }
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.begin();
        }
        let key = self.lock().pop();
        self.wanted.notify_one();
        key
    }

    fn begin(&self) {
        let this = Weak::clone(&self.this);
        let thread = std::thread::Builder::new().name("keys".into()).spawn(move || fill(&this));
        // Whoever asks next tries again; without keys that were made ahead it takes longer, and works.
        self.begun.store(thread.is_ok(), Ordering::Relaxed);
    }

    /// How many keys are there.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PKey<Private>>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fill(pool: &Weak<KeyPool>) {
    // A process's number and that of its thread are of one kind here. Without a lower priority it works, too.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    while let Some(pool) = pool.upgrade() {
        let keys = pool.lock();
        if keys.len() >= pool.most {
            let waited = pool.wanted.wait_timeout(keys, LOOK);
            drop(waited);
            continue;
        }
        drop(keys);
        let Ok(key) = Rsa::generate(BITS).and_then(PKey::from_rsa) else { return };
        pool.lock().push(key);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_key_once() {
        let pool = KeyPool::new(2);
        let mut seen = Vec::new();
        while seen.len() < 4 {
            match pool.take(2048) {
                Some(key) => seen.push(key.public_key_to_der().unwrap()),
                None => std::thread::yield_now(),
            }
            assert!(pool.len() <= 2);
        }
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), 4);
        assert!(pool.take(3072).is_none());
    }
}
