//! Keys for delegated proxies. RSA keys take much longer to make than the rest of a log-in, so a
//! [`KeyPool`] can make them ahead of time. Its thread has the lowest priority, starts with the
//! first request for a key and ends with the pool. This module also has the limits for the sizes of
//! keys of peers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use openssl::ec::{Asn1Flag, EcGroup, EcKey};
use openssl::error::ErrorStack;
use openssl::nid::Nid;
use openssl::pkey::{HasPublic, Id, PKey, PKeyRef, Private};
use openssl::rsa::Rsa;
use openssl::x509::X509Ref;
use parking_lot::{Condvar, Mutex};

/// Size of the keys in the pool, which nearly all user certificates have.
const BITS: u32 = 2048;
/// The thread that makes keys has the lowest priority because no log-in waits for it.
const NICE: i32 = 19;
/// How often that thread checks whether its pool still exists.
const LOOK: Duration = Duration::from_secs(1);

/// Smallest and largest RSA keys that are made at a peer's request.
const RSA_BITS: std::ops::RangeInclusive<u32> = 2048..=4096;

/// The smallest keys that are accepted and certified: old programs made proxies with 1024 bits.
/// Shorter keys can be computed by attackers.
const LEAST_BITS: u32 = 1024;
const LEAST_CURVE_BITS: u32 = 160;

/// The largest key, and the largest public exponent, that are used before the peer is
/// authenticated.
const MOST_BITS: u32 = 8192;
const MOST_EXPONENT_BITS: i32 = 32;

/// Returns the size of a key and the allowed size if the key is too large. An RSA key with an
/// exponent that makes its use slow counts as too large.
pub(crate) fn excess<T: HasPublic>(key: &PKeyRef<T>) -> Option<(u32, u32)> {
    let slow = key.rsa().is_ok_and(|rsa| rsa.e().num_bits() > MOST_EXPONENT_BITS);
    (key.bits() > MOST_BITS || slow).then(|| (key.bits(), MOST_BITS))
}

/// Returns the size of a key and the required size if the key is too small.
pub(crate) fn weakness<T: HasPublic>(key: &PKeyRef<T>) -> Option<(u32, u32)> {
    let least = match key.id() {
        Id::EC => LEAST_CURVE_BITS,
        Id::RSA | Id::RSA_PSS | Id::DSA => LEAST_BITS,
        // Kinds with one length each, such as Ed25519.
        _ => return None,
    };
    (key.bits() < least).then(|| (key.bits(), least))
}

/// The kind of key that a delegated proxy gets.
#[derive(Clone, Debug, Default)]
pub enum DelegatedKeys {
    /// ECDSA on the curve P-256, which is as strong as RSA with 3072 bits and takes a thousandth of
    /// the time. GCT's programs sign requests for such keys and accept the proxies.
    #[default]
    P256,
    /// RSA, as large as the peer's own key (2048 to 4096 bits), from the pool if it has one.
    Rsa(Option<Arc<KeyPool>>),
}

impl DelegatedKeys {
    /// Makes a key for a proxy of `peer`.
    pub(crate) fn make(&self, peer: &X509Ref) -> Result<PKey<Private>, ErrorStack> {
        match self {
            Self::P256 => p256(),
            Self::Rsa(pool) => {
                let theirs = peer.public_key()?;
                let bits = if theirs.id() == Id::RSA { theirs.bits() } else { *RSA_BITS.start() };
                match pool.as_ref().and_then(|pool| pool.take(bits)) {
                    Some(key) => Ok(key),
                    None => rsa(bits),
                }
            }
        }
    }
}

fn p256() -> Result<PKey<Private>, ErrorStack> {
    let mut group = EcGroup::from_curve_name(Nid::X9_62_PRIME256V1)?;
    // The certificate names the curve (RFC 5480 section 2.1.1).
    group.set_asn1_flag(Asn1Flag::NAMED_CURVE);
    PKey::from_ec_key(EcKey::generate(&group)?)
}

/// Makes an RSA key. Takes about 0.1 s of CPU time.
pub(crate) fn rsa(bits: u32) -> Result<PKey<Private>, ErrorStack> {
    PKey::from_rsa(Rsa::generate(bits.clamp(*RSA_BITS.start(), *RSA_BITS.end()))?)
}

/// A pool of RSA keys, each of which is used once. A thread of lowest priority refills the pool.
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
    /// Makes an empty pool for `most` keys. The thread starts with the first request for a key, so
    /// that a server that drops privileges after reading its settings has no thread that keeps
    /// them. It ends with the pool.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            keys: Mutex::new(Vec::new()),
            most,
            wanted: Condvar::new(),
            begun: AtomicBool::new(false),
            this: Weak::clone(this),
        })
    }

    /// Takes a key of this size if there is one.
    pub fn take(&self, bits: u32) -> Option<PKey<Private>> {
        if bits != BITS {
            return None;
        }
        if !self.begun.swap(true, Ordering::Relaxed) {
            self.begin();
        }
        let key = self.keys.lock().pop();
        self.wanted.notify_one();
        key
    }

    fn begin(&self) {
        let this = Weak::clone(&self.this);
        let thread = std::thread::Builder::new().name("keys".into()).spawn(move || fill(&this));
        // If the thread cannot start, the next request tries again. Meanwhile keys are made on
        // demand, which only takes longer.
        self.begun.store(thread.is_ok(), Ordering::Relaxed);
    }

    /// The number of keys in the pool.
    pub fn len(&self) -> usize {
        self.keys.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn fill(pool: &Weak<KeyPool>) {
    // Linux takes a thread id in place of a process id here. A failure is ignored: the thread only
    // keeps its normal priority.
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), NICE);
    while let Some(pool) = pool.upgrade() {
        let mut keys = pool.keys.lock();
        if keys.len() >= pool.most {
            pool.wanted.wait_for(&mut keys, LOOK);
            continue;
        }
        drop(keys);
        let Ok(key) = rsa(BITS) else { return };
        pool.keys.lock().push(key);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn key_pool_returns_each_key_once() {
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
